"""What part of a long list every run tries, and that `--whole` and names bring the rest."""

from __future__ import annotations

from itertools import chain
from pathlib import Path

import pytest

from onnx_fa.spec.target import parse_target
from tests.support.cases import CASES
from tests.support.cpu_targets import cpu_targets, kind_of
from tests.support.sampled import kinds_of, parameters, sampled

pytest_plugins = ["pytester"]
CONFTEST = (Path(__file__).parent / "conftest.py").read_text()
FILE = """
import pytest

@pytest.mark.parametrize("n", [0, pytest.param(1, marks=pytest.mark.whole)])
def test_n(n):
    pass
"""


def test_every_nth_and_every_kind() -> None:
    kinds = ["a", "a", "a", "a", "ab", "c", "b", "cd", "a"]
    assert sampled(kinds, 4) == [0, 4, 7, 8]
    assert sampled(kinds, 1) == list(range(len(kinds)))
    assert sampled(kinds, len(kinds)) == [0, 4, 7], "one that brings two kinds stands for two cases"
    assert sampled([], 3) == []
    assert sampled(kinds, len(kinds), always=[5]) == [0, 4, 5, 7]
    assert sampled(kinds, len(kinds), {*chain(*kinds)}) == [0], "another list has all kinds"
    assert sampled(kinds, None) == [4, 7], "none for its place"
    assert sampled(kinds, None, costs=[1, 1, 1, 1, 3, 1, 1, 1, 1]) == [0, 6, 7], (
        "two that cost less than the one that is both"
    )
    assert sampled(["bc", "ab", "cd"], None) == [1, 2], "the first has nothing that those behind it lack"


@pytest.mark.parametrize("every", [2, 3, 5, 1000])
def test_of_the_table_every_kind_is_kept(every: int) -> None:
    kinds = [kinds_of(case) for case in CASES]
    kept = sampled(kinds, every)
    assert frozenset().union(*(kinds[i] for i in kept)) == frozenset().union(*kinds)
    assert set(range(0, len(CASES), every)) <= set(kept) and len(kept) < len(CASES)


def test_kinds_are_tags_words_and_operators() -> None:
    by_name = {case.name: kinds_of(case) for case in CASES}
    assert {"mask", "causal", "Causal", "f32", "nan", "mha"} <= by_name["causal_then_add"]
    assert {"expression", "Erf", "Elementwise"} <= by_name["erf"]
    assert {"quantized", "k:i8"} <= by_name["quant_token"]


def test_the_others_are_marked() -> None:
    made = parameters("xyz", ("one", "two", "three"), [1])
    assert [(p.values, p.id, [m.name for m in p.marks]) for p in made] == [
        (("x",), "one", ["whole"]),
        (("y",), "two", []),
        (("z",), "three", ["whole"]),
    ]


def test_a_cpu_that_has_the_kernels_of_another_is_left_out() -> None:
    assert kind_of(parse_target("cpu-avx2")) != kind_of(parse_target("cpu-avx512"))
    made = cpu_targets("cpu-avx512", "cpu-avx2", "cpu-avx512")
    assert [([m.name for m in p.marks], p.values) for p in made] == [
        ([], ("cpu-avx512",)),
        ([], ("cpu-avx2",)),
        (["whole"], ("cpu-avx512",)),
    ]


@pytest.mark.parametrize(
    ("args", "run"),
    [("test_file.py", 1), ("--whole", 2), ("test_file.py::test_n", 2), ("-k test_n", 2), ("-m whole", 1), ("-n 1", 1)],
)
def test_what_is_left_out_runs_where_it_is_asked_for(
    args: str, run: int, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[1]))  # which the conftest imports from
    pytester.makeconftest(CONFTEST)
    pytester.makepyfile(test_file=FILE)
    pytester.makeini("[pytest]\nmarkers = whole: left out")
    # pytest-xdist does not say what its processes leave out.
    pytester.runpytest_subprocess(*args.split()).assert_outcomes(passed=run, deselected=0 if "-n" in args else 2 - run)

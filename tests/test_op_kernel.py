"""The op body: every case against the reference, what it refuses, and what its text must and must not hold."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import numpy as np
import pytest

from onnx_fa.backend.alone import entry_text as entry
from onnx_fa.emit.op_kernel import emit_op
from onnx_fa.errors import UnsupportedError
from onnx_fa.expr import SCORE, K, Q
from onnx_fa.reference import attention, scores
from onnx_fa.spec import AddMask, AttentionSpec, BoolMask, Causal, Softcap
from onnx_fa.target import parse_target
from tests.cases import BY_NAME, CASES, Case, added, draw_operands, select, term, where
from tests.kernel_harness import HOST, Kernels, mismatch, run_iree_compile

BASE = AttentionSpec("f32", 2, 2, 8, 8, 16, 16)


def _carried(spec: AttentionSpec) -> bool:
    """Whether the op can express a spec: heads of more than one element, and terms that are masks or biases."""
    try:
        emit_op(spec, HOST, "fa_x")
    except UnsupportedError as error:
        assert min(spec.D, spec.Dv) < 2 or re.search(
            "more than a mask or a bias|competes|kept as integers|row statistics|second sweep|gathered", str(error)
        ), error
        return False
    return True


_CARRIED = [c for c in CASES if _carried(c.spec)]
_TESTED = [c for c in select() if c in _CARRIED]


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Kernels:
    kernels = [emit_op(case.spec, HOST, f"fa_case{i}") for i, case in enumerate(_TESTED)]
    return Kernels(kernels, tmp_path_factory.mktemp("op"))


@pytest.mark.parametrize("adversarial", [False, True], ids=["plain", "adversarial"])
@pytest.mark.parametrize("index", range(len(_TESTED)), ids=[c.name for c in _TESTED])
def test_case(compiled: Kernels, index: int, adversarial: bool) -> None:
    for seed, spec in enumerate(_TESTED[index].bound()):
        operands = draw_operands(spec, seed, adversarial=adversarial)
        assert mismatch(spec, operands, compiled.run(index, operands)) is None, spec


@pytest.mark.parametrize("name", ["empty_zero_bool", "empty_nan_bool", "causal", "gqa"])
@pytest.mark.parametrize("operand", [0, 1, 2])
@pytest.mark.parametrize("poison", [np.nan, np.inf])
def test_nan_is_never_hidden(compiled: Kernels, name: str, operand: int, poison: float) -> None:
    """Where a poisoned operand makes the softmax NaN the output is NaN; every number that is given is right."""
    index = _TESTED.index(BY_NAME[name])
    spec = _TESTED[index].spec
    operands = draw_operands(spec, 3, adversarial=True)
    operands[operand][1, 1, 5, 3] = poison
    got = compiled.run(index, operands)[0]
    with np.errstate(all="ignore"):
        want = attention(dataclasses.replace(spec, empty_row="nan"), *operands)
        empty = (scores(spec, *operands) == -np.inf).all(axis=-1)
        if operand == 2:  # v: 0 * NaN and 0 * inf are NaN, also in empty rows
            want = attention(spec, *operands)
        elif spec.empty_row == "zero":
            want[empty] = 0.0
    assert np.isnan(got[np.isnan(want)]).all()
    fine = ~np.isnan(got)
    assert fine.any() and np.allclose(got[fine], want[fine], atol=1e-4)


def test_expressions_are_tested_too() -> None:
    assert sum("expression" in c.tags for c in _TESTED) > 40


def test_cases_are_distinct() -> None:
    assert len({c.name for c in CASES}) == len(CASES)
    assert all(c.bound() and not any(s.symbols for s in c.bound()) for c in CASES)


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        (dataclasses.replace(BASE, dtype="f64"), "f64"),
        (dataclasses.replace(BASE, masks=(AddMask((8, 8), "f64"),)), "f64"),
        (dataclasses.replace(BASE, masks=(BoolMask((8, 8), -5.0),)), "competes"),
        (dataclasses.replace(BASE, masks=(Causal(0, float("nan")),)), "competes"),
        (dataclasses.replace(BASE, masks=(BoolMask((8, 8), -1e9), AddMask((8, 8)))), "moderate"),
        (dataclasses.replace(BASE, masks=tuple(Causal(0, -(10.0**e)) for e in range(5, 9))), "finite mask fills"),
        (dataclasses.replace(BASE, D=1), "head dim"),
        (dataclasses.replace(BASE, masks=(term(("Relu", SCORE)),)), "more than a mask or a bias"),
        (dataclasses.replace(BASE, masks=(term(where(("Less", K, Q), -1e9)), term(added(("f", 1.0))))), "moderate"),
    ],
)
def test_refuses(spec: AttentionSpec, reason: str) -> None:
    with pytest.raises(UnsupportedError, match=reason):
        emit_op(spec, HOST, "fa_x")


def test_refuses_other_backends() -> None:
    with pytest.raises(UnsupportedError, match="backend cuda"):
        emit_op(BASE, dataclasses.replace(HOST, backend="cuda"), "fa_x")


def _config_ranks(text: str) -> set[int]:
    return {len(t.split(",")) for t in re.findall(r"(?:distribution|vector_\w+) = \[([^]]*)\]", text)}


@pytest.mark.parametrize("case", _CARRIED, ids=lambda c: c.name)
def test_text(case: Case) -> None:
    """Tiles of the op's rank with k1 whole; no index in the op's region; every dispatch carries the name."""
    text = emit_op(case.spec, HOST, "fa_name").text
    dims = re.search(r"online_attention <indexing_maps = \[affine_map<\(([^)]*)\)", text)
    assert dims is not None
    order = dims.group(1).split(", ")
    assert _config_ranks(text) == {len(order)}
    for tiles in re.findall(r"(?:distribution|vector_\w+) = \[([^]]*)\]", text):
        assert tiles.split(", ")[order.index("k1")] == "0"
    assert "linalg_ext.index" not in text
    symbols = re.findall(
        r"(?:flow\.executable|export|func\.func|util\.func|dispatch)(?: private| public)? (@\S+)", text
    )
    assert len(symbols) >= 4 and all(s.startswith("@fa_name") for s in symbols)


def test_gqa_repeats_nothing() -> None:
    text = emit_op(BY_NAME["gqa"].spec, HOST, "fa_x").text
    assert "(b0, h, g, m, n, k1, k2) -> (b0, h, k1, k2)" in text
    assert "(b0, h, g, m, n, k1, k2) -> (b0, h, k2, n)" in text


def test_decode_folds_the_group_into_the_rows() -> None:
    text = emit_op(BY_NAME["decode_gqa"].spec, HOST, "fa_x").text
    assert "(b0, h, m, n, k1, k2) -> (b0, h, m, k1)" in text


def test_softcap_is_in_natural_units() -> None:
    text = emit_op(dataclasses.replace(BASE, mods=(Softcap(2.0),)), HOST, "fa_x").text
    assert text.count("math.tanh") == 1


@pytest.mark.parametrize("target", ["cpu-avx2", "cpu-avx512", "cpu-neon"])
def test_compiles_for(target: str, tmp_path: Path) -> None:
    kernel = emit_op(BY_NAME["bool_then_causal"].spec, parse_target(target), "fa_x")
    run_iree_compile(kernel.text + entry(kernel, "call"), tmp_path / "k.vmfb", kernel.flags, parse_target(target))

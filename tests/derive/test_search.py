"""Recurrences that are derived compute what their programs say, whatever the blocks; and what cannot be carried is refused."""

from __future__ import annotations

import re
from collections.abc import Mapping

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from onnx_fa.derive.attention import program_of
from onnx_fa.derive.cascades import CASCADES
from onnx_fa.derive.check import F64, Function, Walker, evaluate
from onnx_fa.derive.rules import RULES
from onnx_fa.derive.search import NoRecurrenceError, Program, derive
from onnx_fa.derive.terms import Term, across, apply, exp, key, peak, total
from onnx_fa.spec.attention import AttentionSpec
from onnx_fa.spec.expr import SCORE, Apply
from onnx_fa.spec.terms import Rounding, Softcap, TensorArg, Weighting

S, V, W = key("s"), key("v"), key("w")
E = exp(S - peak(S))
P = E / total(E)
FUNCTIONS: Mapping[str, Function] = {
    "Steps": lambda p: np.rint(p * 255),
    "Reciprocal": lambda x: 1 / x,
    "mix": lambda p: p * p,
}


def spec(**changes: object) -> AttentionSpec:
    return AttentionSpec("f32", 2, 2, 4, 5, 8, 8, (1,), **changes)  # type: ignore[arg-type]


RELU = Apply("Relu", SCORE)
PROGRAMS: dict[str, Program] = {
    "softmax": Program((("out", total(P * V)),)),
    "statistics": program_of(spec(stats=("lse", "max"))),
    "rounded": program_of(spec(rounding=Rounding(1 / 255))),
    "capped": program_of(spec(mods=(Softcap(20.0),))),
    "weights": program_of(spec(weights=TensorArg((5,)))),
    "kept": program_of(spec(weights=TensorArg((5,), "bool"), renormalised=True, empty_row="guarded")),
    "sigmoid": program_of(spec(weighting=Weighting(Apply("Sigmoid", SCORE)))),
    "squared relu": program_of(spec(weighting=Weighting(Apply("Mul", RELU, RELU), Apply("Mul", RELU, RELU), plus=0.5))),
    "absolute": program_of(spec(weighting=Weighting(SCORE, Apply("Abs", SCORE), least=1e-9))),
    "mixed": Program((("out", total(apply("mix", P) * V)),)),
    **{c.name: c.program for c in CASCADES},
}


def draw_keys(count: int, seed: int) -> dict[str, F64]:
    draw = np.random.default_rng(seed)
    keys: dict[str, F64] = {n: draw.normal(size=count) * 3 for n in ("s", "x", "g")}
    keys |= {"v": draw.normal(size=(count, 4)), "w": np.abs(draw.normal(size=count)) + 0.1}
    return keys | {"target": np.eye(1, count)[0]}


@pytest.mark.parametrize("name", PROGRAMS)
@settings(max_examples=15, deadline=None)
@given(blocks=st.lists(st.integers(1, 9), min_size=1, max_size=6), seed=st.integers(0, 99))
def test_a_recurrence_is_its_program(name: str, blocks: list[int], seed: int) -> None:
    assume(name != "layer-norm-product" or sum(blocks) > 3)  # of a few numbers the variance is all cancellation
    program, keys = PROGRAMS[name], draw_keys(sum(blocks), seed)
    found = Walker(derive(program).recurrence, FUNCTIONS).run(keys, blocks)
    for output, term in program.outputs:
        want = evaluate(term, keys, functions=FUNCTIONS)
        assert np.allclose(found[output], want, rtol=1e-8, atol=1e-8), output


@pytest.mark.parametrize("name", ["softmax", "statistics", "capped", "kept", "sigmoid", "squared relu"])
def test_ranges_of_keys_merge(name: str) -> None:
    """Partial results of two ranges are those of both: split keys, and keys on several devices."""
    derivation, keys = derive(PROGRAMS[name]), draw_keys(11, 1)
    walker, (walk,) = Walker(derivation.recurrence, FUNCTIONS), derivation.recurrence.passes
    parts = [
        walker.step(walk, walker.start(walk), {n: x[part] for n, x in keys.items()}, {})
        for part in (slice(0, 4), slice(4, None))
    ]
    merged = walker.results(walk, walker.merge(walk, *parts), {})
    for output, term in PROGRAMS[name].outputs:
        assert np.allclose(merged[output], evaluate(term, keys, functions=FUNCTIONS), rtol=1e-9)


def test_softmax_becomes_one_pass_by_rules_that_do_not_know_it() -> None:
    """From sum(softmax * v), three passes, to a maximum, a sum and an output that are carried."""
    derivation = derive(PROGRAMS["softmax"])
    (walk,) = derivation.recurrence.passes
    assert {c.name: str(c.correction) for c in walk.carried} == {
        "m": "None",
        "o": "exp(m - m')",
        "l": "exp(m - m')",
    }
    assert str(walk.results["out"]) == "o' / l'"
    assert derivation.nodes < 1000
    assert not any(re.search("softmax|attention", f"{r.name} {r.proof}".lower()) for r in RULES)


def test_a_second_derivation_takes_less_than_a_second() -> None:
    derive.cache_clear()
    derive(PROGRAMS["sigmoid"])  # loads the library
    assert derive(PROGRAMS["softmax"]).seconds < 1


@pytest.mark.parametrize(
    ("name", "passes"),
    [("softmax", 1), ("rounded", 2), ("mixed", 2), ("sigmoid", 1), ("capped", 1), ("statistics", 1), ("kept", 1)],
)
def test_passes(name: str, passes: int) -> None:
    assert derive(PROGRAMS[name]).passes == passes


def test_bounded_scores_need_no_maximum() -> None:
    def carried(program: Program) -> list[str]:
        return [c.name for c in derive(program).recurrence.passes[0].carried]

    assert carried(PROGRAMS["capped"]) == ["o", "l"]
    assert carried(program_of(spec(mods=(Softcap(60.0),)))) == ["m", "o", "l"]
    assert carried(program_of(spec(mods=(Softcap(20.0),)), narrow=True)) == ["m", "o", "l"]
    assert carried(program_of(spec(mods=(Softcap(20.0),), sink=TensorArg((1, 2, 1, 1))))) == ["m", "o", "l"]


@pytest.mark.parametrize("what", ["top_k", "prefix_sum", "sparsemax"])
def test_what_needs_all_keys_at_once_is_refused(what: str) -> None:
    with pytest.raises(NoRecurrenceError, match=f"{what}.* needs the numbers of all keys at once"):
        derive(Program((("out", total(across(what, S) * V)),)))


def test_a_chain_too_long_is_refused() -> None:
    term: Term = S
    for i in range(6):
        term = apply(f"f{i}", term / total(apply(f"g{i}", term)))
    with pytest.raises(NoRecurrenceError, match="more than 4 passes"):
        derive(Program((("out", total(term * V)),)))

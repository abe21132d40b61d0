"""Chains of named rules from programs to what was chosen."""

from __future__ import annotations

import numpy as np
import pytest

from onnx_fa.derive.chain import chain_of
from onnx_fa.derive.check import evaluate
from onnx_fa.derive.cost import price
from onnx_fa.derive.search import derive
from onnx_fa.derive.terms import key, old, peak, show, total
from tests.derive.test_search import FUNCTIONS, PROGRAMS, draw_keys

CHAINS = [(name, output) for name, p in PROGRAMS.items() for output, _ in p.outputs]


@pytest.mark.parametrize(("name", "output"), CHAINS)
def test_every_step_is_the_same_number(name: str, output: str) -> None:
    """And the last costs as many passes as what was chosen, with no more exponents that may overflow."""
    derivation, keys = derive(PROGRAMS[name]), draw_keys(12, 5)
    chain = chain_of(derivation, output)
    first = evaluate(chain[0].term, keys, functions=FUNCTIONS)
    for step in chain:
        assert np.allclose(evaluate(step.term, keys, functions=FUNCTIONS), first, rtol=1e-9, atol=1e-12), step.cascade
    (best,) = [c for n, _, c in derivation.best if n == output]
    assert chain[-1].passes == best.ready
    assert price(chain[-1].term, PROGRAMS[name].bounded).overflows == best.overflows
    assert "several" not in "".join(s.rule for s in chain)


def test_softmax_step_by_step() -> None:
    chain = chain_of(derive(PROGRAMS["softmax"]), "out")
    assert [(s.rule, s.passes) for s in chain] == [
        ("", 3),
        ("a division leaves a sum", 2),
        ("a sum is over earlier keys and this block's", 2),
        ("exp turns a shift into a factor", 2),
        ("a factor leaves a sum (earlier keys)", 1),
    ]
    assert chain[-1].bytes_held(64) == 4 * (64 + 2)


def test_a_cap_takes_the_maximum_out() -> None:
    chain = chain_of(derive(PROGRAMS["capped"]), "out")
    assert chain[-1].rule == "a common divisor cancels" and "max" not in chain[-1].cascade
    assert chain[-1].bytes_held(64) == 4 * (64 + 1)


def test_a_sum_that_nothing_carries_is_a_pass() -> None:
    s = key("s", "before")
    assert price(total(s - peak(s, "before"), "before"), ()).ready == 1
    assert price(total(s - peak(key("s")), "before"), ()).ready == 2
    assert show(total(s * old("m"), "before")) == "Σ⁻(s⁻ₖ · m)"

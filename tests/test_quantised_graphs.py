"""Quantised attentions as their users run them: what is rewritten equals the original, with onnxruntime's optimiser and without."""

from __future__ import annotations

import numpy as np
import pytest
from onnxruntime.capi.onnxruntime_pybind11_state import Fail  # type: ignore[import-untyped]
from ort_run import run
from quantised_graphs import PLACES, Drawn, build, draw, feeds

from onnx_fa.rewriter import FORMS, rewrite

GRAPHS = 24
CHOSEN = {
    "every place, signed": Drawn(PLACES, np.int8, 0, 18),
    "every place, no zero point": Drawn(PLACES, np.int8, None, 17),
    "every place, unsigned": Drawn(PLACES, np.uint8, 0, 18, layout="flat", mask="added"),
    "every place, opset 21": Drawn(PLACES, np.int8, -3, 21, layout="flat"),
    "integers given, by channel": Drawn(PLACES, np.int8, None, 20, stored=True, channels=True),
    "Q unmoved by the model": Drawn(("q", "k"), np.int8, None, 18, layout="tokens", einsum=True, scaled=False),
    "grouped": Drawn(("q", "k", "v"), np.int8, None, 18, group=2, scaled=False, dynamic=True),
    "for the op": Drawn(("q", "k", "v"), np.int8, None, 23, layout="quantised first"),
}


@pytest.mark.parametrize("drawn", CHOSEN.values(), ids=CHOSEN)
def test_chosen(drawn: Drawn) -> None:
    _same_in_all_forms(drawn, 0)


@pytest.mark.parametrize("block", range(0, GRAPHS, 12))
def test_drawn(block: int) -> None:
    for seed in range(block, block + 12):
        _same_in_all_forms(draw(seed), seed)


def _same_in_all_forms(drawn: Drawn, seed: int) -> None:
    model = build(drawn)
    inputs = feeds(model, seed)
    (want,) = run(model, inputs, optimise=False)
    for form in FORMS:
        new, report = rewrite(model, form)
        assert report.sites or form == "attention", (drawn, report.misses)
        assert rewrite(new, form)[0].SerializeToString() == new.SerializeToString(), (form, drawn)
        for optimise in (False, True) if report.sites else ():
            (have,) = run(new, inputs, optimise=optimise)
            np.testing.assert_allclose(have, want, atol=2e-6, err_msg=f"{form}, optimiser {optimise}, {drawn}")


def test_the_originals_are_changed_by_the_optimiser() -> None:
    """Else the tests above would show less than they say: some of the graphs have no such results before they are rewritten."""
    changed = 0
    for drawn in CHOSEN.values():
        model = build(drawn)
        inputs = feeds(model, 0)
        (want,) = run(model, inputs, optimise=False)
        try:
            (have,) = run(model, inputs)
        except Fail:
            changed += 1
            continue
        changed += not np.allclose(have, want, atol=2e-6)
    assert changed >= 3

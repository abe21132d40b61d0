"""Every row of the table of spellings is matched or refused as it says, and gives the original's result."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from spelling_table import Entry, entries
from test_random_attention import distance, session

from onnx_fa.rewriter import rewrite

TOLERANCE = 2e-6
ROWS = entries()


@pytest.mark.parametrize("entry", ROWS, ids=[e.id for e in ROWS])
def test_spelling(entry: Entry) -> None:
    model = entry.build()
    onnx.checker.check_model(model)
    new, report = rewrite(model)
    again, _ = rewrite(new)
    assert again.SerializeToString() == new.SerializeToString(), "rewriting twice changed something"
    if entry.expected == "refuse":
        assert not report.sites, [s.spec for s in report.sites]
        assert [n.op_type for n in new.graph.node] == [n.op_type for n in model.graph.node]
        return
    assert report.sites and not report.misses, report.misses
    old, rewritten = session(model), session(new)
    inputs = entry.feeds(model, 0)
    for a, b in zip(old.run(None, inputs), rewritten.run(None, inputs), strict=True):
        assert a.shape == b.shape and a.dtype == b.dtype
        scale = float(np.linalg.norm(a[np.isfinite(a)].astype(np.float64))) if a.dtype.kind == "f" else 0.0
        assert distance(a, b) <= TOLERANCE * scale

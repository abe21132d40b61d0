"""Every row of the table of spellings is matched or refused as it says, and gives the original's result."""

from __future__ import annotations

import onnx
import pytest

from onnx_fa.forms.rewrite import FORMS, rewrite
from tests.match.test_random_attention import Case, check
from tests.support.spelling_table import Entry, entries

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
        assert model.functions or [n.op_type for n in new.graph.node] == [n.op_type for n in model.graph.node]
        return
    assert report.sites, report.misses
    for form in FORMS:
        assert check(Case(entry.id, form=form)) == "matched"

"""Every row of the table of spellings is matched or refused as it says, and gives the original's result, in every form."""

from __future__ import annotations

import onnx
import pytest

from onnx_fa.forms.rewrite import FORMS, rewrite
from tests.match.test_random_attention import Case, matched_in
from tests.support.spelling_table import Entry, entries

ROWS = entries()
IN_ALL_FORMS = {e.id for e in ROWS[::6]}
"""Rows that every run tries in each form, with --whole all rows are; the others in the form that can say everything."""


@pytest.mark.parametrize("entry", ROWS, ids=[e.id for e in ROWS])
def test_spelling(entry: Entry, pytestconfig: pytest.Config) -> None:
    model = entry.build()
    onnx.checker.check_model(model)
    if entry.expected == "match":
        all_forms = pytestconfig.getoption("whole") or entry.id in IN_ALL_FORMS
        matched = matched_in(Case(entry.id), FORMS if all_forms else ("decomposed",))
        assert matched and matched["decomposed"]
        return
    new, report = rewrite(model)
    again, _ = rewrite(new)
    assert again.SerializeToString() == new.SerializeToString(), "rewriting twice changed something"
    assert not report.sites, [s.spec for s in report.sites]
    assert model.functions or [n.op_type for n in new.graph.node] == [n.op_type for n in model.graph.node]

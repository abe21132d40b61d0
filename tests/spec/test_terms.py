"""Every mask term: as an expression it means what the reference says, and reports may hold it."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import get_args

import numpy as np
import pytest

from onnx_fa.spec.cases import draw_operands
from onnx_fa.spec.expr import evaluate
from onnx_fa.spec.reference import masked
from onnx_fa.spec.terms import IndexMask, MaskTerm, term_expression, term_tensors
from tests.support.cases import CASES, Case

SCHEMA = Path(__file__).parents[2] / "docs" / "reference" / "report.schema.json"
EXPRESSED = [
    case
    for case in CASES
    if not case.tags & {"bench", "dynamic"} and any(not isinstance(term, IndexMask) for term in case.spec.masks)
]


@pytest.mark.parametrize("case", EXPRESSED, ids=[case.name for case in EXPRESSED])
def test_a_terms_expression_means_the_term(case: Case) -> None:
    spec = case.spec
    tensors = iter(draw_operands(spec, 0)[3:])
    scores = np.random.default_rng(0).standard_normal([int(d) for d in spec.score_shape])
    for term in spec.masks:
        read = [next(tensors) for _ in term_tensors(term)]
        if not isinstance(term, IndexMask):
            alone = dataclasses.replace(spec, masks=(term,))
            wanted = masked(alone, scores, *read)
            made = evaluate(term_expression(term), scores, read)
            np.testing.assert_array_equal(np.broadcast_to(made, scores.shape), wanted)


def test_reports_may_hold_every_term() -> None:
    """The schema lists the fields of every mask term."""
    defs = json.loads(SCHEMA.read_text())["$defs"]
    choices = defs["spec"]["properties"]["masks"]["items"]["oneOf"]
    described = [defs[choice["$ref"].rpartition("/")[2]]["properties"] for choice in choices]
    listed = {properties["kind"]["const"]: set(properties) - {"kind"} for properties in described}
    assert listed == {kind.__name__: {field.name for field in dataclasses.fields(kind)} for kind in get_args(MaskTerm)}

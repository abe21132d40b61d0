"""Our own `blocked` form: a Loop over K/V blocks, known by the spec that the rewriter left in its metadata."""

from __future__ import annotations

import json

import onnx_ir as ir

from onnx_fa.graph_view import GraphView
from onnx_fa.match import Match
from onnx_fa.ops import op_of
from onnx_fa.spec import AttentionSpec

SPEC_KEY = "onnx_fa.spec"


def blocked(view: GraphView, node: ir.Node, label: str) -> Match | None:
    """A Loop that the rewriter wrote. It is kept as it is."""
    text = node.metadata_props.get(SPEC_KEY)
    if op_of(node) != "Loop" or text is None:
        return None
    spec = AttentionSpec.from_dict(json.loads(text))
    return Match(label, "Loop", "blocked", spec, (), node.outputs[-1], node, keep=True)

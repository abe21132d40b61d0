"""Our own `blocked` form: a Loop over K/V blocks, known by the spec that the rewriter left in its metadata."""

from __future__ import annotations

import json

import onnx_ir as ir

from onnx_fa.errors import one_line
from onnx_fa.graph.ops import op_of
from onnx_fa.graph.view import GraphView
from onnx_fa.match import Match, NoMatch
from onnx_fa.spec.attention import AttentionSpec

SPEC_KEY = "onnx_fa.spec"


def match_blocked(view: GraphView, node: ir.Node, label: str) -> Match | None:
    """A Loop that the rewriter wrote. It is kept as it is."""
    text = node.metadata_props.get(SPEC_KEY)
    if op_of(node) != "Loop" or text is None:
        return None
    try:
        spec = AttentionSpec.from_dict(json.loads(text))
    except (KeyError, TypeError, ValueError) as e:
        raise NoMatch(f"its metadata {SPEC_KEY} cannot be read: {one_line(e)}", node) from e
    return Match(label, "Loop", "blocked", spec, (), node.outputs[-1], node, keep=True)

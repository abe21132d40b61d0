"""Attention ops of onnxruntime, domain com.microsoft, as its CPU provider computes them
(https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md).

A masked score gets `mask_filter_value` added, so that a row without any key is the softmax of its scores; keys ahead of a query
are out of sight altogether.
"""

from __future__ import annotations

from collections.abc import Callable

import onnx_ir as ir

from onnx_fa.graph.ops import CONTRIB, op_of
from onnx_fa.graph.view import GraphView
from onnx_fa.match import Match, NoMatch
from onnx_fa.patterns.ops.decoder import match_decoder
from onnx_fa.patterns.ops.grouped_query import match_grouped_query
from onnx_fa.patterns.ops.multi_head import match_multi_head, match_projected
from onnx_fa.patterns.ops.projected_integers import match_projected_integers

_REFUSED = {
    "DecoderAttention": "an op with weights and masks of its own that no exporter writes any more",
    "DecoderMaskedSelfAttention": "its cache has a layout of its own, which only the CUDA provider knows",
    "LongformerAttention": "local windows with global tokens, which only the CUDA provider computes",
    "PackedAttention": "rows of several sequences packed into one, which only the CUDA provider computes",
    "PackedMultiHeadAttention": "rows of several sequences packed into one, which only the CUDA provider computes",
    "PagedAttention": "a cache in pages, which only the CUDA provider computes",
    "QOrderedAttention": "it rounds the quantised product of Q and K, which a fused kernel does not",
    "QOrderedLongformerAttention": "it rounds the quantised product of Q and K, which a fused kernel does not",
    "SparseAttention": "a block-sparse mask in compressed form",
}


def match_contrib(view: GraphView, node: ir.Node, label: str) -> Match | None:
    """The site of an attention op of onnxruntime; None for other nodes. Raises NoMatch for what cannot be expressed."""
    if node.domain != CONTRIB:
        return None
    name = op_of(node).removeprefix(f"{CONTRIB}.")
    if name in _REFUSED:
        raise NoMatch(f"{name}: {_REFUSED[name]}")
    rule = _RULES.get(name)
    if rule is None:
        return None
    if view.opset < 12:
        raise NoMatch(f"{node.op_type} in a model of opset {view.opset}: 12 is needed to write it in standard ops")
    return rule(view, node, label)


_RULES: dict[str, Callable[[GraphView, ir.Node, str], Match]] = {
    "MultiHeadAttention": match_multi_head,
    "Attention": match_projected,
    "QAttention": match_projected_integers,
    "GroupQueryAttention": match_grouped_query,
    "DecoderMaskedMultiHeadAttention": match_decoder,
}

"""accuracy_level of onnxruntime's products with weights of few bits: at 4 it may round what they multiply to integers of 8 bits, as
compiled modules do on some processors. What does not can be compared with the same model at level 0."""

from __future__ import annotations

import math

import onnx_ir as ir

from onnx_fa.graph.ops import CONTRIB, attr_int, op_of

ROUNDED = 4
"""The level at which onnxruntime may multiply integers of 8 bits."""
_PRODUCTS = frozenset([f"{CONTRIB}.MatMulNBits", f"{CONTRIB}.QMoE"])


def rounds_activations(model: ir.Model) -> bool:
    """Whether onnxruntime rounds to 8 bits what weights of few bits multiply. Raises ModelError for a level that is no integer."""
    return any(_level(node) == ROUNDED for node in model.graph.all_nodes())


def clear_levels(model: ir.Model) -> None:
    """Sets level 4 to 0, in place. Raises ModelError for a level that is no integer."""
    for node in model.graph.all_nodes():
        if _level(node) == ROUNDED:
            node.attributes["accuracy_level"] = ir.AttrInt64("accuracy_level", 0)


def rounding_error(model: ir.Model) -> float:
    """What that rounding may do to a result, as a part of the largest: half a step of 254 for each product, and as many independent
    ones as there are products. Raises ModelError for a level that is no integer."""
    return math.sqrt(sum(_level(node) == ROUNDED for node in model.graph.all_nodes())) / 254


def _level(node: ir.Node) -> int:
    return attr_int(node, "accuracy_level", 0) if op_of(node) in _PRODUCTS else 0

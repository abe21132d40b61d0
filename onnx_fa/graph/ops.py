"""What a node is: its operator together with the domain that operator belongs to."""

from __future__ import annotations

from collections.abc import Iterable

import onnx
import onnx_ir as ir

from onnx_fa.errors import ModelError

STANDARD = frozenset(["", "ai.onnx"])
"""The names of ONNX's own domain."""
CONTRIB = "com.microsoft"
"""The domain of onnxruntime's own operators."""
BLOCKED = "com.microsoft.nchwc"
"""That of its convolutions over blocks of channels, which stand in files that a session saved."""
FUSED_MATMULS = frozenset([f"{CONTRIB}.FusedMatMul", f"{CONTRIB}.TransposeMatMul"])
QUANTIZE = frozenset(["QuantizeLinear", f"{CONTRIB}.QuantizeLinear"])
DEQUANTIZE = frozenset(["DequantizeLinear", f"{CONTRIB}.DequantizeLinear"])


LINEAR_ATTENTIONS = ("LinearAttention", f"{CONTRIB}.LinearAttention")
"""Attentions that keep a state of each head in place of scores."""


def op_of(node: ir.Node | onnx.NodeProto) -> str:
    """The operator of a node: "MatMul" for one of ONNX's own, "com.microsoft.FusedMatMul" for any other.

    A model may hold a function `my.Identity` that is not the identity, so nothing compares `op_type` alone.
    """
    name = node.op_type if node.domain in STANDARD else f"{node.domain}.{node.op_type}"
    return f"{name}:{node.overload}" if node.overload else name  # only calls of functions have an overload


def typed_attr(node: ir.Node, name: str, kind: ir.AttributeType) -> ir.Attr | None:
    """Raises ModelError for an attribute of another type (those of ops that onnx does not know are not checked when reading)."""
    attr = node.attributes.get(name)
    if attr is not None and attr.type != kind:
        raise ModelError(f"attribute {name!r} of node {node.name or node.op_type!r} is a {attr.type}, not a {kind}")
    return attr


def attr_int(node: ir.Node, name: str, default: int) -> int:
    """Raises ModelError for an attribute of another type."""
    attr = typed_attr(node, name, ir.AttributeType.INT)
    return default if attr is None else int(attr.as_int())


def attr_float(node: ir.Node, name: str, default: float) -> float:
    """Raises ModelError for an attribute of another type."""
    attr = typed_attr(node, name, ir.AttributeType.FLOAT)
    return default if attr is None else float(attr.as_float())


def outer_reads(node: ir.Node) -> Iterable[ir.Value]:
    """What the graphs inside a node (If, Loop, Scan) read from outside."""
    for attr in node.attributes.values():
        if attr.type == ir.AttributeType.GRAPH:
            inner = attr.as_graph()
            own = {o for n in inner.all_nodes() for o in n.outputs} | set(inner.inputs)
            yield from {i for n in inner.all_nodes() for i in n.inputs if i is not None and i not in own}


def asks_only(node: ir.Node, position: int) -> bool:
    """Whether a node reads its input at `position` for nothing but its shape or its type."""
    return op_of(node) in ("Shape", "Size") or (
        op_of(node) == "CastLike" and position == 1 and node.inputs[0] is not node.inputs[1]
    )


def constant_tensor(value: ir.Value) -> ir.TensorProtocol | None:
    """The tensor of an initializer or Constant. onnx_ir's function for it gives a Constant's tensor the name of the value, and that
    tensor may be the caller's own."""
    node = value.producer()
    held = node.attributes.get("value") if node is not None and op_of(node) == "Constant" else None
    if value.const_value is not None or held is None or held.is_ref():
        return ir.convenience.get_const_tensor(value)
    # as_tensor asks a protocol for each of its members, which takes longer than all else that is done to read a constant.
    return held.value if isinstance(held.value, ir.Tensor | ir.serde.TensorProtoTensor) else held.as_tensor()

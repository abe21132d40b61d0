"""What a node is: its operator together with the domain that operator belongs to."""

from __future__ import annotations

import onnx
import onnx_ir as ir

STANDARD = frozenset(["", "ai.onnx"])
"""The names of ONNX's own domain."""
CONTRIB = "com.microsoft"
"""The domain of onnxruntime's own operators."""
FUSED_MATMULS = frozenset([f"{CONTRIB}.FusedMatMul", f"{CONTRIB}.TransposeMatMul"])
QUANTIZE = frozenset(["QuantizeLinear", f"{CONTRIB}.QuantizeLinear"])
DEQUANTIZE = frozenset(["DequantizeLinear", f"{CONTRIB}.DequantizeLinear"])


def op_of(node: ir.Node | onnx.NodeProto) -> str:
    """The operator of a node: "MatMul" for one of ONNX's own, "com.microsoft.FusedMatMul" for any other.

    A model may hold a function `my.Identity` that is not the identity, so nothing compares `op_type` alone.
    """
    name = node.op_type if node.domain in STANDARD else f"{node.domain}.{node.op_type}"
    return f"{name}:{node.overload}" if node.overload else name  # only calls of functions have an overload

"""Operand expressions as values of the graph: missing ops are added."""

from __future__ import annotations

import onnx_ir as ir

from onnx_fa.forms.integers import written_out
from onnx_fa.graph.builder import OnnxBuilder
from onnx_fa.graph.casts import MOVED_THROUGH
from onnx_fa.graph.growing import APPEND_ROWS
from onnx_fa.match import Call, Const, Expr


def realise(b: OnnxBuilder, expr: Expr, replaced: dict[ir.Value, ir.Value]) -> ir.Value:
    """The graph value of an operand expression; missing ops are added, those of an expression that occurs twice only once."""
    if not isinstance(expr, Call):
        return b.const(expr.array) if isinstance(expr, Const) else replaced.get(expr, expr)
    if id(expr) not in b.made:
        b.made[id(expr)] = (expr, _realise_call(b, expr, replaced))
    return b.made[id(expr)][1]


def _realise_call(b: OnnxBuilder, expr: Call, replaced: dict[ir.Value, ir.Value]) -> ir.Value:
    out = _write_call(b, expr, replaced)
    return written_out(b, out) if b.for_onnxruntime else out


def _write_call(b: OnnxBuilder, expr: Call, replaced: dict[ir.Value, ir.Value]) -> ir.Value:
    if expr.op in ("Unsqueeze", "Squeeze") and b.opset < 13 and isinstance(expr.args[1], Const):
        axes = tuple(int(a) for a in expr.args[1].array)
        return b.op(expr.op, realise(b, expr.args[0], replaced), axes=axes)
    args = [realise(b, a, replaced) for a in expr.args]
    if b.for_onnxruntime and expr.op not in MOVED_THROUGH:  # what moves axes is written out as a whole
        args = [written_out(b, a) for a in args]
    domain, _, name = expr.op.rpartition(".")
    out = b.op_of(domain, name, args, dict(expr.attrs))
    first = expr.args[0]
    if expr.op == APPEND_ROWS and isinstance(first, ir.Value):
        out.shape, out.type = first.shape, first.type
    if expr.shape is not None and expr.op == "Expand" and isinstance(first, ir.Value) and first.type is not None:
        out.shape, out.type = ir.Shape(expr.shape), first.type  # more than inference can tell
    return out

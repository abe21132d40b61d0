"""Ops that compute an element from elements at the same position, as far as a kernel computes the same number."""

from __future__ import annotations

import onnx_ir as ir

from onnx_fa.graph.ops import attr_int, op_of
from onnx_fa.patterns.masks.apply import apply_op, to_bool, to_float, to_int
from onnx_fa.patterns.masks.elements import Elements, Index, kind_of_value
from onnx_fa.patterns.masks.expressions import is_choice
from onnx_fa.spec.expr import OPS, ScoreExpr

_COMPARES = ("Less", "LessOrEqual", "Greater", "GreaterOrEqual", "Equal", "IsNaN", "Max", "Min")
_MAX_EXACT_INTEGER = {
    ir.DataType.FLOAT16: 2**11,
    ir.DataType.BFLOAT16: 2**8,
    ir.DataType.DOUBLE: 2**53,
    ir.DataType.FLOAT: 2**24,
}


def apply_elementwise(elements: Elements, node: ir.Node, index: Index) -> ScoreExpr | None:
    out, op = node.outputs[0], op_of(node)
    kinds = [kind_of_value(i) for i in node.inputs if i is not None]
    if (op == "Mod" and attr_int(node, "fmod", 0)) or None in kinds or out.dtype is None:
        return None
    args = [elements.read(i, elements.broadcast_index(i, out, index)) for i in node.inputs]
    dtype = out.dtype.numpy()
    kind = kinds[-1]
    assert kind is not None
    if len(args) == 1 and op in ("Max", "Min"):
        return args[0]
    while len(args) > 2 and op in ("Max", "Min"):
        first = apply_op(elements.algebra, op, (args[0], args[1]), kind, dtype)
        assert first is not None
        args = [first, *args[2:]]
    if len(args) != len(OPS[op].kinds):
        return None
    last = node.inputs[-1]
    assert last is not None
    if kind == "float" and op != "Where" and not all(map(is_choice, args)):
        exact = op in ("Neg", "Abs") or (op in _COMPARES and elements.keeps_float(last.dtype))
        if not exact and not elements.is_computed_in(last.dtype):
            return None  # rounds otherwise than the kernel would
    found = apply_op(elements.algebra, op, tuple(args), kind, dtype)
    return None if found is None or elements.may_wrap(found, out.dtype) else found


def cast_element(elements: Elements, node: ir.Node, index: Index) -> ScoreExpr | None:
    source, out = node.inputs[0], node.outputs[0]
    if source is None or out.dtype is None:
        return None
    kind, to = kind_of_value(source), kind_of_value(out)
    inner = elements.read(source, index)
    if kind is None or to is None:
        return None
    if to == "bool":
        return to_bool(elements.algebra, inner, kind)
    if to == "int":
        found = to_int(elements.algebra, inner, kind)
        return None if found is None or elements.may_wrap(found, out.dtype) else found
    if kind == "float" and not is_choice(inner):
        holds = out.dtype == source.dtype or _count_bits(out.dtype) > _count_bits(source.dtype)
        return inner if holds and elements.keeps_float(out.dtype) else None
    if kind == "int" and not is_choice(inner) and not elements.is_computed_in(out.dtype):
        lo, hi = elements.algebra.bounds(inner)
        if max(abs(lo), abs(hi)) > _MAX_EXACT_INTEGER.get(out.dtype, 0):
            return None
    return to_float(elements.algebra, inner, kind, out.dtype.numpy())


def clip_element(elements: Elements, node: ir.Node, index: Index) -> ScoreExpr | None:
    out = node.outputs[0]
    kind = kind_of_value(out)
    result = elements.read(node.inputs[0], index)
    if kind is None or out.dtype is None or "min" in node.attributes or "max" in node.attributes:
        return None
    if kind == "float" and not is_choice(result) and not elements.keeps_float(out.dtype):
        return None
    for op, bound in zip(("Max", "Min"), node.inputs[1:], strict=False):
        if bound is not None:
            found = apply_op(elements.algebra, op, (result, elements.read_number(bound)), kind, out.dtype.numpy())
            if found is None:
                return None
            result = found
    return None if kind == "int" and elements.may_wrap(result, out.dtype) else result


def _count_bits(dtype: ir.DataType | None) -> int:
    return {ir.DataType.DOUBLE: 64, ir.DataType.FLOAT: 32}.get(dtype, 16) if dtype is not None else 0

"""What a model computes of no numbers, or of sums of none: constants. IREE's compiler divides by such a size and ends by SIGFPE."""

from __future__ import annotations

from collections.abc import Mapping

import onnx
import onnx_ir as ir
from onnx import TensorProto, helper

from onnx_fa.graph.ops import op_of
from onnx_fa.iree.legalise.writer import FLOATS, GraphWriter, attr_of

_KINDS = {
    *FLOATS,
    TensorProto.DOUBLE,
    TensorProto.BOOL,
    *(getattr(TensorProto, f"{sign}INT{bits}") for sign in ("", "U") for bits in (8, 16, 32, 64)),
}
_SOURCES = ("Constant", "ConstantOfShape")
_MATRIX = 2


def write_nothing(model: onnx.ModelProto, held: Mapping[str, ir.TensorProtocol] | None = None) -> None:
    """In place: a node all of whose results have a dim of 0 and else known ones makes nothing but them, and a product along an axis
    of 0 makes zeros. Types of values are taken from `value_info`."""
    g = GraphWriter(model, held)
    for writer in (*g.bodies(), g):
        _write(writer)


def _write(g: GraphWriter) -> None:
    changed = False
    for node in g.graph.node:
        outputs = [name for name in node.output if name]
        if outputs and op_of(node) not in _SOURCES and all(_is_empty(g, name) for name in outputs):
            for name in outputs:
                hint = node.name or node.op_type
                _fill(g, name, g.ints([int(d or 0) for d in g.shape(name) or []], hint), hint)
        elif not _write_sums(g, node):
            g.nodes.append(node)
            continue
        changed = True
    if changed:
        g.replace_nodes(g.nodes)


def _is_empty(g: GraphWriter, name: str) -> bool:
    shape = g.shape(name)
    return g.kind(name) in _KINDS and shape is not None and 0 in shape and all(isinstance(d, int) for d in shape)


def _fill(g: GraphWriter, out: str | None, sizes: str, hint: str, kind: int = 0) -> str:
    """Zeros of these sizes."""
    kind = kind or g.kind(out or "")
    zero = helper.make_tensor("value", kind, [1], [False if kind == TensorProto.BOOL else 0])
    return g.add("ConstantOfShape", [sizes], hint, out=out, value=zero)


def _write_sums(g: GraphWriter, node: onnx.NodeProto) -> bool:
    """Of a product along an axis of 0 zeros, and what a Gemm adds to them; False where there are numbers, or sizes are unknown."""
    op = op_of(node)
    if op not in ("MatMul", "Gemm") or g.kind(node.output[0]) not in _KINDS:
        return False
    left, right, made = map(g.shape, (*node.input[:2], node.output[0]))
    turned = [op == "Gemm" and bool(attr_of(node, name, 0)) for name in ("transA", "transB")]
    if left is None or right is None or min(len(left), len(right)) < _MATRIX or left[-2 if turned[0] else -1] != 0:
        return False
    hint, (out,) = node.name or op, node.output
    if made is not None and all(isinstance(d, int) for d in made):
        sizes = g.ints([int(d or 0) for d in made], hint)
    elif len(right) == _MATRIX and not any(turned):
        rows, columns = g.add("Shape", [node.input[0]], hint), g.add("Shape", [node.input[1]], hint)
        lead = g.add("Slice", [rows, g.ints([0], hint), g.ints([-1], hint)], hint)
        width = g.add("Slice", [columns, g.ints([1], hint), g.ints([2], hint)], hint)
        sizes = g.add("Concat", [lead, width], hint, axis=0)
    else:
        return False
    if len(node.input) < 3 or not node.input[2]:
        _fill(g, out, sizes, hint)
        return True
    added, beta = node.input[2], attr_of(node, "beta", 1.0)
    if beta != 1.0:
        added = g.add("Mul", [added, g.scalar(beta, g.kind(out), hint)], hint)
    g.add("Add", [_fill(g, None, sizes, hint, g.kind(out)), added], hint, out=out)
    return True

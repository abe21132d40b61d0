"""Rows of a past behind which new ones are put, as programs for GPUs say it: with no past there is nothing to copy. CUDA refuses a
launch of no workgroups, and the compiler copies rows by one (docs/developer/iree-bugs.md)."""

from __future__ import annotations

from collections.abc import Sequence

import onnx
from onnx import helper

from onnx_fa.graph.ops import op_of
from onnx_fa.graph.site_op import DOMAIN
from onnx_fa.iree.legalise.writer import GraphWriter, attr_of, declare_own_nodes
from onnx_fa.kernels.mlir.text import tensor_type
from onnx_fa.spec.target import Target
from onnx_fa.spec.terms import Dim

JOINED_ROWS = f"{DOMAIN}.JoinedRows"
"""Concat of two, any of which may have no rows."""


def join_rows(model: onnx.ModelProto, *, target: Target | None = None) -> None:
    """Writes a node for each Concat or Pad, in place, that puts something behind the rows of an input of the model of which there
    may be none. Types of values are taken from `value_info`."""
    if target is None or not target.is_gpu:
        return
    g = GraphWriter(model, target=target)
    inputs = {v.name for v in model.graph.input}
    made = False
    for node in model.graph.node:
        joined = _joined(g, node, inputs)
        made |= joined
        if not joined:
            g.nodes.append(node)
    if made:
        g.replace_nodes(g.nodes)
        declare_own_nodes(model)


def _joined(g: GraphWriter, node: onnx.NodeProto, inputs: set[str]) -> bool:
    op, past = op_of(node), node.input[0] if node.input else ""
    shape = g.shape(past)
    if past not in inputs or shape is None or op not in ("Concat", "Pad"):
        return False
    if op == "Concat":
        axis = attr_of(node, "axis", 0) % len(shape)
        if len(node.input) != 2 or isinstance(shape[axis], int) or g.is_constant(node.input[1]):
            return False
        return _write(g, node, node.input[1], axis)
    return _pad(g, node, shape)


def _pad(g: GraphWriter, node: onnx.NodeProto, shape: Sequence[int | str | None]) -> bool:
    """A Pad by zeros at the end of one axis, of as many rows as a run says: the input and zeros."""
    pads, rank = g.maker(node.input[1]), len(shape)
    value = g.array(node.input[2]) if len(node.input) > 2 and node.input[2] else None
    others = len(node.input) > 3 or (len(node.input) > 2 and node.input[2] and (value is None or value.any()))
    if others or attr_of(node, "mode", b"constant") != b"constant" or pads is None or op_of(pads) != "Concat":
        return False
    places: list[str | None] = []
    for part in pads.input:
        known, size = g.array(part), g.shape(part)
        if known is not None and known.any():
            return False
        if known is None and size != [1]:
            return False
        places += [None] * known.size if known is not None else [part]
    computed = [n for n, part in enumerate(places) if part is not None]
    if len(places) != 2 * rank or len(computed) != 1 or computed[0] < rank:
        return False
    axis, rows = computed[0] - rank, places[computed[0]]
    assert rows is not None
    hint, kind = node.name or "Pad", g.kind(node.input[0])
    zero = helper.make_tensor("zero", kind, [1], bytes(helper.tensor_dtype_to_np_dtype(kind).itemsize), raw=True)
    zeros = g.add("ConstantOfShape", [g.sizes(node.input[0], shape, hint, {axis: rows})], hint, value=zero)
    g.typed(zeros, kind, [None if n == axis else dim for n, dim in enumerate(shape)])
    return _write(g, node, zeros, axis)


def _write(g: GraphWriter, node: onnx.NodeProto, behind: str, axis: int) -> bool:
    name = g.fresh(f"{node.name or node.op_type}/JoinedRows")
    inputs = [node.input[0], behind]
    g.nodes.append(helper.make_node("JoinedRows", inputs, [node.output[0]], name, domain=DOMAIN, axis=axis))
    return True


def joined_name(dims: Sequence[Dim], axis: int, element: str) -> str:
    """The name of the function for tensors of these dims; `element` is MLIR's name of the element type."""
    sizes = (str(d) if isinstance(d, int) and n != axis else "n" for n, d in enumerate(dims))
    return "_".join([f"{DOMAIN}_joined{axis}", *sizes, element])


def joined_type(dims: Sequence[Dim], axis: int, element: str) -> str:
    """The type of both operands and of the result."""
    return tensor_type(tuple("n" if n == axis else d for n, d in enumerate(dims)), element)


def joined_text(dims: Sequence[Dim], axis: int, element: str) -> str:
    """A function a, b -> what is in them along the axis, without a copy where one is empty."""
    type_ = joined_type(dims, axis, element)
    return f"""util.func private @{joined_name(dims, axis, element)}(%a: {type_}, %b: {type_}) -> {type_} {{
  %axis = arith.constant {axis} : index
  %zero = arith.constant 0 : index
  %na = tensor.dim %a, %axis : {type_}
  %nb = tensor.dim %b, %axis : {type_}
  %no_a = arith.cmpi eq, %na, %zero : index
  %no_b = arith.cmpi eq, %nb, %zero : index
  %made = scf.if %no_a -> ({type_}) {{
    scf.yield %b : {type_}
  }} else {{
    %other = scf.if %no_b -> ({type_}) {{
      scf.yield %a : {type_}
    }} else {{
      %both = tensor.concat dim({axis}) %a, %b : ({type_}, {type_}) -> {type_}
      scf.yield %both : {type_}
    }}
    scf.yield %other : {type_}
  }}
  util.return %made : {type_}
}}
"""

"""TopK: of rows whose length is known as one node each, which becomes a call of a kernel for CPUs (kernels/cpu/top_k.py); else as
IREE compiles it: sorted, with its values read, and of signed numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import cast

import onnx
from onnx import TensorProto, helper

from onnx_fa.graph.site_op import DOMAIN
from onnx_fa.iree.legalise import unsigned
from onnx_fa.iree.legalise.casts import add_cast
from onnx_fa.iree.legalise.writer import GraphWriter, attr_of, copy_without
from onnx_fa.kernels.cpu.top_k import TopK, kept_why
from onnx_fa.spec.terms import Dim

TOP_K_SITE = f"{DOMAIN}.TopKSite"
"""Input x (rows, n), outputs the k best numbers of each row and their places, (rows, k), best first; attributes `k` and `largest`
(1 or 0)."""
_FLAT = 2
"""Dims of what a site reads and makes."""
_ELEMENTS: dict[int, str] = {
    TensorProto.FLOAT: "f32",
    TensorProto.FLOAT16: "f16",
    TensorProto.BFLOAT16: "bf16",
    TensorProto.INT32: "i32",
    TensorProto.INT16: "i16",
    TensorProto.INT8: "i8",
}


def top_k(g: GraphWriter, node: onnx.NodeProto) -> bool:
    """Sorted is one of the orders that `sorted=0` leaves open, as experts are chosen by. Where only the places are read, IREE sorts
    a copy of the values, for which the stack is too small unless it knows their number: so the places read the values, too.
    Unsigned integers are sorted as signed ones that hold them. Raises ModelError for uint64."""
    wide = unsigned.widened(g, node)
    if wide is None and _site(g, node):
        return True
    values, *places = node.output
    alone = bool(places and places[0]) and not g.readers(values) and not g.is_output(values)
    if not alone and attr_of(node, "sorted", 1) and wide is None:
        return False
    made = copy_without(node, "sorted")
    hint, kind = node.name or "TopK", g.kind(node.input[0])
    if wide is not None:
        x, shape = g.cast(node.input[0], kind, wide, hint), g.shape(node.input[0])
        made.input[0], made.output[0] = x if shape is None else g.typed(x, wide, shape), g.fresh(hint)
    if not _site(g, made):
        g.nodes.append(made)
        if alone:
            _read_values(g, made, places[0], wide or kind)
    if wide is not None and not alone:
        add_cast(g, made.output[0], wide, kind, hint, out=values)
    return True


def _site(g: GraphWriter, node: onnx.NodeProto) -> bool:
    """Writes the node of a kernel, and what moves the axis to the end and the others together; whether there is one."""
    x, hint = node.input[0], node.name or "TopK"
    kind, shape, count = g.kind(x), g.shape(x), g.array(node.input[1])
    if g.cpu is None or kind not in _ELEMENTS or not shape or 0 in shape or count is None or count.size != 1:
        return False
    axis, k = attr_of(node, "axis", -1) % len(shape), int(count.reshape(()))
    lead, n = [*shape[:axis], *shape[axis + 1 :]], shape[axis]
    if not isinstance(n, int) or not 0 < k <= n:
        return False
    rows = None if any(not isinstance(d, int) for d in lead) else math.prod(d for d in lead if isinstance(d, int))
    spec = TopK(rows, n, k, _ELEMENTS[kind], bool(attr_of(node, "largest", 1)))
    if kept_why(spec, g.cpu):
        return False
    order = [*range(axis), *range(axis + 1, len(shape)), axis]
    if order != sorted(order):
        x = g.typed(g.add("Transpose", [x], hint, perm=order), kind, [*lead, n])
    turned = x
    if len(shape) != _FLAT:
        x = g.typed(g.reshape(x, [-1 if rows is None else rows, n], hint), kind, (rows, n))
    made = [g.typed(g.fresh(hint), of, (rows, k)) for of in (kind, TensorProto.INT64)]
    site = helper.make_node("TopKSite", [x], made, g.fresh(f"{hint}/TopKSite"), domain=DOMAIN)
    site.attribute.extend(helper.make_attribute(name, int(getattr(spec, name))) for name in ("k", "largest"))
    g.nodes.append(site)
    for value, of, name in zip(made, (kind, TensorProto.INT64), node.output, strict=False):
        if name:
            _give(g, value, of, turned, [*lead, k], order, name, hint)
    return True


def _give(
    g: GraphWriter,
    made: str,
    kind: int,
    of: str,
    dims: Sequence[Dim | None],
    order: Sequence[int],
    name: str,
    hint: str,
) -> None:
    """Writes a result of a site as the value of that name. `of` is x with the axis at the end, `dims` are those of the result so,
    and `order` the places of x's axes there."""
    back = [order.index(i) for i in range(len(order))]
    free = [d for d in dims if not isinstance(d, int)]
    if len(dims) == _FLAT:
        whole = made
    elif len(free) > 1:
        sizes = g.sizes(of, dims, hint, {len(dims) - 1: g.ints([cast(int, dims[-1])], hint)})
        whole = g.add("Reshape", [g.reshape(made, [-1], hint), sizes], hint)
    else:
        # IREE takes the first dim of what is split for the first of the parts.
        whole = g.reshape(g.reshape(made, [-1], hint), [d if isinstance(d, int) else -1 for d in dims], hint)
    g.typed(whole, kind, dims)
    if back == sorted(back):
        g.add("Identity", [whole], hint, out=name)
    else:
        g.add("Transpose", [whole], hint, out=name, perm=back)


def _read_values(g: GraphWriter, node: onnx.NodeProto, places: str, kind: int) -> None:
    """Adds to the places of a TopK whether a value is below one and above one: 0, of which the compiler does not know that."""
    hint = node.name or "TopK"
    values = node.output[0]
    node.output[1] = g.fresh(hint)
    one = g.scalar(1, kind, hint)
    never = g.add("And", [g.add("Less", [values, one], hint), g.add("Greater", [values, one], hint)], hint)
    nothing = g.add("Cast", [never], hint, to=TensorProto.INT64)
    g.add("Add", [node.output[1], nothing], hint, out=places)

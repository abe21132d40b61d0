"""Attention without a function of the score, divided by its sum, as one node, which becomes a call of a kernel (token_sums.py
of kernels/cpu/ and kernels/triton/). It is spelled with a column of ones behind the values, whose product is the sum (EfficientViT,
SANA):

    o = MatMul(q, MatMul(Transpose(k), Pad(v, value=1)));   y = Div(o[..., :-1], Add(o[..., -1:], epsilon))

or with tokens along the last axis, all of it transposed: MatMul(MatMul(Pad(v), k^T), q)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

from onnx_fa.graph.ops import op_of
from onnx_fa.graph.site_op import DOMAIN
from onnx_fa.iree.legalise.writer import GraphWriter, attr_of
from onnx_fa.kernels.cpu.token_sums import TokenSums, lanes_of, token_sums_of
from onnx_fa.kernels.triton.token_sums import takes
from onnx_fa.spec.terms import Dim

TOKEN_SUMS = f"{DOMAIN}.TokenSums"
"""Inputs (B, S, H, columns), of which `numbers` says what q, k and v are (kernels/cpu/token_sums.py). Gives (B, Sq, H, Dv)."""
_TURNED, _HEADS_FIRST, _FROM_COLUMNS = [0, 1, 3, 2], [0, 2, 1, 3], [0, 3, 1, 2]


def token_sums_kernel(operands: Sequence[tuple[Dim, ...]], attributes: Mapping[str, Any]) -> TokenSums:
    """The kernel of a TokenSums whose operands have these shapes."""
    return token_sums_of(operands, attributes["numbers"], attributes["epsilon"])


@dataclass
class _Part:
    """`size` columns of a value (B, H, S, columns), or with tokens along the last axis, from `first` on."""

    value: str
    in_columns: bool
    size: int
    first: int = 0
    relu: bool = False

    @property
    def axis(self) -> int:
        """The one of its columns."""
        return 2 if self.in_columns else 3


def token_sums(g: GraphWriter, node: onnx.NodeProto) -> bool:
    """Writes the node for a Div of two parts of a product that nothing else reads."""
    if (g.cpu is None and g.cuda is None) or g.kind(node.output[0]) != TensorProto.FLOAT:
        return False
    read = _products(g, node)
    if read is None:
        return False
    products, axis, (q, k, v), epsilon = read
    parts = [_part(g, *x) for x in ((q, axis == 2), (k, axis == 3), (v, axis == 2))]
    of_q, of_k, of_v = parts
    if (
        of_q is None
        or of_k is None
        or of_v is None
        or of_v.relu
        or of_q.size != of_k.size
        or not _agree(g, of_q, of_k, of_v)
    ):
        return False
    sizes = of_q.size, of_v.size
    if not (lanes_of(*sizes, g.cpu) if g.cpu is not None else takes(*sizes)):
        return False
    hint = node.name or "Div"
    tensors, places = dict[str, int](), list[int]()
    for part in (of_q, of_k, of_v):
        places += [tensors.setdefault(_rows(g, part, hint), len(tensors)), part.first]
    numbers = [of_q.size, of_v.size, int(of_q.relu), int(of_k.relu), *places]
    # Products that nothing reads any more would be made all the same, where they are kept apart from what the compiler packs.
    g.nodes = [n for n in g.nodes if not products & set(n.output)]
    made, name = g.fresh(f"{hint}/sums"), g.fresh(f"{hint}/TokenSums")
    g.nodes.append(
        helper.make_node("TokenSums", list(tensors), [made], name, domain=DOMAIN, numbers=numbers, epsilon=epsilon)
    )
    images, heads, *of_image = g.shape(of_q.value) or []
    tokens = of_image[3 - of_q.axis]
    g.typed(made, TensorProto.FLOAT, [images, tokens, heads, of_v.size])
    _give(g, made, node, axis == 2)
    return True


def _give(g: GraphWriter, made: str, node: onnx.NodeProto, in_columns: bool) -> None:
    """Writes the result of the Div, of (B, S, H, columns). Where it becomes channels of an image, which are last in memory here,
    heads become channels first: the two turns that the compiler then sees are one and its reverse."""
    (_, tokens, heads, columns), hint = g.shape(made) or [], node.name or "Div"
    out = node.output[0]
    readers = [g.graph.node[at] for at in g.readers(out)]
    while len(readers) == 1 and op_of(readers[0]) == "Cast":
        readers = [g.graph.node[at] for at in g.readers(readers[0].output[0])]
    turned = all(op_of(r) == "Transpose" and attr_of(r, "perm", None) == _TURNED for r in readers)
    if not (isinstance(tokens, int) and isinstance(heads, int) and isinstance(columns, int)) or not (
        in_columns or turned
    ):
        g.add("Transpose", [made], hint, out=out, perm=[0, 2, 3, 1] if in_columns else _HEADS_FIRST)
        return
    channels = g.add("Transpose", [g.reshape(made, [0, tokens, heads * columns], hint)], hint, perm=[0, 2, 1])
    shape = [0, heads, columns, tokens]
    if in_columns:
        g.reshape(channels, shape, hint, out=out)
    else:
        g.add("Transpose", [g.reshape(channels, shape, hint)], hint, out=out, perm=_TURNED)


def _products(g: GraphWriter, node: onnx.NodeProto) -> tuple[set[str], int, tuple[str, str, str], float] | None:
    """What a Div divides: the values that are not made any more, the axis of the columns, q, k (turned) and v (without its ones),
    and what is added to the divisor."""
    above, below = node.input
    epsilon, maker = 0.0, g.maker(below)
    if maker is not None and op_of(maker) == "Add":
        given = [x for x in maker.input if (array := g.array(x)) is not None and array.size == 1]
        if len(given) != 1:
            return None
        added = g.array(given[0])
        assert added is not None
        epsilon = float(added.reshape(()))
        below = next(x for x in maker.input if x != given[0])
    for axis in (3, 2):
        values, ones = (_cut(g, name, axis) for name in (above, below))
        if values is None or ones is None or values[0] != ones[0]:
            continue
        (product, first, size), (_, behind, one) = values, ones
        last = g.maker(product)
        if (
            (first, behind, one) != (0, size, 1)
            or last is None
            or op_of(last) != "MatMul"
            or len(g.readers(product)) != 2
        ):
            return None
        q, state = last.input if axis == 3 else reversed(last.input)
        inner = g.maker(state)
        gone = {product, above, node.input[1], below}
        others = any(len(g.readers(name)) != 1 for name in gone - {product})
        if others or any(map(g.is_output, gone)) or inner is None or op_of(inner) != "MatMul":
            return None
        k, padded = inner.input if axis == 3 else reversed(inner.input)
        v = _without_ones(g, padded, axis)
        if v is None or len(g.shape(v) or ()) != 4 or (g.shape(v) or [])[axis] != size:
            return None
        if len(g.readers(state)) == 1 and not g.is_output(state):
            gone.add(state)
        return gone, axis, (q, k, v), epsilon
    return None


def _cut(g: GraphWriter, name: str, axis: int) -> tuple[str, int, int] | None:
    """What a Slice or Split takes along an axis of four: of which value, from where, how many."""
    node = g.maker(name)
    if node is None or op_of(node) not in ("Slice", "Split"):
        return None
    source = node.input[0]
    shape, made = g.shape(source), g.shape(name)
    if shape is None or made is None or len(shape) != 4 or not isinstance(size := shape[axis], int):
        return None
    if op_of(node) == "Split":
        if attr_of(node, "axis", 0) % 4 != axis:
            return None
        before = [g.shape(x) for x in node.output[: list(node.output).index(name)]]
        sizes = [None if x is None else x[axis] for x in (*before, made)]
        known = [n for n in sizes if isinstance(n, int)]
        return (source, sum(known[:-1]), known[-1]) if len(known) == len(sizes) else None
    given = [g.array(x) for x in node.input[1:]]
    if len(given) < 3 or any(x is None or x.size != 1 for x in given):
        return None
    start, end, of, *step = [int(x.reshape(())) for x in given if x is not None]
    first, behind, _ = slice(start, end).indices(size)
    return (source, first, behind - first) if of % 4 == axis and step in ([], [1]) and behind > first else None


def _without_ones(g: GraphWriter, name: str, axis: int) -> str | None:
    """What a Pad puts one column of ones behind."""
    node = g.maker(_uncast(g, name))
    if (
        node is None
        or op_of(node) != "Pad"
        or len(node.input) != 3
        or attr_of(node, "mode", b"constant") != b"constant"
    ):
        return None
    pads, value = (g.array(x) for x in node.input[1:])
    wanted = np.zeros(8, np.int64)
    wanted[4 + axis] = 1
    holds = pads is not None and np.array_equal(pads, wanted) and value is not None and value.reshape(()) == 1
    return node.input[0] if holds else None


def _uncast(g: GraphWriter, name: str) -> str:
    """A value before what casts its type to itself."""
    while (node := g.maker(name)) is not None and op_of(node) == "Cast" and g.kind(node.input[0]) == g.kind(name):
        name = node.input[0]
    return name


def _part(g: GraphWriter, name: str, in_columns: bool) -> _Part | None:
    """Where the numbers of a factor lie, and whether they are rectified."""
    shape = g.shape(name)
    if shape is None or len(shape) != 4 or not isinstance(size := shape[2 if in_columns else 3], int):
        return None
    part = _Part(name, in_columns, size)
    while True:
        part.value = _uncast(g, part.value)
        node = g.maker(part.value)
        if node is not None and op_of(node) == "Relu":
            part.value, part.relu = node.input[0], True
        elif node is not None and op_of(node) == "Transpose" and attr_of(node, "perm", None) == _TURNED:
            part.value, part.in_columns = node.input[0], not part.in_columns
        elif (found := _cut(g, part.value, part.axis)) is not None:
            part.value, part.first = found[0], part.first + found[1]
        else:
            break
    shape = g.shape(part.value)
    known = shape is not None and len(shape) == 4 and isinstance(shape[1], int) and isinstance(shape[part.axis], int)
    return part if known and g.kind(part.value) == TensorProto.FLOAT else None


def _agree(g: GraphWriter, *parts: _Part) -> bool:
    """Whether images and heads of all are as many, and tokens of keys and values."""
    q, k, v = ([*(g.shape(x.value) or ())] for x in parts)
    lengths = [shape[5 - x.axis] for shape, x in zip((q, k, v), parts, strict=True)]
    same = [(a[axis], b[axis]) for a, b in ((q, k), (k, v)) for axis in (0, 1)]
    if not all(a == b and a is not None for a, b in [*same, (lengths[1], lengths[2])]):
        return len({(x.value, x.in_columns) for x in parts}) == 1
    return True


def _rows(g: GraphWriter, part: _Part, hint: str) -> str:
    """The value of a part as (B, S, H, columns)."""
    node = g.maker(part.value)
    if (
        not part.in_columns
        and node is not None
        and op_of(node) == "Transpose"
        and attr_of(node, "perm", None) == _HEADS_FIRST
    ):
        return str(node.input[0])
    name = f"{part.value}/{'columns' if part.in_columns else 'rows'}_of_heads"
    if name in g.names:
        return name
    g.names.add(name)
    flat = node.input[0] if part.in_columns and node is not None and op_of(node) == "Reshape" else ""
    inner, shape = g.shape(flat) or [], g.shape(part.value) or []
    if len(inner) == 3 and inner[1] == math.prod(d for d in shape[1:3] if isinstance(d, int)):
        # Most often rows that were turned for this Reshape: the two turns are none.
        rows = g.add("Transpose", [flat], hint, perm=[0, 2, 1])
        return g.reshape(rows, [0, 0, *(d for d in shape[1:3] if isinstance(d, int))], hint, out=name)
    return g.add("Transpose", [part.value], hint, out=name, perm=_FROM_COLUMNS if part.in_columns else _HEADS_FIRST)

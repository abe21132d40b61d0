"""Norms of each channel of a sequence as its rows have them (InstanceNormalization, a GroupNorm of as many groups as channels): a
node of our own for what is taken of x, which becomes a call of a kernel (kernels/cpu/channel_norm.py), and operators of single
numbers, which are computed with what follows them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import onnx
from onnx import TensorProto, helper

from onnx_fa.graph.ops import op_of
from onnx_fa.graph.site_op import DOMAIN
from onnx_fa.iree.legalise.image_rows import Places, RowsForm, RowsWriter
from onnx_fa.iree.legalise.row_forms import write_same
from onnx_fa.iree.legalise.writer import GraphWriter, attr_of
from onnx_fa.kernels.cpu.channel_norm import ChannelStatistics, takes_channels
from onnx_fa.spec.channel_norm import ChannelSpec
from onnx_fa.spec.terms import Dim, FloatType

CHANNEL_STATISTICS = f"{DOMAIN}.ChannelStatistics"
"""Inputs and outputs as a ChannelSpec has them; attribute `epsilon`."""
_EPSILON = 1e-5


def channel_statistics_of(
    types: Sequence[tuple[tuple[Dim, ...], str]], attributes: Mapping[str, Any]
) -> ChannelStatistics:
    """The kernel of a ChannelStatistics whose operands have these shapes and element types."""
    (images, length, channels), dtype = types[0]
    assert isinstance(channels, int)
    known = [d if isinstance(d, int) else None for d in (images, length)]
    return ChannelStatistics(ChannelSpec(known[0], known[1], channels, attributes["epsilon"], cast(FloatType, dtype)))


def channel_norm(g: GraphWriter, sounds: Mapping[str, Places], node: onnx.NodeProto) -> RowsForm | None:
    """An InstanceNormalization of a sequence, whose scale and bias are constants."""
    x, y = node.input[0], node.output[0]
    if x not in sounds or y not in sounds or not has_statistics(g, sounds[x].channels):
        return None
    if any(not g.is_constant(name) for name in node.input[1:]):
        return None
    return RowsForm((x,), (y,), _write_channel_norm)


def has_statistics(g: GraphWriter, channels: int) -> bool:
    """Whether what the writer is for has a kernel for so many channels."""
    return g.cuda is not None if g.cpu is None else takes_channels(channels, g.cpu)


def _write_channel_norm(w: RowsWriter[Any], node: onnx.NodeProto) -> None:
    hint, (x, *names), (y,) = node.name or node.op_type, node.input, node.output
    rows, sound = w.read(x, hint), w.images[y]
    scale, bias = (name if w.kind == TensorProto.FLOAT else _single(w, name, hint) for name in names)
    mean, factor = write_statistics(w, rows, scale, float(attr_of(node, "epsilon", _EPSILON)), sound, hint)
    give_normal(w, y, (rows, mean, factor, bias), hint)


def give_normal(w: RowsWriter[Any], y: str, numbers: tuple[str, str, str, str], hint: str) -> None:
    """Writes (rows - mean) factor + bias as the rows of y, in f32; all numbers but the rows are f32."""
    rows, mean, factor, bias = numbers
    g, shape, single = w.g, w.images[y].rows, w.kind == TensorProto.FLOAT
    value = rows if single else g.typed(g.cast(rows, w.kind, TensorProto.FLOAT, hint), TensorProto.FLOAT, shape)
    for op, operand in (("Sub", mean), ("Mul", factor), ("Add", bias)):
        value = g.typed(g.add(op, [value, operand], hint), TensorProto.FLOAT, shape)
    w.give(y, value if single else g.cast(value, TensorProto.FLOAT, w.kind, hint))


def _single(w: RowsWriter[Any], name: str, hint: str) -> str:
    """Numbers of each channel as f32."""
    return w.g.typed(w.g.cast(name, w.kind, TensorProto.FLOAT, hint), TensorProto.FLOAT, w.g.shape(name) or [])


def write_statistics(
    w: RowsWriter[Any], rows: str, scale: str, epsilon: float, places: Places, hint: str
) -> tuple[str, str]:
    """Writes a ChannelStatistics of rows, and returns its results, (batch, 1, channels)."""
    g = w.g
    mean, factor = (g.fresh(hint) for _ in range(2))
    name = g.fresh(f"{hint}/ChannelStatistics")
    made = helper.make_node("ChannelStatistics", [rows, scale], [mean, factor], name, domain=DOMAIN, epsilon=epsilon)
    g.nodes.append(made)
    for value in (mean, factor):
        g.typed(value, TensorProto.FLOAT, [places.batch, 1, places.channels])
    return mean, factor


def same_sequence(g: GraphWriter, sounds: Mapping[str, Places], node: onnx.NodeProto) -> RowsForm | None:
    """A Reshape of a sequence that changes no size, as around norms of groups: to equal batches and channels, by numbers or by the
    shape of another sequence."""
    x, y = node.input[0], node.output[0]
    if x not in sounds or y not in sounds or sounds[x].batch is None:
        return None
    shape = g.maker(node.input[1])
    by_shape = shape is not None and op_of(shape) == "Shape" and not shape.attribute
    like = shape.input[0] if shape is not None and by_shape else y
    if like not in sounds or (sounds[x].batch, sounds[x].channels) != (sounds[like].batch, sounds[like].channels):
        return None
    return RowsForm((x,), (y,), write_same)

"""Norms of groups of channels (GroupNormalization, and as PyTorch exports GroupNorm) as images have them whose channels come last.

With the mean m_c of each channel and f_c = 1 / sqrt(v_c + epsilon) of its mean square v_c around that (channel_norm.py), those of a
group are m = mean of m_c, and v + epsilon = mean of (1 / f_c^2 + (m_c - m)^2): terms that are added alone, so that none is lost.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

from onnx_fa.graph.ops import op_of
from onnx_fa.graph.site_op import DOMAIN
from onnx_fa.iree.legalise.channel_norm import give_normal, has_statistics, write_statistics
from onnx_fa.iree.legalise.image_rows import Places, RowsForm, RowsWriter
from onnx_fa.iree.legalise.writer import GraphWriter, attr_of

GROUP_NORM = f"{DOMAIN}.GroupNorm"
"""Inputs x, a scale and a bias of each group, and attributes of a GroupNormalization before opset 21."""
_EPSILON, _ROWS = 1e-5, 3


def join_group_norms(g: GraphWriter) -> bool:
    """Writes a GroupNorm in the place of an InstanceNormalization of an image's groups between two Reshapes, which nothing else
    reads, as PyTorch's exporters write it before opset 21. Returns whether there was any."""
    joined, gone = dict[int, onnx.NodeProto](), set[int]()
    for place, norm in enumerate(g.graph.node):
        behind = _only_reader(g, norm.output[0]) if op_of(norm) == "InstanceNormalization" else None
        if behind is None or (count := _count_groups(g, norm, g.graph.node[behind])) is None:
            continue
        before, last = g.maker(norm.input[0]), g.graph.node[behind]
        assert before is not None
        inputs, results = [before.input[0], *norm.input[1:]], list(last.output)
        epsilon = float(attr_of(norm, "epsilon", _EPSILON))
        joined[behind] = helper.make_node("GroupNorm", inputs, results, norm.name, domain=DOMAIN, epsilon=epsilon)
        joined[behind].attribute.append(helper.make_attribute("num_groups", count))
        gone |= {place, g.place(before.output[0])}
        if (size := g.maker(last.input[1])) is not None and _only_reader(g, size.output[0]) is not None:
            gone.add(g.place(size.output[0]))
    if not joined:
        return False
    for value in g.graph.value_info:
        for made in joined.values():
            if value.name == made.output[0]:
                kind, dims = g.types[made.input[0]]
                value.CopyFrom(helper.make_tensor_value_info(value.name, kind, dims))
    g.replace_nodes([joined.get(i, node) for i, node in enumerate(g.graph.node) if i not in gone])
    return True


def _count_groups(g: GraphWriter, norm: onnx.NodeProto, last: onnx.NodeProto) -> int | None:
    """The groups of an image of known sizes whose norms an InstanceNormalization is, between a Reshape and this one; None where it
    is something else."""
    before = g.maker(norm.input[0])
    if before is None or {op_of(before), op_of(last)} != {"Reshape"} or last.input[0] != norm.output[0]:
        return None
    if _only_reader(g, before.output[0]) is None:
        return None
    shape, rows, whole = map(g.shape, (before.input[0], before.output[0], last.output[0]))
    (count,) = g.shape(norm.input[1]) or [None]
    if (
        not shape
        or len(shape) < _ROWS - 1
        or not whole
        or not rows
        or len(rows) != _ROWS
        or (rows[0], rows[1]) != (shape[0], count)
    ):
        return None
    channels, *sizes = shape[1:]
    # Equal sizes make equal batches. Whole channels, in order, are a group.
    if not isinstance(count, int) or not isinstance(channels, int) or channels % count:
        return None
    return count if whole[1:] == shape[1:] and all(isinstance(size, int) for size in sizes) else None


def _only_reader(g: GraphWriter, name: str) -> int | None:
    """The place of the one node that reads a value, which is no result of the graph."""
    readers = g.readers(name)
    return readers[0] if len(readers) == 1 and not g.is_output(name) else None


def group_norm(g: GraphWriter, images: Mapping[str, Places], node: onnx.NodeProto) -> RowsForm | None:
    """A norm of groups of an image, whose scale and bias are constants."""
    x, y, groups = node.input[0], node.output[0], attr_of(node, "num_groups", 0)
    if x not in images or y not in images or not has_statistics(g, images[x].channels):
        return None
    arrays = [g.array(name) for name in node.input[1:3]]
    if groups < 1 or images[x].channels % groups or any(a is None for a in arrays):
        return None
    if attr_of(node, "stash_type", TensorProto.FLOAT) != TensorProto.FLOAT:
        return None
    return RowsForm((x,), (y,), _write_group_norm)


def _write_group_norm(w: RowsWriter[Any], node: onnx.NodeProto) -> None:
    g, hint, (x, *names), (y,) = w.g, node.name or node.op_type, node.input, node.output
    image, groups = w.images[y], attr_of(node, "num_groups", 0)
    rows, each = w.read(x, hint), image.channels // groups
    scale, bias = (_by_channel(g.array(name), image.channels) for name in names)
    one = g.const(np.ones(image.channels, np.float32), hint)
    made = write_statistics(w, rows, one, float(attr_of(node, "epsilon", _EPSILON)), image, hint)
    of_groups, single = [image.batch, groups, each], [image.batch, groups, 1]

    def step(op: str, *inputs: str, shape: Any = of_groups) -> str:
        return g.typed(g.add(op, inputs, hint), TensorProto.FLOAT, shape)

    means, factors = (g.typed(g.reshape(v, [0, groups, each], hint), TensorProto.FLOAT, of_groups) for v in made)
    mean = g.typed(g.mean(means, [-1], hint), TensorProto.FLOAT, single)
    apart = step("Sub", means, mean)
    squares = step("Add", step("Reciprocal", step("Mul", factors, factors)), step("Mul", apart, apart))
    root = step("Sqrt", g.typed(g.mean(squares, [-1], hint), TensorProto.FLOAT, single), shape=single)
    by_group = g.const(scale.reshape(groups, each), hint)
    factor = step("Div", by_group, root)
    spread = step("Expand", mean, g.ints([1, 1, each], hint))
    of_channels = [image.batch, 1, image.channels]
    mean, factor = (
        g.typed(g.reshape(v, [0, 1, image.channels], hint), TensorProto.FLOAT, of_channels) for v in (spread, factor)
    )
    give_normal(w, y, (rows, mean, factor, g.const(bias, hint)), hint)


def _by_channel(array: np.ndarray | None, channels: int) -> np.ndarray:
    """Numbers of each channel, or of each group, for each channel, in f32."""
    assert array is not None
    return np.repeat(array.astype(np.float32), channels // array.size)

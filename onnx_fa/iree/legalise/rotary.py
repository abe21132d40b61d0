"""Rotary embedding as a node of ONNX or of onnxruntime, in the layout that it comes in (graph/rotary.py)."""

from __future__ import annotations

from itertools import accumulate

import numpy as np
import onnx
from onnx import helper

from onnx_fa.errors import ModelError
from onnx_fa.graph.rotary import Ops, rotate_heads
from onnx_fa.iree.legalise.writer import GraphWriter, attr_of


def rotary(g: GraphWriter, node: onnx.NodeProto) -> bool:
    """RotaryEmbedding in the layout that it comes in, without the transposes of its function body."""
    x, cos, sin, ids = [*node.input, ""][:4]
    cache, shape = g.shape(cos), g.shape(x)
    half = cache[-1] if cache else None
    if not isinstance(half, int) or shape is None or not half:
        return False
    hint = node.name or "RotaryEmbedding"
    flat = len(shape) == 3
    heads = attr_of(node, "num_heads", 0)
    head_dim = shape[-1] // heads if flat and heads and isinstance(shape[-1], int) else shape[-1]
    if not isinstance(head_dim, int):
        return False

    def ints(*values: int) -> str:
        return g.const(np.array(values, np.int64), hint)

    if flat:  # (B, S, H * D): heads are axis 2
        x = g.add("Reshape", [x, ints(0, 0, heads, head_dim)], hint)
    tables = []
    for table in (cos, sin):
        rows = g.add("Gather", [table, ids], hint, axis=0) if ids else table
        tables.append(g.add("Unsqueeze", [rows, ints(2 if flat else 1)], hint))
    ops = Ops(
        lambda op, *inputs, **attrs: g.add(op, inputs, hint, **attrs),
        ints,
        lambda number: g.const(np.array(number, np.int64), hint),
    )
    interleaved = bool(attr_of(node, "interleaved", 0))
    made = rotate_heads(ops, x, tables[0], tables[1], half=half, head_dim=head_dim, interleaved=interleaved)
    if flat:
        g.add("Reshape", [made, ints(0, 0, heads * head_dim)], hint, out=node.output[0])
    else:
        g.nodes[-1].output[0] = node.output[0]  # what was added last made the result
    return True


def contrib_rotary(g: GraphWriter, node: onnx.NodeProto) -> bool:
    """onnxruntime's RotaryEmbedding. IREE reads heads that lie behind the sequence in the wrong order, and refuses the other forms.

    Raises ModelError where the shapes of its inputs are unknown.
    """
    x, ids, cos, sin = node.input[:4]
    shape, cache, at = g.shape(x), g.shape(cos), g.shape(ids)
    half = cache[-1] if cache else None
    heads = attr_of(node, "num_heads", 0)
    width = shape[-1] if shape else None
    usable = isinstance(half, int) and isinstance(width, int) and shape is not None and at is not None
    if not usable or attr_of(node, "scale", 1.0) != 1.0:
        raise ModelError(
            f"node {node.name!r}: RotaryEmbedding of com.microsoft with unknown shapes or a scale is not supported"
        )
    assert isinstance(half, int) and isinstance(width, int) and shape is not None and at is not None
    hint = node.name or "RotaryEmbedding"
    if len(at) == 1:  # the position of the first row of every sequence
        axis = g.const(np.array(1 if len(shape) == 3 else 2, np.int64), hint)
        length = g.add("Gather", [g.add("Shape", [x], hint), axis], hint, axis=0)
        zero, one = (g.const(np.array(i, np.int64), hint) for i in (0, 1))
        row = g.add("Add", [g.add("Range", [zero, length, one], hint), ids], hint)
        ids = g.add("Unsqueeze", [row, g.const(np.array([0], np.int64), hint)], hint)
    made = helper.make_node(
        "RotaryEmbedding",
        [x, cos, sin, ids],
        list(node.output),
        name=hint,
        interleaved=attr_of(node, "interleaved", 0),
        num_heads=heads or (width // (2 * half) if len(shape) == 3 else 0),
    )
    return rotary(g, made)


def streams_rotary(g: GraphWriter, node: onnx.NodeProto) -> bool:
    """MRotaryEmbedding of onnxruntime, as the vision-language models of Qwen have it: each pair of numbers is rotated by the
    position of a token in one of three streams (time, height, width), which `mrope_section` and `mrope_layout` choose.

    Raises ModelError where shapes are unknown, for a scale, and for sequences that are packed one behind the other."""
    x, ids, cos, sin = node.input[:4]
    hint = node.name or "MRotaryEmbedding"
    shape, at, cache = g.shape(x), g.shape(ids), g.shape(cos)
    half = cache[-1] if cache else None
    sections = list(attr_of(node, "mrope_section", []))
    if shape is None or at is None or not isinstance(half, int) or attr_of(node, "scale", 1.0) != 1.0:
        raise ModelError(f"node {hint!r}: MRotaryEmbedding with unknown shapes or a scale is not supported")
    if attr_of(node, "is_packed_batching", 0) or len(sections) != 3 or sum(sections) != half:
        raise ModelError(
            f"node {hint!r}: MRotaryEmbedding of packed sequences, or of sections that do not add up to {half}"
        )
    streams = _streams(sections, half, attr_of(node, "mrope_layout", 0))
    places = [g.add("Gather", [ids, g.const(np.array(n, np.int64), hint)], hint, axis=0) for n in range(3)]
    tables = []
    for table in (cos, sin):
        rows = g.add("Gather", [table, places[0]], hint, axis=0)
        for stream in set(streams.tolist()) - {0}:
            other = g.add("Gather", [table, places[stream]], hint, axis=0)
            rows = g.add("Where", [g.const(streams == stream, hint), other, rows], hint)
        tables.append(g.typed(rows, g.kind(table), [*at[1:], half]))
    heads = attr_of(node, "num_heads", 0)
    if len(shape) == 3 and not heads:
        raise ModelError(f"node {hint!r}: MRotaryEmbedding of three dims without num_heads")
    made = helper.make_node(
        "RotaryEmbedding",
        [x, *tables],
        list(node.output),
        name=hint,
        interleaved=attr_of(node, "interleaved", 0),
        num_heads=heads if len(shape) == 3 else 0,
    )
    return rotary(g, made)


def _streams(sections: list[int], half: int, layout: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """The stream of each pair: in sections one behind the other, or every third one by turns (ContribOperators.md)."""
    streams = np.zeros(half, np.int64)
    if layout == 0:
        for stream, (end, size) in enumerate(zip(accumulate(sections), sections, strict=True)):
            streams[end - size : end] = stream
    else:
        for stream in (1, 2):
            streams[stream : 3 * sections[stream] : 3] = stream
    return streams

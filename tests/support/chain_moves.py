"""Steps of a chain that move and pick numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import TensorProto
from onnx import helper as h

from tests.support.chain import Chain, Step, Value, known, places, resized


def _slice(c: Chain, x: Value) -> Value | None:
    axis = c.axis(x)
    start, end, step = c.draw.choice(
        [
            (0, -1, 1),
            (1, 1 << 40, 1),
            (0, 1 << 40, 2),
            (-1, -(1 << 40), -1),
            (-2, 1 << 40, 1),
            (1, 3, 1),
            (-1, 0, -2),
            (2, -1, 1),
        ]
    )
    sizes = tuple(len(range(n)[start:end:step]) for n in x.dims[axis])
    if 0 in sizes:
        return None
    given = axis - x.rank if c.draw.random() < 0.3 else axis
    made = c.add("Slice", [x.name, *(c.constant([n]) for n in (start, end, given, step))])
    return resized(x, made, axis, sizes)


def _slice_by_size(c: Chain, x: Value) -> Value | None:
    """To half of an axis, as the run finds it."""
    axis = c.axis(x)
    sizes = tuple((n + 1) // 2 for n in x.dims[axis])
    one, two = c.constant([1]), c.constant([2])
    half = c.add("Div", [c.add("Add", [c.size(x, axis), one]), two])
    return resized(x, c.add("Slice", [x.name, c.constant([0]), half, c.constant([axis])]), axis, sizes)


def _concat(c: Chain, x: Value) -> Value | None:
    axis = c.axis(x)
    other = c.draw.choice([x.name, c.add("Neg", [x.name]) if x.kind != "h" else x.name])
    operands = [x.name, other] if c.draw.random() < 0.7 else [other, x.name, x.name]
    return resized(x, c.add("Concat", operands, axis=axis), axis, tuple(n * len(operands) for n in x.dims[axis]))


def _transpose(c: Chain, x: Value) -> Value | None:
    perm = list(range(x.rank))
    c.draw.shuffle(perm)
    return Value(c.add("Transpose", [x.name], perm=perm), x.kind, tuple(x.dims[p] for p in perm))


def _merge(c: Chain, x: Value) -> Value | None:
    if x.rank < 2:
        return None
    at = c.draw.randrange(x.rank - 1)
    merged = tuple(m * n for m, n in zip(x.dims[at], x.dims[at + 1], strict=True))
    parts = [c.size(x, i) for i in range(x.rank)]
    parts[at : at + 2] = [c.constant([-1])] if c.draw.random() < 0.5 else [c.add("Mul", parts[at : at + 2])]
    shape = c.add("Concat", parts, axis=0) if len(parts) > 1 else parts[0]
    return Value(c.add("Reshape", [x.name, shape]), x.kind, (*x.dims[:at], merged, *x.dims[at + 2 :]))


def _split_axis(c: Chain, x: Value) -> Value | None:
    found = [(i, k) for i, d in enumerate(x.dims) for k in (2, 4) if all(n % k == 0 for n in d)]
    if not found or x.rank > 4:
        return None
    at, k = c.draw.choice(found)
    rest = tuple(n // k for n in x.dims[at])
    parts = [c.size(x, i) for i in range(x.rank)]
    outer = c.draw.random() < 0.5
    parts[at : at + 1] = [c.constant([k]), c.constant([-1])] if outer else [c.constant([-1]), c.constant([k])]
    dims = (known(k), rest) if outer else (rest, known(k))
    return Value(
        c.add("Reshape", [x.name, c.add("Concat", parts, axis=0)]), x.kind, (*x.dims[:at], *dims, *x.dims[at + 1 :])
    )


def _unsqueeze(c: Chain, x: Value) -> Value | None:
    if x.rank > 3:
        return None
    at = c.draw.randrange(x.rank + 1)
    return Value(c.add("Unsqueeze", [x.name, c.constant([at])]), x.kind, (*x.dims[:at], known(1), *x.dims[at:]))


def _squeeze(c: Chain, x: Value) -> Value | None:
    found = [i for i, d in enumerate(x.dims) if set(d) == {1}]
    if not found or x.rank == 1:
        return None
    at = c.draw.choice(found)
    return Value(c.add("Squeeze", [x.name, c.constant([at])]), x.kind, x.dims[:at] + x.dims[at + 1 :])


def _expand(c: Chain, x: Value) -> Value | None:
    """What has rows of one, to the size of another axis of the run, or a known one."""
    found = [i for i, d in enumerate(x.dims) if set(d) == {1}]
    if not found:
        return None
    at = c.draw.choice(found)
    parts = [c.constant([1]) for _ in range(x.rank)]
    if c.draw.random() < 0.5:
        parts[at], sizes = c.constant([3]), known(3)
    else:
        of = c.axis(x)
        parts[at], sizes = c.size(x, of), x.dims[of]
    return resized(x, c.add("Expand", [x.name, c.add("Concat", parts, axis=0)]), at, sizes)


def _tile(c: Chain, x: Value) -> Value | None:
    times = [c.draw.choice([1, 1, 2, 3]) for _ in range(x.rank)]
    dims = tuple(tuple(n * t for n in d) for d, t in zip(x.dims, times, strict=True))
    return Value(c.add("Tile", [x.name, c.constant(times)]), x.kind, dims)


def _pad(c: Chain, x: Value) -> Value | None:
    axis, before, behind = c.axis(x), c.draw.randrange(3), c.draw.randrange(3)
    pads = [0] * (2 * x.rank)
    pads[axis], pads[axis + x.rank] = before, behind
    mode = c.draw.choice(["constant", "constant", "edge"])
    operands = [x.name, c.constant(pads)] + ([c.number(x, 2)] if mode == "constant" and c.draw.random() < 0.5 else [])
    return resized(x, c.add("Pad", operands, mode=mode), axis, tuple(n + before + behind for n in x.dims[axis]))


def _gather(c: Chain, x: Value) -> Value | None:
    axis = c.axis(x)
    least = min(x.dims[axis])
    indices: Any = [c.draw.randrange(-least, least) for _ in range(c.draw.choice([1, 2, 4]))]
    way = c.draw.choice(["row", "rows", "square"])
    if way == "row" and x.rank > 1:
        made = c.add("Gather", [x.name, c.constant(indices[0])], axis=axis)
        return Value(made, x.kind, x.dims[:axis] + x.dims[axis + 1 :])
    if way == "square" and x.rank < 4 and len(indices) > 1:
        made = c.add("Gather", [x.name, c.constant(np.reshape(indices, (2, -1)))], axis=axis)
        dims = (known(2), known(len(indices) // 2))
        return Value(made, x.kind, (*x.dims[:axis], *dims, *x.dims[axis + 1 :]))
    return resized(x, c.add("Gather", [x.name, c.constant(indices)], axis=axis), axis, known(len(indices)))


def _reverse(c: Chain, x: Value) -> Value | None:
    axis = c.axis(x)
    size = c.add("Sub", [c.size(x, axis), c.constant([1])])
    return resized(x, c.add("Gather", [x.name, c.add("Sub", [size, places(c, x, axis)])], axis=axis))


def _gather_elements(c: Chain, x: Value) -> Value | None:
    axis = c.axis(x)
    size = c.add("Cast", [c.size(x, axis)], to=TensorProto.INT64)
    bounded = c.add("Add", [x.name, c.number(x, 0.0623)]) if x.kind == "f" else x.name
    whole = c.add("Abs", [c.cast(bounded, "i")])
    return resized(x, c.add("GatherElements", [x.name, c.add("Mod", [whole, size])], axis=axis))


def _scatter_elements(c: Chain, x: Value) -> Value | None:
    """The rows in reverse, into rows of zeros."""
    axis = c.axis(x)
    size = c.add("Sub", [c.size(x, axis), c.constant([1])])
    rows = c.add("Sub", [size, places(c, x, axis)])
    if axis < x.rank - 1:
        rows = c.add("Unsqueeze", [rows, c.constant(list(range(1, x.rank - axis)))])
    at = c.add("Expand", [rows, c.add("Shape", [x.name])])
    into = c.add("Mul", [x.name, c.number(x, 2)])
    more = c.draw.choice([{}, {"reduction": "add"}]) if x.kind in "fi" else {}
    return resized(x, c.add("ScatterElements", [into, at, x.name], axis=axis, **more))


def _scatter_nd(c: Chain, x: Value) -> Value | None:
    """The first row in place of the last one."""
    if x.rank < 2:
        return None
    first = c.add("Gather", [x.name, c.constant([0])], axis=0)
    at = c.add("Unsqueeze", [c.add("Sub", [c.size(x, 0), c.constant([1])]), c.constant([1])])
    return resized(x, c.add("ScatterND", [x.name, at, first]))


def _gather_nd(c: Chain, x: Value) -> Value | None:
    if x.rank < 2:
        return None
    rows, columns = (min(d) for d in x.dims[:2])
    at = [[c.draw.randrange(-rows, rows), c.draw.randrange(columns)] for _ in range(3)]
    return Value(c.add("GatherND", [x.name, c.constant(at)]), x.kind, (known(3), *x.dims[2:]))


def _split(c: Chain, x: Value) -> Value | None:
    axis = c.axis(x)
    if min(x.dims[axis]) < 2:
        return None
    one = c.constant([1])
    sizes = c.add("Concat", [one, c.add("Sub", [c.size(x, axis), one])], axis=0)
    names = [f"t{len(c.nodes)}", f"t{len(c.nodes)}rest"]
    c.nodes.append(h.make_node("Split", [x.name, sizes], names, axis=axis))
    rest = tuple(n - 1 for n in x.dims[axis])
    return resized(x, names[1], axis, rest) if c.draw.random() < 0.7 else resized(x, names[0], axis, known(1))


def _top_k(c: Chain, x: Value) -> Value | None:
    axis = c.axis(x)
    if x.kind not in "fi" or min(x.dims[axis]) < 2:
        return None
    names = f"t{len(c.nodes)}", f"t{len(c.nodes)}at"
    c.nodes.append(h.make_node("TopK", [x.name, c.constant([2])], names, axis=axis, largest=c.draw.randrange(2)))
    kind, name = c.draw.choice([(x.kind, names[0]), ("i", names[1])])
    return Value(name, kind, (*x.dims[:axis], known(2), *x.dims[axis + 1 :]))


def _triangle(c: Chain, x: Value) -> Value | None:
    if x.rank < 2 or x.kind in "hw":
        return None
    return resized(x, c.add("Trilu", [x.name, c.constant(c.draw.randint(-2, 2))], upper=c.draw.randrange(2)))


def _where(c: Chain, x: Value) -> Value | None:
    """Of its numbers and those of its first row."""
    axis = c.axis(x)
    first = c.add("Slice", [x.name, c.constant([0]), c.constant([1]), c.constant([axis])])
    is_more = c.add("Greater", [x.name, first])
    return resized(x, c.add("Where", [is_more, first, x.name]))


def _resize(c: Chain, x: Value) -> Value | None:
    if x.rank != 4 or x.kind != "f":
        return None
    scales = c.constant([1, 1, 2, 2], np.float32)
    made = c.add(
        "Resize",
        [x.name, "", scales],
        mode="nearest",
        coordinate_transformation_mode="asymmetric",
        nearest_mode="floor",
    )
    return Value(made, x.kind, (*x.dims[:2], *(tuple(2 * n for n in d) for d in x.dims[2:])))


MOVES: tuple[Step, ...] = (
    _slice,
    _slice_by_size,
    _concat,
    _transpose,
    _merge,
    _split_axis,
    _unsqueeze,
    _squeeze,
    _expand,
    _tile,
    _pad,
    _gather,
    _reverse,
    _gather_elements,
    _scatter_elements,
    _scatter_nd,
    _gather_nd,
    _split,
    _top_k,
    _triangle,
    _where,
    _resize,
)

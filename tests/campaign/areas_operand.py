"""Where Q, K and V come from: other layouts, cuts of something larger, caches."""

from __future__ import annotations

import numpy as np
from onnx import TensorProto as T
from onnx import helper as h

from .sketch import Sketch

FAR = 2**31 - 1


def cut(g: Sketch, length: int) -> tuple[int, tuple[int, int, int]]:
    """(how long the whole is, start, end and step of a slice of `length` of it), with ends that are negative or out of bounds."""
    r = g.r
    while True:
        whole = length + r.randint(0, 4)
        ends = [*range(-whole - 3, whole + 4), FAR, -FAR, 10, -10]
        start, end = r.choice(ends), r.choice(ends)
        step = r.choice((1, 1, 1, 2, -1))
        if len(range(*slice(start, end, step).indices(whole))) == length:
            return whole, (start, end, step)


def sliced(g: Sketch, x: str, axis: int, ends: tuple[int, int, int]) -> str:
    start, end, step = ends
    tail = (g.ints([step]),) if step != 1 or g.r.random() < 0.5 else ()
    return g.op("Slice", x, g.ints([start]), g.ints([end]), g.ints([axis]), *tail)


def operand(g: Sketch, name: str) -> str:
    """q (.., S, D), k (.., L, D) or v (.., L, E), with as many heads as Q has."""
    r = g.r
    lead = g.lead if name == "q" else g.kv_lead
    shape = [*lead, g.S if name == "q" else g.L, g.E if name == "v" else g.D]
    if name != "q" and g.likes("caches", 0.8, 0.06 if g.kind != "deep" else 0.3):
        x = cached(g, name, shape)
    elif g.likes("cuts", 0.5, 0.05):
        axis = r.randrange(len(shape))
        whole, ends = cut(g, shape[axis])
        x = sliced(
            g, g.given(name, [*shape[:axis], whole, *shape[axis + 1 :]]), r.choice((axis, axis - len(shape))), ends
        )
    else:
        x = _laid_out(g, name, shape)
    if lead != g.lead:
        x = _repeated(g, x, shape)
    return g.edge(x, name)


def _laid_out(g: Sketch, name: str, shape: list[int]) -> str:
    r = g.r
    way = r.choice(("plain", "plain", "plain", "bshd", "flat", "last", "cast"))
    if way == "bshd" and len(shape) == 4:
        b, n, s, d = shape
        return g.op("Transpose", g.given(name, [b, s, n, d]), perm=[0, 2, 1, 3])
    if way == "flat" and len(shape) == 4 and 0 not in shape:
        b, n, s, d = shape
        x = g.op("Reshape", g.given(name, [b, s, n * d]), g.ints(r.choice(([b, s, n, d], [0, 0, n, d], [0, -1, n, d]))))
        return g.op("Transpose", x, perm=[0, 2, 1, 3])
    if way == "last":
        return g.swapped(g.given(name, [*shape[:-2], shape[-1], shape[-2]]), len(shape))
    if way == "cast":
        return g.op("Cast", g.given(name, shape, r.choice((T.FLOAT, T.FLOAT16, T.DOUBLE))), to=g.float_type)
    return g.given(name, shape)


def _repeated(g: Sketch, x: str, shape: list[int]) -> str:
    """The one K/V head for every head of Q; a plain broadcast now and then."""
    way = g.r.choice(("Expand", "Tile", "Concat", "none"))
    if way == "Expand":
        return g.op("Expand", x, g.ints([*g.lead, *shape[-2:]]))
    if way == "Tile":
        return g.op("Tile", x, g.ints([*[1] * (len(g.lead) - 1), g.H, 1, 1]))
    if way == "Concat":
        return g.op("Concat", *[x] * g.H, axis=len(g.lead) - 1)
    return x


def cached(g: Sketch, name: str, shape: list[int]) -> str:
    """What was kept and what is new, by one of the ops that write a cache."""
    r = g.r
    axis, length = len(shape) - 2, shape[-2]
    ways = ["Concat", "Concat", "ScatterND", "ScatterElements", "Gather", "Loop", "Scan", "Pad", "unrolled"]
    if g.opset >= 24 and len(shape) == 4:
        ways += ["TensorScatter"] * 3
    way = r.choice(ways)
    if length < 1 or 0 in shape:
        way = "Concat"
    elif g.kind == "deep" and r.random() < 0.6:
        way = "unrolled"
    if way == "Concat":
        new = r.randint(0, length)
        parts = [
            g.given(f"{name}{which}", [*shape[:-2], n, shape[-1]])
            for which, n in (("past", length - new), ("new", new))
        ]
        return g.op("Concat", *parts, axis=r.choice((axis, -2)))
    if way == "unrolled":
        rows = [g.given(f"{name}new", [*shape[:-2], 1, shape[-1]]) for _ in range(min(3, length))]
        x = rows[0]
        for i in range(1, length):
            x = g.op("Concat", x, rows[i % len(rows)], axis=axis)
        # A ring that a decoder has written to again and again.
        for i in range(r.choice((150, 400)) if g.kind == "deep" else r.choice((0, 3))):
            x = g.op("Concat", sliced(g, x, axis, (1, FAR, 1)), rows[i % len(rows)], axis=axis)
        return x
    whole = g.given(f"{name}cache", shape)
    if way == "Gather":
        order = [r.randrange(length) for _ in range(length)]
        return g.op("Gather", whole, g.ints(order), axis=axis)
    if way == "Pad":
        longer = g.op("Pad", whole, g.ints([*[0] * len(shape), *[0] * axis, 2, 0]), *([g.floats(r.choice((0.0, 1.0)))]))
        whole_length, (start, end) = length + 2, r.choice(((0, length), (2, FAR), (1, -1), (-length, FAR), (0, -2)))
        assert len(range(*slice(start, end).indices(whole_length))) == length
        return sliced(g, longer, axis, (start, end, 1))
    if way == "ScatterND":
        at = r.sample(range(length), r.randint(1, length))
        new = g.given(f"{name}new", [len(at), *(shape[:axis]), shape[-1]])
        order = [axis, *range(axis), axis + 1]
        turned = g.op("Transpose", whole, perm=order)
        written = g.op("ScatterND", turned, g.ints([[i] for i in at]), new)
        back = [order.index(i) for i in range(len(shape))]
        return g.op("Transpose", written, perm=back)
    if way == "ScatterElements":
        rows = r.randint(1, length)
        at = np.zeros([*shape[:-2], rows, shape[-1]], np.int64) + np.asarray(r.sample(range(length), rows))[:, None]
        return g.op("ScatterElements", whole, g.ints(at), g.given(f"{name}new", list(at.shape)), axis=axis)
    if way == "TensorScatter":
        new = g.given(f"{name}new", [*shape[:-2], 1, shape[-1]])
        at = g.ints([r.randrange(length) for _ in range(shape[0])])
        return g.op("TensorScatter", whole, new, at, axis=axis, mode=r.choice(("linear", "circular")))
    return _by_subgraph(g, way, name, whole, shape, axis)


def _by_subgraph(g: Sketch, way: str, name: str, whole: str, shape: list[int], axis: int) -> str:
    """Loop or Scan: the rows of `whole` one by one, changed on their way."""
    n = len(g.nodes)
    op = g.r.choice(("Identity", "Neg", "Abs"))
    row = [*shape[:-2], shape[-1]]
    info = h.make_tensor_value_info
    if way == "Scan":
        body = h.make_graph(
            [h.make_node(op, [f"row{n}"], [f"done{n}"], name=f"body{n}")],
            f"scan{n}",
            [info(f"row{n}", g.float_type, row)],
            [info(f"done{n}", g.float_type, row)],
        )
        return g.op("Scan", whole, body=body, num_scan_inputs=1, scan_input_axes=[axis], scan_output_axes=[axis])
    nodes = [
        h.make_node("Gather", [whole, f"i{n}"], [f"row{n}"], axis=axis, name=f"take{n}"),
        h.make_node(op, [f"row{n}"], [f"done{n}"], name=f"body{n}"),
        h.make_node("Identity", [f"c{n}"], [f"go{n}"], name=f"go_on{n}"),
    ]
    body = h.make_graph(
        nodes,
        f"loop{n}",
        [info(f"i{n}", T.INT64, []), info(f"c{n}", T.BOOL, [])],
        [info(f"go{n}", T.BOOL, []), info(f"done{n}", g.float_type, row)],
    )
    rows = g.op("Loop", g.const(shape[axis], np.int64), g.const(True, bool), body=body)
    return g.op("Transpose", rows, perm=[*range(1, axis + 1), 0, axis + 1])

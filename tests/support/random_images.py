"""Random networks of images: all that can have channels last, and some that cannot, in any order."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
from hypothesis import strategies as st

from tests.support.image_nets import SINGLE, Net

Known = tuple[str, int, int, int]
"""A value: its name, channels, height and width."""
_FAR = 1 << 40
_MOST_PLACES = 100


def _conv(draw: st.DrawFn, n: Net, x: Known, _: list[Known]) -> list[Known]:
    name, c, high, wide = x
    to, kernel, step = draw(st.sampled_from([1, 8, 9, 16, 24])), draw(st.integers(1, 3)), draw(st.integers(1, 2))
    pads = [draw(st.integers(0, kernel - 1)) for _ in range(4)]
    left = high + pads[0] + pads[2] - kernel, wide + pads[1] + pads[3] - kernel
    if min(left) < 0:
        return []
    group = draw(st.sampled_from([g for g in (1, 1, 2, 3, 4) if c % g == to % g == 0]))
    y = n.conv(name, c, to, kernel, group=group, pads=pads, strides=[step] * 2, bias=draw(st.booleans()))
    return [(y, to, left[0] // step + 1, left[1] // step + 1)]


def _depthwise(draw: st.DrawFn, n: Net, x: Known, _: list[Known]) -> list[Known]:
    name, c, high, wide = x
    if c == 1 or min(high, wide) == 1:
        return []
    step = draw(st.integers(1, 2))
    return [(n.conv(name, c, c, 3, group=c, strides=[step, 1]), c, (high - 1) // step + 1, wide)]


def _pool(draw: st.DrawFn, n: Net, x: Known, _: list[Known]) -> list[Known]:
    name, c, high, wide = x
    if min(high, wide) == 1:
        return []
    op, step = draw(st.sampled_from(["MaxPool", "AveragePool"])), draw(st.integers(1, 2))
    pads, ceil = draw(st.sampled_from([[0] * 4, [1, 0, 0, 1], [1] * 4])), draw(st.integers(0, 1))
    more = {"count_include_pad": draw(st.integers(0, 1))} if op == "AveragePool" else {}
    left = high + pads[0] + pads[2] - 2
    if ceil and (more or left % step):  # what both libraries count differently in the last window
        return []
    y = n.add(op, name, kernel_shape=[2, 2], strides=[step, 1], pads=pads, ceil_mode=ceil, **more)
    return [(y, c, left // step + 1, wide + pads[1] + pads[3] - 1)]


def _single(draw: st.DrawFn, n: Net, x: Known, _: list[Known]) -> list[Known]:
    op = draw(st.sampled_from(sorted(SINGLE)))
    return [(n.add(op, x[0], **SINGLE[op]), *x[1:])]


def _both(draw: st.DrawFn, n: Net, x: Known, known: list[Known]) -> list[Known]:
    name, *shape = x
    c, high, wide = shape
    fit = (shape, [c, 1, 1], [1, high, wide], [1, 1, 1])
    others = [other for other, *its in known if its in fit]
    shapes = [(c, 1, 1), (1, c, 1, 1), (1,), (), (1, 1, 1), (1, high, wide), (wide,)]
    pair = draw(st.permutations([name, draw(st.sampled_from([*others, *(n.weight(*s) for s in shapes)]))]))
    return [(n.add(draw(st.sampled_from(["Add", "Mul", "Sub", "Max"])), *pair), c, high, wide)]


def _concat(draw: st.DrawFn, n: Net, x: Known, known: list[Known]) -> list[Known]:
    fit = [v for v in known if v[2:] == x[2:]]
    parts = draw(st.lists(st.sampled_from(fit), min_size=1, max_size=3))
    y = n.add("Concat", *(v[0] for v in parts), axis=draw(st.sampled_from([1, -3])))
    return [(y, sum(v[1] for v in parts), *x[2:])]


def _split(draw: st.DrawFn, n: Net, x: Known, _: list[Known]) -> list[Known]:
    name, c, *places = x
    if c == 1:
        return []
    cut = draw(st.integers(1, c - 1))
    y, z = n.add("Split", name, n.ints(cut, c - cut), outputs=2, axis=1)
    return [(y, cut, *places), (z, c - cut, *places)]


def _slice(draw: st.DrawFn, n: Net, x: Known, _: list[Known]) -> list[Known]:
    name, c, *places = x
    low, step = draw(st.integers(-c, c - 1)), draw(st.integers(1, 2))
    left = -low if low < 0 else c - low
    axis = draw(st.sampled_from([1, -3]))
    return [(n.add("Slice", name, n.ints(low), n.ints(_FAR), n.ints(axis), n.ints(step)), -(-left // step), *places)]


def _mean(draw: st.DrawFn, n: Net, x: Known, _: list[Known]) -> list[Known]:
    op = draw(st.sampled_from(["GlobalAveragePool", "GlobalMaxPool", "ReduceMean"]))
    return [(n.add(op, x[0], **({"axes": [-1, 2]} if op == "ReduceMean" else {})), x[1], 1, 1)]


def _turn(draw: st.DrawFn, n: Net, x: Known, _: list[Known]) -> list[Known]:
    name, c, high, wide = x
    if draw(st.booleans()):
        last = n.add("Softmax", n.add("Transpose", name, perm=[0, 2, 3, 1]), axis=-1)
        return [(n.add("Transpose", last, perm=[0, 3, 1, 2]), c, high, wide)]
    rows = n.add("Transpose", n.add("Reshape", name, n.ints(0, c, high * wide)), perm=[0, 2, 1])
    back = n.add("Transpose", n.add("Softmax", rows, axis=-1), perm=[0, 2, 1])
    return [(n.add("Reshape", back, n.ints(0, c, high, wide)), c, high, wide)]


def _pad(draw: st.DrawFn, n: Net, x: Known, _: list[Known]) -> list[Known]:
    more = [n.const(np.float32(1.5))] if draw(st.booleans()) else []
    return [(n.add("Pad", x[0], n.ints(0, 0, 1, 0, 0, 0, 0, 2), *more), x[1], x[2] + 1, x[3] + 2)]


def _resize(draw: st.DrawFn, n: Net, x: Known, _: list[Known]) -> list[Known]:
    name, c, high, wide = x
    down, across = draw(st.integers(1, 3)), draw(st.integers(1, 2))
    if high * wide > _MOST_PLACES:
        return []
    scales = n.const(np.array([1, 1, down, across], np.float32))
    how = draw(st.sampled_from([("asymmetric", "floor"), ("half_pixel", "round_prefer_floor"), ("asymmetric", "ceil")]))
    y = n.add("Resize", name, "", scales, coordinate_transformation_mode=how[0], nearest_mode=how[1])
    return [(y, c, high * down, wide * across)]


def _norm(draw: st.DrawFn, n: Net, x: Known, _: list[Known]) -> list[Known]:
    return [(n.norm(x[0], x[1]), *x[1:])]


def _other(draw: st.DrawFn, n: Net, x: Known, _: list[Known]) -> list[Known]:
    return [(n.add("Softmax", x[0], axis=draw(st.integers(1, 3))), *x[1:])]


_STEPS: tuple[Callable[[st.DrawFn, Net, Known, list[Known]], list[Known]], ...] = (
    *(_conv, _conv, _depthwise, _pool, _single, _both, _concat, _split, _slice, _mean, _turn, _pad, _resize, _norm),
    _other,
)


@st.composite
def image_nets(draw: st.DrawFn) -> onnx.ModelProto:
    """A model of one input x, whose outputs are some of its values."""
    image = [draw(st.integers(1, most)) for most in (12, 9, 9)]
    n = Net(*image, batch=draw(st.sampled_from(["N", 2])), seed=draw(st.integers(0, 99)))
    known: list[Known] = [(n.add("Relu", "x"), *image)]
    for _ in range(draw(st.integers(2, 9))):
        step = draw(st.sampled_from(_STEPS))
        known += step(draw, n, draw(st.sampled_from(known)), known)
    names = draw(st.sets(st.sampled_from([v[0] for v in known]), max_size=2))
    return n.model(*sorted({*names, known[-1][0]}))

"""Random networks along an axis of free length: all that can have channels last there, and some that cannot, in any order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
from hypothesis import strategies as st
from onnx import TensorProto
from onnx import helper as h

from tests.support.image_nets import SINGLE, Net

LENGTHS = (23, 40)
"""Of inputs that the networks are run with."""
Known = tuple[str, int, tuple[int, ...]]
"""A value: its name, channels, and how long it is for each of the lengths."""
_FAR, _MOST_PLACES = 1 << 40, 400


def _pads(draw: st.DrawFn, span: int, plain: bool) -> tuple[dict[str, Any], int]:
    """Attributes, and how much longer they make x; `plain`: whether onnxruntime takes any."""
    if plain and draw(st.integers(0, 3)) == 0:
        return {"auto_pad": draw(st.sampled_from(["SAME_UPPER", "SAME_LOWER"]))}, span - 1
    low, high = draw(st.sampled_from([(0, 0), (span // 2, (span - 1) // 2), (span - 1, 0), (span + 1, 2)]))
    return {"pads": [low, high]}, low + high


def _conv(draw: st.DrawFn, n: Net, x: Known, _: list[Known]) -> list[Known]:
    name, c, sizes = x
    to, taps, step = draw(st.sampled_from([1, 3, 8, 9, 16, 24, 40])), draw(st.integers(1, 4)), draw(st.integers(1, 3))
    dilation = draw(st.integers(1, 3))
    span = (taps - 1) * dilation + 1
    attributes, longer = _pads(draw, span, dilation == step == 1)
    if min(sizes) + longer < span:
        return []
    group = draw(st.sampled_from([g for g in (1, 1, 2, 3, 4) if c % g == to % g == 0]))
    weights = [n.weight(to, c // group, taps), *[n.weight(to)] * draw(st.booleans())]
    y = n.add("Conv", name, *weights, group=group, strides=[step], dilations=[dilation], **attributes)
    return [(y, to, tuple((size + longer - span) // step + 1 for size in sizes))]


def _depthwise(draw: st.DrawFn, n: Net, x: Known, _: list[Known]) -> list[Known]:
    name, c, sizes = x
    step = draw(st.integers(1, 2))
    y = n.add("Conv", name, n.weight(c, 1, 5), group=c, strides=[step], pads=[2, 2])
    return [(y, c, tuple((size - 1) // step + 1 for size in sizes))]


def _upsample(draw: st.DrawFn, n: Net, x: Known, _: list[Known]) -> list[Known]:
    name, c, sizes = x
    step, to = draw(st.integers(1, 3)), draw(st.sampled_from([1, 4, 8, 16]))
    taps, pads = (
        step * draw(st.integers(1, 2)) + draw(st.integers(0, 1)),
        draw(st.sampled_from([(0, 0), (1, 1), (1, 0)])),
    )
    made = tuple((size - 1) * step + taps - sum(pads) for size in sizes)
    if min(made) < 1 or max(made) > _MOST_PLACES:
        return []
    weights = [n.weight(c, to, taps), *[n.weight(to)] * draw(st.booleans())]
    return [(n.add("ConvTranspose", name, *weights, strides=[step], pads=list(pads)), to, made)]


def _single(draw: st.DrawFn, n: Net, x: Known, _: list[Known]) -> list[Known]:
    op = draw(st.sampled_from(sorted(SINGLE)))
    return [(n.add(op, x[0], **SINGLE[op]), *x[1:])]


def _both(draw: st.DrawFn, n: Net, x: Known, known: list[Known]) -> list[Known]:
    name, c, sizes = x
    others = [other for other, channels, its in known if its == sizes and channels in (1, c)]
    shapes = [(c, 1), (1, c, 1), (1,), (), (1, 1)]
    pair = draw(st.permutations([name, draw(st.sampled_from([*others, *(n.weight(*s) for s in shapes)]))]))
    return [(n.add(draw(st.sampled_from(["Add", "Mul", "Sub", "Max"])), *pair), c, sizes)]


def _concat(draw: st.DrawFn, n: Net, x: Known, known: list[Known]) -> list[Known]:
    fit = [v for v in known if v[2] == x[2]]
    parts = draw(st.lists(st.sampled_from(fit), min_size=1, max_size=3))
    return [
        (n.add("Concat", *(v[0] for v in parts), axis=draw(st.sampled_from([1, -2]))), sum(v[1] for v in parts), x[2])
    ]


def _split(draw: st.DrawFn, n: Net, x: Known, _: list[Known]) -> list[Known]:
    name, c, sizes = x
    if c == 1:
        return []
    cut = draw(st.integers(1, c - 1))
    y, z = n.add("Split", name, n.ints(cut, c - cut), outputs=2, axis=1)
    return [(y, cut, sizes), (z, c - cut, sizes)]


def _slice(draw: st.DrawFn, n: Net, x: Known, known: list[Known]) -> list[Known]:
    """Of channels, or of places, as many of these now and then as another value has."""
    name, c, sizes = x
    if draw(st.booleans()):
        low = draw(st.integers(0, c - 1))
        return [
            (n.add("Slice", name, n.ints(low), n.ints(_FAR), n.ints(draw(st.sampled_from([1, -2])))), c - low, sizes)
        ]
    low, high = draw(st.sampled_from([(0, 0), (1, 0), (0, 1), (2, 3)]))
    if min(sizes) <= low + high:
        return []
    # Ends by a number, or by what the run says of the length, which are those of the axis or not.
    shape = n.add("Gather", n.add("Shape", name), n.ints(2), axis=0)
    end = draw(st.sampled_from([n.ints(-high if high else _FAR), n.add("Sub", shape, n.ints(high))]))
    if not high and draw(st.booleans()):
        end = shape
    made = tuple(size - low - high for size in sizes)
    other, _, its = draw(st.sampled_from(known))
    if min(its) > low and draw(st.integers(0, 3)) == 0:
        end = n.add("Gather", n.add("Shape", other), n.ints(2), axis=0)
        made = tuple(min(pair) - low for pair in zip(sizes, its, strict=True))
    bounds = n.ints(low), end, n.ints(draw(st.sampled_from([2, -1])))
    return [(n.add("Slice", name, *bounds), c, made)]


def _turn(draw: st.DrawFn, n: Net, x: Known, _: list[Known]) -> list[Known]:
    last = n.add("Softmax", n.add("Transpose", x[0], perm=[0, 2, 1]), axis=-1)
    return [(n.add("Transpose", last, perm=[0, 2, 1]), *x[1:])]


def _pad(draw: st.DrawFn, n: Net, x: Known, _: list[Known]) -> list[Known]:
    """Of places, of none, and now and then of channels."""
    name, c, sizes = x
    low, high = draw(st.sampled_from([(0, 0), (1, 1), (1, 2), (3, 0)]))
    mode = draw(st.sampled_from(["constant", "reflect", "edge"]))
    if min(sizes) <= max(low, high):
        return []
    if min(sizes) > 1 and draw(st.booleans()):
        # As much behind it as the run says.
        odd = n.add("Mod", n.add("Gather", n.add("Shape", name), n.ints(2), axis=0), n.ints(2))
        y = n.add("Pad", name, n.add("Concat", n.ints(0, 0, low, 0, 0), odd, axis=0), mode=mode)
        return [(y, c, tuple(size + low + size % 2 for size in sizes))]
    more = draw(st.sampled_from([0, 0, 0, 1])) if mode == "constant" else 0
    y = n.add("Pad", name, n.ints(0, more, low, 0, 0, high), mode=mode)
    return [(y, c + more, tuple(size + low + high for size in sizes))]


def _norm(draw: st.DrawFn, n: Net, x: Known, _: list[Known]) -> list[Known]:
    """By numbers that are known, or by those of each channel (as few are much alike, with a large epsilon)."""
    name, c, sizes = x
    if draw(st.booleans()):
        return [(n.norm(name, c), c, sizes)]
    return [(n.add("InstanceNormalization", name, n.weight(c), n.weight(c), epsilon=0.5), c, sizes)]


def _other(draw: st.DrawFn, n: Net, x: Known, _: list[Known]) -> list[Known]:
    return [(n.add("Softmax", x[0], axis=draw(st.integers(1, 2))), *x[1:])]


_STEPS: tuple[Callable[[st.DrawFn, Net, Known, list[Known]], list[Known]], ...] = (
    *(_conv, _conv, _conv, _depthwise, _upsample, _single, _both, _both, _concat, _split, _slice, _turn, _pad, _norm),
    _other,
)


def sound_net(channels: int, batch: int | str = "N", seed: int = 0, length: int | str = "L") -> Net:
    """An empty network of an x of (batch, channels, length)."""
    n = Net(channels, batch=batch, seed=seed)
    n.inputs = [h.make_tensor_value_info("x", TensorProto.FLOAT, [batch, channels, length])]
    return n


@st.composite
def sound_nets(draw: st.DrawFn) -> onnx.ModelProto:
    """A model of one input x, (batch, channels, L or the last of the lengths), whose outputs are some of its values."""
    channels = draw(st.sampled_from([1, 3, 8, 16]))
    batch, length = draw(st.sampled_from(["N", 2])), draw(st.sampled_from(["L", "L", LENGTHS[-1]]))
    n = sound_net(channels, batch, draw(st.integers(0, 99)), length)
    known: list[Known] = [(n.add("Relu", "x"), channels, LENGTHS)]
    for _ in range(draw(st.integers(2, 9))):
        step = draw(st.sampled_from(_STEPS))
        known += step(draw, n, draw(st.sampled_from(known)), known)
    names = draw(st.sets(st.sampled_from([v[0] for v in known]), max_size=2))
    return n.model(*sorted({*names, known[-1][0]}))


def sound(model: onnx.ModelProto, length: int, batch: int = 2) -> dict[str, np.ndarray[Any, Any]]:
    """An input of the model so long."""
    channels = model.graph.input[0].type.tensor_type.shape.dim[1].dim_value
    return {"x": np.random.default_rng(length).standard_normal((batch, channels, length)).astype(np.float32)}

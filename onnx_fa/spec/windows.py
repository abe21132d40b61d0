"""A convolution as a product: each place of a window over an image is a row, of all numbers that the window sees there.

y[image, place, n] = b[n] + sum over channel and tap of x[image, channel, place * stride + tap * dilation] w[channel and tap, n]
"""

from __future__ import annotations

import hashlib
import itertools
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from onnx_fa.spec.expr import SCORE, ScoreExpr, evaluate
from onnx_fa.spec.linear import LinearSpec, biased, check_epilogue, followed
from onnx_fa.spec.terms import Dim, FloatType, TensorArg


@dataclass(frozen=True)
class WindowSpec:
    """`images` are those of a batch (None: known at run time only), each in so many `groups`, of `channels` channels of `sizes`,
    pads included. Every group has N columns of its own. x is (images * groups, channels * sizes), as an image lies in memory,
    channels first. y is (images * groups, N, places), or with `last`, channels last, (images * groups, places, N). With `x_last`
    an image has its channels last, x is (images, sizes * groups * channels), and y that is `last` has the columns of all groups
    side by side, (images, places, groups * N).

    The weight comes in panels of columns, (groups * panels, K, panel), where K runs over channels and then taps, with `x_last`
    over taps and then channels; the last panel of a group has its last columns. With `bias` there is a third operand, (groups, N).
    A group may have several `blocks` of columns, each of which reads channels of its own alone, in order: K then runs over those of
    a block, and a panel has all columns. Raises ValueError for windows that fit nowhere, panels wider than the columns, blocks that
    divide neither these nor the channels, and for groups of an image whose channels come last and of y whose channels do not.

    `then` is what becomes of a sum of y that is `last`, the score of the expression, with `tensors` of y's type, of the shape (N,)
    or y's own: an activation, a residual, a scale. They are the operands behind the bias. Raises ValueError for an expression of
    anything else, and where y has its channels first.

    A `depthwise` one has its channels last in x and y, and makes each of its columns of the channel in its place alone: K are then
    the taps.

    Windows of two axes over x with its channels last may reach into `pads` of zeros, before every axis and then behind, which are
    no part of `sizes` nor of x: nobody has to copy an image for them. Raises ValueError for others.

    `dtype` is the type of the weight, the bias and y, and `x_dtype` that of x: f32 where numbers of a shorter type are widened
    before, each once, and read by many windows. Sums are f32."""

    images: int | None
    groups: int
    channels: int
    N: int
    sizes: tuple[int, ...]
    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    panel: int
    bias: bool = False
    last: bool = False
    blocks: int = 1
    dtype: FloatType = "f32"
    x_last: bool = False
    then: ScoreExpr = SCORE
    tensors: tuple[TensorArg, ...] = ()
    depthwise: bool = False
    pads: tuple[int, ...] = ()
    x_dtype: FloatType = "f32"

    def __post_init__(self) -> None:
        if min(self.groups, self.channels, self.panel, *self.kernel, *self.strides, *self.dilations) < 1:
            raise ValueError(f"a number below one in {self}")
        if self.pads and (
            not self.x_last or not self.last or not len(self.pads) == 2 * len(self.sizes) == 4 or min(self.pads) < 0
        ):
            raise ValueError(f"pads of {self.pads} of {self.sizes}")
        if min(self.places) < 1:
            raise ValueError(f"windows of {self.kernel} in {self.sizes}")
        if self.panel > self.N:
            raise ValueError(f"panels of {self.panel} columns of {self.N}")
        if self.blocks > 1 and (self.channels % self.blocks or self.N % self.blocks or self.panel != self.N):
            raise ValueError(f"{self.blocks} blocks of {self.N} columns in panels of {self.panel}")
        if self.depthwise and not (self.x_last and self.last and self.channels == self.N):
            raise ValueError(f"a depthwise convolution with channels first, or of {self.channels} into {self.N}")
        if self.x_last and self.groups > 1 and not self.last:
            raise ValueError(f"{self.groups} groups of an image whose channels come last, as y's do not")
        check_epilogue(self.then, self.tensors, [(self.columns,), self.whole])
        if self.then != SCORE and not self.last:
            raise ValueError(f"{self.then} of what has its channels first")

    @property
    def padded(self) -> tuple[int, ...]:
        """The sizes with the pads."""
        behind = self.pads[len(self.sizes) :] or (0,) * len(self.sizes)
        return tuple(map(sum, zip(self.before, self.sizes, behind, strict=True)))

    @property
    def before(self) -> tuple[int, ...]:
        """The pads before each axis."""
        return self.pads[: len(self.sizes)] or (0,) * len(self.sizes)

    @property
    def places(self) -> tuple[int, ...]:
        """Of a window along each axis."""
        axes = zip(self.padded, self.kernel, self.strides, self.dilations, strict=True)
        return tuple((size - (k - 1) * d - 1) // s + 1 for size, k, s, d in axes)

    @property
    def rows(self) -> int:
        """Places of a window in an image."""
        return math.prod(self.places)

    @property
    def K(self) -> int:
        return (1 if self.depthwise else self.channels // self.blocks) * math.prod(self.kernel)

    @property
    def panels(self) -> int:
        """Of a group."""
        return -(-self.N // self.panel)

    @property
    def parts(self) -> int | None:
        """Groups of images, each of which is multiplied for itself."""
        return None if self.images is None else self.images * (1 if self.x_last else self.groups)

    @property
    def columns(self) -> int:
        """Of each of the parts."""
        return self.N * (self.groups if self.x_last else 1)

    @property
    def numbers(self) -> int:
        """Of x, of each of the parts."""
        return self.channels * math.prod(self.sizes) * (self.groups if self.x_last else 1)

    @property
    def steps(self) -> tuple[int, ...]:
        """How far apart neighbours along each axis of an image lie."""
        least = self.channels * self.groups if self.x_last else 1
        return tuple(least * math.prod(self.sizes[i + 1 :]) for i in range(len(self.sizes)))

    @property
    def channel_step(self) -> int:
        """How far apart neighbouring channels of a place lie."""
        return 1 if self.x_last else math.prod(self.sizes)

    @property
    def y_shape(self) -> tuple[int, int]:
        """Of each of the parts."""
        return (self.rows, self.columns) if self.last else (self.N, self.rows)

    @property
    def whole(self) -> tuple[Dim, ...]:
        """The shape of y; its first dim is a symbol where only a run knows it."""
        return ("parts" if self.parts is None else self.parts, *self.y_shape)

    @property
    def product(self) -> LinearSpec:
        """The product of what the windows see with the weight of a group."""
        product = LinearSpec(
            ("parts" if self.parts is None else self.parts, self.rows), self.K, self.columns, self.dtype
        )
        return followed(biased(product) if self.bias else product, self.then, self.tensors)

    @property
    def name(self) -> str:
        """Of the function: equal for equal specs."""
        return f"conv_{hashlib.sha256(repr(self).encode()).hexdigest()[:10]}"


def slide(
    spec: WindowSpec, x: npt.NDArray[Any], w: npt.NDArray[Any], *more: npt.NDArray[Any]
) -> npt.NDArray[np.float64]:
    """The meaning of a spec in float64; `more` are the operands behind the weight."""
    images = np.asarray(x, np.float64)
    if spec.x_last:
        images = np.moveaxis(images.reshape(-1, *spec.sizes, spec.groups, spec.channels), (-2, -1), (1, 2))
    images = images.reshape(-1, spec.groups, spec.channels, *spec.sizes)
    if spec.pads:
        before, behind = spec.pads[: len(spec.sizes)], spec.pads[len(spec.sizes) :]
        images = np.pad(images, [(0, 0)] * 3 + list(zip(before, behind, strict=True)))
    every: Any = (slice(None),) * 3
    seen = np.empty((*images.shape[:3], *spec.kernel, *spec.places))
    for tap in itertools.product(*map(range, spec.kernel)):
        axes = zip(tap, spec.strides, spec.dilations, spec.places, strict=True)
        part: tuple[slice, ...] = tuple(slice(t * d, t * d + (n - 1) * s + 1, s) for t, s, d, n in axes)
        seen[(*every, *tap)] = images[(*every, *part)]
    seen = seen.reshape(*seen.shape[:2], spec.blocks, spec.channels // spec.blocks, *seen.shape[3:])
    if spec.x_last:
        seen = np.moveaxis(seen, 3, 3 + len(spec.kernel))
    panels = np.asarray(w, np.float64).reshape(spec.groups, spec.panels, spec.K, spec.panel)
    first = panels[:, :-1].transpose(0, 2, 1, 3).reshape(spec.groups, spec.K, -1)
    weight = np.concatenate([first, panels[:, -1, :, spec.panel - (spec.N - first.shape[2]) :]], axis=2)
    if spec.depthwise:
        rows = seen.reshape(len(images), spec.K, spec.N, spec.rows)
        made: npt.NDArray[np.float64] = np.einsum("iknp,gkn->igpn", rows, weight)
    else:
        rows = seen.reshape(*images.shape[:2], spec.blocks, spec.K, spec.rows)
        by_block = weight.reshape(spec.groups, spec.K, spec.blocks, -1)
        made = np.einsum("igbkp,gkbn->igpbn", rows, by_block).reshape(-1, spec.groups, spec.rows, spec.N)
    if spec.bias:
        made = made + np.asarray(more[0], np.float64)[:, None]
    if spec.x_last and spec.last:
        made = made.swapaxes(1, 2)
    y = (made if spec.last else made.swapaxes(2, 3)).reshape(-1, *spec.y_shape)
    return np.asarray(evaluate(spec.then, y, more[spec.bias :]), np.float64)

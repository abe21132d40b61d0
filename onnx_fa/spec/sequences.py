"""A convolution along one axis, whose length most often only a run knows, as of sounds and texts.

y[image, place, n] = b[n] + sum over taps and channels of x[image, at(place, tap), channel] w[tap, channel, n]
at(place, tap) = place * stride + tap * dilation - before

with zeros for what lies outside of x.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from onnx_fa.spec.expr import SCORE, ScoreExpr
from onnx_fa.spec.linear import LinearSpec, biased, check_epilogue, followed
from onnx_fa.spec.terms import Dim, FloatType, TensorArg
from onnx_fa.spec.windows import WindowSpec, slide


@dataclass(frozen=True)
class SequenceSpec:
    """`images` and `length` may be None: known at run time only. x is (images, length, groups * channels) and y (images, places,
    groups * N), all of `dtype`, with as many places as windows of `kernel` taps have of x with its `pads`, before and behind. The
    weight, its panels, the `bias`, `blocks` and `depthwise` are those of a WindowSpec whose channels come last, as is `then`,
    whose tensors are (groups * N,) or y's own.

    With `phases`, the columns of a place are as many places of y, behind each other: (images, places * phases, groups * N /
    phases).

    Raises ValueError where such a WindowSpec does, for pads below zero, and for phases that do not divide the columns, or of what
    becomes of sums."""

    images: int | None
    length: int | None
    groups: int
    channels: int
    N: int
    kernel: int
    stride: int
    dilation: int
    pads: tuple[int, int]
    panel: int
    bias: bool = False
    blocks: int = 1
    depthwise: bool = False
    then: ScoreExpr = SCORE
    tensors: tuple[TensorArg, ...] = ()
    phases: int = 1
    dtype: FloatType = "f32"

    def __post_init__(self) -> None:
        if min(self.pads) < 0:
            raise ValueError(f"pads of {self.pads}")
        if self.columns % self.phases or (self.phases > 1 and self.then != SCORE):
            raise ValueError(f"{self.phases} phases of {self.columns} columns")
        check_epilogue(self.then, self.tensors, [(self.columns,), self.whole])
        self.window(1)

    @property
    def columns(self) -> int:
        return self.groups * self.N

    @property
    def span(self) -> int:
        """Numbers along the axis that a window lies over."""
        return (self.kernel - 1) * self.dilation + 1

    @property
    def whole(self) -> tuple[Dim, ...]:
        """The shape of y, whose phases are columns still."""
        places: Dim = "places" if self.length is None else self.places(self.length)
        return ("images" if self.images is None else self.images, places, self.columns)

    @property
    def product(self) -> LinearSpec:
        """The product of what the windows see with the weight of a group."""
        one = self.window(1)
        product = LinearSpec(self.whole[:2], one.K, self.columns, self.dtype)
        return followed(biased(product) if self.bias else product, self.then, self.tensors)

    @property
    def name(self) -> str:
        """Of the function: equal for equal specs."""
        return f"conv_{hashlib.sha256(repr(self).encode()).hexdigest()[:10]}"

    def places(self, length: int) -> int:
        """Of a window along an x so long."""
        return max((length + sum(self.pads) - self.span) // self.stride + 1, 0)

    def line(self, length: int) -> WindowSpec:
        """The convolution of x so long as images of one line, with its pads; phases are columns still."""
        shape = self.whole if self.length is not None else ("parts", self.places(length), self.columns)
        return replace(
            self.window(1),
            sizes=(1, length),
            kernel=(1, self.kernel),
            strides=(1, self.stride),
            dilations=(1, self.dilation),
            pads=(0, self.pads[0], 0, self.pads[1]),
            tensors=tuple(replace(t, shape=shape) if len(t.shape) > 1 else t for t in self.tensors),
        )

    def window(self, places: int) -> WindowSpec:
        """The convolution of so many places, which reads no pads."""
        numbers = (places - 1) * self.stride + self.span
        tensors = tuple(
            TensorArg(("parts" if self.images is None else self.images, places, self.columns), t.dtype)
            if len(t.shape) > 1
            else t
            for t in self.tensors
        )
        return WindowSpec(
            self.images,
            self.groups,
            self.channels,
            self.N,
            (numbers,),
            (self.kernel,),
            (self.stride,),
            (self.dilation,),
            self.panel,
            self.bias,
            last=True,
            blocks=self.blocks,
            x_last=True,
            then=self.then,
            tensors=tensors,
            depthwise=self.depthwise,
            dtype=self.dtype,
            x_dtype=self.dtype,
        )


def slide_along(
    spec: SequenceSpec, x: npt.NDArray[Any], w: npt.NDArray[Any], *more: npt.NDArray[Any]
) -> npt.NDArray[np.float64]:
    """The meaning of a spec in float64; `more` are the operands behind the weight."""
    images, length, _ = x.shape
    places = spec.places(length)
    if not places or not images:
        return np.empty((images, places * spec.phases, spec.columns // spec.phases))
    window = spec.window(places)
    padded = np.pad(np.asarray(x, np.float64), [(0, 0), spec.pads, (0, 0)])[:, : window.sizes[0]]
    return slide(window, padded.reshape(images, -1), w, *more).reshape(images, places * spec.phases, -1)

"""Convolutions with channels last, as kernels of GPUs take them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from onnx_fa.spec.dtypes import NUMPY
from onnx_fa.spec.expr import SCORE, Apply, Float, Tensor
from onnx_fa.spec.sequences import SequenceSpec
from onnx_fa.spec.terms import TensorArg
from onnx_fa.spec.windows import WindowSpec

_RELU = Apply("Max", SCORE, Float(0.0))


def conv(
    channels: int,
    N: int,
    sizes: tuple[int, int],
    kernel: tuple[int, int],
    *,
    images: int | None = 2,
    groups: int = 1,
    strides: tuple[int, int] = (1, 1),
    dilations: tuple[int, int] = (1, 1),
    pads: tuple[int, ...] = (),
    bias: bool = False,
    depthwise: bool = False,
) -> WindowSpec:
    """One panel of all columns of a group."""
    return WindowSpec(
        images,
        groups,
        channels,
        N,
        sizes,
        kernel,
        strides,
        dilations,
        N,
        bias,
        last=True,
        x_last=True,
        depthwise=depthwise,
        pads=pads,
    )


_SQUARE = conv(16, 24, (6, 5), (3, 3), pads=(1, 1, 1, 1), bias=True)
GPU_CASES = {
    "padded": _SQUARE,
    "free images": replace(_SQUARE, images=None),
    "one image": replace(_SQUARE, images=1, bias=False),
    "colours": conv(3, 20, (9, 10), (3, 3), strides=(2, 2), pads=(1, 1, 0, 0), bias=True),
    "colours, seven": conv(3, 16, (11, 12), (7, 7), strides=(2, 2), pads=(3, 3, 3, 3)),
    "uneven": conv(20, 33, (7, 6), (2, 3), strides=(1, 2), pads=(0, 2, 1, 0)),
    "no pads": conv(16, 16, (6, 6), (3, 3), bias=True),
    "far apart": conv(16, 16, (9, 9), (3, 3), dilations=(2, 3), pads=(2, 3, 2, 3)),
    "one tap": conv(32, 16, (7, 7), (1, 1), strides=(2, 2)),
    "one line": conv(16, 16, (1, 9), (1, 3), pads=(0, 1, 0, 1)),
    "groups": conv(16, 20, (5, 6), (3, 3), groups=3, pads=(1, 1, 1, 1), bias=True),
    "narrow groups": conv(4, 6, (5, 6), (3, 3), groups=4, pads=(1, 1, 1, 1), bias=True),
    "pads of several windows": conv(16, 16, (2, 2), (3, 3), pads=(4, 4, 4, 4)),
    "depthwise": conv(24, 24, (6, 7), (3, 3), depthwise=True, pads=(1, 1, 1, 1), bias=True),
    "depthwise, apart": conv(40, 40, (9, 8), (5, 5), depthwise=True, strides=(2, 2), pads=(2, 1, 2, 2)),
    "depthwise, many taps": conv(16, 16, (7, 7), (7, 7), depthwise=True, images=None, pads=(3, 3, 3, 3)),
    "activation": replace(
        _SQUARE,
        then=Apply("Add", _RELU, Tensor(0)),
        tensors=(TensorArg((2, 30, 24)),),
    ),
    "depthwise, activation": replace(
        conv(24, 24, (6, 7), (3, 3), depthwise=True, pads=(1, 1, 1, 1), bias=True),
        then=Apply("Mul", SCORE, Tensor(0)),
        tensors=(TensorArg((24,)),),
    ),
    "halves": replace(_SQUARE, dtype="f16", x_dtype="f16"),
    "halves, activation": replace(
        _SQUARE,
        then=Apply("Add", _RELU, Tensor(0)),
        tensors=(TensorArg((2, 30, 24), "f16"),),
        dtype="f16",
        x_dtype="f16",
    ),
    "halves, depthwise": replace(
        conv(24, 24, (6, 7), (3, 3), depthwise=True, pads=(1, 1, 1, 1), bias=True), dtype="f16", x_dtype="f16"
    ),
    "sums of halves": replace(conv(24, 24, (6, 7), (1, 7), depthwise=True), x_dtype="f16"),
}


def sound(
    channels: int,
    N: int,
    taps: tuple[int, int, int, tuple[int, int]],
    *,
    sizes: tuple[int | None, int | None] = (None, None),
    groups: int = 1,
    bias: bool = False,
    depthwise: bool = False,
) -> SequenceSpec:
    """`taps`: kernel, stride, dilation and pads."""
    return SequenceSpec(*sizes, groups, channels, N, *taps, N, bias, depthwise=depthwise)


_SOUND = sound(16, 24, (3, 1, 1, (1, 1)), bias=True)
GPU_SOUNDS = {
    "padded": _SOUND,
    "of one image": replace(_SOUND, images=1),
    "known length": replace(_SOUND, length=12),
    "one channel": sound(1, 32, (10, 5, 1, (0, 0))),
    "strides": sound(32, 16, (3, 2, 1, (0, 0)), bias=True),
    "causal": sound(16, 16, (3, 1, 2, (4, 0)), bias=True),
    "far behind": sound(16, 16, (2, 3, 2, (0, 7))),
    "groups": sound(12, 12, (8, 1, 1, (4, 4)), groups=2, bias=True),
    "one column": sound(20, 1, (7, 1, 1, (3, 3)), bias=True),
    "depthwise": sound(24, 24, (5, 1, 1, (2, 2)), bias=True, depthwise=True),
    "phases": replace(sound(16, 12, (2, 1, 1, (1, 1)), bias=True), phases=2),
    "activation": replace(_SOUND, then=Apply("Add", _RELU, Tensor(0)), tensors=(TensorArg(("images", "places", 24)),)),
    "halves": replace(_SOUND, dtype="f16"),
}


def draw_sound(spec: SequenceSpec, seed: int = 0) -> list[Any]:
    """Operands of a spec, of two images and a length of 12 where only a run knows."""
    rng, images, length = np.random.default_rng(seed), spec.images or 2, spec.length or 12
    shapes: list[tuple[int, ...]] = [(images, length, spec.groups * spec.channels)]
    shapes += [(spec.groups, spec.window(1).K, spec.N)] + [(spec.groups, spec.N)] * spec.bias
    whole = (images, spec.places(length), spec.columns)
    shapes += [t.shape if len(t.shape) == 1 else whole for t in spec.tensors]  # type: ignore[misc]
    return [rng.standard_normal(shape).astype(NUMPY[spec.dtype]) for shape in shapes]


def draw_window(spec: WindowSpec, seed: int = 0, images: int = 2) -> list[Any]:
    """Operands of a spec, of so many images where only a run knows."""
    rng, images = np.random.default_rng(seed), spec.images or images
    shapes: list[tuple[int, ...]] = [(images, spec.numbers), (spec.groups * spec.panels, spec.K, spec.panel)]
    shapes += [(spec.groups, spec.N)] * spec.bias
    shapes += [t.shape if len(t.shape) == 1 else (images, *spec.y_shape) for t in spec.tensors]  # type: ignore[misc]
    types = [spec.x_dtype, *[spec.dtype] * (len(shapes) - 1)]
    return [rng.standard_normal(shape).astype(NUMPY[type_]) for shape, type_ in zip(shapes, types, strict=True)]

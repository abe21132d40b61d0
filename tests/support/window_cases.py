"""Convolutions with channels last, as kernels of GPUs take them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from onnx_fa.spec.expr import SCORE, Apply, Float, Tensor
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
}


def draw_window(spec: WindowSpec, seed: int = 0, images: int = 2) -> list[Any]:
    """Operands of a spec, in float32, of so many images where only a run knows."""
    rng, images = np.random.default_rng(seed), spec.images or images
    shapes: list[tuple[int, ...]] = [(images, spec.numbers), (spec.groups * spec.panels, spec.K, spec.panel)]
    shapes += [(spec.groups, spec.N)] * spec.bias
    shapes += [t.shape if len(t.shape) == 1 else (images, *spec.y_shape) for t in spec.tensors]  # type: ignore[misc]
    return [rng.standard_normal(shape).astype(np.float32) for shape in shapes]

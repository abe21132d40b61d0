"""What a norm of each channel over the places of a sequence takes from it (InstanceNormalization of sounds).

mean[image, c] = mean over places of x[image, place, c]
factor[image, c] = scale[c] / sqrt(mean over places of (x - mean)^2 + epsilon)

ONNX's operator, whose y is (x - mean) factor + bias: https://onnx.ai/onnx/operators/onnx__InstanceNormalization.html
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from onnx_fa.spec.terms import FloatType


@dataclass(frozen=True)
class ChannelSpec:
    """x is (images, length, channels) of `dtype`, of which `images` and `length` may be None: known at run time only. The scale is
    (channels,), and results are (images, 1, channels), both f32. Raises ValueError for no channels and an epsilon below zero."""

    images: int | None
    length: int | None
    channels: int
    epsilon: float
    dtype: FloatType = "f32"

    def __post_init__(self) -> None:
        if self.channels < 1 or self.epsilon < 0:
            raise ValueError(f"{self.channels} channels, epsilon {self.epsilon}")

    @property
    def name(self) -> str:
        """Of the function: equal for equal specs."""
        return f"channels_{hashlib.sha256(repr(self).encode()).hexdigest()[:10]}"


def measure_channels(
    spec: ChannelSpec, x: npt.NDArray[Any], scale: npt.NDArray[Any]
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """The meaning of a spec in float64."""
    wide = np.asarray(x, np.float64)
    mean = wide.mean(axis=1, keepdims=True)
    square = np.square(wide - mean).mean(axis=1, keepdims=True)
    return mean, np.asarray(scale, np.float64) / np.sqrt(square + spec.epsilon)

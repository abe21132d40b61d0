"""What a Resize weighs along one axis whose sizes are known, as onnxruntime does it, whose arithmetic is f32."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

Floats = np.ndarray[Any, np.dtype[np.float32]]
Places = np.ndarray[Any, np.dtype[np.int64]]
_NEAR = 1e-6
"""Some units of f32 in the last place."""
_ONE, _HALF = np.float32(1), np.float32(0.5)


@dataclass(frozen=True)
class ResizedAxis:
    """An axis of `size` elements that becomes one of `made`, by `scale`; `roi` is the part that "tf_crop_and_resize" takes. The
    others are attributes of the Resize."""

    size: int
    made: int
    scale: np.float32
    roi: tuple[np.float32, np.float32]
    how: str
    antialias: bool
    exclude_outside: bool
    cubic_a: np.float32

    @classmethod
    def same(cls, size: int) -> ResizedAxis:
        """One that stays as it is."""
        return cls(size, size, _ONE, (np.float32(0), _ONE), "half_pixel", False, False, np.float32(0))

    @property
    def is_same(self) -> bool:
        """Whether every element stays as it is; with a filter that is so for any axis as long as before."""
        return self.size == self.made and (self.antialias or bool(self.scale == 1))

    @property
    def outside(self) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """(made,): whether an element is taken from outside of the tensor, and is the extrapolation value for that."""
        if self.how != "tf_crop_and_resize":
            return np.zeros(self.made, np.bool_)
        x = self.coordinates()
        return (x < 0) | (x > self.size - 1)

    def coordinates(self) -> Floats:
        """(made,): where each element of the result lies in the tensor."""
        i, size, made = np.arange(self.made, dtype=np.float32), np.float32(self.size), np.float32(self.made)
        if self.scale == 1:
            return i
        match self.how:
            case "asymmetric":
                return i / self.scale
            case "tf_half_pixel_for_nn":
                return (i + _HALF) / self.scale
            case "align_corners":
                return i * (size - _ONE) / (made - _ONE) if self.made > 1 else np.zeros(1, np.float32)
            case "tf_crop_and_resize":
                low, high = self.roi
                if self.made == 1:
                    return np.full(1, _HALF * (low + high) * (size - _ONE), np.float32)
                return low * (size - _ONE) + i * (high - low) * (size - _ONE) / (made - _ONE)
            case "pytorch_half_pixel" if self.made == 1:
                return np.zeros(1, np.float32)
            case "half_pixel_symmetric":
                offset = size / np.float32(2) * (_ONE - made / (self.scale * size))
                return (offset + (i + 0.5) / np.float64(self.scale) - 0.5).astype(np.float32)
        return (i + _HALF) / self.scale - _HALF

    def nearest(self, rounding: str) -> Places:
        """(made,): the element that each of the result is, by its `nearest_mode`."""
        x = self.coordinates()
        whole = np.trunc(x)
        match rounding:
            case "floor":
                near = np.floor(x)
            case "ceil":
                near = np.ceil(x)
            case "round_prefer_ceil":
                near = _round(x)
            case _:
                near = np.where(x == whole + _HALF, whole, _round(x)).astype(np.float32)
        return near.astype(np.int64).clip(0, self.size - 1)

    def is_doubtful(self, rounding: str) -> bool:
        """Whether some place is so near to the middle or end of an element that another order of operations takes its neighbour."""
        if self.how != "half_pixel_symmetric" or self.scale * np.float32(self.size) == self.made:
            return False
        x = self.coordinates().astype(np.float64)
        edges = x if rounding in ("floor", "ceil") else x - 0.5
        return bool((np.abs(edges - np.rint(edges)) < _NEAR * np.maximum(np.abs(x), 1)).any())

    def neighbours(self) -> tuple[Places, Floats]:
        """(2, made) each: the two elements that linear interpolation makes one of, and what it weighs of them. At the end both are
        the last, and weigh a half: a weight of 0 would make NaN of an infinity."""
        x = self.coordinates().clip(0, self.size - 1)
        low = x.astype(np.int64)
        high = np.minimum(low + 1, self.size - 1)
        weights = [np.where(low == high, _HALF, np.abs(x - other.astype(np.float32))) for other in (high, low)]
        return np.stack([low, high]), np.stack(weights).astype(np.float32)

    def linear(self) -> Floats:
        """(made, size) weights."""
        if self.antialias:
            return self._filtered(1, lambda x: np.maximum(_ONE - np.abs(x), np.float32(0)))
        (low, high), (first, second) = self.neighbours()
        weights, rows = np.zeros((self.made, self.size), np.float32), np.arange(self.made)
        np.add.at(weights, (rows, low), first)
        np.add.at(weights, (rows, high), second)
        return weights

    def cubic(self) -> Floats:
        """(made, size) weights."""
        if self.antialias:
            return self._filtered(2, self._cubic)
        x = self.coordinates()
        first = np.floor(x)
        taps = first[:, None] + np.arange(-1, 3, dtype=np.float32)
        each: Floats = self._cubic(x[:, None] - taps)
        if self.exclude_outside:
            each[(taps < 0) | (taps >= self.size)] = 0
            total = each.sum(axis=1, keepdims=True)
            each /= np.where(total == 0, _ONE, total)
        weights = np.zeros((self.made, self.size), np.float32)
        np.add.at(weights, (np.arange(self.made)[:, None], taps.astype(np.int64).clip(0, self.size - 1)), each)
        return weights

    def _cubic(self, x: Floats) -> Floats:
        """Keys' kernel at a distance."""
        a, x = self.cubic_a, np.abs(x)
        near = ((a + 2) * x - (a + 3)) * x * x + 1
        far = ((a * x - 5 * a) * x + 8 * a) * x - 4 * a
        return np.where(x <= 1, near, np.where(x < 2, far, np.float32(0))).astype(np.float32)

    def _filtered(self, reach: int, kernel: Any) -> Floats:
        """(made, size) weights of a filter that is as wide as what it makes one element of."""
        narrow = min(self.scale, _ONE)
        support = np.float32(reach) / narrow
        center = self.coordinates() + _HALF
        first, last = np.floor(center - support + _HALF), np.floor(center + support + _HALF)
        weights = np.zeros((self.made, self.size), np.float32)
        for row, (middle, low, high) in enumerate(zip(center, first, last, strict=True)):
            taps = np.arange(low, high, dtype=np.float32)
            if self.exclude_outside:
                taps = taps[(taps >= 0) & (taps < self.size)]
            each = kernel((taps - middle + _HALF) * narrow)
            total = each.sum()
            np.add.at(weights[row], taps.astype(np.int64).clip(0, self.size - 1), each / total if total else each)
        return weights


def _round(x: Floats) -> Floats:
    """To the next whole number, from a half away from zero."""
    return np.trunc(x + np.copysign(_HALF, x))

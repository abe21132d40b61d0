"""Resize along axes whose sizes are known, where IREE refuses its attributes: a product with a constant matrix along each axis, or
a Gather of constant rows. IREE takes linear and cubic interpolation of images as torch has them, and nearest rows of some modes."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx import TensorProto

from onnx_fa.errors import ModelError
from onnx_fa.iree.legalise.resize_weights import ResizedAxis
from onnx_fa.iree.legalise.writer import NARROW, GraphWriter, attr_of

_CROP = "tf_crop_and_resize"
_FLOATS = (TensorProto.FLOAT, TensorProto.DOUBLE, *NARROW)
_IMAGE = 4
"""How many axes a tensor has whose last two IREE interpolates."""
_MOST = 1 << 24
"""Elements of a matrix; that of an axis of many is larger than what it multiplies."""
_NEAREST = ("half_pixel", "asymmetric")
_TORCH = ("half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric")
"""Coordinate transformations of nearest rows, and of interpolation, that IREE knows."""


def resize_known(g: GraphWriter, node: onnx.NodeProto) -> bool:
    """False where IREE takes the node as it is, of integers, and where matrices would be large. Where elements are weighed, what is
    not finite makes NaN of the others along its axes: zeros multiply it. Raises ModelError for attributes that IREE refuses over
    sizes that only a run knows, and where a file says another shape than onnxruntime gives."""
    axes, why = axes_of(g, node), _refused(g, node)
    if attr_of(node, "keep_aspect_ratio_policy", b"stretch") != b"stretch" and min(attr_of(node, "axes", [0])) < 0:
        raise ModelError(
            f"node {node.name!r}: Resize with a keep_aspect_ratio_policy and axes counted from the end, which onnxruntime leaves "
            "as they are; count them from the front"
        )
    check_sizes(g, node, axes or {})
    if not why:
        return False
    mode, hint = attr_of(node, "mode", b"nearest").decode(), node.name or "Resize"
    kind, shape = g.kind(node.input[0]), g.shape(node.input[0]) or []
    if axes is None:
        if why in ("mode", "rank"):
            return False
        raise ModelError(
            f"node {node.name!r}: Resize with {why}, which IREE does not know, over sizes that only a run knows; give them (--dim)"
        )
    if mode != "nearest" and (
        kind not in _FLOATS or max((a.made * a.size for a in axes.values() if not a.is_same), default=0) > _MOST
    ):
        return False
    x = node.input[0]
    if all(axis.size == axis.made for axis in axes.values()):  # onnxruntime copies it, whatever the scales
        g.add("Identity", [x], hint, out=node.output[0])
        return True
    wide = TensorProto.DOUBLE if kind == TensorProto.DOUBLE else TensorProto.FLOAT
    if mode != "nearest":
        x = g.cast(x, kind, wide, hint)
    changed = [(place, axis) for place, axis in axes.items() if not axis.is_same]
    for place, axis in sorted(changed, key=lambda each: each[1].made / each[1].size):
        if mode == "nearest":
            rounding = attr_of(node, "nearest_mode", b"round_prefer_floor").decode()
            if axis.is_doubtful(rounding):
                raise ModelError(
                    f'node {node.name!r}: Resize of mode "nearest" by "half_pixel_symmetric", where two rows are as near as f32 '
                    "can tell"
                )
            rows = axis.nearest(rounding)
            x = g.add("Gather", [x, g.const(rows, hint)], hint, axis=place)
        else:
            matrix = axis.linear() if mode == "linear" else axis.cubic()
            x = _weigh(
                g, x, matrix.astype(np.float64 if wide == TensorProto.DOUBLE else np.float32), place, len(shape), hint
            )
    if mode != "nearest":
        x = g.cast(x, wide, kind, hint)
    for place, axis in axes.items():
        if axis.outside.any():
            mask = axis.outside.reshape([-1 if i == place else 1 for i in range(len(shape))])
            value = g.scalar(attr_of(node, "extrapolation_value", 0.0), kind, hint)
            x = g.add("Where", [g.const(mask, hint), value, x], hint)
    g.add("Identity", [x], hint, out=node.output[0])
    return True


def _refused(g: GraphWriter, node: onnx.NodeProto) -> str:
    """What IREE refuses of a Resize in words; "mode" or "rank" where that depends on sizes too, and "" for what it takes."""
    mode, how = (
        attr_of(node, name, default).decode()
        for name, default in (("mode", b"nearest"), ("coordinate_transformation_mode", b"half_pixel"))
    )
    for name in ("antialias", "exclude_outside"):
        if attr_of(node, name, 0):
            return name
    if how == _CROP:
        return f'coordinates by "{how}"'
    if attr_of(node, "keep_aspect_ratio_policy", b"stretch") != b"stretch":
        return "a keep_aspect_ratio_policy"
    if mode == "nearest":
        return "" if how in _NEAREST else "mode"
    if mode == "cubic" and attr_of(node, "cubic_coeff_a", -0.75) != -0.75:
        return "a cubic_coeff_a"
    shape = g.shape(node.input[0])
    return "" if shape is None or (len(shape) == _IMAGE and how in _TORCH) else "rank"


def axes_of(g: GraphWriter, node: onnx.NodeProto) -> dict[int, ResizedAxis] | None:
    """By their places those that it resizes, with onnxruntime's scales and sizes; None where only a run knows these. onnxruntime
    interpolates along no first axis."""
    shape, told = g.shape(node.input[0]), g.shape(node.output[0])
    if shape is None:
        return None
    places = [axis % len(shape) for axis in attr_of(node, "axes", range(len(shape)))]
    names = [*node.input[1:], "", "", ""][:3]
    roi, by, to = (_numbers(g, name) for name in names)
    how = attr_of(node, "coordinate_transformation_mode", b"half_pixel").decode()
    wanted: list[int | str | None] = [None] * len(places)
    if names[2]:  # sizes; where these are computed, what is known of the result
        dims = told or [None] * len(shape)
        wanted = [int(n) for n in to] if to is not None else [dims[place] for place in places]
    given = (roi if how == _CROP else np.zeros(2 * len(places), np.float32), wanted if names[2] else by)
    if any(numbers is None for numbers in given) or [len(n) for n in given if n is not None] != [
        2 * len(places),
        len(places),
    ]:
        return None
    policy = attr_of(node, "keep_aspect_ratio_policy", b"stretch") if names[2] else b"stretch"
    scales: dict[int, np.float32] = {}
    for i, place in enumerate(places):
        size, want = shape[place], wanted[i]
        if isinstance(size, int) and size > 0 and (by is not None or isinstance(want, int)):
            scales[i] = by[i] if by is not None else np.float32(want) / np.float32(size)
        elif policy != b"stretch" or not (by[i] == 1 if by is not None else _stays(node, place, size, want)):
            return None
    if policy != b"stretch":
        one = (min if policy == b"not_larger" else max)(scales.values())
        scales = dict.fromkeys(scales, one)
    axes = {}
    for i, scale in scales.items():
        size, want = shape[places[i]], wanted[i]
        assert isinstance(size, int)
        exact = scale * np.float32(size)
        made = want if isinstance(want, int) else int(exact)
        if policy != b"stretch":
            made = int(np.floor(exact + np.float32(0.5)))
        if made < 1:
            return None
        axes[places[i]] = ResizedAxis(
            size,
            made,
            scale,
            (np.float32(0), np.float32(1)) if roi is None or how != _CROP else (roi[i], roi[i + len(places)]),
            how,
            bool(attr_of(node, "antialias", 0)),
            bool(attr_of(node, "exclude_outside", 0)),
            np.float32(attr_of(node, "cubic_coeff_a", -0.75)),
        )
    return axes


def _stays(node: onnx.NodeProto, place: int, size: int | str | None, want: int | str | None) -> bool:
    """Whether an axis of free size stays as it is."""
    first = place == 0 and not isinstance(want, int) and attr_of(node, "mode", b"nearest") != b"nearest"
    return first or (size is not None and size == want)


def _numbers(g: GraphWriter, name: str) -> np.ndarray[Any, np.dtype[np.float32]] | None:
    """The elements of a constant; None for what is none, and for an input that is left out."""
    found = g.array(name) if name else None
    return None if found is None or not found.size else found.astype(np.float32).ravel()


def check_sizes(g: GraphWriter, node: onnx.NodeProto, axes: dict[int, ResizedAxis]) -> None:
    told = g.shape(node.output[0])
    for place, axis in axes.items():
        if told is not None and isinstance(told[place], int) and told[place] != axis.made:
            raise ModelError(
                f"node {node.name!r}: Resize whose axis {place} the file says becomes {told[place]} long, and onnxruntime "
                f"{axis.made}; give it sizes"
            )


def _weigh(g: GraphWriter, x: str, matrix: np.ndarray[Any, Any], place: int, rank: int, hint: str) -> str:
    """The product of a (made, size) matrix and x along an axis."""
    if place == rank - 2:
        return g.add("MatMul", [g.const(matrix, hint), x], hint)
    last = [*(i for i in range(rank) if i != place), place]
    if place != rank - 1:
        x = g.add("Transpose", [x], hint, perm=last)
    x = g.add("MatMul", [x, g.const(np.ascontiguousarray(matrix.T), hint)], hint)
    return x if place == rank - 1 else g.add("Transpose", [x], hint, perm=[last.index(i) for i in range(rank)])

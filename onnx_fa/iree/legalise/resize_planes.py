"""Resize of images along axes whose sizes are known, nearest or linear, as one node that becomes a call of a kernel for CPUs
(kernels/cpu/resample.py). IREE computes the coordinates anew for each element, and reads its four neighbours one by one. And one
that leaves all sizes as they are, which is nothing."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

from onnx_fa.graph.site_op import DOMAIN
from onnx_fa.iree.legalise.resize_known import axes_of, check_sizes
from onnx_fa.iree.legalise.resize_weights import Places, ResizedAxis
from onnx_fa.iree.legalise.writer import NARROW, GraphWriter, attr_of
from onnx_fa.kernels.cpu.resample import ENOUGH, WIDEST, ResampledPlanes
from onnx_fa.spec.terms import Dim

RESAMPLED_PLANES = f"{DOMAIN}.ResampledPlanes"
"""Inputs as a ResampledPlanes has its operands, attributes its `to_height` and, flat, `at`."""
_IMAGE, _SEQUENCE = 4, 3
"""Axes of a batch of images, and of sequences, which are images of one row."""
_CROP = b"tf_crop_and_resize"


def resize_planes(g: GraphWriter, node: onnx.NodeProto) -> bool:
    """False for what is no such Resize, and where sizes along more than one of the other axes are free. Raises ModelError where
    a file says another shape than onnxruntime gives."""
    mode = attr_of(node, "mode", b"nearest")
    plain = attr_of(node, "coordinate_transformation_mode", b"half_pixel") != _CROP and not attr_of(
        node, "antialias", 0
    )
    if not plain or attr_of(node, "keep_aspect_ratio_policy", b"stretch") != b"stretch":
        return False
    shape, axes = g.shape(node.input[0]), axes_of(g, node)
    if shape is None or axes is None or not axes:
        return False
    check_sizes(g, node, axes)
    if all(axis.size == axis.made for axis in axes.values()):  # onnxruntime copies it, whatever the scales
        g.add("Identity", [node.input[0]], node.name or "Resize", out=node.output[0])
        return True
    if mode == b"cubic" or g.cpu is None or g.cpu.kernels != "auto":
        return False
    both = _both(shape, axes, g.kind(node.input[0]), linear=mode == b"linear")
    rounding = attr_of(node, "nearest_mode", b"round_prefer_floor").decode()
    if both is None or (mode == b"nearest" and any(axis.is_doubtful(rounding) for axis in both)):
        return False
    _write(g, node, both, rounding if mode == b"nearest" else "")
    return True


def resampled_planes_of(operands: Sequence[tuple[Dim, ...]], attributes: Mapping[str, Any]) -> ResampledPlanes:
    """The kernel of a ResampledPlanes whose operands have these shapes."""
    (planes, *sizes), (runs, _), (parts,), (taps, to_width), *_ = operands
    height, width, taps, to_width, runs, parts = (
        size for size in (*sizes, taps, to_width, runs, parts) if isinstance(size, int)
    )
    at = np.array(attributes["at"]).reshape(taps, to_width).tolist()
    count = planes if isinstance(planes, int) else None
    return ResampledPlanes(count, height, width, attributes["to_height"], tuple(map(tuple, at)), runs, parts - 1)


def _both(
    shape: list[int | str | None], axes: dict[int, ResizedAxis], kind: int, *, linear: bool
) -> tuple[ResizedAxis, ResizedAxis] | None:
    """Those of the planes, if the others stay as they are. Floats of 16 bits are f32 between the neighbours that they are made of;
    repeated they stay the compiler's."""
    lead = len(shape) - (2 if len(shape) == _IMAGE else 1)
    kinds = (TensorProto.FLOAT, *NARROW) if linear else (TensorProto.FLOAT,)
    free = sum(not isinstance(size, int) for size in shape[:lead])
    if len(shape) not in (_SEQUENCE, _IMAGE) or kind not in kinds or free > 1 or 0 in shape:
        return None
    if any(place < lead and not axis.is_same for place, axis in axes.items()):
        return None
    found = []
    for place in range(lead, len(shape)):
        size = shape[place]
        axis = axes.get(place) or (ResizedAxis.same(size) if isinstance(size, int) else None)
        if axis is None:
            return None
        found.append(axis)
    down, across = [ResizedAxis.same(1), *found][-2:]
    return None if across.made > WIDEST else (down, across)


def _write(g: GraphWriter, node: onnx.NodeProto, both: tuple[ResizedAxis, ResizedAxis], rounding: str) -> None:
    """Linear without a `rounding`."""
    hint, kind, shape = node.name or "Resize", g.kind(node.input[0]), g.shape(node.input[0])
    assert shape is not None
    down, across = both
    lead = shape[: len(shape) - (2 if len(shape) == _IMAGE else 1)]
    planes = (
        math.prod(size for size in lead if isinstance(size, int)) if all(isinstance(d, int) for d in lead) else None
    )
    if rounding:
        rows, columns = (axis.nearest(rounding)[None] for axis in both)
    else:
        (rows, down_by), (columns, across_by) = (axis.neighbours() for axis in both)
    runs, parts = _runs(rows, across.made)
    x = g.cast(node.input[0], kind, TensorProto.FLOAT, hint)
    inputs = [g.reshape(x, [-1 if planes is None else planes, down.size, across.size], hint)]
    tables: list[np.ndarray[Any, Any]] = [runs, parts, columns.astype(np.int32)]
    if not rounding:
        tables += [across_by, np.ascontiguousarray(down_by.T)]
    inputs += [g.const(table, hint) for table in tables]
    y = g.fresh(hint)
    name = g.fresh(f"{hint}/ResampledPlanes")
    more: dict[str, Any] = {"to_height": down.made, "at": columns.ravel().tolist()}
    g.nodes.append(helper.make_node("ResampledPlanes", inputs, [y], name, domain=DOMAIN, **more))
    g.typed(y, TensorProto.FLOAT, ["planes" if planes is None else planes, down.made, across.made])
    made = [down.made, across.made] if len(shape) == _IMAGE else [across.made]
    whole = [size if isinstance(size, int) else -1 for size in lead]
    y = g.reshape(y, [*whole, *made], hint)
    g.cast(y, TensorProto.FLOAT, kind, hint, out=node.output[0])


def _runs(rows: Places, width: int) -> tuple[np.ndarray[Any, np.dtype[np.int32]], np.ndarray[Any, np.dtype[np.int32]]]:
    """The runs of (taps, made) rows of x, and where those of each part begin, and end (kernels/cpu/resample.py); `width` is that of
    a row of the result. What a part finds of x before its first run is nothing."""
    taps, made = rows.shape
    each = max(1, ENOUGH // width)  # rows of a part, about
    count = max(1, made // each)
    bounds = [made * part // count for part in range(count + 1)]
    runs, parts = list[list[int]](), [0]
    for first, end in itertools.pairwise(bounds):
        there = [-1] * taps
        starts = [r for r in range(first, end) if r == first or (rows[:, r] != rows[:, r - 1]).any()]
        for start, stop in zip(starts, [*starts[1:], end], strict=True):
            wanted = [int(row) for row in rows[:, start]]
            new = []
            for row in wanted:
                slot = row % taps
                new.append(int(there[slot] != row))
                there[slot] = row
            runs.append([*wanted, *new, start, stop])
        parts.append(len(runs))
    return np.array(runs, np.int32), np.array(parts, np.int32)

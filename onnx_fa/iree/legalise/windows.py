"""Windows that IREE does not take as they are (docs/developer/iree-bugs.md).

Of which an axis has a single place and that leave rows over: IREE takes all rows for the window's own, which is silently wrong
where the batch is free, and else refused. The rows that no window reads are taken away. And of integers, with other pads before an
axis than behind it: they become a Pad with x's zero point in front, before opset 11 of the floats that x less that is."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
from onnx import TensorProto, helper

from onnx_fa.errors import ModelError
from onnx_fa.graph.ops import op_of
from onnx_fa.iree.legalise.casts import add_cast
from onnx_fa.iree.legalise.conv_shapes import pads_of
from onnx_fa.iree.legalise.writer import GraphWriter, attr_of, copy_without

_PAD_OPSET = 11
"""The first opset whose Pad takes integers."""
_X_ZERO = 2
"""Which input of convolutions of integers is x's zero point."""
_WEIGHTS = {"Conv": 1, "ConvInteger": 1, "QLinearConv": 3}
"""Which input has the windows' sizes, where no attribute has them."""


def trim_rows(g: GraphWriter, node: onnx.NodeProto) -> onnx.NodeProto | None:
    """The node with fewer pads at the end, on a Slice of its input where these are not enough; None where it leaves nothing over
    along an axis with one window, or its sizes are not known."""
    shape, kernel = g.shape(node.input[0]), _kernel_of(g, node)
    if shape is None or not kernel or len(shape) != len(kernel) + 2 or attr_of(node, "ceil_mode", 0):
        return None
    axes = len(kernel)
    strides, dilations = attr_of(node, "strides", [1] * axes), attr_of(node, "dilations", [1] * axes)
    pads = list(attr_of(node, "pads", [0] * 2 * axes))
    same = attr_of(node, "auto_pad", b"NOTSET").startswith(b"SAME")
    cut: dict[int, int] = {}
    changed = False
    for i, (size, width) in enumerate(zip(shape[2:], kernel, strict=True)):
        if not isinstance(size, int) or not isinstance(width, int):
            continue
        reach = (width - 1) * dilations[i] + 1
        if same and (size < reach or size > strides[i]):
            continue  # padded to the last window's end, no further
        left = size + pads[i] + pads[axes + i] - reach
        if not 0 < left < strides[i]:
            continue
        changed = True
        take = min(left, pads[axes + i])
        pads[axes + i] -= take
        if left > take:
            cut[i + 2] = size - (left - take)
    if not changed or any(end <= 0 for end in cut.values()) or (same and any(pads)):
        return None
    made = onnx.NodeProto()
    made.CopyFrom(node)
    if cut:
        hint = node.name or node.op_type
        starts, ends, where = ([0] * len(cut), list(cut.values()), list(cut))
        if g.opset < 10:  # attributes until then
            made.input[0] = g.add("Slice", [node.input[0]], hint, starts=starts, ends=ends, axes=where)
        else:
            numbers = [g.const(np.array(values, np.int64), hint) for values in (starts, ends, where)]
            made.input[0] = g.add("Slice", [node.input[0], *numbers], hint)
    if not same:
        _set_pads(made, pads)
    return made


def window(g: GraphWriter, node: onnx.NodeProto) -> bool:
    """A pool, or a convolution of integers that stays one. Raises ModelError where a last window may begin behind the input."""
    shorter = _without_last(g, node)
    exact = _without_ceil(g, shorter or node) or shorter
    if exact is None:
        _check_last(g, node)
    node = exact or node
    if op_of(node) == "AveragePool" and attr_of(node, "ceil_mode", 0) and attr_of(node, "count_include_pad", 0):
        return _count_pads(g, node)
    trimmed = trim_rows(g, node)
    made = _pad_apart(g, node if trimmed is None else trimmed) or trimmed or exact
    if made is not None:
        g.nodes.append(made)
    return made is not None


def _without_last(g: GraphWriter, node: onnx.NodeProto) -> onnx.NodeProto | None:
    """The pool with fewer pads at the end of axes of static size, where the last window that a ceil_mode adds would begin behind
    the input, and is none; None where no such axis is known. IREE makes one."""
    shape, kernel = g.shape(node.input[0]), _kernel_of(g, node)
    if not attr_of(node, "ceil_mode", 0) or not shape or not kernel or len(shape) != len(kernel) + 2:
        return None
    axes = len(kernel)
    strides, dilations = attr_of(node, "strides", [1] * axes), attr_of(node, "dilations", [1] * axes)
    pads, changed = list(attr_of(node, "pads", [0] * 2 * axes)), False
    for i, (size, width) in enumerate(zip(shape[2:], kernel, strict=True)):
        if not isinstance(size, int) or not isinstance(width, int):
            continue
        rows = size + pads[i] + pads[axes + i] - (width - 1) * dilations[i] - 1
        left = rows % strides[i]
        if left and left <= pads[axes + i] and (rows // strides[i] + 1) * strides[i] >= size + pads[i]:
            pads[axes + i] -= left
            changed = True
            check_places(g, node, i, rows // strides[i] + 1)
    if not changed:
        return None
    made = copy_without(node)
    _set_pads(made, pads)
    return made


def check_same(node: onnx.NodeProto) -> None:
    """Raises ModelError for an auto_pad of windows that onnxruntime pads otherwise than onnx says: with dilations, which it leaves
    out, or further apart than they reach, where its pads are negative."""
    kernel = attr_of(node, "kernel_shape", [])
    apart = any(s > k for s, k in zip(attr_of(node, "strides", [1] * len(kernel)), kernel, strict=True))
    if attr_of(node, "auto_pad", b"NOTSET").startswith(b"SAME") and (apart or max(attr_of(node, "dilations", [1])) > 1):
        why = "strides longer than its kernel" if apart else "dilations"
        raise ModelError(
            f"node {node.name!r}: {op_of(node)} with {why} and an auto_pad, which onnx and onnxruntime read differently; give it "
            "pads"
        )


def check_places(g: GraphWriter, node: onnx.NodeProto, axis: int, count: int) -> None:
    """Raises ModelError where onnx infers another number of windows along an axis of an image than onnxruntime makes; the importer
    goes by onnx's."""
    told = g.shape(next(name for name in node.output if name)) or []
    if axis + 2 < len(told) and isinstance(told[axis + 2], int) and told[axis + 2] != count:
        raise ModelError(
            f"node {node.name!r}: {op_of(node)} with ceil_mode, of which onnx makes {told[axis + 2]} windows along axis {axis + 2} "
            f"and onnxruntime {count}: the last begins behind the input; take it off by less pads"
        )


def _without_ceil(g: GraphWriter, node: onnx.NodeProto) -> onnx.NodeProto | None:
    """The pool without a ceil_mode whose windows end where its input does; None where they do not, or nobody knows. Of a free batch
    IREE forgets to divide such means."""
    shape, kernel = g.shape(node.input[0]), _kernel_of(g, node)
    if not attr_of(node, "ceil_mode", 0) or not shape or not kernel or len(shape) != len(kernel) + 2:
        return None
    axes = len(kernel)
    strides, dilations = attr_of(node, "strides", [1] * axes), attr_of(node, "dilations", [1] * axes)
    pads = attr_of(node, "pads", [0] * 2 * axes)
    for i, (size, width) in enumerate(zip(shape[2:], kernel, strict=True)):
        if not isinstance(size, int) or not isinstance(width, int):
            return None
        if (size + pads[i] + pads[axes + i] - (width - 1) * dilations[i] - 1) % strides[i]:
            return None
    return copy_without(node, "ceil_mode")


def _check_last(g: GraphWriter, node: onnx.NodeProto) -> None:
    """With a ceil_mode, ONNX leaves out a last window that begins behind the input; IREE knows of none where sizes are free."""
    shape, kernel = g.shape(node.input[0]), _kernel_of(g, node)
    if not attr_of(node, "ceil_mode", 0) or not shape or not kernel or len(shape) != len(kernel) + 2:
        return
    axes = len(kernel)
    strides, dilations = attr_of(node, "strides", [1] * axes), attr_of(node, "dilations", [1] * axes)
    pads = attr_of(node, "pads", [0] * 2 * axes)
    for i, (size, width) in enumerate(zip(shape[2:], kernel, strict=True)):
        if isinstance(size, int) or not isinstance(width, int):
            continue
        if strides[i] - 1 + pads[axes + i] >= (width - 1) * dilations[i] + 1:
            raise ModelError(
                f"node {node.name!r}: {op_of(node)} with ceil_mode over a free size, whose last window may begin behind the "
                "input, which IREE does not see; give the size (--dim)"
            )


def _count_pads(g: GraphWriter, node: onnx.NodeProto) -> bool:
    """A mean that counts its pads, but not what its last window has behind them, as IREE does: on an input that has them."""
    kernel = _kernel_of(g, node) or []
    pads = list(attr_of(node, "pads", [0] * 2 * len(kernel)))
    if attr_of(node, "auto_pad", b"NOTSET") not in (b"NOTSET", b"VALID") or g.opset < _PAD_OPSET:
        return False
    made = copy_without(node, "pads", "auto_pad", "count_include_pad")
    if any(pads):
        hint, axes = node.name or "AveragePool", len(kernel)
        both = [0, 0, *pads[:axes], 0, 0, *pads[axes:]]
        made.input[0] = g.add("Pad", [node.input[0], g.ints(both, hint)], hint)
    g.nodes.append(made)
    return True


def _pad_apart(g: GraphWriter, node: onnx.NodeProto) -> onnx.NodeProto | None:
    """A convolution of integers without pads behind a Pad of its x; None where those before and behind each axis are equal, or not
    known."""
    if op_of(node) not in ("ConvInteger", "QLinearConv"):
        return None
    x = node.input[0]
    shape, kernel = g.shape(x), _kernel_of(g, node)
    if shape is None or not kernel or len(shape) != len(kernel) + 2:
        return None
    axes = len(kernel)
    strides, dilations = attr_of(node, "strides", [1] * axes), attr_of(node, "dilations", [1] * axes)
    known = all(isinstance(n, int) for n in (*shape[2:], *kernel))
    if not known and attr_of(node, "auto_pad", b"NOTSET").startswith(b"SAME"):
        return None
    pads = pads_of(node, shape[2:], kernel, strides, dilations)  # type: ignore[arg-type]  # sizes, where they are read
    if pads[:axes] == pads[axes:]:
        return None
    hint = node.name or node.op_type
    zero = (*node.input, "")[_X_ZERO]
    both = [0, 0, *pads[:axes], 0, 0, *pads[axes:]]
    made = onnx.NodeProto()
    made.CopyFrom(node)
    made.input[0] = (_pad_floats if g.opset < _PAD_OPSET else _pad_integers)(g, x, zero, both, hint)
    _set_pads(made, [0] * 2 * axes)
    return made


def _pad_integers(g: GraphWriter, x: str, zero: str, pads: Sequence[int], hint: str) -> str:
    """x with its zero point around it."""
    return g.add("Pad", [x, g.ints(pads, hint), *([g.reshape(zero, [], hint)] if zero else [])], hint)


def _pad_floats(g: GraphWriter, x: str, zero: str, pads: Sequence[int], hint: str) -> str:
    """The same by way of f32, which holds every integer of 8 bits and every difference of two."""
    kind = g.kind(x)
    number = g.cast(x, kind, TensorProto.FLOAT, hint)
    zero = g.cast(zero, kind, TensorProto.FLOAT, hint) if zero else ""
    if zero:
        number = g.add("Sub", [number, zero], hint)
    number = g.add("Pad", [number], hint, pads=pads)
    if zero:
        number = g.add("Add", [number, zero], hint)
    return add_cast(g, number, TensorProto.FLOAT, kind, hint)


def _kernel_of(g: GraphWriter, node: onnx.NodeProto) -> Sequence[int | str | None] | None:
    """The sizes of a window, by an attribute or else by the weight; None where neither says them."""
    kernel = attr_of(node, "kernel_shape", None)
    if kernel is None and op_of(node) in _WEIGHTS:
        weight = g.shape(node.input[_WEIGHTS[op_of(node)]])
        kernel = None if weight is None else weight[2:]
    return kernel  # type: ignore[no-any-return]  # an attribute's numbers, or dims


def _set_pads(node: onnx.NodeProto, pads: Sequence[int]) -> None:
    kept = [a for a in node.attribute if a.name not in ("pads", "auto_pad")]
    del node.attribute[:]
    node.attribute.extend([*kept, helper.make_attribute("pads", pads)])

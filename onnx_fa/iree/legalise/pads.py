"""Pads that IREE does not compute (docs/developer/iree-bugs.md). Negative ones come out wrong without a word: what they take away
is cut off before, as onnxruntime does it. Mode "wrap" never ends: it becomes a Gather. Mode "reflect" is refused where an axis of
known size gets two rows or more, and along two axes where any is free, by numbers that only a run knows, and takes a free axis that
gets more than one for one of a few rows: an axis after another gets copies of its rows. So it does of mode "edge", refused
along other axes than the last ones, and of some types."""

from __future__ import annotations

import numpy as np
import onnx

from onnx_fa.errors import ModelError
from onnx_fa.graph.ops import op_of
from onnx_fa.iree.legalise.writer import GraphWriter, attr_of

Pads = np.ndarray[tuple[int, ...], np.dtype[np.int64]]
_END = (1 << 31) - 1
_PAD_OPSET = 11
"""The first opset whose Pad takes its pads as an input."""


def pad(g: GraphWriter, node: onnx.NodeProto) -> bool:
    """A Slice for the negative pads, and a Pad or, of mode "wrap", Gathers for the others. Raises ModelError for "wrap" of an axis
    whose size or pads only a run knows."""
    pads = _pads(g, node)
    wraps = attr_of(node, "mode", b"constant") == b"wrap"
    if wraps and pads is None:
        raise ModelError(
            f'node {node.name!r}: Pad of mode "wrap" with pads that only a run knows: iree-compile does not end'
        )
    if pads is None:
        return _gather_of_run(g, node)
    named = [int(a) for a in _array(g, node, 3, np.arange(len(pads) // 2))]
    if wraps:
        _wrap(g, node, pads, named)
    elif (pads < 0).any():
        _cut_then_pad(g, node, pads, named)
    else:
        return _copy_rows(g, node, node.input[0], pads, named)
    return True


def _copy_rows(g: GraphWriter, node: onnx.NodeProto, x: str, pads: Pads, named: list[int]) -> bool:
    """Modes "reflect" and "edge" of x, the node's operand without what negative pads take away: an axis after another, with the
    rows of a known axis by Gathers, of a free one too but for one on each side. Where onnxruntime refuses the pads the node
    stays."""
    shape, said, mode = g.shape(node.input[0]), _pads(g, node), attr_of(node, "mode", b"constant")
    if mode not in (b"reflect", b"edge") or shape is None or said is None:
        return False
    cut = np.minimum(said, 0).reshape(2, -1).sum(axis=0)
    both = [(axis % len(shape), int(low), int(high)) for axis, low, high in zip(named, *np.split(pads, 2), strict=True)]
    sizes = {a: d + int(c) if isinstance(d := shape[a], int) else None for (a, *_), c in zip(both, cut, strict=True)}
    both = [(axis, low, high) for axis, low, high in both if low or high]
    many = [max(low, high) if mode == b"reflect" else 0 for _, low, high in both]
    if not both or any((n := sizes[axis]) is not None and k >= n for (axis, *_), k in zip(both, many, strict=True)):
        return False
    if g.opset < _PAD_OPSET and None in [sizes[axis] for axis, *_ in both]:
        return False
    hint, last = node.name or "Pad", both[-1][0]
    for axis, low, high in both:
        out, where = node.output[0] if axis == last else None, (axis, sizes[axis], len(shape))
        x = _copy_rows_along(g, x, where, (low, high), hint, out, is_edge=mode == b"edge")
    return True


def _copy_rows_along(
    g: GraphWriter,
    x: str,
    where: tuple[int, int | None, int],
    pads: tuple[int, int],
    hint: str,
    out: str | None,
    *,
    is_edge: bool,
) -> str:
    """`where`: the axis, its size, and how many axes there are."""
    (axis, size, rank), (low, high) = where, pads
    if size is None and low == high == 1 and not is_edge:
        one = np.zeros((2, rank), np.int64)
        one[:, axis] = pads
        return g.add("Pad", [x, g.const(one.ravel(), hint)], hint, out=out, mode="reflect")
    length = g.reshape(g.size(x, axis, hint), [1], hint) if size is None else ""

    def copied(rows: np.ndarray[tuple[int], np.dtype[np.int64]], *, from_end: bool) -> list[str]:
        """The rows at those places, counted from the axis's begin or its end."""
        if not len(rows):
            return []
        at = g.const(size - rows if size is not None and from_end else rows, hint)
        # Nothing beside x is read where there are too few rows, which onnxruntime refuses.
        if size is None and from_end:
            at = g.add("Max", [g.add("Sub", [length, at], hint), g.ints([0], hint)], hint)
        elif size is None:
            at = g.add("Min", [at, g.add("Sub", [length, g.ints([1], hint)], hint)], hint)
        return [g.add("Gather", [x, at], hint, axis=axis)]

    first, last = (np.zeros(low), np.ones(high)) if is_edge else (np.arange(low, 0, -1), 2 + np.arange(high))
    before, behind = (copied(rows.astype(np.int64), from_end=rows is last) for rows in (first, last))
    return g.add("Concat", [*before, x, *behind], hint, out=out, axis=axis)


def parts_of(g: GraphWriter, node: onnx.NodeProto) -> list[int | str] | None:
    """A Pad's numbers, those before every axis and then those behind: known ones, and the names of those of the run, of one element
    each. None where it is not known which are which, or which axes they are of."""
    if len(node.input) < 2 or any(node.input[3:]):
        return None
    pads, maker = g.array(node.input[1]), g.maker(node.input[1])
    if pads is not None:
        return [int(n) for n in pads]
    if maker is None or op_of(maker) != "Concat":
        return None
    arrays = [g.array(name) for name in maker.input]
    if any(a is None and g.shape(name) != [1] for a, name in zip(arrays, maker.input, strict=True)):
        return None
    found = list[int | str]()
    for a, name in zip(arrays, maker.input, strict=True):
        found += [name] if a is None else [int(n) for n in a]
    return found


def _gather_of_run(g: GraphWriter, node: onnx.NodeProto) -> bool:
    """Modes "reflect" and "edge" by numbers of which only a run knows some: an axis after another by a Gather of all its rows."""
    mode = attr_of(node, "mode", b"constant")
    parts = parts_of(g, node) if mode in (b"reflect", b"edge") else None
    if parts is None or any(isinstance(n, int) and n < 0 for n in parts):
        return False
    half, hint, x = len(parts) // 2, node.name or "Pad", node.input[0]
    both = [(axis, *n) for axis, n in enumerate(zip(parts[:half], parts[half:], strict=True)) if n != (0, 0)]

    def number(n: int | str) -> str:
        return g.const(np.array(n), hint) if isinstance(n, int) else g.reshape(n, [], hint)

    for axis, low, high in both:
        length = g.size(x, axis, hint)
        last = g.add("Sub", [length, number(1)], hint)
        end = g.add("Add", [length, number(high)], hint)
        rows = g.add("Range", [g.add("Neg", [number(low)], hint), end, number(1)], hint)
        if mode == b"reflect":  # as far behind the last row as before it, and so in front of the first
            behind = g.add("Abs", [g.add("Sub", [last, g.add("Abs", [rows], hint)], hint)], hint)
            rows = g.add("Sub", [last, behind], hint)
        # Nothing beside x is read where there are too few rows, which onnxruntime refuses.
        rows = g.add("Max", [g.add("Min", [rows, last], hint), number(0)], hint)
        x = g.add("Gather", [x, rows], hint, axis=axis, out=node.output[0] if axis == both[-1][0] else None)
    if not both:
        g.add("Identity", [x], hint, out=node.output[0])
    return True


def _wrap(g: GraphWriter, node: onnx.NodeProto, pads: Pads, named: list[int]) -> None:
    shape, x, hint = g.shape(node.input[0]), node.input[0], node.name or "Pad"
    for axis, low, high in zip(named, *np.split(pads, 2), strict=True):
        if not low and not high:
            continue
        size = None if shape is None else shape[axis]
        if not isinstance(size, int):
            raise ModelError(
                f'node {node.name!r}: Pad of mode "wrap" needs a static axis {axis}: iree-compile does not end otherwise'
            )
        kept = np.arange(max(-low, 0), size + min(high, 0))  # what negative pads take away is not wrapped around either
        at = kept[np.arange(-max(low, 0), kept.size + max(high, 0)) % kept.size]
        x = g.add("Gather", [x, g.const(at, hint)], hint, axis=axis)
    g.add("Identity", [x], hint, out=node.output[0])


def _cut_then_pad(g: GraphWriter, node: onnx.NodeProto, pads: Pads, named: list[int]) -> None:
    hint = node.name or "Pad"
    before, behind = np.split(pads, 2)
    axes = [axis for axis, low, high in zip(named, before, behind, strict=True) if min(low, high) < 0]
    starts = [int(max(-low, 0)) for low, high in zip(before, behind, strict=True) if min(low, high) < 0]
    ends = [int(high) if high < 0 else _END for low, high in zip(before, behind, strict=True) if min(low, high) < 0]
    rest = np.maximum(pads, 0)
    cut = _slice(g, node.input[0], starts, ends, axes, hint, None if rest.any() else node.output[0])
    if not rest.any() or _copy_rows(g, node, cut, rest, named):
        return
    made = onnx.NodeProto()
    made.CopyFrom(node)
    made.input[0] = cut
    if len(made.input) > 1:
        made.input[1] = g.const(rest, hint)
    for attribute in made.attribute:
        if attribute.name == "pads":
            attribute.ints[:] = [int(pad) for pad in rest]
    g.nodes.append(made)


def _pads(g: GraphWriter, node: onnx.NodeProto) -> Pads | None:
    """Those before every axis, then those behind; None where only a run knows them."""
    said = attr_of(node, "pads", None)
    if said is not None:  # before opset 11
        return np.array(said, np.int64)
    if len(node.input) > 3 and node.input[3] and g.array(node.input[3]) is None:
        return None  # nobody knows which axes they are of
    return g.array(node.input[1])


def _array(g: GraphWriter, node: onnx.NodeProto, position: int, default: Pads) -> Pads:
    found = g.array(node.input[position]) if len(node.input) > position and node.input[position] else None
    return default if found is None else found


def _slice(
    g: GraphWriter, x: str, starts: list[int], ends: list[int], axes: list[int], hint: str, out: str | None
) -> str:
    if g.opset < 10:  # attributes until then
        return g.add("Slice", [x], hint, out=out, starts=starts, ends=ends, axes=axes)
    numbers = [g.const(np.array(values, np.int64), hint) for values in (starts, ends, axes)]
    return g.add("Slice", [x, *numbers], hint, out=out)

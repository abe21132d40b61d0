"""What an op does to a rank, found by experiment: run it, change what belongs to one position, and see which results change.

No table of ops: whatever ONNX's reference evaluator can run can be asked.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import helper
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun

from onnx_fa.graph.bounded import result_elements
from onnx_fa.graph.ops import op_of

Array = npt.NDArray[np.generic]
Changed = dict[int, tuple[npt.NDArray[np.bool_] | None, ...]]
Bases = Sequence[tuple[Sequence[Array | None], Sequence[Array]]]
"""Operands and what an op makes of them."""
MAX_ELEMENTS = 1 << 24
"""Ops on larger tensors are asked at a smaller size, or not at all."""
_FEW = 128
"""Of a rank of so many positions every one may be looked at."""


@dataclass(frozen=True)
class Part:
    """How an axis holds a rank: index i stands for the positions whose digit `(position - lo) // stride % count` is
    `i // inner % count`. A whole rank of size M is Part(M). `cut`: the axis holds some positions only, a block; `lo` is None
    where which ones depends on a loop's counter."""

    count: int
    stride: int = 1
    inner: int = 1
    lo: int | None = 0
    cut: bool = False


@dataclass(frozen=True)
class Operand:
    """One input of an op: `const` where the content is known, `parts` says how its axes hold the rank."""

    shape: tuple[int, ...]
    dtype: np.dtype[np.generic]
    const: Array | None = None
    parts: tuple[Part | None, ...] = ()

    @property
    def held(self) -> list[tuple[int, Part]]:
        return [(axis, p) for axis, p in enumerate(self.parts) if p is not None]


@dataclass(frozen=True)
class Probed:
    """Per output how its axes hold the rank (None: not at all), whether the op only moves elements of its first operand, and
    whether its results depend on what holds the rank at all."""

    parts: tuple[tuple[Part | None, ...], ...]
    moves: bool
    depends: bool = True


class ProbeError(Exception):
    """The op cannot be run, or what it does to the rank has no words here."""


_cache: dict[bytes, Probed] = {}


def probe(node: onnx.NodeProto, operands: Sequence[Operand | None], opset: int) -> Probed:
    """What `node` makes of the parts that its operands hold. Raises ProbeError."""
    key = _key(node, operands, opset)
    if key not in _cache:
        _cache[key] = _probe(node, operands, opset)
    return _cache[key]


def _key(node: onnx.NodeProto, operands: Sequence[Operand | None], opset: int) -> bytes:
    names = {n: f"{i}" for i, n in enumerate(node.input)}
    same = onnx.NodeProto(op_type=node.op_type, domain=node.domain, input=[names[i] for i in node.input])
    same.attribute.extend(node.attribute)
    same.output.extend(str(i) for i in range(len(node.output)))
    said = [
        o and (o.shape, str(o.dtype), o.parts, o.const.tobytes() if o.const is not None and o.const.size < 4096 else "")
        for o in operands
    ]
    data: bytes = same.SerializeToString()
    return data + repr((said, opset)).encode()


def _probe(node: onnx.NodeProto, operands: Sequence[Operand | None], opset: int) -> Probed:
    small = _shrunk(operands)
    try:
        if small is not None:
            return _restored(_ask(node, small, opset), operands)
    except ProbeError:
        pass  # sizes may stand in an attribute: asked again at the real size
    if any(o is not None and math.prod(o.shape) > MAX_ELEMENTS for o in operands):
        raise ProbeError(f"{op_of(node)}: tensors too large to look at")
    return _ask(node, operands, opset)


_ONE_KEY = -1
"""Stands for the size of an axis that holds a block of one key."""


def _shrunk(operands: Sequence[Operand | None]) -> list[Operand | None] | None:
    """The operands with every size replaced by a small one, equal where they were equal; None where a size may also stand in
    an operand's content, or an axis holds less or more than the rank."""
    sizes: dict[int, int] = {0: 0, 1: 1}
    fresh = itertools.count(5)
    result: list[Operand | None] = []
    held = {(p.stride, p.lo, p.cut, p.count) for o in operands if o is not None for _, p in o.held}
    if len({key[:3] for key in held}) < len(held) or len({lo for _, lo, cut, _ in held if cut}) > 1:
        return None  # `_restored` could not tell them apart, or where one block begins depends on the size of another
    for o in operands:
        if o is None:
            result.append(None)
            continue
        if o.const is not None and o.const.dtype.kind in "iu" and o.const.ndim:
            return None
        if any(axis >= len(o.shape) for axis, _ in o.held):
            raise ProbeError("an operand of another rank than the op that makes it says")
        if any(p.inner != 1 or p.count != o.shape[axis] for axis, p in o.held):
            return None
        # A block of one key is made longer: which axis of a result holds it could not be seen.
        one = [p is not None and p.cut and p.count == 1 for p in o.parts] or [False] * len(o.shape)
        keys = (_ONE_KEY if alone else d for d, alone in zip(o.shape, one, strict=True))
        shape = tuple(sizes[d] if d in sizes else sizes.setdefault(d, next(fresh)) for d in keys)
        parts = tuple(p and replace(p, count=shape[a]) for a, p in enumerate(o.parts))
        result.append(Operand(shape, o.dtype, o.const if o.shape == shape else None, parts))
    return result


def _restored(probed: Probed, operands: Sequence[Operand | None]) -> Probed:
    """The parts found at small sizes, with the counts that they really have."""
    counts = {(p.stride, p.lo, p.cut): p.count for o in operands if o is not None for _, p in o.held}
    parts = []
    for of in probed.parts:
        real: list[Part | None] = []
        for p in of:
            if p is not None and (p.inner != 1 or (p.stride, p.lo, p.cut) not in counts):
                raise ProbeError("a size is part of the op")
            real.append(p and replace(p, count=counts[p.stride, p.lo, p.cut]))
        parts.append(tuple(real))
    return Probed(tuple(parts), probed.moves, probed.depends)


def _ask(node: onnx.NodeProto, operands: Sequence[Operand | None], opset: int) -> Probed:
    run = runner(node, operands, opset)
    drawn = [[_draw(o, seed) for o in operands] for seed in (0, 1)]
    bases: Bases = [(arrays, run(arrays)) for arrays in drawn]
    first, before = drawn[0][0], bases[0][1]
    moves = len(before) == 1 and first is not None and _same_elements(first, before[0])
    depends = False
    outputs: list[list[Part | None]] = [[None] * x.ndim for x in before]
    for n, o in enumerate(operands):
        for axis, part in o.held if o is not None else []:
            assert o is not None
            changed = _looked_at(run, bases, n, axis, part)
            depends |= any(mask is None or bool(mask.any()) for masks in changed.values() for mask in masks)
            for i, axes in enumerate(outputs):
                for b, size in enumerate(before[i].shape):
                    if size == 1 and (b != axis or len(axes) != len(o.shape)):
                        continue  # several such axes cannot be told apart
                    found = _read(part, {j: c[i] for j, c in changed.items()}, b, size)
                    if found is None:
                        continue
                    have = axes[b]
                    both = found if have is None or have == found else _joined(have, found) or _joined(found, have)
                    if both is None:
                        raise ProbeError(f"{op_of(node)}: operands hold the rank in different ways")
                    axes[b] = both
    return Probed(tuple(tuple(a) for a in outputs), moves, depends)


def _looked_at(run: Run, bases: Bases, n: int, axis: int, part: Part) -> Changed:
    """What changes with some positions of the rank, those that operand `n` holds along `axis`; with all, if some change nothing, as
    where an op picks a few of them."""
    first = bases[0][0][n]
    assert first is not None
    at = np.arange(first.shape[axis]) // part.inner % part.count
    shape = [-1 if a == axis else 1 for a in range(first.ndim)]
    some = sorted({0, 1, part.count // 2, part.count - 1} & set(range(part.count)))
    changed = {position: _changed(run, bases, n, (at == position).reshape(shape)) for position in some}
    idle = any(mask is not None and not mask.any() for masks in changed.values() for mask in masks)
    rest = set(range(part.count)) - set(some) if idle and part.count <= _FEW else ()
    return changed | {position: _changed(run, bases, n, (at == position).reshape(shape)) for position in rest}


def _draw(o: Operand | None, seed: int) -> Array | None:
    if o is None or o.const is not None:
        return None if o is None else o.const
    rng = np.random.default_rng(seed)
    if o.dtype.kind == "f":
        return rng.standard_normal(o.shape, np.float32).astype(o.dtype)
    return rng.integers(0, 2, o.shape).astype(o.dtype)


class GatherElements(OpRun):
    """As ONNX defines it; the evaluator's own takes no more than 64 elements along the axis."""

    def _run(self, data: Array, indices: npt.NDArray[np.integer[Any]], axis: int = 0) -> tuple[Array]:
        axis %= data.ndim
        read = tuple(slice(None) if a == axis else slice(n) for a, n in enumerate(indices.shape))
        return (np.take_along_axis(data[read], indices, axis),)


class Run:
    """One op, ready to be run. Raises ProbeError when NumPy refuses the operands, or before results that are too large. All
    calls are given arrays of the same shapes."""

    def __init__(self, evaluator: ReferenceEvaluator, node: onnx.NodeProto, opset: int) -> None:
        self.evaluator, self.node, self.opset = evaluator, node, opset
        self.names, self.what, self._bounded = list(node.input), op_of(node), False

    def __call__(self, arrays: Sequence[Array | None]) -> list[Array]:
        sizes = any(a is not None and a.dtype.kind in "iu" for a in arrays)  # integers may be sizes
        if sizes or not self._bounded:
            count = result_elements(self.node, arrays, self.opset)
            if (count is None and sizes) or (count or 0) > MAX_ELEMENTS:
                raise ProbeError(f"{self.what}: its result is too large to look at")
            self._bounded = True
        feed = {n: a for n, a in zip(self.names, arrays, strict=True) if a is not None}
        try:
            with np.errstate(all="ignore"):
                return [np.asarray(y) for y in self.evaluator.run(None, feed)]
        except Exception as e:  # the evaluator raises whatever NumPy does
            raise ProbeError(f"{self.what} cannot be run: {type(e).__name__}") from e


def runner(node: onnx.NodeProto, operands: Sequence[Operand | None], opset: int) -> Run:
    """`node` alone, in ONNX's reference evaluator. Raises ProbeError when it does not know the op."""
    if op_of(node) in ("QuantizeLinear", "DequantizeLinear"):
        opset = max(opset, 21)  # it lacks older versions, which mean the same
    clone = onnx.NodeProto()
    clone.CopyFrom(node)
    names = [f"i{n}" if o is not None else "" for n, o in enumerate(operands)]
    clone.input[:] = names
    clone.output[:] = [f"o{n}" for n in range(len(node.output))]
    inputs = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(o.dtype), o.shape)
        for n, o in zip(names, operands, strict=True)
        if o is not None
    ]
    outputs = [onnx.ValueInfoProto(name=n) for n in clone.output]
    graph = helper.make_graph([clone], "one", inputs, outputs)
    try:
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)
        return Run(ReferenceEvaluator(model, new_ops=[GatherElements]), clone, opset)
    except Exception as e:  # an op that the evaluator does not know
        raise ProbeError(f"{op_of(node)} cannot be run: {type(e).__name__}") from e


def _same_elements(source: Array, result: Array) -> bool:
    """Whether a sample of the result's elements all stand in `source` (random floats do not repeat)."""
    if source.dtype.kind != "f" or result.dtype != source.dtype or not result.size:
        return False
    sample = result.reshape(-1)[:: max(1, result.size // 64)][:64]
    return bool(np.isin(sample, source).all())


def _changed(run: Run, bases: Bases, n: int, where: npt.NDArray[np.bool_]) -> tuple[npt.NDArray[np.bool_] | None, ...]:
    """Per output which elements change when operand `n` changes at `where`: up, down and to what
    is no number, so that neither a maximum nor a choice nor a test hides it. None where even the shape changes."""
    total: list[npt.NDArray[np.bool_] | None] = [np.zeros(y.shape, bool) for y in bases[0][1]]
    for base, before in bases:
        array = base[n]
        assert array is not None
        for shift in (50.0, -50.0, *([np.nan, np.inf, -np.inf] if base is bases[0][0] else [])):
            if array.dtype.kind == "f":
                other: Array = (array + np.where(where, array.dtype.type(shift), 0)).astype(array.dtype)
            elif array.dtype.kind == "b":
                other = np.logical_xor(array, where)
            else:
                other = np.where(where, 1 - array, array).astype(array.dtype)
            after = run([other if i == n else a for i, a in enumerate(base)])
            for i, (a, b) in enumerate(zip(before, after, strict=True)):
                seen = total[i]
                if seen is not None:
                    total[i] = seen | ~((a == b) | ((a != a) & (b != b))) if a.shape == b.shape else None
    return tuple(total)


def _read(part: Part, changed: dict[int, npt.NDArray[np.bool_] | None], axis: int, size: int) -> Part | None:
    """How an output's axis holds `part`, given which elements each probed position changes; None where it does not."""
    seen: dict[int, set[int]] = {}
    for position, mask in changed.items():
        if mask is None:
            return None
        others = tuple(a for a in range(mask.ndim) if a != axis)
        seen[position] = set(np.flatnonzero(mask.any(axis=others)).tolist())
    if not any(seen.values()):
        return None
    if size == 1:  # one position, unless all of them are reduced to one
        return _shifted(part, seen, size) if part.count > 1 and sum(map(bool, seen.values())) == 1 else None
    index = np.arange(size)
    for inner in (d for d in range(1, size + 1) if size % d == 0 and d < size):
        for count in (c for c in range(2, size // inner + 1) if (size // inner) % c == 0 and part.count % c == 0):
            for step in (s for s in range(1, part.count + 1) if part.count % (s * count) == 0):
                digits = index // inner % count
                if all(seen[j] == set(np.flatnonzero(digits == j // step % count).tolist()) for j in seen):
                    whole = count == part.count
                    return Part(count, part.stride * step, inner, part.lo if whole or not part.cut else None, part.cut)
    return _shifted(part, seen, size)


def _joined(high: Part, low: Part) -> Part | None:
    """The share of a rank that an axis holds whose higher and lower digits are these; None where they are not neighbours."""
    if high.inner == low.count * low.inner and high.stride == low.count * low.stride and not (high.cut or low.cut):
        return replace(low, count=high.count * low.count)
    return None


def _shifted(part: Part, seen: dict[int, set[int]], size: int) -> Part | None:
    """A slice of the axis, or a place in a longer one: index i of the output is index i + shift of the input."""
    shifts = {j - next(iter(found)) for j, found in seen.items() if len(found) == 1}
    if any(len(found) > 1 for found in seen.values()) or len(shifts) != 1 or part.stride != 1 or part.inner != 1:
        return None
    (shift,) = shifts
    lo = None if part.lo is None else part.lo + shift
    return Part(size, 1, 1, lo, cut=True)

"""DFT and STFT as products with matrices of cosines and sines. IREE refuses nearly all of them (docs/developer/iree-bugs.md)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto

from onnx_fa.errors import ModelError
from onnx_fa.iree.legalise.double_waves import wave
from onnx_fa.iree.legalise.writer import NARROW, GraphWriter, attr_of

_KINDS: dict[int, type[np.floating[Any]]] = {TensorProto.FLOAT: np.float32, TensorProto.DOUBLE: np.float64}
"""Types of the products; of f16 and bf16 f32, rounded once."""

_MOST = 1 << 24
"""Pairs of an element and a result: a DFT of 4096 numbers, whose matrix has 64 to 256 MiB in f32."""


def dft(g: GraphWriter, node: onnx.NodeProto) -> bool:
    """Rows of real or complex numbers along one axis by a constant matrix, or by one that is computed where only a run knows how
    many they are. Raises ModelError for what is no DFT, an axis or a number of parts that only a run knows, a matrix of more
    than 2^24 pairs, and a one-sided inverse whose bins are not those of its length."""
    x, length, axis_input = (*node.input, "", "")[:3]
    hint, shape = node.name or "DFT", g.shape(x)
    axis = attr_of(node, "axis", 1) if g.opset < 20 else -2
    if axis_input:
        given = g.array(axis_input)
        if given is None:
            raise ModelError(f"node {hint!r}: DFT along an axis that only a run knows")
        axis = int(given.reshape(-1)[0])
    inverse, onesided = bool(attr_of(node, "inverse", 0)), bool(attr_of(node, "onesided", 0))
    parts = _parts(shape, hint, "DFT")
    assert shape is not None
    axis %= len(shape)
    if axis == len(shape) - 1 or (onesided and not inverse and parts == 2):
        raise ModelError(
            f"node {hint!r}: DFT along the axis of real and imaginary parts, or one-sided of complex numbers"
        )
    kind = g.kind(x)
    x = g.cast(x, kind, _wide(kind, hint), hint)
    rest = [i for i in range(len(shape) - 1) if i != axis]
    order = [*rest, axis, len(shape) - 1]
    if order != list(range(len(shape))):
        x = g.add("Transpose", [x], hint, perm=order)
    lead, size = [shape[i] for i in rest], shape[axis]
    number = g.array(length) if length else None
    n = int(number.reshape(-1)[0]) if number is not None else None
    if not length and isinstance(size, int):
        n = 2 * (size - 1) if inverse and onesided else size
    if length and inverse and onesided and (n is None or size != n // 2 + 1):
        raise ModelError(
            f"node {hint!r}: one-sided inverse DFT of a length whose half is not the number of bins, which ONNX and onnxruntime "
            "read differently"
        )
    if n is not None and isinstance(size, int):
        used = min(size, n // 2 + 1 if inverse and onesided else n)
        if used < size:
            x = g.add("Slice", [x, *(g.ints([v], hint) for v in (0, used, len(rest)))], hint)
        matrix = _matrix(n, used, parts, hint, inverse=inverse, onesided=onesided)
        y = _by_constant(g, x, lead, matrix, _wide(kind, hint), hint)
    else:
        y = _by_computed(g, x, length, len(shape), parts, _wide(kind, hint), hint, inverse=inverse, onesided=onesided)
    back = [order.index(i) for i in range(len(shape))]
    if back != list(range(len(shape))):
        y = g.add("Transpose", [y], hint, perm=back)
    g.cast(y, _wide(kind, hint), kind, hint, out=node.output[0])
    return True


def stft(g: GraphWriter, node: onnx.NodeProto) -> bool:
    """Frames of the signal, gathered, by a constant matrix that has the window in it, if that is constant. The signal (B, n, 1 or
    2), or (B, n), may have any length; bins of complex numbers that are one-sided are the first ones, as in onnxruntime. Raises
    ModelError for a frame whose length only a run knows, and for a signal shorter than one."""
    signal, step, window, length = (*node.input, "", "")[:4]
    hint, shape, kind = node.name or "STFT", g.shape(signal), g.kind(signal)
    parts = 1 if shape is not None and len(shape) == 2 else _parts(shape, hint, "STFT")
    assert shape is not None
    frame = _frame_length(g, window, length, shape[1])
    if frame is None:
        raise ModelError(f"node {hint!r}: STFT of frames whose length only a run knows")
    wide = _wide(kind, hint)
    x = g.cast(signal, kind, wide, hint)
    places, count = _places(g, x, step, frame, shape[1], hint)
    x = g.add("Gather", [x, places], hint, axis=1)
    weights = g.array(window) if window else None
    if window and weights is None:
        row = g.reshape(g.cast(window, kind, wide, hint), [frame] if len(shape) == 2 else [frame, 1], hint)
        x = g.add("Mul", [x, row], hint)
    matrix = _matrix(frame, frame, parts, hint, inverse=False, onesided=False)
    matrix = matrix[:, :, : frame // 2 + 1] if attr_of(node, "onesided", 1) else matrix
    if weights is not None:
        matrix = matrix * weights.astype(np.float64).reshape(-1, 1, 1, 1)
    y = _by_constant(g, x, [shape[0], count], matrix, wide, hint)
    g.cast(y, wide, kind, hint, out=node.output[0])
    return True


def _parts(shape: Sequence[int | str | None] | None, hint: str, op: str) -> int:
    """1 of real numbers, 2 of complex ones. Raises ModelError where that is not known."""
    last = shape[-1] if shape else None
    if last not in (1, 2) or not isinstance(last, int):
        raise ModelError(f"node {hint!r}: {op} of numbers of which only a run knows whether they are real or complex")
    return last


def _wide(kind: int, hint: str) -> int:
    wide = TensorProto.FLOAT if kind in NARROW else kind
    if wide not in _KINDS:
        raise ModelError(f"node {hint!r}: a Fourier transform of numbers that are no floats")
    return wide


def _frame_length(g: GraphWriter, window: str, length: str, size: int | str | None) -> int | None:
    given = g.array(length) if length else None
    if given is not None:
        return int(given.reshape(-1)[0])
    shape = g.shape(window) if window else None
    found = shape[0] if shape else size
    return found if isinstance(found, int) and not (length and not window) else None


def _places(
    g: GraphWriter, x: str, step: str, frame: int, size: int | str | None, hint: str
) -> tuple[str, int | str | None]:
    """The numbers of the elements of each frame, (frames, frame), and how many frames there are. Raises ModelError."""
    hop = g.array(step)
    if isinstance(size, int) and hop is not None:
        by = int(hop.reshape(-1)[0])
        count = (size - frame) // by + 1 if by > 0 else 0
        if count < 1:
            raise ModelError(
                f"node {hint!r}: STFT of a signal of {size} elements with frames of {frame}, by steps of {by}"
            )
        return g.const(np.arange(count)[:, None] * by + np.arange(frame), hint), count
    by_value = g.reshape(g.cast(step, g.kind(step), TensorProto.INT64, hint), [], hint)
    room = g.add("Sub", [g.size(x, 1, hint), _number(g, frame, hint)], hint)
    total = g.add("Add", [g.add("Div", [room, by_value], hint), _number(g, 1, hint)], hint)
    starts = g.add("Mul", [g.add("Range", [_number(g, 0, hint), total, _number(g, 1, hint)], hint), by_value], hint)
    rows = g.add("Unsqueeze", [starts, g.ints([1], hint)], hint)
    return g.add("Add", [rows, g.ints(range(frame), hint)], hint), None


def _number(g: GraphWriter, value: int, hint: str) -> str:
    return g.const(np.array(value, np.int64), hint)


def _matrix(n: int, rows: int, parts: int, hint: str, *, inverse: bool, onesided: bool) -> np.ndarray[Any, Any]:
    """(rows, parts, results, parts of them) in f64: what each part of each element is to each part of each result. Raises
    ModelError for a large one."""
    columns = n if inverse or not onesided else n // 2 + 1
    if rows * columns > _MOST:
        raise ModelError(
            f"node {hint!r}: a Fourier transform of {rows} numbers into {columns}: its matrix is too large"
        )
    places = np.outer(np.arange(rows), np.arange(columns)) % n if n else np.zeros((rows, columns))
    angles = places * (2 * math.pi / max(n, 1))
    cosine, sine = (np.where(np.abs(w) < 1e-15, 0, w) for w in (np.cos(angles), np.sin(angles)))
    if inverse and onesided:  # of what is not given the real parts are the same, the imaginary ones their negatives
        times = np.where(np.arange(rows) * 2 % n == 0, 1, 2)[:, None] / n if n else 0
        return np.stack([cosine * times, -sine * times], 1)[:, :parts, :, None]
    if inverse:
        cosine, sine = cosine / max(n, 1), -sine / max(n, 1)
    return np.stack([np.stack([cosine, -sine], 2), np.stack([sine, cosine], 2)], 1)[:, :parts]


def _by_constant(
    g: GraphWriter, x: str, lead: Sequence[int | str | None], matrix: np.ndarray[Any, Any], kind: int, hint: str
) -> str:
    """x (..., n), (..., n, parts) by a matrix (n, parts, m, parts of results): (..., m, parts of results)."""
    rows, parts, columns, results = matrix.shape
    if matrix.size > _MOST:
        raise ModelError(
            f"node {hint!r}: a Fourier transform of {rows} numbers into {columns}: its matrix is too large"
        )
    wide, high = rows * parts, columns * results
    made = matrix.reshape(wide, high).astype(_KINDS[kind])
    weight = g.computed(lambda: made, kind, [wide, high], hint)
    flat = 0 not in lead and sum(not isinstance(d, int) for d in lead) < 2
    y = g.add("MatMul", [g.reshape(x, [-1, wide] if flat else [*[0] * len(lead), wide], hint), weight], hint)
    back = [d if isinstance(d, int) else -1 for d in lead] if flat else [0] * len(lead)
    return g.reshape(y, [*back, columns, results], hint)


def _by_computed(
    g: GraphWriter, x: str, length: str, rank: int, parts: int, kind: int, hint: str, *, inverse: bool, onesided: bool
) -> str:
    """x (..., n, parts), of `rank` dims and a number that only a run knows, by a matrix that it computes."""

    def add(op: str, *inputs: str, **attributes: Any) -> str:
        return g.add(op, inputs, hint, **attributes)

    def number(value: int) -> str:
        return g.const(np.array(value, np.int64), hint)

    axis, back = rank - 2, inverse and onesided
    if length:
        n = g.reshape(g.cast(length, g.kind(length), TensorProto.INT64, hint), [], hint)
        x = add("Slice", x, g.ints([0], hint), g.reshape(n, [1], hint), g.ints([axis], hint))
    size = g.size(x, axis, hint)
    if not length:
        n = add("Mul", add("Sub", size, number(1)), number(2)) if back else size
    columns = add("Add", add("Div", n, number(2)), number(1)) if onesided and not inverse else n
    rows = add("Unsqueeze", add("Range", number(0), size, number(1)), g.ints([1], hint))
    places = add("Mod", add("Mul", rows, add("Range", number(0), columns, number(1))), n)
    count = add("Cast", n, to=TensorProto.DOUBLE)
    turn = add("Div", g.const(np.array(2 * math.pi), hint), count)
    angles = g.typed(add("Mul", add("Cast", places, to=TensorProto.DOUBLE), turn), TensorProto.DOUBLE, [None, None])
    waves = []
    for op in ("Cos", "Sin"):
        made = onnx.helper.make_node(op, [angles], [g.fresh(hint)], hint)
        wave(g, made)
        waves.append(made.output[0])
    cosine, sine = waves if inverse else (waves[0], add("Neg", waves[1]))
    if inverse:
        cosine, sine = (add("Div", w, count) for w in (cosine, sine))
    if back:  # of what is not given the real parts are the same, the imaginary ones their negatives
        twice = add("Mod", add("Mul", rows, number(2)), n)
        two, one = (g.const(np.array(value, np.float64), hint) for value in (2, 1))
        times = add("Where", add("Equal", twice, number(0)), one, two)
        cosine, sine = (add("Mul", w, times) for w in (cosine, sine))
    matrices = [g.cast(w, TensorProto.DOUBLE, kind, hint) for w in (cosine, sine)]
    given = [add("Gather", x, number(part), axis=rank - 1) for part in range(parts)]
    if rank == 2:
        given = [add("Unsqueeze", part, g.ints([0], hint)) for part in given]
    by_cosine, by_sine = ([add("MatMul", part, m) for part in given] for m in matrices)
    results = [by_cosine[0] if parts == 1 else add("Sub", by_cosine[0], by_sine[1])]
    if not back:
        results.append(by_sine[0] if parts == 1 else add("Add", by_sine[0], by_cosine[1]))
    last = g.ints([max(rank - 1, 2)], hint)
    y = add("Concat", *(add("Unsqueeze", r, last) for r in results), axis=max(rank - 1, 2))
    return add("Squeeze", y, g.ints([0], hint)) if rank == 2 else y

"""Attention without a function of the score, divided by its sum (onnx_fa/spec/token_sums.py), in one dispatch.

A workgroup has a head: it adds up what keys and values make of each other, on its stack, and multiplies each query by that. The
numbers are read where a projection left them, queries, keys and values of a head side by side; nobody copies them apart, puts a
column of ones behind the values or takes it off again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

from onnx_fa.kernels.cpu.row_dispatch import (
    call_dispatch,
    index_of,
    joined,
    load,
    make_executable,
    store,
)
from onnx_fa.kernels.mlir.called import function_text, own_dims, read_dims
from onnx_fa.kernels.mlir.operand import Operand
from onnx_fa.kernels.mlir.text import memref_type
from onnx_fa.kernels.mlir.vectors import Lanes
from onnx_fa.spec.target import Target
from onnx_fa.spec.terms import Dim

_STACK = 28 << 10
"""Bytes of sums: IREE gives a workgroup 32 KiB, of which the compiler takes some itself."""
_VECTORS = 2
"""Of a register tile."""


@dataclass(frozen=True)
class TokenSums:
    """`shapes` are those of tensors (B, S, H, columns) of f32. Queries, keys and values are `parts` of them, each as (tensor, first
    column), of D, D and Dv columns. `relu`: of q, of k."""

    shapes: tuple[tuple[Dim, ...], ...]
    parts: tuple[tuple[int, int], ...]
    D: int
    Dv: int
    relu: tuple[bool, bool]
    epsilon: float

    @property
    def name(self) -> str:
        """Of the function: equal for equal specs."""
        return f"linear_attention_{hashlib.sha256(repr(self).encode()).hexdigest()[:10]}"

    @property
    def operands(self) -> list[Operand]:
        return [Operand(f"%in{i}", own_dims(shape, f"in{i}_"), "f32") for i, shape in enumerate(self.shapes)]

    @property
    def y(self) -> Operand:
        B, S, H, _ = self.operands[self.parts[0][0]].shape
        return Operand("%y", (B, S, H, self.Dv), "f32")

    def texts(self, target: Target) -> dict[str, str]:
        """The executable and the function of the name, which takes the operands and returns y, by their symbols."""
        symbol, lanes = f"{self.name}_heads", lanes_of(self.D, self.Dv, target)
        body = _Body(self, lanes, target.has_many_registers)
        return {symbol: joined(body.executable(symbol)), self.name: joined(body.function(symbol))}


def lanes_of(D: int, Dv: int, target: Target) -> int:
    """The lanes of the kernel's vectors; 0 where the compiler keeps such heads."""
    if target.is_gpu or target.kernels != "auto" or not target.has_avx2:
        return 0
    lanes = next((n for n in (target.lanes, target.lanes // 2) if n >= 4 and Dv % n == 0), 0)
    return lanes if 4 * D * (Dv + lanes) <= _STACK else 0


class _Body:
    """Writes the dispatch and its call."""

    def __init__(self, spec: TokenSums, lanes: int, has_many_registers: bool) -> None:
        self.spec, self.t = spec, Lanes(lanes)
        self.operands, self.y = spec.operands, spec.y
        most = 8 if has_many_registers else 4
        self.deep, self.tall = min(most, spec.D), most
        self.staged_type = memref_type((spec.D, spec.Dv + lanes), "f32")
        vectors = range(0, spec.Dv, lanes)
        self.chunks = [tuple(vectors[i : i + _VECTORS]) for i in range(0, len(vectors), _VECTORS)]
        """The first columns of the vectors that are computed at once."""

    def function(self, symbol: str) -> list[str]:
        t = Lanes(self.t.width)
        read_dims(t, self.operands)
        made = call_dispatch(t, symbol, self.operands, [x.name for x in self.operands], [self.y])
        return function_text(self.spec.name, self.operands, [self.y], t, made)

    def executable(self, symbol: str) -> list[str]:
        B, _, H, _ = self.y.shape
        count = Lanes(self.t.width)
        count.do(f"%x = arith.muli {index_of(count, B)}, {index_of(count, H)} : index")
        return make_executable(symbol, self.operands, [self.y], count.render(), self._body())

    def _body(self) -> list[str]:
        t = self.t
        self.loaded = [load(t, x, "readonly", ["0"] * 4, x.shape) for x in self.operands]
        y = load(t, self.y, "writeonly", ["0"] * 4, self.y.shape)
        self.staged = t.empty(self.staged_type)
        group, heads = t.let("flow.dispatch.workgroup.id[0] : index"), index_of(t, self.y.shape[2])
        self.image, self.head = (t.arith(op, group, heads) for op in ("divui", "remui"))
        tiles = -(-self.spec.D // self.deep)
        t.each((t.index(0), t.index(tiles), t.index(1)), self._sum_up)
        rows = index_of(t, self.y.shape[1])
        tall = t.index(self.tall)
        (made,) = t.loop((t.index(0), rows, tall), [y], lambda row, carried: [self._rows(row, rows, carried[0])])
        store(t, made, self.y.type, self.y, ["0"] * 4, self.y.shape)
        return t.render()

    def _number(self, part: int, row: str, column: str) -> str:
        """A number of q (part 0) or k, in all lanes."""
        t, (tensor, first) = self.t, self.spec.parts[part]
        number = t.extract(*self.loaded[tensor], self.image, row, self.head, t.shifted(column, first))
        # The second of two is what is left where one is NaN.
        return t.maximum(t.splat(0.0), t.broadcast(number)) if self.spec.relu[part] else t.broadcast(number)

    def _sum_up(self, tile: str) -> None:
        """Puts some rows of S on the stack, and behind each its number of z in all lanes. The last tile begins earlier."""
        t, spec = self.t, self.spec
        (tensor, first), tokens = spec.parts[2], index_of(t, self.operands[spec.parts[1][0]].shape[1])
        start = t.arith("minsi", t.arith("muli", tile, t.index(self.deep)), t.index(spec.D - self.deep))
        depths = [t.shifted(start, i) for i in range(self.deep)]
        for chunk in self.chunks:
            n = len(chunk)

            def token(s: str, sums: list[str], chunk: tuple[int, ...] = chunk, n: int = n) -> list[str]:
                at = self.image, s, self.head
                values = [t.read(*self.loaded[tensor], *at, t.index(first + e)) for e in chunk]
                numbers = [self._number(1, s, d) for d in depths]
                made = [
                    t.vop("vector.fma", number, value, sums[i * n + j])
                    for i, number in enumerate(numbers)
                    for j, value in enumerate(values)
                ]
                of_keys = zip(sums[n * self.deep :], numbers, strict=False)
                return [*made, *(t.vop("arith.addf", total, number) for total, number in of_keys)]

            count = self.deep * (n + (chunk is self.chunks[0]))
            sums = t.loop((t.index(0), tokens, t.index(1)), [(t.splat(0.0), t.vec)] * count, token)
            for i, depth in enumerate(depths):
                for e, total in zip(chunk, sums[i * n : i * n + n], strict=True):
                    t.write(total, self.staged, self.staged_type, depth, t.index(e))
                if count > self.deep * n:
                    t.write(sums[self.deep * n + i], self.staged, self.staged_type, depth, t.index(spec.Dv))

    def _rows(self, start: str, rows: str, y: str) -> str:
        """y with some rows of the head. Rows beyond the last are the last again."""
        t, spec = self.t, self.spec
        last = t.arith("subi", rows, t.index(1))
        own = [t.arith("minsi", t.shifted(start, i), last) for i in range(self.tall)]
        for chunk in self.chunks:
            n = len(chunk) + 1
            columns = [t.index(e) for e in (*chunk, spec.Dv)]

            def depth(d: str, sums: list[str], columns: list[str] = columns, n: int = n) -> list[str]:
                of_d = [t.read(self.staged, self.staged_type, d, column) for column in columns]
                made = []
                for i, row in enumerate(own):
                    number = self._number(0, row, d)
                    made += [t.vop("vector.fma", number, of_d[j], sums[i * n + j]) for j in range(n)]
                return made

            starts = [(t.splat(0.0), t.vec)] * (n * self.tall)
            sums = t.loop((t.index(0), t.index(spec.D), t.index(1)), starts, depth)
            for i, row in enumerate(own):
                divisor = t.vop("arith.addf", sums[i * n + n - 1], t.splat(spec.epsilon))
                for j, column in enumerate(columns[:-1]):
                    quotient = t.vop("arith.divf", sums[i * n + j], divisor)
                    y = t.write(quotient, y, self.y.type, self.image, row, self.head, column)
        return y


def token_sums_of(operands: Sequence[tuple[Dim, ...]], numbers: Sequence[int], epsilon: float) -> TokenSums:
    """Of operands of these shapes and what a node has of them: D, Dv, whether q and k are rectified, and for q, k and v the tensor
    and its first column."""
    D, Dv, of_q, of_k, *places = numbers
    parts = tuple(zip(places[::2], places[1::2], strict=True))
    return TokenSums(tuple(operands), parts, D, Dv, (bool(of_q), bool(of_k)), epsilon)

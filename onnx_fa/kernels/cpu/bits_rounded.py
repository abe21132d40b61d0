"""Rows rounded to integers of 8 bits, as products with weights of a few bits read them (bits_dots.py), and the dispatches that make
them: of rows as they are, and of rows that are brought to a mean square of one first (RMSNorm).

Each block becomes integers and a scale, largest magnitude / 127. A norm, the sum of two tensors in front of it, and the rounding
are one dispatch, a workgroup for each row: what lies between is computed in registers, and no worker waits for another.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

from onnx_fa.kernels.cpu.bits_body import add_lanes
from onnx_fa.kernels.cpu.bits_spec import Blocks
from onnx_fa.kernels.cpu.row_dispatch import call_dispatch, joined, load, make_executable, store
from onnx_fa.kernels.mlir.called import function_text
from onnx_fa.kernels.mlir.operand import Operand
from onnx_fa.kernels.mlir.text import Text
from onnx_fa.spec.terms import Dim

_BYTES = (64, 32, 16)
"""Of a vector."""
_LEAST_BLOCK = 8
"""Bytes of the smallest block."""
_LARGEST = 127.0


@dataclass(frozen=True)
class RoundedRows(Blocks):
    """`rows` (None: known at run time only) of K numbers in blocks, for a weight whose bytes hold 8 / `bits` numbers. `zeros`: the
    weight's zero points are operands."""

    rows: int | None
    K: int
    block: int
    bits: int
    zeros: bool

    @property
    def bytes(self) -> int:
        """Of the longest vector whose bytes divide those of a row of the weight; 0 where none does."""
        return next((n for n in _BYTES if self.K // self.places % n == 0), 0)

    @property
    def sums(self) -> int:
        """Sums of integers that a block has in a vector."""
        return min(self.bytes, self.block // self.places) // 4

    @property
    def fits(self) -> bool:
        """Whether blocks and rows are whole vectors, or blocks whole parts of one."""
        power, least = self.block & (self.block - 1) == 0, _LEAST_BLOCK * self.places
        return power and self.block >= least and self.bytes > 0

    @property
    def name(self) -> str:
        return f"bits{self.bits}_{'n' if self.rows is None else self.rows}x{self.K}_{self.block}"

    @property
    def symbol(self) -> str:
        """Of the dispatch that rounds rows as they are."""
        return f"{self.name}_round{'_zeros' * self.zeros}"

    @property
    def operands(self) -> tuple[Operand, ...]:
        """The integers sorted by their place in a byte, their scales, and what the sums of a block begin with: minus the zero point
        times the integers' sum; where zero points are operands, the integers' sum itself. Zeros follow for the block's other sums.
        """
        return (
            Operand("%q", (self.lead, self.places, self.K // self.places), "i8"),
            Operand("%qscale", (self.lead, self.blocks), "f32"),
            Operand("%begin", (self.lead, self.blocks * self.sums), "i32"),
        )

    def part(self, numbers: int) -> list[tuple[Dim, ...]]:
        """The shapes of the operands' parts for so many neighbouring numbers of a row, whole blocks, of all rows."""
        blocks = numbers // self.block
        return [(self.lead, self.places, numbers // self.places), (self.lead, blocks), (self.lead, blocks * self.sums)]


@dataclass(frozen=True)
class RoundedNorm:
    """The rows of x / sqrt(mean of their squares + epsilon) * scale, rounded. With `skip`, of x + skip, which is a result too
    if it is `shown`."""

    rounded: RoundedRows
    epsilon: float
    skip: bool = False
    shown: bool = False

    @property
    def symbol(self) -> str:
        """Of the dispatch."""
        words = hashlib.sha256(repr((self.epsilon, self.skip, self.shown)).encode()).hexdigest()[:8]
        return f"{self.rounded.name}_norm_{words}_round{'_zeros' * self.rounded.zeros}"

    @property
    def name(self) -> str:
        return f"{self.symbol}_of"

    @property
    def operands(self) -> tuple[Operand, ...]:
        """x and what is added to it (rows, K), the scale (K,)."""
        x = self.rounded.x
        skip = [Operand("%skip", x.shape, "f32")] * self.skip
        return (x, *skip, Operand("%factor", (self.rounded.K,), "f32"))

    @property
    def outputs(self) -> tuple[Operand, ...]:
        """What is rounded, and the sum (rows, K)."""
        return (*self.rounded.operands, *[Operand("%sum", self.rounded.x.shape, "f32")] * self.shown)

    def texts(self) -> dict[str, str]:
        """The executable and the function of the name, which takes the operands and returns the outputs, by their symbols."""
        t = Text()
        made = call_dispatch(t, self.symbol, self.operands, [x.name for x in self.operands], self.outputs)
        function = function_text(self.name, self.operands, self.outputs, t, made)
        return {self.symbol: joined(_norm_text(self)), self.name: joined(function)}


def rows_name(x: RoundedRows) -> str:
    """The name of the function that rounds rows as they are."""
    return f"{x.symbol}_of"


def rows_texts(x: RoundedRows) -> dict[str, str]:
    """The executable that rounds rows as they are, and its function, by their symbols."""
    t, name = Text(), rows_name(x)
    made = call_dispatch(t, x.symbol, [x.x], ["%x"], x.operands)
    return {x.symbol: joined(round_text(x)), name: joined(function_text(name, [x.x], x.operands, t, made))}


def round_text(x: RoundedRows) -> list[str]:
    """The executable that rounds rows: a workgroup for each."""
    t = Text()
    row = _Row(t, x)
    value, type_ = row.load(x.x)
    outputs = row.outputs(x.operands)

    def block(b: str, carried: list[str]) -> list[str]:
        return write_block(t, x, row.read(value, type_, b), t.index(0), b, carried, [kind for _, kind in outputs])

    row.store(x.operands, t.loop(row.bounds, outputs, block), outputs)
    return make_executable(x.symbol, [x.x], x.operands, _groups(x), t.render())


def _norm_text(norm: RoundedNorm) -> list[str]:
    x, t = norm.rounded, Text()
    row = _Row(t, x)
    zero, parts = t.index(0), [row.load(operand) for operand in norm.operands[: 1 + norm.skip]]
    factor = load(t, norm.operands[-1], "readonly", ["0"], (x.K,))
    outputs = row.outputs(norm.outputs)
    types = [type_ for _, type_ in outputs]

    def numbers(b: str) -> str:
        """A block of x, with what is added to it."""
        read = [row.read(value, type_, b) for value, type_ in parts]
        return t.arith("addf", read[0], read[1], row.wide) if norm.skip else read[0]

    def squares(b: str, carried: list[str]) -> list[str]:
        total, *given = carried
        values = numbers(b)
        if norm.shown:
            at = t.arith("muli", b, t.index(x.block))
            given = [
                t.let(
                    f"vector.transfer_write {values}, {given[0]}[{zero}, {at}] {{in_bounds = [true]}} : {row.wide}, {types[-1]}"
                )
            ]
        return [t.let(f"vector.fma {values}, {values}, {total} : {row.wide}"), *given]

    total, *given = t.loop(
        row.bounds, [(t.constant("dense<0.0>", row.wide), row.wide), *outputs[len(x.operands) :]], squares
    )
    mean = t.arith("divf", add_lanes(t, total, x.block), t.f32(float(x.K)), "f32")
    root = t.let(f"math.sqrt {t.arith('addf', mean, t.f32(norm.epsilon), 'f32')} : f32")
    by = t.let(f"vector.broadcast {t.arith('divf', t.f32(1.0), root, 'f32')} : f32 to {row.wide}")

    def block(b: str, carried: list[str]) -> list[str]:
        at = t.arith("muli", b, t.index(x.block))
        column = t.let(
            f"vector.transfer_read {factor[0]}[{at}], {t.f32(0.0)} {{in_bounds = [true]}} : {factor[1]}, {row.wide}"
        )
        values = t.arith("mulf", t.arith("mulf", numbers(b), by, row.wide), column, row.wide)
        return write_block(t, x, values, zero, b, carried, types)

    made = t.loop(row.bounds, outputs[: len(x.operands)], block)
    row.store(norm.outputs, [*made, *given], outputs)
    return make_executable(norm.symbol, norm.operands, norm.outputs, _groups(x), t.render())


def _groups(x: RoundedRows) -> list[str]:
    """The number of workgroups."""
    if x.rows is not None:
        return [f"%x = arith.constant {x.rows} : index"]
    return ["%zero = arith.constant 0 : index", "%x = arith.addi %rows, %zero : index"]


class _Row:
    """A workgroup's row."""

    def __init__(self, t: Text, x: RoundedRows) -> None:
        self.t, self.x, self.wide = t, x, f"vector<{x.block}xf32>"
        self.at = t.let("flow.dispatch.workgroup.id[0] : index")
        self.bounds = (t.index(0), t.index(x.blocks), t.index(1))

    def load(self, operand: Operand) -> tuple[str, str]:
        return load(self.t, operand, "readonly", self._offsets(operand), (1, *operand.shape[1:]))

    def outputs(self, outputs: Sequence[Operand]) -> list[tuple[str, str]]:
        return [load(self.t, y, "writeonly", self._offsets(y), (1, *y.shape[1:])) for y in outputs]

    def store(self, outputs: Sequence[Operand], made: Sequence[str], typed: Sequence[tuple[str, str]]) -> None:
        for value, (_, type_), y in zip(made, typed, outputs, strict=True):
            store(self.t, value, type_, y, self._offsets(y), (1, *y.shape[1:]))

    def read(self, value: str, type_: str, b: str) -> str:
        """A block of an operand."""
        t = self.t
        column = t.arith("muli", b, t.index(self.x.block))
        return t.let(
            f"vector.transfer_read {value}[{t.index(0)}, {column}], {t.f32(0.0)} {{in_bounds = [true]}} : {type_}, {self.wide}"
        )

    def _offsets(self, operand: Operand) -> list[str]:
        return [self.at, *["0"] * (len(operand.shape) - 1)]


def write_block(
    t: Text, x: RoundedRows, values: str, row: str, b: str, outputs: Sequence[str], types: Sequence[str]
) -> list[str]:
    """The outputs (of x's operands, parts of them) with a block of numbers, f32, rounded, at a row and a block of these parts."""
    (q, scales, begins), wide, half = outputs[:3], f"vector<{x.block}xf32>", x.block // x.places
    sizes = t.let(f"math.absf {values} : {wide}")
    # Floats without a sign are in the order of their bits, NaN above infinity. A maximum of floats that keeps NaN takes longer.
    bits = t.let(f"vector.bitcast {sizes} : {wide} to vector<{x.block}xi32>")
    largest = t.let(f"vector.reduction <maxsi>, {bits} : vector<{x.block}xi32> into i32")
    most = t.let(f"arith.bitcast {largest} : i32 to f32")
    scale = t.arith("divf", most, t.f32(_LARGEST), "f32")
    inverse = t.arith("divf", t.f32(_LARGEST), most, "f32")
    is_zero = t.let(f"arith.cmpf oeq, {most}, {t.f32(0.0)} : f32")
    inverse = t.let(f"arith.select {is_zero}, {t.f32(0.0)}, {inverse} : f32")
    scaled = t.arith("mulf", values, t.let(f"vector.broadcast {inverse} : f32 to {wide}"), wide)
    nearest = t.let(f"math.roundeven {scaled} : {wide}")
    integers = t.let(f"arith.fptosi {nearest} : {wide} to vector<{x.block}xi32>")
    total = t.let(f"vector.reduction <add>, {integers} : vector<{x.block}xi32> into i32")
    if not x.zeros:
        total = t.arith("muli", total, t.constant(str(-x.middle), "i32"), "i32")
    narrow = t.let(f"arith.trunci {integers} : vector<{x.block}xi32> to vector<{x.block}xi8>")
    sorted_ = (
        [narrow]
        if x.places == 1
        else t.several(f"vector.deinterleave {narrow} : vector<{x.block}xi8> -> vector<{half}xi8>", 2)
    )
    to = t.arith("muli", b, t.index(half))
    for place, part in enumerate(sorted_):
        q = t.let(
            f"vector.transfer_write {part}, {q}[{row}, {t.index(place)}, {to}] {{in_bounds = [true]}} : "
            f"vector<{half}xi8>, {types[0]}"
        )
    scales = t.let(f"tensor.insert {scale} into {scales}[{row}, {b}] : {types[1]}")
    sums = f"vector<{x.sums}xi32>"
    first = t.let(f"vector.insert {total}, {t.constant('dense<0>', sums)}[0] : i32 into {sums}")
    first_at = t.arith("muli", b, t.index(x.sums))
    begins = t.let(
        f"vector.transfer_write {first}, {begins}[{row}, {first_at}] {{in_bounds = [true]}} : {sums}, {types[2]}"
    )
    return [q, scales, begins]

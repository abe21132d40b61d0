"""A product with a weight of a few bits by integers of 8 bits, for processors with AVX2 or AVX-512: what a model allows by
accuracy_level 4 of onnxruntime's MatMulNBits.

Each block of x becomes integers and a scale, largest magnitude / 127, in a dispatch before the product (MLAS rounds so, to the
nearest, ties to even). The product of a block is then exact:

    scale[n, b] * scale_x[m, b] * (sum of q[n, k] * q_x[m, k] - zero[n, b] * sum of q_x[m, k])

Bytes are multiplied as bits_sums.py does. Where the zero point is the middle of the range, it goes into the sums' first number, so
that it costs nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

from onnx_fa.kernels.cpu.bits_body import RowsOfWeight, add_lanes
from onnx_fa.kernels.cpu.bits_rounded import RoundedRows, round_text
from onnx_fa.kernels.cpu.bits_spec import BitsProduct
from onnx_fa.kernels.cpu.bits_sums import ByteSums, Sum
from onnx_fa.kernels.cpu.row_dispatch import call_dispatch, joined
from onnx_fa.kernels.mlir.called import function_text
from onnx_fa.kernels.mlir.operand import Operand
from onnx_fa.kernels.mlir.text import Text
from onnx_fa.spec.target import Target

_ROWS_OF_X = 2
"""At a time: a pair of rows has a sum of integers and one of floats, and 16 pairs of both would be all registers."""


def can_round(product: BitsProduct, target: Target) -> bool:
    """Whether the processor has the instructions, and vectors fit rows and blocks."""
    return target.multiplies_bytes and product.bits in (4, 8) and rounded_rows(product).fits


def rounded_rows(product: BitsProduct) -> RoundedRows:
    """x as the product reads it."""
    return RoundedRows(product.rows, product.K, product.block, product.bits, bool(product.zeros))


def rounded_texts(product: BitsProduct, target: Target, *, given: bool = False) -> dict[str, str]:
    """As `product_texts`; with `given` the function takes x as it was rounded before, and is of the name `name_of_rounded`."""
    p, t, x = product, Text(), rounded_rows(product)
    symbol, weight = f"{p.name}_product", [w.name for w in p.weight]
    dots = {symbol: joined(ByteProducts(p, x.operands, target).text(symbol))}
    if given:
        values, operands, name = [v.name for v in x.operands], (*x.operands, *p.weight), name_of_rounded(p)
    else:
        values, operands, name = call_dispatch(t, x.symbol, [p.x], ["%x"], x.operands), p.operands, p.name
        dots = {x.symbol: joined(round_text(x)), **dots}
    (y,) = call_dispatch(t, symbol, [*x.operands, *p.weight], [*values, *weight], [p.y])
    return {**dots, name: joined(function_text(name, operands, [p.y], t, [y]))}


def name_of_rounded(product: BitsProduct) -> str:
    """The name of the function that takes what was rounded."""
    return f"{product.name}_of_rounded"


class ByteProducts(RowsOfWeight):
    """Numbers of a few bits as bytes, by bytes."""

    by_few_registers = 4, 1
    """A row of the weight is unpacked once for four of x, whose vectors the instructions read from memory."""

    def __init__(self, product: BitsProduct, rounded_x: Sequence[Operand], target: Target, group: int = 0) -> None:
        super().__init__(product, rounded_x, target.registers, _ROWS_OF_X, group)
        self.target, rounded = target, rounded_rows(product)
        self.bytes = min(rounded.bytes, 4 * target.lanes)
        self.count = self.bytes // 4
        of_block = product.block // product.places
        self.together = max(self.bytes // of_block, 1)
        """Blocks in a vector."""
        self.vectors = max(of_block // self.bytes, 1)
        """Vectors of a block."""
        self.alike, self.kept = min(self.bytes, of_block) // 4, rounded.sums
        """Sums of one block in a vector, and as many as x keeps of what they begin with."""
        self.read, self.ints, self.floats = (
            f"vector<{count}x{element}>"
            for count, element in ((self.bytes, "i8"), (self.count, "i32"), (self.count, "f32"))
        )

    def sums(self, ms: list[str], ns: list[str]) -> dict[tuple[str, str], str]:
        t = self.t
        nothing = t.constant("dense<0.0>", self.floats)
        carried = [(nothing, self.floats)] * (len(ms) * len(ns))
        bounds = (t.index(0), t.index(self.p.blocks), t.index(self.together))
        made = t.loop(bounds, carried, lambda b, values: self._blocks(ms, ns, b, values))
        return {(ms[i // len(ns)], ns[i % len(ns)]): add_lanes(t, total, self.count) for i, total in enumerate(made)}

    def _blocks(self, ms: list[str], ns: list[str], b: str, sums: list[str]) -> list[str]:
        """The sums with as many blocks of each row of the weight as a vector has, from block b on."""
        t, p, sums = self.t, self.p, list(sums)
        begins = [self._begin(m, b) for m in ms]
        starts = begins if not p.zeros else [t.constant("dense<0>", self.ints)] * len(ms)
        adds = ByteSums(t, self.target, self.bytes, p.bits)
        dots = {(m, n): Sum(start) for m, start in zip(ms, starts, strict=True) for n in ns}
        start = t.arith("muli", b, t.index(p.block // p.places))
        for vector in range(self.vectors):
            column = t.shifted(start, vector * self.bytes)
            packed = [self._bytes("%weight", f"{n}, {column}") for n in ns]
            for place in range(p.places):
                columns = [self._bytes("%q", f"{m}, {t.index(place)}, {column}") for m in ms]
                for n, bytes_ in zip(ns, packed, strict=True):
                    numbers = self._place(bytes_, place)
                    for m, x in zip(ms, columns, strict=True):
                        dots[m, n] = adds.add(dots[m, n], numbers, x)
        of_x = [self._spread(self._few("%qscale", m, b, "f32"), "f32") for m in ms]
        totals = [t.let(f"arith.sitofp {v} : {self.ints} to {self.floats}") for v in begins] if p.zeros else []
        for i, n in enumerate(ns):
            scale = self._few("%scale", n, b, p.scales)
            if p.scales != "f32":
                scale = t.let(f"arith.extf {scale} : {self._short(p.scales)} to {self._short('f32')}")
            scale = self._spread(scale, "f32")
            zero = self._spread(self._zeros(n, b), "f32") if p.zeros else ""
            for j, m in enumerate(ms):
                at = j * len(ns) + i
                value = t.let(f"arith.sitofp {adds.end(dots[m, n])} : {self.ints} to {self.floats}")
                if zero:
                    value = t.arith("subf", value, t.arith("mulf", zero, totals[j], self.floats), self.floats)
                both = t.arith("mulf", scale, of_x[j], self.floats)
                sums[at] = t.let(f"vector.fma {value}, {both}, {sums[at]} : {self.floats}")
        return sums

    def _short(self, element: str) -> str:
        return f"vector<{self.together}x{element}>"

    def _few(self, name: str, row: str, b: str, element: str) -> str:
        """The numbers of the blocks of a vector."""
        t, (value, type_) = self.t, self.loaded[name]
        nothing = t.constant("0" if element[0] == "i" else "0.0", element)
        return t.let(
            f"vector.transfer_read {value}[{row}, {b}], {nothing} {{in_bounds = [true]}} : {type_}, {self._short(element)}"
        )

    def _spread(self, few: str, element: str) -> str:
        """Each of a few numbers for all sums of its block."""
        order = [i // self.alike for i in range(self.count)]
        return self.t.let(f"vector.shuffle {few}, {few} {order} : {self._short(element)}, {self._short(element)}")

    def _begin(self, row: str, b: str) -> str:
        """What the sums of the blocks of a vector begin with."""
        t, (value, type_) = self.t, self.loaded["%begin"]
        at = t.arith("muli", b, t.index(self.kept))
        return t.let(
            f"vector.transfer_read {value}[{row}, {at}], {t.constant('0', 'i32')} {{in_bounds = [true]}} : {type_}, {self.ints}"
        )

    def _bytes(self, name: str, at: str) -> str:
        """A vector of bytes."""
        t, (value, type_) = self.t, self.loaded[name]
        return t.let(
            f"vector.transfer_read {value}[{at}], {t.constant('0', 'i8')} {{in_bounds = [true]}} : {type_}, {self.read}"
        )

    def _place(self, bytes_: str, place: int) -> str:
        """The numbers at a place of each byte, as bytes."""
        t, p = self.t, self.p
        if p.bits == 8:
            return bytes_
        numbers = t.let(f"vector.bitcast {bytes_} : {self.read} to {self.ints}")  # there is no shift of bytes
        if place:
            numbers = t.arith("shrui", numbers, t.constant(f"dense<{p.bits * place}>", self.ints), self.ints)
        mask = int.from_bytes(bytes([(1 << p.bits) - 1] * 4), "little")
        numbers = t.arith("andi", numbers, t.constant(f"dense<{mask}>", self.ints), self.ints)
        return t.let(f"vector.bitcast {numbers} : {self.ints} to {self.read}")

    def _zeros(self, n: str, b: str) -> str:
        """The zero points of the blocks of a vector, as f32."""
        t = self.t
        each = [self.zero_point(n, t.shifted(b, i)) for i in range(self.together)]
        return t.let(f"vector.from_elements {', '.join(each)} : {self._short('f32')}")

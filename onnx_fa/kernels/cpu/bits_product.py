"""A product with a weight of a few bits for llvm-cpu, written out at the vector level: integers become floats in registers. More
rows of x than a few have a form of their own (bits_many.py); where the rows are known at run time only, each call chooses.

For a few rows the columns of x are sorted by their place in a byte, so that the numbers at one place of neighbouring bytes meet
neighbouring columns: a vector of bytes is loaded once, and each of its places is a shift, a mask, a conversion and a fused
multiply-add; of four bits and with AVX-512, a shift, a look-up (bits_table.py) and a fused multiply-add. Sums run along K,
and each is added up across its lanes at the end.
"""

from __future__ import annotations

from dataclasses import replace

from onnx_fa.kernels.cpu.bits_body import RowsOfWeight, add_lanes
from onnx_fa.kernels.cpu.bits_dots import can_round, rounded_texts
from onnx_fa.kernels.cpu.bits_many import StagedBits, has_many, tiles_of, words_of
from onnx_fa.kernels.cpu.bits_spec import BitsProduct
from onnx_fa.kernels.cpu.bits_table import all_numbers, has_table, looked_up
from onnx_fa.kernels.cpu.linear_body import FEW, LinearTiles
from onnx_fa.kernels.cpu.row_dispatch import call_dispatch, joined
from onnx_fa.kernels.mlir.called import function_text
from onnx_fa.kernels.mlir.text import Text
from onnx_fa.spec.target import Target


def can_multiply(product: BitsProduct, target: Target) -> bool:
    """Whether a kernel can be written: blocks are powers of two and bytes do not hold numbers of two."""
    if product.rounded:
        return can_round(product, target)
    return product.block % product.places == 0 and product.block & (product.block - 1) == 0


def product_texts(product: BitsProduct, target: Target, tiles: LinearTiles | None = None) -> dict[str, str]:
    """The executables and the function of the product's name, which takes its operands and returns y (rows, N), by their symbols.
    Products may share some. `tiles` are those of many rows, if not the measured ones."""
    if product.rounded:
        return rounded_texts(product, target)
    t, few, many = Text(), f"{product.name}_product", f"{product.name}_many"
    many_rows = has_many(product, target)
    texts = dict[str, str]()
    if product.rows is None or not many_rows:
        texts[few] = joined(FloatProducts(product, target.lanes, target.registers).text(few))
    if many_rows:
        texts[many] = joined(StagedBits(product, tiles or tiles_of(product, target)).executable(many))

    def call(symbol: str) -> str:
        operands = [product.sorted_x, *product.weight] if symbol == few else words_of(product)
        values = [x.name for x in product.operands]
        if symbol == few:
            values[0] = _write_sort(t, product)
        else:
            weight, words = product.operands[1], operands[1]
            values[1] = t.let(f"flow.tensor.bitcast {weight.name} : {weight.type} -> {words.type}")
        return call_dispatch(t, symbol, operands, values, [product.y])[0]

    if len(texts) == 1:
        y = call(next(iter(texts)))
    else:
        chosen = t.test("sle", "%rows", t.index(FEW))
        y = t.let(f"scf.if {chosen} -> ({product.y.type}) {{")
        for symbol, end in ((few, "} else {"), (many, "}")):
            t.do(f"scf.yield {call(symbol)} : {product.y.type}")
            t.do(end)
    return {**texts, product.name: joined(function_text(product.name, product.operands, [product.y], t, [y]))}


def _write_sort(t: Text, product: BitsProduct) -> str:
    """x sorted by the place in a byte that a column meets."""
    x, made, lead = product.x, product.sorted_x, product.lead
    dims, size = ("{%rows}", "%rows") if product.rows is None else ("", "")
    split = replace(made, shape=(lead, product.K // product.places, product.places))
    if product.places == 1:
        return t.let(f"flow.tensor.reshape {x.name} : {x.type}{dims} -> {made.type}{dims}")
    value = t.let(f"flow.tensor.reshape {x.name} : {x.type}{dims} -> {split.type}{dims}")
    empty = t.let(f"tensor.empty({size}) : {made.type}")
    outs = f"ins({value} : {split.type}) outs({empty} : {made.type}) permutation = [0, 2, 1]"
    return t.let(f"linalg.transpose {outs}")


class FloatProducts(RowsOfWeight):
    """Numbers of a few bits as floats, by floats."""

    def __init__(self, product: BitsProduct, lanes: int, registers: int) -> None:
        super().__init__(product, [product.sorted_x], registers)
        self.lanes = min(lanes, product.block // product.places)
        self.vec, self.ints = f"vector<{self.lanes}xf32>", f"vector<{self.lanes}xi32>"
        self.by_table = has_table(product.bits, self.lanes)

    def sums(self, ms: list[str], ns: list[str]) -> dict[tuple[str, str], str]:
        t = self.t
        nothing = t.constant("dense<0.0>", self.vec)
        carried = [(nothing, self.vec)] * (len(ms) * len(ns))
        bounds = (t.index(0), t.index(self.p.blocks), t.index(1))
        made = t.loop(bounds, carried, lambda b, values: self._block(ms, ns, b, values))
        return {(ms[i // len(ns)], ns[i % len(ns)]): add_lanes(t, total, self.lanes) for i, total in enumerate(made)}

    def _block(self, ms: list[str], ns: list[str], b: str, sums: list[str]) -> list[str]:
        """The sums with one block of each row of the weight."""
        t, p, sums = self.t, self.p, list(sums)
        factors = [self._factor(n, b) for n in ns]
        bytes_ = p.block // p.places
        start = t.arith("muli", b, t.index(bytes_))
        weight, weight_type = self.loaded["%weight"]
        x, x_type = self.loaded["%x"]
        no_number, no_byte = t.f32(0.0), t.constant("0", "i8")
        for step in range(0, bytes_, self.lanes):
            column = t.shifted(start, step)
            packed = [
                t.let(
                    f"vector.transfer_read {weight}[{n}, {column}], {no_byte} {{in_bounds = [true]}} : {weight_type}, "
                    f"vector<{self.lanes}xi8>"
                )
                for n in ns
            ]
            wide = [t.let(f"arith.extui {v} : vector<{self.lanes}xi8> to {self.ints}") for v in packed]
            for place in range(p.places):
                columns = [
                    t.let(
                        f"vector.transfer_read {x}[{m}, {t.index(place)}, {column}], {no_number} {{in_bounds = [true]}} : "
                        f"{x_type}, {self.vec}"
                    )
                    for m in ms
                ]
                for i, (integers, (scale, offset)) in enumerate(zip(wide, factors, strict=True)):
                    number = self._numbers(integers, place, scale, offset)
                    for j, column_of in enumerate(columns):
                        at = j * len(ns) + i
                        sums[at] = t.let(f"vector.fma {number}, {column_of}, {sums[at]} : {self.vec}")
        return sums

    def _factor(self, n: str, b: str) -> tuple[str, str]:
        """The scale of a block, and what is added to its numbers times that ("" where the zero point is no operand); or a table of
        all its numbers, and ""."""
        t = self.t
        scale = self.widened(self.element("%scale", n, b), self.p.scales)
        spread = t.let(f"vector.broadcast {scale} : f32 to {self.vec}")
        if self.by_table:
            every = all_numbers(t, self.vec, 0 if self.p.zeros else -self.p.middle)
            if self.p.zeros:
                zero = t.let(f"vector.broadcast {self.zero_point(n, b)} : f32 to {self.vec}")
                every = t.arith("subf", every, zero, self.vec)
            return t.arith("mulf", every, spread, self.vec), ""
        if not self.p.zeros:
            return spread, ""
        offset = t.let(f"arith.negf {t.arith('mulf', self.zero_point(n, b), scale, 'f32')} : f32")
        return spread, t.let(f"vector.broadcast {offset} : f32 to {self.vec}")

    def _numbers(self, integers: str, place: int, scale: str, offset: str) -> str:
        """The numbers at a place of some bytes."""
        t, p = self.t, self.p
        if place:
            by = t.constant(f"dense<{p.bits * place}>", self.ints)
            integers = t.arith("shrui", integers, by, self.ints)
        if self.by_table:
            return looked_up(t, scale, integers)
        if p.bits * (place + 1) < 8:
            integers = t.arith("andi", integers, t.constant(f"dense<{(1 << p.bits) - 1}>", self.ints), self.ints)
        if not offset:
            integers = t.arith("subi", integers, t.constant(f"dense<{p.middle}>", self.ints), self.ints)
        number = t.let(f"arith.sitofp {integers} : {self.ints} to {self.vec}")
        if offset:
            return t.let(f"vector.fma {number}, {scale}, {offset} : {self.vec}")
        return t.arith("mulf", number, scale, self.vec)

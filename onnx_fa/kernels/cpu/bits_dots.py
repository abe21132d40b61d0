"""A product with a weight of a few bits by integers of 8 bits, for processors with AVX512_VNNI: what a model allows by
accuracy_level 4 of onnxruntime's MatMulNBits.

Each block of x becomes integers and a scale, largest magnitude / 127, in a dispatch before the product (MLAS rounds so, to the
nearest, ties to even). The product of a block is then exact:

    scale[n, b] * scale_x[m, b] * (sum of q[n, k] * q_x[m, k] - zero[n, b] * sum of q_x[m, k])

One instruction multiplies 64 bytes and adds neighbouring fours. Where the zero point is the middle of the range, it goes into the
sums' first number, so that it costs nothing.
"""

from __future__ import annotations

from onnx_fa.kernels.cpu.bits_body import RowsOfWeight, function_text
from onnx_fa.kernels.cpu.bits_spec import BitsProduct
from onnx_fa.kernels.cpu.row_dispatch import call_dispatch, joined, load, make_executable, store
from onnx_fa.kernels.mlir.operand import Operand
from onnx_fa.kernels.mlir.text import Text
from onnx_fa.spec.target import Target

_BYTES = (64, 32, 16)
"""Of a vector."""
_LEAST_BLOCK = 8
"""Bytes of the smallest block."""
_LARGEST = 127.0
_ROWS_OF_X = 2
"""At a time: a pair of rows has a sum of integers and one of floats, and 16 pairs of both would be all registers."""


def _vector_bytes(product: BitsProduct) -> int:
    """Of the longest vector whose bytes divide a row's; 0 where none does."""
    return next((n for n in _BYTES if product.K // product.places % n == 0), 0)


def _sums_of_block(product: BitsProduct) -> int:
    """Sums of integers that a block has in a vector."""
    return min(_vector_bytes(product), product.block // product.places) // 4


def can_round(product: BitsProduct, target: Target) -> bool:
    """Whether the processor has the instruction, and vectors fit rows and blocks."""
    block, least = product.block, _LEAST_BLOCK * product.places
    fits = block & (block - 1) == 0 and block >= least and _vector_bytes(product) > 0
    return target.byte_dots and product.bits in (4, 8) and fits


def rounded_texts(product: BitsProduct, target: Target) -> dict[str, str]:
    """As `product_texts`."""
    p, t = product, Text()
    rounding = f"bits{p.bits}_{'n' if p.rows is None else p.rows}x{p.K}_{p.block}_round{'_zeros' * bool(p.zeros)}"
    symbol, sorted_x = f"{p.name}_product", _rounded_x(p)
    values = call_dispatch(t, rounding, [p.x], ["%x"], sorted_x)
    weight = [x.name for x in p.weight]
    (y,) = call_dispatch(t, symbol, [*sorted_x, *p.weight], [*values, *weight], [p.y])
    dots = ByteProducts(p, sorted_x, target.registers).text(symbol)
    return {rounding: joined(_round(p, rounding)), symbol: joined(dots), p.name: joined(function_text(p, t, y))}


def _rounded_x(p: BitsProduct) -> list[Operand]:
    """x's integers sorted by their place in a byte, their scales, and what the sums of a block begin with: minus the zero point
    times the integers' sum; where zero points are operands, the integers' sum itself. Zeros follow for the block's other sums."""
    return [
        Operand("%q", (p.lead, p.places, p.K // p.places), "i8"),
        Operand("%qscale", (p.lead, p.blocks), "f32"),
        Operand("%begin", (p.lead, p.blocks * _sums_of_block(p)), "i32"),
    ]


def _round(p: BitsProduct, symbol: str) -> list[str]:
    """The executable that rounds x: a workgroup for each row."""
    t, outputs = Text(), _rounded_x(p)
    at = t.let("flow.dispatch.workgroup.id[0] : index")
    x, x_type = load(t, p.x, "readonly", [at, "0"], (1, p.K))
    parts = [load(t, out, "writeonly", [at, *["0"] * (len(out.shape) - 1)], (1, *out.shape[1:])) for out in outputs]
    types = [type_ for _, type_ in parts]
    zero, wide, half = t.index(0), f"vector<{p.block}xf32>", p.block // p.places
    alike = _sums_of_block(p)
    sums = f"vector<{alike}xi32>"
    zeros = t.constant("dense<0>", sums)

    def block(b: str, carried: list[str]) -> list[str]:
        q, scales, begins = carried
        column = t.arith("muli", b, t.index(p.block))
        values = t.let(
            f"vector.transfer_read {x}[{zero}, {column}], {t.f32(0.0)} {{in_bounds = [true]}} : {x_type}, {wide}"
        )
        sizes = t.let(f"math.absf {values} : {wide}")
        most = t.let(f"vector.reduction <maximumf>, {sizes} : {wide} into f32")
        scale = t.arith("divf", most, t.f32(_LARGEST), "f32")
        inverse = t.arith("divf", t.f32(_LARGEST), most, "f32")
        is_zero = t.let(f"arith.cmpf oeq, {most}, {t.f32(0.0)} : f32")
        inverse = t.let(f"arith.select {is_zero}, {t.f32(0.0)}, {inverse} : f32")
        scaled = t.arith("mulf", values, t.let(f"vector.broadcast {inverse} : f32 to {wide}"), wide)
        nearest = t.let(f"math.roundeven {scaled} : {wide}")
        integers = t.let(f"arith.fptosi {nearest} : {wide} to vector<{p.block}xi32>")
        total = t.let(f"vector.reduction <add>, {integers} : vector<{p.block}xi32> into i32")
        if not p.zeros:
            total = t.arith("muli", total, t.constant(str(-p.middle), "i32"), "i32")
        narrow = t.let(f"arith.trunci {integers} : vector<{p.block}xi32> to vector<{p.block}xi8>")
        sorted_ = (
            [narrow]
            if p.places == 1
            else t.several(f"vector.deinterleave {narrow} : vector<{p.block}xi8> -> vector<{half}xi8>", 2)
        )
        to = t.arith("muli", b, t.index(half))
        for place, part in enumerate(sorted_):
            q = t.let(
                f"vector.transfer_write {part}, {q}[{zero}, {t.index(place)}, {to}] {{in_bounds = [true]}} : "
                f"vector<{half}xi8>, {types[0]}"
            )
        scales = t.let(f"tensor.insert {scale} into {scales}[{zero}, {b}] : {types[1]}")
        first = t.let(f"vector.insert {total}, {zeros}[0] : i32 into {sums}")
        first_at = t.arith("muli", b, t.index(alike))
        begins = t.let(
            f"vector.transfer_write {first}, {begins}[{zero}, {first_at}] {{in_bounds = [true]}} : {sums}, {types[2]}"
        )
        return [q, scales, begins]

    made = t.loop((zero, t.index(p.blocks), t.index(1)), parts, block)
    for value, type_, out in zip(made, types, outputs, strict=True):
        store(t, value, type_, out, [at, *["0"] * (len(out.shape) - 1)], (1, *out.shape[1:]))
    groups = [f"%x = arith.constant {p.rows} : index"]
    if p.rows is None:
        groups = ["%zero = arith.constant 0 : index", "%x = arith.addi %rows, %zero : index"]
    return make_executable(symbol, [p.x], outputs, groups, t.render())


class ByteProducts(RowsOfWeight):
    """Numbers of a few bits as bytes, by bytes."""

    def __init__(self, product: BitsProduct, sorted_x: list[Operand], registers: int) -> None:
        super().__init__(product, sorted_x, registers, _ROWS_OF_X)
        self.bytes = _vector_bytes(product)
        self.count = self.bytes // 4
        of_block = product.block // product.places
        self.together = max(self.bytes // of_block, 1)
        """Blocks in a vector."""
        self.vectors = max(of_block // self.bytes, 1)
        """Vectors of a block."""
        self.alike = _sums_of_block(product)
        """Sums of one block in a vector."""
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
        return {(ms[i // len(ns)], ns[i % len(ns)]): self.added_up(total, self.count) for i, total in enumerate(made)}

    def _blocks(self, ms: list[str], ns: list[str], b: str, sums: list[str]) -> list[str]:
        """The sums with as many blocks of each row of the weight as a vector has, from block b on."""
        t, p, sums = self.t, self.p, list(sums)
        begins = [self._begin(m, b) for m in ms]
        starts = begins if not p.zeros else [t.constant("dense<0>", self.ints)] * len(ms)
        dots = {(m, n): start for m, start in zip(ms, starts, strict=True) for n in ns}
        start = t.arith("muli", b, t.index(p.block // p.places))
        for vector in range(self.vectors):
            column = t.shifted(start, vector * self.bytes)
            packed = [self._bytes("%weight", f"{n}, {column}") for n in ns]
            for place in range(p.places):
                columns = [self._bytes("%q", f"{m}, {t.index(place)}, {column}") for m in ms]
                for n, bytes_ in zip(ns, packed, strict=True):
                    numbers = self._place(bytes_, place)
                    for m, x in zip(ms, columns, strict=True):
                        dots[m, n] = t.let(
                            f'llvm.call_intrinsic "llvm.x86.avx512.vpdpbusd.{8 * self.bytes}"({dots[m, n]}, {numbers}, {x}) : '
                            f"({self.ints}, {self.read}, {self.read}) -> {self.ints}"
                        )
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
                value = t.let(f"arith.sitofp {dots[m, n]} : {self.ints} to {self.floats}")
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
        at = t.arith("muli", b, t.index(self.alike))
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

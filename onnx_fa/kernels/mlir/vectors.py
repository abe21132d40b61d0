"""Vectors of W f32 lanes as MLIR text: arithmetic, exp2, transposes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from onnx_fa.kernels.mlir.text import Text, float_literal, is_memref

EXP2_POWERS = (
    1.0,
    0.6931470036506653,
    0.24022242426872253,
    0.05550733581185341,
    0.009671512991189957,
    0.0013264728477224708,
)
"""2^x on [-1/2, 1/2], lowest power first: minimax fit of the relative error, 1.7e-7 in f32 arithmetic. The first is held at 1: 2^0
must be exact, for it is the factor of every block that brings no new maximum."""
WHOLE_EXP2_POWERS = (
    1.0,
    0.6931513118234252,
    0.24016444993681407,
    0.0557999138798095,
    0.009017029253313507,
    0.0018671305697957547,
)
"""2^x on [0, 1], with a relative error of 1.5e-7 in f32 arithmetic, fitted the same way: for numbers whose whole part an
instruction takes off, which rounds down."""
ROUGH_EXP2_POWERS = (1.0, 0.6951166307279054, 0.22764497750173107, 0.07706724029949892)
"""2^x on [0, 1] with a relative error of 8.6e-5, for numbers that are rounded to bf16 (3.9e-3 from one to the next) before they are
used. The first is held at 1 as well."""
NEAREST_INT = 12582912.0
"""1.5 * 2^23: adding it to |x| < 2^22 in f32 leaves x rounded to a whole number in the low bits."""

Exp2 = Literal["polynomial", "rough", "compiler"]
_OF_AVX512 = 16
"""Lanes."""
_FLOOR, _AS_SET = 1, 4
"""How instructions round: down, or as the processor is set."""


class Lanes(Text):
    """Operations on vectors of `width` lanes: f32 (`vec`), i32 (`ivec`), i1 (`bvec`). `exp2_by`: by whom exp2 is computed: by a
    polynomial written here, by a rough one (16 lanes), or by the compiler."""

    fma = "vector.fma"

    def __init__(self, width: int, *, exp2_by: Exp2 = "polynomial") -> None:
        super().__init__()
        self.width, self.exp2_by = width, exp2_by
        self.vec, self.ivec, self.bvec = (f"vector<{width}x{e}>" for e in ("f32", "i32", "i1"))

    def type(self, element: str) -> str:
        return f"vector<{self.width}x{element}>"

    def dense(self, literal: str, element: str) -> str:
        """A literal in every lane."""
        return self.constant(f"dense<{literal}>", self.type(element))

    def splat(self, value: float) -> str:
        return self.dense(float_literal(value), "f32")

    def vop(self, op: str, *operands: str) -> str:
        """An operation whose operands and result are f32 vectors."""
        return self.let(f"{op} {', '.join(operands)} : {self.vec}")

    def compare(self, predicate: str, a: str, b: str) -> str:
        return self.let(f"arith.cmpf {predicate}, {a}, {b} : {self.vec}")

    def select(self, condition: str, a: str, b: str) -> str:
        return self.let(f"arith.select {condition}, {a}, {b} : {self.bvec}, {self.vec}")

    def maximum(self, a: str, b: str) -> str:
        """a > b ? a : b, one instruction on most machines (unlike arith.maximumf); b where either is NaN."""
        return self.select(self.compare("ogt", a, b), a, b)

    def minimum(self, a: str, b: str) -> str:
        """a < b ? a : b, likewise."""
        return self.select(self.compare("olt", a, b), a, b)

    def broadcast(self, scalar: str, type_: str = "f32") -> str:
        return self.let(f"vector.broadcast {scalar} : {type_} to vector<{self.width}x{type_}>")

    def read(self, tensor: str, type_: str, *indices: str, element: str = "f32", in_bounds: bool = True) -> str:
        """W elements along the last axis; what is out of bounds reads 0 (of a tensor: a memref has all of them)."""
        if is_memref(type_):
            return self.let(f"vector.load {tensor}[{', '.join(indices)}] : {type_}, vector<{self.width}x{element}>")
        zero = self.constant("0" if element.startswith("i") else "0.0", element)
        inside = "true" if in_bounds else "false"
        return self.let(
            f"vector.transfer_read {tensor}[{', '.join(indices)}], {zero} {{in_bounds = [{inside}]}} : {type_}, "
            f"vector<{self.width}x{element}>"
        )

    def write(
        self, value: str, tensor: str, type_: str, *indices: str, element: str = "f32", in_bounds: bool = True
    ) -> str:
        """The tensor (or the same memref) with W elements along its last axis replaced; what is out of bounds of a tensor is
        dropped."""
        if is_memref(type_):
            self.do(f"vector.store {value}, {tensor}[{', '.join(indices)}] : {type_}, vector<{self.width}x{element}>")
            return tensor
        inside = "true" if in_bounds else "false"
        return self.let(
            f"vector.transfer_write {value}, {tensor}[{', '.join(indices)}] {{in_bounds = [{inside}]}} : "
            f"vector<{self.width}x{element}>, {type_}"
        )

    def exp2(self, x: str) -> str:
        """2^x for x <= 0: exactly 0 at -inf, and below -126 (of rough ones, below -149); NaN stays NaN.

        x = n + r with n an integer: a polynomial gives 2^r, and n, added to its exponent bits, scales it. n comes from
        adding 1.5 * 2^23, which leaves it in the low bits of the sum. AVX-512 has instructions for both.
        """
        if self.exp2_by == "compiler":
            return self.vop("math.exp2", x)
        if self.width == _OF_AVX512:
            return self._whole_exp2(x)
        rounded = self.vop("arith.addf", x, self.splat(NEAREST_INT))
        r = self.vop("arith.subf", x, self.vop("arith.subf", rounded, self.splat(NEAREST_INT)))
        p = self.polynomial(r, EXP2_POWERS)
        bits, n = (self.let(f"arith.bitcast {y} : {self.vec} to {self.ivec}") for y in (p, rounded))
        n = self.arith("shli", n, self.constant("dense<23>", self.ivec), self.ivec)
        scaled = self.let(f"arith.bitcast {self.arith('addi', bits, n, self.ivec)} : {self.ivec} to {self.vec}")
        return self.select(self.compare("olt", x, self.splat(-126.0)), self.splat(0.0), scaled)

    def _whole_exp2(self, x: str) -> str:
        """vreduceps takes the part of x behind the point, and vscalefps scales a power of it by 2^floor(x)."""
        part = self._masked("reduce", [(x, self.vec), (self.constant(str(_FLOOR), "i32"), "i32")])
        if self.exp2_by == "rough":
            return self._masked("scalef", [(self.polynomial(part, ROUGH_EXP2_POWERS), self.vec), (x, self.vec)])
        # What is not less is computed, NaN too: numbers below the least normal one take processors a hundred times as long.
        lanes = self.let(f"vector.bitcast {self.compare('uge', x, self.splat(-126.0))} : {self.bvec} to vector<1xi16>")
        lanes = self.let(f"vector.extract {lanes}[0] : i16 from vector<1xi16>")
        power = self.polynomial(part, WHOLE_EXP2_POWERS)
        return self._masked("scalef", [(power, self.vec), (x, self.vec)], lanes)

    def _masked(self, name: str, operands: list[tuple[str, str]], lanes: str = "") -> str:
        """An instruction of AVX-512 in all lanes, or in some, as bits, the others 0; in the processor's own way of rounding."""
        operands = [*operands, (self.splat(0.0), self.vec), (lanes or self.constant("-1", "i16"), "i16")]
        values, types = zip(*operands, (self.constant(str(_AS_SET), "i32"), "i32"), strict=True)
        op = f'llvm.call_intrinsic "llvm.x86.avx512.mask.{name}.ps.512"({", ".join(values)})'
        return self.let(f"{op} : ({', '.join(types)}) -> {self.vec}")

    def polynomial(self, x: str, powers: Sequence[float], fma: str = "") -> str:
        """The sum of powers of x, with such factors, the lowest first; by this operation, if not the usual one."""
        p = self.splat(powers[-1])
        for c in reversed(powers[:-1]):
            p = self.vop(fma or self.fma, p, x, self.splat(c))
        return p

    def transpose(self, rows: list[str]) -> list[str]:
        """W vectors of W lanes, transposed, by shuffles that are one or two instructions each (W: 4, 8 or 16)."""
        w = self.width
        # 4 x 4 within each group of four lanes: out[4 i + c], group g, then holds column 4 g + c of rows 4 i .. 4 i + 3
        out: list[str] = []
        for i in range(0, w, 4):
            out += self.turn_four(rows[i : i + 4])
        # Then the groups of the rows that share c.
        result = list(out)
        for c in range(4):
            for g, moved in enumerate(self._transpose_groups(out[c::4])):
                result[4 * g + c] = moved
        return result

    def sum_lanes(self, rows: list[str]) -> str:
        """Of W vectors of W lanes, the sum of the lanes of each, in a lane of its own: a transpose that adds after each of its
        steps, so that every step has half of the vectors of the one before."""
        for unit in (1, 2):
            rows = [
                self.vop("arith.addf", *(self._unpack(a, b, unit, half) for half in (0, 1)))
                for a, b in zip(rows[::2], rows[1::2], strict=True)
            ]
        # Group g of four lanes of the i-th of these holds parts of the sums of rows 4 i .. 4 i + 3.
        groups = self.width // 4
        while len(rows) > 1:
            even, odd = range(0, groups, 2), range(1, groups, 2)
            rows = [
                self.vop("arith.addf", *(self._pick(a, b, tuple(half)) for half in (even, odd)))
                for a, b in zip(rows[::2], rows[1::2], strict=True)
            ]
        return rows[0]

    def turn_four(self, rows: list[str]) -> list[str]:
        """Four rows as four vectors: group g of four lanes of the one at c is column 4 g + c."""
        ab, cd = ([self._unpack(a, b, 1, h) for h in (0, 1)] for a, b in (rows[:2], rows[2:]))
        return [self._unpack(ab[half], cd[half], 2, h) for half in (0, 1) for h in (0, 1)]

    def _shuffle(self, a: str, b: str, mask: list[int]) -> str:
        return self.let(f"vector.shuffle {a}, {b} {mask} : {self.vec}, {self.vec}")

    def _unpack(self, a: str, b: str, unit: int, high: int) -> str:
        """Interleaves units of 1 or 2 lanes from the low or high half of each group of four lanes."""
        return self._shuffle(a, b, unpack_order(self.width, 4, unit, high))

    def _pick(self, a: str, b: str, groups: tuple[int, ...]) -> str:
        """Some groups of four lanes of a, then those of b."""
        lanes = [4 * g + i for g in groups for i in range(4)]
        return self._shuffle(a, b, [*lanes, *(self.width + x for x in lanes)])

    def _transpose_groups(self, rows: list[str]) -> list[str]:
        """Groups of four lanes as the elements of a square matrix: 1 x 1, 2 x 2 or 4 x 4."""

        if len(rows) == 1:
            return rows
        if len(rows) == 2:
            return [self._pick(rows[0], rows[1], (g,)) for g in (0, 1)]
        halves = [(self._pick(rows[0], rows[1], h), self._pick(rows[2], rows[3], h)) for h in ((0, 1), (2, 3))]
        return [self._pick(a, b, h) for a, b in halves for h in ((0, 2), (1, 3))]


def unpack_order(lanes: int, group: int, unit: int, high: int) -> list[int]:
    """The order of a shuffle of two vectors that interleaves units of lanes from the low or high half of each group."""
    order: list[int] = []
    for first in range(0, lanes, group):
        half = first + high * group // 2
        for start in range(half, half + group // 2, unit):
            order += [*range(start, start + unit), *range(lanes + start, lanes + start + unit)]
    return order


class Scalars(Lanes):
    """The same operations on single values, with names of their own."""

    fma = "math.fma"

    def __init__(self) -> None:
        super().__init__(1)
        self.vec, self.ivec, self.bvec = "f32", "i32", "i1"

    def _name(self) -> str:
        self._count += 1
        return f"%e{self._count}"

    def type(self, element: str) -> str:
        return element

    def dense(self, literal: str, element: str) -> str:
        return self.constant({"true": "1", "false": "0"}.get(literal, literal), element)

    def compare(self, predicate: str, a: str, b: str) -> str:
        return self.let(f"arith.cmpf {predicate}, {a}, {b} : f32")

    def select(self, condition: str, a: str, b: str) -> str:
        return self.let(f"arith.select {condition}, {a}, {b} : f32")

    def take(self) -> list[str]:
        """The operations so far, without the constants, which stay."""
        lines, self._lines = self._lines, []
        return lines

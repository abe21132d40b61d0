"""Linear sites whose numbers are multiplied as words of 32 bits, as which the dispatch sees them: pairs of bf16, neighbours along
K, by AVX512_BF16, and fours of bytes by AVX512_VNNI."""

from __future__ import annotations

from onnx_fa.kernels.cpu.amx import Product
from onnx_fa.kernels.cpu.linear_body import LinearBody

_SIGN = -0x7F7F7F80
"""The highest bit of four bytes, as an i32."""


class PairBody(LinearBody):
    """Products by vdpbf16ps, whose sums are f32."""

    tile_product: Product = "tdpbf16ps"

    def _multiply(self, number: str, weight: str, total: str) -> str:
        t, halves = self.t, f"vector<{2 * self.t.width}xbf16>"
        a, b = (t.let(f"vector.bitcast {x} : {t.vec} to {halves}") for x in (number, weight))
        op = f'llvm.call_intrinsic "llvm.x86.avx512bf16.dpbf16ps.{32 * t.width}"({total}, {a}, {b})'
        return t.let(f"{op} : ({t.vec}, {halves}, {halves}) -> {t.vec}")


class ByteBody(LinearBody):
    """Products by vpdpbusd, of bytes without a sign by such with one. Sums are i32, and exact."""

    sum_element = "i32"

    @property
    def tile_product(self) -> Product:
        return "tdpbusd" if self.spec.dtype == "u8" else "tdpbssd"

    def _multiply(self, number: str, weight: str, total: str) -> str:
        t, bytes_ = self.t, f"vector<{4 * self.t.width}xi8>"
        if self.spec.dtype == "i8":  # 128 more, so that it has no sign; _unbiased takes it away again
            ints = t.let(f"vector.bitcast {number} : {t.vec} to {t.ivec}")
            flipped = t.arith("xori", ints, t.dense(str(_SIGN), "i32"), t.ivec)
            number = t.let(f"vector.bitcast {flipped} : {t.ivec} to {t.vec}")
        a, b = (t.let(f"vector.bitcast {x} : {t.vec} to {bytes_}") for x in (number, weight))
        op = f'llvm.call_intrinsic "llvm.x86.avx512.vpdpbusd.{32 * t.width}"({total}, {a}, {b})'
        return t.let(f"{op} : ({t.ivec}, {bytes_}, {bytes_}) -> {t.ivec}")

    def _add(self, a: str, b: str) -> str:
        return self.t.arith("addi", a, b, self.t.ivec)

    def _unbiased(self, total: str, column: str) -> str:
        return self._less(total, self.t.dense("128", "i32"), column) if self.spec.dtype == "i8" else total

    def _number(self, total: str, column: str) -> str:
        t = self.t
        if self.spec.zero:
            zero = t.broadcast(t.extract(*self.loaded["%zero"]), "i32")
            total = self._less(total, zero, column)
        return t.let(f"arith.sitofp {total} : {t.ivec} to {t.vec}")

    def _less(self, total: str, number: str, column: str) -> str:
        """The sums for an x that is less by a number: by that number times the sum of a column of the weight."""
        t = self.t
        sums = t.read(*self.loaded["%sums"], column, element="i32")
        return t.arith("subi", total, t.arith("muli", number, sums, t.ivec), t.ivec)

"""Sums of products of bytes as a weight of a few bits makes them, u8 by i8, in 32 bits and exact.

With AVX512_VNNI one instruction multiplies a vector of bytes and adds neighbouring fours to the sums. Without it vpmaddubsw
multiplies numbers of four bits: it adds neighbouring pairs in 16 bits and cuts off what passes them, but a pair is 2 x 15 x 128 at
most, and eight of these fit. Of eight bits one pair may pass 16 bits, so that bytes become numbers of 16 bits first, which vpmaddwd
multiplies and adds in 32.
"""

from __future__ import annotations

from typing import NamedTuple

from onnx_fa.kernels.mlir.text import Text
from onnx_fa.spec.target import Target

_FEW_BITS, _PAIRS = 4, 8
"""Bits of numbers whose pairs fit 16 bits, and so many sums of such pairs do."""
_TO_PAIRS = {16: "ssse3.pmadd.ub.sw.128", 32: "avx2.pmadd.ub.sw", 64: "avx512.pmaddubs.w.512"}
_TO_WORDS = {16: "sse2.pmadd.wd", 32: "avx2.pmadd.wd", 64: "avx512.pmaddw.d.512"}
"""The instructions by the bytes of a vector."""


class Sum(NamedTuple):
    """Sums in 32 bits, and those of pairs in 16 bits, so many products of which were added up, that are not yet in them."""

    total: str
    pairs: str = ""
    held: int = 0


class ByteSums:
    """Adds products of vectors of so many bytes, the first of which are numbers of so many bits without a sign."""

    def __init__(self, t: Text, target: Target, size: int, bits: int) -> None:
        self.t, self.size, self.bits, self.dots = t, size, bits, target.byte_dots
        self.bytes, self.halves, self.words = (
            f"vector<{size}xi8>",
            f"vector<{size // 2}xi16>",
            f"vector<{size // 4}xi32>",
        )

    def add(self, sums: Sum, numbers: str, x: str) -> Sum:
        """The sums with the products of two vectors of bytes."""
        t, both = self.t, f"{self.bytes}, {self.bytes}"
        if self.dots:
            op = f'llvm.call_intrinsic "llvm.x86.avx512.vpdpbusd.{8 * self.size}"({sums.total}, {numbers}, {x})'
            return Sum(t.let(f"{op} : ({self.words}, {both}) -> {self.words}"))
        if self.bits > _FEW_BITS:
            return Sum(self._add_wide(sums.total, numbers, x))
        op = f'llvm.call_intrinsic "llvm.x86.{_TO_PAIRS[self.size]}"({numbers}, {x})'
        made = t.let(f"{op} : ({both}) -> {self.halves}")
        found = Sum(sums.total, t.arith("addi", sums.pairs, made, self.halves) if sums.held else made, sums.held + 1)
        return Sum(self.end(found)) if found.held == _PAIRS else found

    def end(self, sums: Sum) -> str:
        """The sums in 32 bits, with those of pairs."""
        if not sums.held:
            return sums.total
        ones = self.t.constant("dense<1>", self.halves)
        return self._add_words(sums.total, sums.pairs, ones)

    def _add_wide(self, total: str, numbers: str, x: str) -> str:
        """The sums with products of the even bytes and of the odd ones, as numbers of 16 bits."""
        t, by = self.t, self.t.constant("dense<8>", self.halves)
        numbers, x = (t.let(f"vector.bitcast {v} : {self.bytes} to {self.halves}") for v in (numbers, x))
        even = t.arith("andi", numbers, t.constant("dense<255>", self.halves), self.halves)
        odd = t.arith("shrui", numbers, by, self.halves)
        even_x = t.arith("shrsi", t.arith("shli", x, by, self.halves), by, self.halves)
        odd_x = t.arith("shrsi", x, by, self.halves)
        return self._add_words(self._add_words(total, even, even_x), odd, odd_x)

    def _add_words(self, total: str, a: str, b: str) -> str:
        t, both = self.t, f"({self.halves}, {self.halves})"
        made = t.let(f'llvm.call_intrinsic "llvm.x86.{_TO_WORDS[self.size]}"({a}, {b}) : {both} -> {self.words}')
        return t.arith("addi", total, made, self.words)

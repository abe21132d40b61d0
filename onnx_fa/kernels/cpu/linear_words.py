"""Linear sites of bf16 and bytes for processors that have AVX2 but no products of such numbers.

The dispatch sees words of 32 bits, as it does where a processor multiplies them (linear_pairs.py), so that panels are the same.
Each word becomes two factors: of a pair of bf16 two f32, whose upper halves they are; of four bytes two pairs of whole numbers of
16 bits, which vpmaddwd multiplies and adds in 32 bits. All of it is exact.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

from onnx_fa.kernels.cpu.linear_body import LinearBody, LinearTiles, steps_of
from onnx_fa.kernels.cpu.linear_pairs import ByteBody
from onnx_fa.kernels.cpu.linear_staged import StagedBody
from onnx_fa.spec.linear import LinearSpec

_UPPER = -0x10000
"""The upper half of a word, as an i32."""


class StagedWords(StagedBody):
    """Products of words that become factors in a block of memory, or in registers for a few rows. The first factors of a block's
    words lie before their second ones, those of x as those of the weight, so that nothing is interleaved."""

    def __init__(self, spec: LinearSpec, tiles: LinearTiles, workers: Sequence[int]) -> None:
        super().__init__(spec, tiles, workers)
        self.stages_x, self.steps = True, 2 * steps_of(spec)

    @abstractmethod
    def _of_weight(self, words: str) -> tuple[str, str]:
        """The two factors that each of some words of the weight becomes."""

    @abstractmethod
    def _of_x(self, words: str) -> tuple[str, str]:
        """The same of x."""

    def _multiply_factors(self, number: str, weight: str, total: str) -> str:
        """The sums with the products of factors."""
        return super()._multiply(number, weight, total)

    def _multiply(self, number: str, weight: str, total: str) -> str:
        if self.staged:
            return self._multiply_factors(number, weight, total)
        for x, w in zip(self._of_x(number), self._of_weight(weight), strict=True):
            total = self._multiply_factors(x, w, total)
        return total

    def _sums(self, panel: str, rows: list[str]) -> list[str]:
        return LinearBody._sums(self, panel, rows)

    def _weights(self, panel: str, at: str) -> list[str]:
        return (StagedBody if self.staged else LinearBody)._weights(self, panel, at)

    def _element(self, index: int, row: str, k: str, after: int) -> str:
        return (StagedBody if self.staged else LinearBody)._element(self, index, row, k, after)

    def _words_of_block(self) -> tuple[str, str]:
        """The first word of the block, and the number of its words."""
        t = self.t
        return t.arith("divui", self.start, t.index(2)), t.arith("divui", self.size, t.index(2))

    def _stage_weight(self, panel: str, column: str) -> None:
        t = self.t
        start, words = self._words_of_block()

        def row(k: str) -> None:
            for j, vector in enumerate(LinearBody._weights(self, panel, t.arith("addi", start, k))):
                for at, factor in zip((k, t.arith("addi", words, k)), self._of_weight(vector), strict=True):
                    t.write(factor, self.w_block, self.w_type, at, t.index(t.width * j))

        self._each(words, 1, row)

    def _stage_x(self, rows: list[str]) -> None:
        t, (x, x_type) = self.t, self.loaded["%x"]
        start, words = self._words_of_block()
        rest = t.arith("remui", words, t.index(t.width)) if steps_of(self.spec) % t.width else ""
        whole = t.arith("subi", words, rest) if rest else words

        def vector(k: str) -> None:
            for i, row in enumerate(rows):
                read = t.read(x, x_type, row, t.arith("addi", start, k))
                for at, factor in zip((k, t.arith("addi", words, k)), self._of_x(read), strict=True):
                    t.write(factor, self.x_block, self.x_type, t.index(i), at)

        def word(k: str) -> None:
            first = t.arith("addi", whole, k)
            for i, row in enumerate(rows):
                read = t.broadcast(t.extract(x, x_type, row, t.arith("addi", start, first)))
                for at, factor in zip((first, t.arith("addi", words, first)), self._of_x(read), strict=True):
                    number = t.let(f"vector.extract {factor}[0] : f32 from {t.vec}")
                    t.insert(number, self.x_block, self.x_type, t.index(i), at)

        self._each(whole, t.width, vector)
        if rest:
            self._each(rest, 1, word)


class WidenedPairs(StagedWords):
    """Of bf16, by products of f32."""

    def _of_weight(self, words: str) -> tuple[str, str]:
        t = self.t
        ints = t.let(f"vector.bitcast {words} : {t.vec} to {t.ivec}")
        lower = t.arith("shli", ints, t.dense("16", "i32"), t.ivec)
        upper = t.arith("andi", ints, t.dense(str(_UPPER), "i32"), t.ivec)
        first, second = (t.let(f"vector.bitcast {v} : {t.ivec} to {t.vec}") for v in (lower, upper))
        return first, second

    def _of_x(self, words: str) -> tuple[str, str]:
        return self._of_weight(words)


class WidenedBytes(StagedWords, ByteBody):
    """Of bytes, by products of 16 bits: the first factor of a word has its even bytes, the second its odd ones. Numbers with a sign
    stay as they are, and sums are exact."""

    def _of_weight(self, words: str) -> tuple[str, str]:
        return self._halves(words, "shrsi")

    def _of_x(self, words: str) -> tuple[str, str]:
        return self._halves(words, "shrui" if self.spec.dtype == "u8" else "shrsi")

    def _halves(self, words: str, shift: str) -> tuple[str, str]:
        """Bytes as numbers of 16 bits, with a sign or without by the kind of shift."""
        t, halves = self.t, self._pairs
        by = t.constant("dense<8>", halves)
        odd = t.let(f"vector.bitcast {words} : {t.vec} to {halves}")
        even = t.arith(shift, t.arith("shli", odd, by, halves), by, halves)
        first, second = (
            t.let(f"vector.bitcast {v} : {halves} to {t.vec}") for v in (even, t.arith(shift, odd, by, halves))
        )
        return first, second

    @property
    def _pairs(self) -> str:
        return f"vector<{2 * self.t.width}xi16>"

    def _multiply_factors(self, number: str, weight: str, total: str) -> str:
        t, halves = self.t, self._pairs
        a, b = (t.let(f"vector.bitcast {x} : {t.vec} to {halves}") for x in (number, weight))
        op = f'llvm.call_intrinsic "llvm.x86.avx2.pmadd.wd"({a}, {b})'
        return self._add(total, t.let(f"{op} : ({halves}, {halves}) -> {t.ivec}"))

    def _unbiased(self, total: str, column: str) -> str:
        return total

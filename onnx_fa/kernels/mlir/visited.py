"""Which keys a block of queries visits, where blocks that a mask by positions hides are left out."""

from __future__ import annotations

from collections.abc import Callable

from onnx_fa.kernels.mlir.text import Text
from onnx_fa.kernels.plan.score import window
from onnx_fa.kernels.plan.skipping import Skipping
from onnx_fa.spec.attention import AttentionSpec
from onnx_fa.spec.terms import IndexMask


class VisitedKeys:
    """Writes the bounds of the walk over the keys, in blocks of `block` keys, into `t`. `offset` gives the SSA index of an index
    mask's first key, `length` is that of the number of keys."""

    def __init__(
        self,
        t: Text,
        spec: AttentionSpec,
        skips: Skipping,
        block: int,
        length: Callable[[], str],
        offset: Callable[[IndexMask], str],
    ) -> None:
        self.t, self.spec, self.skips, self.block = t, spec, skips, block
        self.length, self.offset = length, offset

    def of_queries(self, m0: str, queries: int) -> tuple[str, str]:
        """The keys to visit for so many queries from m0 on: (first, end), the first a multiple of the block."""
        t = self.t
        zero, end = t.index(0), self.length()
        first = zero
        if not self.skips.terms:
            return first, end
        last = t.shifted(m0, queries - 1)
        for i in sorted(self.skips.terms):
            mask = self.spec.masks[i]
            assert isinstance(mask, IndexMask)
            left, right = window(mask)
            if right is not None:
                end = t.arith(
                    "minsi", end, t.arith("addi", last, t.arith("addi", self.offset(mask), t.index(right + 1)))
                )
            if left is not None:
                reach = t.arith("subi", self.offset(mask), t.index(left))
                first = t.arith("maxsi", first, t.arith("addi", m0, reach))
        end = t.arith("maxsi", end, zero)
        if first != zero:
            block = t.index(self.block)
            first = t.arith("muli", t.arith("divui", t.arith("minsi", first, end), block), block)
        return first, end

    def left_out(self, first: str, end: str, needed: str) -> tuple[str, Callable[[str], str]]:
        """The number of blocks outside of `first` to `end` where the boolean `needed` holds, else 0, and where the n-th of them
        begins."""
        t, block = self.t, self.t.index(self.block)
        before, after = t.arith("divui", first, block), t.arith("ceildivui", end, block)
        blocks = t.arith("ceildivui", self.length(), block)
        count = t.arith("addi", before, t.arith("subi", blocks, after))
        count = t.choose(needed, count, t.index(0))

        def begin(n: str) -> str:
            behind = t.arith("addi", t.arith("subi", n, before), after)
            early = t.arith("cmpi ult,", n, before)
            return t.arith("muli", t.choose(early, n, behind), block)

        return count, begin

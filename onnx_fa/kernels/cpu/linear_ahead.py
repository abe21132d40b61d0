"""The dispatch of a linear site that asks for the weight some steps before it multiplies by it.

A model's weights are not in the caches near a core when a call comes to them: each product reads its own. Where two multipliers
of 512 bits work on a panel, what they need of it in a step is two lines of a cache, which the processor's own prefetcher brings too
late.
"""

from __future__ import annotations

from onnx_fa.kernels.cpu.addresses import Addresses
from onnx_fa.kernels.cpu.linear_body import FEW, LinearBody, steps_of
from onnx_fa.kernels.mlir.text import Text

AHEAD = 32
"""Steps of K between asking for a row of a panel and multiplying by it."""
_LINE = 64
"""Bytes of a line of the caches."""


def fetch_line(t: Text, at: str, *, hint: int = 3) -> None:
    """Reads the line of data at a pointer into all caches, or with a lower hint not into the first, or nothing where the address is
    nobody's: the last panel's end is fetched past."""
    t.do(f'"llvm.intr.prefetch"({at}) <{{rw = 0 : i32, hint = {hint} : i32, cache = 1 : i32}}> : (!llvm.ptr) -> ()')


class AheadBody(LinearBody):
    """Products of f32 whose weight is fetched ahead in tiles of more than a few rows. Of a few rows reading the weight is all that
    takes time, and its loads alone keep memory busy."""

    places: Addresses

    def executable(self, symbol: str) -> list[str]:
        self.addresses = self.places = Addresses(symbol)
        return super().executable(symbol)

    def _begin(self) -> None:
        self.w_at = self.places.of(self.t, *self.loaded["%w"])

    def _walk(self, panel: str, rows: list[str], bounds: tuple[str, str], sums: list[str]) -> list[str]:
        t = self.t
        self.panel_at = ""
        if len(rows) > FEW:
            first = t.arith("muli", panel, t.index(4 * steps_of(self.spec) * self.spec.panel))
            start = t.arith("addi", self.w_at, t.let(f"arith.index_cast {first} : index to i64"), "i64")
            self.panel_at = t.let(f"llvm.inttoptr {start} : i64 to !llvm.ptr")
        return super()._walk(panel, rows, bounds, sums)

    def _weights(self, panel: str, at: str) -> list[str]:
        if self.panel_at:
            self._fetch(at)
        return super()._weights(panel, at)

    def _fetch(self, step: str) -> None:
        """Asks for the row of the panel that is multiplied by AHEAD steps later."""
        t, row = self.t, 4 * self.spec.panel
        index = t.let(f"arith.index_cast {step} : index to i64")
        row_type = f"!llvm.array<{row} x i8>"
        now = t.let(f"llvm.getelementptr {self.panel_at}[{index}] : (!llvm.ptr, i64) -> !llvm.ptr, {row_type}")
        for byte in range(AHEAD * row, (AHEAD + 1) * row, _LINE):
            line = t.let(f"llvm.getelementptr {now}[{byte}] : (!llvm.ptr) -> !llvm.ptr, i8")
            fetch_line(t, line)

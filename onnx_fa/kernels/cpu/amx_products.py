"""Operands of attention as AMX multiplies them: bf16 in memory of the stack.

    S^T = K Q^T:    K as it is, a row of pairs of head dims per key;  Q^T in pairs of head dims, a column per query
    O^T = V^T P:    V^T, a row of pairs of keys per head dim;         P in pairs of keys, in the place of the scores

The pairs of Q^T and P are those of `PairProducts`: the layout of AMX's right factor. Zeros fill the head dims up to whole tiles.
"""

from __future__ import annotations

from onnx_fa.errors import UnsupportedError
from onnx_fa.kernels.cpu.amx import PAIRS
from onnx_fa.kernels.cpu.bf16_products import PairProducts
from onnx_fa.kernels.cpu.operands import Operands
from onnx_fa.kernels.cpu.state import Block
from onnx_fa.kernels.cpu.tile_loops import over_rows
from onnx_fa.kernels.mlir.text import memref_type
from onnx_fa.spec.attention import AttentionSpec


def check_tiles(spec: AttentionSpec) -> None:
    """Raises UnsupportedError for what is not multiplied by tiles."""
    if spec.quantized or spec.rounding is not None or spec.gathered is not None:
        raise UnsupportedError("AMX: K and V are integers or read by rows, or probabilities are rounded")
    if spec.D < 2 * PAIRS or spec.D % 2 or spec.Dv % PAIRS:
        raise UnsupportedError(f"AMX: head dims {spec.D} and {spec.Dv} do not fill tiles")
    if any(layout.index(spec.rank - 1) < layout.index(spec.rank - 2) for layout in (spec.k_layout, spec.v_layout)):
        raise UnsupportedError("AMX: K or V is transposed")


def tiled_pairs(spec: AttentionSpec) -> int:
    """Pairs of head dims in whole tiles."""
    return -(-spec.D // (2 * PAIRS)) * PAIRS


class TileProducts(PairProducts):
    """The operands in memory. Raises UnsupportedError for what `check_tiles` refuses."""

    def __init__(self, operands: Operands, query_factor: float) -> None:
        super().__init__(operands, query_factor)
        spec, config = operands.spec, operands.config
        check_tiles(spec)
        self.pairs = tiled_pairs(spec)
        self.queries_type = memref_type((self.pairs, config.BM), "f32")
        self.copied_type = memref_type((config.BK, self.pairs), "f32")
        self.values_type = memref_type((spec.Dv, config.BK // 2), "f32")

    def empty_queries(self) -> str:
        t, spare = self.t, self.pairs - self.operands.spec.D // 2
        tile = super().empty_queries()
        if spare:
            first = t.index(self.operands.spec.D // 2)

            def clear(row: str, column: str, out: str) -> str:
                return t.write(t.splat(0.0), out, self.queries_type, t.arith("addi", first, row), column)

            over_rows(t, self.operands.config.BM, spare, tile, self.queries_type, clear)
        return tile

    def empty_keys(self) -> str:
        """The tile for K, zeros where no head dim comes."""
        t, tile = self.t, self.t.empty(self.copied_type)
        if self.pairs > self.operands.spec.D // 2:

            def clear(row: str, column: str, out: str) -> str:
                return t.write(t.splat(0.0), out, self.copied_type, row, column)

            over_rows(t, self.pairs, self.operands.config.BK, tile, self.copied_type, clear)
        return tile

    def transpose_values(self, tile: str, block: Block) -> None:
        """Writes V^T of a block: 16 pairs of keys by 16 head dims at a time."""
        t, w = self.t, self.t.width

        def keys(pair: str, carried: list[str]) -> list[str]:
            rows = [self.values_of(block, t.shifted(pair, i)) for i in range(w)]

            def dims(d: str, inner: list[str]) -> list[str]:
                out = inner[0]
                for i, x in enumerate(t.transpose([row(d) for row in rows])):
                    out = t.write(x, out, self.values_type, t.shifted(d, i), pair)
                return [out]

            bounds = (t.index(0), t.index(self.operands.spec.Dv), t.index(w))
            return t.loop(bounds, [(carried[0], self.values_type)], dims)

        steps = t.arith("divui", block.rows, t.index(2))
        t.loop((t.index(0), steps, t.index(w)), [(tile, self.values_type)], keys)

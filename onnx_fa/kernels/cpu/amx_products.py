"""Operands of attention as AMX multiplies them: bf16 in memory of the stack.

    S^T = K Q^T:    K as it is, a row of pairs of head dims per key;  Q^T in pairs of head dims, a column per query
    O^T = V^T P:    V^T, a row of pairs of keys per head dim;         P in pairs of keys, in the place of the scores

The pairs of Q^T and P are those of `PairProducts`: the layout of AMX's right factor. Zeros fill the head dims up to whole tiles.
Where K's rows fill tiles as they are, tiles are loaded from there, and only the keys that pass the last one are copied.
"""

from __future__ import annotations

import math

from onnx_fa.errors import UnsupportedError
from onnx_fa.kernels.cpu.addresses import Addresses
from onnx_fa.kernels.cpu.amx import PAIRS
from onnx_fa.kernels.cpu.bf16_products import PairProducts
from onnx_fa.kernels.cpu.key_rows import passes_last_key, row_at
from onnx_fa.kernels.cpu.operands import Operands
from onnx_fa.kernels.cpu.state import Block
from onnx_fa.kernels.cpu.tile_loops import over_rows
from onnx_fa.kernels.cpu.tiles import CpuTiles
from onnx_fa.kernels.mlir.text import memref_type
from onnx_fa.kernels.mlir.vectors import unpack_order
from onnx_fa.spec.attention import AttentionSpec

_TURNED = 8
"""Head dims that values are transposed by."""


def check_tiles(spec: AttentionSpec) -> None:
    """Raises UnsupportedError for what is not multiplied by tiles."""
    if spec.quantized or spec.rounding is not None or spec.gathered is not None:
        raise UnsupportedError("AMX: K and V are integers or read by rows, or probabilities are rounded")
    if spec.D < 2 * PAIRS or spec.D % 2 or spec.Dv % PAIRS:
        raise UnsupportedError(f"AMX: head dims {spec.D} and {spec.Dv} do not fill tiles")
    if any(layout.index(spec.rank - 1) < layout.index(spec.rank - 2) for layout in (spec.k_layout, spec.v_layout)):
        raise UnsupportedError("AMX: K or V is transposed")


def key_bytes(spec: AttentionSpec) -> int | None:
    """Bytes from a key of K to the next, if tiles can be loaded from there: rows of bf16 that fill tiles, of a known distance."""
    stored = [spec.canonical_shapes[1][axis] for axis in spec.k_layout]
    behind = stored[spec.k_layout.index(spec.rank - 2) + 1 :]
    if spec.dtype != "bf16" or spec.D % (2 * PAIRS) or any(isinstance(d, str) for d in behind):
        return None
    return 2 * math.prod(d for d in behind if isinstance(d, int))


def tiled_pairs(spec: AttentionSpec) -> int:
    """Pairs of head dims in whole tiles."""
    return -(-spec.D // (2 * PAIRS)) * PAIRS


def copied_keys(spec: AttentionSpec, config: CpuTiles) -> int:
    """Rows of the tile that K is copied to: those of two of AMX's tiles where most keys are read in place, or a block's."""
    return config.BK if key_bytes(spec) is None else config.tile_keys


class TileProducts(PairProducts):
    """The operands in memory, of the dispatch `symbol`. Where K is read in place, `addresses` tell where that is. Raises
    UnsupportedError for what `check_tiles` refuses."""

    def __init__(self, operands: Operands, query_factor: float, symbol: str) -> None:
        super().__init__(operands, query_factor)
        spec, config = operands.spec, operands.config
        check_tiles(spec)
        self.pairs, self.key_bytes = tiled_pairs(spec), key_bytes(spec)
        self.addresses = None if self.key_bytes is None else Addresses(symbol, "bf16")
        self.queries_type = memref_type((self.pairs, config.BM), "f32")
        self.copied_type = memref_type((copied_keys(spec, config), self.pairs), "f32")
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
        """Writes V^T of a block."""
        if self.operands.v.element == "bf16" and not passes_last_key(self.operands, block):
            self._turn_values(tile, block)
        else:
            self._turn_pairs(tile, block)

    def _turn_values(self, tile: str, block: Block) -> None:
        """32 keys by 8 head dims at a time. Every fourth of a vector is 8 numbers of a key: 8 vectors hold 32 keys, and three steps
        turn each of their fourths within itself."""
        t, v, step = self.t, self.operands.v, 2 * PAIRS
        zero = t.constant("0.0", "bf16")

        def keys(first: str, carried: list[str]) -> list[str]:
            pair = t.arith("divui", first, t.index(2))

            def read(i: int, d: str) -> str:
                parts, lanes = list[str](), _TURNED
                for place in range(0, step, _TURNED):
                    row = row_at(self.operands, block, t.shifted(first, place + i)).stored
                    read = f"vector.transfer_read {v.value}[{row}, {d}], {zero} {{in_bounds = [true]}}"
                    parts.append(t.let(f"{read} : {v.type}, vector<{lanes}xbf16>"))
                while len(parts) > 1:
                    type_, order = f"vector<{lanes}xbf16>", list(range(2 * lanes))
                    pairs = zip(parts[::2], parts[1::2], strict=True)
                    parts = [t.let(f"vector.shuffle {a}, {b} {order} : {type_}, {type_}") for a, b in pairs]
                    lanes *= 2
                return parts[0]

            def dims(d: str, inner: list[str]) -> list[str]:
                out = inner[0]
                for i, x in enumerate(self._turned([read(i, d) for i in range(_TURNED)])):
                    out = t.write(self.as_pairs(x), out, self.values_type, t.shifted(d, i), pair)
                return [out]

            bounds = (t.index(0), t.index(self.operands.spec.Dv), t.index(_TURNED))
            return t.loop(bounds, [(carried[0], self.values_type)], dims)

        t.loop((t.index(0), block.rows, t.index(step)), [(tile, self.values_type)], keys)

    def _turned(self, rows: list[str]) -> list[str]:
        """Eight vectors, every group of eight lanes of which is transposed with the others' groups of that place."""
        t = self.t
        for unit in (1, 2, 4):
            made = list(rows)
            for low in (i for i in range(_TURNED) if not i & unit):
                for half in (0, 1):
                    order = unpack_order(2 * PAIRS, _TURNED, unit, half)
                    made[low + half * unit] = t.let(
                        f"vector.shuffle {rows[low]}, {rows[low + unit]} {order} : {self.halves}, {self.halves}"
                    )
            rows = made
        return [rows[int(f"{i:03b}"[::-1], 2)] for i in range(_TURNED)]

    def _turn_pairs(self, tile: str, block: Block) -> None:
        """16 pairs of keys by 16 head dims at a time."""
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

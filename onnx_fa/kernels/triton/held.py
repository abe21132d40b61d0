"""The form for few keys: all of them are one block, which a workgroup loads once and holds while it takes block after block of a
head's queries. What the next ones read is on its way while those before them are computed.

Such an attention takes the time of reading queries and writing outputs. A workgroup for each block of queries waits for its keys
before it begins, and all of them read the keys as often as there are blocks.
"""

from __future__ import annotations

import math
from typing import Any

from onnx_fa.errors import UnsupportedError
from onnx_fa.kernels.tiles.database import Tiles
from onnx_fa.kernels.triton.columns import Part
from onnx_fa.kernels.triton.config import FEW, HELD, MULTIPROCESSORS, TritonConfig, padded
from onnx_fa.kernels.triton.key_rows import KeyBlock, KeyRows
from onnx_fa.kernels.triton.program import loop_in
from onnx_fa.kernels.triton.source import AttentionSource
from onnx_fa.spec.attention import AttentionSpec
from onnx_fa.spec.terms import Dim

MOST_HELD = 256
"""Keys, whose scores are in registers."""
_WORKGROUPS = 2 * MULTIPROCESSORS
_WORKGROUPS_AHEAD = 8 * MULTIPROCESSORS
"""So many there should be at the least, where the next queries are loaded ahead the latter: what was fastest on an H100."""


def can_hold(spec: AttentionSpec) -> bool:
    """Whether the form is for a spec (already folded): one of known sizes with few keys, kept as numbers in their order, which one
    walk sees."""
    if not all(isinstance(d, int) for d in (*spec.batch, spec.Hq, spec.Hkv, spec.Sq, spec.Skv)):
        return False
    if spec.quantized or spec.gathered is not None or len(loop_in(spec).walks) > 1:
        return False
    return int(spec.Sq) > FEW and 0 < int(spec.Skv) <= MOST_HELD


def blocks_together(heads: int, blocks: int, stages: int) -> int:
    """For how many blocks of a head's queries a workgroup holds the keys: for as many as leave enough workgroups, and in all of a
    head for about as many."""
    together = min(blocks, max(1, heads * blocks // (_WORKGROUPS if stages == 1 else _WORKGROUPS_AHEAD)))
    return -(-blocks // -(-blocks // together))


def rows_of_workgroup(spec: AttentionSpec, config: TritonConfig) -> int:
    """How many queries of a head a workgroup takes at the most, in any form."""
    if config.overlap != HELD:
        return config.BM
    heads = math.prod(int(d) for d in (*spec.batch, spec.Hq))
    return config.BM * blocks_together(heads, -(-int(spec.Sq) // config.BM), config.stages)


def with_all_keys(tiles: Tiles, Skv: Dim) -> Tiles:
    """Tiles of the form as a spec with so many keys has them: all in one block, whatever they say of blocks of keys."""
    return {**tiles, "BN": padded(int(Skv))} if tiles["overlap"] == HELD and isinstance(Skv, int) else tiles


class HeldSource(AttentionSource):
    """Writes the source. Raises UnsupportedError for what only other forms carry."""

    def __init__(self, spec: AttentionSpec, config: TritonConfig, name: str, **options: Any) -> None:
        if not can_hold(spec) or config.splits > 1:
            raise UnsupportedError(
                f"keys are held in attentions of known sizes with at most {MOST_HELD} keys, which one walk sees, as numbers"
            )
        if padded(int(spec.Skv)) != config.BN:
            raise UnsupportedError(
                f"{spec.Skv} keys that are held are a block of {padded(int(spec.Skv))}, not {config.BN}"
            )
        super().__init__(spec, config, name, **options)
        self.blocks_together = rows_of_workgroup(spec, config) // config.BM
        self.held: dict[tuple[str, Part], list[str]] = {}
        """The numbers of K and V, by letter and columns."""

    @property
    def corrects(self) -> bool:
        """Before the only block there is but the sink."""
        return super().corrects and self.spec.sink is not None

    def body(self) -> None:
        t, spec = self.t, self.spec
        lead = self.place()
        self.indices()
        self.bases = [self.tensor_base(i, x, lead) for i, x in enumerate(spec.tensors)]
        inside = f"(on < {self.skv})" if self.ragged_keys else ""
        self.hold(KeyBlock("0", inside, ""))
        self.sweep, first = self.loop.walks[0], self.m0
        t.do(f"for n in range({self.blocks_of_workgroup(first)}):")
        t.indent += 1
        self.m0 = t.let(f"{first} + n * {self.config.BM}")
        self.number_rows()
        self.load_queries()
        self.load_columns()
        self.scores.start_ramp()
        if self.sweep.weight is not None:
            self.start_output()
        self.start_rows()
        self.start_sink(lead)
        t.indent -= 1
        self.block("0", edge=self.has_edges)
        t.indent += 1
        self.finish(lead)
        t.indent -= 1

    def hold(self, block: KeyBlock) -> None:
        for rows in (self.keys, self.values):
            for part in rows.parts:
                self.held[rows.letter, part] = rows.tiles(part, block)

    def blocks_of_workgroup(self, first: str) -> str:
        """How many blocks of queries there are from the first on that are this workgroup's."""
        rows = self.config.BM * self.blocks_together
        if int(self.spec.Sq) % rows == 0 or int(self.spec.Sq) <= rows:
            return str(-(-min(int(self.spec.Sq), rows) // self.config.BM))
        return self.t.let(f"tl.minimum({self.blocks_together}, tl.cdiv({self.sq} - {first}, {self.config.BM}))")

    def tiles_of(self, rows: KeyRows, part: Part, block: KeyBlock) -> list[str]:
        return self.held[rows.letter, part]

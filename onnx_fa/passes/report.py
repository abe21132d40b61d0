"""What a count of passes says: each pass with its ops, and what is held from one to the next."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Keys:
    """Where K or V, or a tensor that is a part of it, holds keys: along `axis`, from the key `at`, where there are `of` in all; 0
    if these are all."""

    axis: int
    at: int = 0
    of: int = 0


@dataclass(frozen=True)
class Pass:
    """One pass. `barriers`: the ops among `ops` whose reduction over M is complete only when it ends. `live`: what is held from
    this pass to a later one (values by name, bytes)."""

    ops: tuple[str, ...]
    barriers: tuple[str, ...]
    live: tuple[tuple[str, int], ...] = ()

    @property
    def live_bytes(self) -> int:
        return sum(size for _, size in self.live)


@dataclass(frozen=True)
class PassReport:
    """The passes over M in order. `between`: ops on block statistics or without M whose result a later pass reads; `after`: those
    that can wait until all passes are over. `block_bytes`: the largest tensor of one block, 0 where nothing runs by blocks."""

    passes: tuple[Pass, ...]
    between: tuple[str, ...]
    after: tuple[str, ...]
    block_bytes: int = 0

    @property
    def count(self) -> int:
        return len(self.passes)

    @property
    def live_bytes(self) -> int:
        """The most bytes that are held from one pass to the next; results, and one block's tensors, are not counted."""
        return max((p.live_bytes for p in self.passes[:-1]), default=0)

    def to_dict(self) -> dict[str, Any]:
        return {
            "count": self.count,
            "live_bytes": self.live_bytes,
            "block_bytes": self.block_bytes,
            "passes": [
                {"ops": list(p.ops), "barriers": list(p.barriers), "live_bytes": p.live_bytes} for p in self.passes
            ],
            "between": list(self.between),
            "after": list(self.after),
        }

"""Sizes of the SPIR-V kernel: who computes what in a workgroup, and how much at a time."""

from __future__ import annotations

import math
from dataclasses import dataclass

from onnx_fa.spec.attention import AttentionSpec

INVOCATIONS = 64
"""Of a workgroup: all Vulkan devices have 128, and a subgroup has 64 at the most."""
FEW_ROWS = 32
"""With fewer queries per head than this, several invocations share the keys of one."""


@dataclass(frozen=True)
class SpirvConfig:
    """Whole numbers, all powers of two. A workgroup has `rows` queries of one head, each of which `lanes` invocations share."""

    rows: int
    lanes: int
    """Invocations of a query, each with a part of the keys."""
    keys: int
    """Keys of a step of the loop, which correct what was carried once."""
    width_qk: int
    """Head dims of Q and K that are read at once."""
    width_v: int
    """Head dims of V and the output that are read and written at once."""


def choose_config(spec: AttentionSpec) -> SpirvConfig:
    """The sizes for a spec whose queries are folded."""
    queries = spec.Sq if isinstance(spec.Sq, int) else INVOCATIONS
    rows = INVOCATIONS if queries >= FEW_ROWS else 1 << (queries - 1).bit_length()
    head_dim = spec.rank - 1

    def width(dim: int, *layouts: tuple[int, ...]) -> int:
        return math.gcd(dim, 4) if all(x[-1] == head_dim for x in layouts) else 1

    return SpirvConfig(
        rows,
        INVOCATIONS // rows,
        8 if max(spec.D, spec.Dv) <= 64 else 4,
        width(spec.D, spec.q_layout, spec.k_layout),
        width(spec.Dv, spec.v_layout, spec.o_layout),
    )

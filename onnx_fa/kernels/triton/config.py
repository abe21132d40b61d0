"""Tiles of a Triton kernel, for one architecture."""

from __future__ import annotations

from dataclasses import dataclass

ARCHITECTURES = (90, 80)
"""What every kernel is compiled for: sm_90a, with the instructions that only Hopper has, and sm_80 for all others from there."""
SHARED_BYTES = {90: 227 * 1024, 80: 99 * 1024}
"""Shared memory of a workgroup; sm_80's has 163 KiB, but its code also runs on sm_86 and sm_89, which have 99."""
MOST_SPLITS = 128
MOST_COMBINED = 32 << 10
"""Bytes of parts that one workgroup reads in the time which a dispatch that combines them takes longer to start."""
WARPGROUP_ROWS = 64
"""Rows of Hopper's own products, which four warps make together and which read from shared memory."""
PERSISTENT = 3
"""The form (`overlap`) whose workgroups stay."""
HELD = 4
"""The form (`overlap`) whose workgroups hold all keys of a head, and take block after block of queries."""
CLUSTER = 5
"""The form (`overlap`) whose workgroups that share keys are a cluster."""
MULTIPROCESSORS = 132
"""Of an H100 or H200 with NVLink: as many workgroups stay. On a GPU with fewer the last ones wait for the first, on one with more
some multiprocessors are idle."""
FEW = 16
"""Up to so many queries (of a key/value head) are one block, whose time is that of reading K and V."""


def code_for(capability: int) -> int:
    """Which of the ARCHITECTURES' code a GPU of a compute capability (90 for 9.0) runs; 0 where none of it runs there."""
    if capability // 10 == 9:
        return 90
    return 80 if capability >= 80 else 0


@dataclass(frozen=True)
class TritonConfig:
    """BM queries and BN keys per block; `warps` of 32 threads; `stages` of the load pipeline; `order` of the workgroups: 0 walks
    the query blocks of a head first, 1 the heads, more so many heads together, where workgroups stay; `overlap`: 1 hides the
    softmax behind the products (overlapped.py), 2 does so in two groups of `warps`, with BM / 2 queries each, and loads in another
    warp (specialised.py), 3 does so in groups with 64 queries each, in workgroups that stay (persistent.py), 4 has all keys in one
    block, which is held (held.py), 5 has parts of the keys whose workgroups are a cluster (cluster.py); `splits` of the keys, whose
    partial results are combined in the end (1: none). Raises ValueError for tiles that no kernel can have."""

    BM: int
    BN: int
    warps: int
    stages: int
    order: int = 0
    overlap: int = 0
    splits: int = 1

    def __post_init__(self) -> None:
        for name, least in (("BM", 16), ("BN", 16), ("warps", 1)):
            value = getattr(self, name)
            thrice = self.overlap == PERSISTENT and name == "BM" and value == 3 * WARPGROUP_ROWS
            if value < least or (value & (value - 1) and not thrice):
                raise ValueError(f"{name} must be a power of two from {least} on: {self}")
        if self.stages < 1 or not 1 <= self.splits <= MOST_SPLITS:
            raise ValueError(f"stages and splits must be positive, splits at most {MOST_SPLITS}: {self}")
        if self.order < 0 or (self.order > 1 and self.overlap != PERSISTENT):
            raise ValueError(f"heads in groups are for workgroups that stay: {self}")


def f32_products(rows: int, warps: int, arch: int, *, tf32: bool = False) -> str:
    """How f32 is multiplied on tensor cores, in Triton's words. On Hopper, whose products of 64 rows read from shared memory, as
    six of bf16, of the three parts that 24 bits make; else as three of tf32, of which the fewer parts are cheaper to make. Both are
    as near to the reference as fused multiply-adds. `tf32`: as a single one, which is not."""
    if tf32:
        return "tf32"
    return "bf16x6" if arch // 10 == 9 and rows >= WARPGROUP_ROWS and warps % 4 == 0 else "tf32x3"


def few_parts(splits: int, queries: int, Dv: int) -> bool:
    """Whether the last of the workgroups that share the keys of so many queries combines their parts, in f32, faster than a
    dispatch of its own, with a workgroup for each query."""
    return 4 * splits * queries * Dv <= MOST_COMBINED


def power_of_two(n: int) -> int:
    """The least power of two that is not below n."""
    return 1 << (n - 1).bit_length()


def padded(width: int) -> int:
    """A head dim as the tiles have it."""
    return max(16, power_of_two(width))

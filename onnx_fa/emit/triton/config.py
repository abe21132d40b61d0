"""Tiles of a Triton kernel, for one architecture: measured ones from the tuning database, else built in."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass

from onnx_fa.spec import AttentionSpec
from onnx_fa.target import Target
from onnx_fa.tuning.database import Tiles, pick, queries_computed

ARCHITECTURES = (90, 80)
"""What every kernel is compiled for: sm_90a, with the instructions that only Hopper has, and sm_80 for all other GPUs from there on."""
SHARED_BYTES = {90: 227 * 1024, 80: 99 * 1024}
"""Shared memory of a workgroup; sm_80's has 163 KiB, but its code also runs on sm_86 and sm_89, which have 99."""
PROCESSORS = 128
"""About as many multiprocessors as a large GPU has: what a split of the keys should keep busy."""
MOST_SPLITS = 64


@dataclass(frozen=True)
class TritonConfig:
    """BM queries and BN keys per block; `warps` of 32 threads; `stages` of the load pipeline; `order` of the workgroups: 0 walks the
    query blocks of a head first, 1 the heads; `descriptors`: 1 loads K and V by Hopper's copy engine; `splits` of the keys, whose
    partial results a second dispatch combines (1: none); `precision` of f32 products: 0 is f32, 1 three products of tf32, 2 one. Raises ValueError for tiles that no kernel can have."""

    BM: int
    BN: int
    warps: int
    stages: int
    order: int = 0
    descriptors: int = 0
    splits: int = 1
    precision: int = 0

    def __post_init__(self) -> None:
        for name, least in (("BM", 16), ("BN", 16), ("warps", 1)):
            value = getattr(self, name)
            if value < least or value & (value - 1):
                raise ValueError(f"{name} must be a power of two from {least} on: {self}")
        if self.stages < 1 or not 1 <= self.splits <= MOST_SPLITS:
            raise ValueError(f"stages and splits must be positive, splits at most {MOST_SPLITS}: {self}")


def power_of_two(n: int) -> int:
    """The least power of two that is not below n."""
    return 1 << (n - 1).bit_length()


def padded(width: int) -> int:
    """A head dim as the tiles have it."""
    return max(16, power_of_two(width))


def tuned(spec: AttentionSpec, target: Target, arch: int) -> tuple[TritonConfig, str]:
    """Measured tiles of the architecture for the attention (already folded) whose shape is nearest, and where they are from."""
    database = dataclasses.replace(target, name=f"cuda-sm_{arch}")

    def fits(tiles: Tiles) -> bool:
        return _few(spec) == (tiles["BM"] <= 16) and (spec.dtype == "f32" or tiles["warps"] > 0)

    found = pick(database, "triton", spec, fits, lambda t: queries_computed(spec.Sq, t["BM"]))
    want = max(padded(spec.D), padded(spec.Dv))
    if found and found.entry.family.dtype != "f32" == spec.dtype:
        found = None  # tiles of halves do not fit
    if found and max(padded(found.entry.family.D), padded(found.entry.family.Dv)) == want:
        return TritonConfig(**{**found.choice.tiles, "splits": splits(spec)}), found.reason
    return default_config(spec, arch), "built in: nothing measured has such head dims"


def _few(spec: AttentionSpec) -> bool:
    return isinstance(spec.Sq, int) and spec.Sq <= 16


def splits(spec: AttentionSpec) -> int:
    """How many parts the keys are cut into: one where there are many queries, else what fills the GPU, of 128 keys at the least."""
    if not isinstance(spec.Sq, int) or spec.Sq > 32:
        return 1
    heads = 1
    for d in (*spec.batch, spec.Hq):
        heads *= d if isinstance(d, int) else 8
    wanted = power_of_two(max(1, -(-2 * PROCESSORS // heads)))
    keys = spec.Skv if isinstance(spec.Skv, int) else 1 << 14
    return min(wanted, power_of_two(max(1, keys // 256)), MOST_SPLITS)


def default_config(spec: AttentionSpec, arch: int) -> TritonConfig:
    """Tiles that compile for any spec, fast ones where a measured family is near."""
    width = max(padded(spec.D), padded(spec.Dv))
    parts = splits(spec)
    rows = min(128, padded(spec.Sq)) if isinstance(spec.Sq, int) else 128
    if spec.dtype == "f32":
        small = {16: (64, 32), 32: (64, 32), 64: (64, 32), 128: (32, 32)}.get(width, (16, 16))
        return TritonConfig(min(rows, small[0]), small[1], 4, 2, splits=parts)
    if rows <= 32:
        return TritonConfig(rows, 64, 4, 3, splits=parts)
    if arch >= 90:
        if width <= 64:
            return TritonConfig(rows, 128, 8 if rows == 128 else 4, 3)
        if width == 128:
            return TritonConfig(rows, 64, 8 if rows == 128 else 4, 3)
        return TritonConfig(min(rows, 64 if width > 256 else 128), 32, 8, 2)
    if width <= 64:
        return TritonConfig(rows, 64, 4, 3)
    return TritonConfig(min(rows, 128 if width == 128 else 64), 32, 8 if width == 128 and rows == 128 else 4, 2)


def smaller(config: TritonConfig) -> Iterator[TritonConfig]:
    """The tiles, then ever smaller ones, for where they do not fit."""
    while True:
        yield config
        if config.stages > 2:
            config = dataclasses.replace(config, stages=config.stages - 1)
        elif config.BN > 16:
            config = dataclasses.replace(config, BN=config.BN // 2)
        elif config.BM > 16:
            config = dataclasses.replace(config, BM=config.BM // 2, warps=max(4, config.warps // 2))
        elif config.stages > 1:
            config = dataclasses.replace(config, stages=1)
        else:
            return

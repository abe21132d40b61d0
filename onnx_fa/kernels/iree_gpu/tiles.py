"""Tiles of the attention dispatch: which there are, whether they fit, and what was measured."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

from onnx_fa.errors import UnsupportedError
from onnx_fa.kernels.iree_gpu.matmul import matrix_unit, subgroup_size
from onnx_fa.kernels.plan.folding import fold_queries
from onnx_fa.kernels.tiles.database import Tiles, pick, queries_computed
from onnx_fa.spec.attention import AttentionSpec
from onnx_fa.spec.switches import Switch
from onnx_fa.spec.target import Target

SHARED_BYTES = {"cuda": 96 * 1024, "rocm": 64 * 1024}
"""Shared memory that the tiles of one workgroup may take."""
WIDEST = 256
"""The largest head dim: wider ones take more registers than there are."""
_MOST_REGISTERS = 192
"""What a thread's part of a block's scores and output may take."""
_ENOUGH_WORKGROUPS = 264
"""Two for each processor of a large GPU: fewer do not fill it."""


@dataclass(frozen=True)
class GpuConfig:
    """Tiles of the kernel, whole numbers as the tuning database has them."""

    BM: int
    """Queries per block."""
    BN: int
    """Keys per block."""
    subgroups: int
    """Subgroups of the workgroup, which share the queries."""
    transpose_v: int = 0
    """1: a dispatch before transposes V, as matrix instructions read it along the keys."""
    stage_q_in_shared: int = 1
    """1: Q goes through shared memory in every block, and takes no registers between them."""
    pipeline_stages: int = 1
    """Blocks of K and V on their way ahead of the one that is computed, and one."""


def round_up(size: int, unit: int) -> int:
    """`size` rounded up to whole units."""
    return -(-size // unit) * unit


def head_dims(spec: AttentionSpec, target: Target) -> tuple[int, int]:
    """D and Dv as matrix instructions and copies by all threads take them, zeros added: where no number of threads suits both,
    powers of two."""
    unit = matrix_unit(target, spec.dtype)
    first, second = (max(unit.k, 8), max(unit.n, 8)) if unit else (4, 16)
    d, dv = round_up(spec.D, first), round_up(spec.Dv, second)
    odd = {x // (x & -x) for x in (d, dv)}
    if len(odd - {1} if unit else odd) > 1 or not odd <= {1, 3, 5, 7}:
        d, dv = (1 << (x - 1).bit_length() for x in (d, dv))
    return d, dv


def halves(spec: AttentionSpec, target: Target, config: GpuConfig) -> tuple[bool, bool]:
    """Whether D, and a block's keys, are written as two halves: see body.py."""
    unit = matrix_unit(target, spec.dtype)
    if unit is None or target.backend != "cuda":
        return False, False
    keys = bool(config.transpose_v) and isinstance(spec.Skv, int) and config.BN % (2 * unit.keys) == 0
    return head_dims(spec, target)[0] % (2 * unit.k) == 0, keys


def shared_bytes(spec: AttentionSpec, target: Target, config: GpuConfig) -> int:
    """Shared memory of a workgroup's tiles of Q, K and V, with the padding against bank conflicts; RDNA's P goes through it too."""
    d, dv = head_dims(spec, target)
    size = 4 if spec.dtype == "f32" else 2
    q = config.BM * (d + 16 // size) if config.stage_q_in_shared else 0
    kv = config.BN * (d + dv + 32 // size) * max(1, config.pipeline_stages - 1)
    p = (
        config.BM * (config.BN + 16 // size)
        if matrix_unit(target, spec.dtype) is None or target.arch == "gfx1100"
        else 0
    )
    return size * (q + kv + p)


def default_config(spec: AttentionSpec, target: Target) -> GpuConfig:
    """Tiles where nothing was measured: the first that fit registers and shared memory. Raises UnsupportedError where none do."""
    d, dv = head_dims(spec, target)
    wide = max(d, dv) > 128
    rows = spec.Sq if isinstance(spec.Sq, int) else WIDEST
    long = isinstance(spec.Sq, int) and isinstance(spec.Skv, int) and rows >= WIDEST
    with_unit = matrix_unit(target, spec.dtype) is not None
    least = 16 if with_unit else 8
    keys = (32, 64, 48, 16) if wide or not with_unit else (64, 32, 48, 96, 16)
    # Odd numbers of subgroups are for head dims whose rows do not divide among a power of two of threads.
    subgroups = sorted((4, 3, 5, 6, 7, 2, 1), key=lambda w: w > 1 and least * w > round_up(rows, least))
    for stage_q, count in product((1, 0) if with_unit else (0,), subgroups):
        twice = with_unit and target.backend == "cuda" and not wide and rows >= 2 * least * count > 64
        for block_keys in keys:
            config = GpuConfig(
                least * count * (2 if twice else 1),
                block_keys,
                count,
                transpose_v=int(with_unit and long),
                stage_q_in_shared=stage_q,
            )
            if not problem(spec, target, config):
                return config
    raise UnsupportedError(f"gpu kernel: no tiles for D={spec.D}, Dv={spec.Dv}: {problem(spec, target, config)}")


def tuned(spec: AttentionSpec, target: Target) -> tuple[GpuConfig, str]:
    """Measured tiles for the target, and where they are from; else the default's."""
    folded = fold_queries(spec, merge=target.has(Switch.FOLDING))
    rows = folded.Sq if isinstance(folded.Sq, int) else math.inf

    def config(t: Tiles) -> GpuConfig:
        return GpuConfig(**t)

    def fits(t: Tiles) -> bool:
        c = config(t)
        if c.transpose_v and isinstance(folded.Skv, str):
            return False  # V would be padded, and keys not in halves
        return max(rows, 16) >= c.BM and not problem(folded, target, c)

    def cost(t: Tiles) -> float:
        """Queries computed, and the processors that a small attention leaves idle."""
        outer = [*folded.batch, folded.Hq, folded.Sq]
        if any(isinstance(d, str) for d in outer):
            return queries_computed(folded.Sq, t["BM"])
        groups = math.prod(int(d) for d in outer[:-1]) * -(-int(folded.Sq) // t["BM"])
        return queries_computed(folded.Sq, t["BM"]) * max(1.0, _ENOUGH_WORKGROUPS / groups)

    found = pick(target, "gpu", spec, fits, cost)
    if found and (found.entry.family.dtype == "f32") == (spec.dtype == "f32"):
        return config(found.choice.tiles), found.reason
    return default_config(folded, target), f"built in: nothing was measured for {target.name} and such an attention"


def problem(spec: AttentionSpec, target: Target, config: GpuConfig) -> str:
    """Why tiles do not fit, "" where they do."""
    unit = matrix_unit(target, spec.dtype)
    rows = 16 if unit else 8
    if config.BM % (rows * config.subgroups) or config.BN % 16:
        return f"BM={config.BM} is not a multiple of {rows} rows for each of {config.subgroups} subgroups, or BN={config.BN} of 16"
    if isinstance(spec.Skv, int) and round_up(spec.Skv, 16) < config.BN:
        return f"BN={config.BN} for {spec.Skv} keys"
    d, dv = head_dims(spec, target)
    if unit is not None and config.BM // config.subgroups * (dv + config.BN) > _MOST_REGISTERS * 32:
        return f"BM={config.BM} and BN={config.BN} take more registers than there are for Dv={spec.Dv}"
    threads = config.subgroups * subgroup_size(target)
    vector = 16 // (4 if spec.dtype == "f32" else 2)
    half_d, half_k = halves(spec, target, config)
    width = (2, d // 2) if half_d else (d,)
    keys = (2, config.BN // 2) if half_k else (config.BN,)
    copies = [(config.BN, *width), (dv, *keys) if config.transpose_v else (config.BN, dv)]
    if config.stage_q_in_shared:
        copies.append((config.BM, *width))
    for copy in copies:
        if not _divides(copy, threads, vector):
            return f"a tile of {' x '.join(map(str, copy))} does not divide among {threads} threads"
    shared, most = shared_bytes(spec, target, config), SHARED_BYTES[target.backend]
    return f"tiles need {shared} of {most} bytes of shared memory" if shared > most else ""


def _divides(shape: Sequence[int], threads: int, vector: int) -> bool:
    """Whether a tile can be copied by all threads of a workgroup, as IREE's derived_thread_config has it: with the longest vectors
    that give every thread one, threads along the innermost axis first. The compiler takes no other copies."""
    flat, inner = math.prod(shape), shape[-1]
    if flat % threads == 0:
        vector = min(vector, flat // threads)
        vector = 1 if inner % vector and vector % inner else min(inner, vector)
    if inner % vector:
        return False
    for size in (inner // vector, *reversed(shape[:-1])):
        if threads % size == 0:
            threads //= size
        elif size % threads == 0:
            threads = 1
        else:
            return False
    return threads == 1

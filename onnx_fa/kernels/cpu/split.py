"""Attention of f32 for processors with AMX as one dispatch (see split_kernel.py): what it carries, and its tiles."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence

from onnx_fa.errors import UnsupportedError
from onnx_fa.kernels.cpu.amx import ROWS
from onnx_fa.kernels.cpu.body import split_body
from onnx_fa.kernels.cpu.combine import splits_of
from onnx_fa.kernels.cpu.linear_share import MOST_WORKERS
from onnx_fa.kernels.cpu.split_kernel import LEAST_QUERIES, rows_of_sums
from onnx_fa.kernels.cpu.split_operands import SplitLayout
from onnx_fa.kernels.cpu.spread import turns_of
from onnx_fa.kernels.cpu.tile_kernel import STEP
from onnx_fa.kernels.cpu.tiles import VectorConfig, mask_tiles
from onnx_fa.kernels.cpu.vector import FLAGS, STACK_BYTES, check_vector, dispatch_text, shown
from onnx_fa.kernels.cpu.worker_memory import SLOTS_OF_A_WORKER, WorkerMemory
from onnx_fa.kernels.cpu.workgroups import busiest, workers_of
from onnx_fa.kernels.mlir.kernel import Kernel
from onnx_fa.kernels.plan.folding import fold_queries
from onnx_fa.spec.attention import AttentionSpec
from onnx_fa.spec.switches import Switch
from onnx_fa.spec.target import Target

_QUERIES, _KEYS = (256, 224, 192, 160, 128, 96, 64), (64, 32)
"""Of a workgroup and of a block, the first that fit where others take as long."""
_ANY_QUERIES = 128
"""Of a workgroup, where only a run knows how many there are."""
_KEYS_OF_ANY_NUMBER = 128
"""With fewer, the last block, which takes longer, is a large part of all."""
_MOST_QUERIES = 224
"""Of a workgroup that may have less."""
_RULE = "built in: those by which workers get done first, by what splitting and multiplying cost"
_HELPERS = "helpers_of_this_text"
"""How functions beside a dispatch's own are named until its text is known."""
_SCORE, _SPLIT = 1.0, 0.3
"""What a key takes of time: for each query, and to split each number of it and of its value."""
_GROUP = 1000.0
"""A workgroup, in the same unit."""


def split_stack_bytes(spec: AttentionSpec, config: VectorConfig) -> int:
    """Bytes of the tiles that one workgroup keeps on its stack."""
    floats = (spec.Dv + config.BK * mask_tiles(spec) + 3 + 2 * len(spec.tensors)) * config.BM
    return 4 * (floats + (2 * config.BK + rows_of_sums(spec)) * STEP)


def split_config(spec: AttentionSpec, workers: Sequence[int]) -> VectorConfig:
    """The tiles by which so many workers, on average of their numbers, get done first. Raises UnsupportedError where none fit."""
    for keys in _KEYS:
        found = [
            config for queries in _QUERIES if split_stack_bytes(spec, config := _config(queries, keys)) <= STACK_BYTES
        ]
        found = [config for config in found if _suits(spec, config.BM)]
        if not isinstance(spec.Sq, int):
            found = found[:1]
        if found:
            return min(found, key=lambda config: _time(spec, config, workers))
    raise UnsupportedError(f"AMX of f32: D={spec.D} and Dv={spec.Dv} need more than {STACK_BYTES} bytes of stack")


def _suits(spec: AttentionSpec, queries: int) -> bool:
    """Whether so many queries are no more than there are, and code for them is compiled in some seconds."""
    if not isinstance(spec.Sq, int):
        return queries <= _ANY_QUERIES
    return queries <= -(-spec.Sq // STEP) * STEP and (queries <= _MOST_QUERIES or spec.Sq % queries == 0)


def _config(queries: int, keys: int) -> VectorConfig:
    return VectorConfig(16, queries, keys, STEP, STEP, 4)


def _time(spec: AttentionSpec, config: VectorConfig, workers: Sequence[int]) -> float:
    """What workers take, added up, of a batch of one where that is free."""
    if not isinstance(spec.Sq, int):
        return 0.0
    keys = spec.Skv if isinstance(spec.Skv, int) else spec.Sq
    each = keys * (config.BM * _SCORE * (spec.D + spec.Dv) / 128 + (spec.D + spec.Dv) * _SPLIT) + _GROUP
    groups = _groups_of(spec, config, 1)
    assert groups is not None
    taken = [busiest(groups, n) for n in workers]
    if len(workers) == 1:
        taken = [min(taken[0], turns_of(groups, workers[0]))]
    return sum(n * most * each for n, most in zip(workers, taken, strict=True))


def _groups_of(spec: AttentionSpec, config: VectorConfig, batch: int | None = None) -> int | None:
    """The workgroups; of so large a batch where that is free, None where it is not given, or the number of queries is free."""
    sizes = [batch if isinstance(d, str) else d for d in (*spec.batch, spec.Hq)]
    known = [d for d in sizes if d is not None]
    if len(known) < len(sizes) or not isinstance(spec.Sq, int):
        return None
    return math.prod(known) * -(-spec.Sq // config.BM)


def _spread_among(spec: AttentionSpec, config: VectorConfig, target: Target) -> int:
    """The workers for whom workgroups are spread: 0 where their number is not known, or they have alike anyway."""
    workers, groups = target.cores or 0, _groups_of(spec, config)
    if workers and groups is not None and busiest(groups, workers) <= turns_of(groups, workers):
        return 0
    return workers


def check_lengths(spec: AttentionSpec) -> None:
    """Raises UnsupportedError for lengths with which vectors are as fast."""
    if isinstance(spec.Sq, int) and spec.Sq < LEAST_QUERIES:
        raise UnsupportedError(f"AMX of f32: {spec.Sq} queries are too few to split keys for")
    if isinstance(spec.Skv, int) and (spec.Skv < LEAST_QUERIES or (spec.Skv < _KEYS_OF_ANY_NUMBER and spec.Skv % STEP)):
        raise UnsupportedError(
            f"AMX of f32: {spec.Skv} keys are too few, or too many of them in a block that they do not fill"
        )


def check_split(spec: AttentionSpec) -> None:
    """Raises UnsupportedError for what is not multiplied by tiles of split numbers."""
    if spec.dtype != "f32":
        raise UnsupportedError(f"AMX of f32: the operands are {spec.dtype}")
    if spec.quantized or spec.rounding is not None or spec.gathered is not None or spec.weights is not None:
        raise UnsupportedError(
            "AMX of f32: K and V are integers or read by rows, or probabilities are rounded or multiplied"
        )
    if spec.weighting is not None:
        raise UnsupportedError("AMX of f32: without a softmax weights may be too large to be split")
    if spec.D % ROWS or spec.Dv % ROWS:
        raise UnsupportedError(f"AMX of f32: head dims {spec.D} and {spec.Dv} do not fill tiles")
    layouts = spec.q_layout, spec.k_layout, spec.v_layout
    if any(layout.index(spec.rank - 1) < layout.index(spec.rank - 2) for layout in layouts):
        raise UnsupportedError("AMX of f32: Q, K or V is transposed")


def emit_split(spec: AttentionSpec, target: Target, name: str) -> Kernel:
    """The kernel of a site of f32. Raises UnsupportedError where target or spec have no such products, or more workers than are
    known to gain."""
    check_vector(spec, target)
    if not target.amx or target.kernels != "auto":
        raise UnsupportedError(f"AMX of f32: target {target.name} has none, or kernels were chosen")
    if max(workers_of(target)) > MOST_WORKERS:
        raise UnsupportedError(f"AMX of f32: more than {MOST_WORKERS} workers")
    check_lengths(fold_queries(spec, merge=target.has(Switch.FOLDING)))
    return emit_with(spec, target, name)


def emit_with(spec: AttentionSpec, target: Target, name: str, config: VectorConfig | None = None) -> Kernel:
    """The same for any number of workers, with the tiles that are given. Raises UnsupportedError for specs, and tiles, that it does
    not carry."""
    site, spec = spec, fold_queries(spec, merge=target.has(Switch.FOLDING))
    check_split(spec)
    config = config or split_config(spec, workers_of(target))
    if (needed := split_stack_bytes(spec, config)) > STACK_BYTES:
        raise UnsupportedError(f"AMX of f32: tiles need {needed} of {STACK_BYTES} bytes of stack")
    splits = splits_of(spec, config.BM, target)
    memory = WorkerMemory(SLOTS_OF_A_WORKER * max(workers_of(target)), SplitLayout(spec, config).bytes, name)
    body = split_body(spec, config, _HELPERS, memory, splits, target.off, _spread_among(spec, config, target))
    text = memory.text + dispatch_text(site, body, name)
    # Kernels that differ in the names of free lengths alone stay equal, so that the compiler makes one of them.
    own = hashlib.sha256(text.replace(name, "").encode()).hexdigest()[:10]
    text = text.replace(_HELPERS, f"split_{own}")
    return Kernel(name, text, "split", site, shown(config, splits), FLAGS, _RULE)

"""What there is to try for each body of a kernel: sets of tiles, and iree-compile options that only touch code generation."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import Any

from onnx_fa.errors import OnnxFaError
from onnx_fa.kernels.choose import emit_kernel
from onnx_fa.kernels.cpu import vector
from onnx_fa.kernels.cpu.few import emit_few, few_config, few_queries, tuned_few
from onnx_fa.kernels.cpu.tiles import FewConfig
from onnx_fa.kernels.cpu.vector import VectorConfig, emit_vector
from onnx_fa.kernels.iree_gpu import tiles as gpu_tiles
from onnx_fa.kernels.iree_gpu.gpu import emit_gpu
from onnx_fa.kernels.iree_gpu.tiles import GpuConfig
from onnx_fa.kernels.mlir.kernel import Kernel
from onnx_fa.kernels.plan.folding import fold_queries
from onnx_fa.kernels.tiles.database import Tiles, queries_computed
from onnx_fa.kernels.triton import emit_exactly
from onnx_fa.kernels.triton import tiles as triton_tiles
from onnx_fa.kernels.triton.config import FEW, HELD, PERSISTENT, padded
from onnx_fa.kernels.triton.held import can_hold
from onnx_fa.processes import DEFAULT, Limits
from onnx_fa.spec.attention import AttentionSpec
from onnx_fa.spec.linear import LinearSpec
from onnx_fa.spec.target import Target
from onnx_fa.spec.terms import Causal
from onnx_fa.tuning.linear_space import LINEAR_SPACES, linear_body
from onnx_fa.tuning.program import Program, Space, program_of

OPTIONS: tuple[tuple[str, ...], ...] = (
    ("--iree-llvmcpu-loop-unrolling=false",),
    ("--iree-llvmcpu-slp-vectorization=true",),
)
"""Tried on the best tiles of a CPU's attention. They hold for a whole module once an entry names them, so nothing that changes
results is among them."""


def _of_attention(
    default: Callable[[AttentionSpec, Target], Tiles],
    first: Callable[[AttentionSpec, Target], Iterator[Tiles]],
    around: Callable[[AttentionSpec, Tiles], Iterator[Tiles]],
    emit: Callable[[AttentionSpec, Target, str, Tiles], Kernel],
    queries: Callable[[AttentionSpec, Tiles], float],
    seen: Callable[[AttentionSpec], AttentionSpec] = lambda spec: spec,
    options: tuple[tuple[str, ...], ...] = (),
) -> Space[AttentionSpec]:
    """The space of a body whose kernels are measured as modules of their own."""

    def made(spec: AttentionSpec, target: Target, name: str, tiles: Tiles) -> Program:
        return program_of(emit(spec, target, name, tiles), target)

    return Space(AttentionSpec, default, first, around, made, queries, seen, options)


def body_of(spec: AttentionSpec | LinearSpec, target: Target, body: str = "auto") -> str:
    """The body that a site's kernel has, of those that `body` names. Raises UnsupportedError where there is no kernel."""
    return _BODIES[type(spec)](spec, target, body)


_BODIES: dict[type, Callable[[Any, Target, str], str]] = {
    AttentionSpec: lambda spec, target, body: emit_kernel(spec, target, body=body).body,
    LinearSpec: linear_body,
}


def has_space(body: str) -> bool:
    """Whether there is something to try for a body: others have their tiles by a rule."""
    return body == "triton" or body in _SPACES


def space(body: str, arch: int = 90, limits: Limits = DEFAULT) -> Space[Any]:
    """The space of a body; of Triton's for sm_`arch`, its compiler within `limits`. Raises OnnxFaError where there is none."""
    if body == "triton":
        return _triton(arch, limits)
    if body not in _SPACES:
        raise OnnxFaError(
            f"the kernel body {body!r} has no tiles to tune: use one of {', '.join([*_SPACES, 'triton'])}"
        )
    return _SPACES[body]


def _vector_default(spec: AttentionSpec, target: Target) -> Tiles:
    return asdict(vector.default_config(spec, target))


def _vector_first(spec: AttentionSpec, target: Target) -> Iterator[Tiles]:
    """Register tiles that fill a quarter to three quarters of the registers with accumulators."""
    lanes = vector.default_config(spec, target).lanes
    for vectors in (2, 1, 3, 4):
        for rows in (8, 4, 16, 2):
            if target.registers <= 4 * vectors * rows <= 3 * target.registers:
                yield {
                    "lanes": lanes,
                    "BM": vectors * lanes,
                    "BK": 64,
                    "tile_keys": rows,
                    "tile_dims": min(rows, spec.Dv),
                    "unroll": 4,
                }


def _vector_around(spec: AttentionSpec, best: Tiles) -> Iterator[Tiles]:
    for keys in (128, 32, 48, 96):
        if keys % best["tile_keys"] == 0:
            yield {**best, "BK": keys}
    for unroll in (2, 8, 1):
        yield {**best, "unroll": unroll}
    for dims in (best["tile_keys"] // 2, best["tile_keys"] * 2):
        if 1 <= dims <= spec.Dv:
            yield {**best, "tile_dims": dims}


def _vector_emit(spec: AttentionSpec, target: Target, name: str, tiles: Tiles) -> Kernel:
    return emit_vector(spec, target, name, VectorConfig(**tiles))


def _few_default(spec: AttentionSpec, target: Target) -> Tiles:
    return _few_tiles(tuned_few(spec, target)[0])


def _few_tiles(config: FewConfig) -> Tiles:
    return {k: getattr(config, k) for k in ("lanes", "BK", "tile_dims", "unroll")}


def _few_first(spec: AttentionSpec, target: Target) -> Iterator[Tiles]:
    lanes = _few_default(spec, target)["lanes"]
    for keys in (64, 128, 256, 512, 32, 16):
        for dims in (8, 16):
            yield {"lanes": lanes, "BK": keys, "tile_dims": dims, "unroll": 8}


def _few_around(spec: AttentionSpec, best: Tiles) -> Iterator[Tiles]:
    for unroll in (4, 16, 2):
        yield {**best, "unroll": unroll}
    for dims in (4, 12, 24):
        yield {**best, "tile_dims": dims}
    for keys in (best["BK"] // 2, best["BK"] * 2):
        if keys % best["lanes"] == 0:
            yield {**best, "BK": keys}


def _few_emit(spec: AttentionSpec, target: Target, name: str, tiles: Tiles) -> Kernel:
    return emit_few(spec, target, name, few_config(tiles, few_queries(spec)))


def _gpu_default(spec: AttentionSpec, target: Target) -> Tiles:
    return asdict(gpu_tiles.tuned(spec, target)[0])


def _gpu_first(spec: AttentionSpec, target: Target) -> Iterator[Tiles]:
    """16 and 32 rows for each of 4 and 8 subgroups, with V as it is and transposed before."""
    for subgroups in (4, 8, 2):
        for rows in (16, 32):
            for keys in (32, 64, 128):
                for transposed in (0, 1):
                    yield {
                        "BM": rows * subgroups,
                        "BN": keys,
                        "subgroups": subgroups,
                        "transpose_v": transposed,
                        "stage_q_in_shared": 1,
                        "pipeline_stages": 1,
                    }


def _gpu_around(spec: AttentionSpec, best: Tiles) -> Iterator[Tiles]:
    yield {**best, "stage_q_in_shared": 1 - best["stage_q_in_shared"]}
    yield {**best, "pipeline_stages": 2 if best["pipeline_stages"] == 1 else 1}
    for keys in (16, 48, 96):
        yield {**best, "BN": keys}


def _gpu_emit(spec: AttentionSpec, target: Target, name: str, tiles: Tiles) -> Kernel:
    return emit_gpu(spec, target, name, GpuConfig(**tiles))


def _triton(arch: int, limits: Limits) -> Space[AttentionSpec]:
    def valid(spec: AttentionSpec, wanted: Iterator[dict[str, int]]) -> Iterator[Tiles]:
        """Those that are powers of two where they must be, are for the spec, and may fit the architecture."""
        fits = triton_tiles.fitting(spec)
        for t in wanted:
            try:
                config = triton_tiles.config_of(spec, t)
            except ValueError:
                continue
            if fits(t) and triton_tiles.can_run(spec, config, arch):
                yield t

    def default(spec: AttentionSpec, target: Target) -> Tiles:
        spec = fold_queries(spec)
        return {**_split(spec), **triton_tiles.tuned_tiles(spec, arch)[0]}

    def first(spec: AttentionSpec, target: Target) -> Iterator[Tiles]:
        few = triton_tiles.is_few(spec := fold_queries(spec))
        return valid(spec, _triton_few(spec) if few else _triton_many(spec))

    def around(spec: AttentionSpec, best: Tiles) -> Iterator[Tiles]:
        return valid(fold_queries(spec), _triton_around(fold_queries(spec), best))

    def emit(spec: AttentionSpec, target: Target, name: str, t: Tiles) -> Kernel:
        return emit_exactly(spec, target, name, triton_tiles.config_of(fold_queries(spec), t), arch, limits)

    return _of_attention(
        default,
        first,
        around,
        emit,
        lambda spec, t: queries_computed(fold_queries(spec).Sq, t["BM"]),
        lambda spec: triton_tiles.alike(fold_queries(spec)),
    )


def _triton_many(spec: AttentionSpec) -> Iterator[dict[str, int]]:
    """Blocks of 64 or 128 queries (32 for f32), with three stages where blocks and heads are narrow; few keys in one block, too."""
    order = int(any(isinstance(m, Causal) for m in spec.masks))
    for keys in (64, 128, 32):
        for rows, warps in ((64, 4), (128, 8), (128, 4), (192, 4), *[(32, 4)] * (spec.dtype == "f32")):
            for overlap in (0, 1, 2, PERSISTENT):
                stages = 2 if overlap in (1, 2) or keys == 128 or max(spec.D, spec.Dv) > 128 else 3
                sizes = {"BM": rows, "BN": keys, "warps": warps, "stages": stages}
                yield {**sizes, "order": order, "overlap": overlap, **_split(spec)}
    if can_hold(spec):
        for rows, warps, stages in ((64, 4, 1), (64, 4, 3), (128, 8, 3)):
            for overlap in (HELD, 0):
                sizes = {"BM": rows, "BN": padded(int(spec.Skv)), "warps": warps, "stages": stages}
                yield {**sizes, "order": order, "overlap": overlap, **_split(spec)}


def _triton_few(spec: AttentionSpec) -> Iterator[dict[str, int]]:
    for keys in (64, 128, 32):
        for warps, stages in ((2, 4), (4, 3), (4, 2), (2, 3), (1, 4)):
            sizes = {"BM": FEW, "BN": keys, "warps": warps, "stages": stages}
            yield {**sizes, "order": 0, "overlap": 0, **_split(spec)}


def _split(spec: AttentionSpec) -> dict[str, int]:
    """What tiles of a spec whose keys are split say besides."""
    return {triton_tiles.WORKGROUPS: triton_tiles.PROCESSORS} if triton_tiles.splits(spec) > 1 else {}


def _triton_around(spec: AttentionSpec, best: Tiles) -> Iterator[dict[str, int]]:
    """The stages, the split of the keys (where another number of workgroups changes it), the order, the form, warps and blocks."""
    for stages in (best["stages"] + 1, best["stages"] - 1):
        yield {**best, "stages": stages}
    if "splits" in best:
        for parts in (best["splits"] * 2, best["splits"] // 2):
            yield {**best, "splits": parts}
    tried = {triton_tiles.splits(spec, best.get(triton_tiles.WORKGROUPS, triton_tiles.PROCESSORS))}
    for factor in (2.0, 0.5, 4.0, 0.25):
        workgroups = int(best.get(triton_tiles.WORKGROUPS, triton_tiles.PROCESSORS) * factor)
        if (parts := triton_tiles.splits(spec, workgroups)) > 1 and parts not in tried:
            tried.add(parts)
            yield {**best, triton_tiles.WORKGROUPS: workgroups}
    yield {**best, "order": 1 - min(best["order"], 1)}
    for overlap in {0, 1, 2, PERSISTENT} - {best["overlap"]}:
        yield {**best, "overlap": overlap, "order": min(best["order"], 1)}
    for warps in (best["warps"] * 2, best["warps"] // 2):
        yield {**best, "warps": warps}
    for keys in (best["BN"] * 2, best["BN"] // 2):
        yield {**best, "BN": keys}
    for rows in (best["BM"] // 2, best["BM"] * 2):
        yield {**best, "BM": rows}


_SPACES: dict[str, Space[Any]] = {
    "vector": _of_attention(
        _vector_default,
        _vector_first,
        _vector_around,
        _vector_emit,
        lambda spec, tiles: queries_computed(fold_queries(spec).Sq, tiles["BM"]),
        options=OPTIONS,
    ),
    "gpu": _of_attention(
        _gpu_default,
        _gpu_first,
        _gpu_around,
        _gpu_emit,
        lambda spec, tiles: queries_computed(fold_queries(spec).Sq, tiles["BM"]),
    ),
    "few": _of_attention(_few_default, _few_first, _few_around, _few_emit, lambda spec, tiles: 1.0, options=OPTIONS),
    **LINEAR_SPACES,
}

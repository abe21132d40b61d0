"""How the two matmuls of an attention are spread over a GPU's threads: lowering configs of IREE's VectorDistribute pipeline.

Where the GPU has matrix instructions for the element type, a subgroup holds 16 or 32 rows of queries and all of a block's keys (or
all of Dv); elsewhere its lanes are 8 rows of 4 (or 8) columns, and every thread multiplies and adds.
"""

from __future__ import annotations

from dataclasses import dataclass

from onnx_fa.spec.target import Target

_NVIDIA = "#iree_gpu.mma_layout<NV_MMA_SYNC_F32_16x8x16_{}>"
_MFMA = "#iree_gpu.mma_layout<MFMA_F32_{}, col_major = true>"
_WMMA = "#iree_gpu.mma_layout<WMMAR3_F32_16x16x16_{}>"


@dataclass(frozen=True)
class Mma:
    """Matrix instructions for Q K^T and for P V as attributes; `k` is how many of D the first multiplies at once, `keys` how many
    of the keys the second does, `n` the columns of either."""

    qk: str
    pv: str
    k: int = 16
    keys: int = 16
    n: int = 16


_MMA: dict[tuple[str, str], Mma] = {
    ("cuda", "f16"): Mma(_NVIDIA.format("F16"), _NVIDIA.format("F16"), n=8),
    ("cuda", "bf16"): Mma(_NVIDIA.format("BF16"), _NVIDIA.format("BF16"), n=8),
    ("gfx942", "f16"): Mma(
        "#iree_gpu.virtual_mma_layout<VMFMA_F32_16x16x32_F16, col_major = true>", _MFMA.format("16x16x16_F16"), k=32
    ),
    ("gfx942", "bf16"): Mma(_MFMA.format("16x16x16_BF16"), _MFMA.format("16x16x16_BF16")),
    ("gfx942", "f32"): Mma(_MFMA.format("16x16x4_F32"), _MFMA.format("16x16x4_F32"), k=4, keys=4),
    ("gfx950", "f16"): Mma(_MFMA.format("16x16x32_F16"), _MFMA.format("16x16x16_F16"), k=32),
    ("gfx950", "bf16"): Mma(_MFMA.format("16x16x32_BF16"), _MFMA.format("16x16x16_BF16"), k=32),
    ("gfx950", "f32"): Mma(_MFMA.format("16x16x4_F32"), _MFMA.format("16x16x4_F32"), k=4, keys=4),
    ("gfx1100", "f16"): Mma(_WMMA.format("F16"), _WMMA.format("F16")),
    ("gfx1100", "bf16"): Mma(_WMMA.format("BF16"), _WMMA.format("BF16")),
}


def matrix_unit(target: Target, dtype: str) -> Mma | None:
    """The matrix instructions of a target for operands of that type, which add in f32; None where it has none that are exact."""
    return _MMA.get((target.backend if target.backend == "cuda" else target.arch, dtype))


def subgroup_size(target: Target) -> int:
    """Threads that run in step."""
    return 64 if target.arch.startswith("gfx9") else 32


def lowering_config(
    target: Target, dtype: str, which: str, subgroups: int, promote: tuple[int, ...], rank: int = 3
) -> str:
    """Of the matmul of `rank` iteration dims, the queries first, that is "qk" or "pv"; `promote` are the operands that go through
    shared memory."""
    order = list(range(rank))
    parts = [f"subgroup_basis = [{[subgroups] + [1] * (rank - 1)}, {order}]"]
    unit = matrix_unit(target, dtype)
    if unit is not None:
        parts.append(f"mma_kind = {unit.qk if which == 'qk' else unit.pv}")
    else:
        columns = subgroup_size(target) // 8
        parts.append(f"lane_basis = [[8, {columns}, 1], [0, 1, 2]]")
        parts.append(f"thread = [1, {1 if which == 'qk' else 4}, {4 if which == 'qk' else 1}]")
    if promote:
        how = ", ".join("#iree_gpu.derived_thread_config" for _ in promote)
        parts.append(f"promote_operands = [{', '.join(map(str, promote))}], promotion_types = [{how}]")
    return f"#iree_gpu.lowering_config<{{{', '.join(parts)}}}>"


def translation_info(target: Target, subgroups: int, stages: int) -> str:
    """The pipeline and the workgroup's size; `stages` of prefetching (0 and 1: none)."""
    size = subgroup_size(target)
    options = [
        'iree_codegen.denormal_fp_math_f32 = #iree_codegen.denormal_fp_math<"preserve-sign">',
        f"gpu_pipeline_options = #iree_gpu.pipeline_options<prefetch_num_stages = {max(stages, 1)}>",
    ]
    return (
        "#iree_codegen.translation_info<pipeline = #iree_gpu.pipeline<VectorDistribute> "
        f"workgroup_size = [{size * subgroups}, 1, 1] subgroup_size = {size}, {{{', '.join(options)}}}>"
    )

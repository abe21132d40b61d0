"""Attention for CUDA and ROCm as one dispatch of IREE's VectorDistribute pipeline (see body.py): what it carries."""

from __future__ import annotations

from dataclasses import asdict, replace

from onnx_fa.errors import UnsupportedError
from onnx_fa.kernels.iree_gpu.entry import GpuEntry
from onnx_fa.kernels.iree_gpu.tiles import SHARED_BYTES, WIDEST, GpuConfig, default_config, problem, tuned
from onnx_fa.kernels.mlir.kernel import Kernel, check_operands, check_plain
from onnx_fa.kernels.plan.folding import fold_queries
from onnx_fa.spec.attention import AttentionSpec
from onnx_fa.spec.switches import Switch
from onnx_fa.spec.target import Target


def _check(spec: AttentionSpec, target: Target) -> None:
    """Raises UnsupportedError, with the reason, for what this kernel cannot carry."""
    if target.backend not in SHARED_BYTES:
        raise UnsupportedError(
            f"gpu kernel: IREE's attention and VectorDistribute have no lowering for {target.backend}"
        )
    check_operands(spec, "gpu")
    check_plain(spec)
    if max(spec.D, spec.Dv) > WIDEST:
        raise UnsupportedError(
            f"gpu kernel: D={spec.D}, Dv={spec.Dv}: head dims above {WIDEST} take more registers than there are"
        )


def emit_gpu(spec: AttentionSpec, target: Target, name: str, config: GpuConfig | None = None) -> Kernel:
    """The kernel of one site for a GPU. Raises UnsupportedError where spec or tiles do not fit."""
    _check(spec, target)
    folded, tuning = fold_queries(spec, merge=target.has(Switch.FOLDING)), ""
    if config is None and not target.has(Switch.TILES):
        config = default_config(folded, target)
    elif config is None:
        config, tuning = tuned(spec, target)
    if not target.has(Switch.PIPELINING):
        config = replace(config, pipeline_stages=1)
    if why := problem(folded, target, config):
        raise UnsupportedError(f"gpu kernel: {why}")
    entry = GpuEntry(spec, folded, target, name, config)
    chosen = {**asdict(config), "skips": int(entry.body.skipped)}
    return Kernel(name, entry.text(), "gpu", spec, dict(chosen), (), tuning)

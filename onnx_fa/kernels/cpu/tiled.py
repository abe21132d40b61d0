"""Attention for processors with AMX as one dispatch (see amx_kernel.py): what it carries, and its tiles."""

from __future__ import annotations

from onnx_fa.errors import UnsupportedError
from onnx_fa.kernels.cpu.amx_products import check_tiles, copied_keys, tiled_pairs
from onnx_fa.kernels.cpu.body import tile_body
from onnx_fa.kernels.cpu.combine import splits_of
from onnx_fa.kernels.cpu.tile_kernel import STEP
from onnx_fa.kernels.cpu.tiles import VectorConfig, mask_tiles
from onnx_fa.kernels.cpu.vector import FLAGS, STACK_BYTES, check_vector, dispatch_text, shown
from onnx_fa.kernels.mlir.kernel import Kernel
from onnx_fa.kernels.plan.folding import fold_queries
from onnx_fa.spec.attention import AttentionSpec
from onnx_fa.spec.switches import Switch
from onnx_fa.spec.target import Target

_TILES = ((128, 128), (128, 64), (64, 96), (64, 64), (96, 32), (64, 32), (32, 32))
"""Queries of a workgroup and keys of a block, the fastest first where they fit."""
_RULE = "built in: the largest that fit"


def tiled_stack_bytes(spec: AttentionSpec, config: VectorConfig) -> int:
    """Bytes of the tiles that one workgroup keeps on its stack."""
    pairs = tiled_pairs(spec)
    floats = (pairs + spec.Dv + config.BK * mask_tiles(spec) + 3 + 2 * len(spec.tensors)) * config.BM
    copied = copied_keys(spec, config) * pairs
    return 4 * (floats + copied + config.BK * (STEP + spec.Dv // 2) + STEP * STEP)


def tiled_config(spec: AttentionSpec) -> VectorConfig:
    """The largest tiles that fit, no more queries than the spec has (up to whole tiles). Raises UnsupportedError where none do."""
    for queries, keys in _TILES:
        config = VectorConfig(16, queries, keys, STEP, STEP, 4)
        few = isinstance(spec.Sq, int) and queries > STEP and spec.Sq <= queries - STEP
        if not few and tiled_stack_bytes(spec, config) <= STACK_BYTES:
            return config
    raise UnsupportedError(f"AMX: D={spec.D} and Dv={spec.Dv} need more than {STACK_BYTES} bytes of stack")


def emit_tiled(spec: AttentionSpec, target: Target, name: str, config: VectorConfig | None = None) -> Kernel:
    """The kernel of a site whose operands are bf16, or that was asked to multiply in bf16. Raises UnsupportedError where target or
    spec have no such products."""
    check_vector(spec, target)
    if not target.amx or target.kernels != "auto":
        raise UnsupportedError(f"AMX: target {target.name} has none, or kernels were chosen")
    if spec.dtype != "bf16" and not target.bf16_dot:
        raise UnsupportedError(f"AMX: {spec.dtype} is multiplied in bf16 only where that is asked for")
    site, spec = spec, fold_queries(spec, merge=target.has(Switch.FOLDING))
    check_tiles(spec)
    config = config or tiled_config(spec)
    if (needed := tiled_stack_bytes(spec, config)) > STACK_BYTES:
        raise UnsupportedError(f"AMX: tiles need {needed} of {STACK_BYTES} bytes of stack")
    splits = splits_of(spec, config.BM, target)
    body = tile_body(spec, config, f"{name}_attention", splits, target.off)
    lossy = target.lossy if spec.dtype != "bf16" else ""
    return Kernel(name, dispatch_text(site, body, name), "amx", site, shown(config, splits), FLAGS, _RULE, lossy)

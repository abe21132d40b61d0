"""Who can make the kernels of a target: IREE's own code generation for all, Triton for CUDA.

A provider is asked in the order of preference. One that cannot express a site raises UnsupportedError, and the next is asked.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from onnx_fa.errors import TargetError
from onnx_fa.kernels import triton
from onnx_fa.kernels.cpu.few import emit_few
from onnx_fa.kernels.cpu.rows import emit_rows
from onnx_fa.kernels.cpu.split import emit_split
from onnx_fa.kernels.cpu.tiled import emit_tiled
from onnx_fa.kernels.cpu.vector import emit_vector
from onnx_fa.kernels.iree_gpu.gpu import emit_gpu
from onnx_fa.kernels.mlir.kernel import Kernel
from onnx_fa.kernels.spirv.spirv import BACKENDS, emit_spirv
from onnx_fa.spec.attention import AttentionSpec
from onnx_fa.spec.target import Target

Emitter = Callable[[AttentionSpec, Target, str], Kernel]


@dataclass(frozen=True)
class Provider:
    """`emitters` gives the kernel bodies for a target, by name, in the order of preference; a body's emitter raises
    UnsupportedError for what it cannot express. `missing` says why the provider cannot be used for a target, "" where it can."""

    emitters: Callable[[Target], Mapping[str, Emitter]]
    missing: Callable[[Target], str]


def _iree(target: Target) -> Mapping[str, Emitter]:
    if target.backend in BACKENDS:
        return {"spirv": emit_spirv}
    return (
        {"gpu": emit_gpu}
        if target.is_gpu
        else {"rows": emit_rows, "few": emit_few, "amx": emit_tiled, "split": emit_split, "vector": emit_vector}
    )


PROVIDERS: dict[str, Provider] = {
    "triton": Provider(lambda target: {"triton": triton.emit_triton}, triton.missing),
    "iree": Provider(_iree, lambda target: ""),
}
"""In the order in which `--kernels auto` asks them."""


def emitters(target: Target) -> dict[str, Emitter]:
    """The bodies to try for a target, in order. Raises TargetError where the provider that it names cannot be used."""
    if target.kernels == "auto":
        usable = [p for p in PROVIDERS.values() if not p.missing(target)]
        if target.tf32 and (missing := PROVIDERS["triton"].missing(target)):
            raise TargetError(f"--tf32: {missing}")
    else:
        usable = [PROVIDERS[target.kernels]]
        if missing := usable[0].missing(target):
            raise TargetError(f"--kernels {target.kernels}: {missing} (target {target.name})")
    return {name: emit for p in usable for name, emit in p.emitters(target).items()}

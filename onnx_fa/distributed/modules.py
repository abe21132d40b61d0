"""The modules that processes run: specs of parts, compiled for one device each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from onnx_fa.distributed.zigzag import Visit, length_of_share
from onnx_fa.files import write_whole
from onnx_fa.iree.alone import compile_alone
from onnx_fa.kernels.choose import emit_kernel
from onnx_fa.kernels.mlir.kernel import Kernel
from onnx_fa.kernels.mlir.launches import plan_file
from onnx_fa.spec.attention import AttentionSpec
from onnx_fa.spec.target import Target
from onnx_fa.spec.terms import Causal, DType

_ROWS_FIRST = (0, 2, 1, 3)
"""B, S, H, D: ranges of the sequence then lie side by side."""


@dataclass(frozen=True)
class Heads:
    """What all parts of an attention share. `scale` None is 1 / sqrt(D)."""

    Hq: int
    Hkv: int
    D: int
    Dv: int
    B: int = 1
    dtype: DType = "f16"
    scale: float | None = None

    def spec(self, Sq: int, Skv: int, **changes: Any) -> AttentionSpec:
        """The attention of so many queries and keys, of tensors (B, S, H, D)."""
        layouts: dict[str, Any] = dict.fromkeys(("q_layout", "k_layout", "v_layout", "o_layout"), _ROWS_FIRST)
        scale = self.D**-0.5 if self.scale is None else self.scale
        return AttentionSpec(
            self.dtype, self.Hq, self.Hkv, Sq, Skv, self.D, self.Dv, batch=(self.B,), scale=scale, **layouts, **changes
        )

    def part(self, Sq: int, Skv: int, **changes: Any) -> AttentionSpec:
        """A part of the keys: with maxima and sums, and zeros in rows without keys."""
        return self.spec(Sq, Skv, empty_row="zero", stats=("max", "sum"), **changes)


def prefill_specs(heads: Heads, S: int, ranks: int) -> dict[Visit, AttentionSpec]:
    """What a process of `ranks` computes of a causal attention of S tokens (RingPrefill). Raises ValueError for a length that
    2 * `ranks` does not divide."""
    own = length_of_share(S, ranks)
    specs: dict[Visit, AttentionSpec] = {"causal": heads.part(own, own, masks=(Causal(),))}
    if ranks > 1:
        specs |= {"early": heads.part(own, own // 2), "late": heads.part(own // 2, own)}
    return specs


def decode_spec(heads: Heads, Sq: int, Skv: int) -> AttentionSpec:
    """What a process computes that holds Skv keys of a cache (SplitDecode): all of them are seen by all queries."""
    return heads.part(Sq, Skv)


def build(specs: Mapping[str, AttentionSpec], target: Target, folder: Path) -> dict[str, Kernel]:
    """Compiles a module <name>.vmfb for each spec, with the functions that TorchModule calls, and writes beside it, where kernels
    are of code that CUDA's driver starts, <name>.launches.json with that. Returns the kernels. Raises UnsupportedError where the
    target has no kernel of a spec, and CompileError."""
    kernels = {name: emit_kernel(spec, target) for name, spec in specs.items()}
    for name, kernel in kernels.items():
        compile_alone(kernel, folder / f"{name}.vmfb", target, into=True)
        plan = plan_file(folder / f"{name}.vmfb")
        if kernel.into is not None:
            write_whole(plan, kernel.into.plan.to_json())
        else:
            plan.unlink(missing_ok=True)  # of a module that was here before
    return kernels

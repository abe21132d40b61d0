"""Attention for Vulkan and Metal as one dispatch (see body.py): what it carries, and the function that a program calls."""

from __future__ import annotations

import math
from dataclasses import asdict

from onnx_fa.errors import UnsupportedError
from onnx_fa.kernels.mlir.entry import KernelEntry
from onnx_fa.kernels.mlir.kernel import Kernel, check_operands, check_plain
from onnx_fa.kernels.mlir.text import INDEX, executable
from onnx_fa.kernels.plan.folding import fold_queries
from onnx_fa.kernels.spirv.body import SpirvBody
from onnx_fa.kernels.spirv.config import INVOCATIONS, choose_config
from onnx_fa.spec.attention import AttentionSpec
from onnx_fa.spec.switches import Switch
from onnx_fa.spec.target import Target

BACKENDS = ("vulkan-spirv", "metal-spirv")
WIDEST = 256
"""The largest head dim: a row of Q and one of the output are in the registers of one invocation."""
MOST_HEADS = 65535
"""Workgroups along one axis that all devices have."""
_TRANSLATION = (
    "#iree_codegen.translation_info<pipeline = #iree_gpu.spirv_pipeline<BaseLowering> "
    f"workgroup_size = [{INVOCATIONS}, 1, 1]>"
)


def _check(spec: AttentionSpec, target: Target) -> None:
    """Raises UnsupportedError, with the reason, for what this kernel cannot carry."""
    if target.backend not in BACKENDS:
        raise UnsupportedError(f"spirv kernel: target {target.name} takes no SPIR-V")
    check_operands(spec, "spirv")
    check_plain(spec)
    if "bf16" in spec.operand_dtypes:
        raise UnsupportedError("spirv kernel: bf16, which IREE 3.13 has no SPIR-V of")
    if max(spec.D, spec.Dv) > WIDEST:
        raise UnsupportedError(
            f"spirv kernel: D={spec.D}, Dv={spec.Dv}: head dims above {WIDEST} take more registers than there are"
        )
    heads = math.prod(d for d in (*spec.batch, spec.Hq) if isinstance(d, int))
    if heads > MOST_HEADS:
        raise UnsupportedError(
            f"spirv kernel: {heads} heads of the batch, more than {MOST_HEADS} workgroups of an axis"
        )


def emit_spirv(spec: AttentionSpec, target: Target, name: str) -> Kernel:
    """The kernel of one site for Vulkan or Metal. Raises UnsupportedError where the spec does not fit."""
    _check(spec, target)
    folded = fold_queries(spec, merge=target.has(Switch.FOLDING))
    config = choose_config(folded)
    body = SpirvBody(folded, config, target)
    lines = [*_executable(body, f"{name}_attention"), *_function(spec, body, name)]
    shown = {**asdict(config), "skips": int(body.skipped)}
    return Kernel(name, "\n".join(lines) + "\n", "spirv", spec, dict(shown), (), "built in: nothing is measured")


def _executable(body: SpirvBody, symbol: str) -> list[str]:
    operations, dims = body.render(), body.dims.values()
    ordinals = [f"{d} = iree_tensor_ext.dispatch.workload.ordinal {d}_arg, {i + 2} : index" for i, d in enumerate(dims)]
    args = [f"{x.name}_arg: {x.bound('readonly')}" for x in body.access.operands]
    args += [f"{d}_arg: index" for d in dims]
    args.append(f"{body.access.out.name}_arg: {body.access.out.bound('writeonly')}")
    workload = ["%x", "%y", *(f"%w{i}" for i in range(len(dims)))]
    counts = ["%z = arith.constant 1 : index"]
    return executable(symbol, workload, counts, args, [*ordinals, *operations], _TRANSLATION)


def _function(site: AttentionSpec, body: SpirvBody, name: str) -> list[str]:
    """The function that a program calls: sizes, the number of workgroups, the dispatch."""
    spec, entry = body.spec, KernelEntry(site, name)
    t, dims = entry.t, list(body.dims.values())
    for symbol, value in body.dims.items():
        entry.measure(symbol, value)
    blocks = t.index(0)
    if isinstance(spec.Sq, int):
        blocks = t.index(-(-spec.Sq // body.config.rows))
    else:
        blocks = t.arith("ceildivui", body.dims[spec.Sq], t.index(body.config.rows))
    heads = t.index(math.prod(d for d in (*spec.batch, spec.Hq) if isinstance(d, int)))
    for d in (*spec.batch, spec.Hq):
        if isinstance(d, str):
            heads = t.arith("muli", heads, body.dims[d])
    operands, out = body.access.operands, body.access.out
    shapes, elements = [x.shape for x in operands], [x.element for x in operands]
    values = [*entry.pass_operands(site.operand_shapes, shapes, elements), *dims]
    passed = [entry.typed(x.shape, x.element) for x in operands] + [INDEX] * len(dims)
    symbol, workload = f"@{name}_attention::@{name}_attention", ", ".join([blocks, heads, *dims])
    made = t.let(
        f"flow.dispatch {symbol}[{workload}]({', '.join(values)}) : ({', '.join(passed)}) -> "
        f"{entry.typed(out.shape, out.element)}"
    )
    return entry.lines([entry.reshape(made, out.shape, site.results[0][0], out.element)])

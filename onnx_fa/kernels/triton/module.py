"""A generated Triton kernel inside an IREE module: PTX of each architecture is a variant of one executable, chosen by the device
when the program is loaded. The module needs nothing but IREE's runtime."""

from __future__ import annotations

import dataclasses
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict

from onnx_fa.derive.loop import Loop
from onnx_fa.errors import UnsupportedError
from onnx_fa.kernels.mlir.kernel import Kernel, check_operands
from onnx_fa.kernels.mlir.stored import check_packed
from onnx_fa.kernels.plan.folding import fold_queries
from onnx_fa.kernels.plan.skipping import Skipping, skipping
from onnx_fa.kernels.triton import ptx
from onnx_fa.kernels.triton.cluster import ClusterSource
from onnx_fa.kernels.triton.combine import combine_program
from onnx_fa.kernels.triton.config import ARCHITECTURES, CLUSTER, HELD, TritonConfig, f32_products
from onnx_fa.kernels.triton.entry import TritonEntry, Variant
from onnx_fa.kernels.triton.executable import executable_text
from onnx_fa.kernels.triton.held import HeldSource
from onnx_fa.kernels.triton.into import IntoEntry
from onnx_fa.kernels.triton.overlapped import OverlappedSource
from onnx_fa.kernels.triton.persistent import PersistentSource
from onnx_fa.kernels.triton.program import Program, combines_itself, loop_in
from onnx_fa.kernels.triton.source import AttentionSource
from onnx_fa.kernels.triton.specialised import SpecialisedSource
from onnx_fa.kernels.triton.tiles import smaller, tf32_tiles, tuned, without
from onnx_fa.processes import DEFAULT, Limits
from onnx_fa.spec.attention import AttentionSpec
from onnx_fa.spec.switches import Switch
from onnx_fa.spec.target import Target

WIDEST = 1024
"""The largest head dim."""
_WHOLE = {"f32": 1 << 24, "f16": 1 << 11, "bf16": 1 << 8}
"""Whole numbers up to these are exact."""
_COMBINE_WARPS = 4


def missing(target: Target) -> str:
    """Why Triton's kernels cannot be made for a target; "" where they can."""
    if target.backend != "cuda":
        return "Triton's kernels are for CUDA"
    return "" if ptx.available() else "Triton is not installed: pip install triton (or onnx-fa[triton])"


def emit_triton(spec: AttentionSpec, target: Target, name: str, config: TritonConfig | None = None) -> Kernel:
    """The kernel of one site as Triton code. `config` holds for every architecture it fits. Raises UnsupportedError where the
    spec cannot be expressed."""
    _check(spec, target)
    folded = fold_queries(spec, merge=target.has(Switch.FOLDING))
    loop = loop_in(folded, bounded=target.has(Switch.MAXIMUM))
    variants, program, reason = _variants(folded, _symbol(name), config, target, loop)
    return _kernel(spec, folded, name, variants, program, reason, loop, tf32=target.tf32)


def emit_exactly(
    spec: AttentionSpec, target: Target, name: str, config: TritonConfig, arch: int, limits: Limits
) -> Kernel:
    """The kernel with these tiles and no others, for sm_`arch` alone: what a tuner measures. Raises UnsupportedError where they do
    not fit, or a compilation passes a limit."""
    _check(spec, target)
    folded = fold_queries(spec)
    loop = loop_in(folded)
    program = program_of(folded, config, _symbol(name), arch, tf32=target.tf32, loop=loop)
    code = ptx.compile_program(program, arch, config.warps, config.stages, limits)
    return _kernel(spec, folded, name, [Variant(arch, code, config)], program, "", loop, limits, tf32=target.tf32)


def _symbol(name: str) -> str:
    return f"{name}_attention"


def _kernel(
    site: AttentionSpec,
    spec: AttentionSpec,
    name: str,
    variants: list[Variant],
    program: Program,
    reason: str,
    loop: Loop,
    limits: Limits = DEFAULT,
    *,
    tf32: bool = False,
) -> Kernel:
    """The kernel's text; where parts of split keys are combined by a dispatch of its own, with that. `spec` is the site's,
    folded."""
    chosen = variants[0].config
    text = executable_text(_symbol(name), program, variants, [v.config.splits for v in variants])
    combine, made = None, list[Variant]()
    if chosen.splits > 1 and not combines_itself(spec, chosen):
        combine = combine_program(spec, chosen, f"{name}_combine", loop)
        archs = [v.arch for v in variants]
        with ThreadPoolExecutor(len(archs)) as pool:
            codes = list(pool.map(lambda a: ptx.compile_program(combine, a, _COMBINE_WARPS, 1, limits), archs))
        made = [Variant(a, c, chosen) for a, c in zip(archs, codes, strict=True)]
        text += executable_text(combine.entry, combine, made, [1] * len(made))
    text += TritonEntry(site, spec, name, program, variants, combine).text_lines()
    fields = {
        f"{k}_sm_{v.arch}" if v.arch != variants[0].arch else k: x
        for v in variants
        for k, x in asdict(v.config).items()
    }
    lossy = "tf32" if tf32 and spec.dtype == "f32" else ""
    into = None
    if not site.symbols:
        into = IntoEntry(site, spec, name, program, variants, combine, combining=made).into()
    return Kernel(name, "\n".join(text) + "\n", "triton", site, fields, (), reason, lossy, into)


def _check(spec: AttentionSpec, target: Target) -> None:
    if reason := missing(target):
        raise UnsupportedError(f"triton kernel: {reason}")
    check_operands(spec, "triton")
    check_packed(spec, "triton")
    if spec.rounding is not None and spec.rounding.most > _WHOLE[spec.dtype]:
        raise UnsupportedError(
            f"triton kernel: probabilities of {spec.rounding.most} steps, which {spec.dtype} does not hold"
        )
    if max(spec.D, spec.Dv) > WIDEST:
        raise UnsupportedError(f"triton kernel: head dims above {WIDEST}")


def _variants(
    spec: AttentionSpec, symbol: str, given: TritonConfig | None, target: Target, loop: Loop
) -> tuple[list[Variant], Program, str]:
    """The kernel for each architecture, with tiles that fit it; the operands it takes; where the tiles are from."""
    with ThreadPoolExecutor(len(ARCHITECTURES)) as pool:
        made = list(pool.map(lambda arch: _variant(spec, symbol, given, arch, target, loop), ARCHITECTURES))
    others = "".join(f"; sm_{v.arch}: {reason}" for v, _, reason in made[1:] if reason)
    return [v for v, _, _ in made], made[0][1], (made[0][2] + others).removeprefix("; ")


def _variant(
    spec: AttentionSpec, symbol: str, given: TritonConfig | None, arch: int, target: Target, loop: Loop
) -> tuple[Variant, Program, str]:
    single = target.tf32 and spec.dtype == "f32" and arch == ARCHITECTURES[0] and target.has(Switch.TILES)
    in_tf32 = tf32_tiles(spec) if single else None
    wanted, reason = (given, "") if given else in_tf32 or tuned(spec, arch, target.off)
    if arch != ARCHITECTURES[0] and given is None:
        # All variants write as many parts, which one dispatch, or one list of buffers, is for.
        wanted = dataclasses.replace(wanted, splits=tuned(spec, ARCHITECTURES[0], target.off)[0].splits)
    wanted = without(wanted, target.off)
    skips = skipping(spec, visit_all=not target.has(Switch.SKIPPING))
    problem: UnsupportedError | None = None
    for config in smaller(wanted):
        try:
            program = program_of(spec, config, symbol, arch, tf32=target.tf32, skips=skips, loop=loop)
            code = ptx.compile_program(program, arch, config.warps, config.stages)
        except UnsupportedError as e:
            problem = problem or e
            continue
        if problem:
            reason += f"{'; ' * bool(reason)}other tiles, as these do not fit: {problem}"
        return Variant(arch, code, config), program, reason
    raise UnsupportedError(f"triton kernel: {problem}")


def program_of(
    spec: AttentionSpec,
    config: TritonConfig,
    symbol: str,
    arch: int,
    *,
    tf32: bool = False,
    skips: Skipping | None = None,
    loop: Loop | None = None,
) -> Program:
    """The source of a spec (already folded) in the form that the tiles name; `tf32`: of f32 with single products of tf32; `skips`:
    which blocks of keys may be left out, if not all that can be; `loop`: what is carried, if not what is derived. Raises
    UnsupportedError where they cannot be."""
    if config.overlap not in (0, HELD) and arch // 10 != 9:
        raise UnsupportedError("the overlapped form is Hopper's")
    plain = {0: AttentionSource, HELD: HeldSource, CLUSTER: ClusterSource}.get(config.overlap)
    if plain is not None:
        products = f32_products(config.BM, config.warps, arch, tf32=tf32)
        return plain(spec, config, symbol, products=products, skips=skips, loop=loop).program()
    form = {1: OverlappedSource, 2: SpecialisedSource, 3: PersistentSource}[config.overlap]
    return form(spec, config, symbol, skips=skips, loop=loop).program()

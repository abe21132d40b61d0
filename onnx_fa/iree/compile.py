"""The road from a model to a .vmfb."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from onnx_fa.errors import CompileError, OnnxFaError
from onnx_fa.files import writing
from onnx_fa.forms.parts import Along
from onnx_fa.forms.report import RewriteReport, SiteReport
from onnx_fa.graph.fixed_inputs import Scalar, fix_inputs
from onnx_fa.graph.free_dims import fix_dims
from onnx_fa.graph.io import ModelLike, save
from onnx_fa.iree.alone import TIMEOUT_S, compile_alone
from onnx_fa.iree.archives import PARAMETERS, archive_of
from onnx_fa.iree.blame import blaming
from onnx_fa.iree.bounded_sizes import FROM_HERE, WHY_BOUNDED, bounded
from onnx_fa.iree.compiler import find_compiler, iree_compile, merge_flags
from onnx_fa.iree.dumps import clear, dump_flags, remove_stale
from onnx_fa.iree.inspect import Inspection, inspect_phases
from onnx_fa.iree.kernel_report import LinearAttentionReport, LinearReport, NormReport, grouped
from onnx_fa.iree.kernels import Planned, model_for_file, plan_kernels, replace_refused
from onnx_fa.iree.packing import ENCODER_FLAGS, asked_for, encoder_flags, may_pack, write_packed_archive
from onnx_fa.iree.passed_numbers import check_numbers
from onnx_fa.iree.remedies import TILING, remedies_of, remedy_for
from onnx_fa.iree.stacks import check_stacks
from onnx_fa.iree.unordered import print_flags
from onnx_fa.iree.weights import ARCHIVE_BYTES, FOR_COMPILE, Externalize, Parameter, weight_bytes, write_archive
from onnx_fa.kernels.mlir.kernel import Kernel
from onnx_fa.match.misses import Miss
from onnx_fa.spec.target import Target, parse_target, spread
from onnx_fa.staging import staging_folder

MODEL_FLAGS: dict[str, tuple[str, ...]] = {
    "llvm-cpu": (
        # Matmuls in packed layout: more than twice as fast, and weights are packed at compile time.
        "--iree-opt-data-tiling",
        # Kernels keep their blocks on the worker's stack, 128 KiB in the runtime; the compiler's own limit is 32 KiB.
        "--iree-llvmcpu-stack-allocation-limit=131072",
        # Register tiles of kernels are wider than what the compiler lets vectors be by default.
        "--iree-llvmcpu-max-allowed-number-of-native-vectors=8192",
    )
}
"""Flags for a whole model, by backend."""

KEEP_F64 = ("--iree-input-demote-f64-to-f32=false",)
"""For a model that has f64: by default IREE computes it in f32, and takes the caller's buffers for f32 as well."""
KEEP_CHECKS = ("--iree-opt-strip-assertions=false",)
"""For a program that compares sizes before it reads: by default the compiler drops that."""
_F64 = re.compile(r"[,x<]f64\b")


@dataclass(frozen=True)
class ImportedModule:
    """MLIR `text` for iree-compile of a model whose kernels are `planned`; `flags` are what model and kernels need."""

    text: str
    planned: Planned
    flags: tuple[str, ...]
    parameters: tuple[Parameter, ...] = ()
    """Weights that the text asks an archive for."""
    linear: tuple[LinearReport, ...] = ()
    """Products with weights, those too that the compiler keeps."""
    norms: tuple[NormReport, ...] = ()
    """Norms of rows, those too that the compiler keeps."""
    linear_attention: tuple[LinearAttentionReport, ...] = ()
    """LinearAttention nodes, those too that are loops over tokens."""

    @property
    def report(self) -> RewriteReport:
        return self.planned.report

    @property
    def sites(self) -> tuple[SiteReport, ...]:
        return self.report.sites

    @property
    def misses(self) -> tuple[Miss, ...]:
        return self.report.misses

    @property
    def kernels(self) -> dict[str, Kernel]:
        """By the names of the sites; sites with equal specs share one."""
        return self.planned.kernels

    def to_dict(self) -> dict[str, Any]:
        return {
            **self.report.to_dict(),
            "linear": [group.to_dict() for group in grouped(self.linear)],
            "norms": [group.to_dict() for group in grouped(self.norms)],
            "linear_attention": [group.to_dict() for group in grouped(self.linear_attention)],
        }


@dataclass(frozen=True)
class CompileReport:
    """What became of a model. `sites` are inspected; `inspection` is everything that the compiler's output showed; `refused` has
    kernels that did not compile even alone, by name, and why."""

    output: Path
    sites: tuple[SiteReport, ...]
    misses: tuple[Miss, ...]
    command: tuple[str, ...]
    seconds: float
    vmfb_bytes: int
    inspection: Inspection
    refused: Mapping[str, str] = field(default_factory=dict)
    archive: Path | None = None
    """The weights, where they are not in the module."""
    note: str = ""
    """How the module had to be compiled otherwise than usual, and why."""
    linear: tuple[LinearReport, ...] = ()
    """Products with weights, those too that the compiler keeps."""
    norms: tuple[NormReport, ...] = ()
    """Norms of rows, those too that the compiler keeps."""
    linear_attention: tuple[LinearAttentionReport, ...] = ()
    """LinearAttention nodes, those too that are loops over tokens."""

    def __repr__(self) -> str:
        fused = sum(site.fused is True for site in self.sites)
        sites = f"{len(self.sites)} sites, {fused} fused, {len(self.misses)} left alone"
        return f"CompileReport({str(self.output)!r}, {sites}, {self.seconds:.1f} s)"

    @property
    def report(self) -> RewriteReport:
        return RewriteReport(self.sites, self.misses)

    def to_dict(self) -> dict[str, Any]:
        return {
            **self.report.to_dict(),
            "linear": [group.to_dict() for group in grouped(self.linear)],
            "norms": [group.to_dict() for group in grouped(self.norms)],
            "linear_attention": [group.to_dict() for group in grouped(self.linear_attention)],
            "command": list(self.command),
            "seconds": self.seconds,
            "vmfb_bytes": self.vmfb_bytes,
            "archive": None if self.archive is None else str(self.archive),
        }


def import_model(
    model: ModelLike,
    target: Target | str = "cpu-host",
    *,
    values: Mapping[str, Scalar] | None = None,
    externalize: Externalize | None = None,
    verify: bool = True,
    data_prop: bool = True,
) -> ImportedModule:
    """`model` as MLIR with a kernel in the place of every attention that one can express. `values` fixes inputs of one element: the
    function does not take them, and an If that they decide is its branch. `externalize` says which weights are parameters, not
    constants; they are in the result's `parameters`. `verify` and `data_prop` as for `import_mlir`.

    A site without a kernel is written in standard ops and reported as a miss with the reason. Raises ModelError.
    """
    target = parse_target(target) if isinstance(target, str) else target
    planned = plan_kernels(fix_inputs(model, values) if values else model, target)
    return import_planned(planned, externalize, verify=verify, data_prop=data_prop)


def import_planned(
    planned: Planned, externalize: Externalize | None = None, *, verify: bool = True, data_prop: bool = True
) -> ImportedModule:
    """The planned model as MLIR, with its kernels in place. `externalize` says which weights are not in it, but its `parameters`.
    Raises ModelError."""
    from onnx_fa.iree.importer import import_mlir  # it needs the compiler, which timing does not

    sites = {site.name: site for site in planned.sites}
    made = import_mlir(planned.model, sites, externalize, target=planned.target, verify=verify, data_prop=data_prop)
    own = (*(KEEP_F64 if _F64.search(made.text) else ()), *(KEEP_CHECKS if "torch.runtime.assert" in made.text else ()))
    own += (f"{TILING}=false",) if made.is_packed_wrongly else ()
    flags = tuple(dict.fromkeys((*own, *(f for k in planned.kernels.values() for f in k.flags))))
    told = (tuple(made.linear), tuple(made.norms), tuple(made.linear_attention))
    return ImportedModule(made.text, planned, flags, tuple(made.parameters), *told)


def compile_model(
    model: ModelLike,
    output: str | os.PathLike[str],
    target: Target | str = "cpu-host",
    *,
    keep_intermediates: Path | None = None,
    flags: Sequence[str] = (),
    dims: Mapping[str, int] | None = None,
    values: Mapping[str, Scalar] | None = None,
    timeout_s: float = 1800,
    memory_bytes: int = 12 << 30,
    parameters: str = "auto",
    devices: int = 1,
    split: Along = "keys",
    progress: Callable[[str], None] = lambda phase: None,
) -> CompileReport:
    """Compiles `model` to `output` (.vmfb) and inspects the result. `flags` come last, so they win. `dims` gives symbolic dims of
    the inputs a size; `values` fixes inputs of one element, which the compiled function then does not take, and an If that they
    decide is its branch; `progress` hears of each phase as it begins.

    `parameters` says where the weights go: "embed", into the module; "archive", into a file of the same name that ends in .irpa,
    without which the module does not run; "auto", into an archive where they take more than 64 MiB.

    `devices`: the program runs on so many devices of the target, each site cut along `split`, its keys, heads or queries, with a
    part on each of them (CPUs; the runtime is given as many devices). Raises TargetError for other targets.

    `keep_intermediates` gets the model with its site nodes, the imported MLIR and the compiler's IR after each phase (weights
    elided). Raises ModelError and CompileError.
    """
    target, start = spread(parse_target(target) if isinstance(target, str) else target, devices), time.monotonic()
    progress("finding attention, importing the model with kernels in place")
    model = fix_dims(model, dims) if dims else model
    planned = plan_kernels(fix_inputs(model, values) if values else model, target, split)
    with blaming(model):
        report, _ = compile_planned(
            planned,
            Path(output),
            keep_intermediates=keep_intermediates,
            flags=flags,
            timeout_s=timeout_s,
            memory_bytes=memory_bytes,
            parameters=parameters,
            progress=progress,
        )
    return replace(report, seconds=time.monotonic() - start)


def compile_planned(
    planned: Planned,
    output: Path,
    *,
    keep_intermediates: Path | None = None,
    flags: Sequence[str] = (),
    timeout_s: float = 1800,
    memory_bytes: int = 12 << 30,
    parameters: str = "auto",
    progress: Callable[[str], None] = lambda phase: None,
) -> tuple[CompileReport, Planned]:
    """As `compile_model`, for a model whose kernels are planned. Also returns the plan that was compiled: without the kernels that
    the compiler refused, whose sites are replaced in the model of the plan that was passed. Raises ModelError and CompileError."""
    target, start = planned.target, time.monotonic()
    externalize = _where_weights_go(planned, parameters)
    imported, refused = import_planned(planned, externalize), dict[str, str]()
    options = merge_flags(MODEL_FLAGS.get(target.backend, ()), imported.flags, flags)
    with writing(output), staging_folder(output.parent) as tmp:
        staged, log = tmp / output.name, output.with_name(output.name + ".log")
        phases = (keep_intermediates or tmp) / "phases"
        phases.mkdir(parents=True, exist_ok=True)
        if keep_intermediates:
            _keep_imported(imported, keep_intermediates)
        encoder = tmp / "encoder.mlir"
        packs = not target.is_gpu and may_pack(imported.parameters, flags)
        regions = tmp / "regions"
        dump = (*dump_flags(phases), *print_flags(regions), *(encoder_flags(encoder) if packs else ()))
        within = partial(iree_compile, timeout_s=timeout_s, memory_bytes=memory_bytes, log=log)
        compile_text = partial(within, output=staged, target=target)
        progress("iree-compile")
        note = ""
        try:
            compile_text(imported.text, flags=(*options, *dump))
        except CompileError as e:
            remedy = remedy_for(e, target, flags)
            if remedy is None or not remedy.is_sure:
                refused = _refused(imported.kernels, target, flags, tmp, timeout_s, memory_bytes)
            if refused:
                # The sites of those kernels alone are written anew. The importer numbers the values of a program through, so its
                # text cannot be changed in one place: the planned model is imported a second time.
                imported = import_planned(replace_refused(imported.planned, refused), externalize)
                options = merge_flags(MODEL_FLAGS.get(target.backend, ()), imported.flags, flags)
                if keep_intermediates:
                    _keep_imported(imported, keep_intermediates)
            elif remedy is not None:
                options, note = merge_flags(options, remedy.flags), remedy.why
            else:
                raise
            clear(phases, regions, encoder, log, log.with_suffix(".failed.mlir"))
            progress("iree-compile, once more")
            compile_text(imported.text, flags=(*options, *dump))
        for needed in remedies_of(phases, regions):
            options = merge_flags(options, needed.flags)
            note = "; ".join(filter(None, (note, needed.why)))
            clear(phases, regions, encoder)
            progress("iree-compile, once more")
            compile_text(imported.text, flags=(*options, *dump))
        if target.is_gpu and (text := bounded(phases)):
            note = "; ".join(filter(None, (note, WHY_BOUNDED)))
            progress("iree-compile, once more")
            compile_text(text, flags=(*options, FROM_HERE, *dump))
        check_numbers(phases)
        progress("inspecting what the compiler made")
        inspection = inspect_phases(phases, imported.planned.sites)
        if not target.is_gpu:
            check_stacks(inspection)
        progress("writing the weights")
        try:
            archive = _write_weights(imported, output, encoder, phases, within)
        except CompileError as e:
            if not encoder.exists():
                raise
            note = f"weights are packed whenever the module is loaded, not in its archive: {_without_log(e)}"
            encoder.unlink()
            compile_text(imported.text, flags=(*options, *dump_flags(phases)))
            archive, packs = _write_weights(imported, output, encoder, phases, within), False
        os.replace(staged, output)
        remove_stale(log)
    sites = tuple(inspection.fill(site) for site in imported.planned.sites if not site.reason)
    asked = (*target.flags, *options, *(encoder_flags(Path("ENCODER.mlir")) if packs else ()))
    command = (str(find_compiler()), "MODEL.mlir", *asked, "-o", str(output))
    size, seconds = output.stat().st_size, time.monotonic() - start
    report = CompileReport(
        output,
        sites,
        imported.misses,
        command,
        seconds,
        size,
        inspection,
        refused,
        archive,
        note,
        imported.linear,
        imported.norms,
        imported.linear_attention,
    )
    return report, imported.planned


def _where_weights_go(planned: Planned, parameters: str) -> Externalize | None:
    """Raises OnnxFaError for a word that `compile_model` does not know."""
    if parameters not in PARAMETERS:
        raise OnnxFaError(f"parameters={parameters!r}: not one of {', '.join(PARAMETERS)}")
    large = weight_bytes(planned.model) > ARCHIVE_BYTES
    return FOR_COMPILE if parameters == "archive" or (parameters == "auto" and large) else None


def _write_weights(
    imported: ImportedModule, output: Path, encoder: Path, phases: Path, compile_within: Callable[..., None]
) -> Path | None:
    """The archive beside the module, where the module asks for one: packed, where iree-compile wrote an `encoder`. `phases` has
    the module's IR. Raises CompileError where the encoder does not compile or run."""
    if not imported.parameters:
        return None
    archive = archive_of(output)
    if archive.exists():
        output.unlink(missing_ok=True)  # for a moment it would be a module with another's weights
    if not encoder.exists():
        write_archive(imported.parameters, archive)
        return archive
    program = encoder.with_suffix(".vmfb")
    compile_within(encoder, program, parse_target("cpu-host"), flags=ENCODER_FLAGS)  # it runs here, whatever the target
    kept = asked_for(imported.parameters, "".join(path.read_text() for path in phases.glob("*.hal.mlir")))
    write_packed_archive(kept, asked_for(imported.parameters, encoder.read_text()), program, archive)
    return archive


def _keep_imported(imported: ImportedModule, folder: Path) -> None:
    """Writes the model with its site nodes, and the MLIR that the compiler gets."""
    save(model_for_file(imported.planned), folder / "site.onnx")
    (folder / "imported.mlir").write_text(imported.text)


def _without_log(error: CompileError) -> str:
    return str(error).partition("; command and messages")[0]


def _refused(
    kernels: Mapping[str, Kernel],
    target: Target,
    flags: Sequence[str],
    folder: Path,
    timeout_s: float,
    memory_bytes: int,
) -> dict[str, str]:
    """The kernels, by their own names, that do not compile even alone, and why. The limits are the model's; a kernel gets no more
    than TIMEOUT_S."""
    found = {}
    for kernel in {k.name: k for k in kernels.values()}.values():
        try:
            output = folder / f"{kernel.name}.vmfb"
            seconds = min(timeout_s, TIMEOUT_S)
            compile_alone(kernel, output, target, flags=flags, timeout_s=seconds, memory_bytes=memory_bytes)
        except CompileError as e:
            found[kernel.name] = _without_log(e)
    return found

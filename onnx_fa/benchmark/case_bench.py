"""One site, from its model to its samples: every contestant is built, held against float64, and timed."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from onnx_fa.benchmark.case_result import CHECKED_SCORES, COPY_BYTES, CaseResult, Plan, bytes_of
from onnx_fa.benchmark.kept_modules import KeptModules, Made, elsewhere
from onnx_fa.benchmark.models import (
    BLOCKED,
    COMPILED,
    EAGER,
    GPU_STOCK_FLAGS,
    ORT,
    STOCK,
    STOCK_FLAGS,
    TORCH,
    Contestant,
    fused_sites,
    play_rounds,
)
from onnx_fa.benchmark.ort_ops import ORT_OPS, op_model
from onnx_fa.benchmark.plot import COPY, OURS
from onnx_fa.benchmark.stock import compile_stock, stock_import, without_log
from onnx_fa.benchmark.stock_forms import FORMS, compile_form
from onnx_fa.benchmark.worker_process import Worker, WorkerRun
from onnx_fa.benchmark.worker_session import Session
from onnx_fa.errors import CompileError, MissingDependencyError, RunError, UnsupportedError
from onnx_fa.files import scratch_folder
from onnx_fa.forms.plain import plain_model_in_halves
from onnx_fa.forms.plain_site import WEIGHT, Array, Spec, held_operands, plain_site_model, site_inputs
from onnx_fa.forms.rewrite import rewrite
from onnx_fa.graph import io
from onnx_fa.iree.caller_thread import site_device
from onnx_fa.iree.compile import compile_model
from onnx_fa.iree.kernel_report import summary
from onnx_fa.iree.kernels import plan_kernels
from onnx_fa.iree.run import benchmark_module, function_of, run_module
from onnx_fa.spec import cases
from onnx_fa.spec.accuracy import Expected
from onnx_fa.spec.attention import AttentionSpec
from onnx_fa.spec.dtypes import NUMPY
from onnx_fa.spec.linear import LinearSpec
from onnx_fa.spec.site_case import Reference, SiteCase
from onnx_fa.spec.target import Target

TRIED = "stock IREE (tried)"
"""Flags of stock IREE that were slower than its best in a first look; they are in the JSON only."""
OTHERS_TOLERANCE = {"f32": 1e-4, "f16": 1e-2, "bf16": 5e-2}
"""Relative error (2-norm) above which another contestant counts as wrong; ours has to meet accuracy.TOLERANCE."""
TABLE = (STOCK, OURS, ORT, TORCH)
"""Who is timed, if nothing else is said."""
SAME = "the same kernel: this changes nothing here"
"""The problem of a variant that is not timed for this reason."""
TORCH_CALLS = {TORCH: "sdpa", EAGER: "eager", COMPILED: "compile"}

_Run = Callable[[int], tuple[Sequence[float], int]]


class CaseBench:
    """One case, from its model to its samples. `base_bytes` is the peak of an IREE program that computes next to nothing; `who` are
    the contestants, in their order, of which `variants` are this project for other targets; `modules` holds what is compiled (else
    that goes with `folder`); PyTorch, or what the plan says, runs in `session`, if there is one."""

    def __init__(
        self,
        case: SiteCase,
        target: Target,
        plan: Plan,
        folder: Path,
        base_bytes: int,
        note: Callable[[str], None],
        who: Sequence[str] = TABLE,
        modules: KeptModules | None = None,
        session: Session | None = None,
        variants: Mapping[str, Target] | None = None,
    ):
        self.session, self.variants = session, variants or {}
        self.spec: Spec = case.bound()[0]
        self.modules = modules or KeptModules(folder / "modules")
        self.case, self.target, self.plan, self.folder, self.base_bytes = case, target, plan, folder, base_bytes
        self.note = note
        self.device = site_device(self.spec, target)
        """Of all programs that are timed, stock IREE's as well."""
        # Of what is no attention the usual call in PyTorch is the plain one.
        self.who = tuple(EAGER if w == TORCH and isinstance(self.spec, LinearSpec) else w for w in who)
        self.tried: list[Contestant] = []
        self.many_stock = 0
        self.others_tolerance = OTHERS_TOLERANCE.get(case.spec.dtype, OTHERS_TOLERANCE["f32"])
        self.model = folder / "model.onnx"
        self.inputs = folder / "inputs"
        self.weight = folder / "weight.npy"
        self.given: list[Path] = []
        self.io_bytes = self.read_bytes = self.weight_bytes = 0

    def run(self) -> CaseResult:
        """A contestant that cannot be built, run, or is wrong, keeps its place with the reason."""
        start = time.monotonic()
        expected = self._prepare()
        field_ = [
            self._contestant(what, expected) for what in self.who if what not in TORCH_CALLS or find_spec("torch")
        ]
        decode = "decode" in self.case.tags
        if decode:
            field_.append(self._copy())
        slow = any(c.first_ms > self.plan.slow_ms for c, _ in field_)
        play_rounds(
            [(c, self._timed(c, run)) for c, run in field_],
            self.plan.slow_rounds if slow else self.plan.rounds,
            lambda m: self.note(f"{self.case.name}: {m}"),
        )
        contestants = (*(c for c, _ in field_), *self.tried)
        seconds = time.monotonic() - start
        return CaseResult(self.case.name, self.case.title, decode, self.read_bytes, contestants, seconds)

    def _contestant(self, what: str, expected: Reference) -> tuple[Contestant, _Run]:
        self.note(f"{self.case.name}: {what}")
        if what == STOCK or what in FORMS:
            return self._stock(expected, what)
        if what == OURS or what in self.variants:
            return self._ours(expected, what)
        if what in TORCH_CALLS:
            return self._torch(what, expected)
        if self.target.is_gpu:
            return Contestant(what, problem="onnxruntime is timed on the CPU only"), _never
        if find_spec("onnxruntime") is None:
            return Contestant(what, problem="onnxruntime is not installed: pip install 'onnx-fa[ort]'"), _never
        if what in ORT_OPS:
            return self._ort_op(what, expected)
        model = self.model
        if what == BLOCKED:
            model = self.folder / "blocked.onnx"
            blocked, report = rewrite(self.model, form="blocked")
            if not report.sites:
                return Contestant(what, problem="; ".join(m.reason for m in report.misses)), _never
            io.save(blocked, model)
        return self._worker(what, "onnxruntime", str(model), expected)

    def _ort_op(self, what: str, expected: Reference) -> tuple[Contestant, _Run]:
        try:
            if not isinstance(self.spec, AttentionSpec):
                raise UnsupportedError(f"{what}: no attention")
            op_model(what, self.spec)
        except UnsupportedError as e:
            return Contestant(what, problem=str(e)), _never
        job = self.folder / f"op{ORT_OPS.index(what)}.json"
        job.write_text(json.dumps({"spec": self.spec.to_dict(), "op": what}))
        return self._worker(what, "ort-op", str(job), expected)

    def _torch(self, what: str, expected: Reference) -> tuple[Contestant, _Run]:
        device = "cuda" if self.target.is_gpu else "cpu"
        if what == COMPILED and device == "cpu" and shutil.which(os.environ.get("CXX", "g++")) is None:
            return Contestant(what, problem="torch.compile needs a C++ compiler, and there is none"), _never
        job = self.folder / f"{TORCH_CALLS[what]}.json"
        call = "linear" if isinstance(self.spec, LinearSpec) else TORCH_CALLS[what]
        said = {"spec": self.spec.to_dict(), "call": call, "device": device, "weight": str(self.weight)}
        job.write_text(json.dumps(said))
        return self._worker(what, "torch", str(job), expected)

    def _timed(
        self, c: Contestant, run: Callable[[int], tuple[Sequence[float], int]]
    ) -> Callable[[], tuple[Sequence[float], int]]:
        return lambda: run(self.plan.calls(c.first_ms, self.target.is_gpu))

    def _prepare(self) -> Reference:
        """Writes model and inputs. Returns what is right."""
        self.note(f"{self.case.name}: reference")
        operands = self.case.draw(self.spec)
        self._write_model(operands)
        self.inputs.mkdir()
        for name, x in site_inputs(self.spec, operands).items():
            path = self.inputs / f"{name}.npy"
            np.save(path, x)
            self.given.append(path)
        if isinstance(self.spec, LinearSpec):
            np.save(self.weight, operands[WEIGHT])
            self.weight_bytes = sum(x.nbytes for x in held_operands(self.spec, operands))
        self.read_bytes = sum(x.nbytes for x in held_operands(self.spec, operands))
        ((shape, dtype), *_) = self.spec.results
        self.io_bytes = sum(x.nbytes for x in operands) + bytes_of(shape, dtype)
        return self.case.expect(self.spec, operands, CHECKED_SCORES)

    def _write_model(self, operands: Sequence[Array]) -> None:
        """In f16 throughout on GPUs, which are slow in f32; onnxruntime's CPU kernels, which have no part in an ablation, are for
        f32."""
        if (halves := self._in_halves()) is not None:
            io.save(plain_model_in_halves(halves), self.model)
            return
        io.save(plain_site_model(self._model_spec, operands), self.model)

    def _in_halves(self) -> AttentionSpec | None:
        """The spec of what is written in halves."""
        spec, there = self.spec, self.target.is_gpu or "ablate" in self.case.tags
        if not there or not isinstance(spec, AttentionSpec) or spec.dtype != "f16" or spec.tensors or spec.sink:
            return None
        return spec

    def _named(self, what: str) -> str:
        """What a module is kept by."""
        return f"{what} in f16" if self._in_halves() is not None else what

    def _options(self, vmfb: Path) -> dict[str, Any]:
        limits = {"timeout_s": self.plan.timeout_s, "memory_bytes": self.plan.memory_bytes}
        return {"function": function_of(vmfb), "device": self.device, "threads": self.plan.threads, **limits}

    def _check_module(self, c: Contestant, vmfb: Path, expected: Reference, tolerance: float | None) -> None:
        """Fills in error, memory and problem of a compiled module."""
        try:
            result, peak = self._run_once(vmfb)
        except RunError as e:
            c.problem = str(e)
            return
        c.peak_bytes, c.extra_bytes = peak, max(0, peak - self.base_bytes - self.io_bytes)
        _judge(c, expected, result, tolerance)

    def _run_once(self, vmfb: Path) -> tuple[Array, int]:
        """The result of a module, and its peak memory. Raises RunError."""
        ((shape, dtype), *_) = self.spec.results
        as_numbers = np.dtype(NUMPY[dtype]) if dtype == "bf16" else None
        (result,), peak = run_module(vmfb, self.given, 1, as_numbers=as_numbers, **self._options(vmfb))
        return (result if as_numbers is None else result.reshape([d for d in shape if isinstance(d, int)])), peak

    def _module_run(self, vmfb: Path) -> Callable[[int], tuple[Sequence[float], int]]:
        def run(calls: int) -> tuple[Sequence[float], int]:
            # A GPU's clocks rise with its work, and short calls are timed better together.
            each, untimed = (min(20, calls), 10) if self.target.is_gpu else (1, 1)
            done = benchmark_module(
                vmfb, self.given, repetitions=-(-calls // each), each=each, untimed=untimed, **self._options(vmfb)
            )
            return done.ms, done.peak_bytes

        return run

    def _stock(self, expected: Reference, what: str = STOCK) -> tuple[Contestant, _Run]:
        """The fastest flags with right numbers; all that were tried are kept in `self.tried`."""
        tried: list[tuple[Contestant, Path]] = []
        for flags in GPU_STOCK_FLAGS if self.target.is_gpu else STOCK_FLAGS:
            c, vmfb = Contestant(TRIED, " ".join(flags) or "defaults"), self.folder / f"stock{self.many_stock}.vmfb"
            self.many_stock += 1
            self.note(f"{self.case.name}: {what} {c.flags}")
            try:
                made = self._compiled_stock(flags, vmfb, what)
                c.compile_s, c.flags = made.seconds, "; ".join(filter(None, (made.said, c.flags)))
                (first,), _ = self._module_run(vmfb)(1)
                calls = min(3, self.plan.calls(first))
                again = self._module_run(vmfb)(calls)[0] if calls > 1 else []
                c.samples = [(0, first), *((0, ms) for ms in again)]
                c.first_ms = float(c.median_ms or 0)
            except (CompileError, MissingDependencyError, RunError) as e:
                c.problem = without_log(str(e))
            tried.append((c, vmfb))
        self.tried += [c for c, _ in tried]
        ran = sorted((t for t in tried if not t[0].problem), key=lambda t: t[0].first_ms)
        for c, vmfb in ran:
            self._check_module(c, vmfb, expected, self.others_tolerance)
            if not c.problem:
                return dataclasses.replace(c, what=what, samples=[]), self._module_run(vmfb)
        return Contestant(what, problem=tried[0][0].problem), _never

    def _compiled_stock(self, flags: Sequence[str], vmfb: Path, what: str = STOCK) -> Made:
        def build(out: Path) -> Made:
            if what in FORMS:
                assert isinstance(self.spec, AttentionSpec)
                return Made(str(compile_form(what, self.model, self.spec, self.target, flags, out)))
            imported = self.folder / "stock.mlir"
            if not imported.exists() and isinstance(refused := stock_import(self.model, self.folder), str):
                raise CompileError(refused)
            settings = {"flags": flags, "timeout_s": self.plan.timeout_s}
            compile_stock(imported, self.target, settings, out)
            return Made()

        return self.modules.get(self._named(what), self._model_spec, self.target, flags, vmfb, build)

    @property
    def _model_spec(self) -> Spec:
        """The spec of the model: rows of a product that only the run knows are such there, too."""
        return self.case.spec if isinstance(self.spec, LinearSpec) else self.spec

    def compiled(self, vmfb: Path, what: str = OURS) -> Made:
        """This project's module of the case's model, or a variant's. Raises CompileError, also for a variant whose kernels are
        those of no variant, and MissingDependencyError without the compiler."""
        target = self.variants.get(what, self.target)

        def build(out: Path) -> Made:
            if target != self.target and _same_kernels(self.model, self.target, target):
                raise CompileError(SAME)
            done = compile_model(self.model, out, target, parameters="embed")
            said = summary(done.linear) if isinstance(self.spec, LinearSpec) else fused_sites(done.sites)
            said += "".join(f"; left alone: {m.reason}" for m in done.misses)
            return Made(said, ", ".join(sorted({s.lossy for s in done.sites})))

        return self.modules.get(self._named(OURS), self._model_spec, target, (), vmfb, build)

    def build(self) -> list[str]:
        """Compiles what `run` would time. Returns the problems."""
        self._write_model(self.case.draw(self.spec))
        problems = []
        own = [w for w in self.who if w == OURS or w in self.variants]
        wanted = [(w, partial(self.compiled, self.folder / "ours.vmfb", w)) for w in own]
        flags = GPU_STOCK_FLAGS if self.target.is_gpu else STOCK_FLAGS
        stock = [w for w in self.who if w == STOCK or w in FORMS]
        wanted += [(w, partial(self._compiled_stock, f, self.folder / "stock.vmfb", w)) for w in stock for f in flags]
        for what, make in wanted:
            self.note(f"{self.case.name}: {what}")
            try:
                make()
            except CompileError as e:
                if str(e) != SAME:
                    problems.append(f"{self.case.name}: {what}: {without_log(str(e))}")
        return problems

    def _ours(self, expected: Reference, what: str = OURS) -> tuple[Contestant, _Run]:
        c, vmfb = Contestant(what), self.folder / f"ours{self.who.index(what)}.vmfb"
        try:
            made = self.compiled(vmfb, what)
        except (CompileError, MissingDependencyError) as e:
            return Contestant(what, problem=without_log(str(e))), _never
        c.compile_s, c.flags = made.seconds, made.said
        if there := elsewhere(made):
            c.flags += f"; compiled elsewhere by {there}"
        if isinstance(expected, Expected):
            expected = dataclasses.replace(expected, lossy=made.lossy)
        self._check_module(c, vmfb, expected, None)
        if not c.problem:
            c.first_ms = float(self._module_run(vmfb)(1)[0][0])
        return c, self._module_run(vmfb)

    def _worker(self, what: str, kind: str, argument: str, expected: Reference) -> tuple[Contestant, _Run]:
        c = Contestant(what)
        worker = self._start(kind, argument)
        path = self.folder / "out.npz"
        try:
            done: WorkerRun = worker.start(1, path)
        except RunError as e:
            c.problem = str(e)
            return c, _never
        c.peak_bytes, c.extra_bytes, c.flags, c.first_ms = done.peak_bytes, done.extra_bytes, done.how, done.ms[0]
        if kind == "onnxruntime" and c.extra_bytes is not None:
            c.extra_bytes = max(0, c.extra_bytes - self.weight_bytes)  # it comes with the model
        with np.load(path) as archive:
            _judge(c, expected, archive[archive.files[0]], self.others_tolerance)
        return c, worker.timed

    def _copy(self) -> tuple[Contestant, _Run]:
        worker = self._start("copy", str(COPY_BYTES))
        c = Contestant(COPY, f"{COPY_BYTES >> 20} MiB")
        c.first_ms = worker.start(1).ms[0]
        return c, worker.timed

    def _start(self, kind: str, argument: str) -> Worker:
        plan, session = self.plan, self.session if kind == "torch" or self.plan.keep_processes else None
        return Worker(kind, argument, self.inputs, plan.threads, plan.timeout_s, plan.memory_bytes, session)


def _same_kernels(model: Path, *targets: Target) -> bool:
    """Whether a model has the same kernels for some targets."""
    texts = [{n: (k.text, k.flags) for n, k in plan_kernels(model, t).kernels.items()} for t in targets]
    return all(text == texts[0] for text in texts)


def _never(calls: int) -> tuple[Sequence[float], int]:
    raise AssertionError("a contestant with a problem is not run")


def _judge(c: Contestant, expected: Reference, result: Any, tolerance: float | None) -> None:
    """Sets the error, and the problem where it is too large (`tolerance` None: what the kernel's element type allows)."""
    seen = expected.compare(result)
    c.error = seen.error
    if seen.problem and (tolerance is None or not seen.error <= tolerance):
        c.problem = f"wrong numbers: {seen.problem}"


TINY = cases.find("tiny")


def base_memory(target: Target, plan: Plan, modules: KeptModules | None = None) -> int:
    """Peak resident bytes of an IREE program with a tiny attention in it; 0 where it cannot be compiled here."""
    with scratch_folder() as folder:
        tiny = CaseBench(TINY, target, plan, folder, 0, lambda m: None, modules=modules)
        tiny._prepare()
        vmfb = folder / "tiny.vmfb"
        try:
            tiny.compiled(vmfb)
        except MissingDependencyError:
            return 0  # then no module of a case can be compiled either
        return tiny._run_once(vmfb)[1] - tiny.io_bytes

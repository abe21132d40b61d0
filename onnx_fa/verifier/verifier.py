"""verify: the original, the rewritten and the compiled model against each other, and every site against float64.

Six computations see the same inputs. The original and the rewritten model run in onnxruntime without its optimiser (in f32 where
it refuses bf16, in onnx's reference evaluator where it cannot run an op; the table says so) and with it, as users run them; the
compiled one runs in IREE, and its kernels run alone. The operands of every site are read off the rewritten run;
`onnx_fa.spec.reference` computes the site from them in float64, and the rewritten site and the same site of the original are
compared with that. Kernels are those of the plan that is compiled, called with what the compiled model calls them with.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir

from onnx_fa.errors import RunError
from onnx_fa.files import scratch_folder
from onnx_fa.forms.replace import Site
from onnx_fa.forms.report import SiteReport
from onnx_fa.forms.rewrite import rewrite_in_place
from onnx_fa.graph import io
from onnx_fa.graph.accuracy_levels import clear_levels, rounds_activations
from onnx_fa.graph.determined import determined_sizes
from onnx_fa.graph.fixed_inputs import Scalar, fix_inputs
from onnx_fa.graph.free_dims import symbols
from onnx_fa.graph.ops import op_of
from onnx_fa.graph.twins import CHANCE
from onnx_fa.graph.view import DTYPES
from onnx_fa.iree.kernels import Planned, plan_kernels
from onnx_fa.spec.accuracy import LOSSY_PRODUCT
from onnx_fa.spec.target import Target, parse_target
from onnx_fa.verifier.calls import decoder_calls
from onnx_fa.verifier.comparisons import Check, as_declared, norm_error
from onnx_fa.verifier.fixed_checks import FixedChecks
from onnx_fa.verifier.given_inputs import arrange
from onnx_fa.verifier.inputs import VARIANTS, Array, Variant, has_float_input, has_mask_input, random_inputs
from onnx_fa.verifier.output_checks import OutputChecks, Results, SiteOutput
from onnx_fa.verifier.report import VerifyReport
from onnx_fa.verifier.rounded_activations import AS_GIVEN
from onnx_fa.verifier.runners import Runner
from onnx_fa.verifier.site_checks import ROUNDING, SITE_TOLERANCE, SiteChecks, SiteKernels

MODEL_TOLERANCE = {"f64": 1e-12, "f32": 1e-4, "f16": 2e-3, "bf16": 1e-2, **LOSSY_PRODUCT}
"""Whole models: largest difference over the largest magnitude of the output, by the model's narrowest float type, or by how a site
was compiled because it was asked for."""
LEVELS = (
    "at accuracy_level 4 onnxruntime may round what weights of few bits multiply to 8 bits: all is compared with the original at "
    f"level 0, or held to what such roundings move, and the rows against the {AS_GIVEN} say how far it is from what its users run"
)
DRAWN = "{op} {name!r} draws random numbers, others in every runtime: what is made of them cannot agree"
ODD_LENGTHS = (37, 61, 1)
"""Sizes of free dims over the seeds: no tile divides them, and a single one."""


@dataclass(frozen=True)
class _Drawn:
    """One set of inputs, and its name in the table."""

    name: str
    arrays: dict[str, Array]


def verify(
    model: io.ModelLike,
    target: Target | str = "cpu-host",
    *,
    seeds: int = 3,
    dims: Mapping[str, int] | None = None,
    values: Mapping[str, Scalar] | None = None,
    inputs: Mapping[str, Mapping[str, Array]] | None = None,
    flags: Sequence[str] = (),
    module: Path | None = None,
    progress: Callable[[str], None] = lambda message: None,
) -> VerifyReport:
    """Compares on `seeds` random inputs, on adversarial ones where the model has inputs for them, and on a prompt, a step and a
    chunk where it has caches; or on `inputs` alone, if given: sets of arrays by the names of the model's inputs, by what the table
    calls them.

    `module` is what `compile_model` made of the model; without it the model is compiled here, and its sites are inspected.
    `dims` fixes symbolic dims; those that the graph leaves no choice have that size, the others lengths that divide nothing.
    `values` fixes inputs of one element as in `compile_model`: the model as passed is called with them, and compared with what it
    becomes. Does not raise on a mismatch: ask `.check()` or `.ok`. Raises ModelError, CompileError, RunError, OnnxFaError for
    inputs that do not fit, and MissingDependencyError without onnxruntime.
    """
    target = parse_target(target) if isinstance(target, str) else target
    given = io.load(model)
    original = fix_inputs(given, values or {})  # a copy: outputs are added to it below
    clean = original.clone()  # what is compiled
    chosen = [_Drawn(name, arrange(clean, arrays, name)) for name, arrays in (inputs or {}).items()]
    coarser = original.clone() if rounds_activations(original) else None
    if coarser is not None:
        given = given.clone()
        clear_levels(given)
        clear_levels(original)
    rewritten = original.clone()
    # What `rewrite` writes is matched by itself, and what is compiled once more: a match holds nodes, values and functions over
    # values of the one graph in which it was found, and what is prepared before matching depends on the form.
    report, sites = rewrite_in_place(rewritten, "decomposed")
    sizes = determined_sizes(rewritten) | dict(dims or {})
    # Values inside a subgraph cannot be made outputs of the model.
    sites = [s for s in sites if s.nodes and s.nodes[-1].graph is rewritten.graph]
    label = "model" if isinstance(model, (ir.Model, onnx.ModelProto)) else str(model)
    notes = [f"left alone: {m.node} ({m.op}): {m.reason}" for m in report.misses]
    notes += [LEVELS] if coarser is not None else []
    notes += [DRAWN.format(op=op_of(n), name=n.name) for n in clean.graph.all_nodes() if op_of(n) in CHANCE]
    from onnx_fa.iree.run import load_module

    with scratch_folder() as folder:
        # Before anything is compiled, so that a model that no runtime can run is refused at once.
        runs = _Runs(original, rewritten, sites, folder, coarser)
        notes += runs.notes
        fixed = FixedChecks(given, values or {}, folder)
        planned, inspected = plan_kernels(clean, target), report.sites
        if module is None:
            progress(f"compiling for {target.name}")
            module = folder / "model.vmfb"
            planned, inspected = _compile(planned, module, flags)
        notes += [f"not one fused dispatch: {s.name}" for s in inspected if s.fused is False]
        kernels = SiteKernels(planned, folder)
        left_alone = [m for m in planned.report.misses if m not in report.misses]
        notes += [f"no kernel for {m.node}: {m.reason}" for m in left_alone] + kernels.notes
        coarse = [s.lossy for s in inspected if s.lossy in LOSSY_PRODUCT]
        # What onnxruntime refuses for its bf16 computes in bf16, whatever its inputs, weights and outputs are.
        dtype = "bf16" if runs.before.in_f32 else _narrowest(clean, rewritten)
        call = load_module(module, usual=target.device)
        compared = _Comparison(runs, kernels, call, dtype, coarse, fixed)
        drawn = chosen
        if not chosen:
            calls, left_out = decoder_calls(clean, sizes)
            notes += left_out
            drawn = [*(_Drawn(name, arrays) for name, arrays in calls.items()), *draw(clean, seeds, sizes)]
        for draw_ in drawn:
            progress(f"inputs {draw_.name}")
            compared.on(draw_)
    if len(compared.skipped) == len(drawn):
        raise RunError(f"{label}: {compared.skipped[0]}" + ("" if chosen else "; choose other sizes with --dim"))
    return VerifyReport(
        label, target.name, tuple(inspected), (*compared.checks, *compared.never_finite()),
        (*notes, *compared.skipped, *compared.moves()),
    )  # fmt: skip


def _compile(planned: Planned, module: Path, flags: Sequence[str]) -> tuple[Planned, tuple[SiteReport, ...]]:
    """Writes the module: what was planned, less what did not compile, and its sites as inspected."""
    from onnx_fa.iree.compile import compile_planned

    done, planned = compile_planned(planned, module, flags=tuple(flags))
    return planned, tuple(done.sites)


class _Runs:
    """Both models without the optimiser, with the sites' operands and outputs among their outputs, and the checks of their own
    outputs."""

    def __init__(
        self, original: ir.Model, rewritten: ir.Model, sites: Sequence[Site], folder: Path, coarser: ir.Model | None
    ) -> None:
        self.sites, self.names = sites, [str(o.name) for o in original.graph.outputs]
        values = {str(o.name): o for node in original.graph for o in node.outputs}
        self.cut = [s for s in sites if s.output.name in values]
        self.outputs = OutputChecks(original, rewritten, [str(s.output.name) for s in self.cut], folder, coarser)
        self.taps = {id(s): _site_output(s) for s in sites}
        shown = [v for s in sites for v in (*s.operands, self.taps[id(s)], s.output)]
        _show(rewritten.graph, shown)
        _show(original.graph, [v for t in self.taps.values() if (v := values.get(str(t.name))) is not None])
        self.constants = {
            str(v.name): v.const_value.numpy() for s in sites for v in s.operands if v.const_value is not None
        }
        self.before = Runner(original, folder / "original.onnx")
        self.after = Runner(rewritten, folder / "rewritten.onnx")
        self.notes = [n for n in (self.before.note("original"), self.after.note("rewritten")) if n]


def _show(graph: ir.Graph, values: Sequence[ir.Value]) -> None:
    """Makes values outputs of the graph."""
    have = {str(o.name) for o in graph.outputs} | {str(i.name) for i in graph.inputs}
    for value in values:
        if value.name not in have and value.name not in graph.initializers:
            graph.outputs.append(value)
            have.add(str(value.name))


class _Comparison:
    """All comparisons, input by input. `coarse` says of what kernels were asked for that is less exact than their operands."""

    def __init__(
        self,
        runs: _Runs,
        kernels: SiteKernels,
        call: Callable[..., list[Array]],
        dtype: str,
        coarse: Sequence[str],
        fixed: FixedChecks,
    ) -> None:
        self.runs, self.kernels, self.call, self.dtype, self.coarse = runs, kernels, call, dtype, coarse
        self.fixed = fixed
        # Where both models are run in f32, nothing of bf16 excuses a difference between them.
        self.in_f32 = runs.before.in_f32 and runs.after.in_f32
        self.checks: list[Check] = []
        self.skipped: list[str] = []
        self._finite: set[str] = set()
        self._moved: dict[str, float] = {}

    def on(self, drawn: _Drawn) -> None:
        """Adds the checks of one set of inputs."""
        try:
            want = self.runs.before(drawn.arrays)
        except RunError as e:
            # A size that the model itself does not take says nothing about the rewrite.
            self.skipped.append(f"inputs {drawn.name} skipped: {e}")
            return
        got = self.runs.after(drawn.arrays)
        compiled = self._compiled(drawn, want)
        known = {**self.runs.constants, **drawn.arrays, **got}
        given = self.kernels.operands(drawn.arrays)
        sites = [
            SiteChecks(drawn.name, s, self.runs.taps[id(s)], known, want, in_f32=self.runs.after.in_f32)
            for s in self.runs.sites
        ]
        peak = max((s.peak for s in sites), default=0.0)
        own = "f32" if self.in_f32 else self.dtype
        allowed = {kind: MODEL_TOLERANCE[kind] + ROUNDING[kind] * peak for kind in (own, self.dtype, *self.coarse)}
        free = {s.site.name: s.free for s in sites}
        results = Results(
            drawn.name,
            drawn.arrays,
            want,
            got,
            compiled,
            allowed[own],
            max(allowed.values()),
            [
                SiteOutput(str(s.output.name), got[str(s.output.name)], SITE_TOLERANCE[s.spec.dtype], free[s.name])
                for s in self.runs.cut
            ],
        )
        self.checks += self.runs.outputs.compare(results, optimised=not self.runs.before.refused)
        self.checks += self.fixed.compare(drawn.name, drawn.arrays, want, MODEL_TOLERANCE[self.dtype])
        self._remember(want, compiled)
        for site in sites:
            self.checks += site.checks
            self.checks.append(site.kernel(self.kernels, given.get(site.site.name)))

    def _compiled(self, drawn: _Drawn, want: Mapping[str, Array]) -> list[Array] | None:
        try:
            results = self.call(*drawn.arrays.values())
        except RunError as e:
            self.checks.append(Check(drawn.name, "IREE: run", "original", np.inf, 0.0, False, str(e)))
            return None
        if len(results) != len(self.runs.names):
            raise RunError(f"the compiled model returns {len(results)} results, the original {len(self.runs.names)}")
        types = [self.runs.before.declared(name, want[name]) for name in self.runs.names]
        return [as_declared(x, dtype) for x, dtype in zip(results, types, strict=True)]

    def _remember(self, want: Mapping[str, Array], compiled: Sequence[Array] | None) -> None:
        for n, name in enumerate(self.runs.names):
            x = want[name]
            if x.size == 0 or x.dtype.kind in "biu" or np.isfinite(x.astype(np.float64)).any():
                self._finite.add(name)
            if compiled is not None and self.coarse and x.dtype.kind == "f":
                self._moved[name] = max(self._moved.get(name, 0.0), norm_error(compiled[n], x.astype(np.float64)))

    def never_finite(self) -> list[Check]:
        """A failed check for every output of which nothing is shown."""
        note = "no inputs that were tried give a finite value, so nothing is shown"
        return [
            Check("all", f"output {n}", "original", np.inf, 0.0, False, note)
            for n in self.runs.names
            if n not in self._finite
        ]

    def moves(self) -> list[str]:
        return [
            f"{self.coarse[0]} in {len(self.coarse)} sites: output {name} differs by {error:.2e} (2-norm, relative)"
            for name, error in self._moved.items()
        ]


def rewrite_error(original: ir.Model, rewritten: ir.Model, seeds: int = 3) -> dict[str, float]:
    """By output: the largest 2-norm of the difference over that of the original, in onnxruntime on random inputs. For rewrites that
    are meant to change results. Raises RunError and MissingDependencyError."""
    found: dict[str, float] = {}
    with scratch_folder() as folder:
        before, after = Runner(original, folder / "before.onnx"), Runner(rewritten, folder / "after.onnx")
        for drawn in draw(original, seeds, None):
            want, got = before(drawn.arrays), after(drawn.arrays)
            for name, x in want.items():
                found[name] = max(found.get(name, 0.0), norm_error(got[name], x.astype(np.float64)))
    return found


def draw(model: ir.Model, seeds: int, dims: Mapping[str, int] | None) -> list[_Drawn]:
    """The inputs: one set per seed (over odd lengths where dims are free), then the adversarial ones."""
    free = [s for s in symbols(model) if s not in (dims or {})]
    lengths = ODD_LENGTHS if free else ODD_LENGTHS[:1]
    variants: list[Variant] = [v for v in VARIANTS if v != "normal"]
    if not has_float_input(model):
        variants.remove("large")
    if not has_mask_input(model):
        variants = [v for v in variants if v == "large"]
    drawn = []
    for seed in range(max(seeds, len(lengths))):
        length = lengths[seed % len(lengths)]
        name = f"seed {seed}" + (f", length {length}" if free else "")
        drawn.append(_Drawn(name, random_inputs(model, seed=seed, dims=dims, default=length)))
    for seed, variant in enumerate(variants, start=seeds):
        drawn.append(_Drawn(variant, random_inputs(model, seed=seed, dims=dims, variant=variant)))
    return drawn


def _site_output(site: Site) -> ir.Value:
    """The value that the spec describes: the one that no node of the site reads (`site.output` may be reshaped from
    it)."""
    own = set(site.nodes)
    for node in reversed(site.nodes):
        for out in node.outputs:
            if not any(user in own for user, _ in out.uses()):
                return out
    return site.output


def _narrowest(model: ir.Model, typed: ir.Model) -> str:
    """The narrowest float type among the model's inputs, weights and outputs; f64 only where no node computes in another, by the
    types that were inferred for its rewritten form, `typed`."""
    values = (*model.graph.inputs, *model.graph.outputs, *model.graph.initializers.values())
    seen = {DTYPES[v.dtype] for v in values if v.dtype in DTYPES}
    made = {out.dtype for node in typed.graph.all_nodes() for out in node.outputs}
    if seen == {"f64"} and None not in made and {DTYPES[d] for d in made if d in DTYPES} == {"f64"}:
        return "f64"
    return next((d for d in ("bf16", "f16", "f32") if d in seen), "f32")

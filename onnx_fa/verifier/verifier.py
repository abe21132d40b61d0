"""verify: the original, the rewritten and the compiled model against each other, and every site against float64.

Six computations see the same inputs. The original and the rewritten model run in onnxruntime without its optimiser (in onnx's
reference evaluator where onnxruntime cannot run an op or type, and the table says so) and with it, as users run them; the
compiled one runs in IREE, and its kernels run alone. The operands of every site are read off the rewritten run;
`onnx_fa.spec.reference` computes the site from them in float64, and the rewritten site and the same site of the original are
compared with that. Kernels are those of `plan_kernels`, which compiles too, called with what the compiled model calls them
with.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from onnx_fa.errors import MismatchError, OnnxFaError, RunError, UnsupportedError
from onnx_fa.files import scratch_folder
from onnx_fa.forms.report import SiteReport
from onnx_fa.forms.rewrite import Site, rewrite_in_place
from onnx_fa.graph import io
from onnx_fa.graph.free_dims import symbols
from onnx_fa.graph.view import DTYPES
from onnx_fa.iree.kernels import Planned, operands_of, plan_kernels
from onnx_fa.spec.accuracy import LOSSY_PRODUCT
from onnx_fa.spec.attention import AttentionSpec
from onnx_fa.spec.cases import packed
from onnx_fa.spec.reference import attention, logits
from onnx_fa.spec.rounding_bounds import rounds as ties
from onnx_fa.spec.rounding_bounds import slack
from onnx_fa.spec.target import Target, parse_target
from onnx_fa.tables import text_table
from onnx_fa.verifier.comparisons import Check, norm_error
from onnx_fa.verifier.inputs import VARIANTS, Array, Variant, has_float_input, has_mask_input, random_inputs
from onnx_fa.verifier.output_checks import AT_FAULT, OutputChecks, Results, SiteOutput
from onnx_fa.verifier.runners import Runner

MODEL_TOLERANCE = {"f64": 1e-12, "f32": 1e-4, "f16": 2e-3, "bf16": 1e-2, **LOSSY_PRODUCT}
"""Whole models: largest difference over the largest magnitude of the output, by the model's narrowest float type, or by how a site
was compiled because it was asked for."""
SITE_TOLERANCE = {"f64": 1e-12, "f32": 2e-6, "f16": 2e-3, "bf16": 1e-2, **LOSSY_PRODUCT}
"""One site against float64: 2-norm of the difference over the 2-norm of the reference. Where the original itself is
further off, its error is allowed, but never more than ten times this. The last are for kernels that were asked for that."""
ROUNDING = {"f64": 2.3e-16, "f32": 1.2e-7, "f16": 9.8e-4, "bf16": 7.9e-3, **LOSSY_PRODUCT}
"""Added to both, times the largest score that a row's softmax rests on: rounding a score moves its exp by that much,
in every spelling. It is 1e-3 for a row where all keys are masked by -1e4, and nothing to speak of elsewhere."""
SWALLOWED = 1e16
"""A score of this size hides what is added to it even from float64."""
REFERENCE_BYTES = 1 << 30
"""Sites whose float64 scores would need more than this are not compared (the table says so)."""
ODD_LENGTHS = (37, 61, 1)
"""Sizes of free dims over the seeds: no tile divides them, and a single one."""


@dataclass(frozen=True)
class VerifyReport:
    """All comparisons of one model. `notes` say what stood in for what, and which sites were left alone."""

    model: str
    target: str
    sites: tuple[SiteReport, ...]
    checks: tuple[Check, ...]
    notes: tuple[str, ...] = field(default=())

    def __repr__(self) -> str:
        agree = sum(c.ok is not False for c in self.checks)
        return f"VerifyReport({self.model!r}, {self.target}, {agree} of {len(self.checks)} comparisons agree)"

    @property
    def ok(self) -> bool:
        return all(c.ok is not False for c in self.checks)

    def check(self) -> None:
        """Raises MismatchError, naming the worst comparison, unless all agree."""
        bad = [c for c in self.checks if c.ok is False]
        if bad:
            worst = max(bad, key=lambda c: np.inf if c.error is None else c.error / (c.allowed or 1.0))
            raise MismatchError(
                f"{self.model}: {len(bad)} of {len(self.checks)} comparisons disagree; the worst: {worst.what} against "
                f"{worst.against} on {worst.inputs}: error {worst.error:.2e}, allowed {worst.allowed:.2e} {worst.note}"
            )

    def table(self) -> str:
        """The worst of each kind of comparison, over all inputs; mismatches one by one."""
        groups: dict[tuple[str, str], list[Check]] = {}
        for c in self.checks:
            groups.setdefault((c.what, c.against), []).append(c)
        rows = []
        for (what, against), checks in groups.items():
            made = [c for c in checks if c.error is not None and c.allowed is not None]
            verdict = _verdict(checks)
            worst = max(made, key=lambda c: (c.ok is False, c.error or 0.0), default=checks[0])
            shown = ("-", "-") if worst.error is None else (f"{worst.error:.2e}", f"{worst.allowed:.2e}")
            notes = "; ".join(dict.fromkeys(c.note for c in checks if c.note))
            rows.append((what, against, len(made), *shown, worst.inputs, verdict, notes))
        head = ("what", "against", "runs", "worst error", "allowed", "on inputs", "verdict", "note")
        return "\n".join([text_table(head, rows), *(f"note: {n}" for n in self.notes)])

    def to_dict(self) -> dict[str, Any]:
        return {
            "model": self.model,
            "target": self.target,
            "ok": self.ok,
            "sites": [s.to_dict() for s in self.sites],
            "checks": [c.to_dict() for c in self.checks],
            "notes": list(self.notes),
        }


def _verdict(checks: Sequence[Check]) -> str:
    judged = [c.ok for c in checks if c.ok is not None]
    if not all(judged):
        return "MISMATCH"
    if any(c.ok is None and AT_FAULT in c.note for c in checks):
        return "onnxruntime"
    return "ok" if judged else "-"


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
    flags: Sequence[str] = (),
    module: Path | None = None,
    progress: Callable[[str], None] = lambda message: None,
) -> VerifyReport:
    """Compares on `seeds` random inputs, and on adversarial ones where the model has inputs for them.

    `module` is what `compile_model` made of the model; without it the model is compiled here, and its sites are inspected.
    `dims` fixes symbolic dims; the others take lengths that divide nothing. Does not raise on a mismatch: ask
    `.check()` or `.ok`. Raises ModelError, CompileError, RunError, and MissingDependencyError without onnxruntime.
    """
    target = parse_target(target) if isinstance(target, str) else target
    original = io.load(model)
    original = original.clone() if original is model else original  # outputs are added to it below
    clean, rewritten = original.clone(), original.clone()
    report, sites = rewrite_in_place(rewritten, "decomposed")
    # Values inside a subgraph cannot be made outputs of the model.
    sites = [s for s in sites if s.nodes and s.nodes[-1].graph is rewritten.graph]
    label = "model" if isinstance(model, (ir.Model, onnx.ModelProto)) else str(model)
    notes = [f"left alone: {m.node} ({m.op}): {m.reason}" for m in report.misses]
    from onnx_fa.iree.run import load_module

    with scratch_folder() as folder:
        # Before anything is compiled, so that a model that no runtime can run is refused at once.
        runs = _Runs(original, rewritten, sites, folder)
        notes += runs.notes
        inspected, refused = report.sites, {}
        if module is None:
            from onnx_fa.iree.compile import compile_model

            progress(f"compiling for {target.name}")
            module = folder / "model.vmfb"
            done = compile_model(clean, module, target, flags=tuple(flags))
            inspected, refused = done.sites, dict(done.refused)
        notes += [f"not one fused dispatch: {s.name}" for s in inspected if s.fused is False]
        planned = plan_kernels(clean, target, refused)
        kernels = _Kernels(planned, target, folder)
        notes += [
            f"no kernel for {m.node}: {m.reason}" for m in planned.misses if m not in report.misses
        ] + kernels.notes
        coarse = [s.lossy for s in inspected if s.lossy in LOSSY_PRODUCT]
        compared = _Comparison(runs, kernels, load_module(module, target.device), _narrowest(clean, rewritten), coarse)
        drawn = draw(clean, seeds, dims)
        for draw_ in drawn:
            progress(f"inputs {draw_.name}")
            compared.on(draw_)
    if len(compared.skipped) == len(drawn):
        raise RunError(f"{label}: {compared.skipped[0]}; choose other sizes with --dim")
    return VerifyReport(
        label, target.name, tuple(inspected), (*compared.checks, *compared.never_finite()),
        (*notes, *compared.skipped, *compared.moves()),
    )  # fmt: skip


class _Runs:
    """Both models without the optimiser, with the sites' operands and outputs among their outputs, and the checks of their own
    outputs."""

    def __init__(self, original: ir.Model, rewritten: ir.Model, sites: Sequence[Site], folder: Path) -> None:
        self.sites, self.names = sites, [str(o.name) for o in original.graph.outputs]
        values = {str(o.name): o for node in original.graph for o in node.outputs}
        self.cut = [s for s in sites if s.output.name in values]
        self.outputs = OutputChecks(original, rewritten, [str(s.output.name) for s in self.cut], folder)
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
        self, runs: _Runs, kernels: _Kernels, call: Callable[..., list[Array]], dtype: str, coarse: Sequence[str]
    ) -> None:
        self.runs, self.kernels, self.call, self.dtype, self.coarse = runs, kernels, call, dtype, coarse
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
        compiled = self._compiled(drawn)
        known = {**self.runs.constants, **drawn.arrays, **got}
        given = self.kernels.operands(drawn.arrays)
        sites = [_SiteChecks(drawn.name, s, self.runs.taps[id(s)], known, want) for s in self.runs.sites]
        peak = max((s.peak for s in sites), default=0.0)
        allowed = {kind: MODEL_TOLERANCE[kind] + ROUNDING[kind] * peak for kind in (self.dtype, *self.coarse)}
        free = {s.site.name: s.free for s in sites}
        results = Results(
            drawn.name,
            drawn.arrays,
            want,
            got,
            compiled,
            allowed[self.dtype],
            max(allowed.values()),
            [
                SiteOutput(str(s.output.name), got[str(s.output.name)], SITE_TOLERANCE[s.spec.dtype], free[s.name])
                for s in self.runs.cut
            ],
        )
        self.checks += self.runs.outputs.compare(results, optimised=not self.runs.before.refused)
        self._remember(want, compiled)
        for site in sites:
            self.checks += site.checks
            self.checks.append(site.kernel(self.kernels, given.get(site.site.name)))

    def _compiled(self, drawn: _Drawn) -> list[Array] | None:
        try:
            results = self.call(*drawn.arrays.values())
        except RunError as e:
            self.checks.append(Check(drawn.name, "IREE: run", "original", np.inf, 0.0, False, str(e)))
            return None
        if len(results) != len(self.runs.names):
            raise RunError(f"the compiled model returns {len(results)} results, the original {len(self.runs.names)}")
        return results

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


class _Kernels:
    """The kernels that the compiled model calls, each compiled alone, and what the model calls them with."""

    def __init__(self, planned: Planned, target: Target, folder: Path) -> None:
        from onnx_fa.iree.alone import FUNCTION, compile_alone
        from onnx_fa.iree.run import load_module

        self.of = planned.kernels
        self.notes: list[str] = []
        self._calls: dict[str, Callable[..., list[Array]]] = {}
        self._runner: Runner | None = None
        try:
            model, self._values = operands_of(planned)
        except UnsupportedError as e:
            self.notes.append(f"kernels are not tried alone: {e}")
            self._values = {}
            return
        if model.graph.outputs:
            self._runner = Runner(model, folder / "operands.onnx")
        for name, kernel in {k.name: k for k in self.of.values()}.items():
            compile_alone(kernel, folder / f"{name}.vmfb", target)
            self._calls[name] = load_module(folder / f"{name}.vmfb", target.device, FUNCTION)

    def operands(self, arrays: Mapping[str, Array]) -> dict[str, list[Array]]:
        """What every site's kernel is called with."""
        known = {**arrays, **(self._runner(arrays) if self._runner is not None else {})}
        return {
            site: [known[str(v.name)] if v.const_value is None else v.const_value.numpy() for v in values]
            for site, values in self._values.items()
        }

    def run(self, site: str, operands: Sequence[Array]) -> Array:
        return self._calls[self.of[site].name](*(np.asarray(packed(x), order="C") for x in operands))[0]


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


class _Judged:
    """A site in float64, and what of it can be held against a result."""

    def __init__(self, spec: AttentionSpec, operands: Sequence[Array]) -> None:
        with np.errstate(all="ignore"):
            self.want = attention(spec, *operands)
            s = logits(spec, *operands)
            keys = s[..., : s.shape[-1] - (spec.sink is not None)]
            peaks, tops = (np.abs(x.max(axis=-1, initial=-np.inf)) for x in (keys, s))
        # Beyond 1e6 it is a mask. One that swallows what it is added to, in float64 too, has no rounding that could matter; of one
        # that float64 sees through (all keys masked by -1e9) the reference knows more than any f32 computation, and says nothing.
        self.peak = float(np.max(np.concatenate([x[x < 1e6] for x in (peaks, tops)]), initial=0.0))
        seen_through = (peaks >= 1e6) & (peaks < SWALLOWED) & (spec.dtype != "f64")
        self._unknown = np.transpose(np.broadcast_to(seen_through[..., None], (*peaks.shape, spec.Dv)), spec.o_layout)
        self._judged = np.where(self._unknown, np.nan, self.want)
        # What ties of roundings may do is no error (see ties.py).
        self.free = slack(spec, operands) if ties(spec) else None
        rows = f"{int(seen_through.sum())} rows not judged: a finite mask on all keys, which f32 cannot see through"
        self._note = rows * bool(seen_through.any())

    def error(self, got: Array) -> float:
        got = np.where(self._unknown, np.nan, got) if got.shape == self.want.shape else got
        return norm_error(got, self._judged, self.free)

    def check(self, inputs: str, what: str, got: Array, allowed: float) -> Check:
        error = self.error(got)
        note = "NaN at other places, or another shape" if not np.isfinite(error) else self._note
        return Check(inputs, what, "float64", error, allowed, error <= allowed, note)


class _SiteChecks:
    """The comparisons of one site; `peak` is the largest score that a softmax of it rests on, `free` what ties may move."""

    def __init__(
        self, inputs: str, site: Site, output: ir.Value, values: Mapping[str, Array], original: Mapping[str, Array]
    ) -> None:
        self.site, self.checks, self.peak, self.free = site, list[Check](), 0.0, None
        self._inputs, self._what, self._base = inputs, f"site {site.name}", SITE_TOLERANCE[site.spec.dtype]
        self._operands = [values[str(v.name)] for v in site.operands]
        self._judged = _judged(site.spec, self._operands)
        if self._judged is None:
            self.checks.append(self._not_made("rewritten", "too large for the float64 reference"))
            return
        self.peak, self.free = self._judged.peak, self._judged.free
        theirs = original.get(str(output.name))
        if theirs is not None and theirs.shape == self._judged.want.shape:
            error, most = self._judged.error(theirs), 10 * self._base
            # For information: the original may be less exact than what it is compared with.
            self.checks.append(Check(inputs, f"{self._what}: original", "float64", error, most, None, "not judged"))
            if np.isfinite(error):
                self._base = max(self._base, min(error, most))
        allowed = self._base + ROUNDING[site.spec.dtype] * self.peak
        self.checks.append(self._judged.check(inputs, f"{self._what}: rewritten", values[str(output.name)], allowed))

    def kernel(self, kernels: _Kernels, operands: Sequence[Array] | None) -> Check:
        """The site's kernel alone, on what the compiled model calls it with."""
        kernel = kernels.of.get(self.site.name)
        if kernel is None or operands is None:
            return self._not_made("kernel", "no kernel")
        spec, judged = kernel.spec, self._judged
        if spec != self.site.spec or not _equal(operands, self._operands):
            judged = _judged(spec, operands)
        if judged is None:
            return self._not_made("kernel", "too large for the float64 reference")
        # Kernels keep scores in f32 at least, whatever the operands are.
        allowed = self._base + ROUNDING["f32" if spec.dtype != "f64" else "f64"] * judged.peak
        if kernel.lossy:
            allowed = max(allowed, SITE_TOLERANCE[kernel.lossy] + ROUNDING[kernel.lossy] * judged.peak)
        return judged.check(self._inputs, f"{self._what}: kernel", kernels.run(self.site.name, operands), allowed)

    def _not_made(self, who: str, why: str) -> Check:
        return Check(self._inputs, f"{self._what}: {who}", "float64", None, None, None, why)


def _judged(spec: AttentionSpec, operands: Sequence[Array]) -> _Judged | None:
    """None where the scores would take too much memory."""
    elements = float(np.prod([_bound(d, spec, operands) for d in spec.score_shape], dtype=np.float64))
    return _Judged(spec, operands) if elements * 8 <= REFERENCE_BYTES else None


def _equal(a: Sequence[Array], b: Sequence[Array]) -> bool:
    return len(a) == len(b) and all(
        x.dtype == y.dtype and x.shape == y.shape and x.tobytes() == y.tobytes() for x, y in zip(a, b, strict=True)
    )


def _bound(dim: int | str, spec: AttentionSpec, operands: Sequence[Array]) -> int:
    if isinstance(dim, int):
        return dim
    for shape, array in zip(spec.operand_shapes, operands, strict=True):
        if dim in shape:
            return int(array.shape[shape.index(dim)])
    raise OnnxFaError(f"dim {dim} of a site is in none of its operands")

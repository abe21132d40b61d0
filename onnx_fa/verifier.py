"""verify: the original, the rewritten and the compiled model against each other, and every site against float64.

Four computations see the same inputs. The original and the rewritten model run in onnxruntime (in onnx's reference
evaluator where onnxruntime cannot run an op or type, and the table says so), the compiled one in IREE. The operands of
every site are read off the rewritten run; `onnx_fa.reference` computes the site from them in float64, and the
rewritten site, the same site of the original and the site's kernel alone are compared with that.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnx_ir as ir

from onnx_fa import io
from onnx_fa.accuracy import LOSSY_PRODUCT
from onnx_fa.cases import packed
from onnx_fa.errors import MismatchError, MissingDependencyError, OnnxFaError, RunError, UnsupportedError
from onnx_fa.files import scratch_folder
from onnx_fa.inputs import (
    VARIANTS,
    Array,
    Variant,
    graph_inputs,
    has_float_input,
    has_mask_input,
    random_inputs,
    symbols,
)
from onnx_fa.ops import op_of
from onnx_fa.ort_session import ort_session
from onnx_fa.reference import attention, logits
from onnx_fa.report import SiteReport
from onnx_fa.rewriter import Site, rewrite_in_place
from onnx_fa.spec import AttentionSpec
from onnx_fa.table import text_table
from onnx_fa.target import Target, parse_target
from onnx_fa.ties import rounds, slack

MODEL_TOLERANCE = {"f64": 1e-4, "f32": 1e-4, "f16": 2e-3, "bf16": 1e-2, **LOSSY_PRODUCT}
"""Whole models: largest difference over the largest magnitude of the output, by the model's narrowest float type, or by how a site
was compiled because it was asked for."""
SITE_TOLERANCE = {"f64": 2e-6, "f32": 2e-6, "f16": 2e-3, "bf16": 1e-2, **LOSSY_PRODUCT}
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

F64 = npt.NDArray[np.float64]
_FLOATS = {
    ir.DataType.FLOAT16: "f16",
    ir.DataType.BFLOAT16: "bf16",
    ir.DataType.FLOAT: "f32",
    ir.DataType.DOUBLE: "f64",
}


@dataclass(frozen=True)
class Check:
    """One comparison. `error` is None when it could not be made; then `note` says why. `ok` is None in that case."""

    inputs: str
    what: str
    against: str
    error: float | None
    allowed: float | None
    ok: bool | None
    note: str = ""

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready: an error that is not finite is written as a string."""
        data: dict[str, Any] = dict(vars(self))
        if self.error is not None and not np.isfinite(self.error):
            data["error"] = str(self.error)
        return data


@dataclass(frozen=True)
class VerifyReport:
    """All comparisons of one model. `notes` say what stood in for what, and which sites were left alone."""

    model: str
    target: str
    sites: tuple[SiteReport, ...]
    checks: tuple[Check, ...]
    notes: tuple[str, ...] = field(default=())

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
            judged = [c.ok for c in checks if c.ok is not None]
            verdict = "-" if not judged else "ok" if all(judged) else "MISMATCH"
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
    rewritten = original.clone()
    report, sites = rewrite_in_place(rewritten, "decomposed")
    # Values inside a subgraph cannot be made outputs of the model.
    sites = [s for s in sites if s.nodes and s.nodes[-1].graph is rewritten.graph]
    drawn = draw(original, seeds, dims)
    label = "model" if isinstance(model, (ir.Model, onnx.ModelProto)) else str(model)
    notes = [f"left alone: {m.node} ({m.op}): {m.reason}" for m in report.misses]
    n_out = len(original.graph.outputs)
    dtype = _narrowest(original)

    taps = {id(s): _site_output(s) for s in sites}
    for graph, values in (
        (rewritten.graph, [v for s in sites for v in (*s.operands, taps[id(s)])]),
        (original.graph, [v for s in sites if (v := _named(original, str(taps[id(s)].name))) is not None]),
    ):
        have = {str(o.name) for o in graph.outputs} | {str(i.name) for i in graph.inputs}
        for value in values:
            if value.name not in have and value.name not in graph.initializers:
                graph.outputs.append(value)
                have.add(str(value.name))

    checks: list[Check] = []
    skipped: list[str] = []
    finite: set[str] = set()
    with scratch_folder() as folder:
        # Before anything is compiled, so that a model that no runtime can run is refused at once.
        before = _Runner(original, folder / "original.onnx")
        after = _Runner(rewritten, folder / "rewritten.onnx")
        notes += [n for n in (before.note("original"), after.note("rewritten")) if n]
        from onnx_fa.backend.run import load_module

        inspected = report.sites
        if module is None:
            from onnx_fa.backend.compile import compile_model

            progress(f"compiling for {target.name}")
            clean = original.clone()
            del clean.graph.outputs[n_out:]
            module = folder / "model.vmfb"
            inspected = compile_model(clean, module, target, flags=tuple(flags)).sites
        notes += [f"not one fused dispatch: {s.name}" for s in inspected if s.fused is False]
        call = load_module(module, target.device)
        kernels = _Kernels(sites, target, folder)
        notes += kernels.notes
        coarse = [s.lossy for s in inspected if s.lossy in LOSSY_PRODUCT]
        moved: dict[str, float] = {}
        for draw_ in drawn:
            progress(f"inputs {draw_.name}")
            try:
                want = before(draw_.arrays)
            except RunError as e:
                # A size that the model itself does not take says nothing about the rewrite.
                skipped.append(f"inputs {draw_.name} skipped: {e}")
                continue
            got = after(draw_.arrays)
            iree: list[Array] | None = None
            try:
                iree = call(*draw_.arrays.values())
            except RunError as e:
                checks.append(Check(draw_.name, "IREE: run", "original", np.inf, 0.0, False, str(e)))
            known = {**rewritten_constants(rewritten, sites), **draw_.arrays, **got}
            of_sites = [_compare_site(draw_.name, s, taps[id(s)], known, want, kernels) for s in sites]
            peak = max((p for _, p in of_sites), default=0.0)
            allowed = {kind: MODEL_TOLERANCE[kind] + ROUNDING[kind] * peak for kind in (dtype, *coarse)}
            if iree is not None and len(iree) != n_out:
                raise RunError(f"the compiled model returns {len(iree)} results, the original {n_out}")
            for n, output in enumerate(original.graph.outputs[:n_out]):
                name = str(output.name)
                if (
                    want[name].size == 0
                    or want[name].dtype.kind in "biu"
                    or np.isfinite(want[name].astype(np.float64)).any()
                ):
                    finite.add(name)
                for what, result in (("rewritten", got[name]), ("IREE", iree[n] if iree else None)):
                    if result is None:
                        continue  # its failed run is a check of its own
                    lossy = what == "IREE" and coarse and want[name].dtype.kind == "f"
                    most = max(allowed.values()) if lossy else allowed[dtype]
                    checks.append(
                        _compare_model(draw_.name, f"{what}: output {name}", "original", result, want[name], most)
                    )
                    if lossy:
                        error = norm_error(result, want[name].astype(np.float64))
                        moved[name] = max(moved.get(name, 0.0), error)
            checks += [c for found, _ in of_sites for c in found]
    if len(skipped) == len(drawn):
        raise RunError(f"{label}: {skipped[0]}; choose other sizes with --dim")
    for output in original.graph.outputs[:n_out]:
        if output.name not in finite:
            note = "no inputs that were tried give a finite value, so nothing is shown"
            checks.append(Check("all", f"output {output.name}", "original", np.inf, 0.0, False, note))
    notes += skipped
    notes += [
        f"{coarse[0]} in {len(coarse)} sites: output {name} differs by {error:.2e} (2-norm, relative)"
        for name, error in moved.items()
    ]
    return VerifyReport(label, target.name, tuple(inspected), tuple(checks), tuple(notes))


def rewrite_error(original: ir.Model, rewritten: ir.Model, seeds: int = 3) -> dict[str, float]:
    """By output: the largest 2-norm of the difference over that of the original, in onnxruntime on random inputs. For rewrites that
    are meant to change results. Raises RunError and MissingDependencyError."""
    found: dict[str, float] = {}
    with scratch_folder() as folder:
        before, after = _Runner(original, folder / "before.onnx"), _Runner(rewritten, folder / "after.onnx")
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


class _Runner:
    """A model in onnxruntime, or in onnx's reference evaluator where onnxruntime refuses it. Returns all outputs by
    name."""

    def __init__(self, model: ir.Model, path: Path) -> None:
        self._names = [str(o.name) for o in model.graph.outputs]
        self._inputs = [str(v.name) for v in graph_inputs(model)]
        self._session: Any = None
        self._evaluator: Any = None
        self.refused = ""
        io.save(model, path)
        # The optimiser puts integer products for what lies between such ops, which round elsewhere than the model says.
        quantised = any("Quantize" in op_of(n) for n in model.graph.all_nodes())
        bf16 = any(v.dtype == ir.DataType.BFLOAT16 for v in (*model.graph.inputs, *model.graph.outputs))
        try:
            if bf16:
                raise RuntimeError("bfloat16 inputs or outputs have no NumPy type there")
            self._session = ort_session(path, optimise=not quantised)
        except MissingDependencyError:
            raise
        except Exception as e:  # onnxruntime's exceptions share no public base class
            self.refused = " ".join(str(e).split())[:160]
            try:
                from onnx.reference import ReferenceEvaluator

                self._evaluator = ReferenceEvaluator(io.to_proto(model))
            except Exception as inner:
                raise RunError(
                    f"neither onnxruntime ({self.refused}) nor onnx.reference ({inner}) takes the model"
                ) from e

    def note(self, what: str) -> str:
        return f"{what} runs in onnx.reference, onnxruntime refuses it: {self.refused}" if self._evaluator else ""

    def __call__(self, arrays: Mapping[str, Array]) -> dict[str, Array]:
        feed = {n: arrays[n] for n in self._inputs}
        try:
            with np.errstate(all="ignore"):
                results = (self._session or self._evaluator).run(self._names, feed)
        except Exception as e:
            raise RunError(
                f"the model cannot be run on the inputs made for it: {' '.join(str(e).split())[:300]}"
            ) from e
        return dict(zip(self._names, map(np.asarray, results), strict=True))


class _Kernels:
    """The kernel of every site alone, compiled once per distinct spec."""

    def __init__(self, sites: Sequence[Site], target: Target, folder: Path) -> None:
        from onnx_fa.backend.alone import FUNCTION, compile_alone
        from onnx_fa.backend.run import load_module
        from onnx_fa.emit.kernel import emit_kernel

        self.notes: list[str] = []
        self._calls: dict[AttentionSpec, Callable[..., list[Array]]] = {}
        self._lossy: dict[AttentionSpec, str] = {}
        for n, spec in enumerate(dict.fromkeys(s.spec for s in sites)):
            try:
                kernel = emit_kernel(spec, target)
            except UnsupportedError as e:
                self.notes.append(f"no kernel for {spec.variant}: {e}")
                continue
            path = folder / f"kernel{n}.vmfb"
            compile_alone(kernel, path, target)
            self._calls[spec] = load_module(path, target.device, FUNCTION)
            self._lossy[spec] = kernel.lossy

    def lossy(self, spec: AttentionSpec) -> str:
        """What a spec's kernel was asked for that is less exact than its operands."""
        return self._lossy.get(spec, "")

    def run(self, spec: AttentionSpec, operands: Sequence[Array]) -> Array | None:
        call = self._calls.get(spec)
        return call(*(np.asarray(packed(x), order="C") for x in operands))[0] if call else None


def rewritten_constants(model: ir.Model, sites: Sequence[Site]) -> dict[str, Array]:
    """Operands of sites that are initializers: they are no output of a run."""
    values = (v for s in sites for v in s.operands)
    return {str(v.name): v.const_value.numpy() for v in values if v.const_value is not None}


def _site_output(site: Site) -> ir.Value:
    """The value that the spec describes: the one that no node of the site reads (`site.output` may be reshaped from
    it)."""
    own = set(site.nodes)
    for node in reversed(site.nodes):
        for out in node.outputs:
            if not any(user in own for user, _ in out.uses()):
                return out
    return site.output


def _named(model: ir.Model, name: str) -> ir.Value | None:
    return next((o for node in model.graph for o in node.outputs if o.name == name), None)


def _narrowest(model: ir.Model) -> str:
    """The narrowest float type among the model's inputs, weights and outputs."""
    values = (*model.graph.inputs, *model.graph.outputs, *model.graph.initializers.values())
    seen = {_FLOATS[v.dtype] for v in values if v.dtype in _FLOATS}
    return next((d for d in ("bf16", "f16", "f32") if d in seen), "f32")


def _compare_model(inputs: str, what: str, against: str, got: Array, want: Array, allowed: float) -> Check:
    """Largest difference over largest magnitude; NaN and infinity must be at the same places."""
    if got.shape != want.shape:
        return Check(inputs, what, against, np.inf, allowed, False, f"shape {got.shape}, not {want.shape}")
    if want.dtype.kind in "biu":
        wrong = float(np.mean(got != want)) if want.size else 0.0
        return Check(inputs, what, against, wrong, 0.0, wrong == 0.0, "share of elements that differ")
    a, b = got.astype(np.float64), want.astype(np.float64)
    if (np.isnan(a) != np.isnan(b)).any():
        places = f"{np.isnan(a).sum()} NaN, the original has {np.isnan(b).sum()} (or elsewhere)"
        return Check(inputs, what, against, np.inf, allowed, False, places)
    if not np.array_equal(a[np.isinf(a)], b[np.isinf(a)]) or (np.isinf(a) != np.isinf(b)).any():
        return Check(inputs, what, against, np.inf, allowed, False, "infinities differ")
    known = np.isfinite(b)
    scale = float(np.max(np.abs(b[known]), initial=0.0)) or 1.0
    error = float(np.max(np.abs(a[known] - b[known]), initial=0.0)) / scale
    note = "no finite value to compare" if want.size and not known.any() else ""
    return Check(inputs, what, against, error, allowed, error <= allowed, note)


def norm_error(got: Array, want: F64, free: F64 | None = None) -> float:
    """2-norm of the difference over the 2-norm of `want`, over what is not NaN; inf when shapes or NaN places
    differ. A difference of up to `free` counts as none."""
    if got.shape != want.shape or (np.isnan(got.astype(np.float64)) != np.isnan(want)).any():
        return float("inf")
    known = ~np.isnan(want)
    off = np.abs(got.astype(np.float64) - want)[known]
    if free is not None:
        off = np.maximum(off - free[known], 0.0)
    return float(np.linalg.norm(off)) / (float(np.linalg.norm(want[known])) or 1.0)


def _compare_site(
    inputs: str,
    site: Site,
    output: ir.Value,
    values: Mapping[str, Array],
    original: Mapping[str, Array],
    kernels: _Kernels,
) -> tuple[list[Check], float]:
    """The comparisons of one site, and the largest score that a softmax of it rests on."""
    what, against = f"site {site.name}", "float64"
    operands = [values[str(v.name)] for v in site.operands]
    elements = float(np.prod([_bound(d, site.spec, operands) for d in site.spec.score_shape], dtype=np.float64))
    if elements * 8 > REFERENCE_BYTES:
        return [
            Check(inputs, f"{what}: rewritten", against, None, None, None, "too large for the float64 reference")
        ], 0.0
    with np.errstate(all="ignore"):
        want = attention(site.spec, *operands)
        s = logits(site.spec, *operands)
        keys = s[..., : s.shape[-1] - (site.spec.sink is not None)]
        peaks, tops = (np.abs(x.max(axis=-1, initial=-np.inf)) for x in (keys, s))
    # Beyond 1e6 it is a mask. One that swallows what it is added to, in float64 too, has no rounding that could matter; of one that
    # float64 sees through (all keys masked by -1e9) the reference knows more than any f32 computation, and says nothing of it.
    peak = float(np.max(np.concatenate([x[x < 1e6] for x in (peaks, tops)]), initial=0.0))
    seen_through = (peaks >= 1e6) & (peaks < SWALLOWED) & (site.spec.dtype != "f64")
    unknown = np.transpose(np.broadcast_to(seen_through[..., None], (*peaks.shape, site.spec.Dv)), site.spec.o_layout)
    judged = np.where(unknown, np.nan, want)
    # What ties of roundings may do is no error (see ties.py).
    free = slack(site.spec, operands) if rounds(site.spec) else None
    left_out = f"{int(seen_through.sum())} rows not judged: a finite mask on all keys, which f32 cannot see through"
    base = SITE_TOLERANCE[site.spec.dtype]
    checks = []
    theirs = original.get(str(output.name))
    if theirs is not None and theirs.shape == want.shape:
        error = norm_error(np.where(unknown, np.nan, theirs), judged, free)
        # For information: the original may be less exact than what it is compared with.
        checks.append(Check(inputs, f"{what}: original", against, error, 10 * base, None, "not judged"))
        if np.isfinite(error):
            base = max(base, min(error, 10 * base))
    kernel = kernels.run(site.spec, operands)
    # Kernels keep scores in f32 at least, whatever the operands are.
    exact = ROUNDING["f32"] if site.spec.dtype != "f64" else ROUNDING["f64"]
    in_kernel = base + exact * peak
    if lossy := kernels.lossy(site.spec):
        in_kernel = max(in_kernel, SITE_TOLERANCE[lossy] + ROUNDING[lossy] * peak)
    ours: list[tuple[str, Array | None, float]] = [
        ("rewritten", values[str(output.name)], base + ROUNDING[site.spec.dtype] * peak),
        ("kernel", kernel, in_kernel),
    ]
    for who, got, allowed in ours:
        if got is None:
            checks.append(Check(inputs, f"{what}: {who}", against, None, None, None, "no kernel"))
            continue
        error = norm_error(np.where(unknown, np.nan, got) if got.shape == want.shape else got, judged, free)
        note = (
            "NaN at other places, or another shape" if not np.isfinite(error) else left_out * bool(seen_through.any())
        )
        checks.append(Check(inputs, f"{what}: {who}", against, error, allowed, error <= allowed, note))
    return checks, peak


def _bound(dim: int | str, spec: AttentionSpec, operands: Sequence[Array]) -> int:
    if isinstance(dim, int):
        return dim
    for shape, array in zip(spec.operand_shapes, operands, strict=True):
        if dim in shape:
            return int(array.shape[shape.index(dim)])
    raise OnnxFaError(f"dim {dim} of a site is in none of its operands")

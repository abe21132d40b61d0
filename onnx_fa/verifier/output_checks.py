"""The outputs of a whole model: original, rewritten and compiled, in onnxruntime with its optimiser and without.

The original op by op is what the model means. With the optimiser it is what users run. Where the two differ beyond the tolerance,
the optimiser is at fault on the original already: the table says so, and of the rewritten model with the optimiser a difference of
that size is then not judged.

A model that quantises values at run time turns a difference of 1e-7 in a site, which is right, into one of a whole step, now and
then. What lies behind the sites is the same in both models, so it is run by itself on the sites' outputs, which are judged against
float64:

* On those of the rewritten model without the optimiser. The result must be the rewritten model's own, within the tolerance of all
  models.
* On those with noise of a site's tolerance, and of ties.py's slack where a site rounds. The differences say how far two correct
  computations of this model lie apart. What works otherwise behind the sites (the optimiser's integer products, the compiled
  model) may be off by SPREAD times the largest of them more.

The compiled model computes all else in another order too. Where it is off by more, it may be so by SPREAD times what noise in front
of every rounding does to the original (rounding_noise.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import onnx_ir as ir

from onnx_fa.errors import RunError
from onnx_fa.graph.normalise import infer_shapes
from onnx_fa.verifier.comparisons import F64, Check, compare_outputs
from onnx_fa.verifier.inputs import Array
from onnx_fa.verifier.rounded_activations import AS_GIVEN, SPREAD, judge_rounded
from onnx_fa.verifier.rounding_noise import judge_noise, outputs_apart
from onnx_fa.verifier.runners import OptimisedRunner, Runner, rounds

AT_FAULT = "onnxruntime's optimiser changes the original itself"
OPTIMISED = " (optimiser on)"
COARSER = "the original as given may round activations to 8 bits (accuracy_level 4): not judged"
TIES = "roundings behind the sites fall on other sides"
_DRAWS = 3

Values = Mapping[str, Array]


@dataclass(frozen=True)
class SiteOutput:
    """What a site gave, its relative tolerance, and how far ties may move each element."""

    name: str
    value: Array
    tolerance: float
    free: F64 | None


@dataclass(frozen=True)
class Results:
    """One run: of the original and of the rewritten model without the optimiser, and of the compiled one, whose outputs are in the
    model's order; and how far each may be from the original."""

    inputs: str
    arrays: Values
    want: Values
    got: Values
    compiled: Sequence[Array] | None
    allowed: float
    allowed_compiled: float
    sites: Sequence[SiteOutput] = ()


class OutputChecks:
    """Compares the outputs of models that have no further outputs yet. `sites` are names of the sites' outputs in the original.
    `given` is the original at the accuracy_level that it came with, where that is not the one that is compared."""

    def __init__(
        self, original: ir.Model, rewritten: ir.Model, sites: Sequence[str], folder: Path, given: ir.Model | None = None
    ) -> None:
        self._names = [str(o.name) for o in original.graph.outputs]
        self._original = OptimisedRunner(original, folder / "original_optimised.onnx")
        self._rewritten = OptimisedRunner(rewritten, folder / "rewritten_optimised.onnx")
        self._given = None if given is None else OptimisedRunner(given, folder / "given.onnx")
        rounding = rounds(original)
        self._behind = Runner(_behind(original, sites), folder / "behind.onnx") if rounding else None
        self._plain = original.clone() if rounding else None  # outputs are added to the original
        self._folder = folder

    def compare(self, run: Results, *, optimised: bool = True) -> list[Check]:
        """The checks of one run. `optimised`: also of both models with the optimiser."""
        exact, spread = self._settle(run)
        given = None if self._given is None else _try(self._given, run.arrays)
        theirs, ours = (_try(r, run.arrays) if optimised else "" for r in (self._original, self._rewritten))
        checks, apart = [], None
        for n, name in enumerate(self._names):
            more = SPREAD * spread.get(name, 0.0)
            want = run.want[name]
            original = _original_optimised(run, name, theirs, more)
            if optimised:
                checks.append(original)
            checks.append(_rewritten(run, name, exact))
            if optimised:
                checks.append(_rewritten_optimised(run, name, ours, theirs, original, more))
            if run.compiled is not None:
                what = f"IREE: output {name}"
                found = _within(run.inputs, what, run.compiled[n], want, run.allowed_compiled, more)
                if not found.ok and self._plain is not None:
                    own = {o: run.want[o] for o in self._names}
                    apart = apart or outputs_apart(self._plain, run.arrays, own, self._folder)
                    found = judge_noise(found, apart[name])
                if isinstance(given, Mapping):
                    found = judge_rounded(found, run.compiled[n], want, given[name])
                checks.append(found)
        return checks if given is None else checks + self._as_given(run, given)

    def _as_given(self, run: Results, given: Values | str) -> list[Check]:
        """How far the original without roundings, and the compiled model, are from the original as its users run it."""
        checks = []
        for n, name in enumerate(self._names):
            found = {"original": run.want[name]} | ({} if run.compiled is None else {"IREE": run.compiled[n]})
            for who, result in found.items():
                what = f"{who}: output {name}"
                if isinstance(given, str):
                    checks.append(Check(run.inputs, what, AS_GIVEN, None, None, None, given))
                    continue
                check = compare_outputs(run.inputs, what, AS_GIVEN, result, given[name], run.allowed)
                checks.append(check if check.ok else replace(check, ok=None, note=COARSER))
        return checks

    def _settle(self, run: Results) -> tuple[Values | None, dict[str, float]]:
        """(the original's outputs behind the rewritten model's sites, how far noise in the sites' outputs moves each)."""
        if self._behind is None:
            return None, {}
        given = {s.name: s.value for s in run.sites}
        exact = self._behind({**run.arrays, **given})
        spread: dict[str, float] = {}
        for seed in range(_DRAWS):
            rng = np.random.default_rng(seed)
            moved = self._behind({**run.arrays, **{s.name: _with_noise(s, rng) for s in run.sites}})
            for name in self._names:
                error = compare_outputs("", "", "", moved[name], exact[name], 0.0).error
                if error is not None and np.isfinite(error):
                    spread[name] = max(spread.get(name, 0.0), error)
        return exact, spread


def _with_noise(site: SiteOutput, rng: np.random.Generator) -> Array:
    x = site.value.astype(np.float64)
    known = np.isfinite(x)
    size = float(np.sqrt(np.mean(np.square(x[known])))) if known.any() else 0.0
    noise = site.tolerance * size * rng.standard_normal(x.shape)
    if site.free is not None and site.free.size == x.size:
        noise += site.free.reshape(x.shape) * rng.uniform(-1, 1, x.shape)
    return np.where(known, x + noise, x).astype(site.value.dtype)


def _behind(original: ir.Model, sites: Sequence[str]) -> ir.Model:
    """The original with the outputs of its sites as inputs."""
    model = original.clone()
    infer_shapes(model)
    values = {str(o.name): o for node in model.graph for o in node.outputs}
    for name in sites:
        old = values[name]
        new = ir.Value(name=name, type=old.type, shape=old.shape)
        ir.convenience.replace_all_uses_with(old, new, replace_graph_outputs=True)
        old.name = f"{name}/before"
        model.graph.inputs.append(new)
    return model


def _try(runner: OptimisedRunner, arrays: Values) -> Values | str:
    try:
        return runner(arrays)
    except RunError as e:
        return str(e)


def _within(inputs: str, what: str, got: Array, want: Array, allowed: float, more: float) -> Check:
    """Within the tolerance, or else what ties allow beside it."""
    found = compare_outputs(inputs, what, "original", got, want, allowed)
    if found.ok or not more or found.error is None or not found.error <= allowed + more:
        return found
    return replace(found, allowed=allowed + more, ok=True, note=TIES)


def _rewritten(run: Results, name: str, exact: Values | None) -> Check:
    what = f"rewritten: output {name}"
    found = compare_outputs(run.inputs, what, "original", run.got[name], run.want[name], run.allowed)
    if found.ok or exact is None:
        return found
    behind = compare_outputs(run.inputs, what, "original", run.got[name], exact[name], run.allowed)
    note = f"{TIES}, which moves the output by {found.error:.1e}; behind the same sites it is the original's"
    return replace(behind, note=note) if behind.ok else found


def _original_optimised(run: Results, name: str, theirs: Values | str, more: float) -> Check:
    """The original with the optimiser: `ok`, or not judged, since nobody here is to blame."""
    what = f"original{OPTIMISED}: output {name}"
    if isinstance(theirs, str):
        return Check(run.inputs, what, "original", None, None, None, f"{AT_FAULT}: {theirs}")
    found = _within(run.inputs, what, theirs[name], run.want[name], run.allowed, more)
    return found if found.ok else replace(found, ok=None, note=AT_FAULT)


def _rewritten_optimised(
    run: Results, name: str, ours: Values | str, theirs: Values | str, original: Check, more: float
) -> Check:
    """The rewritten model with the optimiser, against the original without or with it. Where the optimiser changes the original
    (`original` is its check), a difference of that size is not judged."""
    what = f"rewritten{OPTIMISED}: output {name}"
    if isinstance(ours, str):
        if isinstance(theirs, str):
            return Check(run.inputs, what, "original", None, None, None, f"not judged: {AT_FAULT}: {ours}")
        return Check(run.inputs, what, "original", float("inf"), run.allowed, False, ours)
    found = _within(run.inputs, what, ours[name], run.want[name], run.allowed, more)
    if found.ok:
        return found
    if isinstance(theirs, str):
        return replace(found, ok=None, note=f"not judged: {AT_FAULT}")
    beside = _within(run.inputs, what, ours[name], theirs[name], run.allowed, more)
    if beside.ok:
        return beside
    at_fault = original.ok is None and original.error is not None and found.error is not None
    if at_fault and found.error <= SPREAD * original.error:  # type: ignore[operator]
        return replace(found, ok=None, note=f"not judged: {AT_FAULT}")
    return found

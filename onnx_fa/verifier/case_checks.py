"""verify of a case of the tables: a site alone, on the operands that its table draws, against float64.

The case is written as a plain model, which is compiled, and run beside onnxruntime, op by op and with its optimiser, on ordinary
and adversarial operands of all its sizes. What onnxruntime makes of them is shown, and not judged.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx_ir as ir

from onnx_fa.errors import RunError
from onnx_fa.files import scratch_folder
from onnx_fa.forms.plain_site import Array, plain_site_model, site_inputs
from onnx_fa.graph.io import save
from onnx_fa.iree.compile import CompileReport, compile_model
from onnx_fa.iree.kernel_report import summary
from onnx_fa.spec.accuracy import Expected
from onnx_fa.spec.cases import packed
from onnx_fa.spec.dtypes import NUMPY
from onnx_fa.spec.site_case import Reference, SiteCase
from onnx_fa.spec.target import Target, parse_target
from onnx_fa.verifier.comparisons import Check, as_declared
from onnx_fa.verifier.report import VerifyReport
from onnx_fa.verifier.runners import OptimisedRunner, Runner

CHECKED_SCORES = 1 << 25
"""Bound on the float64 scores of one comparison: longer attentions are compared on some of their rows."""


def verify_case(
    case: SiteCase,
    target: Target | str = "cpu-host",
    *,
    flags: Sequence[str] = (),
    progress: Callable[[str], None] = lambda message: None,
) -> VerifyReport:
    """All comparisons of one case. Raises UnsupportedError where it has no plain spelling, CompileError, RunError, and
    MissingDependencyError without onnxruntime. Does not raise on a mismatch: ask `.check()` or `.ok`."""
    target = parse_target(target) if isinstance(target, str) else target
    from onnx_fa.iree.run import load_module

    with scratch_folder() as folder:
        model = plain_site_model(case.spec, case.draw(case.bound()[0]))  # a weight is the same of all sizes
        path, vmfb = folder / "case.onnx", folder / "case.vmfb"
        save(model, path)
        progress(f"{case.name}: compiling for {target.name}")
        done = compile_model(path, vmfb, target, flags=tuple(flags), parameters="embed")
        theirs = _Theirs(model, folder)
        call = load_module(vmfb, usual=target.device)
        checks: list[Check] = []
        for spec, sizes in zip(case.bound(), case.sizes, strict=True):
            for adversarial in (False, True):
                kind = "adversarial" if adversarial else "ordinary"
                inputs = ", ".join([kind, *(f"{name} {size}" for name, size in sizes)])
                progress(f"{case.name}: {inputs}")
                operands = case.draw(spec, adversarial=adversarial)
                expected = case.expect(spec, operands, CHECKED_SCORES)
                given = site_inputs(spec, operands)
                checks += theirs.checks(inputs, expected, given)
                if isinstance(expected, Expected):
                    expected = dataclasses.replace(expected, lossy=next((s.lossy for s in done.sites), ""))
                checks.append(_ours(inputs, expected, call, given, np.dtype(NUMPY[spec.results[0][1]])))
    return VerifyReport(case.name, target.name, done.sites, tuple(checks), (*_notes(done), *theirs.notes))


def _ours(
    inputs: str,
    expected: Reference,
    call: Callable[..., list[Array]],
    given: Mapping[str, Array],
    dtype: np.dtype[np.generic],
) -> Check:
    try:
        result = as_declared(call(*map(packed, given.values()))[0], dtype)
    except RunError as e:
        return Check(inputs, "IREE", "float64", np.inf, 0.0, False, str(e))
    seen = expected.compare(result)
    note = seen.problem or f"{seen.rows} of {seen.of} rows compared" * (seen.rows < seen.of)
    return Check(inputs, "IREE", "float64", seen.error, seen.allowed, not seen.problem, note)


def _notes(done: CompileReport) -> list[str]:
    """What was made of the site, where that is not one fused kernel."""
    notes = [f"left alone: {m.node} ({m.op}): {m.reason}" for m in done.misses]
    notes += [f"not one fused dispatch: {s.name}" for s in done.sites if s.fused is False]
    return [*notes, *[summary(done.linear)] * bool(done.linear)]


class _Theirs:
    """The plain model in onnxruntime. `notes` say what it refuses."""

    def __init__(self, model: ir.Model, folder: Path) -> None:
        self._plain = Runner(model.clone(), folder / "plain.onnx")
        self._optimised = OptimisedRunner(model.clone(), folder / "optimised.onnx")
        self.notes = [n for n in (self._plain.note("the case"),) if n]
        if self._optimised.refused:
            self.notes.append(f"not run with onnxruntime's optimiser: {self._optimised.refused}")

    def checks(self, inputs: str, expected: Reference, arrays: Mapping[str, Array]) -> list[Check]:
        runs: dict[str, Callable[[Mapping[str, Array]], dict[str, Array]]] = {"onnxruntime": self._plain}
        if not self._optimised.refused:
            runs["onnxruntime, optimised"] = self._optimised
        found = []
        for what, run in runs.items():
            seen = expected.compare(run(arrays)["out"])
            found.append(Check(inputs, what, "float64", seen.error, seen.allowed, None, "not judged"))
        return found

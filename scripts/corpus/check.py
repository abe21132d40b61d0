"""What becomes of one file: what onnx_fa finds in it, and whether the rewritten model loads and gives what the original gives."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from corpus.broken import why_broken
from onnx_fa.errors import OnnxFaError
from onnx_fa.forms.rewrite import explain, rewrite
from onnx_fa.ort_session import ort_session

Array = np.ndarray[Any, np.dtype[Any]]
TOLERANCE = {"f32": 1e-5, "f16": 2e-3, "bf16": 1e-2}
"""Relative norm error allowed, by the model's narrowest float type: of f32 as for the model families."""
MOVED = 8
"""What a result may be off beyond that: so many times what the original's moves when its weights are moved by a unit in the last
place. A product that quantises its operands makes a whole step of such a difference."""
NARROW = {onnx.TensorProto.BFLOAT16: "bf16", onnx.TensorProto.FLOAT16: "f16"}


@dataclass
class Outcome:
    """What a file came to. `sites` and `misses` are what a rewrite found and left alone (node, op, reason). `explain` and `rewrite`
    say what went wrong there, "" for nothing; `refused` says why onnx_fa does not take a model that onnxruntime does not load
    either. `original` says why the original does not load or run, so that nothing can be compared; `loads` why the rewritten model
    does not where the original does, and `differs` where its results are others. `broken` says why nobody can run the original,
    "" where somebody may. `error` is the largest relative norm error of all outputs in all runs, `runs` how many were compared."""

    sites: int = 0
    misses: list[list[str]] = field(default_factory=list)
    variants: list[str] = field(default_factory=list)
    explain: str = ""
    explain_seconds: float = 0.0
    rewrite: str = ""
    refused: str = ""
    rewrite_seconds: float = 0.0
    original: str = ""
    broken: str = ""
    loads: str = ""
    differs: str = ""
    error: float = 0.0
    runs: int = 0

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def check(path: Path, runs: Mapping[str, Path]) -> Iterator[Outcome]:
    """The outcome so far after each step, so that one is left of a file that ends its process."""
    outcome = Outcome()
    start = time.perf_counter()
    try:
        explain(path)
    except Exception as error:  # a bug of onnx_fa is a result here
        outcome.explain = words(error)
    outcome.explain_seconds = round(time.perf_counter() - start, 3)
    yield outcome
    original = onnx.load(path)
    start = time.perf_counter()
    try:
        rewritten, report = rewrite(original)
    except Exception as error:
        outcome.rewrite = words(error)
        sessions, failed = _sessions(original) if isinstance(error, OnnxFaError) else ({}, "")
        if failed and not sessions:
            outcome.refused, outcome.rewrite, outcome.explain = outcome.rewrite, "", ""
            outcome.broken = why_broken(original, failed, _feeds(runs).values())
        yield outcome
        return
    outcome.rewrite_seconds = round(time.perf_counter() - start, 3)
    outcome.sites = len(report.sites)
    outcome.variants = [site.variant for site in report.sites]
    outcome.misses = [[miss.node, miss.op, miss.reason] for miss in report.misses]
    yield outcome
    compare(outcome, original, rewritten, runs)
    yield outcome


def compare(outcome: Outcome, original: onnx.ModelProto, rewritten: onnx.ModelProto, runs: Mapping[str, Path]) -> None:
    """Runs both models in onnxruntime without its optimiser and with it; each rewritten result against the original's of the same
    kind, or else against the one without."""
    feeds = _feeds(runs)
    originals, failed = _sessions(original)
    if not originals:
        outcome.original = f"does not load: {failed}"
    refused = "" if originals else failed
    ours, failed = _sessions(rewritten)
    if len(ours) < len(originals):
        outcome.loads = failed
    allowed = TOLERANCE[narrowest(original)]
    for run, arrays in feeds.items() if originals else ():
        wants = {kind: _run(session, arrays) for kind, session in originals.items()}
        usable = {kind: want for kind, want in wants.items() if not isinstance(want, str)}
        if not usable:
            outcome.original = f"does not run on {run!r}: {next(iter(wants.values()))}"
            continue
        outcome.runs += 1
        for kind, session in ours.items():
            have = _run(session, arrays)
            if isinstance(have, str):
                outcome.loads = f"does not run on {run!r} ({kind}): {have}"
                continue
            found = min(distance(want, have) for want in usable.values())
            outcome.error = max(outcome.error, found)
            if found <= allowed or found <= MOVED * (spread := _spread(original, arrays, usable)):
                continue
            if (again := _differs_from_itself(originals, arrays, usable)) > allowed:
                outcome.original = f"gives another result in every run: relative error {again:.1e}"
            else:
                outcome.differs = f"{run} ({kind}): relative error {found:.1e}, the original's own {spread:.1e}"
    if feeds and not outcome.runs:
        outcome.loads = ""  # of a model that never runs the rewritten one need not load: its shapes may show what fails
        outcome.broken = why_broken(original, refused, feeds.values())


def _feeds(runs: Mapping[str, Path]) -> dict[str, dict[str, Array]]:
    """The inputs of each run."""
    return {name: dict(np.load(path)) for name, path in runs.items()}


def why_not_run(path: Path, runs: Mapping[str, Path]) -> str:
    """Why onnxruntime runs a file on none of its inputs, with its optimiser or without; "" where it runs on one, or where there are
    no inputs to try."""
    sessions, failed = _sessions(onnx.load(path))
    if not sessions:
        return f"does not load: {failed}"
    results = [_run(session, arrays) for arrays in _feeds(runs).values() for session in sessions.values()]
    failures = [result for result in results if isinstance(result, str)]
    return f"does not run: {failures[0]}" if results and len(failures) == len(results) else ""


def _differs_from_itself(
    sessions: Mapping[str, Any], arrays: Mapping[str, Array], wants: Mapping[str, list[Array]]
) -> float:
    """How far a second result lies from the first, as of a model that draws random numbers."""
    again = {kind: _run(sessions[kind], arrays) for kind in wants}
    return max(distance(wants[kind], have) for kind, have in again.items() if not isinstance(have, str))


def _spread(original: onnx.ModelProto, arrays: Mapping[str, Array], wants: Mapping[str, list[Array]]) -> float:
    """How far the original's results lie apart: with the optimiser and without, and with weights that are moved a little."""
    moved = onnx.ModelProto.FromString(original.SerializeToString())
    rng = np.random.default_rng(0)
    for tensor in moved.graph.initializer:
        if tensor.data_type in (onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16):
            weight = onnx.numpy_helper.to_array(tensor)
            ends = rng.choice([-np.inf, np.inf], weight.shape).astype(weight.dtype)
            tensor.CopyFrom(onnx.numpy_helper.from_array(np.nextafter(weight, ends), tensor.name))
    results = [*wants.values(), *(_run(session, arrays) for session in _sessions(moved)[0].values())]
    apart = [distance(results[0], other) for other in results[1:] if not isinstance(other, str)]
    return max((value for value in apart if np.isfinite(value)), default=0.0)


def narrowest(model: onnx.ModelProto) -> str:
    """The narrowest float type among the model's inputs, weights and casts."""
    kinds = {value.type.tensor_type.elem_type for value in (*model.graph.input, *model.graph.output)}
    kinds |= {tensor.data_type for tensor in model.graph.initializer}
    kinds |= {a.i for node in model.graph.node if node.op_type == "Cast" for a in node.attribute if a.name == "to"}
    return next((name for kind, name in NARROW.items() if kind in kinds), "f32")


def distance(want: list[Array], have: list[Array]) -> float:
    """The largest relative norm error of the outputs; infinite where shapes or types differ, or what is not finite."""
    worst = 0.0
    for a, b in zip(want, have, strict=True):
        if a.shape != b.shape or a.dtype != b.dtype:
            return float("inf")
        x, y = a.astype(np.float64), b.astype(np.float64)
        finite = np.isfinite(x)
        if not np.array_equal(x[~finite], y[~finite], equal_nan=True) or not np.isfinite(y[finite]).all():
            return float("inf")
        scale = max(float(np.linalg.norm(x[finite])), 1e-30)
        worst = max(worst, float(np.linalg.norm(x[finite] - y[finite])) / scale)
    return worst


def _sessions(model: onnx.ModelProto) -> tuple[dict[str, Any], str]:
    """Sessions without the optimiser and with it, as far as onnxruntime takes the model, and why it does not."""
    sessions: dict[str, Any] = {}
    failed = ""
    for kind, optimise in (("optimiser off", False), ("optimiser on", True)):
        try:
            sessions[kind] = ort_session(model, threads=1, optimise=optimise)
        except Exception as error:  # onnxruntime's exceptions share no public base class
            failed = f"{kind}: {words(error)}"
    return sessions, failed


def _run(session: Any, arrays: Mapping[str, Array]) -> list[Array] | str:
    """The results, or why there are none."""
    taken = {value.name for value in session.get_inputs()}
    try:
        with np.errstate(all="ignore"):
            return [np.asarray(x) for x in session.run(None, {n: a for n, a in arrays.items() if n in taken})]
    except Exception as error:
        return words(error)


def words(error: Exception) -> str:
    """An error in one line."""
    return " ".join(f"{type(error).__name__}: {error}".split())[:300]

"""What becomes of one export of a model family: how many attentions are rewritten, which not and why, and whether results stay."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing import get_context
from typing import Any, Literal

import numpy as np
import onnx

from onnx_fa.errors import MissingDependencyError
from onnx_fa.models import families, family_build
from onnx_fa.models.build import Arrays, Attn
from onnx_fa.models.export import Exporter, ExportError, export_onnx
from onnx_fa.rewriter import FORMS, Form, rewrite

Engine = Literal["onnxruntime", "onnx"]
EXPORTS: tuple[tuple[Exporter, int], ...] = (("dynamo", 18), ("dynamo", 23), ("torchscript", 17))


@dataclass(frozen=True)
class Case:
    """One export of one family."""

    family: str
    attn: Attn
    exporter: Exporter
    opset: int

    def __str__(self) -> str:
        return f"{self.family}-{self.attn}-{self.exporter}{self.opset}"


CASES: tuple[Case, ...] = tuple(
    Case(f.name, attn, exporter, opset)
    for f in families.FAMILIES.values()
    for exporter, opset in EXPORTS
    for attn in f.attns
)


@dataclass(frozen=True)
class Outcome:
    """sites: rewritten. variants and misses: of the sites found, and of every softmax left alone, attention or not. errors: the
    largest relative norm error of each form. failure: why there is no usable export, and then nothing else is known."""

    case: Case
    sites: int = 0
    variants: tuple[str, ...] = ()
    misses: tuple[str, ...] = ()
    errors: tuple[tuple[Form, float], ...] = ()
    failure: str = ""


def evaluate(case: Case) -> Outcome:
    """Exports (or takes from the cache), rewrites in every form, and compares with the original: on example inputs, and with a row
    that has no token where the family takes a mask.

    Raises MissingDependencyError without torch, transformers, onnxscript or onnxruntime.
    """
    family = families.find(case.family)
    try:
        model = export_onnx(family, case.exporter, case.opset, attn=case.attn)
        onnx.checker.check_model(model, full_check=True)
    except ExportError as error:
        return Outcome(case, failure=str(error))
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as error:
        reason = next(line for line in reversed(str(error).splitlines()) if line.strip())
        return Outcome(case, failure=f"the exporter writes an invalid model: {reason.strip()}")
    taken = {i.name for i in model.graph.input}  # an exporter may drop an input that it finds unused
    feeds = [{k: v for k, v in x.items() if k in taken} for x in _inputs(family)]
    engine, want = _reference_results(model, feeds)
    errors = []
    _, found = rewrite(model)
    for form in FORMS:
        have = _run(rewrite(model, form)[0], feeds, engine)
        each = [_error(a, b) for x, y in zip(want, have, strict=True) for a, b in zip(x, y, strict=True)]
        errors.append((form, max(each)))
    return Outcome(
        case,
        len(found.sites),
        tuple(s.variant for s in found.sites),
        tuple(f"{m.op}: {m.reason}" for m in found.misses),
        tuple(errors),
    )


def evaluate_all(cases: Iterable[Case], processes: int) -> Iterator[Outcome]:
    """Outcomes in the order of the cases, from worker processes that are replaced now and then: exporting leaks memory."""
    with get_context("spawn").Pool(processes, _one_thread, maxtasksperchild=25) as pool:
        yield from pool.imap(evaluate, cases)


def _one_thread() -> None:
    import torch

    torch.set_num_threads(1)


def _inputs(family: families.Family) -> list[Arrays]:
    plain = family_build.inputs(family)
    masked = [i for i in family.inputs if i.fill in ("right", "left", "corner", "drop")]
    if not masked:
        return [plain]
    empty = {k: v.copy() for k, v in plain.items()}
    for i in masked:
        empty[i.name][-1] = i.fill == "drop"
    return [plain, empty]


def _reference_results(model: onnx.ModelProto, feeds: Sequence[Arrays]) -> tuple[Engine, list[list[np.ndarray]]]:
    """What the original computes, in onnxruntime or, where that cannot run it (bf16, a mask that an Attention op broadcasts), in
    ONNX's own evaluator; and which one it was."""
    try:
        return "onnxruntime", _run(model, feeds, "onnxruntime")
    except _cannot_run():
        return "onnx", _run(model, feeds, "onnx")


def _cannot_run() -> tuple[type[Exception], ...]:
    try:
        from onnxruntime.capi.onnxruntime_pybind11_state import Fail, NotImplemented
    except ImportError as error:
        raise MissingDependencyError("comparing families needs onnxruntime: pip install 'onnx-fa[ort]'") from error
    return Fail, NotImplemented


def _run(model: onnx.ModelProto, feeds: Sequence[Arrays], engine: Engine) -> list[list[np.ndarray]]:
    if engine == "onnx":
        from onnx.reference import ReferenceEvaluator

        run: Any = ReferenceEvaluator(model).run
    else:
        import onnxruntime as ort

        options = ort.SessionOptions()
        options.log_severity_level = 4
        options.intra_op_num_threads = 1
        run = ort.InferenceSession(model.SerializeToString(), options).run
    return [list(run(None, x)) for x in feeds]


def _error(want: np.ndarray, have: np.ndarray) -> float:
    """Relative norm error; infinite where shapes, types or NaNs differ, or where nothing finite is left to compare."""
    if want.shape != have.shape or want.dtype != have.dtype or bool((np.isnan(want) != np.isnan(have)).any()):
        return float("inf")
    if bool(np.isnan(want).all()):
        return float("inf")
    a, b = np.nan_to_num(want).astype(np.float64), np.nan_to_num(have).astype(np.float64)
    return float(np.linalg.norm(a - b)) / max(float(np.linalg.norm(a)), 1e-30)

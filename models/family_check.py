"""What becomes of one export of a model family: how many attentions are rewritten, which not and why, and whether results stay."""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing import get_context
from typing import Any

import numpy as np
import onnx
import onnx.inliner
from onnx.reference import ReferenceEvaluator

from onnx_fa.errors import MissingDependencyError
from onnx_fa.forms.replace import Form
from onnx_fa.forms.rewrite import FORMS, rewrite
from onnx_fa.models import families, family_build
from onnx_fa.models.build import Arrays, Attn
from onnx_fa.models.export import Exporter, ExportError, export_onnx
from onnx_fa.ort_session import ort_session

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
    # onnxruntime's Attention op refuses masks that broadcast and takes an added finfo.min for -inf: ONNX's definition decides.
    special = any(n.op_type == "Attention" for n in model.graph.node)
    want = _run(_spelled_out(model), feeds)
    errors, reports = [], {}
    for form in FORMS:
        new, reports[form] = rewrite(model, form)
        have = _run(_spelled_out(new) if special else new, feeds)
        each = [_error(a, b) for x, y in zip(want, have, strict=True) for a, b in zip(x, y, strict=True)]
        errors.append((form, max(each)))
    found = reports["decomposed"]  # the form that can say everything
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
    """Also walks the garbage collector less often over what torch has loaded: that took an eighth of the time of an export."""
    import torch

    torch.set_num_threads(1)
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)


def _inputs(family: families.Family) -> list[Arrays]:
    plain = family_build.inputs(family)
    masked = [i for i in family.inputs if i.fill in ("right", "left", "corner", "drop")]
    if not masked:
        return [plain]
    empty = {k: v.copy() for k, v in plain.items()}
    for i in masked:
        empty[i.name][-1] = i.fill == "drop"
    return [plain, empty]


def _spelled_out(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with each Attention op replaced by the function that ONNX defines it by."""
    if not any(n.op_type == "Attention" for n in model.graph.node):
        return model
    model = onnx.shape_inference.infer_shapes(model)
    (opset,) = (o.version for o in model.opset_import if o.domain in ("", "ai.onnx"))
    schema: Any = onnx.defs.get_schema("Attention", opset)  # its stubs lack the method
    values = (*model.graph.input, *model.graph.output, *model.graph.value_info)
    types = {v.name: v.type for v in values} | {
        t.name: onnx.helper.make_tensor_type_proto(t.data_type, t.dims) for t in model.graph.initializer
    }
    for i, node in enumerate(n for n in model.graph.node if n.op_type == "Attention"):
        inputs = [types.get(name, onnx.TypeProto()).SerializeToString() for name in node.input]
        body = schema.get_context_dependent_function(node.SerializeToString(), inputs)
        function = onnx.FunctionProto.FromString(body)
        function.domain = node.domain = "spelled.out"
        function.name = node.op_type = f"Attention_{i}"
        model.functions.append(function)
    model.opset_import.append(onnx.helper.make_opsetid("spelled.out", 1))
    return onnx.inliner.inline_local_functions(model)


def _run(model: onnx.ModelProto, feeds: Sequence[Arrays]) -> list[list[np.ndarray]]:
    """Results in onnxruntime or, where that lacks an element type (bf16), in ONNX's reference evaluator."""
    try:
        from onnxruntime.capi.onnxruntime_pybind11_state import NotImplemented
    except ImportError as error:
        raise MissingDependencyError("comparing families needs onnxruntime: pip install 'onnx-fa[ort]'") from error
    try:
        session = ort_session(model, threads=1)
        return [list(session.run(None, x)) for x in feeds]
    except NotImplemented:
        evaluator = ReferenceEvaluator(model)
        return [[np.asarray(y) for y in evaluator.run(None, x)] for x in feeds]


def _error(want: np.ndarray, have: np.ndarray) -> float:
    """Relative norm error; infinite where shapes, types or NaNs differ, or where nothing finite is left to compare."""
    if want.shape != have.shape or want.dtype != have.dtype or bool((np.isnan(want) != np.isnan(have)).any()):
        return float("inf")
    if bool(np.isnan(want).all()):
        return float("inf")
    a, b = np.nan_to_num(want).astype(np.float64), np.nan_to_num(have).astype(np.float64)
    return float(np.linalg.norm(a - b)) / max(float(np.linalg.norm(a)), 1e-30)

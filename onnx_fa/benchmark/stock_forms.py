"""One attention in every spelling and form of ONNX, for stock IREE: which of them does the compiler fuse by itself?"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import onnx_ir as ir

from onnx_fa.benchmark.models import STOCK
from onnx_fa.benchmark.stock import compile_stock, stock_import
from onnx_fa.errors import CompileError, UnsupportedError
from onnx_fa.files import scratch_folder
from onnx_fa.forms import blocked
from onnx_fa.forms.plain import OPSET, finished, input_names, operand_values
from onnx_fa.forms.replace import Form
from onnx_fa.forms.rewrite import rewrite
from onnx_fa.graph.builder import OnnxBuilder
from onnx_fa.graph.io import load, save
from onnx_fa.iree.inspect import bytes_of_type, elements_of_type, inspect_program
from onnx_fa.spec.attention import AttentionSpec
from onnx_fa.spec.target import Target

ATTENTION_OPSET = 23
"""The first opset that has an Attention op; what the plain models hold means the same in it."""


def _as_exported(model: Path, spec: AttentionSpec) -> ir.Model:
    return load(model)


def _in_form(form: Form, opset: int = OPSET) -> Callable[[Path, AttentionSpec], ir.Model]:
    def write(model: Path, spec: AttentionSpec) -> ir.Model:
        loaded = load(model)
        if opset != OPSET:
            loaded.opset_imports[""], loaded.ir_version = opset, 11
        written, report = rewrite(loaded, form)
        if not report.sites:
            raise UnsupportedError("; ".join(m.reason for m in report.misses))
        return written

    return write


def _unrolled(model: Path, spec: AttentionSpec) -> ir.Model:
    inputs = operand_values(spec)
    graph = ir.Graph(inputs, [], nodes=[], opset_imports={"": OPSET}, name="attention")
    b = OnnxBuilder(graph, OPSET, "attention", set(input_names(spec)), {})
    return finished(b, spec, *blocked.emit_unrolled(b, spec, inputs))


LIMITS = {"timeout_s": 300.0, "memory_bytes": 8 << 30}
"""Of each compilation."""
FORMS: dict[str, Callable[[Path, AttentionSpec], ir.Model]] = {
    f"{STOCK}, Softmax as exported": _as_exported,
    f"{STOCK}, decomposed form": _in_form("decomposed"),
    f"{STOCK}, blocked form in a Loop": _in_form("blocked"),
    f"{STOCK}, blocked form unrolled": _unrolled,
    f"{STOCK}, Attention op of ONNX": _in_form("attention", ATTENTION_OPSET),
}
"""By name, what writes the model of a spec, which the file of the plain model has already: raises UnsupportedError."""


@dataclass(frozen=True)
class Fusion:
    """What a compiler made of one attention: how many dispatches, how many of them compute, the buffers between them that have as
    many elements as the scores, and the largest of all buffers."""

    dispatches: int
    computing: int
    score_buffers: int
    score_bytes: int
    largest_bytes: int

    def __str__(self) -> str:
        fused = "fused, " if self.computing == 1 and not self.score_buffers else "not fused, "
        scores = f"{self.score_buffers} buffers of Sq x Skv"
        if self.score_buffers:
            scores += f" ({self.score_bytes / 2**20:.1f} MiB)"
        most = f"largest buffer {self.largest_bytes / 2**20:.1f} MiB"
        return f"{fused}{self.dispatches} dispatches, {self.computing} of them compute, {scores}, {most}"


def compile_form(
    what: str, model: Path, spec: AttentionSpec, target: Target, flags: Sequence[str], output: Path
) -> Fusion:
    """Stock IREE's module of the form that `what` names, of an attention whose plain model is in the file `model`. Raises
    CompileError, also where the form cannot be written or the importer refuses it."""
    with scratch_folder() as folder:
        try:
            save(FORMS[what](model, spec), folder / "form.onnx")
        except UnsupportedError as e:
            raise CompileError(str(e)) from e
        imported = stock_import(folder / "form.onnx", folder)
        if isinstance(imported, str):
            raise CompileError(imported)
        phases = folder / "phases"
        phases.mkdir()
        dump = f"--dump-compilation-phases-to={phases}"
        compile_stock(imported, target, {"flags": (*flags, dump), **LIMITS}, output)
        return inspect_fusion(phases, spec)


def inspect_fusion(phases: Path, spec: AttentionSpec) -> Fusion:
    """Reads the compiler's IR of a program that is the attention alone. Buffers are told by their number of elements, in whatever
    order or packing they lie: a spec whose scores are not more than its operands has none that could be told. Raises RunError."""
    dispatches = inspect_program(phases)
    scores = _count(spec.score_shape)
    tellable = scores > max(_count(shape) for shape in (*spec.canonical_shapes, spec.out_shape))
    results = [text for d in dispatches for text in d.results]
    sizes = [bytes_of_type(text) or 0 for text in results]
    holds = [b for text, b in zip(results, sizes, strict=True) if tellable and (elements_of_type(text) or 0) >= scores]
    computing = sum(d.computes for d in dispatches)
    return Fusion(len(dispatches), computing, len(holds), sum(holds), max(sizes, default=0))


def _count(shape: tuple[int | str, ...]) -> int:
    return math.prod(d for d in shape if isinstance(d, int))

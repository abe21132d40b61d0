"""A model in onnxruntime, op by op or with its optimiser, as `verify` runs it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

from onnx_fa.errors import MissingDependencyError, RunError, UnsupportedError
from onnx_fa.graph import io
from onnx_fa.graph.free_dims import graph_inputs
from onnx_fa.graph.ops import DEQUANTIZE, op_of
from onnx_fa.ort_session import ort_session
from onnx_fa.verifier.inputs import Array
from onnx_fa.verifier.unsigned_weights import made_exact
from onnx_fa.verifier.widened import NARROW, holds_bf16, widened

_SECONDS = 300
"""For loading a model in a process of its own."""

_CUT_OFF = "this processor cuts off onnxruntime's sums of u8 by i8"


class Runner:
    """A model without onnxruntime's optimiser; with it where onnxruntime refuses the model otherwise; in f32 where it refuses bf16
    (widened.py); and in onnx's reference evaluator where it refuses that too. Returns all outputs by name, those of bf16 as f32
    where `in_f32`; of these with `rounded` the results of every operator in bf16 are rounded. Raises RunError where nothing takes
    the model."""

    def __init__(self, model: ir.Model, path: Path, *, rounded: bool = False) -> None:
        self._names = [str(o.name) for o in model.graph.outputs]
        self._inputs = [str(v.name) for v in graph_inputs(model)]
        self._narrow = {str(v.name) for v in (*model.graph.inputs, *model.graph.outputs) if v.dtype == NARROW}
        self.evaluated = self.optimised = self.in_f32 = False
        exact = made_exact(model)
        self._runs, self._unsigned = None, exact is not model
        if self._narrow:
            self.refused = "bfloat16 inputs or outputs have no NumPy type there"
        else:
            io.save(exact, path)
            self._runs, self.refused, self.optimised = _unoptimised(path)
        if self._runs is None and holds_bf16(model):
            model = self._widen(model, path, rounded)
        if self._runs is None:
            self._runs, self.evaluated = _evaluator(model, self.refused), True

    def _widen(self, model: ir.Model, path: Path, rounded: bool) -> ir.Model:
        """The model in f32, which runs where onnxruntime takes it; as it is where in f32 it would be another model. `refused` says
        why not."""
        try:
            model = widened(model, rounded=rounded)
        except UnsupportedError as e:
            self.refused += f"; not run in float32: {e}"
            return model
        self.in_f32 = True
        io.save(model, path)
        self._runs, refused, self.optimised = _unoptimised(path)
        self.refused += f"; in float32: {refused}" if refused else ""
        return model

    def note(self, what: str) -> str:
        """What the model runs in where it is not onnxruntime op by op, and why."""
        if not self.refused:
            return f"{what} runs with weights of i8 as u8: {_CUT_OFF}" if self._unsigned else ""
        where = "onnxruntime with its optimiser only" if self.optimised else "onnxruntime"
        how = "in float32 (bfloat16 widened) " * self.in_f32
        return f"{what} runs {how}in {'onnx.reference' if self.evaluated else where}, onnxruntime refuses it: {self.refused}"

    def __call__(self, arrays: Mapping[str, Array]) -> dict[str, Array]:
        if self.in_f32:
            arrays = {n: x.astype(np.float32) if n in self._narrow else x for n, x in arrays.items()}
        return _called(self._runs, self._names, self._inputs, arrays)

    def declared(self, name: str, result: Array) -> np.dtype[Any]:
        """The type that the model declares for an output; `result` is what it is here."""
        return NARROW.numpy() if name in self._narrow else result.dtype


class OptimisedRunner:
    """The model of a file as its users run it, with onnxruntime's optimiser. `refused` says why onnxruntime does not load it."""

    def __init__(self, model: ir.Model, path: Path) -> None:
        self._names = [str(o.name) for o in model.graph.outputs]
        self._inputs = [str(v.name) for v in graph_inputs(model)]
        io.save(made_exact(model), path)
        self.refused = _ends_the_process(path) if _may_end_the_process(model) else ""
        if not self.refused:
            self._runs, self.refused = _session(path, optimise=True)

    def __call__(self, arrays: Mapping[str, Array]) -> dict[str, Array]:
        if self.refused:
            raise RunError(f"onnxruntime's optimiser: {self.refused}")
        return _called(self._runs, self._names, self._inputs, arrays)


def rounds(model: ir.Model) -> bool:
    """Whether the model quantises values at run time: a difference of 1e-7 then may become one of a whole step."""
    return any("Quantize" in op_of(n) or "QLinear" in op_of(n) for n in model.graph.all_nodes())


def _may_end_the_process(model: ir.Model) -> bool:
    """Whether there is a DequantizeLinear, and a subgraph that may read what comes of it."""
    subgraphs = any(a.type == ir.AttributeType.GRAPH for n in model.graph for a in n.attributes.values())
    return subgraphs and any(op_of(n) in DEQUANTIZE for n in model.graph)


def _ends_the_process(path: Path) -> str:
    """What happens to a process that loads the model; "" where it lives (docs/developer/onnxruntime-bugs.md, moved_into_a_loop)."""
    load = "import sys, onnxruntime; onnxruntime.InferenceSession(sys.argv[1], providers=['CPUExecutionProvider'])"
    command = [sys.executable, "-c", load, str(path)]
    done = subprocess.run(command, capture_output=True, timeout=_SECONDS, check=False)
    return f"the process ends by signal {-done.returncode}" if done.returncode < 0 else ""


def _session(path: Path, *, optimise: bool) -> tuple[Any, str]:
    """(what runs the file, "") or (None, why not)."""
    try:
        return ort_session(path, optimise=optimise, exact=True), ""
    except MissingDependencyError:
        raise
    except Exception as e:  # onnxruntime's exceptions share no public base class
        # The file is a copy that the user has never seen.
        return None, " ".join(str(e).replace(str(path), "the model").split())[:160]


def _unoptimised(path: Path) -> tuple[Any, str, bool]:
    """(what runs the file op by op, or else with the optimiser; why it does not run op by op; whether it is with the optimiser)."""
    runs, refused = _session(path, optimise=False)
    if runs is not None:
        return runs, "", False
    runs, _ = _session(path, optimise=True)
    return runs, refused, runs is not None


def _evaluator(model: ir.Model, refused: str) -> Any:
    try:
        from onnx.reference import ReferenceEvaluator

        return ReferenceEvaluator(io.to_proto(model))
    except Exception as e:
        raise RunError(f"neither onnxruntime ({refused}) nor onnx.reference ({e}) takes the model") from e


def _called(runs: Any, names: list[str], inputs: list[str], arrays: Mapping[str, Array]) -> dict[str, Array]:
    try:
        with np.errstate(all="ignore"):
            results = runs.run(names, {n: arrays[n] for n in inputs})
    except Exception as e:
        raise RunError(f"the model cannot be run on the inputs made for it: {' '.join(str(e).split())[:300]}") from e
    return dict(zip(names, map(np.asarray, results), strict=True))

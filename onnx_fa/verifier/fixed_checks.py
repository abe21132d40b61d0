"""The model as its owner has it, called with the inputs that were fixed, against the model in which they are constants."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import onnx_ir as ir

from onnx_fa.graph.fixed_inputs import Scalar, fixed_arrays
from onnx_fa.verifier.comparisons import Check, compare_outputs
from onnx_fa.verifier.inputs import Array
from onnx_fa.verifier.runners import Runner


class FixedChecks:
    """Runs the model with the values passed to it, op by op in onnxruntime. Raises ModelError for values that do not fit it, and
    RunError where nothing takes the model."""

    def __init__(self, model: ir.Model, values: Mapping[str, Scalar], folder: Path) -> None:
        self._arrays = fixed_arrays(model, values)
        self._names = [str(o.name) for o in model.graph.outputs]
        self._runner = Runner(model, folder / "as_given.onnx") if values else None

    def compare(
        self, inputs: str, arrays: Mapping[str, Array], want: Mapping[str, Array], allowed: float
    ) -> list[Check]:
        """A check for each output of the model as given, none where nothing is fixed. `want`: with the inputs as constants."""
        if self._runner is None:
            return []
        got = self._runner({**arrays, **self._arrays})
        what = "inputs passed: output"
        return [compare_outputs(inputs, f"{what} {n}", "inputs fixed", got[n], want[n], allowed) for n in self._names]

"""onnxruntime as every part of the project uses it: on the CPU, without its log."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import onnx

from onnx_fa.errors import MissingDependencyError
from onnx_fa.machine import saturates_bytes

_MAKES_BYTES = "QDQSelectorActionTransformer"
"""The step of the optimiser that makes products of bytes out of DequantizeLinear, a product of floats, and QuantizeLinear."""


def ort_session(
    model: onnx.ModelProto | bytes | str | os.PathLike[str],
    *,
    threads: int | None = None,
    optimise: bool = True,
    without: Sequence[str] = (),
    reuse: bool = True,
    exact: bool = False,
) -> Any:
    """An onnxruntime.InferenceSession of a model, its bytes or its file. `threads` None means as many as onnxruntime takes;
    `without` names steps of the optimiser that are left out; without `reuse` every value has memory of its own; `exact`: the
    optimiser makes no products of bytes where the processor cuts off their sums (machine.saturates_bytes).

    Raises MissingDependencyError. What onnxruntime raises where it refuses a model passes through: its exceptions share no public
    base class.
    """
    try:
        import onnxruntime as ort
    except ImportError as e:
        raise MissingDependencyError("onnxruntime is not installed: pip install 'onnx-fa[ort]'") from e
    options = ort.SessionOptions()
    options.log_severity_level = 4
    if threads is not None:
        options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    if not optimise:
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.enable_mem_reuse = reuse
    source = model.SerializeToString() if isinstance(model, onnx.ModelProto) else model

    if exact and saturates_bytes():
        without = [*without, _MAKES_BYTES]
    return ort.InferenceSession(source, options, providers=["CPUExecutionProvider"], disabled_optimizers=[*without])

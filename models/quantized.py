"""Quantised exports, made with onnxruntime's quantiser."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import onnx

from onnx_fa.errors import MissingDependencyError, OnnxFaError, one_line
from onnx_fa.graph.io import load
from onnx_fa.verifier.inputs import random_inputs

CALIBRATION = 4
"""Random inputs that the ranges of a static quantisation are read from."""


def quantise(source: Path, target: Path, static: bool) -> None:
    """Writes `source` with int8 weights: `static` with QuantizeLinear and DequantizeLinear around every matmul, else with ranges
    found at run time. Raises OnnxFaError, MissingDependencyError without onnxruntime."""
    try:
        from onnxruntime import quantization as q
    except ImportError as error:
        raise MissingDependencyError("quantised models need onnxruntime: pip install 'onnx-fa[ort]'") from error
    model = load(source)
    feeds = iter([random_inputs(model, seed=seed) for seed in range(CALIBRATION)])

    class Reader(q.CalibrationDataReader):  # type: ignore[misc]  # the base class has no types
        def get_next(self) -> Any:
            return next(feeds, None)

    level = logging.root.level
    logging.root.setLevel(logging.ERROR)
    try:
        if static:
            q.quantize_static(source, target, Reader(), quant_format=q.QuantFormat.QDQ, weight_type=q.QuantType.QInt8)
        else:
            q.quantize_dynamic(source, target, weight_type=q.QuantType.QInt8)
        onnx.checker.check_model(onnx.load(target))
    except Exception as error:  # the quantiser raises whatever its passes raise
        raise OnnxFaError(f"{source.name} cannot be quantised: {one_line(error)}") from error
    finally:
        logging.root.setLevel(level)

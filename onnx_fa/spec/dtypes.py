"""Element types: how NumPy and ONNX name those of operands, and the largest numbers of the float types."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

NUMPY: dict[str, Any] = {
    "f64": np.float64,
    "f32": np.float32,
    "f16": np.float16,
    "bf16": ml_dtypes.bfloat16,
    "bool": np.bool_,
    "i32": np.int32,
    "i64": np.int64,
    "i8": np.int8,
    "u8": np.uint8,
    "i4": ml_dtypes.int4,
    "u4": ml_dtypes.uint4,
}
"""NumPy's type of every element type of a spec."""
ONNX: dict[str, int] = {
    "f64": 11,
    "f32": 1,
    "f16": 10,
    "bf16": 16,
    "bool": 9,
    "i32": 6,
    "i64": 7,
    "i8": 3,
    "u8": 2,
    "i4": 22,
    "u4": 21,
}
"""Their numbers in an ONNX file (TensorProto.DataType)."""
F32_MAX = float(np.finfo(np.float32).max)
F16_MAX = float(np.finfo(np.float16).max)
"""The largest finite numbers."""

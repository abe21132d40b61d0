"""onnxruntime on one thread, and results compared with its."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort

from onnx_fa.machine import saturates_bytes
from onnx_fa.ort_session import ort_session
from onnx_fa.verifier.unsigned_weights import made_exact

TOLERANCE = 2e-6
"""Relative norm error of f32 attention against the same in another order of operations."""
Array = np.ndarray[Any, np.dtype[Any]]


def session(
    model: onnx.ModelProto,
    *,
    optimise: bool = True,
    without: Sequence[str] = (),
    reuse: bool = True,
    exact: bool = True,
) -> ort.InferenceSession:
    """`exact`: products of bytes are, whatever the processor."""
    if exact and saturates_bytes():
        made = ir.from_proto(model)
        unsigned = made_exact(made)
        model = model if unsigned is made else ir.to_proto(unsigned)
    return ort_session(model, threads=1, optimise=optimise, without=without, reuse=reuse, exact=exact)


def run(
    model: onnx.ModelProto, inputs: Mapping[str, Array], *, optimise: bool = True, exact: bool = True
) -> list[Array]:
    return list(session(model, optimise=optimise, exact=exact).run(None, dict(inputs)))


def assert_same(want: Sequence[Array], have: Sequence[Array], tolerance: float = TOLERANCE) -> None:
    """The same shapes, types, NaNs and infinities, and within a relative norm error."""
    for a, b in zip(want, have, strict=True):
        assert a.shape == b.shape and a.dtype == b.dtype
        a, b = a.astype(np.float64), b.astype(np.float64)
        finite = np.isfinite(a)
        np.testing.assert_array_equal(finite, np.isfinite(b))
        np.testing.assert_array_equal(a[~finite], b[~finite])
        assert np.linalg.norm(a[finite] - b[finite]) <= tolerance * max(float(np.linalg.norm(a[finite])), 1e-30)

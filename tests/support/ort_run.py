"""onnxruntime on one thread, and results compared with its."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort

from onnx_fa.machine import saturates_bytes
from onnx_fa.ort_session import ort_session
from onnx_fa.verifier.unsigned_weights import PRODUCTS_OF_BYTES, made_exact

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
    if exact and saturates_bytes() and _names_one_of(PRODUCTS_OF_BYTES, model):
        made = ir.from_proto(model)
        unsigned = made_exact(made)
        model = model if unsigned is made else ir.to_proto(unsigned)
    return ort_session(model, threads=1, optimise=optimise, without=without, reuse=reuse, exact=exact)


def run(
    model: onnx.ModelProto, inputs: Mapping[str, Array], *, optimise: bool = True, exact: bool = True
) -> list[Array]:
    """A model that is run on several inputs is loaded once."""
    data = model.SerializeToString()
    draws = any(op in data for op in _DRAWN)
    loaded = session(model, optimise=optimise, exact=exact) if draws else _session_of(data, optimise, exact)
    return list(loaded.run(None, dict(inputs)))


_DRAWN = b"Random", b"Multinomial", b"Bernoulli", b"Dropout"
"""In the name of an operator: its second result is another one in the same session."""


@lru_cache(maxsize=4)
def _session_of(data: bytes, optimise: bool, exact: bool) -> ort.InferenceSession:
    return session(onnx.ModelProto.FromString(data), optimise=optimise, exact=exact)


def _names_one_of(ops: Sequence[str], model: onnx.ModelProto) -> bool:
    """Whether one of the operators may be in the model: to read all of its nodes takes as long as onnxruntime takes to load it."""
    data = model.SerializeToString()
    return any(op.encode() in data for op in ops)


def assert_same(want: Sequence[Array], have: Sequence[Array], tolerance: float = TOLERANCE) -> None:
    """The same shapes, types, NaNs and infinities, and within a relative norm error."""
    for a, b in zip(want, have, strict=True):
        assert a.shape == b.shape and a.dtype == b.dtype
        a, b = a.astype(np.float64), b.astype(np.float64)
        finite = np.isfinite(a)
        np.testing.assert_array_equal(finite, np.isfinite(b))
        np.testing.assert_array_equal(a[~finite], b[~finite])
        assert np.linalg.norm(a[finite] - b[finite]) <= tolerance * max(float(np.linalg.norm(a[finite])), 1e-30)

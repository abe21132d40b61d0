"""Sizes of the free dims of a model that nobody here knows: a table of positions, say, may end before the usual length."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from onnx_fa.graph import io
from onnx_fa.graph.free_dims import ODD_LENGTH, OTHER_LENGTHS, free_sizes
from onnx_fa.ort_session import ort_session
from onnx_fa.verifier.inputs import random_inputs


def runnable_sizes(path: Path, dims: Mapping[str, int]) -> dict[str, int]:
    """`dims`, and where onnxruntime does not run the model with the usual length of the other free dims, sizes of these with which
    it does. Where it runs with none, `dims`: those who use the model then say why."""
    model = io.load(path)
    if free_sizes(model, dims, ODD_LENGTH) == dict(dims):
        return dict(dims)
    for length in (ODD_LENGTH, *OTHER_LENGTHS):
        arrays = random_inputs(model, dims=dims, default=length)
        try:
            ort_session(path).run(None, arrays)
        except Exception:  # onnxruntime's exceptions share no public base class; the next length may do
            continue
        return dict(dims) if length == ODD_LENGTH else free_sizes(model, dims, length)
    return dict(dims)

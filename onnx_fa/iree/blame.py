"""Whose fault it is that a model does not compile. Of an ill-typed model, as exporters write some, IREE's compiler says that it
cannot legalise an operation of its own; onnx names the node."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from onnx_fa.errors import CompileError, ModelError, one_line
from onnx_fa.graph.io import ModelLike, load
from onnx_fa.graph.onnx_inference import find_fault


@contextmanager
def blaming(model: ModelLike) -> Iterator[None]:
    """Where the block raises CompileError and onnx finds fault with `model`, raises ModelError, which names the node."""
    try:
        yield
    except CompileError as e:
        if found := find_fault(load(model)):
            raise ModelError(f"{found}, says onnx; {one_line(e)}") from e
        raise

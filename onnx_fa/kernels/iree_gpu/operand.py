"""A tensor at the boundary of the attention dispatch."""

from __future__ import annotations

from dataclasses import dataclass

from onnx_fa.kernels.mlir.text import tensor_type
from onnx_fa.spec.terms import Dim


@dataclass(frozen=True)
class Operand:
    """A tensor at the dispatch boundary: what walks each stored axis ("b0", "h", "m", "k", "d", "n"; "" for none) and its size. In
    halves, keys are ("j", "k") and D is ("e", "d")."""

    name: str
    kinds: tuple[str, ...]
    shape: tuple[Dim, ...]
    element: str
    lead: str = ""
    """The first axis has the batch dims and heads of "q" or of "kv" before its own."""

    @property
    def type(self) -> str:
        return tensor_type(self.shape, self.element)

    @property
    def tile(self) -> tuple[str, ...]:
        """The axes that a tile of it has."""
        return tuple(k for k in self.kinds if k in ("m", "j", "k", "e", "d", "n"))

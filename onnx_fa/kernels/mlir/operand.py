"""What a dispatch reads or writes."""

from __future__ import annotations

from dataclasses import dataclass

from onnx_fa.kernels.mlir.text import tensor_type
from onnx_fa.spec.terms import Dim

ROWS = "rows"
"""The symbol of the rows of flat operands where they are known at run time only."""


@dataclass(frozen=True)
class Operand:
    """A tensor at a dispatch's boundary; `name` begins with %."""

    name: str
    shape: tuple[Dim, ...]
    element: str

    @property
    def type(self) -> str:
        return tensor_type(self.shape, self.element)

    @property
    def is_free(self) -> bool:
        """Whether its rows are known at run time only."""
        return ROWS in self.shape

    @property
    def symbols(self) -> tuple[str, ...]:
        """Its dims that are known at run time only, in order; the function has each as an index of that name."""
        return tuple(d for d in self.shape if isinstance(d, str))

    @property
    def sizes(self) -> str:
        """Those dims as MLIR has them behind a type; "" where all are known."""
        return f"{{{', '.join(f'%{d}' for d in self.symbols)}}}" if self.symbols else ""

    @property
    def sized_type(self) -> str:
        """Its type, and those dims behind it."""
        return f"{self.type}{self.sizes}"

    def bound(self, access: str) -> str:
        """The type of the dispatch's argument."""
        return f"!iree_tensor_ext.dispatch.tensor<{access}:{self.type}>"

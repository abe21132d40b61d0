"""Specs that say name, shape and type of each operand in one place."""

from __future__ import annotations

from abc import ABC, abstractmethod

from onnx_fa.spec.terms import Dim


class NamedOperands(ABC):
    """What kernels ask of a spec, from its `operands`."""

    @property
    @abstractmethod
    def operands(self) -> tuple[tuple[str, tuple[Dim, ...], str], ...]:
        """Name, shape and type of each operand, in order."""

    @property
    def operand_shapes(self) -> tuple[tuple[Dim, ...], ...]:
        return tuple(shape for _, shape, _ in self.operands)

    @property
    def operand_dtypes(self) -> tuple[str, ...]:
        return tuple(dtype for _, _, dtype in self.operands)

    def operand_names(self, tensor: str = "t") -> list[str]:
        return [name for name, _, _ in self.operands]

"""Where an operand of a dispatch lies in memory, for inline assembly that reads it.

Tensors have no address, and memory that a dispatch makes of an operand is a copy of it. But a call of a microkernel passes what
lies below its tensors. The one here is a function beside the dispatch's own, which writes the address into a tensor of one
number; LLVM makes it a plain instruction.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from onnx_fa.kernels.mlir.text import Text


class Helper(Protocol):
    """A function beside a dispatch's own, which its body calls as a microkernel."""

    @property
    def helper(self) -> list[str]: ...

    @property
    def keep(self) -> str: ...


@dataclass(frozen=True)
class Helpers:
    """Several of them."""

    all: Sequence[Helper]

    @property
    def helper(self) -> list[str]:
        return [line for x in self.all for line in x.helper]

    @property
    def keep(self) -> str:
        return ", ".join(x.keep for x in self.all)


@dataclass(frozen=True)
class Addresses:
    """What writes addresses of tensors of an element type in the dispatch `symbol`; a name of its own lets several dispatches be
    linked into one program."""

    symbol: str
    element: Literal["f32", "bf16"] = "f32"

    @property
    def name(self) -> str:
        return f"{self.symbol}_address"

    @property
    def helper(self) -> list[str]:
        """The function that the dispatch's module has to hold."""
        size = 4 if self.element == "f32" else 2
        return [
            f"func.func private @{self.name}(%base: memref<{self.element}>, %offset: index, %cell: memref<i64>, %first: index) "
            "attributes {llvm.bareptr = true} {",
            f"%pointer = memref.extract_aligned_pointer_as_index %base : memref<{self.element}> -> index",
            f"%size = arith.constant {size} : index",
            "%bytes = arith.muli %offset, %size : index",
            "%index = arith.addi %pointer, %bytes : index",
            "%address = arith.index_cast %index : index to i64",
            "memref.store %address, %cell[] : memref<i64>",
            "return",
            "}",
        ]

    @property
    def keep(self) -> str:
        """The attribute of the dispatch's function by which the compiler knows, before it is called, that the other is used."""
        return f"onnx_fa.helper = @{self.name}"

    def of(self, t: Text, tensor: str, type_: str) -> str:
        """The address of a tensor of such elements, as i64."""
        cell = t.let("tensor.empty() : tensor<1xi64>")
        written = t.let(
            f'iree_codegen.ukernel.generic "{self.name}" ins({tensor} : {type_}) outs({cell} : tensor<1xi64>) '
            "strided_dims([[], []]) -> tensor<1xi64>"
        )
        return t.extract(written, "tensor<1xi64>", t.index(0))

"""The function that a program calls for a site: it takes the site's operands, and dispatches what computes.

Dispatches see the operands of the spec whose queries are folded, booleans as bytes, so that what is passed on is reshaped and
bitcast first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from onnx_fa.kernels.mlir.operand import ROWS
from onnx_fa.kernels.mlir.text import Text, element_type, tensor_type
from onnx_fa.spec.terms import Dim


def bound_argument(name: str, type_: str, tied: str) -> tuple[str, list[str]]:
    """A dispatch's argument of a binding, and the operations that give the binding its dims under that name, where `tied` names
    some."""
    if not tied:
        return f"{name}: {type_}", []
    return f"{name}_: {type_}", [f"{name} = flow.dispatch.tie_shape {name}_ : {type_}{tied}"]


def tied_dims(shape: Sequence[Dim], dims: Mapping[str, str]) -> str:
    """{%dims} of a shape's symbols, as types of dynamic shape are followed by; `dims` names the SSA value of each symbol."""
    dynamic = [dims[d] for d in shape if isinstance(d, str)]
    return f"{{{', '.join(dynamic)}}}" if dynamic else ""


def listed_types(types: Sequence[str]) -> str:
    """The types of an op's results."""
    return types[0] if len(types) == 1 else f"({', '.join(types)})"


class Site(Protocol):
    """What a kernel stands for, as an entry sees it: the spec of an attention or of another kind of site."""

    @property
    def operand_shapes(self) -> Sequence[tuple[Dim, ...]]: ...

    @property
    def operand_dtypes(self) -> Sequence[str]: ...

    @property
    def results(self) -> Sequence[tuple[tuple[Dim, ...], str]]: ...

    def operand_names(self, tensor: str) -> list[str]: ...


class KernelEntry:
    """Writes the function `name`, from a site's operands to its results. `t` takes the operations, and `dims` names the sizes
    of symbolic dims that were measured."""

    def __init__(self, site: Site, name: str) -> None:
        self.site, self.name, self.t = site, name, Text()
        self.names = [f"%{operand}" for operand in site.operand_names("mask")]
        operands = zip(site.operand_shapes, site.operand_dtypes, strict=True)
        self.types = [tensor_type(shape, element_type(dtype)) for shape, dtype in operands]
        self.dims: dict[str, str] = {}

    def measure(self, symbol: str, value: str = "") -> None:
        """Reads a symbol's size off the first operand that has it, into `value`, or a value that gets a name here."""
        shapes = self.site.operand_shapes
        operand = next(i for i, shape in enumerate(shapes) if symbol in shape)
        axis = self.t.index(shapes[operand].index(symbol))
        operation = f"tensor.dim {self.names[operand]}, {axis} : {self.types[operand]}"
        if value:
            self.t.do(f"{value} = {operation}")
        self.dims[symbol] = value or self.t.let(operation)

    def count_rows(self, lead: Sequence[Dim]) -> str:
        """The value of the product of the dims before the last, whose symbols are measured first. `dims` has it as ROWS."""
        for symbol in dict.fromkeys(d for d in lead if isinstance(d, str)):
            self.measure(symbol)
        rows = self.t.index(1)
        for d in lead:
            rows = self.t.arith("muli", rows, self.t.index(d) if isinstance(d, int) else self.dims[d])
        self.dims[ROWS] = rows
        return rows

    def typed(self, shape: Sequence[Dim], element: str) -> str:
        """A tensor type with its dynamic dims."""
        return f"{tensor_type(shape, element)}{tied_dims(shape, self.dims)}"

    def reshape(self, value: str, old: Sequence[Dim], new: Sequence[Dim], element: str) -> str:
        """The tensor with another shape of as many elements."""
        if tuple(old) == tuple(new):
            return value
        return self.t.let(f"flow.tensor.reshape {value} : {self.typed(old, element)} -> {self.typed(new, element)}")

    def pass_operands(
        self, own: Sequence[Sequence[Dim]], wanted: Sequence[Sequence[Dim]], elements: Sequence[str]
    ) -> list[str]:
        """The operands as dispatches take them: bitcast to `elements` in their `own` shapes, then reshaped to the `wanted` ones."""
        values = []
        for value, type_, shape, want, element in zip(self.names, self.types, own, wanted, elements, strict=True):
            if tensor_type(shape, element) != type_:
                tied = tied_dims(shape, self.dims)
                seen = self.typed(shape, element)
                value = self.t.let(f"flow.tensor.bitcast {value} : {type_}{tied} -> {seen}")
            values.append(self.reshape(value, shape, want, element))
        return values

    def lines(self, results: Sequence[str]) -> list[str]:
        """The function, which returns `results`, of the site's own shapes."""
        types = [tensor_type(shape, dtype) for shape, dtype in self.site.results]
        arguments = ", ".join(f"{name}: {type_}" for name, type_ in zip(self.names, self.types, strict=True))
        return [
            f"util.func private @{self.name}({arguments}) -> {listed_types(types)} {{",
            *self.t.render(),
            f"util.return {', '.join(results)} : {', '.join(types)}",
            "}",
        ]

"""Values and types of MLIR under construction: builtin tensors beside the torch dialect's, and calls of functions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from onnx_fa.errors import MissingDependencyError
from onnx_fa.kernels.mlir.text import element_type
from onnx_fa.spec.terms import Dim

try:
    from iree.compiler import ir as mlir
except ImportError as _error:
    raise MissingDependencyError("the MLIR importer is not installed: pip install iree-base-compiler") from _error


def dims_of(type_: Any) -> tuple[Dim, ...]:
    """The dims of a builtin tensor, a symbol for each that is not known, by its place."""
    return tuple(f"d{i}" if type_.is_dynamic_dim(i) else type_.get_dim_size(i) for i in range(type_.rank))


def size_of(dims: Sequence[Dim]) -> int | None:
    """The number of elements; None where a dim is not known."""
    sizes = [d for d in dims if isinstance(d, int)]
    return math.prod(sizes) if len(sizes) == len(dims) else None


def call_function(name: str, operands: Sequence[Any], results: Sequence[Any]) -> Sequence[Any]:
    """What the function of that name returns, of the types `results`."""
    callee = {"callee": mlir.FlatSymbolRefAttr.get(name)}
    made: Sequence[Any] = mlir.Operation.create(
        "util.call", results=list(results), operands=list(operands), attributes=callee
    ).results
    return made


def make_op(name: str, operand: Any, result: Any) -> Any:
    """The result of an operation of one operand."""
    return mlir.Operation.create(name, results=[result], operands=[operand]).result


def to_builtin(value: Any, type_: Any) -> Any:
    """A tensor of the torch dialect as a builtin one of that type."""
    return make_op("torch_c.to_builtin_tensor", value, type_)


def cast_to(value: Any, want: Any) -> Any:
    """The tensor in a type that says more of its sizes, or less."""
    return value if value.type == want else make_op("tensor.cast", value, want)


def tensor_of(shape: tuple[int | str, ...], dtype: str) -> Any:
    """The type of a tensor; symbols are sizes that are not known."""
    dims = "".join(f"{d if isinstance(d, int) else '?'}x" for d in shape)
    return mlir.Type.parse(f"tensor<{dims}{element_type(dtype)}>")


def element_of(torch_type: Any) -> str:
    """The builtin element type for a `!torch.vtensor<[1,?],si8>`: integers have no sign there."""
    element = str(torch_type).rpartition(",")[2].removesuffix(">")
    return element.removeprefix("s").removeprefix("u") if element[:2] in ("si", "ui") else element


def builtin_of(torch_type: Any, element: str) -> Any:
    """The builtin tensor type for a `!torch.vtensor<[1,?],f32>`."""
    dims = str(torch_type).partition("[")[2].partition("]")[0]
    return mlir.Type.parse("tensor<" + "".join(f"{d}x" for d in dims.split(",") if d) + element + ">")

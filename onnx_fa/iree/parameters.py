"""How weights stand in a module: as parameters, which are globals that the runtime fills, or as constants of the program."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from onnx_fa.errors import MissingDependencyError, ModelError
from onnx_fa.iree.weights import Externalize, Parameter, may_be_parameter

try:
    from iree.compiler import ir as mlir
    from iree.compiler.dialects import util
except ImportError as _error:
    raise MissingDependencyError("the MLIR importer is not installed: pip install iree-base-compiler") from _error

NIBBLES = (onnx.TensorProto.INT4, onnx.TensorProto.UINT4)


def _hidden(value: Any) -> Any:
    """A tensor that the compiler does not see through."""
    return mlir.Operation.create("util.optimization_barrier", results=[value.type], operands=[value]).result


class WeightImporter:
    """Makes a value of each weight of one module. `parameters` are those that an archive must hold, in the program's order."""

    def __init__(
        self, function: Any, cache: Any, held: Mapping[str, ir.TensorProtocol], externalize: Externalize | None
    ) -> None:
        """`function` is the op that the program becomes, `cache` the stock importer's types, `held` the weights whose data are not
        in the graph. Without `externalize` all are constants."""
        self._function, self._cache, self._held, self._externalize = function, cache, held, externalize
        self.parameters: list[Parameter] = []
        self.branches = False
        """Whether functions that are called choose between dispatches when they run."""
        self.filled: dict[str, int | float] = {}
        """The number of each constant vector of one number throughout, where there are branches."""
        self._kept: dict[str, str] = {}
        """The globals of those that kernels read."""
        self.computed: frozenset[str] = frozenset()
        """Values of constants alone, where the compiler cannot compute what a kernel makes of them."""
        self._keys: set[str] = set()

    def load(self, weight: onnx.TensorProto, name: str, block: Any) -> Any | None:
        """The value of an initializer or Constant node in `block`; None where the stock importer can make it."""
        tensor = self._held.get(name)
        options = self._externalize
        count = tensor.size if tensor is not None else _elements(weight)
        if options is not None and count >= options.min_elements and may_be_parameter(weight):
            key = self._unused(name)
            self.parameters.append(Parameter(key, ir.serde.deserialize_tensor(weight) if tensor is None else tensor))
            return self._global(key, name, tuple(weight.dims), weight.data_type, block)
        if tensor is None and weight.data_type in NIBBLES:
            tensor = ir.serde.deserialize_tensor(weight)
        if self.branches and len(weight.dims) == 1:
            numbers = (tensor or ir.serde.deserialize_tensor(weight)).numpy()
            if numbers.size and (numbers == numbers[0]).all():
                self.filled[name] = numbers[0].item()
        return None if tensor is None else self._constant(weight, name, tensor, block)

    def keep(self, name: str, value: Any) -> Any:
        """The builtin tensor of a weight. A filled vector is a global that the compiler does not see through: where dispatches read
        two of them before a branch and behind it, it would fill the second one in between, where it cannot (filled_twice.mlir). A
        barrier would hide it as well, and divide what the run submits at once."""
        number = self.filled.get(name)
        if number is None:
            return value
        if not math.isfinite(number):
            return _hidden(value)
        if name not in self._kept:
            self._kept[name] = str(mlir.StringAttr.get(f"filled {len(self._kept)}"))
            made = mlir.Operation.parse(
                f"util.global private @{self._kept[name]} <{{inlining_policy = #util.inline.never}}> = "
                f"dense<{number!r}> : {value.type}"
            )
            mlir.InsertionPoint(self._function).insert(made)
        return util.GlobalLoadOp(value.type, mlir.StringAttr.parse(self._kept[name]).value).result

    def keep_for_run(self, names: Sequence[str], values: Sequence[Any]) -> list[Any]:
        """What a kernel reads. Where all of that are constants, as of the queries that a detector has learned, the first one is
        hidden: the compiler would compute the result itself, on a CPU, and dies of a GPU's kernel."""
        first, *others = values
        return [_hidden(first) if self.computed.issuperset(filter(None, names)) else first, *others]

    def load_input(self, info: onnx.ValueInfoProto, block: Any) -> Any:
        """The value of an input that is a parameter. Raises ModelError where a dim of it has no size."""
        dims = [d.dim_value if d.HasField("dim_value") else None for d in info.type.tensor_type.shape.dim]
        if None in dims:
            raise ModelError(f"input {info.name!r}: a parameter must have static dims: give its symbolic ones a size")
        return self._global(self._unused(info.name), info.name, tuple(dims), info.type.tensor_type.elem_type, block)

    def _global(self, key: str, name: str, dims: tuple[int | None, ...], kind: int, block: Any) -> Any:
        assert self._externalize is not None
        element = self._cache.tensor_element_type(kind)
        shape = "".join(f"{d}x" for d in dims)
        with self._function.context, mlir.Location.name(name):
            type_ = mlir.Type.parse(f"tensor<{shape}{_signless(element)}>")
            quoted = [str(mlir.StringAttr.get(text)) for text in (f"parameter {key}", self._externalize.scope, key)]
            made = mlir.Operation.parse(
                f"util.global private @{quoted[0]} = #stream.parameter.named<{quoted[1]}::{quoted[2]}> : {type_}"
            )
            mlir.InsertionPoint(self._function).insert(made)
            with mlir.InsertionPoint(block):
                loaded = util.GlobalLoadOp(type_, f"parameter {key}").result
                seen = self._cache.get_vtensor_type(dims, element)
                return mlir.Operation.create("torch_c.from_builtin_tensor", results=[seen], operands=[loaded]).result

    def _constant(self, weight: onnx.TensorProto, name: str, tensor: ir.TensorProtocol, block: Any) -> Any:
        """As the stock importer writes a tensor with raw data, but for those of 4 bits."""
        with self._function.context, mlir.InsertionPoint(block), mlir.Location.name(name):
            resource = mlir.DenseResourceElementsAttr.get_from_buffer(
                _elements_as_bytes(tensor) if weight.data_type in NIBBLES else tensor.tobytes(),
                self._cache._sanitize_name(name),
                self._cache.tensor_proto_to_builtin_type(weight),
                alignment=8,
            )
            attributes = {"name": mlir.StringAttr.get("onnx.Constant"), "torch.onnx.value": resource}
            types = [self._cache.tensor_proto_to_type(weight)]
            return mlir.Operation.create("torch.operator", results=types, attributes=attributes).result

    def _unused(self, name: str) -> str:
        """The key of a parameter: iree-import-onnx's, which has no colons."""
        plain = name.replace(":", "_") or "unnamed"
        key, n = plain, 0
        while key in self._keys:
            key, n = f"{plain}_{n}", n + 1
        self._keys.add(key)
        return key


def _elements_as_bytes(tensor: ir.TensorProtocol) -> bytes:
    """MLIR's constants hold an element of 4 bits in a byte of its own, whose upper half is 0. The stock importer hands on the bytes
    of ONNX, with two elements each, and what is compiled is wrong, or iree-compile reads past their end."""
    return (tensor.numpy().astype(np.int8).view(np.uint8) & 0xF).tobytes()


def _elements(weight: onnx.TensorProto) -> int:
    count = 1
    for dim in weight.dims:
        count *= dim
    return count


def _signless(element: Any) -> Any:
    """Builtin tensors have integers without a sign, torch's with."""
    return mlir.IntegerType.get_signless(element.width) if isinstance(element, mlir.IntegerType) else element

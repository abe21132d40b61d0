"""Weights on their way to the compiler: they pass through neither text nor protobuf, however many there are.

What is imported is the graph with large weights as names alone. Each then becomes a parameter, which the module asks for by scope
and name when it is loaded, and its bytes go from the model's file to an archive (.irpa); or a constant of the program.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import onnx
import onnx_ir as ir

from onnx_fa.errors import MissingDependencyError
from onnx_fa.files import staged_file
from onnx_fa.iree.archives import SCOPE

ARCHIVE_BYTES = 64 << 20
"""A model of larger weights keeps them in an archive."""
HELD_BYTES = 1 << 10
"""Initializers above this size are not looked at on the way; shapes, axes and the like are smaller."""
_KEPT = (ir.DataType.BOOL, ir.DataType.STRING, ir.DataType.UNDEFINED)
"""Types of initializers that stay in the graph: no archive holds them as they lie in the model."""


@dataclass(frozen=True)
class Externalize:
    """Which weights become parameters, and how they are called. The fields are options of iree-import-onnx."""

    scope: str = SCOPE
    min_elements: int = 100
    """Initializers with fewer elements are constants."""
    first_input: int | None = None
    """The inputs from this one on (from 0) are parameters as well; no archive of ours has them."""


@dataclass(frozen=True)
class Parameter:
    """One entry of an archive."""

    key: str
    tensor: ir.TensorProtocol


FOR_COMPILE = Externalize(min_elements=1 << 14)
"""What `compile` keeps in an archive: smaller weights are constants, which the compiler may compute with."""


def weight_bytes(model: ir.Model) -> int:
    """What the initializers of the main graph take, in bytes."""
    return sum(v.const_value.nbytes for v in model.graph.initializers.values() if v.const_value is not None)


def hold_weights(model: ir.Model) -> tuple[onnx.ModelProto, dict[str, ir.TensorProtocol]]:
    """The model as a proto whose large weights have a name, a type and a shape alone, and those weights by name.

    The proto's tensors say that their data lie elsewhere, without a place. Weights of subgraphs are in it. The model is as before.
    """
    held: dict[str, ir.TensorProtocol] = {}
    changed: list[tuple[ir.Value, ir.TensorProtocol]] = []
    for graph in model.graphs():
        for value in graph.initializers.values():
            tensor = value.const_value
            if tensor is None:
                continue
            if graph is model.graph and tensor.nbytes > HELD_BYTES and tensor.dtype not in _KEPT:
                held[str(value.name)] = tensor
                stub: ir.TensorProtocol = _without_data(tensor, str(value.name))
            elif isinstance(tensor, ir.ExternalTensor):
                stub = ir.tensor(tensor.numpy().copy(), dtype=tensor.dtype, name=tensor.name)
            else:
                continue
            changed.append((value, tensor))
            value.const_value = stub
    try:
        return ir.to_proto(model), held
    finally:
        for value, tensor in changed:
            value.const_value = tensor


def _without_data(tensor: ir.TensorProtocol, name: str) -> ir.TensorProtocol:
    return ir.ExternalTensor("", None, None, tensor.dtype, shape=ir.Shape(tensor.shape.numpy()), name=name)


def may_be_parameter(tensor: onnx.TensorProto) -> bool:
    """Whether an archive can hold an initializer of this type."""
    return ir.DataType(tensor.data_type) not in _KEPT


def write_archive(parameters: Sequence[Parameter], path: Path) -> None:
    """Writes the parameters to `path` (.irpa), whole or not at all, a tensor at a time.

    Bytes of external tensors go from file to file. Raises OnnxFaError where the place cannot be written.
    """
    try:
        import iree.runtime as rt
    except ImportError as e:
        raise MissingDependencyError("the IREE runtime is not installed: pip install iree-base-runtime") from e
    with staged_file(path) as staged, contextlib.ExitStack() as stack:
        inside = staged.with_name("inside")
        places = _places(parameters, inside)
        handles = {}
        for file in {place.file for place in places}:
            descriptor = os.open(file, os.O_RDONLY)
            stack.callback(os.close, descriptor)
            handles[file] = rt.FileHandle.wrap_fd(descriptor)
        index = rt.ParameterIndex()
        for parameter, place in zip(parameters, places, strict=True):
            index.add_from_file_handle(parameter.key, handles[place.file], place.length, place.offset)
        staged.touch()  # with the modes that the user's files have: the runtime would give it others
        index.create_archive_file(str(staged))
        del index, handles


@dataclass(frozen=True)
class _Place:
    file: Path
    offset: int
    length: int


def _places(parameters: Sequence[Parameter], inside: Path) -> list[_Place]:
    """Where the bytes of each parameter lie: in a file beside the model, else in `inside`, to which this writes them."""
    places, at = [], 0
    with inside.open("wb") as file:
        for parameter in parameters:
            tensor = parameter.tensor
            if isinstance(tensor, ir.ExternalTensor):
                places.append(_Place(Path(tensor.path), tensor.offset or 0, tensor.nbytes))
                continue
            file.write(tensor.tobytes())
            places.append(_Place(inside, at, tensor.nbytes))
            at += tensor.nbytes
    return places

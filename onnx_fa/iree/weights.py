"""Weights on their way to the compiler: they pass through neither text nor protobuf, however many there are.

What is imported is the graph with large weights as names alone. Each then becomes a parameter, which the module asks for by scope
and name when it is loaded, and its bytes go from the model's file to an archive (.irpa); or a constant of the program.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import onnx
import onnx_ir as ir

from onnx_fa.errors import ModelError
from onnx_fa.files import staged_file
from onnx_fa.iree.archive_format import lay_out
from onnx_fa.iree.archives import SCOPE

ARCHIVE_BYTES = 64 << 20
"""A model of larger weights keeps them in an archive."""
HELD_BYTES = 1 << 10
"""Initializers above this size are not looked at on the way; shapes, axes and the like are smaller."""
_BLOCK = 16 << 20
"""Bytes that are copied at once."""
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
    with staged_file(path) as staged, staged.open("wb") as file:
        begin_archive(parameters, (), file)


def begin_archive(
    parameters: Sequence[Parameter], reserved: Sequence[tuple[str, int]], file: BinaryIO
) -> tuple[int, ...]:
    """Writes an archive of the parameters, with room for further entries of these names and lengths: where each entry begins."""
    layout = lay_out([*((p.key, p.tensor.nbytes) for p in parameters), *reserved])
    file.write(layout.head)
    for parameter, at in zip(parameters, layout.offsets, strict=False):
        file.seek(at)
        _copy(parameter.tensor, file)
    file.truncate(layout.size)
    return layout.offsets


def _copy(tensor: ir.TensorProtocol, to: BinaryIO) -> None:
    """Writes what an archive holds of a tensor."""
    if not isinstance(tensor, ir.ExternalTensor):
        to.write(tensor.tobytes())
        return
    left = tensor.nbytes
    with open(tensor.path, "rb") as file:
        file.seek(tensor.offset or 0)
        while left:
            block = file.read(min(left, _BLOCK))
            if not block:
                raise ModelError(f"{tensor.path}: ends before the data of {tensor.name!r}")
            to.write(block)
            left -= len(block)


def take_inputs(graph: Any, externalize: Externalize | None) -> dict[str, onnx.ValueInfoProto]:
    """Takes the inputs that are parameters from the function's arguments. Raises ModelError where there are not so many."""
    if externalize is None or externalize.first_input is None:
        return {}
    names = list(graph.input_map)
    if not 0 <= externalize.first_input < len(names):
        raise ModelError(
            f"input {externalize.first_input} cannot be a parameter: the model has {len(names)}, from 0 on"
        )
    taken = {name: graph.input_map[name] for name in names[externalize.first_input :]}
    graph.input_map = {name: graph.input_map[name] for name in names[: externalize.first_input]}
    return taken

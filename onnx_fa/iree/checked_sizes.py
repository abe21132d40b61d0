"""Sizes that a program compares before it reads, as the text for iree-compile says it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from onnx_fa.errors import MissingDependencyError

try:
    from iree.compiler import ir as mlir
except ImportError as _error:
    raise MissingDependencyError("the MLIR importer is not installed: pip install iree-base-compiler") from _error


def check_sizes(tensors: Sequence[Any], axes: Sequence[int], otherwise: str) -> None:
    """Two builtin tensors are as long as each other along an axis each, or the program stops and says `otherwise`."""
    index = mlir.IndexType.get()
    sizes = []
    for tensor, axis in zip(tensors, axes, strict=True):
        place = {"value": mlir.IntegerAttr.get(index, axis)}
        at = mlir.Operation.create("arith.constant", results=[index], attributes=place).result
        sizes.append(mlir.Operation.create("tensor.dim", results=[index], operands=[tensor, at]).result)
    equal = {"predicate": mlir.IntegerAttr.get(mlir.IntegerType.get_signless(64), 0)}
    bit = mlir.IntegerType.get_signless(1)
    same = mlir.Operation.create("arith.cmpi", results=[bit], operands=sizes, attributes=equal).result
    mlir.Operation.create("cf.assert", operands=[same], attributes={"msg": mlir.StringAttr.get(otherwise)})

"""Operands brought into the canonical order of axes before a kernel, and its output back behind it: what kernels spare, which read
any order in place."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

from onnx_fa.errors import UnsupportedError
from onnx_fa.kernels.mlir.entry import KernelEntry
from onnx_fa.kernels.mlir.kernel import Kernel
from onnx_fa.kernels.mlir.text import element_type, tensor_type
from onnx_fa.spec.attention import AttentionSpec
from onnx_fa.spec.target import Target
from onnx_fa.spec.terms import Dim


def in_order(spec: AttentionSpec) -> AttentionSpec:
    """The same attention of operands that lie as (*B, H, S, D)."""
    return dataclasses.replace(spec, q_layout=(), k_layout=(), v_layout=(), o_layout=())


def transpose_around(
    spec: AttentionSpec, target: Target, name: str, emit: Callable[[AttentionSpec, Target, str], Kernel]
) -> Kernel:
    """The kernel of one site that `emit` makes for operands in order, with transposes before and after. Raises UnsupportedError
    for K and V as integers or gathered from a pool, whose scales and rows have the order of their operands, for row statistics, and
    what `emit` raises."""
    if spec != spec.plain or spec.stats:
        raise UnsupportedError(
            "only numbers are transposed first: not integers, not rows of a pool, not for row statistics"
        )
    inner = emit(in_order(spec), target, f"{name}_in_order")
    entry = KernelEntry(spec, name)
    for symbol in spec.symbols:
        entry.measure(symbol)
    values = list(entry.names)
    for i, layout in enumerate((spec.q_layout, spec.k_layout, spec.v_layout)):
        order = [layout.index(axis) for axis in range(spec.rank)]
        values[i] = _transposed(entry, values[i], spec.operand_shapes[i], order, spec.dtype)
    operands = zip(inner.spec.operand_shapes, inner.spec.operand_dtypes, strict=True)
    types = ", ".join(tensor_type(shape, element_type(dtype)) for shape, dtype in operands)
    made = entry.t.let(
        f"util.call @{inner.name}({', '.join(values)}) : ({types}) -> {tensor_type(inner.spec.out_shape, spec.dtype)}"
    )
    result = _transposed(entry, made, inner.spec.out_shape, spec.o_layout, spec.dtype)
    text = inner.text + "\n".join(entry.lines([result])) + "\n"
    return dataclasses.replace(inner, name=name, text=text, spec=spec, into=None)


def _transposed(entry: KernelEntry, value: str, shape: Sequence[Dim], order: Sequence[int], dtype: str) -> str:
    """The tensor whose axis i is axis order[i] of `value`, itself where that is the same."""
    if list(order) == list(range(len(shape))):
        return value
    t, to = entry.t, [shape[axis] for axis in order]
    dims = ", ".join(entry.dims[d] for d in to if isinstance(d, str))
    type_ = tensor_type(to, dtype)
    empty = t.let(f"tensor.empty({dims}) : {type_}")
    return t.let(
        f"linalg.transpose ins({value} : {tensor_type(shape, dtype)}) outs({empty} : {type_}) permutation = {list(order)}"
    )

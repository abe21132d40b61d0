"""A tensor that the compiler does not see through, as the program says it: what computes it joins no dispatch of what reads it."""

from __future__ import annotations

from collections.abc import Sequence

from onnx_fa.graph.site_op import DOMAIN
from onnx_fa.kernels.mlir.text import tensor_type
from onnx_fa.spec.terms import Dim

_NAME = f"{DOMAIN}_apart"


def apart_name(dims: Sequence[Dim], element: str) -> str:
    """The name of the function for tensors of these dims; `element` is MLIR's name of the element type."""
    return "_".join([_NAME, *(str(d) if isinstance(d, int) else "n" for d in dims), element])


def apart_text(dims: Sequence[Dim], element: str) -> str:
    """A function x: (*dims) -> the same tensor. Free dims are told anew: they are not seen through either."""
    type_ = tensor_type(tuple(dims), element)
    free = [i for i, d in enumerate(dims) if not isinstance(d, int)]
    lines = [f"%i{i} = arith.constant {i} : index" for i in free]
    lines += [f"%d{i} = tensor.dim %x, %i{i} : {type_}" for i in free]
    lines.append(f"%hidden = util.optimization_barrier %x : {type_}")
    result = "%hidden"
    if free:
        result = "%told"
        lines.append(f"%told = flow.tensor.tie_shape %hidden : {type_}{{{', '.join(f'%d{i}' for i in free)}}}")
    lines.append(f"util.return {result} : {type_}")
    body = "\n".join(f"  {line}" for line in lines)
    return f"util.func private @{apart_name(dims, element)}(%x: {type_}) -> {type_} {{\n{body}\n}}\n"

"""Kernels that a node of this project's domain stands for, by what it is and the types of its operands."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import onnx

from onnx_fa.graph.ops import op_of
from onnx_fa.iree.legalise.indexed_products import INDEXED_PRODUCT, indexed_product_of
from onnx_fa.iree.legalise.joined_products import JOINED_PRODUCT, joined_product_of
from onnx_fa.iree.legalise.resize_planes import RESAMPLED_PLANES, resampled_planes_of
from onnx_fa.iree.legalise.rotations import ROTATED_HEADS, rotated_heads_of
from onnx_fa.iree.legalise.sequence_sites import SEQUENCE_SITE, sequence_conv_of
from onnx_fa.iree.legalise.token_sums import TOKEN_SUMS, token_sums_kernel
from onnx_fa.iree.legalise.writer import attributes_of
from onnx_fa.iree.mlir_values import dims_of
from onnx_fa.kernels.cpu.indexed_product import IndexedProduct
from onnx_fa.kernels.cpu.joined_product import JoinedProduct
from onnx_fa.kernels.cpu.resample import ResampledPlanes
from onnx_fa.kernels.cpu.rotate import RotatedHeads
from onnx_fa.kernels.cpu.sequence import SequenceConv
from onnx_fa.kernels.cpu.token_sums import TokenSums
from onnx_fa.spec.terms import Dim, FloatType

_Called = RotatedHeads | ResampledPlanes | JoinedProduct | IndexedProduct | SequenceConv | TokenSums
_SPECS: dict[str, Callable[[Sequence[tuple[Dim, ...]], Mapping[str, Any]], _Called]] = {
    ROTATED_HEADS: rotated_heads_of,
    RESAMPLED_PLANES: resampled_planes_of,
    JOINED_PRODUCT: joined_product_of,
    INDEXED_PRODUCT: indexed_product_of,
    TOKEN_SUMS: token_sums_kernel,
}


def called_kernel(node: onnx.NodeProto, types: Sequence[Any]) -> _Called | None:
    """What a node calls whose operands have these builtin types; None for one that calls none of these."""
    dims = [dims_of(type_) for type_ in types]
    if op_of(node) == SEQUENCE_SITE:
        return sequence_conv_of(dims, attributes_of(node), cast(FloatType, str(types[0].element_type)))
    made = _SPECS.get(op_of(node))
    return None if made is None else made(dims, attributes_of(node))

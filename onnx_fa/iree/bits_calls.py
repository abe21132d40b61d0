"""The functions that nodes of products with weights of a few bits call: their names, types and texts, and what is said of them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import onnx

from onnx_fa.graph.ops import op_of
from onnx_fa.iree.kernel_report import LinearReport
from onnx_fa.iree.legalise.bits_fused import ROUNDED_PRODUCT, ROUNDED_ROWS
from onnx_fa.iree.legalise.bits_product import BITS_PRODUCT
from onnx_fa.iree.legalise.writer import attributes_of
from onnx_fa.iree.mlir_values import dims_of, size_of
from onnx_fa.kernels.cpu.bits_dots import name_of_rounded, rounded_rows, rounded_texts
from onnx_fa.kernels.cpu.bits_entry import entry_name, entry_text
from onnx_fa.kernels.cpu.bits_gated import GatedBits
from onnx_fa.kernels.cpu.bits_many import origin_of, spec_of
from onnx_fa.kernels.cpu.bits_product import product_texts
from onnx_fa.kernels.cpu.bits_rounded import RoundedNorm, RoundedRows, rows_name, rows_texts
from onnx_fa.kernels.cpu.bits_spec import BitsProduct
from onnx_fa.kernels.mlir.text import tensor_type
from onnx_fa.spec.expr_json import from_json
from onnx_fa.spec.linear import LinearSpec
from onnx_fa.spec.target import Target
from onnx_fa.spec.terms import TensorArg


@dataclass(frozen=True)
class BitsCall:
    """A function, the types of its operands and results, the texts that it needs by their symbols, and the products that it stands
    for."""

    name: str
    operands: tuple[str, ...]
    results: tuple[str, ...]
    texts: dict[str, str]
    reports: tuple[LinearReport, ...] = ()


def bits_call(node: onnx.NodeProto, types: Sequence[Any], target: Target) -> BitsCall:
    """The call for a node of BITS_NODES whose operands have these builtin types."""
    op, attributes = op_of(node), attributes_of(node)
    if op == ROUNDED_ROWS:
        return _rounding_call(node, types, attributes)
    if op == BITS_PRODUCT:
        return _product_call(node, types, attributes, target)
    weights = types[3:]
    if op == ROUNDED_PRODUCT:
        product = _product_of(size_of(dims_of(types[0])[:1]), weights, attributes, rounded=True)
        return BitsCall(
            name_of_rounded(product),
            tuple(x.type for x in (*rounded_rows(product).operands, *product.weight)),
            (product.y.type,),
            rounded_texts(product, target, given=True),
            (_report(node.name, spec_of(product), product, target),),
        )
    product = _product_of(size_of(dims_of(types[0])[:1]), weights[: len(weights) // 2], attributes, rounded=True)
    made = RoundedRows(
        product.rows,
        product.N,
        attributes["made_block"],
        attributes["made_bits"],
        bool(attributes["made_zeros"]),
    )
    gated = GatedBits(product, from_json(json.loads(attributes["then"])), made)
    up = spec_of(product)
    gate = replace(up, then=gated.then, tensors=(TensorArg((*up.lead, up.N)),))
    return BitsCall(
        gated.name,
        tuple(x.type for x in gated.operands),
        tuple(y.type for y in gated.outputs),
        gated.texts(target),
        tuple(
            _report(name, spec, product, target, gated.symbol)
            for name, spec in ((node.name, gate), (attributes["up"].decode(), up))
        ),
    )


def _rounding_call(node: onnx.NodeProto, types: Sequence[Any], attributes: dict[str, Any]) -> BitsCall:
    (rows, K) = dims_of(types[0])
    assert isinstance(K, int)
    x = RoundedRows(size_of([rows]), K, attributes["block"], attributes["bits"], bool(attributes["zeros"]))
    if not attributes["norm"]:
        return BitsCall(rows_name(x), (x.x.type,), tuple(y.type for y in x.operands), rows_texts(x))
    norm = RoundedNorm(x, attributes["epsilon"], bool(attributes["skip"]), len(node.output) > len(x.operands))
    operands, outputs = (tuple(v.type for v in values) for values in (norm.operands, norm.outputs))
    return BitsCall(norm.name, operands, outputs, norm.texts())


def _product_call(node: onnx.NodeProto, types: Sequence[Any], attributes: dict[str, Any], target: Target) -> BitsCall:
    lead = dims_of(types[0])[:-1]
    product = _product_of(size_of(lead), types[1:], attributes, rounded=bool(attributes["rounded"]))
    name, spec, texts = product.name, spec_of(product), product_texts(product, target)
    x_type, y_type = product.x.type, product.y.type
    if len(lead) > 1:
        name, spec = entry_name(product, lead), replace(spec, lead=lead)
        x_type, y_type = (tensor_type((*lead, d), "f32") for d in (product.K, product.N))
        texts[name] = entry_text(product, spec)
    operands = (x_type, *(w.type for w in product.weight))
    return BitsCall(name, operands, (y_type,), texts, (_report(node.name, spec, product, target),))


def _product_of(rows: int | None, weight: Sequence[Any], attributes: dict[str, Any], *, rounded: bool) -> BitsProduct:
    """The product of so many rows and a weight whose operands have these types."""
    packed, scales, *zeros = weight
    kind = "" if not zeros else str(zeros[0].element_type)
    bits = attributes["bits"]
    return BitsProduct(
        rows,
        packed.get_dim_size(0),
        packed.get_dim_size(1) * (8 // bits),
        attributes["block"],
        bits,
        str(scales.element_type),
        "packed" if kind == "i8" else kind,
        rounded,
    )


def _report(name: str, spec: LinearSpec, product: BitsProduct, target: Target, kernel: str = "") -> LinearReport:
    return LinearReport(name, spec, kernel or product.name, origin=origin_of(product, target))

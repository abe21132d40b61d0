"""A convolution of one tap over channels that come last, as what it is: a product of its places with a weight, for processors whose
tiles make such products (linear_split.py)."""

from __future__ import annotations

import math
from dataclasses import replace

from onnx_fa.kernels.cpu.linear import body_name, emit_dispatch
from onnx_fa.kernels.cpu.row_dispatch import call_changing, joined
from onnx_fa.kernels.cpu.window_body import operands_of, y_of
from onnx_fa.kernels.mlir.operand import ROWS, Operand
from onnx_fa.kernels.mlir.text import Text
from onnx_fa.spec.linear import LinearSpec
from onnx_fa.spec.target import Target
from onnx_fa.spec.windows import WindowSpec


def product_of(spec: WindowSpec, target: Target) -> LinearSpec | None:
    """The product that a convolution is, if tiles of f32 are to make it; its weight is in the same panels."""
    one_tap = math.prod(spec.kernel) * math.prod(spec.strides) == 1 and not any(spec.pads)
    rows_of_places = spec.x_last and spec.last and spec.groups == spec.blocks == 1 and not spec.depthwise
    if not one_tap or not rows_of_places or spec.panel != 2 * target.lanes:
        return None
    product = replace(spec.product, panel=spec.panel)
    return product if body_name(product, target) == "linear_split" else None


def emit_product(spec: WindowSpec, product: LinearSpec, target: Target, symbol: str) -> dict[str, str]:
    """The executable `symbol`, the function of the convolution's name, which has its operands, and what they need."""
    made, t = emit_dispatch(product, target, symbol), Text()
    dims = {}
    if spec.parts is None:
        t.do(f"%parts = tensor.dim %x, {t.index(0)} : {operands_of(spec)[0].type}")
        t.do(f"%{ROWS} = arith.muli %parts, {t.index(spec.rows)} : index")
        dims = {ROWS: "%parts"}
    own, y = operands_of(spec), y_of(spec)
    values = [_reshaped(t, a, b, dims) for a, b in zip(own, made.operands, strict=True)]
    (product_y,) = call_changing(t, symbol, made.operands, values, made.outputs, made.kept)
    (output,) = made.outputs
    sizes = _sizes(y, dims)
    result = t.let(f"flow.tensor.reshape {product_y} : {output.sized_type} -> {y.type}{sizes}")
    arguments = ", ".join(f"{x.name}: {x.type}" for x in own)
    function = [
        f"util.func private @{spec.name}({arguments}) -> {y.type} {{",
        *t.render(),
        f"util.return {result} : {y.type}",
        "}",
    ]
    return {**made.texts, spec.name: joined(function)}


def _reshaped(t: Text, own: Operand, wanted: Operand, dims: dict[str, str]) -> str:
    """An operand of the convolution as the product has it."""
    if own.shape == wanted.shape:
        return own.name
    return t.let(f"flow.tensor.reshape {own.name} : {own.type}{_sizes(own, dims)} -> {wanted.sized_type}")


def _sizes(x: Operand, dims: dict[str, str]) -> str:
    """What follows a type whose free dims have other names here than the operand has for them."""
    free = [dims[d] for d in x.symbols]
    return f"{{{', '.join(free)}}}" if free else ""

"""The product with a weight of a few bits of an x of several leading dims: they become one for the kernel, and its result's rows
become them again.
"""

from __future__ import annotations

from collections.abc import Sequence

from onnx_fa.kernels.cpu.bits_spec import BitsProduct
from onnx_fa.kernels.cpu.row_dispatch import joined
from onnx_fa.kernels.mlir.entry import tied_dims
from onnx_fa.kernels.mlir.text import Text, tensor_type
from onnx_fa.spec.terms import Dim


def entry_name(product: BitsProduct, lead: Sequence[Dim]) -> str:
    return f"{product.name}_of_{'x'.join(str(d) if isinstance(d, int) else 'n' for d in lead)}"


def entry_text(product: BitsProduct, lead: Sequence[Dim]) -> str:
    """The function of that name: x (*lead, K) and the weight's operands to (*lead, N). No symbol of `lead` stands twice, and
    the rows of the product are free where one stands there."""
    t = Text()
    x, y = (*lead, product.K), (*lead, product.N)
    dims = {
        d: t.let(f"tensor.dim %x, {t.index(i)} : {tensor_type(x, 'f32')}")
        for i, d in enumerate(lead)
        if isinstance(d, str)
    }
    rows = t.index(1)
    for d in lead:
        rows = t.arith("muli", rows, t.index(d) if isinstance(d, int) else dims[d])
    tied = f"{{{rows}}}" if dims else ""
    flat = [f"{operand.type}{tied}" for operand in (product.x, product.y)]
    own = [f"{tensor_type(shape, 'f32')}{tied_dims(shape, dims)}" for shape in (x, y)]
    given = t.let(f"flow.tensor.reshape %x : {own[0]} -> {flat[0]}")
    weight = product.weight
    operands = ", ".join([given, *(w.name for w in weight)])
    types = ", ".join([product.x.type, *(w.type for w in weight)])
    made = t.let(f"util.call @{product.name}({operands}) : ({types}) -> {product.y.type}")
    result = t.let(f"flow.tensor.reshape {made} : {flat[1]} -> {own[1]}")
    arguments = ", ".join([f"%x: {tensor_type(x, 'f32')}", *(f"{w.name}: {w.type}" for w in weight)])
    head = f"util.func private @{entry_name(product, lead)}({arguments}) -> {tensor_type(y, 'f32')} {{"
    return joined([head, *t.render(), f"util.return {result} : {tensor_type(y, 'f32')}", "}"])

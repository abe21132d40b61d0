"""The product with a weight of a few bits of an x of several leading dims: they become one for the kernel, and its result's rows
become them again.
"""

from __future__ import annotations

from collections.abc import Sequence

from onnx_fa.kernels.cpu.bits_spec import BitsProduct
from onnx_fa.kernels.cpu.row_dispatch import joined
from onnx_fa.kernels.mlir.entry import KernelEntry
from onnx_fa.spec.linear import LinearSpec
from onnx_fa.spec.terms import Dim


def entry_name(product: BitsProduct, lead: Sequence[Dim]) -> str:
    return f"{product.name}_of_{'x'.join(str(d) if isinstance(d, int) else 'n' for d in lead)}"


def entry_text(product: BitsProduct, spec: LinearSpec) -> str:
    """The function of that name for the product's site, whose `lead` the kernel has as one dim: x (*lead, K) and the weight's
    operands to (*lead, N)."""
    entry = KernelEntry(spec, entry_name(product, spec.lead))
    if product.rows is None:
        entry.count_rows(spec.lead)
    x, *weight = entry.names
    flat = entry.reshape(x, (*spec.lead, spec.K), product.x.shape, product.x.element)
    operands, types = ", ".join([flat, *weight]), ", ".join(operand.type for operand in product.operands)
    made = entry.t.let(f"util.call @{product.name}({operands}) : ({types}) -> {product.y.type}")
    return joined(entry.lines([entry.reshape(made, product.y.shape, (*spec.lead, spec.N), product.y.element)]))

"""A product with a weight of a few bits as one node, which becomes a call of a kernel for CPUs (kernels/cpu/bits_product.py)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from onnx import TensorProto, helper

from onnx_fa.graph.site_op import DOMAIN
from onnx_fa.iree.legalise.writer import FLOATS, GraphWriter
from onnx_fa.kernels.cpu.bits_product import can_multiply
from onnx_fa.kernels.cpu.bits_spec import BitsProduct

BITS_PRODUCT = f"{DOMAIN}.BitsProduct"
"""Inputs as the operands of a BitsProduct; attributes `block`, `bits` and `rounded`."""


@dataclass(frozen=True)
class Weight:
    """A weight of N rows of `width` numbers of so many bits, in blocks that have a scale and perhaps a zero point: names of values,
    packed (N, blocks, bytes), scales of N * blocks numbers, zeros "" or of either kind that MatMulNBits has."""

    packed: str
    scales: str
    zeros: str
    N: int
    blocks: int
    block: int
    bits: int
    may_round: bool = False
    """The model allows that what it multiplies is rounded to 8 bits."""


def takes(g: GraphWriter, x: str, N: int, K: int, block: int, bits: int) -> bool:
    """Whether a kernel takes a weight of N rows of so many bits in blocks, with scales of f32, and this x."""
    shape = g.shape(x)
    if g.cpu is None or shape is None or 0 in shape:
        return False
    return K % block == 0 and can_multiply(BitsProduct(None, N, K, block, bits, "f32"), g.cpu)


def bits_product(g: GraphWriter, x: str, shape: Sequence[int | str | None] | None, weight: Weight, hint: str) -> str:
    """The product (..., N) in f32 of x (..., K) in f32 with the weight, where K is a multiple of the block; `shape` is that of x,
    as far as it is known, None where nobody knows how many dims it has. "" where no kernel is written for it."""
    if g.cpu is None or not shape:
        return ""
    kind, zero_kind = g.kind(weight.scales), g.kind(weight.zeros)
    lead = shape[:-1]
    if 0 in lead or kind not in FLOATS:
        return ""
    # The importer makes rows of several free dims flat: a Reshape by sizes that only the run knows refuses those of 0, and
    # torch-mlir takes dims that it merges for others where K is not told.
    as_is = len(lead) > 1 and sum(not isinstance(d, int) for d in shape) > 1
    free = any(not isinstance(d, int) for d in lead)
    zeros = ""
    if weight.zeros:
        zeros = "packed" if zero_kind == TensorProto.UINT8 else FLOATS.get(zero_kind, "?")
    rows = None if free else int(np.prod([d for d in lead if isinstance(d, int)], dtype=np.int64))
    K = weight.blocks * weight.block
    plain = BitsProduct(rows, weight.N, K, weight.block, weight.bits, FLOATS[kind], zeros)
    tried = [replace(plain, rounded=True)] * weight.may_round + [plain]
    made = next((p for p in tried if zeros != "?" and can_multiply(p, g.cpu)), None)
    if made is None:
        return ""

    def reshape(value: str, *dims: int) -> str:
        return g.add("Reshape", [value, g.const(np.array(dims, np.int64), hint)], hint)

    columns = x if as_is else reshape(x, -1 if rows is None else rows, K)
    packed = reshape(weight.packed, weight.N, K // made.places)
    inputs = [columns, packed, reshape(weight.scales, weight.N, weight.blocks)]
    if zeros:
        inputs.append(reshape(weight.zeros, weight.N, -1))
    y = g.fresh(hint)
    node = helper.make_node("BitsProduct", inputs, [y], g.fresh(f"{hint}/BitsProduct"), domain=DOMAIN)
    numbers = {"block": weight.block, "bits": weight.bits, "rounded": int(made.rounded)}
    node.attribute.extend(helper.make_attribute(name, number) for name, number in numbers.items())
    g.nodes.append(node)
    made_of = [*lead, weight.N] if as_is else [rows if rows is not None else "rows", weight.N]
    g.graph.value_info.append(helper.make_tensor_value_info(y, TensorProto.FLOAT, made_of))
    return y if as_is else reshape(y, *(d if isinstance(d, int) else -1 for d in lead), weight.N)

"""Products of rows of the run with a weight of the network, as one node each, which becomes a call of a kernel for NVIDIA GPUs
(kernels/triton/linear.py). An Add of a bias behind it joins it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx
from onnx import TensorProto, helper

from onnx_fa.errors import UnsupportedError
from onnx_fa.graph.ops import op_of
from onnx_fa.graph.site_op import DOMAIN
from onnx_fa.iree.legalise.bits_product import Weight
from onnx_fa.iree.legalise.writer import FLOATS, GraphWriter, attr_of
from onnx_fa.kernels.triton.linear import emit_linear
from onnx_fa.spec.linear import Bits, LinearSpec, Zeros
from onnx_fa.spec.terms import Dim, DType

LINEAR_SITE = f"{DOMAIN}.LinearSite"
"""Inputs as the operands of a LinearSpec; attributes `transposed`, `bits`, `block` (0 for none) and `bias`."""
_LEAST = 16
"""Smaller weights are no matter of speed."""


def linear_product(g: GraphWriter, node: onnx.NodeProto) -> bool:
    """A MatMul, or a Gemm as layers have it (alpha and beta 1, rows not transposed), by a weight of two dims."""
    if g.cuda is None:
        return False
    x, w, *rest = node.input
    bias = rest[0] if rest else ""
    transposed = bool(attr_of(node, "transB", 0))
    if op_of(node) == "Gemm" and (
        attr_of(node, "transA", 0) or attr_of(node, "alpha", 1.0) != 1.0 or (bias and attr_of(node, "beta", 1.0) != 1.0)
    ):
        return False
    shape, dtype, weight = g.shape(x), FLOATS.get(g.kind(x)), g.shape(w)
    if not g.is_constant(w) or shape is None or len(shape) < 2 or dtype is None or weight is None or len(weight) != 2:
        return False
    K, N = weight[::-1] if transposed else weight
    if not isinstance(K, int) or not isinstance(N, int) or min(K, N) < _LEAST or shape[-1] != K:
        return False
    if bias and not _is_bias(g, bias, N, dtype):
        return False
    spec = LinearSpec(_lead(shape), K, N, dtype, transposed, bias=bool(bias))
    return _write(g, spec, node, [x, w, *([bias] if bias else [])], node.output[0])


def linear_bits(g: GraphWriter, node: onnx.NodeProto, x: str, weight: Weight, bias: str) -> bool:
    """A product with a weight of a few bits, which makes the node's output. False where no kernel takes it."""
    shape, dtype, scales = g.shape(x), FLOATS.get(g.kind(x)), FLOATS.get(g.kind(weight.scales))
    if g.cuda is None or shape is None or dtype is None or scales is None or shape[-1] != weight.blocks * weight.block:
        return False
    zero_kind = g.kind(weight.zeros) if weight.zeros else 0
    zeros: Zeros = "packed" if zero_kind == TensorProto.UINT8 else ""
    if weight.zeros and not zeros:
        if zero_kind not in FLOATS:
            return False
        zeros = FLOATS[zero_kind]
    if bias and not _is_bias(g, bias, weight.N, dtype):
        return False
    try:
        bits = Bits(weight.bits, weight.block, scales, zeros)
        spec = LinearSpec(_lead(shape), weight.blocks * weight.block, weight.N, dtype, True, bits, bool(bias))
    except ValueError:
        return False
    hint = node.name or node.op_type

    def reshape(value: str, *dims: int) -> str:
        return g.add("Reshape", [value, g.const(np.array(dims, np.int64), hint)], hint)

    inputs = [x, reshape(weight.packed, weight.N, spec.K // bits.places), reshape(weight.scales, weight.N, spec.blocks)]
    inputs += [*([reshape(weight.zeros, weight.N, -1)] if zeros else []), *([bias] if bias else [])]
    return _write(g, spec, node, inputs, node.output[0])


def _lead(shape: list[int | str | None]) -> tuple[Dim, ...]:
    return tuple(d if isinstance(d, int) else f"d{i}" for i, d in enumerate(shape[:-1]))


def _is_bias(g: GraphWriter, name: str, N: int, dtype: DType) -> bool:
    return g.is_constant(name) and g.shape(name) == [N] and FLOATS.get(g.kind(name)) == dtype


def _write(g: GraphWriter, spec: LinearSpec, node: onnx.NodeProto, inputs: list[str], out: str) -> bool:
    """Adds the node of a site, with the bias that an Add behind it has."""
    if 0 in spec.lead:
        return False
    add, users = None, g.users(out)
    if not spec.bias and len(users) == 1 and op_of(users[0]) == "Add":
        others = [i for i in users[0].input if i != out]
        if len(others) == 1 and _is_bias(g, others[0], spec.N, spec.dtype):
            add, spec, inputs = users[0], replace(spec, bias=True), [*inputs, others[0]]
            out = add.output[0]
    try:
        emit_linear(spec)
    except UnsupportedError:
        return False  # the compiler's own code stands for it
    made = helper.make_node(
        "LinearSite", inputs, [out], g.fresh(f"{node.name or node.op_type}/LinearSite"), domain=DOMAIN
    )
    bits = spec.bits
    numbers = {
        "transposed": int(spec.transposed),
        "bits": bits.bits if bits else 0,
        "block": bits.block if bits else 0,
        "bias": int(spec.bias),
    }
    made.attribute.extend(helper.make_attribute(name, number) for name, number in numbers.items())
    if add is None:
        g.nodes.append(made)
    else:  # in the place of the Add: the bias may be made between the two
        g.later[out] = made
    return True

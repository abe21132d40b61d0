"""MoE and QMoE of onnxruntime's own domain, in smaller operators (ContribOperators.md of onnxruntime).

Every expert sees every token, and the shares of those that a token did not choose are zero. Weights of 2, 4 and 8 bits stay packed
as those of MatMulNBits do: they become floats where they are multiplied.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import TensorProto

from onnx_fa.errors import ModelError
from onnx_fa.iree.legalise.matmul_nbits import bits_at, every_column
from onnx_fa.iree.legalise.routing import write_shares
from onnx_fa.iree.legalise.writer import GraphWriter, attr_of


@dataclass(frozen=True)
class _Layer:
    """One linear layer of all experts."""

    weight: str
    """(E, N, K), or packed (E, N, K / numbers in a byte)"""
    bias: str
    """(E, N), or "" """
    scales: str = ""
    """(E, N), or (E, N, blocks) with one for each block along K; "" where the weight is of floats"""
    zeros: str = ""
    """Packed along N, or along the blocks; "" for the middle of the range"""
    bits: int = 0


def moe(g: GraphWriter, node: onnx.NodeProto) -> bool:
    """MoE, of weights that are floats."""
    x, router, fc1, bias1, fc2, bias2, fc3, bias3 = (*node.input, *[""] * 5)[:8]
    return _write(g, node, (x, router, ""), (_Layer(fc1, bias1), _Layer(fc2, bias2)), bool(fc3 or bias3))


def quantized_moe(g: GraphWriter, node: onnx.NodeProto) -> bool:
    """QMoE, of integers. Raises ModelError for weights of small floats, for such as a GPU has packed, and for quantised inputs."""
    x, router, fc1, scale1, bias1, fc2, scale2, bias2, *more = (*node.input, *[""] * 21)[:21]
    name, kind = f"node {node.name!r}: QMoE", attr_of(node, "quant_type", b"int").decode()
    if kind != "int" or any(more[7:]):
        raise ModelError(f"{name} of {kind} is not supported: its weights are to be integers")
    if attr_of(node, "weights_prepacked", -1) == 1:
        raise ModelError(f"{name} has weights in a layout of a GPU (weights_prepacked); build the model for CPUs")
    both = attr_of(node, "expert_weight_bits", 4)
    bits = [attr_of(node, f"fc{i}_expert_weight_bits", both) for i in (1, 2)]
    if any(b not in (2, 4, 8) for b in bits):
        raise ModelError(f"{name} of {bits[0]} and {bits[1]} bits is not supported")
    layers = (_Layer(fc1, bias1, scale1, more[3], bits[0]), _Layer(fc2, bias2, scale2, more[4], bits[1]))
    return _write(g, node, (x, router, more[6]), layers, any(more[:3]))


def _write(
    g: GraphWriter, node: onnx.NodeProto, given: tuple[str, str, str], layers: tuple[_Layer, _Layer], third: bool
) -> bool:
    """`given` are the tokens, the router's logits and its weights. Raises ModelError for a third layer, for shapes that are not
    known and for an activation that has no name in the operator's description."""
    x, router, weights = given
    hint, name = node.name or node.op_type, f"node {node.name!r}: {node.op_type}"
    kind, shapes = g.kind(x), [g.shape(layer.weight) for layer in layers]
    if not kind:
        return False
    if third:
        raise ModelError(f"{name} with a third layer (fc3), which onnxruntime's CPU provider refuses, is not supported")
    dims = [d for shape in shapes for d in shape or ()]
    if len(dims) != 6 or not all(isinstance(d, int) for d in dims):
        raise ModelError(f"{name} with weights of unknown shape is not supported")
    count, rows, hidden = (int(d or 0) for d in (dims[0], dims[1], dims[4]))
    activate = _activation(g, node, hint)

    def reshape(value: str, *sizes: int, to: str | None = None) -> str:
        return g.add("Reshape", [value, g.const(np.array(sizes, np.int64), hint)], hint, out=to)

    shares = write_shares(g, node, router, weights, count, hint)
    tokens = reshape(g.cast(x, kind, TensorProto.FLOAT, hint), -1, hidden)
    first = _product(g, tokens, layers[0], (1, count * rows, hidden), hint)
    if layers[0].bias:
        bias = g.cast(layers[0].bias, g.kind(layers[0].bias), TensorProto.FLOAT, hint)
        first = g.add("Add", [first, reshape(bias, count * rows)], hint)
    inner = activate(reshape(first, -1, count, rows), rows)
    width = rows // 2 if attr_of(node, "activation_type", b"relu") == b"swiglu" else rows
    inner = g.add("Transpose", [inner], hint, perm=[1, 0, 2])
    second = _product(g, inner, layers[1], (count, hidden, width), hint)
    if layers[1].bias:
        bias = g.cast(layers[1].bias, g.kind(layers[1].bias), TensorProto.FLOAT, hint)
        second = g.add("Add", [second, reshape(bias, count, 1, hidden)], hint)
    share = g.add("Unsqueeze", [g.add("Transpose", [shares], hint, perm=[1, 0]), _axis(g, 2, hint)], hint)
    zero = g.const(np.array(0, np.float32), hint)
    # What an expert that was not chosen makes of a token may be infinite, and is not to be seen.
    seen = g.add("Where", [g.add("Greater", [share, zero], hint), g.add("Mul", [second, share], hint), zero], hint)
    total = g.add("ReduceSum", [seen, _axis(g, 0, hint)], hint, keepdims=0)
    back = g.add("Reshape", [total, g.add("Shape", [x], hint)], hint)
    g.cast(back, TensorProto.FLOAT, kind, hint, out=node.output[0])
    return True


def _axis(g: GraphWriter, number: int, hint: str) -> str:
    return g.const(np.array([number], np.int64), hint)


def _product(g: GraphWriter, a: str, layer: _Layer, sizes: tuple[int, int, int], hint: str) -> str:
    """a (T, K) or (E, T, K) times the weights (E, N, K) turned, in f32; `sizes` are E, N and K, and one matrix where E is 1."""
    matrices, rows, width = sizes
    lead = [] if matrices == 1 else [matrices]
    turned = [1, 0] if matrices == 1 else [0, 2, 1]

    def reshape(value: str, *dims: int) -> str:
        return g.add("Reshape", [value, g.const(np.array([*lead, *dims], np.int64), hint)], hint)

    if not layer.scales:
        weight = reshape(g.cast(layer.weight, g.kind(layer.weight), TensorProto.FLOAT, hint), rows, width)
        return g.add("MatMul", [a, g.add("Transpose", [weight], hint, perm=turned)], hint)
    per_byte, blocks = 8 // layer.bits, _blocks(g, layer)
    data = reshape(layer.weight, rows, blocks, width // per_byte // blocks)
    scale = reshape(g.cast(layer.scales, g.kind(layer.scales), TensorProto.FLOAT, hint), rows, blocks, 1)
    zero = _zeros(g, layer, blocks, hint)
    zero = reshape(zero, rows, blocks, 1) if layer.zeros else zero
    total = ""
    for place in range(per_byte):
        number = bits_at(g, data, place, layer.bits, hint)
        scaled = g.add("Mul", [g.add("Sub", [number, zero], hint), scale], hint)
        weight = g.add("Transpose", [reshape(scaled, rows, width // per_byte)], hint, perm=turned)
        product = g.add("MatMul", [every_column(g, a, place, per_byte, hint), weight], hint)
        total = g.add("Add", [total, product], hint) if total else product
    return total


def _blocks(g: GraphWriter, layer: _Layer) -> int:
    """How many blocks a row of the weights has, each with a scale of its own."""
    shape = g.shape(layer.scales)
    if shape is None or len(shape) not in (2, 3) or not isinstance(shape[-1], int):
        raise ModelError(f"{layer.scales}: scales of unknown shape are not supported")
    return shape[-1] if len(shape) == 3 else 1


def _zeros(g: GraphWriter, layer: _Layer, blocks: int, hint: str) -> str:
    """The zero points as floats, in the order of the scales; one number for all where none are given."""
    if not layer.zeros:
        return g.const(np.array(1 << (layer.bits - 1), np.float32), hint)
    shape, scales = g.shape(layer.zeros), g.shape(layer.scales)
    if shape is None or scales is None or not all(isinstance(d, int) for d in (*shape, *scales)):
        raise ModelError(f"{layer.zeros}: zero points of unknown shape are not supported")
    if layer.bits == 8:
        return g.cast(layer.zeros, TensorProto.UINT8, TensorProto.FLOAT, hint)
    column = g.add("Unsqueeze", [layer.zeros, _axis(g, len(shape), hint)], hint)
    places = [bits_at(g, column, place, layer.bits, hint) for place in range(8 // layer.bits)]
    numbers = g.add("Concat", places, hint, axis=len(shape))
    count = math.prod(int(d or 0) for d in shape[-1:]) * len(places)
    flat = g.add("Reshape", [numbers, g.const(np.array([*[0] * (len(shape) - 1), count], np.int64), hint)], hint)
    wanted = int(scales[-1] or 0)
    if wanted == count:
        return flat
    return g.add("Gather", [flat, g.const(np.arange(wanted), hint)], hint, axis=len(shape) - 1)


def _activation(g: GraphWriter, node: onnx.NodeProto, hint: str) -> Callable[[str, int], str]:
    """The activation of (T, E, N). Raises ModelError for one that the description does not name."""
    kind = attr_of(node, "activation_type", b"relu").decode()

    def number(value: float) -> str:
        return g.const(np.array(value, np.float32), hint)

    def gate(x: str, alpha: float) -> str:
        """x * sigmoid(alpha x)"""
        return g.add("Mul", [x, g.add("Sigmoid", [g.add("Mul", [x, number(alpha)], hint)], hint)], hint)

    def gelu(x: str, _: int) -> str:
        outer = math.sqrt(2 / math.pi)
        slope = g.add("Mul", [g.add("Mul", [x, x], hint), number(0.044715 * outer)], hint)
        inner = g.add("Tanh", [g.add("Mul", [x, g.add("Add", [slope, number(outer)], hint)], hint)], hint)
        half = g.add("Mul", [x, number(0.5)], hint)
        return g.add("Mul", [half, g.add("Add", [inner, number(1.0)], hint)], hint)

    def swiglu(x: str, rows: int) -> str:
        """G * sigmoid(alpha G) * (L + beta), of a gate G and a linear L, both clamped."""
        gated, linear = _halves(g, node, x, rows, hint)
        limit = attr_of(node, "swiglu_limit", math.inf)
        if math.isfinite(limit):
            gated = g.add("Min", [gated, number(limit)], hint)
            linear = g.add("Clip", [linear, number(-limit), number(limit)], hint)
        moved = g.add("Add", [linear, number(attr_of(node, "activation_beta", 0.0))], hint)
        return g.add("Mul", [gate(gated, attr_of(node, "activation_alpha", 1.0)), moved], hint)

    known: dict[str, Callable[[str, int], str]] = {
        "relu": lambda x, _: g.add("Relu", [x], hint),
        "gelu": gelu,
        "silu": lambda x, _: gate(x, 1.0),
        "identity": lambda x, _: x,
        "swiglu": swiglu,
    }
    if kind not in known:
        raise ModelError(f"node {node.name!r}: {node.op_type} with the activation {kind!r} is not supported")
    return known[kind]


def _halves(g: GraphWriter, node: onnx.NodeProto, x: str, rows: int, hint: str) -> tuple[str, str]:
    """The gates and the linear parts of (T, E, 2 I). Raises ModelError where they are not in one layer."""
    fusion = attr_of(node, "swiglu_fusion", 0)
    if fusion not in (1, 2):
        raise ModelError(
            f"node {node.name!r}: {node.op_type} with swiglu in two layers (swiglu_fusion 0) is not supported"
        )
    pair = [0, 0, rows // 2, 2] if fusion == 1 else [0, 0, 2, rows // 2]
    split = g.add("Reshape", [x, g.const(np.array(pair, np.int64), hint)], hint)
    gated, linear = (
        g.add("Gather", [split, g.const(np.array(i, np.int64), hint)], hint, axis=3 if fusion == 1 else 2)
        for i in (0, 1)
    )
    return gated, linear

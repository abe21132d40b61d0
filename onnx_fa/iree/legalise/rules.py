"""ONNX to ONNX, for IREE only: what it refuses, miscompiles or makes slow code of, written so that it does not."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import onnx
import onnx.inliner
import onnx_ir as ir

from onnx_fa.errors import ModelError
from onnx_fa.graph.growing import PAST_ROWS
from onnx_fa.graph.ops import CONTRIB, FUSED_MATMULS, STANDARD, op_of
from onnx_fa.graph.scaled_sizes import infer_as_run
from onnx_fa.iree.legalise import (
    activations,
    byte_ops,
    casts,
    choices,
    fused_products,
    integer_convolutions,
    norms,
    pads,
    quantized_products,
    small_ops,
    unsigned,
)
from onnx_fa.iree.legalise.affine_grid import affine_grid
from onnx_fa.iree.legalise.arg_reduce import arg_reduce
from onnx_fa.iree.legalise.bits_product import BITS_PRODUCT
from onnx_fa.iree.legalise.causal_conv import causal_conv, gated_norm, gates
from onnx_fa.iree.legalise.chance import drop_seeds
from onnx_fa.iree.legalise.channel_norm import CHANNEL_STATISTICS
from onnx_fa.iree.legalise.col2im import col2im
from onnx_fa.iree.legalise.computed_reshapes import computed_reshape
from onnx_fa.iree.legalise.conv_forms import conv
from onnx_fa.iree.legalise.conv_transpose import conv_transpose
from onnx_fa.iree.legalise.convolutions import CONV_SITE
from onnx_fa.iree.legalise.deform_conv import deform_conv
from onnx_fa.iree.legalise.dequantize import cast_nibbles, dequantize
from onnx_fa.iree.legalise.determinants import determinant
from onnx_fa.iree.legalise.double_waves import wave
from onnx_fa.iree.legalise.dropout import dropout
from onnx_fa.iree.legalise.einsums import einsum
from onnx_fa.iree.legalise.empty_gather import empty_gather
from onnx_fa.iree.legalise.expand import expand
from onnx_fa.iree.legalise.experts import moe, quantized_moe
from onnx_fa.iree.legalise.float8 import cast_float8, dequantize_float8, quantize_float8
from onnx_fa.iree.legalise.fourier import dft, stft
from onnx_fa.iree.legalise.gather_quantized import gather_block_quantized
from onnx_fa.iree.legalise.gathered_experts import gathered_product
from onnx_fa.iree.legalise.grid_sample import grid_sample
from onnx_fa.iree.legalise.group_norm import GROUP_NORM
from onnx_fa.iree.legalise.indexed_products import INDEXED_PRODUCT, indexed_product
from onnx_fa.iree.legalise.integer_weights import integer_weight_product
from onnx_fa.iree.legalise.linear_attention import LINEAR_ATTENTION_SITE, linear_attention
from onnx_fa.iree.legalise.linear_sites import LINEAR_SITE
from onnx_fa.iree.legalise.local_norm import local_norm
from onnx_fa.iree.legalise.loops import loop
from onnx_fa.iree.legalise.matmul_bnb4 import matmul_bnb4
from onnx_fa.iree.legalise.matmul_nbits import matmul_nbits
from onnx_fa.iree.legalise.max_unpool import max_unpool
from onnx_fa.iree.legalise.non_zero import non_zero
from onnx_fa.iree.legalise.past_rows import past_rows
from onnx_fa.iree.legalise.pixel_shuffle import depth_to_space, space_to_depth
from onnx_fa.iree.legalise.pools import pool
from onnx_fa.iree.legalise.powers import power
from onnx_fa.iree.legalise.quantize import quantize
from onnx_fa.iree.legalise.recurrent import recurrent
from onnx_fa.iree.legalise.recurrent_steps import RECURRENT_STEPS
from onnx_fa.iree.legalise.resize import resize
from onnx_fa.iree.legalise.resize_planes import RESAMPLED_PLANES
from onnx_fa.iree.legalise.roi_align import roi_align
from onnx_fa.iree.legalise.rotary import contrib_rotary, rotary, streams_rotary
from onnx_fa.iree.legalise.scatter import scatter
from onnx_fa.iree.legalise.sequence_conv import sequence_conv
from onnx_fa.iree.legalise.sequence_sites import SEQUENCE_SITE
from onnx_fa.iree.legalise.strided import split_columns, strided_slice
from onnx_fa.iree.legalise.suppression import non_max_suppression
from onnx_fa.iree.legalise.tensor_scatter import tensor_scatter
from onnx_fa.iree.legalise.token_sums import TOKEN_SUMS, token_sums
from onnx_fa.iree.legalise.top_k import TOP_K_SITE, top_k
from onnx_fa.iree.legalise.typed_data import write_raw, write_tensors
from onnx_fa.iree.legalise.vector_products import vector_product
from onnx_fa.iree.legalise.wide_integers import compare_wide
from onnx_fa.iree.legalise.writer import GraphWriter, Handler, all_nodes, attr_of, bodies_of, declare_own_nodes
from onnx_fa.spec.target import Target

_OWN = {BITS_PRODUCT, CONV_SITE, LINEAR_ATTENTION_SITE, LINEAR_SITE, RECURRENT_STEPS, RESAMPLED_PLANES, SEQUENCE_SITE}
_OWN |= {CHANNEL_STATISTICS, INDEXED_PRODUCT, TOKEN_SUMS, TOP_K_SITE}
"""Nodes of this project's domain that handlers write."""
EXPAND = (
    # Defined by ONNX as functions that the ONNX frontend of IREE 3.13 does not name in its library; some were compiled to see.
    "Attention",
    "CenterCropPad",
    "NegativeLogLikelihoodLoss",
    "RMSNormalization",
    "RotaryEmbedding",
    "SoftmaxCrossEntropyLoss",
    "SwiGLU",
    "Swish",
)
"""Operators that are replaced by their ONNX function body where `legalize` has no better spelling."""


def legalize(
    model: onnx.ModelProto, held: Mapping[str, ir.TensorProtocol] | None = None, *, target: Target | None = None
) -> onnx.ModelProto:
    """A model with equal results that IREE can import; the model passed is not changed.

    Model-local functions are inlined and operators that IREE refuses become smaller ones. The types of values are
    taken from `value_info`: infer shapes before. `held` are initializers whose data are not in the model.
    With a `target`, nodes of our own domain may stand for kernels of it.
    """
    out = onnx.ModelProto()
    out.CopyFrom(model)
    write_raw(out)
    write_tensors(out)
    if out.functions:
        out = onnx.inliner.inline_local_functions(out)
    drop_seeds(out)
    _rewrite(out, held or {}, target)
    ops = {op_of(n) for n in all_nodes(out.graph)}
    if ops & _OWN:
        declare_own_nodes(out)
    if ops & set(EXPAND):
        done = frozenset(name for node in all_nodes(out.graph) if op_of(node) not in EXPAND for name in node.output)
        out = _expanded(out)
        _rewrite(out, held or {}, target, done)
    return out


def _expanded(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with function bodies in the place of operators, and the types of what is in them. Raises ModelError."""
    g = GraphWriter(model)
    for node in all_nodes(model.graph):
        widths = [shape[-1] for x in node.input[:3] if (shape := g.shape(x)) is not None and len(shape) == 3]
        if op_of(node) == "Attention" and not all(isinstance(width, int) for width in widths):
            # onnx infers a width of 0 for its result.
            raise ModelError(
                f"{node.name or 'Attention'}: Q, K and V of three axes have a width that is not static (--dim)"
            )
    _write_defaults(model)
    names = [("", name) for name in EXPAND]
    try:
        out = onnx.inliner.inline_selected_functions(model, names, inline_schema_functions=True)
    except RuntimeError as e:
        ops = ", ".join(sorted({op_of(n) for n in all_nodes(model.graph)} & set(EXPAND)))
        raise ModelError(f"onnx cannot write out the function bodies of {ops}: {' '.join(str(e).split())}") from e
    return infer_as_run(out, onnx.shape_inference.infer_shapes)


def _rewrite(
    model: onnx.ModelProto,
    held: Mapping[str, ir.TensorProtocol],
    target: Target | None,
    done: frozenset[str] = frozenset(),
) -> None:
    """In place, every node but those that make values that are `done`, also in the bodies of others."""
    _rewrite_graph(GraphWriter(model, held, target=target), done)


def _rewrite_graph(g: GraphWriter, done: frozenset[str]) -> None:
    for node in g.graph.node:
        for body in bodies_of(node):
            _rewrite_graph(g.within(body), done)
        handler = None if done.intersection(node.output) else _HANDLERS.get(op_of(node))
        if handler is None or not handler(g, node):
            g.nodes.append(node)
    for node in g.nodes:
        while node.input and not node.input[-1]:  # of a Resize that leaves its last input out so IREE's compiler ends
            node.input.pop()
    g.replace_nodes(g.nodes)


def _write_defaults(model: onnx.ModelProto) -> None:
    """Gives operators that their function body is to replace the attributes that they leave out: the inliner writes none."""
    version = next((o.version for o in model.opset_import if o.domain in STANDARD), 1)
    for node in all_nodes(model.graph):
        if op_of(node) not in EXPAND:
            continue
        given = {a.name for a in node.attribute}
        for name, attribute in onnx.defs.get_schema(op_of(node), version, "").attributes.items():
            if name not in given and attribute.default_value.type:
                node.attribute.append(attribute.default_value)


def _reshape(g: GraphWriter, node: onnx.NodeProto) -> bool:
    """A Reshape to [-1, tail] that merges two or more dynamic dims.

    IREE casts all but one of them to 1 (silently wrong, or a run-time failure) unless the input ends in the same tail.
    So the static dims come first, or all of it flat where dynamic dims do not lead. A target without a 0 means the same with
    `allowzero`, which PyTorch's exporter always sets.
    """
    shape, target = g.shape(node.input[0]), g.array(node.input[1])
    if shape is None:
        return False
    if target is None:
        return computed_reshape(g, node, shape)
    want = [int(i) for i in target.ravel()]
    if 0 in want and 0 in shape and attr_of(node, "allowzero", 0) and -1 not in want:
        nothing = onnx.helper.make_tensor("value", g.kind(node.input[0]), [1], [0])
        g.add("ConstantOfShape", [g.ints(want, "none")], node.name or "Reshape", out=node.output[0], value=nothing)
        return True
    dynamic = [i for i, d in enumerate(shape) if not isinstance(d, int)]
    tail = want[1:]
    hint = node.name or "Reshape"
    # IREE takes the first dim for as large as the target's, and all of them where the target is numbers alone.
    numbers = dynamic and tail and min(want) > 0
    if numbers or (dynamic[:1] == [0] and -1 in tail and want[0] > 0 and 0 not in tail):
        g.add("Reshape", [g.reshape(node.input[0], [-1], hint), node.input[1]], hint, out=node.output[0])
        return True
    if len(dynamic) < 2 or not tail or want[0] != -1 or 0 in tail or shape[-len(tail) :] == tail:
        return False
    lead = len(dynamic)
    if dynamic == list(range(lead)) and math.prod(d for d in shape if isinstance(d, int)) == math.prod(tail):
        first = [0] * lead + tail
    else:
        first = [-1]
    middle = g.add("Reshape", [node.input[0], g.const(np.array(first, np.int64), hint)], hint)
    g.add("Reshape", [middle, node.input[1]], hint, out=node.output[0])
    return True


def _conv(g: GraphWriter, node: onnx.NodeProto) -> bool:
    return integer_convolutions.dequantized_conv(g, node) or sequence_conv(g, node) or conv(g, node)


def _cast(g: GraphWriter, node: onnx.NodeProto) -> bool:
    if node.input[0] in g.floats:
        g.add("Identity", [g.floats[node.input[0]]], node.name or "Cast", out=node.output[0])
        return True
    return cast_nibbles(g, node) or cast_float8(g, node) or casts.cast(g, node)


def _quantize(g: GraphWriter, node: onnx.NodeProto) -> bool:
    return quantize(g, node) or quantize_float8(g, node)


def _dequantize(g: GraphWriter, node: onnx.NodeProto) -> bool:
    return dequantize_float8(g, node) or dequantize(g, node)


def _div(g: GraphWriter, node: onnx.NodeProto) -> bool:
    return token_sums(g, node) or unsigned.divide_signed(g, node)


def _matmul(g: GraphWriter, node: onnx.NodeProto) -> bool:
    made = quantized_products.dequantized_product(g, node) or integer_weight_product(g, node)
    return made or gathered_product(g, node) or vector_product(g, node) or _flat_rows(g, node)


def _gemm(g: GraphWriter, node: onnx.NodeProto) -> bool:
    return quantized_products.dequantized_product(g, node) or integer_weight_product(g, node)


def _flat_rows(g: GraphWriter, node: onnx.NodeProto) -> bool:
    """A MatMul of four or more dims by a matrix, as one of rows.

    In packed layout IREE copies the matrix for every batch first (17 of 22 ms of SAM's encoder).
    """
    left, right = g.shape(node.input[0]), g.shape(node.input[1])
    if left is None or right is None or len(left) < 4 or len(right) != 2:
        return False
    *rows, depth = left
    width = right[1]
    if (
        not (isinstance(depth, int) and isinstance(width, int))
        or 0 in left
        or sum(not isinstance(d, int) for d in rows) > 1
    ):
        return False
    hint = node.name or "MatMul"
    flat = g.add("Reshape", [node.input[0], g.const(np.array([-1, depth], np.int64), hint)], hint)
    product = g.add("MatMul", [flat, node.input[1]], hint)
    back = [d if isinstance(d, int) else -1 for d in (*rows, width)]
    g.add("Reshape", [product, g.const(np.array(back, np.int64), hint)], hint, out=node.output[0])
    return True


_HANDLERS: dict[str, Handler] = {
    "TfIdfVectorizer": small_ops.n_grams,
    "SimplifiedLayerNormalization": norms.rms_norm,  # exporters write it so, though ONNX has none
    f"{CONTRIB}.SimplifiedLayerNormalization": norms.rms_norm,
    "LpNormalization": norms.lp_norm,
    "LRN": local_norm,
    f"{CONTRIB}.SkipLayerNormalization": norms.skip_norm,
    f"{CONTRIB}.SkipSimplifiedLayerNormalization": norms.skip_norm,
    f"{CONTRIB}.EmbedLayerNormalization": norms.embed_norm,
    "Gelu": activations.tanh_gelu,
    f"{CONTRIB}.Gelu": activations.gelu,
    f"{CONTRIB}.BiasGelu": activations.gelu,
    f"{CONTRIB}.FastGelu": activations.fast_gelu,
    f"{CONTRIB}.QuickGelu": activations.swish,
    "Swish": activations.swish,
    "SwiGLU": activations.swish,
    f"{CONTRIB}.BiasAdd": activations.bias_add,
    "LinearAttention": linear_attention,
    f"{CONTRIB}.LinearAttention": linear_attention,
    f"{CONTRIB}.LinearAttentionGate": gates,
    "CausalConvWithState": causal_conv,
    f"{CONTRIB}.CausalConvWithState": causal_conv,
    f"{CONTRIB}.GatedRMSNorm": gated_norm,
    **dict.fromkeys(FUSED_MATMULS, fused_products.fused_matmul),
    f"{CONTRIB}.MatMulNBits": matmul_nbits,
    f"{CONTRIB}.MatMulBnb4": matmul_bnb4,
    "Div": _div,
    "Mod": unsigned.divide_signed,
    "Clip": unsigned.clip,
    "Abs": unsigned.absolute,
    "Sign": unsigned.sign,
    f"{CONTRIB}.FusedGemm": fused_products.fused_gemm,
    f"{CONTRIB}.FusedConv": fused_products.fused_conv,
    f"{CONTRIB}.DynamicQuantizeMatMul": quantized_products.dynamic_quantize_matmul,
    "DynamicQuantizeLinear": quantized_products.dynamic_quantize_linear,
    "MatMulInteger": quantized_products.matmul_integer,
    "QLinearMatMul": byte_ops.qlinear_matmul,
    f"{CONTRIB}.QLinearAdd": byte_ops.qlinear_sum_or_product,
    f"{CONTRIB}.QLinearMul": byte_ops.qlinear_sum_or_product,
    f"{CONTRIB}.MatMulIntegerToFloat": quantized_products.matmul_integer_to_float,
    f"{CONTRIB}.GatherBlockQuantized": gather_block_quantized,
    f"{CONTRIB}.MoE": moe,
    f"{CONTRIB}.QMoE": quantized_moe,
    "Loop": loop,
    **dict.fromkeys(("LSTM", "GRU", "RNN"), recurrent),
    "Pad": pads.pad,
    "Pow": power,
    "Slice": strided_slice,
    "Split": split_columns,
    "TensorScatter": tensor_scatter,
    **dict.fromkeys(("ScatterElements", "ScatterND"), scatter),
    "TopK": top_k,
    "ArgMax": arg_reduce,
    "ArgMin": arg_reduce,
    "ReduceMax": compare_wide,
    "ReduceMin": compare_wide,
    PAST_ROWS: past_rows,
    "MatMul": _matmul,
    "Gemm": _gemm,
    "Conv": _conv,
    "ConvTranspose": conv_transpose,
    "ConvInteger": integer_convolutions.conv_integer,
    "QLinearConv": integer_convolutions.qlinear_conv,
    **dict.fromkeys(("MaxPool", "AveragePool", "LpPool"), pool),
    "MaxUnpool": max_unpool,
    "DequantizeLinear": _dequantize,
    "QuantizeLinear": _quantize,
    "Cast": _cast,
    "Cos": wave,
    "Sin": wave,
    "CastLike": casts.cast_like,
    "RMSNormalization": norms.rms_norm,
    "InstanceNormalization": norms.instance_norm,
    "LayerNormalization": norms.layer_norm,
    "GroupNormalization": norms.group_norm,
    GROUP_NORM: norms.group_norm,
    "Einsum": einsum,
    "Expand": expand,
    "Gather": empty_gather,
    "GatherElements": indexed_product,
    "DFT": dft,
    "STFT": stft,
    "AffineGrid": affine_grid,
    "Col2Im": col2im,
    "NonMaxSuppression": non_max_suppression,
    "NonZero": non_zero,
    "OneHot": choices.one_hot,
    "Where": choices.where,
    "RoiAlign": roi_align,
    "DeformConv": deform_conv,
    "BitCast": small_ops.bit_cast,
    "Compress": small_ops.compress,
    "CumProd": small_ops.cumulative_product,
    "Neg": small_ops.negative,
    "Squeeze": small_ops.squeeze,
    "Range": small_ops.narrow_range,
    "ReverseSequence": small_ops.reverse_sequence,
    "Det": determinant,
    "Dropout": dropout,
    "DepthToSpace": depth_to_space,
    "SpaceToDepth": space_to_depth,
    "GridSample": grid_sample,
    "Softsign": activations.softsign,
    "RotaryEmbedding": rotary,
    "Reshape": _reshape,
    "Resize": resize,
    f"{CONTRIB}.RotaryEmbedding": contrib_rotary,
    f"{CONTRIB}.MRotaryEmbedding": streams_rotary,
}

"""Shapes and types of what onnxruntime's own operators make, which ONNX's inference does not know: one rule per operator.

The rules are those of the operators' descriptions (ContribOperators.md of onnxruntime). An output without a rule keeps its unknown
shape.
"""

from __future__ import annotations

from collections.abc import Callable

import onnx_ir as ir

from onnx_fa.graph.dims import Shape, add_dims, broadcast, divide_dims, multiply_dims
from onnx_fa.graph.ops import BLOCKED, CONTRIB, FUSED_MATMULS, attr_int, op_of, typed_attr
from onnx_fa.graph.shape_rules import Window, multiply_shapes, window_dims

Read = Callable[[int], Shape | None]
"""The shape of a node's input, None where it is left out or unknown."""
Rule = Callable[[ir.Node, Read], list[Shape | None]]


def contrib_shapes(node: ir.Node, read: Read) -> list[Shape | None]:
    """Shapes of a node's outputs, in order and perhaps fewer than it has; each None where it is not known. Raises ModelError for
    an attribute of another type."""
    rule = _RULES.get(op_of(node))
    return [] if rule is None else rule(node, read)


def contrib_types(node: ir.Node) -> list[ir.DataType | None]:
    """Element types of a node's outputs, in order and perhaps fewer than it has; each None where it is not known."""
    kind, outputs = op_of(node), len(node.outputs)
    if kind == f"{CONTRIB}.EmbedLayerNormalization":
        words = _dtype(node, 2)
        return [words, ir.DataType.INT32, words][:outputs]
    if kind in _SKIPS:  # its statistics are f32, and the sum has the type of what is added
        like = _dtype(node, 0)
        return [like, ir.DataType.FLOAT, ir.DataType.FLOAT, like][:outputs]
    if kind in _WITH_STATES:  # a state has a type of its own
        like = _dtype(node, 0)
        return [like, like if kind != f"{CONTRIB}.LinearAttention" else _dtype(node, 3) or like][:outputs]
    source = _TYPE_FROM.get(kind)
    return [] if source is None else [_dtype(node, source)]


def _dtype(node: ir.Node, position: int) -> ir.DataType | None:
    value = node.inputs[position] if position < len(node.inputs) else None
    return None if value is None else value.dtype


def _same(node: ir.Node, read: Read) -> list[Shape | None]:
    return [read(0)]


def _skip(node: ir.Node, read: Read) -> list[Shape | None]:
    whole = read(0)
    statistics = None if whole is None else (*whole[:-1], 1)
    return [whole, statistics, statistics, whole]


def _product(node: ir.Node, read: Read) -> list[Shape | None]:
    first = read(0)
    if first is None or attr_int(node, "transBatchA", 0) or attr_int(node, "transBatchB", 0):
        return [None]
    return [multiply_shapes(first, read(1), bool(attr_int(node, "transA", 0)), bool(attr_int(node, "transB", 0)))]


def _embed(node: ir.Node, read: Read) -> list[Shape | None]:
    ids, words = read(0), read(2)
    if ids is None or words is None or len(ids) != 2 or len(words) != 2:
        return []
    return [(*ids, words[1]), ids[:1], (*ids, words[1])]


def _attention(node: ir.Node, read: Read) -> list[Shape | None]:
    hidden, weights = read(0), read(1)
    if hidden is None or weights is None or len(hidden) != 3 or len(weights) != 2:
        return []
    sizes = typed_attr(node, "qkv_hidden_sizes", ir.AttributeType.INTS)
    width = divide_dims(weights[1], 3) if sizes is None else sizes.as_ints()[2]
    return [(*hidden[:2], width)]


def _multi_head(node: ir.Node, read: Read) -> list[Shape | None]:
    query, value = read(0), read(2)
    if query is None:
        return []
    if len(query) == 5:  # [B, Sq, Hq, 3, D], with K and V in it
        return [(*query[:2], multiply_dims(query[2], query[4]))]
    if len(query) != 3:
        return []
    if len(node.inputs) < 3 or node.inputs[2] is None:  # K and V are packed, with heads of Q's size
        return [query]
    if value is None or len(value) not in (3, 4):
        return []
    return [(*query[:2], value[2] if len(value) == 3 else multiply_dims(value[1], value[3]))]


def _grouped(node: ir.Node, read: Read) -> list[Shape | None]:
    query, heads, pairs = read(0), attr_int(node, "num_heads", 0), attr_int(node, "kv_num_heads", 0)
    if query is None or len(query) != 3:
        return []
    if len(node.inputs) > 1 and node.inputs[1] is not None:
        return [query]
    width = query[2]  # of Q's heads, K's and V's, one behind the other
    if not isinstance(width, int) or heads < 1 or pairs < 1 or width % (heads + 2 * pairs):
        return []
    return [(*query[:2], width // (heads + 2 * pairs) * heads)]


def _by_blocks(node: ir.Node, read: Read) -> list[Shape | None]:
    first, width = read(0), attr_int(node, "N", 0)
    return [] if not first or width < 1 else [(*first[:-1], width)]


def _table_of_bits(node: ir.Node, read: Read) -> list[Shape | None]:
    """Rows of a table along its first axis, several numbers to a byte."""
    table, indices = read(0), read(1)
    if not table or indices is None or attr_int(node, "gather_axis", 0) % len(table) != 0:
        return []
    packed = node.inputs[0] is not None and node.inputs[0].dtype == ir.DataType.UINT8
    width = multiply_dims(table[-1], 8 // attr_int(node, "bits", 4)) if packed else table[-1]
    return [(*indices, *table[1:-1], width)]


def _of_bytes(*operands: int) -> Rule:
    """What the operands at these inputs, each with a scale and a zero point behind it, broadcast to."""

    def rule(node: ir.Node, read: Read) -> list[Shape | None]:
        shapes = [shape for at in operands if (shape := read(at)) is not None]
        return [broadcast(shapes)] if len(shapes) == len(operands) else []

    return rule


def _joined_bytes(node: ir.Node, read: Read) -> list[Shape | None]:
    """The first operand is input 2, behind the scale and zero point of the result; each has its own two."""
    shapes = [shape for at in range(2, len(node.inputs), 3) if (shape := read(at)) is not None]
    if not shapes or len(shapes) * 3 + 2 != len(node.inputs) or len({len(shape) for shape in shapes}) > 1:
        return []
    axis = attr_int(node, "axis", 0) % max(len(shapes[0]), 1)
    dims = list(shapes[0])
    for shape in shapes[1:]:
        mine, more = dims[axis], shape[axis]
        dims[axis] = None if mine is None or more is None else add_dims(mine, more)
    return [tuple(dims)]


def _conv(node: ir.Node, read: Read) -> list[Shape | None]:
    """A Conv of images; of a blocked one the file holds the weights as many as there are channels in whole blocks."""
    image, weights = read(0), read(1)
    if image is None or weights is None or len(image) != 4 or len(weights) != 4:
        return []
    dims = window_dims(image, weights[2:], Window.of(node, 2))
    return [] if dims is None else [(image[0], weights[0], *dims)]


def _unblocked(node: ir.Node, read: Read) -> list[Shape | None]:
    """The channels that fill up the last block are left out again."""
    image, channels = read(0), attr_int(node, "channels", 0)
    if image is None or len(image) != 4 or channels < 1:
        return []
    last = attr_int(node, "channels_last", 0)
    return [(image[0], *image[2:], channels) if last else (image[0], channels, *image[2:])]


def _causal_conv(node: ir.Node, read: Read) -> list[Shape | None]:
    """The state is as many rows of the input as a tap reaches back."""
    x, taps = read(0), read(1)
    axis = 1 if attr_int(node, "channels_last", 0) else -1
    if x is None or taps is None or not isinstance(taps[-1], int) or attr_int(node, "state_window", 0):
        return [x]
    state = list(x)
    state[axis] = (taps[-1] - 1) * attr_int(node, "dilation", 1)
    return [x, tuple(state)]


def _linear_attention(node: ir.Node, read: Read) -> list[Shape | None]:
    query, value, past = read(0), read(2), read(3)
    Hq, H = attr_int(node, "q_num_heads", 0), attr_int(node, "kv_num_heads", 0)
    if query is None or value is None or len(query) != 3 or len(value) != 3 or Hq < 1 or H < 1:
        return []
    Dv = divide_dims(value[2], H)
    state = past or (query[0], H, divide_dims(query[2], Hq), Dv)
    return [(*query[:2], multiply_dims(Dv, max(Hq, H))), None if attr_int(node, "state_window", 0) else state]


def _both(node: ir.Node, read: Read) -> list[Shape | None]:
    return [read(0), read(0)]


_ONE_FOR_ONE = (
    "Gelu FastGelu BiasGelu QuickGelu BiasAdd MoE QMoE LayerNormalization SimplifiedLayerNormalization RotaryEmbedding "
    "MRotaryEmbedding GatedRMSNorm"
)
_SKIPS = frozenset([f"{CONTRIB}.SkipLayerNormalization", f"{CONTRIB}.SkipSimplifiedLayerNormalization"])
_WITH_STATES = frozenset(
    f"{CONTRIB}.{name}" for name in ("CausalConvWithState", "LinearAttention", "LinearAttentionGate")
)
_RULES: dict[str, Rule] = {
    f"{CONTRIB}.CausalConvWithState": _causal_conv,
    f"{CONTRIB}.LinearAttention": _linear_attention,
    f"{CONTRIB}.LinearAttentionGate": _both,
    **dict.fromkeys(FUSED_MATMULS, _product),
    **{f"{CONTRIB}.{name}": _same for name in _ONE_FOR_ONE.split()},
    **dict.fromkeys(_SKIPS, _skip),
    f"{CONTRIB}.EmbedLayerNormalization": _embed,
    f"{CONTRIB}.Attention": _attention,
    f"{CONTRIB}.QAttention": _attention,
    f"{CONTRIB}.MultiHeadAttention": _multi_head,
    f"{CONTRIB}.GroupQueryAttention": _grouped,
    f"{CONTRIB}.MatMulNBits": _by_blocks,
    f"{CONTRIB}.MatMulBnb4": _by_blocks,
    f"{CONTRIB}.DynamicQuantizeMatMul": _product,
    f"{CONTRIB}.MatMulIntegerToFloat": _product,
    f"{CONTRIB}.GatherBlockQuantized": _table_of_bits,
    **{f"{CONTRIB}.{name}": _of_bytes(0, 3) for name in ("QLinearAdd", "QLinearMul")},
    **{f"{CONTRIB}.{name}": _same for name in ("QLinearSoftmax", "QLinearSigmoid", "QLinearLeakyRelu")},
    f"{CONTRIB}.QLinearWhere": _of_bytes(0, 1, 4),
    f"{CONTRIB}.QLinearConcat": _joined_bytes,
    f"{CONTRIB}.FusedConv": _conv,
    f"{BLOCKED}.Conv": _conv,
    f"{BLOCKED}.ReorderOutput": _unblocked,
}
_TYPE_FROM: dict[str, int] = {
    **{name: 0 for name in _RULES if name != f"{CONTRIB}.EmbedLayerNormalization"},
    f"{CONTRIB}.QAttention": 3,  # the scale of its integers
    f"{CONTRIB}.MatMulIntegerToFloat": 2,
    f"{CONTRIB}.QLinearWhere": 1,
    f"{CONTRIB}.QLinearConcat": 2,
    f"{CONTRIB}.GatherBlockQuantized": 2,
    f"{CONTRIB}.FusedGemm": 0,
}

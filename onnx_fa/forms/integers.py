"""K and V kept otherwise, as standard ops: integers by Cast, Sub and Mul, rows of a pool by Gather. And probabilities rounded to
integers.

Forms write DequantizeLinear only behind the QuantizeLinear of probabilities, and where it has a block_size. onnxruntime's optimiser
moves any other through Transpose and Reshape, or makes an integer product of it, and what comes of that may be wrong, not load, not
run, or end the process (docs/developer/onnxruntime-bugs.md). The numbers are the same to the last bit: integers and differences are
exact, only the product with the scale rounds.
"""

from __future__ import annotations

from collections.abc import Container, Sequence

import numpy as np
import onnx_ir as ir

from onnx_fa.errors import UnsupportedError
from onnx_fa.graph.builder import Attr, OnnxBuilder, unused_name
from onnx_fa.graph.casts import MOVED_THROUGH, is_dropout_at_rest, is_looked_through, without_round_trip
from onnx_fa.graph.ops import DEQUANTIZE, constant_tensor, op_of
from onnx_fa.spec.attention import AttentionSpec
from onnx_fa.spec.dtypes import NUMPY
from onnx_fa.spec.terms import Dim, Quantized, Rounding

_INT4 = {"i4": ir.DataType.INT4, "u4": ir.DataType.UINT4}
_NARROW = frozenset(
    getattr(ir.DataType, f"{sign}INT{bits}") for sign in ("", "U") for bits in (4, 8)
)  # exact in every float type, and so are their differences
_EXACT = {
    ir.DataType.FLOAT16: _NARROW,
    ir.DataType.BFLOAT16: _NARROW,
    ir.DataType.FLOAT: _NARROW | {ir.DataType.INT16, ir.DataType.UINT16},
}


def dequantized(
    b: OnnxBuilder, spec: AttentionSpec, operands: Sequence[ir.Value], *, by_op: bool = False
) -> tuple[AttentionSpec, tuple[ir.Value, ...]]:
    """The plain spec, with K and V as numbers, one row for every key, and its operands. `by_op`: by DequantizeLinear wherever it
    says what the spec says, as quantisers write it; else only where a scale serves several neighbours."""
    result, rest = list(operands[: spec.scales_at]), iter(operands[spec.scales_at :])
    if spec.gathered is not None:
        index = next(rest)
        result[1] = _gathered(b, spec, result[1], index, spec.k_layout)
        result[2] = _gathered(b, spec, result[2], index, spec.v_layout)
    for i, quant, layout in ((1, spec.k_quant, spec.k_layout), (2, spec.v_quant, spec.v_layout)):
        if quant is not None:
            scale, zero = next(rest), next(rest) if quant.zero_point else None
            head_dim = layout.index(spec.rank - 1)
            integers = result[i]
            result[i] = _dequantize(b, spec, result[i], quant, scale, zero, spec.operand_shapes[i], head_dim, by_op)
            if not by_op:
                b.written += [(old, result[i]) for old in _numbers_of(integers, scale, zero)]
    return spec.plain, tuple(result)


def _numbers_of(integers: ir.Value, scale: ir.Value, zero: ir.Value | None) -> list[ir.Value]:
    """The results of the model's own DequantizeLinear of the same integers, scale and zero point. The site has read them as
    numbers, and reads the integers now."""
    readers = {node for node, index in integers.uses() if index == 0 and op_of(node) in DEQUANTIZE}
    inputs = [(node, (*node.inputs, None)[:3]) for node in readers]
    return [n.outputs[0] for n, (_, s, z) in inputs if _equal(s, scale) and (_equal(z, zero) or not (zero or _any(z)))]


def _equal(a: ir.Value | None, b: ir.Value | None) -> bool:
    """Whether two scales or zero points are certainly the same numbers."""
    if a is b or a is None or b is None:
        return a is b
    known = a.const_value, b.const_value
    if known[0] is None or known[1] is None or a.dtype != b.dtype:
        return False
    return bool(np.array_equal(known[0].numpy().reshape(-1), known[1].numpy().reshape(-1)))


def _any(zero: ir.Value | None) -> bool:
    """Whether something is perhaps taken off."""
    return zero is not None and (zero.const_value is None or bool(zero.const_value.numpy().any()))


def written_out(b: OnnxBuilder, value: ir.Value) -> ir.Value:
    """A value that comes from a DequantizeLinear with one scale, directly or by ops that only move axes: the same, to the
    last bit, by Cast, Sub, Mul and copies of the moves. Any other value is returned as it is. Raises UnsupportedError for a scale
    that is infinite or NaN."""
    moves, source = [], without_round_trip(value)
    while (node := source.producer()) is not None and (op_of(node) in MOVED_THROUGH or is_dropout_at_rest(node)):
        if node.inputs[0] is None:
            return value
        if op_of(node) in MOVED_THROUGH:
            moves.append(node)
        source = without_round_trip(node.inputs[0])
    if node is None or op_of(node) not in DEQUANTIZE:
        return value
    integers, scale, zero = (*node.inputs, None)[:3]
    if integers is None or scale is None or source.dtype not in _EXACT:
        return value
    # Whether it is a constant is not asked: the optimiser makes one of much.
    if scale.shape is None or any(d != 1 for d in scale.shape) or scale.dtype != source.dtype:
        return value
    _check_scale(scale)
    if integers.dtype in _EXACT[source.dtype]:
        made = _times_scale(b, integers, scale, zero, source.dtype)
    elif integers.dtype in _EXACT[ir.DataType.FLOAT] or integers.dtype == ir.DataType.INT32:
        # As onnxruntime does it: in f32, to which an int32, which has no zero point but 0, is rounded first.
        zero = None if integers.dtype == ir.DataType.INT32 else zero
        wide = ir.DataType.FLOAT
        made = _times_scale(b, integers, b.op("Cast", scale, to=int(wide)), zero, wide)
        made = b.op("Cast", made, to=int(source.dtype))
    else:
        return value
    b.written.append((source, made))
    for move in reversed(moves):
        made = b.op_of("", op_of(move), [made, *move.inputs[1:]], dict(move.attributes))
    return made


def redirect_moves(
    written: Sequence[tuple[ir.Value, ir.Value]], functions: Container[ir.OperatorIdentifier], taken: set[str]
) -> set[ir.Graph]:
    """Lets the model's own moves of what was written out read that as well, and what may be in front of a move: calls of the
    model's functions, and ops that onnxruntime takes out. It moves a DequantizeLinear through a node as soon as nothing else
    reads its result, and the site did. `taken` are the names in the model. Returns the graphs that are to be sorted again."""
    changed = set()
    for source, made in written:
        node, own = made.producer(), source.producer()
        if node is None or own is None or node.graph is None or node.graph is not own.graph:
            continue
        apart: ir.Value | None = None
        for reader, index in [*source.uses()]:  # inside a subgraph too, which sees what stands before it
            if (index == 0 and is_looked_through(reader)) or reader.op_identifier() in functions:
                apart = apart or _apart(node, made, taken)
                reader.replace_input_with(index, apart)
                changed.add(own.graph)
    return {g for g in changed if isinstance(g, ir.Graph)}


def _apart(node: ir.Node, made: ir.Value, taken: set[str]) -> ir.Value:
    """`made` by a product of its own, written the other way round so that onnxruntime keeps it: it takes the scale of a product
    with a matrix into the product, and loses that of another one that reads it too (`scale_of_two_products.onnxtxt`)."""
    if op_of(node) != "Mul":
        return made
    twin = ir.Node("", "Mul", reversed(node.inputs), num_outputs=1, name=unused_name(f"{node.name}_apart", taken))
    out = twin.outputs[0]
    out.name, out.type, out.shape = unused_name(f"{made.name}_apart", taken), made.type, made.shape
    assert isinstance(node.graph, ir.Graph)
    node.graph.insert_after(node, twin)
    return out


def _times_scale(
    b: OnnxBuilder, integers: ir.Value, scale: ir.Value, zero: ir.Value | None, dtype: ir.DataType | None
) -> ir.Value:
    """(integers - zero) * scale, where only the product rounds."""
    assert dtype is not None
    made = b.op("Cast", integers, to=int(dtype))
    if zero is not None:
        made = b.op("Sub", made, b.op("Cast", zero, to=int(dtype)))
    return b.op("Mul", made, scale)


def _check_scale(scale: ir.Value) -> None:
    """onnxruntime's optimiser takes a Mul by a number into the product with a matrix, and infinity times a sum is not the sum of
    terms times infinity."""
    known = constant_tensor(scale)
    if known is not None and not np.isfinite(known.numpy().astype(np.float64)).all():
        raise UnsupportedError(f"the scale {scale.name} of integers is infinite or NaN")


def _gathered(
    b: OnnxBuilder, spec: AttentionSpec, pool: ir.Value, index: ir.Value, layout: tuple[int, ...]
) -> ir.Value:
    """The rows of K or V that the index names, in the layout."""
    batch = len(spec.batch)
    one = batch  # axes of 1
    step = spec.gathered.head_rows if spec.gathered is not None else 0
    named = [*range(batch), batch + 1]
    if step:
        assert isinstance(spec.Hkv, int)
        kind = np.int32 if spec.operand_dtypes[-1] == "i32" else np.int64
        index = b.op("Add", b.unsqueeze(index, -2), b.const(step * np.arange(spec.Hkv, dtype=kind)[:, None]))
        one, named = batch + 1, list(range(batch + 2))
    own = [axis for axis in layout if axis >= one]
    x = b.squeeze(pool, *(layout.index(axis) for axis in range(one))) if one else pool
    x = b.op("Gather", x, index, axis=own.index(batch + 1))
    # In the place of the rows stand the batch and the keys.
    have = [n for axis in own for n in (named if axis == batch + 1 else [axis])]
    perm = [have.index(axis) for axis in layout]
    return b.op("Transpose", x, perm=perm) if perm != sorted(perm) else x


def rounded(b: OnnxBuilder, rounding: Rounding, p: ir.Value) -> ir.Value:
    """Probabilities in f32 as they multiply V: by a pair of QuantizeLinear and DequantizeLinear where the opset has them for the
    type, else, and for all roundings but the last, by the same in numbers: of two pairs in a row onnxruntime's optimiser makes
    another one. Raises UnsupportedError where it has neither."""
    if rounding.before is not None:  # integers have no NaN
        p = guarded(b, p)
    for before in rounding.chain[:-1]:
        p = _in_steps(b, before, p)
    return by_pair(b, rounding, p) if b.opset >= (10 if rounding.bits == 8 else 21) else _in_steps(b, rounding, p)


def by_pair(b: OnnxBuilder, rounding: Rounding, p: ir.Value) -> ir.Value:
    """The last of the roundings as QuantizeLinear and DequantizeLinear."""
    scale = b.const(np.asarray(rounding.scale, np.float32))
    kind = np.dtype(f"{'uint' if rounding.dtype[0] == 'u' else 'int'}{rounding.bits}")
    zero = b.const(np.asarray(rounding.zero_point, kind))
    return b.op("DequantizeLinear", b.op("QuantizeLinear", p, scale, zero), scale, zero)


def guarded(b: OnnxBuilder, p: ir.Value) -> ir.Value:
    """Numbers in f32, 0 in the place of NaN."""
    return b.op("Where", b.op("IsNaN", p), b.const(np.asarray(0, np.float32)), p)


def _in_steps(b: OnnxBuilder, rounding: Rounding, p: ir.Value) -> ir.Value:
    """Numbers in f32 in whole steps of a rounding's scale; NaN stays."""
    if b.opset < 12:
        raise UnsupportedError(f"probabilities rounded to {rounding.dtype} need opset 12, the model has {b.opset}")
    scale = b.const(np.asarray(rounding.scale, np.float32))
    steps = b.op("Min", b.op("Round", b.op("Div", p, scale)), b.const(np.asarray(rounding.most, np.float32)))
    return b.op("Mul", steps, scale)


def _dequantize(
    b: OnnxBuilder,
    spec: AttentionSpec,
    x: ir.Value,
    quant: Quantized,
    scale: ir.Value,
    zero: ir.Value | None,
    dims: tuple[Dim, ...],
    head_dim: int,
    by_op: bool,
) -> ir.Value:
    """x of shape `dims` in the spec's type."""
    _check_scale(scale)
    shape = (1,) * (len(dims) - len(quant.shape)) + quant.shape
    varies = [i for i, d in enumerate(shape) if d != 1]
    groups, width = shape[head_dim], dims[head_dim]
    assert isinstance(groups, int) and isinstance(width, int)
    least = {"f16": 19, "bf16": 19}.get(spec.dtype, 10)
    if quant.dtype in _INT4:
        least = 21
    attrs: dict[str, Attr] | None = None
    if by_op and not varies:
        attrs = {}
        if quant.shape:
            scale, zero = b.op("Reshape", scale, b.ints()), zero and b.op("Reshape", zero, b.ints())
    elif by_op and len(varies) == 1 and shape == _full(dims, varies[0]):
        attrs, least = {"axis": varies[0]}, max(least, 13)
        if len(quant.shape) > 1:
            scale, zero = b.op("Reshape", scale, b.ints(-1)), zero and b.op("Reshape", zero, b.ints(-1))
    elif len(quant.shape) == len(dims) and all(
        have == want or i == head_dim for i, (have, want) in enumerate(zip(shape, dims, strict=True))
    ):
        attrs, least = {"axis": head_dim, "block_size": width // groups}, max(least, 21)
    if attrs is None or b.opset < least:
        return _by_hand(b, spec, x, scale, zero, (groups, width), head_dim - len(dims))
    if zero is not None and quant.dtype in _INT4:
        zero = b.op("Cast", zero, to=int(_INT4[quant.dtype]))
    return b.op("DequantizeLinear", x, scale, *([zero] if zero is not None else []), **attrs)


def _full(dims: tuple[Dim, ...], axis: int) -> tuple[Dim, ...]:
    """The dims of a scale that varies along one axis only."""
    return tuple(d if i == axis else 1 for i, d in enumerate(dims))


def _by_hand(
    b: OnnxBuilder,
    spec: AttentionSpec,
    x: ir.Value,
    scale: ir.Value,
    zero: ir.Value | None,
    groups: tuple[int, int],
    axis: int,
) -> ir.Value:
    """`groups` are numbers along the head dim, and the head dim, which is `axis` from the end."""
    count, width = groups
    if 1 < count < width:
        indices = b.const(np.repeat(np.arange(count), width // count))
        scale = b.op("Gather", scale, indices, axis=axis)
        zero = zero and b.op("Gather", zero, indices, axis=axis)
    return _times_scale(b, x, scale, zero, ir.DataType.from_numpy(np.dtype(NUMPY[spec.dtype])))

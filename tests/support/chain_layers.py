"""Steps of a chain that are layers of networks, of which some sizes must be known: convolutions, products with weights, norms,
recurrences, integers in place of floats, and bodies."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx import TensorProto
from onnx import helper as h

from tests.support.chain import KINDS, Chain, Step, Value, known, resized


def _is_known(x: Value, axis: int) -> bool:
    return len(set(x.dims[axis])) == 1


def _weights(c: Chain, *shape: int) -> str:
    """Small whole numbers: sums of them are exact."""
    rng = np.random.default_rng(c.draw.randrange(1 << 30))
    return c.constant(rng.integers(-2, 3, shape), np.float32)


def _bounded(c: Chain, x: str) -> str:
    return c.add("Clip", [x, c.constant(-9, np.float32), c.constant(9, np.float32)])


def _off_ties(c: Chain, x: str) -> str:
    """A little more: sums of eighths and the like, which are not exact, are so no ties to be rounded either way."""
    return c.add("Add", [x, c.constant(0.0623, np.float32)])


def _channels(x: Value) -> int | None:
    """How many, where the tensor may be an image or a sequence of them."""
    return x.dims[1][0] if x.kind == "f" and x.rank in (3, 4) and _is_known(x, 1) else None


def _conv(c: Chain, x: Value) -> Value | None:
    n, channels = x.rank - 2, _channels(x)
    if channels is None:
        return None
    groups = c.draw.choice([g for g in (1, 2, channels) if channels % g == 0])
    kernel, stride, dilation = c.draw.choice([1, 2, 3]), c.draw.choice([1, 1, 2]), c.draw.choice([1, 1, 2])
    before, behind = c.draw.choice([(0, 0), (1, 1), (0, 1), (2, 1)])
    reach = (kernel - 1) * dilation
    sizes = [tuple((s + before + behind - reach - 1) // stride + 1 for s in d) for d in x.dims[2:]]
    if min(s + before + behind - reach - 1 for d in x.dims[2:] for s in d) < 0:
        return None
    out = groups * c.draw.choice([1, 2, 4])
    operands = [x.name, _weights(c, out, channels // groups, *[kernel] * n)]
    if c.draw.random() < 0.5:
        operands.append(_weights(c, out))
    made = c.add(
        "Conv",
        operands,
        group=groups,
        strides=[stride] * n,
        dilations=[dilation] * n,
        pads=[before] * n + [behind] * n,
    )
    return Value(_bounded(c, made), "f", (x.dims[0], known(out), *sizes))


def _conv_transpose(c: Chain, x: Value) -> Value | None:
    n, channels = x.rank - 2, _channels(x)
    if channels is None:
        return None
    kernel, stride, more = c.draw.choice([2, 3, 4]), c.draw.choice([1, 2]), c.draw.choice([0, 1])
    pad = c.draw.choice([0, 1])
    if more >= stride:
        more = 0
    sizes = [tuple((s - 1) * stride + kernel - 2 * pad + more for s in d) for d in x.dims[2:]]
    if min(map(min, sizes)) < 1:
        return None
    out = c.draw.choice([1, 2, 4])
    made = c.add(
        "ConvTranspose",
        [x.name, _weights(c, channels, out, *[kernel] * n)],
        strides=[stride] * n,
        pads=[pad] * (2 * n),
        output_padding=[more] * n,
    )
    return Value(_bounded(c, made), "f", (x.dims[0], known(out), *sizes))


def _pool(c: Chain, x: Value) -> Value | None:
    if x.kind != "f" or x.rank not in (3, 4):
        return None
    n = x.rank - 2
    if c.draw.random() < 0.3:
        made = c.add(c.draw.choice(["GlobalAveragePool", "GlobalMaxPool"]), [x.name])
        return Value(made, "f", (*x.dims[:2], *[known(1)] * n))
    if min(s for d in x.dims[2:] for s in d) < 2:
        return None
    op = c.draw.choice(["MaxPool", "AveragePool", "LpPool"])
    made = c.add(op, [x.name], kernel_shape=[2] * n, strides=[2] * n)
    return Value(made, "f", (*x.dims[:2], *(tuple(s // 2 for s in d) for d in x.dims[2:])))


def _layer(c: Chain, x: Value) -> Value | None:
    """A product with weights, a bias and an activation."""
    if x.kind != "f" or not _is_known(x, x.rank - 1):
        return None
    out = c.draw.choice([3, 8])
    y = c.add("MatMul", [x.name, _weights(c, x.dims[-1][0], out)])
    y = _bounded(c, c.add("Add", [y, _weights(c, out)]) if c.draw.random() < 0.7 else y)
    if c.draw.random() < 0.5:
        y = c.add(c.draw.choice(["Relu", "Sigmoid", "Tanh", "Erf", "HardSwish"]), [y])
    return Value(y, "f", (*x.dims[:-1], known(out)))


def _norm(c: Chain, x: Value) -> Value | None:
    if x.kind != "f":
        return None
    channels = _channels(x)
    if channels is not None and min(s for d in x.dims[2:] for s in d) > 1 and c.draw.random() < 0.5:
        scale, bias = _weights(c, channels), _weights(c, channels)
        return resized(x, c.add("InstanceNormalization", [x.name, scale, bias], epsilon=0.1))
    if not _is_known(x, x.rank - 1):
        return None
    scale = _weights(c, x.dims[-1][0])
    return resized(x, c.add("LayerNormalization", [x.name, scale], epsilon=0.1))


def _quantised(c: Chain, x: Value) -> Value | None:
    """To bytes and back, by halves."""
    if x.kind != "f":
        return None
    zero = c.constant(c.draw.choice([0, 3]), c.draw.choice([np.int8, np.uint8]))
    scale = c.constant(0.5, np.float32)
    q = c.add("QuantizeLinear", [_off_ties(c, x.name), scale, zero])
    if c.draw.random() < 0.4 and x.rank > 1:
        perm = list(range(x.rank))
        c.draw.shuffle(perm)
        x, q = Value(x.name, "f", tuple(x.dims[p] for p in perm)), c.add("Transpose", [q], perm=perm)
    return resized(x, c.add("DequantizeLinear", [q, scale, zero]))


def _byte_product(c: Chain, x: Value) -> Value | None:
    if x.kind != "f" or x.rank < 2 or not _is_known(x, x.rank - 1):
        return None
    bounded = _off_ties(c, _bounded(c, x.name))
    names = [f"t{len(c.nodes)}{n}" for n in ("", "s", "z")]
    c.nodes.append(h.make_node("DynamicQuantizeLinear", [bounded], names))
    out = c.draw.choice([3, 8])
    weights = c.constant(np.random.default_rng(1).integers(-4, 5, (x.dims[-1][0], out)), np.int8)
    made = c.add("MatMulInteger", [names[0], weights, names[2]])
    made = c.add("Mul", [c.cast(made, "f"), c.add("Mul", [names[1], c.constant(0.25, np.float32)])])
    return Value(made, "f", (*x.dims[:-1], known(out)))


def _blocks(c: Chain, x: Value) -> Value | None:
    if x.kind != "f" or x.rank != 4:
        return None
    n, channels, height, width = x.dims
    if _is_known(x, 1) and channels[0] % 4 == 0:
        made = c.add("DepthToSpace", [x.name], blocksize=2, mode=c.draw.choice(["DCR", "CRD"]))
        more = tuple(tuple(2 * s for s in d) for d in (height, width))
        return Value(made, "f", (n, known(channels[0] // 4), *more))
    if all(s % 2 == 0 for s in (*height, *width)):
        made = c.add("SpaceToDepth", [x.name], blocksize=2)
        less = tuple(tuple(s // 2 for s in d) for d in (height, width))
        return Value(made, "f", (n, tuple(4 * s for s in channels), *less))
    return None


def _attention(c: Chain, x: Value) -> Value | None:
    if x.kind != "f" or x.rank not in (3, 4):
        return None
    perm = [*range(x.rank - 2), x.rank - 1, x.rank - 2]
    bounded = _bounded(c, x.name)
    scaled = c.add("Mul", [bounded, c.constant(0.25, np.float32)])
    scores = c.add("MatMul", [scaled, c.add("Transpose", [bounded], perm=perm)])
    if c.draw.random() < 0.5:
        scores = c.add("Add", [scores, c.constant(c.draw.choice([0.5, -1e9]), np.float32)])
    return resized(x, c.add("MatMul", [c.add("Softmax", [scores], axis=-1), x.name]))


def _recurrent(c: Chain, x: Value) -> Value | None:
    """Of (S, B, I): all its states, or the last."""
    if x.kind != "f" or x.rank != 3 or not _is_known(x, 2):
        return None
    op, hidden, inputs = c.draw.choice(["LSTM", "GRU"]), 4, x.dims[2][0]
    gates = {"LSTM": 4, "GRU": 3}[op] * hidden
    rng = np.random.default_rng(c.draw.randrange(1 << 30))
    w, r = (c.constant(rng.standard_normal((1, gates, n)) / 4, np.float32) for n in (inputs, hidden))
    direction = c.draw.choice(["forward", "reverse"])
    names = [f"t{len(c.nodes)}", f"t{len(c.nodes)}last"]
    more: dict[str, Any] = {"linear_before_reset": 1} if op == "GRU" else {}
    c.nodes.append(h.make_node(op, [x.name, w, r], names, hidden_size=hidden, direction=direction, **more))
    if c.draw.random() < 0.3:
        return Value(names[1], "f", (known(1), x.dims[1], known(hidden)))
    return Value(c.add("Squeeze", [names[0], c.constant([1])]), "f", (x.dims[0], x.dims[1], known(hidden)))


def _if(c: Chain, x: Value) -> Value | None:
    """One of two, as a number of the tensor says."""
    if x.kind not in "fi":
        return None
    total = c.add("ReduceMax", [x.name], keepdims=0)
    is_more = c.add("Greater", [total, c.number(x, 2)])
    outs = [h.make_tensor_value_info("r", KINDS[x.kind], [None] * x.rank)]
    then = h.make_graph([h.make_node("Neg", [x.name], ["r"])], "then", [], outs)
    other = h.make_graph([h.make_node("Abs", [x.name], ["r"])], "other", [], outs)
    return resized(x, c.add("If", [is_more], then_branch=then, else_branch=other))


def _loop(c: Chain, x: Value) -> Value | None:
    """As many times as an axis is long, halved each time; or its sums along the way."""
    if x.kind != "f":
        return None
    axis = c.axis(x)
    times = c.add("Squeeze", [c.size(x, axis), c.constant([0])])
    shape = [None] * x.rank
    inputs = [
        h.make_tensor_value_info("i", TensorProto.INT64, []),
        h.make_tensor_value_info("go", TensorProto.BOOL, []),
        h.make_tensor_value_info("v", TensorProto.FLOAT, shape),
    ]
    half = onnx.numpy_helper.from_array(np.float32(0.5))
    steps = [
        h.make_node("Constant", [], ["half"], value=half),
        h.make_node("Mul", ["v", "half"], ["less"]),
        h.make_node("Add", ["less", x.name], ["w"]),
        h.make_node("ReduceSum", ["w"], ["s"], keepdims=0),
        h.make_node("Identity", ["go"], ["on"]),
    ]
    outputs = [
        h.make_tensor_value_info("on", TensorProto.BOOL, []),
        h.make_tensor_value_info("w", TensorProto.FLOAT, shape),
        h.make_tensor_value_info("s", TensorProto.FLOAT, []),
    ]
    body = h.make_graph(steps, "loop", inputs, outputs)
    names = [f"t{len(c.nodes)}", f"t{len(c.nodes)}sums"]
    c.nodes.append(h.make_node("Loop", [times, "", x.name], names, body=body))
    if c.draw.random() < 0.3:
        return Value(names[1], "f", (x.dims[axis],))
    return resized(x, names[0])


def _scan(c: Chain, x: Value) -> Value | None:
    """Sums so far along an axis."""
    if x.kind not in "fi" or x.rank < 2:
        return None
    axis, kind, shape = c.axis(x), KINDS[x.kind], [None] * (x.rank - 1)
    first = c.add("ReduceMax", [x.name, c.constant([axis])], keepdims=0)
    steps = [h.make_node("Add", ["s", "e"], ["t"]), h.make_node("Identity", ["t"], ["o"])]
    inputs = [h.make_tensor_value_info(n, kind, shape) for n in "se"]
    outputs = [h.make_tensor_value_info(n, kind, shape) for n in "to"]
    body = h.make_graph(steps, "scan", inputs, outputs)
    to, reverse = c.draw.randrange(x.rank), c.draw.randrange(2)
    names = [f"t{len(c.nodes)}last", f"t{len(c.nodes)}"]
    c.nodes.append(
        h.make_node(
            "Scan",
            [first, x.name],
            names,
            body=body,
            num_scan_inputs=1,
            scan_input_axes=[axis],
            scan_output_axes=[to],
            scan_input_directions=[reverse],
        )
    )
    rest = [*x.dims[:axis], *x.dims[axis + 1 :]]
    return Value(names[1], x.kind, (*rest[:to], x.dims[axis], *rest[to:]))


def _elementwise(c: Chain, x: Value) -> Value | None:
    if x.kind == "f":
        op = c.draw.choice(["Floor", "Ceil", "Round", "Sqrt", "Exp", "Sign", "Elu", "Softplus", "Sin", "HardSigmoid"])
        y = c.add("Abs", [x.name]) if op == "Sqrt" else _off_ties(c, _bounded(c, x.name))
        return resized(x, c.add(op, [y]))
    if x.kind in "iw":
        return resized(x, c.add(c.draw.choice(["Abs", "Neg", "Sign", "BitwiseNot"]), [x.name]))
    return None


def _compare_with_mean(c: Chain, x: Value) -> Value | None:
    """What lies above the mean of its rows, and, or, or not both, above zero, as floats."""
    if x.kind != "f":
        return None
    mean = c.add("ReduceMean", [x.name, c.constant([c.axis(x)])])
    a, b = c.add("Greater", [x.name, _off_ties(c, mean)]), c.add("GreaterOrEqual", [x.name, c.number(x, 0)])
    return resized(x, c.cast(c.add(c.draw.choice(["And", "Or", "Xor"]), [a, b]), "f"))


LAYERS: tuple[Step, ...] = (
    _conv,
    _conv_transpose,
    _pool,
    _layer,
    _norm,
    _quantised,
    _byte_product,
    _blocks,
    _attention,
    _recurrent,
    _if,
    _loop,
    _scan,
    _elementwise,
    _compare_with_mean,
)

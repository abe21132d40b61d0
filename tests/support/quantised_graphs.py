"""Random attentions with QuantizeLinear and DequantizeLinear in every place where quantisers put them.

All scales are powers of two, so scores and products are exact in f32, and a correct computation has no tie to decide: rounded
probabilities apart, whose arguments come near no step, every order of operations gives the same bits.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto as T
from onnx import helper as h
from onnx import numpy_helper

B, SQ, SKV, D, DV = 2, 5, 7, 16, 8
_TYPES = {np.uint8: T.UINT8, np.int8: T.INT8, np.uint16: T.UINT16, np.int16: T.INT16}
Places = tuple[str, ...]
PLACES: Places = ("q", "k", "v", "scores", "masked", "probabilities", "output")


@dataclass(frozen=True)
class Drawn:
    """How one graph is built: `places` are rounded, `kind` is the type of the integers, `zero` their zero point (None: left out),
    `layout` how Q, K and V come, `group` query heads for each of K and V."""

    places: Places
    kind: type
    zero: int | None
    opset: int
    layout: str = "heads"
    group: int = 1
    einsum: bool = False
    scaled: bool = True
    mask: str = ""
    dynamic: bool = False
    stored: bool = False
    channels: bool = False
    again: bool = False
    """Whether probabilities are guarded against NaN behind their rounding and rounded again, as quantisers of exports do."""


def draw(seed: int) -> Drawn:
    """A random graph; seed by seed the same on every machine."""
    rng = random.Random(seed)
    places = PLACES if rng.random() < 0.4 else tuple(p for p in PLACES if rng.random() < 0.75)
    if "probabilities" not in places:  # then what the output rounds is not exact
        places = tuple(p for p in places if p != "output")
    opset = rng.choice([13, 17, 18, 20, 21, 22, 23])
    kind = rng.choice([np.uint8, np.int8] if opset < 21 else [np.uint8, np.int8, np.uint16, np.int16])
    return Drawn(
        places,
        kind,
        rng.choice([0, -3, None]),
        opset,
        rng.choice(["heads", "tokens", "flat", "quantised first"]),
        rng.choice([1, 1, 2]),
        rng.random() < 0.25,
        rng.random() < 0.6,
        rng.choice(["", "causal", "added"]),
        rng.random() < 0.4,
        rng.random() < 0.3,
        rng.random() < 0.2,
        rng.random() < 0.4,
    )


class _Graph:
    def __init__(self, drawn: Drawn) -> None:
        self.drawn, self.nodes, self.constants, self.inputs = drawn, [], {}, {}  # type: ignore[var-annotated]

    def op(self, kind: str, *inputs: str, **attrs: Any) -> str:
        name = f"{kind}_{len(self.nodes)}"
        self.nodes.append(h.make_node(kind, inputs, [name], name=f"n_{name}", **attrs))
        return name

    def const(self, array: Any) -> str:
        name = f"c{len(self.constants)}"
        self.constants[name] = np.asarray(array)
        return name

    def grid(self, scale: float, *, from_zero: bool = False, size: int = 0) -> tuple[str, str]:
        """(scale, zero point) as constants: one number, or `size` equal ones. The range of `from_zero` begins at 0."""
        kind = np.dtype(self.drawn.kind)
        zero = 0
        if self.drawn.zero is not None and not from_zero:
            zero = self.drawn.zero + (1 << (8 * kind.itemsize - 1) if kind.kind == "u" else 0)
        shape = (size,) if size else ()
        return self.const(np.full(shape, scale, np.float32)), self.const(np.full(shape, zero, kind))

    def rounded(self, x: str, scale: float, *, from_zero: bool = False) -> str:
        step, zero = self.grid(scale, from_zero=from_zero)
        given = [zero] if self.drawn.zero is not None else []
        x = self.op("QuantizeLinear", x, step, *([] if self.drawn.kind is np.uint8 else [zero]) or given)
        return self.op("DequantizeLinear", x, step, *given)


def build(drawn: Drawn) -> onnx.ModelProto:
    """The model: inputs q, k, v (k8, v8 where they are stored as integers) and perhaps mask; one output o."""
    g = _Graph(drawn)
    heads = 2 * drawn.group
    q = _operand(g, "q", heads, SQ, D)
    k, v = _operand(g, "k", 2, SKV, D), _operand(g, "v", 2, SKV, DV)
    if drawn.group > 1:
        k, v = (_repeated(g, x, width) for x, width in ((k, D), (v, DV)))
    if drawn.einsum:
        s = g.op("Einsum", q, k, equation="bhqd,bhkd->bhqk")
    else:
        s = g.op("MatMul", q, g.op("Transpose", k, perm=[0, 1, 3, 2]))
    if "scores" in drawn.places:
        s = g.rounded(s, 0.0625)
    if drawn.scaled:
        s = g.op("Mul", s, g.const(np.float32(0.25)))
    if drawn.mask == "causal":
        keep = np.tril(np.ones((SQ, SKV), bool), SKV - SQ)
        s = g.op("Where", g.const(keep), s, g.const(np.float32(-8)))
    elif drawn.mask == "added":
        g.inputs["mask"] = ((B, 1, 1, SKV), T.FLOAT)
        s = g.op("Add", s, "mask")
    if "masked" in drawn.places:
        s = g.rounded(s, 0.03125)
    p = g.op("Softmax", s, axis=-1)
    if "probabilities" in drawn.places:
        step = 2.0**-8 if np.dtype(drawn.kind).kind == "u" else 2.0**-7
        p = g.rounded(p, step, from_zero=True)
        if drawn.again:
            p = g.op("Where", g.op("IsNaN", p), g.const(np.float32(0)), p)
            p = g.rounded(p, step / 2, from_zero=True)
    o = g.op("Einsum", p, v, equation="bhqk,bhkd->bhqd") if drawn.einsum else g.op("MatMul", p, v)
    if drawn.layout != "heads":
        o = g.op("Transpose", o, perm=[0, 2, 1, 3])
    if "output" in drawn.places:
        o = g.rounded(o, 0.03125)
    g.nodes[-1].output[0] = "o"
    return _model(g)


def _operand(g: _Graph, name: str, heads: int, length: int, width: int) -> str:
    """(B, heads, length, width) from an input in the drawn layout."""
    d = g.drawn
    shape = {"heads": (B, heads, length, width), "flat": (B, length, heads * width)}
    x, axes = name, shape.get(d.layout, (B, length, heads, width))
    stored = d.stored and name != "q" and np.dtype(d.kind).itemsize == 1 and name in d.places
    first = stored or d.layout in ("heads", "quantised first")
    if stored:
        x = f"{name}8"
        step, zero = g.grid(0.0625, size=axes[-1] if d.channels else 0)
        g.inputs[x] = (axes, _TYPES[d.kind])
        attrs = {"axis": len(axes) - 1} if d.channels else {}
        x = g.op("DequantizeLinear", x, step, *([zero] if d.zero is not None else []), **attrs)
    else:
        g.inputs[x] = (axes, T.FLOAT)
    if name in d.places and first and not stored:
        x = g.rounded(x, 0.0625)
    if d.layout == "flat":
        x = g.op("Reshape", x, g.const(np.asarray([0, -1, heads, width])))
    if d.layout != "heads":
        x = g.op("Transpose", x, perm=[0, 2, 1, 3])
    if name in d.places and not first:
        x = g.rounded(x, 0.0625)
    return x


def _repeated(g: _Graph, x: str, width: int) -> str:
    x = g.op("Unsqueeze", x, g.const(np.asarray([2])))
    x = g.op("Expand", x, g.const(np.asarray([1, 1, g.drawn.group, 1, 1])))
    return g.op("Reshape", x, g.const(np.asarray([0, 2 * g.drawn.group, -1, width])))


def _model(g: _Graph) -> onnx.ModelProto:
    def declared(shape: tuple[int, ...]) -> tuple[int | str, ...]:
        names: dict[int, str] = {SKV: "keys"} if g.drawn.dynamic and g.drawn.mask != "causal" else {}
        return tuple(names.get(n, n) if i else n for i, n in enumerate(shape))

    inputs = [h.make_tensor_value_info(n, t, declared(s)) for n, (s, t) in g.inputs.items()]
    initializers = [numpy_helper.from_array(x, n) for n, x in g.constants.items()]
    output = h.make_tensor_value_info("o", T.FLOAT, None)
    graph = h.make_graph(g.nodes, "g", inputs, [output], initializers)
    model = h.make_model(graph, opset_imports=[h.make_opsetid("", g.drawn.opset)], ir_version=9)
    model = onnx.shape_inference.infer_shapes(model)
    del model.graph.value_info[:]
    onnx.checker.check_model(model)
    return model


def feeds(model: onnx.ModelProto, seed: int) -> dict[str, Any]:
    """Multiples of a 32nd for floats, integers of both halves of their type's range."""
    rng, drawn = np.random.default_rng(seed), {}
    for value in model.graph.input:
        t = value.type.tensor_type
        shape = [d.dim_value or SKV for d in t.shape.dim]
        if t.elem_type == T.FLOAT:
            drawn[value.name] = np.asarray(np.round(rng.standard_normal(shape) * 32) / 32, np.float32)
        else:
            middle = 128 if t.elem_type == T.UINT8 else 0
            drawn[value.name] = (middle + rng.integers(-30, 30, shape)).astype(h.tensor_dtype_to_np_dtype(t.elem_type))
    return drawn

"""ONNX to ONNX, for IREE only: what its importer refuses or miscompiles, written so that it does not."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
import onnx.inliner
from onnx import helper, numpy_helper

EXPAND = (
    # Defined by ONNX as functions; the importer of IREE has no lowering for them (found by compiling one of each).
    "AffineGrid",
    "Attention",
    "CausalConvWithState",
    "LinearAttention",
    "RMSNormalization",
    "RotaryEmbedding",
    "SwiGLU",
    "Swish",
)
"""Operators that are replaced by their ONNX function body where `legalize` has no better spelling."""


def legalize(model: onnx.ModelProto) -> onnx.ModelProto:
    """A model with equal results that IREE can import; the model passed is not changed.

    Model-local functions are inlined. Operators that IREE refuses become smaller ones, and a Reshape that merges two dynamic
    dims is written so that IREE does not miscompile it. Needs no shape inference, but uses `value_info` where there is some.
    """
    out = onnx.ModelProto()
    out.CopyFrom(model)
    if out.functions:
        out = onnx.inliner.inline_local_functions(out)
    _rewrite(out)
    if {n.op_type for n in out.graph.node if n.domain in ("", "ai.onnx")} & set(EXPAND):
        out = onnx.inliner.inline_selected_functions(out, [("", name) for name in EXPAND], inline_schema_functions=True)
    return out


class _Graph:
    """Types, constants and fresh names of one graph while its nodes are rewritten."""

    def __init__(self, model: onnx.ModelProto) -> None:
        graph = model.graph
        self.graph = graph
        self.opset = next((o.version for o in model.opset_import if o.domain in ("", "ai.onnx")), 1)
        self.types: dict[str, tuple[int, list[int | str | None] | None]] = {}
        for v in (*graph.input, *graph.value_info, *graph.output):
            t = v.type.tensor_type
            shape: list[int | str | None] | None = None
            if t.HasField("shape"):
                shape = [d.dim_value if d.HasField("dim_value") else d.dim_param or None for d in t.shape.dim]
            self.types[v.name] = (t.elem_type, shape)
        self.constants = {t.name: t for t in graph.initializer}
        for node in graph.node:
            if node.op_type == "Constant" and node.attribute and node.attribute[0].name == "value":
                self.constants[node.output[0]] = node.attribute[0].t
        for t in graph.initializer:
            self.types[t.name] = (t.data_type, list(t.dims))
        self.names = set(self.types) | {o for n in graph.node for o in n.output}
        self.nodes: list[onnx.NodeProto] = []

    def fresh(self, hint: str) -> str:
        name, n = hint, 1
        while name in self.names:
            n += 1
            name = f"{hint}_{n}"
        self.names.add(name)
        return name

    def add(self, op: str, inputs: Sequence[str], hint: str, *, out: str | None = None, **attrs: Any) -> str:
        name = out or self.fresh(hint)
        self.nodes.append(helper.make_node(op, list(inputs), [name], name=f"{hint}/{op}", **attrs))
        return name

    def const(self, array: Any, hint: str) -> str:
        name = self.fresh(hint)
        tensor = numpy_helper.from_array(np.asarray(array), name)
        self.graph.initializer.append(tensor)
        self.constants[name] = tensor
        return name

    def shape(self, name: str) -> list[int | str | None] | None:
        return self.types.get(name, (0, None))[1]


_Handler = Callable[[_Graph, onnx.NodeProto], bool]


def _rewrite(model: onnx.ModelProto) -> None:
    g = _Graph(model)
    for node in model.graph.node:
        handler = _HANDLERS.get(node.op_type) if node.domain in ("", "ai.onnx") else None
        if handler is None or not handler(g, node):
            g.nodes.append(node)
    nodes = [onnx.NodeProto.FromString(n.SerializeToString()) for n in g.nodes]
    del model.graph.node[:]
    model.graph.node.extend(nodes)


def _attr(node: onnx.NodeProto, name: str, default: Any) -> Any:
    return next((helper.get_attribute_value(a) for a in node.attribute if a.name == name), default)


def _rms_norm(g: _Graph, node: onnx.NodeProto) -> bool:
    """x / sqrt(mean(x^2) + eps) * scale. The function body computes its axes at run time, which IREE refuses."""
    x, scale = node.input
    kind, shape = g.types.get(x, (0, None))
    axis = _attr(node, "axis", -1)
    if axis < 0 or shape is not None:
        axes = list(range(axis, 0)) if axis < 0 else list(range(axis, len(shape or [])))
    else:
        return False
    stash = _attr(node, "stash_type", 1)
    if not kind:
        return False
    hint = node.name or "RMSNormalization"
    wide = x if kind == stash else g.add("Cast", [x], hint, to=stash)
    mean = g.add("ReduceMean", [g.add("Mul", [wide, wide], hint), g.const(np.array(axes, np.int64), hint)], hint)
    eps = numpy_helper.to_array(helper.make_tensor("eps", stash, [], [_attr(node, "epsilon", 1e-5)]))
    root = g.add("Sqrt", [g.add("Add", [mean, g.const(eps, hint)], hint)], hint)
    normal = g.add("Div", [wide, root], hint)
    if kind != stash:
        normal = g.add("Cast", [normal], hint, to=kind)
    g.add("Mul", [normal, scale], hint, out=node.output[0])
    return True


def _reshape(g: _Graph, node: onnx.NodeProto) -> bool:
    """IREE casts the second of two leading dynamic dims to 1 when a Reshape merges them with -1.

    A Reshape [d0, d1, ..., tail] -> [-1, tail'] with several dynamic dims becomes one Reshape that merges the static tail
    only, keeping dynamic dims by 0, and one to a shape computed from the input's dims.
    """
    shape, target = g.shape(node.input[0]), g.constants.get(node.input[1])
    if shape is None or target is None or _attr(node, "allowzero", 0):
        return False
    want = [int(i) for i in numpy_helper.to_array(target).ravel()]
    dynamic = [i for i, d in enumerate(shape) if not isinstance(d, int)]
    if len(dynamic) < 2 or -1 not in want or any(i < len(want) and want[i] == 0 for i in dynamic):
        return False
    known = math.prod(want[i] if want[i] else int(shape[i] or 1) for i in range(len(want)) if want[i] != -1)
    static = math.prod(d for d in shape if isinstance(d, int))
    if known == 0 or static % known:
        return False
    hint = node.name or "Reshape"
    sizes = g.add("Shape", [node.input[0]], hint)
    merged = g.const(np.array([static // known], np.int64), hint)
    for i in dynamic:
        one = g.add("Gather", [sizes, g.const(np.array([i], np.int64), hint)], hint, axis=0)
        merged = g.add("Mul", [merged, one], hint)
    parts = [merged if w == -1 else g.const(np.array([w or shape[i]], np.int64), hint) for i, w in enumerate(want)]
    full = parts[0] if len(parts) == 1 else g.add("Concat", parts, hint, axis=0)
    g.add("Reshape", [node.input[0], full], hint, out=node.output[0])
    return True


_HANDLERS: dict[str, _Handler] = {"RMSNormalization": _rms_norm}

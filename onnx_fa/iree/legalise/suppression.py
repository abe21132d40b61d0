"""NonMaxSuppression. IREE's is of one class of one image without a score threshold, and is refused or fails elsewhere."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

from onnx_fa.errors import ModelError
from onnx_fa.iree.legalise.non_zero import add_non_zero
from onnx_fa.iree.legalise.writer import GraphWriter, attr_of

_F32, _I64, _BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL
_LOWEST = np.finfo(np.float32).min


def non_max_suppression(g: GraphWriter, node: onnx.NodeProto) -> bool:
    """A Loop with a step for each box that is kept: of all classes (C) of all images (B) at once it takes the best score that is
    left, and away what lies on that box. It ends when none is left. boxes (B, N, 4), scores (B, C, N); all sizes may be the run's.
    Raises ModelError for what is no f32."""
    boxes, scores, most, overlap, least = (*node.input, "", "", "")[:5]
    hint = node.name or "NonMaxSuppression"
    if g.kind(boxes) != _F32 or g.kind(scores) != _F32:
        raise ModelError(f"node {hint!r}: NonMaxSuppression of boxes that are no f32")

    def add(op: str, *inputs: str, **attributes: Any) -> str:
        return g.add(op, inputs, hint, **attributes)

    def whole(value: int) -> str:
        return g.const(np.array(value, np.int64), hint)

    def scalar(name: str, default: float) -> str:
        return g.reshape(name, [], hint) if name else g.const(np.array(default, np.float32), hint)

    count = g.size(boxes, 1, hint)
    dims = [d if isinstance(d, int) else None for d in (*(g.shape(scores) or [None] * 3),)]
    wanted = g.reshape(g.cast(most, g.kind(most), _I64, hint), [], hint) if most else whole(0)
    steps = add("Max", add("Min", wanted, count), whole(0))
    none = g.const(np.array(-np.inf, np.float32), hint)
    left = add("Max", scores, g.const(np.array(_LOWEST, np.float32), hint))
    if least:
        left = add("Where", add("Greater", scores, scalar(least, 0)), left, none)
    first = g.ints([0], hint)
    unranked = add("Expand", g.const(np.array(-1, np.float32), hint), add("Shape", scores))
    state = add("Concat", add("Unsqueeze", left, first), add("Unsqueeze", unranked, first), axis=0)
    places = add("Range", whole(0), count, whole(1))
    body = _body(
        g, _edges(g, boxes, bool(attr_of(node, "center_point_box", 0)), hint), places, scalar(overlap, 0), dims, hint
    )
    done = g.fresh(hint)
    start = g.const(np.array(True), hint)
    g.nodes.append(helper.make_node("Loop", [steps, start, state], [done], name=g.fresh(f"{hint}/Loop"), body=body))
    ranks = add("Gather", g.typed(done, _F32, [2, *dims]), whole(1), axis=0)
    slots = add("Unsqueeze", add("Range", whole(0), steps, whole(1)), g.ints([1], hint))  # (steps, 1)
    is_there = add("Equal", add("Unsqueeze", ranks, g.ints([2], hint)), add("Cast", slots, to=_F32))
    found = g.reduce("ReduceMax", add("Where", is_there, places, whole(-1)), [3], hint, keepdims=0)
    kept = add_non_zero(g, add("Add", found, whole(1)), [*dims[:2], None], hint, kind=_I64)
    at = g.add("Transpose", [kept], hint, perm=[1, 0])
    box = add("Unsqueeze", add("GatherND", found, at), g.ints([1], hint))
    of = add("Slice", at, g.ints([0], hint), g.ints([2], hint), g.ints([1], hint))
    g.add("Concat", [of, box], hint, axis=1, out=node.output[0])
    return True


def _edges(g: GraphWriter, boxes: str, centred: bool, hint: str) -> list[str]:
    """Where boxes begin and end along both axes, and their areas, each (B, 1, N)."""

    def add(op: str, *inputs: str) -> str:
        return g.add(op, inputs, hint)

    a, b, c, d = (
        g.add("Unsqueeze", [g.add("Gather", [boxes, g.const(np.array(n, np.int64), hint)], hint, axis=2), one], hint)
        for one in [g.ints([1], hint)]
        for n in range(4)
    )
    if centred:  # x, y, width, height
        half = g.const(np.array(0.5, np.float32), hint)
        pairs = [(add("Sub", p, add("Mul", w, half)), add("Add", p, add("Mul", w, half))) for p, w in ((a, c), (b, d))]
    else:
        pairs = [(add("Min", p, q), add("Max", p, q)) for p, q in ((a, c), (b, d))]
    area = add("Mul", *(add("Sub", end, begin) for begin, end in pairs))
    return [*(v for pair in pairs for v in pair), area]


def _body(
    g: GraphWriter, edges: list[str], places: str, overlap: str, dims: list[int | None], hint: str
) -> onnx.GraphProto:
    """One step: what is left of the scores, and the number of the step in which each box was kept, -1 where it was not: one value
    (2, B, C, N), since IREE mixes up the memory of two whose sizes are free."""
    nodes: list[onnx.NodeProto] = []
    infos: list[onnx.ValueInfoProto] = []
    step, going, state = (g.fresh(f"{hint}_{name}") for name in ("step", "going", "state"))
    batch, classes, count = dims
    each, one, plane = [batch, classes, count], [batch, classes, 1], [1, batch, classes, count]
    info = helper.make_tensor_value_info

    def add(op: str, kind: int, shape: list[int | None], *inputs: str, **attributes: Any) -> str:
        """Of a type that is said: of what is not, the importer makes a scalar."""
        name = g.fresh(hint)
        nodes.append(helper.make_node(op, list(inputs), [name], name=g.fresh(f"{hint}/{op}"), **attributes))
        infos.append(info(name, kind, shape))
        return name

    def reduced(op: str, x: str, axes: list[int], shape: list[int | None]) -> str:
        keepdims = int(bool(shape))
        if op == "ReduceSum" or g.opset >= 18:
            return add(op, _F32, shape, x, g.ints(axes, hint), keepdims=keepdims)
        return add(op, _F32, shape, x, axes=axes, keepdims=keepdims)

    zero, none = (g.const(np.array(n, np.float32), hint) for n in (0, -np.inf))
    left, ranks = (add("Gather", _F32, each, state, g.const(np.array(n, np.int64), hint), axis=0) for n in (0, 1))
    best = add("ArgMax", _I64, one, left, axis=2, keepdims=1)
    is_any = add("Greater", _BOOL, one, reduced("ReduceMax", left, [2], one), none)
    here = add("Equal", _BOOL, each, places, best)
    mine = [reduced("ReduceSum", add("Where", _F32, each, here, e, zero), [2], one) for e in edges]
    low_y, high_y, low_x, high_x, area = edges
    wide = [
        add("Sub", _F32, each, add("Min", _F32, each, high, of_high), add("Max", _F32, each, low, of_low))
        for low, high, of_low, of_high in ((low_y, high_y, *mine[:2]), (low_x, high_x, *mine[2:4]))
    ]
    both = add("Mul", _F32, each, *wide)
    union = add("Sub", _F32, each, add("Add", _F32, each, area, mine[4]), both)
    meet = add("And", _BOOL, each, *(add("Greater", _BOOL, each, w, zero) for w in wide))
    for size, shape in ((both, each), (area, [batch, 1, count]), (mine[4], one), (union, each)):
        meet = add("And", _BOOL, each, meet, add("Greater", _BOOL, list(shape), size, zero))
    lies = add("And", _BOOL, each, meet, add("Greater", _BOOL, each, add("Div", _F32, each, both, union), overlap))
    rest = add("Where", _F32, each, add("Or", _BOOL, each, lies, here), none, left)
    kept = add("And", _BOOL, each, here, is_any)
    now = add("Where", _F32, each, kept, add("Cast", _F32, [], step, to=_F32), ranks)
    first = g.ints([0], hint)
    planes = [add("Unsqueeze", _F32, plane, x, first) for x in (rest, now)]
    after = add("Concat", _F32, [2, *each], *planes, axis=0)
    more = add("Greater", _BOOL, [], reduced("ReduceMax", rest, [0, 1, 2], []), none)
    return helper.make_graph(
        nodes,
        g.fresh(f"{hint}_body"),
        [info(step, _I64, []), info(going, _BOOL, []), info(state, _F32, [2, *each])],
        [info(more, _BOOL, []), info(after, _F32, [2, *each])],
        value_info=[v for v in infos if v.name not in (more, after)],
    )

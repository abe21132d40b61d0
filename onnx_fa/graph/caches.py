"""Pairs of a decoder's inputs and outputs that are one cache: what was seen before, and the same with the new rows."""

from __future__ import annotations

import re
from dataclasses import dataclass

import onnx_ir as ir

from onnx_fa.graph.free_dims import graph_inputs
from onnx_fa.graph.ops import CONTRIB, attr_int, op_of

GROUPED = f"{CONTRIB}.GroupQueryAttention"
TAKING_A_PAST = {GROUPED: (3, 4), f"{CONTRIB}.MultiHeadAttention": (6, 7), "Attention": (4, 5)}
"""Attention ops with the positions of the pasts of K and V, whose presents are outputs 1 and 2. Caches are (B, H, P, D) there."""
ROWS = 2
"""The axis of the rows in those."""
_APPENDING = ("Concat", "TensorScatter")
"""Ops that put new rows into their first input."""


@dataclass(frozen=True)
class CachePair:
    """An input and an output of a model, by their names. `length_axis` is that of the rows, None where the graph does not tell."""

    past: str
    present: str
    length_axis: int | None


def find_cache_pairs(model: ir.Model) -> tuple[CachePair, ...]:
    """The caches of a decoder, in the order of its inputs: those that its ops show, then those whose names say it."""
    inputs = {v: str(v.name) for v in graph_inputs(model)}
    presents: dict[str, CachePair] = {}
    taken: set[str] = set()
    for output in model.graph.outputs:
        past, axis = _past_of(output)
        if past in inputs and inputs[past] not in presents:
            presents[inputs[past]] = CachePair(inputs[past], str(output.name), axis)
            taken.add(str(output.name))
    left = {_bare(str(v.name)): str(v.name) for v in model.graph.outputs if _bare(str(v.name)) and v.name not in taken}
    for name in inputs.values():
        bare = _bare(name)
        if name not in presents and bare in left:
            presents[name] = CachePair(name, left[bare], None)
    return tuple(presents[name] for name in inputs.values() if name in presents)


def _past_of(present: ir.Value) -> tuple[ir.Value | None, int | None]:
    """The value that new rows are put behind or into to make an output, and the axis of the rows."""
    node, made = present.producer(), present
    while node is not None and op_of(node) == "Identity" and node.inputs[0] is not None:
        made = node.inputs[0]
        node = made.producer()
    if node is None or not node.inputs or node.inputs[0] is None:
        return None, None
    if op_of(node) in _APPENDING and made is node.outputs[0]:
        first = node.inputs[0]
        axis = attr_int(node, "axis", -2 if op_of(node) == "TensorScatter" else 0)
        if axis < 0:
            return first, None if first.shape is None else axis + len(first.shape)
        return first, axis
    for output, position in enumerate(TAKING_A_PAST.get(op_of(node), ()), start=1):
        if output < len(node.outputs) and made is node.outputs[output] and position < len(node.inputs):
            return node.inputs[position], ROWS
    return None, None


_WORDS = re.compile(
    r"^(past_key_values|past_kv|past|present_key_values|present_kv|present|cache_in|cache_out)(?=[._]|\d|$)"
)


def _bare(name: str) -> str:
    """The name without the word that says whether it is the past or the present; "" without one."""
    return "" if _WORDS.match(name) is None else f".{_WORDS.sub('', name).lstrip('._')}"


def first_rows(past: ir.Value, room: int) -> int:
    """How many rows a cache has before anything was seen: none, or `room` for one whose rows are all there from the beginning, or
    the window's for one that holds a window only."""
    for node, _ in past.uses():
        if op_of(node) == "TensorScatter":
            return room
        if op_of(node) == GROUPED and attr_int(node, "sliding_window_cache", 0):
            return max(attr_int(node, "local_window_size", 0), 0)
    return 0

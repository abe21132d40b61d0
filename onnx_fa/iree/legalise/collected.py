"""What a Loop or a Scan collects from each round of its body, which IREE's Loop does not have, and its Scan has wrongly: of one
round where a size is the run's, silently (docs/developer/iree-bugs.md).

A Scan becomes a Loop whose rounds take their elements themselves. What is collected is one more value that the Loop carries: all
rounds' numbers in one row, of which each round writes its own. Values of the model's that have free sizes are in that row too: of
several that a loop carries, IREE forgets where in memory they lie.
"""

from __future__ import annotations

from collections.abc import Mapping, Set

import numpy as np
import onnx
from onnx import TensorProto, helper

from onnx_fa.errors import ModelError
from onnx_fa.graph.ops import op_of
from onnx_fa.graph.view import GraphView
from onnx_fa.iree.legalise.loop_writer import Dims, LoopWriter, Rounds, Rows, State
from onnx_fa.iree.legalise.renamed import own_names, rename_values
from onnx_fa.iree.legalise.writer import GraphWriter, attr_of, bodies_of
from onnx_fa.patterns.ops.blocked import SPEC_KEY

_I64 = TensorProto.INT64
_STATES_SINCE = 9
"""The opset from which a Scan has no axis of batches."""
_MOST_ROUNDS = 1 << 31
"""A bound above is one that stands for none."""


def write_collected(model: onnx.ModelProto, kept: Set[str] = frozenset()) -> bool:
    """Writes the Scans of a model, and the Loops that collect something, end by a condition or carry several values of free sizes,
    in place; whether there were any. Types of values are taken from `value_info`; `kept`: the results of Loops that have the shapes
    of what these begin with. Raises ModelError for what is collected of an unknown number of axes, and for a loop without a
    bound."""
    g = GraphWriter(model)
    return _write(g, {}, frozenset(g.types), kept)


def _write(g: GraphWriter, around: Mapping[str, tuple[str, int]], taken: Set[str], kept: Set[str]) -> bool:
    """`around`: a value and its axis for each size that has a name, outside of the graph. `taken`: the names of values there."""
    sizes, found = dict(around), False
    taken = taken | own_names(g.graph)
    g.names |= {v.name for node in g.graph.node for body in bodies_of(node) for v in body.input}
    for value in g.graph.input:
        _name_sizes(g, value.name, sizes)
    for node in g.graph.node:
        for body in bodies_of(node):
            _rename(g, body, taken)
            found |= _write(g.within(body), sizes, taken, kept)
        op = op_of(node)
        if op == "Scan" and g.opset >= _STATES_SINCE:
            _write_rounds(g, _of_scan(g, node), sizes, kept)
            found = True
        elif op == "Loop" and _is_written(g, node):
            _write_rounds(g, _of_loop(g, node), sizes, kept)
            found = True
        else:
            g.nodes.append(node)
        for name in node.output:
            _name_sizes(g, name, sizes)
    if found:
        g.replace_nodes(g.nodes)
    return found


def _rename(g: GraphWriter, body: onnx.GraphProto, taken: Set[str]) -> None:
    """Gives other names to values of a body that are called like one around it, as exporters call a result and what it is made
    of."""
    new = {name: g.fresh(f"{name}/inside") for name in sorted(own_names(body) & taken - {""})}
    if new:
        rename_values(body, new)


def _name_sizes(g: GraphWriter, value: str, sizes: dict[str, tuple[str, int]]) -> None:
    for axis, dim in enumerate(g.shape(value) or ()):
        if isinstance(dim, str):
            sizes.setdefault(dim, (value, axis))


def _is_written(g: GraphWriter, node: onnx.NodeProto) -> bool:
    """Whether a Loop collects something, ends by a condition, or carries several values of free sizes."""
    if any(p.key == SPEC_KEY for p in node.metadata_props):
        return False  # the blocked form of an attention
    body, start = bodies_of(node)[0], node.input[1] if len(node.input) > 1 else ""
    if len(body.output) - 1 > len(node.input) - 2 or sum(map(g.is_free, node.input[2:])) > 1:
        return True
    return not node.input[0] or not _is_always(g, start, body, body.input[1].name, body.output[0].name)


def _of_loop(g: GraphWriter, node: onnx.NodeProto) -> Rounds:
    """Raises ModelError where nothing says how many rounds there are at most."""
    body, hint = bodies_of(node)[0], node.name or "Loop"
    trip = g.array(node.input[0]) if node.input[0] else None
    if not node.input[0] or (trip is not None and int(trip.reshape(())) > _MOST_ROUNDS):
        raise ModelError(
            f"node {hint!r}: Loop of as many rounds as it likes, of which IREE ends none before the last: give it a trip count"
        )
    starts = list(node.input[2:])
    carried = len(starts)
    befores, afters = [v.name for v in body.input[2:]], [v.name for v in body.output[1:]]
    results = [*node.output, *[""] * (len(afters) - len(node.output))]
    return Rounds(
        hint,
        g.typed(g.reshape(node.input[0], [], hint), _I64, []),
        node.input[1] if len(node.input) > 1 and node.input[1] else g.const(np.array(True), hint),
        body,
        body.input[0].name,
        body.input[1].name,
        body.output[0].name,
        [State(*names) for names in zip(starts, befores, afters[:carried], results[:carried], strict=True)],
        [Rows(value, result) for value, result in zip(afters[carried:], results[carried:], strict=True) if result],
    )


def _of_scan(g: GraphWriter, node: onnx.NodeProto) -> Rounds:
    """A Loop over the elements of a Scan, whose body begins by taking them. Raises ModelError for inputs of unknown rank."""
    hint, body = node.name or "Scan", onnx.GraphProto()
    body.CopyFrom(bodies_of(node)[0])
    count = attr_of(node, "num_scan_inputs", 0)
    carried, collected = len(node.input) - count, len(body.output) - (len(node.input) - count)
    axes, back = (attr_of(node, f"scan_input_{what}", [0] * count) for what in ("axes", "directions"))
    to, turned = (attr_of(node, f"scan_output_{what}", [0] * collected) for what in ("axes", "directions"))
    step, going, on = (g.fresh(f"{hint}_{what}") for what in ("step", "going", "on"))
    own = list(body.node)
    del body.node[:]
    trip, last, size = "", "", None
    for x, element, axis, is_back in zip(node.input[carried:], body.input[carried:], axes, back, strict=True):
        shape = g.shape(x)
        if shape is None:
            raise ModelError(f"node {hint!r}: Scan over {x!r}, of which the number of axes is not known")
        along = axis % len(shape)
        if not trip:
            size = shape[along]
            known = isinstance(size, int)
            trip = g.const(np.array(size, np.int64), hint) if known else g.typed(g.size(x, along, hint), _I64, [])
            last = g.typed(g.add("Sub", [trip, g.const(np.array(1, np.int64), hint)], hint), _I64, [])
        place = step
        if is_back:
            place = g.fresh(f"{hint}_place")
            body.node.append(helper.make_node("Sub", [last, step], [place], g.fresh(f"{hint}/Sub")))
        body.node.append(helper.make_node("Gather", [x, place], [element.name], g.fresh(f"{hint}/Gather"), axis=along))
        body.value_info.append(
            helper.make_tensor_value_info(element.name, g.kind(x), [*shape[:along], *shape[along + 1 :]])
        )
    body.node.extend(own)
    body.node.append(helper.make_node("Identity", [going], [on], g.fresh(f"{hint}/Identity")))
    befores, afters = [v.name for v in body.input[:carried]], [v.name for v in body.output]
    states = zip(node.input[:carried], befores, afters[:carried], node.output[:carried], strict=True)
    made = zip(afters[carried:], node.output[carried:], to, turned, strict=False)
    return Rounds(
        hint,
        trip,
        g.const(np.array(True), hint),
        body,
        step,
        going,
        on,
        [State(*names) for names in states],
        [Rows(value, result, axis, bool(is_back)) for value, result, axis, is_back in made if result],
        size,
        keeps=True,
    )


def _write_rounds(g: GraphWriter, rounds: Rounds, sizes: Mapping[str, tuple[str, int]], kept: Set[str]) -> None:
    """Writes the Loop, and what makes the results of what it carries. `kept` as in write_collected."""
    is_always = _is_always(g, rounds.start, rounds.body, rounds.going, rounds.on)
    writer = LoopWriter(g, rounds, sizes, is_always=is_always)
    shapes = {s: g.shape(s.start) if rounds.keeps else _kept_shape(g, writer.inner, s, kept) for s in rounds.states}
    free = [s for s in rounds.states if g.is_free(s.start) or shapes[s] is None]
    for state, shape in shapes.items():
        if state in free and shape is not None and len(free) + len(rounds.rows) > 1:
            writer.carry_in_row(state, shape)
        else:
            writer.carry(state, shape)
    count = rounds.trip if is_always or not rounds.rows else writer.count()
    for rows in rounds.rows:
        writer.collect(rows, count)
    writer.write()


def _kept_shape(g: GraphWriter, inner: GraphWriter, state: State, kept: Set[str]) -> Dims | None:
    """The shape of a carried value in each round, where that is known to be one."""
    shape = g.shape(state.start)
    same = shape is not None and inner.shape(state.before) == shape == inner.shape(state.after)
    return shape if same or state.result in kept else None


def _is_always(g: GraphWriter, start: str, body: onnx.GraphProto, going: str, on: str) -> bool:
    """Whether the conditions of a Loop are true in every round."""
    array, inner = g.array(start) if start else np.array(True), g.within(body)
    if array is None or not bool(array.reshape(())):
        return False
    name = on
    while name != going:
        array, maker = inner.array(name), inner.maker(name)
        if array is not None:
            return bool(array.reshape(()))
        if maker is None or op_of(maker) != "Identity":
            return False
        name = maker.input[0]
    return True


def kept_in_loops(view: GraphView) -> frozenset[str]:
    """The results of Loops that have, after every round, the shapes of what they begin with."""
    found = set[str]()
    for node in view.model.graph.all_nodes():
        for start, result in zip(node.inputs[2:], node.outputs, strict=False) if op_of(node) == "Loop" else ():
            shape = view.shape(result)
            if result.name and shape is not None and None not in shape and shape == view.shape(start):
                found.add(result.name)
    return frozenset(found)

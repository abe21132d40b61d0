"""A part of a tensor is copied first where the compiler goes wrong with one that it does not copy (docs/developer/iree-bugs.md):
where elements are read from it by places that are computed, on GPUs, it reads them as if its rows stood beside each other; to sort
it, or to write into it, is refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import onnx

from onnx_fa.errors import ModelError
from onnx_fa.graph.ops import op_of
from onnx_fa.iree.legalise.packed_rows import ELEMENTWISE, gather_all, write_apart, write_copy
from onnx_fa.iree.legalise.renamed import rename_around
from onnx_fa.iree.legalise.writer import GraphWriter, all_nodes, attr_of, bodies_of, declare_own_nodes
from onnx_fa.spec.target import Target

_GATHERS = frozenset("Compress Gather GatherElements GatherND GridSample Pad Resize ReverseSequence Upsample".split())
"""Operators that read elements of their first operand by places that they compute."""
_SCATTERS = frozenset(("ScatterElements", "ScatterND"))
"""Of the data, the places and the updates, the compiler reads the last two so."""
_PARTS = frozenset(("Slice", "Split", "TopK"))
"""Operators whose results may lie in a larger tensor: of a TopK, in the rows that are sorted."""
_Copied = Callable[[GraphWriter, str], str]
_STEPS = 4
"""The operand of a Slice that says how far its places lie apart."""


def copy_sliced_rows(model: onnx.ModelProto, *, target: Target | None = None) -> None:
    """Puts an Apart in front of what goes wrong with a part of a tensor, in place: for a TopK's input and a scatter's data, and on
    GPUs for all that is read by computed places; in the bodies of other nodes, where the compiler takes no Apart, a Gather of all
    places. Types of values are taken from `value_info`. Raises ModelError for what such a Gather would read wrongly, too."""
    g, is_gpu = GraphWriter(model, target=target), target is not None and target.is_gpu
    found = is_gpu and _copy_for_bodies(g)
    for body in g.bodies():
        _copy(body, gather_all, gather_all, is_gpu=False)
    found |= _copy(g, write_apart, write_copy, is_gpu=is_gpu)
    if found:
        declare_own_nodes(model)


def _copy_for_bodies(g: GraphWriter) -> bool:
    """Copies the parts that a graph makes and the bodies of its nodes read by places; whether there were any. Raises ModelError for
    parts that these make themselves."""
    parts = set[str]()
    for body in g.bodies():
        for node in body.graph.node:
            parts |= (read := {value for _, value in _read_by_place(body, node) if _is_part(body, value)})
            if any(g.maker(value) is None for value in read):
                raise ModelError(
                    f"node {node.name!r}: {op_of(node)} in the body of another node takes elements of a Slice, Split or TopK in "
                    "there, which IREE reads at wrong places on GPUs"
                )
    if not parts:
        return False
    made = dict[str, str]()
    for node in g.graph.node:
        for body in bodies_of(node):
            read = {name for inner in all_nodes(body) for name in inner.input} & parts
            made |= {name: write_apart(g, name) for name in sorted(read - made.keys())}
            rename_around(body, made)
        g.nodes.append(node)
    g.replace_nodes(g.nodes)
    return True


def _copy(g: GraphWriter, copied: _Copied, written: _Copied, *, is_gpu: bool) -> bool:
    """Copies the parts that nodes of a graph read, and, `written`, those that they write into, as a sort does into what it sorts;
    whether there were any."""
    made, found = dict[str, str](), False
    for node in g.graph.node:
        for i, value in _read_by_place(g, node) if is_gpu else ():
            if value in made or (g.shape(value) is not None and _is_part(g, value)):
                node.input[i] = made[value] = made.get(value) or copied(g, value)
        if (op := op_of(node)) in _SCATTERS or op == "TopK":
            value = node.input[0]
            if g.shape(value) is not None and _is_part(g, value, int(op == "TopK")):
                node.input[0] = written(g, value)
                found = True
        g.nodes.append(node)
    if made or found:
        g.replace_nodes(g.nodes)
    else:
        g.nodes.clear()
    return bool(made) or found


def _read_by_place(g: GraphWriter, node: onnx.NodeProto) -> Iterator[tuple[int, str]]:
    """Places and names of the operands whose elements a node reads by places that are computed."""
    op = op_of(node)
    if op in _SCATTERS:
        yield from ((i, node.input[i]) for i in (1, 2))
    elif op in _GATHERS or (op == "CumSum" and attr_of(node, "reverse", 0)) or (op == "Slice" and _turns(g, node)):
        yield 0, node.input[0]


def _turns(g: GraphWriter, node: onnx.NodeProto) -> bool:
    """Whether a Slice may go backwards."""
    if len(node.input) <= _STEPS or not node.input[_STEPS]:
        return False
    steps = g.array(node.input[_STEPS])
    return steps is None or bool((steps < 0).any())


def _is_part(g: GraphWriter, value: str, axes: int = 1) -> bool:
    """Whether a value is cut out of another of more axes than that, or is computed of such a part element by element: the compiler
    may do that anew for each element that is read."""
    pending, seen = [value], set[str]()
    while pending:
        name = pending.pop()
        maker = g.maker_anywhere(name)
        if maker is None or name in seen:
            continue
        seen.add(name)
        op = op_of(maker)
        if op in _PARTS:
            shape = g.shape(maker.input[0])
            if shape is None or len(shape) > axes:
                return True
        elif op in ELEMENTWISE or op in ("Expand", "Flatten"):
            pending += [x for x in maker.input if x]
    return False

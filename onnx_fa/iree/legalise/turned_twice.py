"""A reduction whose result one operation reads in two orders is computed first (docs/developer/iree-bugs.md).

The compiler puts a reduction into the dispatch of the elementwise operation behind it. Where that reads the result twice, along
different axes (distances of all pairs of rows: |x|^2 + |y|^2 - 2xy; a softmax less its Transpose), it computes the part for one of
the two alone, and takes it for both: all numbers that need another are wrong, silently (turned_twice.mlir). It does not see through
an Apart.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import onnx
import onnx_ir as ir

from onnx_fa.graph.op_kinds import BROADCASTS
from onnx_fa.graph.ops import op_of
from onnx_fa.iree.legalise.packed_order import RESHAPING
from onnx_fa.iree.legalise.packed_rows import ELEMENTWISE, gather_all, write_apart
from onnx_fa.iree.legalise.writer import GraphWriter, declare_own_nodes
from onnx_fa.spec.target import Target

Ways = Mapping[str, frozenset[tuple[str, ...]]]
"""Of the reductions that a value may be computed together with, by their results: what is between, of nodes that change axes."""
_MOVES = frozenset((*RESHAPING, "Transpose", "Expand", "Flatten"))
_REDUCTIONS = frozenset(
    "GlobalAveragePool GlobalLpPool GlobalMaxPool GroupNormalization Hardmax InstanceNormalization LayerNormalization LogSoftmax "
    "LpNormalization MeanVarianceNormalization RMSNormalization SimplifiedLayerNormalization Softmax".split()
)
"""Beside those that are called so. Products are right."""
_FEW = 64


def keep_reductions_apart(
    model: onnx.ModelProto, held: Mapping[str, ir.TensorProtocol] | None = None, *, target: Target | None = None
) -> None:
    """Puts an Apart behind each reduction that would be wrong, in place, and a Gather of all places in the bodies of other nodes,
    where the compiler takes no Apart. Types of values are taken from `value_info`."""
    g = GraphWriter(model, held, target=target)
    for body in g.bodies():
        _part(body, gather_all)
    if _part(g, write_apart):
        declare_own_nodes(model)


def _part(g: GraphWriter, part: Callable[[GraphWriter, str], str]) -> bool:
    same, apart = _equal_values(g), dict[str, str]()
    twice = set(_read_in_two_orders(g, same))
    for node in g.graph.node if twice else ():
        for i, value in enumerate(node.input):
            node.input[i] = apart.get(value, value)
        g.nodes.append(node)
        apart |= {value: part(g, value) for value in node.output if same.get(value) in twice}
    if twice:
        g.replace_nodes(g.nodes)
    return bool(twice)


def _equal_values(g: GraphWriter) -> dict[str, str]:
    """By the first result of each node, the name of the first one that is computed so: the compiler makes one of those that are
    equal, such as the sums of a tensor and those of the same tensor again."""
    same, first = dict[str, str](), dict[tuple[object, ...], str]()
    for node in g.graph.node:
        if node.output and node.output[0] and g.array(node.output[0]) is None:
            inputs = tuple(same.get(x, _said(g, x)) for x in node.input)
            same[node.output[0]] = first.setdefault((op_of(node), inputs, _attributes(node)), node.output[0])
    return same


def _said(g: GraphWriter, value: str) -> str:
    """A name, or the numbers of a small constant: those of axes and shapes."""
    array = g.array(value) if value else None
    return value if array is None or array.size > _FEW else f"{array.dtype} {array.tolist()}"


def _read_in_two_orders(g: GraphWriter, same: Mapping[str, str]) -> Iterator[str]:
    """Results of reductions that an elementwise operation reads in more than one order, by the first that is computed so. Their
    shapes are known."""
    known: dict[str, Ways] = {}
    for node in g.graph.node:
        op = op_of(node)
        if op in _MOVES and node.input:
            step = _step(g, node)
            found = known.get(node.input[0], {})
            known[node.output[0]] = {root: frozenset((*way, step) for way in ways) for root, ways in found.items()}
        elif op in ELEMENTWISE or op in BROADCASTS:
            met = _met(g, node, known)
            yield from (root for root, ways in met.items() if len(ways) > 1)
            known[node.output[0]] = {root: ways for root, ways in met.items() if len(ways) == 1}
        elif op in _REDUCTIONS or op.startswith("Reduce"):
            result = node.output[0]
            if any(d != 1 for d in g.shape(result) or ()):
                known[result] = {same[result]: frozenset([()])}


def _met(g: GraphWriter, node: onnx.NodeProto, known: Mapping[str, Ways]) -> dict[str, frozenset[tuple[str, ...]]]:
    """The reductions behind a node's operands. One of fewer axes than the result lies along the last of them."""
    met: dict[str, frozenset[tuple[str, ...]]] = {}
    rank = len(g.shape(node.output[0]) or ())
    for x in node.input:
        missing = rank - len(g.shape(x) or ())
        end = (f"{missing} axes in front",) if missing > 0 else ()
        for root, ways in known.get(x, {}).items():
            met[root] = met.get(root, frozenset()) | {(*way, *end) for way in ways}
    return met


def _step(g: GraphWriter, node: onnx.NodeProto) -> str:
    """Equal for nodes that change axes alike."""
    return f"{op_of(node)} {[_said(g, x) for x in node.input[1:]]} {_attributes(node)}"


def _attributes(node: onnx.NodeProto) -> tuple[bytes, ...]:
    return tuple(sorted(a.SerializeToString() for a in node.attribute))

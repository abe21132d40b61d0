"""What a user can do about a miss, in words that its reason ends with."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import onnx_ir as ir

from onnx_fa.graph.free_dims import symbols
from onnx_fa.graph.lengths import expression
from onnx_fa.graph.ops import DEQUANTIZE, QUANTIZE, constant_tensor, op_of
from onnx_fa.graph.view import GraphView
from onnx_fa.match.exprs import Expr
from onnx_fa.match.misses import NoMatch
from onnx_fa.spec.terms import Dim

_MOST = 4
"""Dims, or ops, that a hint names."""
_MAX_NODES = 16
"""Nodes that are looked at for the ops between scores and what is made of them."""


def say_sizes(view: GraphView, dims: Iterable[Dim | None]) -> str:
    """Which sizes would turn the dims into numbers: those of the inputs' free dims that stand in them, or any of the inputs' where
    a dim is not known or made of other lengths. "" where the inputs leave none free."""
    dims, free = list(dims), symbols(view.model)
    used = {str(s) for d in dims if isinstance(d, str) for s in expression(d).free_symbols}
    sure = None not in dims and used <= set(free)
    named = [s for s in free if s in used or not sure]
    if not named:
        return ""
    more = " ..." if len(named) > _MOST else ""
    options = " ".join(f"--dim '{name}=N'" for name in named[:_MOST])
    return f"; {options}{more} (of compile, import and verify) {'settles' if sure else 'may settle'} it"


def refuse_rank(view: GraphView, what: str, value: Expr | None, at: ir.Node | None = None) -> NoMatch:
    """Says why the rank of `value`, which is called `what`, is unknown, and names the node that is to blame: the first one above it
    that makes a rank that is not known of ones that are. Where there is none it is `at`."""
    lost = _find_lost(view, value) if isinstance(value, ir.Value) else None
    if lost is None:
        return NoMatch(f"the rank of {what} is unknown", at)
    node = lost.producer()
    told = f"a shape for {lost.name!r} in the file's value_info tells it"
    if node is None:
        return NoMatch(f"the rank of {what} is unknown, because {lost.name!r} has no shape in the file", at)
    label = node.name or f"{op_of(node)}:{lost.name}"
    if op_of(node) != "If":
        return NoMatch(f"the rank of {what} is unknown, because {label} makes one that is not known; {told}", node)
    condition = node.inputs[0]
    if condition is not None and condition.is_graph_input():
        told = f"--set {condition.name}=1 (or 0) takes one of its branches, or {told}"
    why = f"{label} chooses at run time between branches that are not known to make the same one"
    return NoMatch(f"the rank of {what} is unknown, because {why}; {told}", node)


def say_unknown_op(node: ir.Node) -> str:
    """Why no layer leads from the scores that `node` makes to a product of Q and K, and what can be done where that is known."""
    if op_of(node) == "If" and (condition := node.inputs[0]) is not None:
        what = "an If makes the scores, so that which nodes make them is known at run time only"
        if condition.is_graph_input():
            return f"{what}; --set {condition.name}=1 (or 0) takes one of its branches"
        guard = "an export without it (often a guard against empty arrays) has one way to make them"
        return f"{what}; its condition is computed: {guard}"
    if op_of(node) in (*QUANTIZE, *DEQUANTIZE) and (why := _say_rounding(node)) is not None:
        return why
    summed = _ops_above(node) if op_of(node) == "ReduceSum" else set()
    if "Tanh" in summed:
        return "the scores are sums of Tanh (additive attention), which no product of Q and K gives"
    if "Mul" in summed:
        return "the scores are a ReduceSum of a Mul; a MatMul or an Einsum in its place would be read as a product of Q and K"
    return f"{op_of(node)} between the softmax and a matmul of Q and K is not a known layer"


def _say_rounding(node: ir.Node) -> str | None:
    """What is wrong with a rounding of scores, where its scale says so."""
    scale = node.inputs[1] if len(node.inputs) > 1 else None
    known = constant_tensor(scale) if scale is not None else None
    if known is None or np.isfinite(known.numpy().astype(np.float64)).all():
        return None
    return (
        "scores are rounded in steps of infinity, which makes NaN of each: -inf, as of a mask, lay in the range that the quantiser "
        "measured; fill the mask with a number that is not far below the scores before the model is quantised"
    )


def _ops_above(node: ir.Node) -> set[str]:
    """The ops that make what a node sums up, through factors and casts."""
    found: set[str] = set()
    todo = [node.inputs[0]]
    while todo and len(found) < _MAX_NODES:
        above = value.producer() if (value := todo.pop()) is not None else None
        if above is None or op_of(above) in found - {"Cast"}:
            continue
        found.add(op_of(above))
        todo += above.inputs if op_of(above) in ("Cast", "Identity", "Mul") else ()
    return found


def say_own_scores(view: GraphView, operands: Iterable[ir.Value], qk: ir.Node) -> str:
    """Which ops make the operands of the product `qk` of Q and K, in the model's order."""
    found: dict[str, None] = {}
    todo, seen = [v for v in operands if view.depends(v, qk)], set[ir.Value]()
    while todo and len(seen) < _MAX_NODES:
        value = todo.pop(0)
        node = value.producer()
        if value in seen or node is None or node is qk:
            continue
        seen.add(value)
        found.setdefault(op_of(node))
        todo += [i for i in node.inputs if i is not None and view.depends(i, qk)]
    ops = [*found][::-1]
    return ", ".join([*ops[:_MOST], *(["..."] if len(ops) > _MOST else [])]) + (
        " (a top-k threshold)" if "TopK" in ops else ""
    )


def _find_lost(view: GraphView, value: ir.Value | None) -> ir.Value | None:
    """The first value of unknown rank, from `value` upwards, that is made of values of known rank."""
    seen: set[ir.Value] = set()
    while value is not None and value not in seen and view.shape(value) is None:
        seen.add(value)
        node = value.producer()
        unknown = [i for i in node.inputs if i is not None and view.shape(i) is None] if node is not None else []
        if not unknown:
            return value
        value = unknown[0]
    return None

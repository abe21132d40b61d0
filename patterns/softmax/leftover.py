"""Reports a softmax that none of the known spellings covers, so that no softmax of a model is passed over in silence."""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir as ir

from onnx_fa.graph.moves import MOVES
from onnx_fa.graph.ops import CONTRIB, op_of
from onnx_fa.graph.view import GraphView
from onnx_fa.match import Anchor, NoMatch
from onnx_fa.patterns.softmax import rows

_KEEPS = MOVES | {"Cast", "Dropout"}
_THIN = _KEEPS | frozenset("Mul Div Add Sub Neg Abs Max Min Clip Relu Where Sum Tanh Sigmoid Floor".split())
_MAX_VALUES_FOLLOWED = 64
"""The search on either side stops after this many values."""


def refuse_leftover(view: GraphView, node: ir.Node) -> Anchor | None:
    """Never an anchor. Raises NoMatch for a softmax that no rule before has taken; None for every other node."""
    kind = op_of(node)
    if kind.startswith(f"{CONTRIB}.") and kind.endswith("Softmax"):
        raise NoMatch(f"{kind} is not read as a softmax")
    if kind == "LogSoftmax" and not any(
        _is_exp_of(view, u, node.outputs[0]) for u in _readers(view, node.outputs[0], _KEEPS)
    ):
        raise NoMatch("the logarithm of the probabilities is used, or changed before its exponential is taken")
    if kind == "Exp" or (kind == "Pow" and view.const(node.inputs[0]) is not None):
        divided = _divided_by_sum(view, node)
        if divided is not None:
            total, by = divided
            what = "exponentials" if kind == "Exp" else "powers of a constant"
            why = f"{_name(by)} divides {what} by a sum of theirs ({_name(total)}), which is no known spelling of a softmax"
            raise NoMatch(why, by)
        if kind == "Exp" and (lse := _less_log_sum_exp(view, node)) is not None:
            why = "is in no known spelling, or not that of the rows whose scores it is taken from"
            raise NoMatch(f"the log-sum-exp {_name(lse)} {why}", lse)
    return None


def _is_exp_of(view: GraphView, node: ir.Node, log: ir.Value) -> bool:
    return op_of(node) == "Exp" and rows.plain(view, node.inputs[0]) is log


def _readers(view: GraphView, value: ir.Value, through: frozenset[str]) -> Iterator[ir.Node]:
    """The nodes that read a value, and what such as only move it or change its elements make of it."""
    stack, seen = [value], {value}
    while stack and len(seen) < _MAX_VALUES_FOLLOWED:
        for user in view.users(stack.pop()):
            yield user
            if op_of(user) in through and user.outputs[0] not in seen:
                seen.add(user.outputs[0])
                stack.append(user.outputs[0])


def _divided_by_sum(view: GraphView, exp: ir.Node) -> tuple[ir.Node, ir.Node] | None:
    """A sum of what the node makes, and the node that divides what is made of it by that sum."""
    for total in _readers(view, exp.outputs[0], _THIN):
        if op_of(total) != "ReduceSum":
            continue
        behind = list(_readers(view, total.outputs[0], _THIN | {"Reciprocal", "Pow"}))
        made = {total.outputs[0], *(n.outputs[0] for n in behind)}
        for node in behind:
            by = _divisor_or_reciprocal(view, node)
            if by is None or by not in made:
                continue
            other = node.inputs[0] if node.inputs[1] is by else node.inputs[1]
            if other is not None and other is not by and view.depends(other, exp):
                return total, node
    return None


def _divisor_or_reciprocal(view: GraphView, node: ir.Node) -> ir.Value | None:
    """What a Div divides by, or the reciprocal that a Mul multiplies by."""
    if op_of(node) == "Div":
        return node.inputs[1] if view.const(node.inputs[0]) is None else None
    if op_of(node) != "Mul":
        return None
    return next((i for i in node.inputs if _is_reciprocal(view, i)), None)


def _is_reciprocal(view: GraphView, value: ir.Value | None) -> bool:
    node = _before(view, value)
    if node is None:
        return False
    if op_of(node) == "Div":
        return view.const(node.inputs[0]) is not None
    return op_of(node) == "Reciprocal" or (op_of(node) == "Pow" and (view.scalar(node.inputs[1]) or 0.0) < 0)


def _less_log_sum_exp(view: GraphView, exp: ir.Node) -> ir.Node | None:
    """The node whose log-sum-exp is taken from scores of its own shape before the exponential."""
    shape = view.shape(exp.outputs[0])
    stack, seen = [exp.inputs[0]], set[ir.Value]()
    while stack and len(seen) < _MAX_VALUES_FOLLOWED:
        value = stack.pop()
        node = view.producer(value)
        if node is None or value in seen or value is None:
            continue
        seen.add(value)
        source = _summed(view, node)
        if source is not None and view.shape(source) == shape:
            return node
        if op_of(node) in _THIN:
            stack += list(node.inputs)
    return None


def _summed(view: GraphView, node: ir.Node) -> ir.Value | None:
    """The scores, where the node is the last one of a log-sum-exp, or takes the logarithm of a sum of exponentials."""
    if op_of(node) == "ReduceLogSumExp":
        return node.inputs[0]
    total = node
    if op_of(node) == "Log":
        inner = _before(view, node.inputs[0])
        if inner is None or op_of(inner) != "ReduceSum":
            return None
        total = inner
    elif op_of(node) != "ReduceLogSum":
        return None
    exp = _before(view, total.inputs[0])
    return exp.inputs[0] if exp is not None and op_of(exp) == "Exp" else None


def _before(view: GraphView, value: ir.Value | None) -> ir.Node | None:
    """The node that makes a value, behind those that only move its elements."""
    node = view.producer(value)
    for _ in range(4):
        if node is not None and op_of(node) in _KEEPS:
            node = view.producer(node.inputs[0])
    return node


def _name(node: ir.Node) -> str:
    return node.name or op_of(node)

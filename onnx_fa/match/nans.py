"""Some spellings of a softmax make a NaN where the rewritten model gives a number: a model that asks for NaN is refused them."""

from __future__ import annotations

import onnx_ir as ir

from onnx_fa.graph.moves import MOVES
from onnx_fa.graph.ops import op_of
from onnx_fa.graph.view import GraphView
from onnx_fa.match.misses import NoMatch
from onnx_fa.match.types import Anchor, Behind

_KEEPS = MOVES | {"Cast", "Dropout", "Add", "Sub", "Mul", "Div", "Neg"}
"""A NaN that goes in comes out, wherever it then stands."""
_ASKS = frozenset("IsNaN QuantizeLinear DynamicQuantizeLinear Equal Less LessOrEqual Greater GreaterOrEqual".split())
_MAX_VALUES_BEHIND = 100
"""The search behind a site stops after this many values."""


def check_nan(view: GraphView, anchor: Anchor, behind: Behind, output: ir.Value) -> None:
    """Raises NoMatch where a NaN that only the spelling made, and a rewritten model does not, becomes a number behind the site."""
    why = "exponentials without the row maximum overflow"
    if behind.steps:
        why = "probabilities that are masked and divided anew may be zero by zero"
    asking = _asks_for_nan(view, output)
    if asking is not None:
        raise NoMatch(f"{why}, and {op_of(asking)} behind the attention tells the NaN of that from a number", asking)
    if behind.rounding is not None:
        raise NoMatch(f"{why}, and the NaN of that is rounded to a number", anchor.node)


def _asks_for_nan(view: GraphView, value: ir.Value) -> ir.Node | None:
    """A node that makes a number of a NaN in the value, or tells it from a number, before anything computes with it but by
    elements."""
    stack, seen = [value], {value}
    while stack and len(seen) < _MAX_VALUES_BEHIND:
        for user in view.users(stack.pop()):
            if op_of(user) in _ASKS or _to_an_integer(user):
                return user
            if op_of(user) in _KEEPS and user.outputs[0] not in seen:
                seen.add(user.outputs[0])
                stack.append(user.outputs[0])
    return None


def _to_an_integer(node: ir.Node) -> bool:
    """Whether a Cast makes an integer or a boolean: of NaN the least integer, or what the machine makes of it, and true."""
    kind = node.outputs[0].dtype if op_of(node) == "Cast" else None
    return kind is not None and not kind.is_floating_point()

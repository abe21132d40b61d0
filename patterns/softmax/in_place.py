"""Anchors without a softmax: a function of each score alone, such as a sigmoid or a squared ReLU, between two products of the run.

The function is read from the first op that is no factor and no mask down to the last that reads nothing but the score; where the
scores themselves are divided by a sum of their own, such as that of their sizes, it is the score. What else is done to its values
is peeled off as probabilities are. K, V and the scores have at least three dims, and both operands of both
products are computed from inputs of the model: a network's layers (relu(x W) W') are no attention.
"""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir as ir

from onnx_fa.graph.axes import Axes
from onnx_fa.graph.moves import REGROUPS
from onnx_fa.graph.ops import op_of
from onnx_fa.graph.view import GraphView
from onnx_fa.match import Anchor, Expr, Product
from onnx_fa.match.misses import NoMatch
from onnx_fa.match.walk_up import is_weights
from onnx_fa.patterns.operands.product import read_product
from onnx_fa.patterns.score.elementwise import COMPOSED, read_function
from onnx_fa.patterns.score.softcap import peel_softcap
from onnx_fa.patterns.softmax.own_sum import is_share
from onnx_fa.spec.expr import SCORE, Apply, Float, Score, ScoreExpr, leaves, parts

FUNCTIONS = frozenset(["Sigmoid", "Relu", "Tanh", "Erf", "Softplus", "Sin", "Cos", "Abs", "Clip", *COMPOSED])
"""Ops of one value that make another function of it than a line."""
_PAIRS = frozenset(["Mul", "Max", "Pow"])
_ABOVE = (
    frozenset(
        "Add Sub Mul Div Neg Where Cast Identity Dropout Clip Min Max Pow Abs Tanh Sigmoid Relu Softplus Erf Sum".split()
    )
    | REGROUPS
)
_BELOW = frozenset("Mul Div Where Cast Identity Dropout Add".split()) | REGROUPS
_LINEAR = frozenset("Mul Div Add Sub Neg Identity Cast".split())
_MAX_STEPS = 12
"""Nodes between the function and either product."""
_NAMES = ("Erf", "Softplus", "Tanh", "Sigmoid", "Relu", "Clip")
_GATES = {"Erf": "gelu", "Tanh": "gelu", "Sigmoid": "swish"}
"""What functions are called that are the score times such a function of it."""


def find_weights(view: GraphView, node: ir.Node) -> Anchor | None:
    """The function of the score that begins at `node`; None where it is no such function, or stands in no attention."""
    try:
        found = _function(view, node)
    except NoMatch:
        # What is refused while it is read is no miss in a norm, which begins as such a function does.
        if any(_is_of_scores(view, i) for i in node.inputs if i is not None and view.const(i) is None):
            raise
        return None
    if found is None or not _is_of_scores(view, found[0]):
        return None
    score, weight, expr = found
    if any((f := _function(view, n)) is not None and view.depends(f[1], node) for n in _above(view, score)):
        return None  # it begins further up
    axes = _axes_of_keys(view, weight)
    if axes is None:
        return None
    return Anchor(node, op_of(node), score, weight, axes=axes, weight=expr, label=_label(expr))


def find_shares(view: GraphView, node: ir.Node) -> Anchor | None:
    """Scores that `node` divides by a sum of their own, without a function of them; None where it does not, or stands in no
    attention."""
    score = node.inputs[0] if view.producer(node.outputs[0], "Div") is node else None
    if score is None or not _is_of_scores(view, score):
        return None
    if any(op_of(n) == "Pow" or _function(view, n) is not None for n in _above(view, score)):
        return None  # those of a function of the scores
    axes = _axes_of_keys(view, score)
    if axes is None or not is_share(view, node, score, axes):
        return None
    return Anchor(node, op_of(node), score, score, axes=axes, weight=SCORE, label="score")


def _function(view: GraphView, node: ir.Node) -> tuple[ir.Value, ir.Value, ScoreExpr] | None:
    """(score, weight, the weight as an expression) of the longest function whose first op is `node`."""
    if view.producer(node.outputs[0], *FUNCTIONS, *_PAIRS) is not node or not _bends(view, node):
        return None
    score = next((i for i in node.inputs if i is not None and view.const(i) is None), None)
    weight = node.outputs[0]
    expr = None if score is None else read_function(view, weight, score)
    if score is None or expr is None:
        return None
    for _ in range(_MAX_STEPS):
        users = view.users(weight)
        if len(users) != 1 or weight.is_graph_output():
            break
        longer = next(
            (
                (s, e)
                for s in (score, *_before(view, score))
                if (e := read_function(view, users[0].outputs[0], s)) is not None
            ),
            None,
        )
        if longer is None:
            break
        if op_of(node) == "Tanh" and _is_cap(view, weight):
            return None  # a softcap, which belongs to the score
        (score, expr), weight = longer, users[0].outputs[0]
    return score, weight, expr


def _is_cap(view: GraphView, value: ir.Value) -> bool:
    """Whether a value is a softcap."""
    return any(True for _ in peel_softcap(view, value))


def _bends(view: GraphView, node: ir.Node) -> bool:
    """Whether a node is no factor and no sum: a function whose graph is no line."""
    if op_of(node) not in _PAIRS:
        return True
    if op_of(node) == "Mul":
        return node.inputs[0] is node.inputs[1]
    if op_of(node) == "Pow" and view.const(node.inputs[0]) is not None:
        return False  # an exponential, which a softmax may be made of
    return sum(view.scalar(i) is not None for i in node.inputs) == len(node.inputs) - 1 > 0


def _before(view: GraphView, value: ir.Value) -> Iterator[ir.Value]:
    """The values that `value` is a linear function of, the nearest first."""
    for _ in range(_MAX_STEPS):
        node = view.producer(value, *_LINEAR)
        rest = [] if node is None else [i for i in node.inputs if i is not None and view.scalar(i) is None]
        if len(rest) != 1:
            return
        value = rest[0]
        yield value


def _above(view: GraphView, value: ir.Value) -> Iterator[ir.Node]:
    """The nodes above a value that a function it is a part of might begin at."""
    stack, seen = [value], {value}
    while stack and len(seen) <= 2 * _MAX_STEPS:
        node = view.producer(stack.pop(), *FUNCTIONS, *_PAIRS, *_LINEAR)
        if node is None:
            continue
        yield node
        new = {i for i in node.inputs if i is not None and view.const(i) is None} - seen
        seen |= new
        stack += new


def _is_of_scores(view: GraphView, value: ir.Value) -> bool:
    """Whether a product of two values of the run, of three dims or more, stands above `value` with nothing but elementwise ops and
    moves between."""
    stack, seen = [value], {value}
    while stack and len(seen) <= 4 * _MAX_STEPS:
        at = stack.pop()
        product = read_product(view, at)
        if product is not None:
            if any(is_weights(view, x) for x in product.operands):
                return False  # what an attention made, on its way to be Q or K of the next
            if all(
                is_of_the_run(view, x) and len(s) > 2 for x, s in zip(product.operands, product.shapes, strict=True)
            ):
                return True
            continue
        node = view.producer(at, *_ABOVE)
        # Of a Reshape the second input is a shape; of a Where the first is a mask.
        inputs = [] if node is None else node.inputs[:1] if op_of(node) in REGROUPS else node.inputs
        new = [
            i
            for i in inputs
            if i is not None and i.dtype != ir.DataType.BOOL and i not in seen and view.const(i) is None
        ]
        seen.update(new)
        stack += new
    return False


def _axes_of_keys(view: GraphView, weight: ir.Value) -> Axes | None:
    """The axis of the weights that the product with V sums over; None where no such product stands below."""
    stack: list[tuple[ir.Value, tuple[ir.Node, ...]]] = [(weight, ())]
    seen = {weight}
    while stack and len(seen) <= 4 * _MAX_STEPS:
        value, moves = stack.pop()
        for user in view.users(value):
            product = read_product(view, user.outputs[0])
            if product is not None:
                axis = _summed_axis(view, product, value, moves)
                if axis is not None:
                    return (axis,)
                continue
            below = view.producer(user.outputs[0], *_BELOW)
            if below is None or below.outputs[0] in seen or (op_of(below) in REGROUPS and below.inputs[0] is not value):
                continue
            seen.add(below.outputs[0])
            stack.append((below.outputs[0], (*moves, below) if op_of(below) in REGROUPS else moves))
    return None


def _summed_axis(view: GraphView, product: Product, value: ir.Value, moves: tuple[ir.Node, ...]) -> int | None:
    """The axis, counted from the end, that a product with a V of the run sums over, before the moves."""
    if product.operands[0] is product.operands[1]:
        return None
    side = 0 if product.operands[0] is value else 1
    if not is_of_the_run(view, product.operands[1 - side]) or len(product.shapes[1 - side]) < 3:
        return None
    letters = product.letters[side]
    summed = [i - len(letters) for i, x in enumerate(letters) if x not in product.out]
    if len(summed) != 1:
        return None
    axis = summed[0]
    for move in reversed(moves):
        before, after = view.shape(move.inputs[0]), view.shape(move.outputs[0])
        if before is None or after is None:
            return None
        if op_of(move) == "Transpose":
            perm = (
                list(move.attributes["perm"].as_ints()) if "perm" in move.attributes else list(range(len(before)))[::-1]
            )
            axis = perm[axis] - len(before)
        elif axis < -2 or len(before) < 2 or before[-2:] != after[-2:]:
            return None
    return axis


def is_of_the_run(view: GraphView, value: Expr | None) -> bool:
    """Whether a value is computed from an input of the model or of the graph that it stands in, and is no weight of the network."""
    stack = [value] if isinstance(value, ir.Value) else []
    seen = set(stack)
    while stack:
        at = stack.pop()
        if at.is_graph_input() and at.const_value is None:
            return True
        if at.is_initializer() or view.const(at) is not None:
            continue
        node = at.producer()
        if node is None or node.domain not in _KNOWN_DOMAINS:
            return node is None or any(i is not None for i in node.inputs)
        if op_of(node) in ("If", "Loop", "Scan"):
            return True  # what its graphs read is not looked at
        new = {i for i in node.inputs if i is not None} - seen if op_of(node) not in ("Shape", "Size") else set()
        seen |= new
        stack += new
    return False


_KNOWN_DOMAINS = ("", "ai.onnx", "com.microsoft")


def _label(expr: ScoreExpr) -> str:
    """What reports call a function of the score: by its name, or by its innermost op."""
    match expr:
        case Apply("Mul" | "Div", (inner, Float())) | Apply("Mul", (Float(), inner)) if inner != SCORE:
            return _label(inner)
        case Apply("Mul", (Apply() as x, y)) | Apply("Pow", (Apply() as x, Float(2.0) as y)) if y in (x, Float(2.0)):
            return f"squared_{_label(x)}"
        case Apply("Max", (Score(), Float(0.0))) | Apply("Max", (Float(0.0), Score())):
            return "relu"
        case Apply("Mul", (Score(), Score())) | Apply("Pow", (Score(), Float(2.0))):
            return "square"
    inside = [part.op for part in parts(expr) if isinstance(part, Apply)]
    gates = sum(leaf == SCORE for leaf in leaves(expr)) > 1
    named = next((op for op in _NAMES if op in inside), inside[-1])
    return _GATES.get(named, named.lower()) if gates else named.lower()

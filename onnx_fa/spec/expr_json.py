"""Score expressions as JSON: each node a list of its head and its arguments, infinities and NaN as strings.

["Where", ["LessOrEqual", ["k"], ["q"]], ["score"], ["f", "-inf"]]
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from onnx_fa.spec.expr import SCORE, SKV, SQ, Apply, Bool, Float, Int, K, Q, ScoreExpr, Tensor

_PLAIN: Mapping[str, ScoreExpr] = {"score": SCORE, "q": Q, "k": K, "Sq": SQ, "Skv": SKV}
_NOT_FINITE = ("inf", "-inf", "nan")


def to_json(expr: ScoreExpr) -> list[Any]:
    """`expr` as nested lists."""
    return [to_json(x) if isinstance(x, ScoreExpr) else number_to_json(x) for x in expr.written]


def number_to_json(x: Any) -> Any:
    """Anything but a node: JSON has no infinities and no NaN."""
    return str(x) if isinstance(x, float) and not math.isfinite(x) else x


def from_json(data: object) -> ScoreExpr:
    """The inverse of `to_json`; whether an op exists and its arguments fit is left to `kind_of`. Raises ValueError for what is no
    expression."""
    match data:
        case [str(head)] if head in _PLAIN:
            return _PLAIN[head]
        case ["tensor", int(index)] if not isinstance(index, bool):
            return Tensor(index)
        case ["f", (int() | float()) as value] if not isinstance(value, bool):
            return Float(value)
        case ["f", str(value)] if value in _NOT_FINITE:
            return Float(float(value))
        case ["i", int(value)] if not isinstance(value, bool):
            return Int(value)
        case ["b", bool(value)]:
            return Bool(value)
        case [str(op), *args] if args and op not in (*_PLAIN, "tensor", "f", "i", "b"):
            return Apply(op, *map(from_json, args))
    raise ValueError(f"{data!r} is not a score expression")

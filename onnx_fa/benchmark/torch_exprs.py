"""Score expressions in PyTorch's plain ops."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from onnx_fa.errors import UnsupportedError
from onnx_fa.spec.expr import SCORE, Apply, Float, ScoreExpr, Tensor

_OPS: Mapping[str, Callable[..., Any]] = {
    "Sigmoid": torch.sigmoid,
    "Relu": torch.relu,
    "Tanh": torch.tanh,
    "Erf": torch.erf,
    "Add": torch.add,
    "Sub": torch.sub,
    "Mul": torch.mul,
    "Div": torch.div,
}


def apply_expr(expr: ScoreExpr, score: Any, tensors: Sequence[Any] = ()) -> Any:
    """A function of the score and of tensors. Raises UnsupportedError for one that no case of the tables has."""
    match expr:
        case _ if expr == SCORE:
            return score
        case Float(value):
            return torch.tensor(value, dtype=score.dtype, device=score.device)
        case Tensor(index):
            return tensors[index]
        case Apply(op, args) if op in _OPS:
            return _OPS[op](*(apply_expr(a, score, tensors) for a in args))
    raise UnsupportedError(f"PyTorch: {expr} of a score")

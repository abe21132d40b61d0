"""What is done to a site's output, in the output's element type."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import onnx_ir as ir

from onnx_fa.graph.view import DTYPES, FLOATS, GraphView
from onnx_fa.match.exprs import Call, Const, Expr
from onnx_fa.match.misses import NoMatch
from onnx_fa.spec.dtypes import NUMPY


def wrap_in_type(
    view: GraphView, wraps: Sequence[Callable[[Expr], Expr]], dtype: str | None, at: ir.Node
) -> tuple[Callable[[Expr], Expr], ...]:
    """The wraps with their constants converted to the output's element type, since the model may have applied them to probabilities
    of another type. Raises NoMatch where a tensor, or a number that the type cannot hold, is in the way."""
    if dtype is None:
        return tuple(wraps)
    row = ir.Value(name="row")  # stands for the output

    def typed(wrap: Callable[[Expr], Expr]) -> Callable[[Expr], Expr]:
        made = wrap(row)
        if not isinstance(made, Call):
            return wrap
        args = [x if x is row else _number_of_type(view, x, dtype, at) for x in made.args]
        return lambda e: Call(made.op, tuple(e if x is row else x for x in args), made.attrs)

    return tuple(typed(w) for w in wraps)


def _number_of_type(view: GraphView, x: Expr, dtype: str, at: ir.Node) -> Expr:
    own = x.dtype if isinstance(x, ir.Value) else None
    want = np.dtype(NUMPY[dtype])
    array = x.array if isinstance(x, Const) else None
    if isinstance(x, ir.Value) and own in FLOATS:
        array = view.const(x)
    if array is not None and array.dtype != want:
        with np.errstate(over="ignore"):
            number = array.astype(want)
        if (np.isfinite(number) == np.isfinite(array)).all() and ((number == 0) == (array == 0)).all():
            return Const(number)
    if own in FLOATS and DTYPES.get(own or ir.DataType.UNDEFINED) != dtype:
        raise NoMatch(f"the probabilities are multiplied in {own}, and the output is of another type", at)
    return x

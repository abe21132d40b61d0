"""What becomes of vectors of sums before a dispatch writes them: an expression of them and of tensors that it reads beside."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from onnx_fa.kernels.mlir.expressions import ExprVectors, IntBounds, Vector
from onnx_fa.kernels.mlir.operand import Operand
from onnx_fa.kernels.mlir.vectors import Lanes
from onnx_fa.spec.expr import SCORE, ScoreExpr, Tensor
from onnx_fa.spec.terms import Dim, TensorArg


def tensor_operands(tensors: Sequence[TensorArg], whole: tuple[Dim, ...]) -> list[Operand]:
    """The tensors as operands %t0, %t1, ... of a dispatch; those of all numbers have the shape `whole`, as its result has."""
    return [Operand(f"%t{i}", whole if len(x.shape) > 1 else x.shape, x.dtype) for i, x in enumerate(tensors)]


class EpilogueVectors:
    """Emits `then` of sums, the score of the expression, for vectors of `t` along the columns of a result."""

    def __init__(self, t: Lanes, then: ScoreExpr, tensors: tuple[TensorArg, ...], columns: int) -> None:
        self.t, self.then, self.tensors = t, then, tensors
        self.exprs = ExprVectors(t, IntBounds("rows", columns, tensors), tensors)

    def emit(self, total: str, at: Sequence[str], loaded: Mapping[str, tuple[str, str]]) -> str:
        """What becomes of a vector of sums whose first number stands in the result `at` these indices, the column last. `loaded`
        has the dispatch's operands and their types by name."""
        t = self.t

        def known(e: ScoreExpr) -> Vector | None:
            if e == SCORE:
                return Vector(total, "f32")
            if not isinstance(e, Tensor):
                return None
            value, type_ = loaded[f"%t{e.index}"]
            tensor = self.tensors[e.index]
            if not tensor.shape:
                return Vector(t.broadcast(t.extract(value, type_)), "f32")
            read = t.read(value, type_, *(at[-1:] if len(tensor.shape) == 1 else at), element=tensor.dtype)
            if tensor.dtype != "f32":
                read = t.let(f"arith.extf {read} : {t.type(tensor.dtype)} to {t.vec}")
            return Vector(read, "f32")

        return self.exprs.emit(self.then, known, {}).value

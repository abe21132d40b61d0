"""From a product of Q and K to what the softmax sees, one number at a time: scale, softcaps, masks, score functions. Scores are in
units of log2 where the loop takes exponentials of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from onnx_fa.kernels.mlir.expressions import ExprVectors, IntBounds, Vector
from onnx_fa.kernels.mlir.vectors import Scalars
from onnx_fa.kernels.plan.score import LOG2E, IndexStep, score_plan, window
from onnx_fa.spec.attention import AttentionSpec
from onnx_fa.spec.expr import Length, Position, Score, ScoreExpr, Tensor
from onnx_fa.spec.terms import Dim, IndexMask


class ScalarScores:
    """The steps of a spec's scores. `value` gives the SSA index of a symbol, `offset` that of an index mask's first key."""

    def __init__(self, spec: AttentionSpec, value: Callable[[str], str], offset: Callable[[IndexMask], str]) -> None:
        self.spec, self.value, self.offset = spec, value, offset
        self.plan = score_plan(spec)
        self.bounds = IntBounds(spec.Sq, spec.Skv, spec.tensors)

    def exprs(self, t: Scalars) -> ExprVectors:
        return ExprVectors(t, self.bounds, self.spec.tensors)

    def score(self, t: Scalars, product: str, query: str, key: str, tensors: Sequence[Vector]) -> str:
        """What the softmax sees of a product of the row of Q at the index `query` with that of K at `key`. `tensors` are the
        elements of the masks' tensors there."""
        spec, s = self.spec, product
        unit = 1.0 if self.plan.natural else LOG2E
        factors = [spec.scale / spec.mods[0].cap] if spec.mods else [spec.scale * unit]
        for mod, following in zip(spec.mods, (*spec.mods[1:], None), strict=False):
            factors.append(mod.cap / following.cap if following else mod.cap * unit)
        for n, factor in enumerate(factors):
            s = t.vop("math.tanh", s) if n else s
            s = t.vop("arith.mulf", s, t.splat(factor))
        value = {a: t.let(f"arith.index_cast {p} : index to i32") for a, p in (("q", query), ("k", key))}
        memo: dict[ScoreExpr, Vector] = {}

        def known(e: ScoreExpr) -> Vector | None:
            match e:
                case Score():
                    return Vector(s, "f32")
                case Position(axis):
                    return Vector(value[axis], "i32")
                case Length(axis):
                    return self.length(t, spec.Sq if axis == "q" else spec.Skv)
                case Tensor(index):
                    return tensors[index]
            return None

        for step in self.plan.steps:
            if isinstance(step, IndexStep):
                s = self._index_mask(t, step, s, query, key)
            else:
                memo.clear()
                s = self.exprs(t).emit(step.expr, known, memo).value
        return s

    def length(self, t: Scalars, dim: Dim) -> Vector:
        """A length, as expressions take it."""
        if isinstance(dim, int):
            return Vector(t.constant(str(dim), "i32"), "i32")
        return Vector(t.let(f"arith.index_cast {self.value(dim)} : index to i32"), "i32")

    def element(self, t: Scalars, element: str, value: str) -> Vector:
        """An element of a tensor, as expressions take it."""
        if element == "i8":
            return Vector(t.let(f"arith.cmpi ne, {value}, {t.constant('0', 'i8')} : i8"), "i1")
        if element in ("f16", "bf16"):
            return Vector(t.let(f"arith.extf {value} : {element} to f32"), "f32")
        return Vector(value, element)

    def _index_mask(self, t: Scalars, step: IndexStep, s: str, query: str, key: str) -> str:
        at = t.arith("addi", query, self.offset(step.mask))
        left, right = window(step.mask)
        for bound, predicate, sign in ((right, "sle", 1), (left, "sge", -1)):
            if bound is not None:
                limit = t.arith("addi", at, t.index(sign * bound)) if bound else at
                s = t.select(t.let(f"arith.cmpi {predicate}, {key}, {limit} : index"), s, t.splat(step.fill))
        return s

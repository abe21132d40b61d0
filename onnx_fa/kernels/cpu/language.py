"""The terms of a derivation as operations on vectors of queries, with scores in units of log2 where the loop takes exponentials of
them."""

from __future__ import annotations

from dataclasses import dataclass, field

from onnx_fa.derive.attention import STEPS, function_of
from onnx_fa.derive.loop import MASS, Loop
from onnx_fa.derive.writer import write
from onnx_fa.kernels.cpu.tile_loops import inverse_of_sum
from onnx_fa.kernels.mlir.expressions import ExprVectors, IntBounds, Vector
from onnx_fa.kernels.mlir.vectors import Lanes
from onnx_fa.kernels.plan.score import LOG2E
from onnx_fa.spec.attention import AttentionSpec
from onnx_fa.spec.expr import SCORE as ARGUMENT
from onnx_fa.spec.expr import Apply, ScoreExpr
from onnx_fa.spec.terms import Rounding


@dataclass(frozen=True)
class VectorLanguage:
    """The ops of terms on f32 vectors. `lengths` are the numbers of queries and keys, as i32 vectors, for the functions that read
    them."""

    t: Lanes
    spec: AttentionSpec
    lengths: dict[ScoreExpr, Vector] = field(default_factory=dict)

    def add(self, a: str, b: str) -> str:
        return self.t.vop("arith.addf", a, b)

    def sub(self, a: str, b: str) -> str:
        return self.t.vop("arith.subf", a, b)

    def mul(self, a: str, b: str) -> str:
        return self.t.vop("arith.mulf", a, b)

    def div(self, a: str, b: str) -> str:
        return self.t.vop("arith.divf", a, b)

    def max(self, a: str, b: str) -> str:
        return self.t.maximum(a, b)

    def exp(self, x: str) -> str:
        return self.t.exp2(x)

    def log(self, x: str) -> str:
        return self.t.vop("math.log", x)

    def num(self, value: float) -> str:
        return self.t.splat(value)

    def map(self, name: str, x: str) -> str:
        t = self.t
        if name == STEPS and self.spec.rounding is not None:
            return self._steps(self.spec.rounding, x)
        if name == "Reciprocal":  # 0 in rows without a key, whose probabilities are 0 or NaN, which both become 0
            return t.select(t.compare("ogt", x, t.splat(0.0)), t.vop("arith.divf", t.splat(1.0), x), t.splat(0.0))
        function = function_of(self.spec, name)
        if function == Apply("Sigmoid", ARGUMENT):
            return self._sigmoid(x)
        vectors = ExprVectors(t, IntBounds(self.spec.Sq, self.spec.Skv, ()), ())

        def leaf(e: ScoreExpr) -> Vector | None:
            return Vector(x, "f32") if e == ARGUMENT else self.lengths.get(e)

        return vectors.emit(function, leaf, {}).value

    def _sigmoid(self, x: str) -> str:
        """1 / (1 + 2^y) with y = -log2(e) x up to 126, where that is next to nothing; NaN stays."""
        t, one, most = self.t, self.t.splat(1.0), self.t.splat(126.0)
        y = t.vop("arith.mulf", x, t.splat(-LOG2E))
        y = t.select(t.compare("ogt", y, most), most, y)
        power = t.vop("arith.divf", one, t.vop("arith.addf", one, t.exp2(y)))
        return t.select(t.compare("oeq", y, most), t.splat(0.0), power)

    def _steps(self, rounding: Rounding, p: str) -> str:
        """A probability in whole steps, which f32 holds exactly, in the order of a graph, which divides by the step."""
        t = self.t
        if rounding.before is not None:
            p = t.vop("arith.mulf", self._steps(rounding.before, p), t.splat(rounding.before.scale))
        steps = t.vop("arith.divf", p, t.splat(rounding.scale))
        steps = t.maximum(t.vop("math.roundeven", steps), t.splat(0.0))  # and 0 for NaN
        most = t.splat(float(rounding.most))
        return t.select(t.compare("olt", steps, most), steps, most)


def inverse_of(loop: Loop, language: VectorLanguage, total: str) -> str:
    """What an output is multiplied by: the loop's factor, over its divisor of a vector of sums."""
    t = language.t
    if loop.divisor is None:
        return t.splat(loop.factor)
    inverse = inverse_of_sum(t, write(loop.divisor, language, {MASS: total}), language.spec.empty_row)
    return inverse if loop.factor == 1.0 else t.vop("arith.mulf", inverse, t.splat(loop.factor))

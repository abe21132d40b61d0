"""The terms of a derivation as scalar operations inside an op on tiles, and what the loop over keys carries as tiles."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from onnx_fa.derive.attention import function_of
from onnx_fa.kernels.mlir.expressions import ExprVectors, IntBounds, Vector
from onnx_fa.kernels.mlir.vectors import Scalars
from onnx_fa.spec.attention import AttentionSpec
from onnx_fa.spec.expr import SCORE as ARGUMENT
from onnx_fa.spec.expr import Length, ScoreExpr


@dataclass(frozen=True)
class Rows:
    """What is carried: the output's tile; the rows' maxima and sums, "" where the loop has none."""

    acc: str
    best: str
    total: str

    def pack(self) -> list[str]:
        return [x for x in (self.acc, self.best, self.total) if x]

    def unpack(self, values: list[str]) -> Rows:
        """The same with other values, in the order of `pack`."""
        rest = iter(values)
        return Rows(next(rest), next(rest) if self.best else "", next(rest) if self.total else "")


@dataclass(frozen=True)
class RegionLanguage:
    """The ops of terms in a region. `exp2` is 2 to the power of a number. `late_scale`: what scores and maxima are still to be
    multiplied by, where one is subtracted from the other. `length` gives the number of queries or of keys."""

    region: Scalars
    spec: AttentionSpec
    exp2: Callable[[Scalars, str], str]
    late_scale: float | None
    length: Callable[[Scalars, Length], Vector]

    def add(self, a: str, b: str) -> str:
        return self.region.vop("arith.addf", a, b)

    def sub(self, a: str, b: str) -> str:
        r = self.region
        if self.late_scale is None:
            return r.vop("arith.subf", a, b)
        shift = r.vop("arith.mulf", b, r.splat(-self.late_scale))
        return r.let(f"math.fma {a}, {r.splat(self.late_scale)}, {shift} : f32")

    def mul(self, a: str, b: str) -> str:
        return self.region.vop("arith.mulf", a, b)

    def div(self, a: str, b: str) -> str:
        return self.region.vop("arith.divf", a, b)

    def max(self, a: str, b: str) -> str:
        return self.region.vop("arith.maximumf", a, b)

    def exp(self, x: str) -> str:
        return self.exp2(self.region, x)

    def log(self, x: str) -> str:
        return self.region.vop("math.log", x)

    def num(self, value: float) -> str:
        return self.region.splat(value)

    def map(self, name: str, x: str) -> str:
        vectors = ExprVectors(self.region, IntBounds(self.spec.Sq, self.spec.Skv, ()), ())

        def leaf(e: ScoreExpr) -> Vector | None:
            if e == ARGUMENT:
                return Vector(x, "f32")
            return self.length(self.region, e) if isinstance(e, Length) else None

        return vectors.emit(function_of(self.spec, name), leaf, {}).value

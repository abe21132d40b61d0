"""Scalar operations of a shader. Exponentials and tanh are written out so that no driver can simplify them: it may reorder sums
unless it is forbidden to, which IREE 3.13 does not do."""

from __future__ import annotations

from onnx_fa.kernels.mlir.vectors import EXP2_POWERS, Scalars
from onnx_fa.kernels.plan.score import LOG2E

_TANH = "math.tanh "
_TANH_POWERS = (
    -0.3333333092766583,
    0.1333321064202988,
    -0.0539473214965335,
    0.021703640705787206,
    -0.0081844117165931,
    0.0021491899001737074,
)
"""(tanh(x) / x - 1) / x^2 in powers of x^2, for |x| up to 0.625: fitted to the relative error of tanh, which is 7e-8 in f32."""


class ShaderText(Scalars):
    """The body of a shader's function."""

    def let(self, operation: str) -> str:
        if operation.startswith(_TANH):
            return self.tanh(operation.removeprefix(_TANH).partition(" ")[0])
        return super().let(operation)

    def exp2(self, x: str) -> str:
        """2^x up to 2^127, exactly 1 at 0, and 0 below -126; NaN stays. The whole part is found by rounding, not by adding a large
        number and taking it away."""
        whole = self.vop("math.roundeven", x)
        p = self.polynomial(self.vop("arith.subf", x, whole), EXP2_POWERS)
        n = self.let(f"arith.fptosi {whole} : f32 to i32")
        n = self.arith("addi", n, self.constant("127", "i32"), "i32")
        n = self.arith("shli", n, self.constant("23", "i32"), "i32")
        power = self.let(f"arith.bitcast {n} : i32 to f32")
        scaled = self.vop("arith.mulf", p, power)
        return self.select(self.compare("olt", x, self.splat(-126.0)), self.splat(0.0), scaled)

    def tanh(self, x: str) -> str:
        """x + x^3 P(x^2) where |x| is small, else 1 - 2 / (e^2|x| + 1) with the sign of x; NaN stays."""
        size = self.vop("math.absf", x)
        square = self.vop("arith.mulf", x, x)
        near = self.vop("math.fma", x, self.vop("arith.mulf", square, self.polynomial(square, _TANH_POWERS)), x)
        most = self.splat(10.0)  # where it is 1 in f32
        capped = self.select(self.compare("ogt", size, most), most, size)
        e = self.exp2(self.vop("arith.mulf", capped, self.splat(2.0 * LOG2E)))
        part = self.vop("arith.divf", self.splat(2.0), self.vop("arith.addf", e, self.splat(1.0)))
        far = self.vop("arith.subf", self.splat(1.0), part)
        far = self.select(self.compare("olt", x, self.splat(0.0)), self.vop("arith.negf", far), far)
        return self.select(self.compare("olt", size, self.splat(0.625)), near, far)

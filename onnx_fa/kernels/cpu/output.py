"""What bodies do alike with the output of a workgroup."""

from __future__ import annotations

from onnx_fa.kernels.cpu.operands import Operands
from onnx_fa.kernels.mlir.vectors import Lanes


def guards_output(operands: Operands) -> bool:
    """Whether the output is zero where the probabilities are NaN. Where keys are split, that is up to what combines the parts."""
    return operands.spec.empty_row == "guarded" and operands.splits == 1


def guard_output(t: Lanes, x: str, total: str) -> str:
    """x, but zero where the sum of the probabilities is NaN."""
    return t.select(t.compare("ord", total, total), x, t.splat(0.0))


def write_out(operands: Operands, x: str, result: str, row: str, column: str, inside: bool) -> str:
    """The result with a vector of it replaced, in its element type."""
    t, out = operands.t, operands.out
    if out.element != "f32":
        x = t.let(f"arith.truncf {x} : {t.vec} to vector<{t.width}x{out.element}>")
    return t.write(x, result, out.type, row, column, element=out.element, in_bounds=inside)

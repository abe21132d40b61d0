"""The function that a program calls for a kernel whose operands it passes as they are, and what that reads of their sizes."""

from __future__ import annotations

from collections.abc import Sequence

from onnx_fa.kernels.mlir.operand import Operand
from onnx_fa.kernels.mlir.text import Text
from onnx_fa.spec.terms import Dim


def function_text(
    name: str, operands: Sequence[Operand], outputs: Sequence[Operand], t: Text, made: Sequence[str]
) -> list[str]:
    """The function of that name that a program calls, whose body is `t`, and which returns what is `made`; %rows is the first dim
    of its first operand, where that is free."""
    first = operands[0]
    rows = ["%first = arith.constant 0 : index", f"%rows = tensor.dim {first.name}, %first : {first.type}"]
    return plain_function_text(name, operands, outputs, [*(rows * first.is_free), *t.render()], made)


def plain_function_text(
    name: str, operands: Sequence[Operand], outputs: Sequence[Operand], lines: Sequence[str], made: Sequence[str]
) -> list[str]:
    """The same of lines that name all sizes."""
    typed, types = ", ".join(f"{x.name}: {x.type}" for x in operands), ", ".join(y.type for y in outputs)
    head = f"util.func private @{name}({typed}) -> {types if len(outputs) == 1 else f'({types})'} {{"
    return [head, *lines, f"util.return {', '.join(made)} : {types}", "}"]


def own_dims(shape: Sequence[Dim], operand: str) -> tuple[Dim, ...]:
    """A shape with a symbol of the operand's own for each dim that only the run knows."""
    return tuple(d if isinstance(d, int) else f"{operand}{i}" for i, d in enumerate(shape))


def read_dims(t: Text, operands: Sequence[Operand]) -> None:
    """Names what a function is given of such dims, each of one operand."""
    for x in operands:
        for axis, dim in enumerate(x.shape):
            if isinstance(dim, str):
                t.do(f"%{dim} = tensor.dim {x.name}, {t.index(axis)} : {x.type}")

"""MLIR text under construction: SSA names, constants, loops."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from onnx_fa.spec.terms import Dim

INDEX, I32 = "index", "i32"
CPU_TRANSLATION = "#iree_codegen.translation_info<pipeline = #iree_cpu.pipeline<LinalgExtTileAndVectorize>>"
"""How the CPU compiles a function that is written out at the vector level."""


def float_literal(value: float) -> str:
    """An f32 constant as MLIR writes it; infinities by their bits."""
    if math.isinf(value):
        return "0xFF800000" if value < 0 else "0x7F800000"
    return f"{value:.9e}"


def tensor_type(shape: Sequence[Dim], element: str) -> str:
    """tensor<2x?xf32> for (2, "n") and "f32"."""
    return f"tensor<{''.join(f'{d}x' if isinstance(d, int) else '?x' for d in shape)}{element}>"


def element_type(dtype: str) -> str:
    """The element type of a builtin tensor: MLIR's integers have no sign of their own."""
    return {"bool": "i1", "u8": "i8", "u4": "i4"}.get(dtype, dtype)


def executable(
    symbol: str,
    workload: Sequence[str],
    counts: Sequence[str] | None,
    args: Sequence[str],
    body: Sequence[str],
    translation: str = "",
) -> list[str]:
    """The executable of one dispatch, a function of its name. `counts` are operations that make those of %x, %y, %z, the numbers of
    workgroups, which are no names of the workload; None: the compiler finds all three. `args` are written "%name: type"."""
    typed = ", ".join(f"{w}: index" for w in workload)
    if counts is None:
        counts = [f"%x, %y, %z = iree_tensor_ext.dispatch.workgroup_count_from_slice({', '.join(workload)})"]
    attributes = f" attributes {{translation_info = {translation}}}" if translation else ""
    return [
        f"flow.executable private @{symbol} {{",
        f"flow.executable.export public @{symbol} workgroups({typed}) -> (index, index, index) {{",
        *counts,
        "flow.return %x, %y, %z : index, index, index",
        "}",
        "builtin.module {",
        f"func.func @{symbol}({', '.join(args)}){attributes} {{",
        *body,
        "return",
        "}",
        "}",
        "}",
    ]


class Text:
    """The body of one function. Constants are written once, before everything else."""

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._constants: dict[str, str] = {}
        self._count = 0

    def _name(self) -> str:
        self._count += 1
        return f"%x{self._count}"

    def do(self, operation: str) -> None:
        """Appends an operation without a result."""
        self._lines.append(operation)

    def let(self, operation: str) -> str:
        """Appends an operation and returns the name of its result."""
        result = self._name()
        self._lines.append(f"{result} = {operation}")
        return result

    def several(self, operation: str, count: int) -> list[str]:
        """Appends an operation with `count` results and returns their names."""
        if count == 1:
            return [self.let(operation)]
        result = self._name()
        self.do(f"{result}:{count} = {operation}")
        return [f"{result}#{i}" for i in range(count)]

    def constant(self, literal: str, type_: str) -> str:
        key = f"arith.constant {literal} : {type_}"
        return self._constants.setdefault(key, f"%c{len(self._constants)}")

    def index(self, value: int) -> str:
        return self.constant(str(value), INDEX)

    def f32(self, value: float) -> str:
        return self.constant(float_literal(value), "f32")

    def arith(self, op: str, a: str, b: str, type_: str = INDEX) -> str:
        """A binary operation of the arith dialect, e.g. arith("addi", a, b)."""
        return self.let(f"arith.{op} {a}, {b} : {type_}")

    def test(self, predicate: str, a: str, b: str) -> str:
        """Compares two indices."""
        return self.let(f"arith.cmpi {predicate}, {a}, {b} : index")

    def choose(self, condition: str, a: str, b: str) -> str:
        """One of two indices."""
        return self.let(f"arith.select {condition}, {a}, {b} : index")

    def shifted(self, base: str, by: int) -> str:
        """The index base + by."""
        return base if by == 0 else self.arith("addi", base, self.index(by))

    def loop(
        self,
        bounds: tuple[str, str, str],
        carried: Sequence[tuple[str, str]],
        body: Callable[[str, list[str]], list[str]],
    ) -> list[str]:
        """scf.for over (low, high, step) that carries (value, type) pairs; `body(iv, values)` returns the next."""
        result, iv = self._name(), self._name()
        values = [self._name() for _ in carried]
        types = ", ".join(t for _, t in carried)
        inits = ", ".join(f"{v} = {init}" for v, (init, _) in zip(values, carried, strict=True))
        low, high, step = bounds
        self.do(
            f"{result}:{len(carried)} = scf.for {iv} = {low} to {high} step {step} iter_args({inits}) -> ({types}) {{"
        )
        self.do(f"scf.yield {', '.join(body(iv, values))} : {types}")
        self.do("}")
        return [f"{result}#{i}" for i in range(len(carried))]

    def render(self) -> list[str]:
        return [f"{name} = {key}" for key, name in self._constants.items()] + self._lines

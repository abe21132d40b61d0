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


def memref_type(shape: Sequence[int], element: str) -> str:
    """memref<2x3xf32> for (2, 3) and "f32"."""
    return f"memref<{'x'.join(map(str, shape))}x{element}>"


def is_memref(type_: str) -> bool:
    """Whether a type is memory, which operations change, and not a tensor, of which they make another."""
    return type_.startswith("memref<")


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
    helpers: tuple[Sequence[str], str] = ((), ""),
) -> list[str]:
    """The executable of one dispatch, a function of its name. `counts` are operations that make those of %x, %y, %z, the numbers of
    workgroups, which are no names of the workload; None: the compiler finds all three. `args` are written "%name: type". `helpers`
    are functions beside it, and an attribute that refers to them."""
    typed = ", ".join(f"{w}: index" for w in workload)
    if counts is None:
        counts = [f"%x, %y, %z = iree_tensor_ext.dispatch.workgroup_count_from_slice({', '.join(workload)})"]
    functions, keep = helpers
    listed = ", ".join([*[f"translation_info = {translation}"] * bool(translation), *[keep] * bool(keep)])
    attributes = f" attributes {{{listed}}}" if listed else ""
    return [
        f"flow.executable private @{symbol} {{",
        f"flow.executable.export public @{symbol} workgroups({typed}) -> (index, index, index) {{",
        *counts,
        "flow.return %x, %y, %z : index, index, index",
        "}",
        "builtin.module {",
        *functions,
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

    def fresh(self) -> str:
        """A name that nothing has yet."""
        return self._name()

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

    def each(self, bounds: tuple[str, str, str], body: Callable[[str], None]) -> None:
        """scf.for over (low, high, step) whose body only writes to memory."""
        low, high, step = bounds
        iv = self._name()
        self.do(f"scf.for {iv} = {low} to {high} step {step} {{")
        body(iv)
        self.do("}")

    def either(
        self, condition: str, types: Sequence[str], yes: Callable[[], list[str]], no: Callable[[], list[str]]
    ) -> list[str]:
        """What one of two branches yields, values of these types."""
        listed = ", ".join(types)
        made = self.several(f"scf.if {condition} -> ({listed}) {{", len(types))
        for branch, end in ((yes, "} else {"), (no, "}")):
            self.do(f"scf.yield {', '.join(branch())} : {listed}")
            self.do(end)
        return made

    def empty(self, type_: str) -> str:
        """A tensor whose elements nobody has written; of a memref's type, memory on the stack."""
        if not is_memref(type_):
            return self.let(f"tensor.empty() : {type_}")
        # Tiles and vectors of a cache line that begin at one are read at once.
        return self.let(
            '"memref.alloca"() <{alignment = 64 : i64, operandSegmentSizes = array<i32: 0, 0>}> : () -> ' + type_
        )

    def extract(self, tensor: str, type_: str, *indices: str) -> str:
        """One element of a tensor or memref."""
        op = "memref.load" if is_memref(type_) else "tensor.extract"
        return self.let(f"{op} {tensor}[{', '.join(indices)}] : {type_}")

    def insert(self, scalar: str, tensor: str, type_: str, *indices: str) -> str:
        """The tensor (or the same memref) with one element replaced."""
        if is_memref(type_):
            self.do(f"memref.store {scalar}, {tensor}[{', '.join(indices)}] : {type_}")
            return tensor
        return self.let(f"tensor.insert {scalar} into {tensor}[{', '.join(indices)}] : {type_}")

    def render(self) -> list[str]:
        return [f"{name} = {key}" for key, name in self._constants.items()] + self._lines


def inline_asm(code: str, constraints: str) -> str:
    """An operation that runs instructions, in AT&T's syntax, and is not moved nor left out; behind it come operands and types."""
    return f'llvm.inline_asm has_side_effects asm_dialect = att "{code}", "{constraints}"'

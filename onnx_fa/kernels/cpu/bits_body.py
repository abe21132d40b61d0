"""Dispatches over operands whose first dim may be free, and the walk over the rows of a weight of a few bits."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence

from onnx_fa.kernels.cpu.bits_spec import BitsProduct, Operand
from onnx_fa.kernels.mlir.text import CPU_TRANSLATION, INDEX, Text, executable
from onnx_fa.spec.terms import Dim

_ROWS_A_GROUP = 64
"""Rows of the weight that a workgroup takes."""
MANY_REGISTERS = 32


def dispatched(operand: Operand, access: str) -> str:
    """The type of a dispatch's argument."""
    return f"!iree_tensor_ext.dispatch.tensor<{access}:{operand.type}>"


def make_executable(
    symbol: str, operands: Sequence[Operand], outputs: Sequence[Operand], groups: str, body: Sequence[str]
) -> list[str]:
    """The executable of a dispatch. `groups` is the operation that makes the number of its workgroups, of %rows where that is
    free."""
    free = any(x.is_free for x in operands)
    args: list[str] = []
    ties: list[str] = []
    for access, values in (("readonly", operands), ("writeonly", outputs)):
        if access == "writeonly" and free:
            args.append("%rows: index")
        for x in values:
            args.append(f"{x.name}{'_' * x.is_free}: {dispatched(x, access)}")
            if x.is_free:
                ties.append(f"{x.name} = flow.dispatch.tie_shape {x.name}_ : {dispatched(x, access)}{{%rows}}")
    one = ["%y = arith.constant 1 : index", "%z = arith.constant 1 : index"]
    workload = ["%rows"] * free
    return executable(
        symbol,
        workload,
        ["%zero = arith.constant 0 : index", f"%x = {groups}", *one],
        args,
        [*ties, *body],
        CPU_TRANSLATION,
    )


def call_dispatch(
    t: Text, symbol: str, operands: Sequence[Operand], values: Sequence[str], outputs: Sequence[Operand]
) -> list[str]:
    """The results of a dispatch by the values of its operands; %rows is the number of rows where it is free."""
    free = any(x.is_free for x in operands)

    def typed(x: Operand) -> str:
        return x.type + "{%rows}" * x.is_free

    passed = [*map(typed, operands), *[INDEX] * free]
    made = [typed(x) for x in outputs]
    results = made[0] if len(made) == 1 else f"({', '.join(made)})"
    workload = "[%rows]" * free
    given = ", ".join([*values, *["%rows"] * free])
    return t.several(
        f"flow.dispatch @{symbol}::@{symbol}{workload}({given}) : ({', '.join(passed)}) -> {results}", len(made)
    )


def function_text(product: BitsProduct, t: Text, y: str) -> list[str]:
    """The function that a program calls, whose body is `t`."""
    typed = ", ".join(f"{x.name}: {x.type}" for x in product.operands)
    rows = ["%first = arith.constant 0 : index", f"%rows = tensor.dim %x, %first : {product.x.type}"]
    head = f"util.func private @{product.name}({typed}) -> {product.y.type} {{"
    return [head, *(rows if product.rows is None else []), *t.render(), f"util.return {y} : {product.y.type}", "}"]


def joined(lines: Sequence[str]) -> str:
    """Lines as text."""
    return "\n".join(lines) + "\n"


def size_of(dim: Dim) -> str:
    return "%rows" if isinstance(dim, str) else str(dim)


def load(t: Text, x: Operand, access: str, offsets: Sequence[str], sizes: Sequence[Dim]) -> tuple[str, str]:
    """A part of an operand, and its type."""
    part = Operand(x.name, tuple(sizes), x.element)
    ones = ", ".join("1" for _ in x.shape)
    value = t.let(
        f"iree_tensor_ext.dispatch.tensor.load {x.name}, offsets = [{', '.join(offsets)}], "
        f"sizes = [{', '.join(map(size_of, sizes))}], strides = [{ones}] : "
        f"{dispatched(x, access)}{'{%rows}' * x.is_free} -> {part.type}"
    )
    return value, part.type


def store(t: Text, value: str, type_: str, x: Operand, offsets: Sequence[str], sizes: Sequence[Dim]) -> None:
    """Writes a part of an output."""
    ones = ", ".join("1" for _ in x.shape)
    t.do(
        f"iree_tensor_ext.dispatch.tensor.store {value}, {x.name}, offsets = [{', '.join(offsets)}], "
        f"sizes = [{', '.join(map(size_of, sizes))}], strides = [{ones}] : {type_} -> "
        f"{dispatched(x, 'writeonly')}{'{%rows}' * x.is_free}"
    )


class RowsOfWeight(ABC):
    """The body of one workgroup: a group of the weight's rows by all rows of x, `own` of the first and `shared` of the second at a
    time, of the second no more than `most`. `from_x` are the operands that have x's rows, `registers` those of the processor."""

    def __init__(self, product: BitsProduct, from_x: Sequence[Operand], registers: int, most: int = 4) -> None:
        self.p, self.t, self.from_x = product, Text(), list(from_x)
        self.group = min(_ROWS_A_GROUP, product.N)
        wide = registers >= MANY_REGISTERS
        self.shared = min(most if wide else 2, product.rows or 4)
        # By a single row of x the weight's bytes are used once, and what counts is that they come in a row from memory: processors
        # fetch ahead along one stream in a page, and rows of a weight are shorter than one. Two at a time take 1.6 times as long.
        own = 1 if self.shared == 1 else 4 if wide else 2
        self.own = next(n for n in (4, 2, 1) if n <= own and self.group % n == 0)
        self.loaded: dict[str, tuple[str, str]] = {}

    def text(self, symbol: str) -> list[str]:
        """The executable."""
        groups = f"arith.constant {math.ceil(self.p.N / self.group)} : index"
        return make_executable(symbol, [*self.from_x, *self.p.weight], [self.p.y], groups, self._body())

    def _body(self) -> list[str]:
        t, p = self.t, self.p
        first = t.arith("muli", t.let("flow.dispatch.workgroup.id[0] : index"), t.index(self.group))
        if p.N % self.group:  # the last workgroup takes some rows that the one before takes too
            first = t.arith("minsi", first, t.index(p.N - self.group))
        for x in self.from_x:
            self.loaded[x.name] = load(t, x, "readonly", ["0"] * len(x.shape), x.shape)
        for x in p.weight:
            self.loaded[x.name] = load(t, x, "readonly", [first, "0"], (self.group, *x.shape[1:]))
        y, y_type = load(t, p.y, "writeonly", ["0", first], (p.lead, self.group))
        self.rows, zero = "%rows" if p.rows is None else t.index(p.rows), t.index(0)
        own = (zero, t.index(self.group), t.index(self.own))

        def over_x(m: str, carried: list[str]) -> list[str]:
            ms = self._clamped(m)
            return t.loop(own, [(carried[0], y_type)], lambda n, inner: [self._tile(ms, n, inner[0], y_type)])

        (made,) = t.loop((zero, self.rows, t.index(self.shared)), [(y, y_type)], over_x)
        store(t, made, y_type, p.y, ["0", first], (p.lead, self.group))
        return t.render()

    def _clamped(self, m: str) -> list[str]:
        """The rows of x of a tile: where there are fewer left, the last one is computed again."""
        if self.shared == 1:
            return [m]
        last = self.t.arith("subi", self.rows, self.t.index(1))
        return [self.t.arith("minsi", self.t.shifted(m, i), last) if i else m for i in range(self.shared)]

    def _tile(self, ms: list[str], n: str, y: str, y_type: str) -> str:
        """y with the products of some rows of the weight by some of x."""
        ns = [self.t.shifted(n, i) for i in range(self.own)]
        for at, value in self.sums(ms, ns).items():
            y = self.t.let(f"tensor.insert {value} into {y}[{at[0]}, {at[1]}] : {y_type}")
        return y

    @abstractmethod
    def sums(self, ms: list[str], ns: list[str]) -> dict[tuple[str, str], str]:
        """The f32 for every pair of a row of x and one of the weight."""

    def element(self, name: str, n: str, b: str) -> str:
        """An element of an operand."""
        value, type_ = self.loaded[name]
        return self.t.let(f"tensor.extract {value}[{n}, {b}] : {type_}")

    def widened(self, value: str, element: str) -> str:
        """A number as f32."""
        return value if element == "f32" else self.t.let(f"arith.extf {value} : {element} to f32")

    def zero_point(self, n: str, b: str) -> str:
        """The zero point of a block, as f32."""
        t, p = self.t, self.p
        if p.zeros != "packed":
            return self.widened(self.element("%zero", n, b), p.zeros)
        byte = self.element("%zero", n, t.arith("divui", b, t.index(p.places)))
        whole = t.let(f"arith.extui {byte} : i8 to i32")
        if p.places > 1:
            place = t.arith("muli", t.arith("remui", b, t.index(p.places)), t.index(p.bits))
            shift = t.let(f"arith.index_cast {place} : index to i32")
            whole = t.arith("shrui", whole, shift, "i32")
            whole = t.arith("andi", whole, t.constant(str((1 << p.bits) - 1), "i32"), "i32")
        return t.let(f"arith.uitofp {whole} : i32 to f32")

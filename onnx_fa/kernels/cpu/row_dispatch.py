"""Dispatches on CPUs over operands whose rows may be known at run time only."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from onnx_fa.kernels.cpu.addresses import Helper
from onnx_fa.kernels.mlir.entry import KernelEntry, listed_types
from onnx_fa.kernels.mlir.operand import ROWS, Operand
from onnx_fa.kernels.mlir.text import CPU_TRANSLATION, INDEX, Text, executable
from onnx_fa.spec.terms import Dim


class Changed(Protocol):
    """What a dispatch reads and writes, behind its operands."""

    @property
    def operand(self) -> Operand: ...

    def take(self, t: Text) -> str:
        """Its value, in the function that calls the dispatch."""

    def give_back(self, t: Text, value: str) -> None:
        """Says what the dispatch left."""


class Zeros(Changed):
    """What is zeros when a dispatch begins, and of which nobody reads what it left."""

    def take(self, t: Text) -> str:
        """Its value, in the function that calls the dispatch."""
        x = self.operand
        return t.let(f"flow.tensor.splat {t.constant('0', x.element)} : {x.type}")

    def give_back(self, t: Text, value: str) -> None:
        """Leaves the value to nobody."""


def make_executable(
    symbol: str,
    operands: Sequence[Operand],
    outputs: Sequence[Operand],
    groups: Sequence[str],
    body: Sequence[str],
    *,
    helper: Helper | None = None,
    numbers: Sequence[str] = (),
    changed: Sequence[Operand] = (),
) -> list[str]:
    """The executable of a dispatch. `groups` are operations that make %x, the number of its workgroups, of the operands' symbols,
    such as %rows where that is free. `helper` is a function that its body calls, and `numbers` are indices that it is given
    besides. `changed` are operands, behind the others, that it reads and writes."""
    workload = [*_symbols([*operands, *changed, *outputs]), *numbers]
    args: list[str] = []
    ties: list[str] = []
    for access, values in (("readonly", operands), ("readwrite", changed), ("writeonly", outputs)):
        if access == "writeonly":
            args += [f"{symbol}: index" for symbol in workload]
        for x in values:
            args.append(f"{x.name}{'_' * bool(x.symbols)}: {x.bound(access)}")
            if x.symbols:
                ties.append(f"{x.name} = flow.dispatch.tie_shape {x.name}_ : {x.bound(access)}{x.sizes}")
    one = ["%y = arith.constant 1 : index", "%z = arith.constant 1 : index"]
    return executable(
        symbol,
        workload,
        [*groups, *one],
        args,
        [*ties, *body],
        CPU_TRANSLATION,
        (helper.helper, helper.keep) if helper else ((), ""),
    )


def call_dispatch(
    t: Text,
    symbol: str,
    operands: Sequence[Operand],
    values: Sequence[str],
    outputs: Sequence[Operand],
    *,
    numbers: Sequence[str] = (),
    changed: int = 0,
) -> list[str]:
    """The results of a dispatch by the values of its operands; what they have as symbols are indices of these names. `numbers` are
    the values of indices that it is given besides. The last operands, as many as are `changed`, are read and written: they are
    results too, the first ones."""
    symbols = [*_symbols([*operands, *outputs]), *numbers]
    passed = [*(x.type + x.sizes for x in operands), *[INDEX] * len(symbols)]
    first = len(operands) - changed
    made = [v + x.sizes for v, x in zip(values[first:], operands[first:], strict=True)]
    made += [x.type + x.sizes for x in outputs]
    results = made[0] if len(made) == 1 else f"({', '.join(made)})"
    workload = f"[{', '.join(symbols)}]" if symbols else ""
    given = ", ".join([*values, *symbols])
    return t.several(
        f"flow.dispatch @{symbol}::@{symbol}{workload}({given}) : ({', '.join(passed)}) -> {results}", len(made)
    )


def call_changing(
    t: Text,
    symbol: str,
    operands: Sequence[Operand],
    values: Sequence[str],
    outputs: Sequence[Operand],
    changed: Sequence[Changed],
) -> list[str]:
    """The results of a dispatch by the values of its operands, which reads and writes what is `changed` besides."""
    given = [*operands, *(x.operand for x in changed)], [*values, *(x.take(t) for x in changed)]
    results = call_dispatch(t, symbol, *given, outputs, changed=len(changed))
    for x, left in zip(changed, results, strict=False):
        x.give_back(t, left)
    return results[len(changed) :]


def _symbols(operands: Iterable[Operand]) -> list[str]:
    """What only a run knows of their shapes, as indices."""
    return list(dict.fromkeys(f"%{symbol}" for x in operands for symbol in x.symbols))


class RowEntry(KernelEntry):
    """Writes the function of a site whose dispatch sees its rows flat."""

    def text_lines(
        self,
        symbol: str,
        lead: Sequence[Dim],
        own: Sequence[Sequence[Dim]],
        operands: Sequence[Operand],
        outputs: Sequence[Operand],
        *,
        kept: Sequence[Changed] = (),
    ) -> list[str]:
        """The function that calls the dispatch `symbol` of `operands` and `outputs`. `lead` are the dims of the rows, and `own` the
        operands' shapes in the site, in the dispatch's element types. It changes what is `kept`."""
        t, free = self.t, any(x.is_free for x in operands)
        if free:
            self.count_rows(lead)
        values = self.pass_operands(own, [x.shape for x in operands], [x.element for x in operands])
        types = [*(self.typed(x.shape, x.element) for x in operands), *[INDEX] * free]
        taken = [x.take(t) for x in kept]
        types[len(values) : len(values)] = [x.operand.type for x in kept]
        made = [*taken, *(self.typed(y.shape, y.element) for y in outputs)]
        workload = f"[{self.dims[ROWS]}]" if free else ""
        given = ", ".join([*values, *taken, *([self.dims[ROWS]] if free else [])])
        call = f"flow.dispatch @{symbol}::@{symbol}{workload}({given}) : ({', '.join(types)}) -> {listed_types(made)}"
        results = t.several(call, len(made))
        for x, left in zip(kept, results, strict=False):
            x.give_back(t, left)
        own_results = results[len(kept) :]
        shaped = zip(own_results, outputs, self.site.results, strict=True)
        return self.lines([self.reshape(x, y.shape, shape, y.element) for x, y, (shape, _) in shaped])


def joined(lines: Sequence[str]) -> str:
    """Lines as text."""
    return "\n".join(lines) + "\n"


def tile_height(rows: int, heights: Iterable[int], most: int) -> int:
    """Of the heights of register tiles, `most` rows at most, the one that computes the fewest rows twice; a lower tile keeps the
    multipliers less busy."""
    return min(heights, key=lambda n: -(-rows // n) * n + (most - n) * rows / 100)


def size_of(dim: Dim) -> str:
    return f"%{dim}" if isinstance(dim, str) else str(dim)


def index_of(t: Text, dim: Dim) -> str:
    """A dim as an index of the dispatch: a constant, or what it is given."""
    return f"%{dim}" if isinstance(dim, str) else t.index(dim)


def load(t: Text, x: Operand, access: str, offsets: Sequence[str], sizes: Sequence[Dim]) -> tuple[str, str]:
    """A part of an operand, and its type."""
    part = Operand(x.name, tuple(sizes), x.element)
    ones = ", ".join("1" for _ in x.shape)
    value = t.let(
        f"iree_tensor_ext.dispatch.tensor.load {x.name}, offsets = [{', '.join(offsets)}], "
        f"sizes = [{', '.join(map(size_of, sizes))}], strides = [{ones}] : "
        f"{x.bound(access)}{x.sizes} -> {part.type}"
    )
    return value, part.type


def store(
    t: Text,
    value: str,
    type_: str,
    x: Operand,
    offsets: Sequence[str],
    sizes: Sequence[Dim],
    access: str = "writeonly",
) -> None:
    """Writes a part of an output."""
    ones = ", ".join("1" for _ in x.shape)
    t.do(
        f"iree_tensor_ext.dispatch.tensor.store {value}, {x.name}, offsets = [{', '.join(offsets)}], "
        f"sizes = [{', '.join(map(size_of, sizes))}], strides = [{ones}] : {type_} -> "
        f"{x.bound(access)}{x.sizes}"
    )

"""The function that a program calls for a Triton kernel: sizes, the numbers of workgroups, the dispatches."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from onnx_fa.kernels.mlir.entry import KernelEntry
from onnx_fa.kernels.mlir.stored import operand_shapes, operand_types
from onnx_fa.kernels.mlir.text import Text
from onnx_fa.kernels.triton import ptx
from onnx_fa.kernels.triton.config import MULTIPROCESSORS, PERSISTENT, TritonConfig
from onnx_fa.kernels.triton.held import rows_of_workgroup
from onnx_fa.kernels.triton.program import Program, combines_itself
from onnx_fa.spec.attention import AttentionSpec
from onnx_fa.spec.terms import Dim


def dispatch(
    t: Text,
    symbol: str,
    archs: Sequence[int],
    counts: Sequence[str],
    values: Sequence[str],
    types: Sequence[str],
    results: Sequence[str],
) -> list[str]:
    """Dispatches the executable `symbol`, with a number of workgroups per architecture. Returns the names of what it gives, of
    the types `results`."""
    entries = ", ".join(f"@{symbol}::@sm_{arch}::@{symbol}" for arch in archs)
    result = f"({', '.join(results)})" if len(results) > 1 else results[0]
    text = f"flow.dispatch {{{entries}}}[{', '.join(counts)}]({', '.join(values)}) : ({', '.join(types)}) -> {result}"
    if len(results) == 1:
        return [t.let(text)]
    t.do(f"%{symbol}:{len(results)} = {text}")
    return [f"%{symbol}#{i}" for i in range(len(results))]


@dataclass(frozen=True)
class Counters:
    """So many numbers of a kernel, which outlive its calls. Each is zero again when a dispatch ends."""

    kernel: str
    many: int

    @property
    def symbol(self) -> str:
        return f"{self.kernel}_count"

    @property
    def type(self) -> str:
        return f"tensor<{self.many}xi32>"

    @property
    def declaration(self) -> str:
        return f"util.global private mutable @{self.symbol} = dense<0> : {self.type}"

    def load(self, t: Text) -> str:
        return t.let(f"util.global.load @{self.symbol} : {self.type}")

    def store(self, t: Text, value: str) -> None:
        t.do(f"util.global.store {value}, @{self.symbol} : {self.type}")


@dataclass(frozen=True)
class Dispatched:
    """An executable of some architectures, and what workgroups that share sums leave each other: `counters` (None where none share
    any) and so many numbers."""

    symbol: str
    archs: tuple[int, ...]
    counters: Counters | None
    numbers: int = 0

    def run(
        self,
        t: Text,
        counts: Sequence[str],
        values: Sequence[str],
        types: Sequence[str],
        sizes: Sequence[str],
        results: Sequence[str],
    ) -> list[str]:
        """Dispatches it with operands of these types and `sizes` behind them, i32. Returns the names of the results."""
        values, types, results, first = [*values], [*types], [*results], 0
        if self.counters:
            values.append(self.counters.load(t))
            types.append(self.counters.type)
            results, first = [values[-1], f"tensor<{self.numbers}xf32>", *results], 2
        values, types = [*values, *sizes], [*types, *["i32"] * len(sizes)]
        made = dispatch(t, self.symbol, self.archs, counts, values, types, results)
        if self.counters:
            self.counters.store(t, made[0])
        return made[first:]


@dataclass(frozen=True)
class Variant:
    """One architecture's code of a dispatch, and its configuration."""

    arch: int
    code: ptx.Compiled
    config: TritonConfig


class TritonEntry(KernelEntry):
    """The entry of a `site`, whose dispatches see `spec`, the site with its queries folded. `combine` is the dispatch that combines
    the parts of split keys, where that is one of its own."""

    def __init__(
        self,
        site: AttentionSpec,
        spec: AttentionSpec,
        name: str,
        program: Program,
        variants: Sequence[Variant],
        combine: Program | None,
    ) -> None:
        super().__init__(site, name)
        self.attention = site
        self.symbols = site.symbols
        self.spec, self.program, self.variants, self.combine = spec, program, variants, combine
        self.config: TritonConfig = variants[0].config
        heads = math.prod(d for d in (*spec.batch, spec.Hq) if isinstance(d, int))
        blocks = max(-(-spec.Sq // v.config.BM) for v in variants) if isinstance(spec.Sq, int) else 0
        self.counters = Counters(name, heads * blocks) if combines_itself(spec, self.config) else None
        """A number per workgroup of queries, where the kernel of split keys combines the parts itself."""

    def text_lines(self) -> list[str]:
        """The function, and the variable that holds the counters."""
        site, spec, t = self.attention, self.spec, self.t
        for symbol in self.symbols:
            self.measure(symbol)
        elements, shapes = operand_types(spec), operand_shapes(spec)
        values = self.pass_operands(operand_shapes(site), shapes, elements)
        passed = [self.typed(shape, element) for shape, element in zip(shapes, elements, strict=True)]
        constants = [t.let(f"arith.index_cast {self.dims[s]} : index to i32") for s in self.program.constants]
        made = self.attend(values, passed, constants)
        returned = zip(made, spec.results, site.results, strict=True)
        results = [self.reshape(x, old, new, element) for x, (old, element), (new, _) in returned]
        state = [self.counters.declaration] if self.counters else []
        return [*state, *self.lines(results)]

    def attend(self, values: list[str], passed: list[str], constants: Sequence[str]) -> list[str]:
        """The output and the row statistics, from the operands as the kernel takes them; `passed` are their types."""
        spec, t = self.spec, self.t
        counts = self.workgroup_counts()
        made = [self.typed(shape, element) for shape, element in spec.results]
        results = made
        if self.config.splits > 1:
            results = self.part_types() if self.combine else [*self.part_types(), *made]
        if self.counters:
            values.append(self.counters.load(t))
            passed.append(self.counters.type)
            results = [values[-1], *results]
        scratch = max(v.code.scratch for v in self.variants)
        if scratch:
            results = [*results, self.scratch_type(scratch, counts[0])]
        symbols = ["i32"] * len(constants)
        found = self.dispatch(self.program.entry, counts, [*values, *constants], [*passed, *symbols], results)
        if self.combine is not None:
            queries = [self.product((*spec.batch, spec.Hq, spec.Sq))] * len(self.variants)
            return self.dispatch(self.combine.entry, queries, [*found[:2], *constants], [*results[:2], *symbols], made)
        if self.counters:
            self.counters.store(t, found[0])
        first = 3 if self.counters else 0
        return found[first : first + len(made)]

    def workgroup_counts(self) -> list[str]:
        """The number of workgroups of each variant."""
        spec, t = self.spec, self.t
        heads = self.product((*spec.batch, spec.Hq))
        counts = []
        for v in self.variants:
            if isinstance(spec.Sq, int):
                blocks = t.index(-(-spec.Sq // rows_of_workgroup(spec, v.config)))
            else:
                blocks = t.arith("ceildivui", self.dims[spec.Sq], t.index(v.config.BM))
            count = t.arith("muli", heads, blocks)
            if v.config.overlap == PERSISTENT:
                count = t.arith("minui", count, t.index(MULTIPROCESSORS))
            counts.append(count)
        return counts

    def part_types(self) -> list[str]:
        """The types of what each split of the keys found: output, then maximum and sum."""
        rows = (*self.spec.batch, self.spec.Hq, self.spec.Sq)
        splits = self.config.splits
        return [self.flat((*rows, splits * self.spec.Dv), "f32"), self.flat((*rows, 2 * splits), "f32")]

    def scratch_type(self, scratch: int, count: str) -> str:
        """The type of the memory that `count` workgroups, with `scratch` bytes each, have for themselves."""
        spec, t = self.spec, self.t
        if isinstance(spec.Sq, int):
            blocks = -(-spec.Sq // self.config.BM)
            return self.flat((*spec.batch, spec.Hq, blocks, scratch), "i8", ptx.ALIGNMENT)
        most = t.arith("addi", t.arith("muli", count, t.index(scratch)), t.index(ptx.ALIGNMENT))
        return f"tensor<?xi8>{{{most}}}"

    def product(self, dims: Sequence[Dim]) -> str:
        """The product of dims, as an index."""
        value = self.t.index(math.prod(d for d in dims if isinstance(d, int)))
        for d in dims:
            if isinstance(d, str):
                value = self.t.arith("muli", value, self.dims[d])
        return value

    def flat(self, dims: Sequence[Dim], element: str, more: int = 0) -> str:
        """The type of a buffer of so many elements."""
        known = math.prod(d for d in dims if isinstance(d, int))
        if all(isinstance(d, int) for d in dims):
            return f"tensor<{known + more}x{element}>"
        return f"tensor<?x{element}>{{{self.t.arith('addi', self.product(dims), self.t.index(more))}}}"

    def dispatch(
        self, symbol: str, counts: Sequence[str], values: Sequence[str], types: Sequence[str], results: Sequence[str]
    ) -> list[str]:
        """Dispatches the executable `symbol`, with a number of workgroups per variant. Returns the names of what it gives."""
        return dispatch(self.t, symbol, [v.arch for v in self.variants], counts, values, types, results)

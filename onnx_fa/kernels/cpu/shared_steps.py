"""All steps of an LSTM or a GRU as one dispatch whose workgroups share each of them.

A step's tiles are some panels each. A bit of a word in memory says that a tile is claimed, and one of another word that it is
done. A workgroup claims tiles of a step until none are left. Then it waits until all are done, and where that takes long it
computes those that are not, too: whoever computes a tile writes the same numbers, and those of every step have a place of their
own. So no workgroup depends on another that has not begun or whose thread does not run, and one that begins late finds
everything done.

The dispatch's work is done by a function beside its own, which sees the operands as memory: tensors cannot be changed by several
at once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from onnx_fa.kernels.cpu.row_dispatch import index_of, load, make_executable, size_of, store
from onnx_fa.kernels.cpu.step_body import StepBody, StepOperands
from onnx_fa.kernels.mlir.operand import Operand
from onnx_fa.kernels.mlir.text import INDEX, Text, inline_asm
from onnx_fa.spec.target import Target
from onnx_fa.spec.terms import Dim

_GROUPS = 16
"""Workgroups, a power of two: as many threads take part at most. One that finds nothing to do takes a microsecond."""
_TILES = 16
"""Of a step at most, and at most 31, the bits of a word: what few share evenly, without taking words from each other often."""
_LINE = 16
"""Words of a cache line."""
_LOOKS = 256
"""How often a workgroup looks whether the others are done before it computes one of their tiles: some microseconds."""
_PAUSE = f"{inline_asm('pause', '')} : () -> ()"


def words_of(operands: StepOperands) -> Operand:
    """What says of every step which tiles are claimed, and in another cache line which are done; 0 when the dispatch begins."""
    return Operand("%words", (operands.lead[0], 2 * _LINE), "i32")


def outputs_of(operands: StepOperands) -> list[Operand]:
    """Of the dispatch: the results, and then of an LSTM the cells of all steps."""
    every, *last = operands.results
    cells = [Operand("%cells", every.shape, "f32")] * (operands.spec.states - 1)
    return [every, *(Operand(f"{y.name}_last", y.shape, "f32") for y in last), *cells]


class SharedBody(StepBody):
    """Writes the dispatch, which reads weights and first states and changes the words."""

    def __init__(self, operands: StepOperands, target: Target) -> None:
        super().__init__(operands, target)
        self.across = -(-self.spec.panels // _TILES)
        self.tiles = -(-self.spec.panels // self.across)
        self.steps, self.rows = (index_of(self.t, dim) for dim in operands.lead)

    def executable(self, symbol: str) -> list[str]:
        of, words = self.operands, words_of(self.operands)
        operands, outputs = [*of.weights, *of.states], outputs_of(of)
        worker = _Worker(symbol, tuple(self._worker(symbol, [*operands, words, *outputs])))
        body, count = _call_of(worker, operands, words, outputs), [f"%x = arith.constant {_GROUPS} : index"]
        return make_executable(symbol, operands, outputs, count, body, helper=worker, changed=[words])

    def _worker(self, symbol: str, operands: list[Operand]) -> list[str]:
        """The function: of every operand it is given where it lies, then which workgroup it is, and what is free."""
        t = self.t
        args = [f"{x.name}_base: memref<{x.element}>, {x.name}_offset: index" for x in operands]
        args += ["%group: index", *(f"%{s}: index" for s in operands[0].symbols)]
        self.loaded = {x.name: self._view(x.name, f"{x.name}_offset", x.shape, x.element) for x in operands}
        self._if(t.test("sle", self.steps, t.index(0)), self._copy_states)
        self._if(t.test("sgt", self.steps, t.index(0)), self._compute_steps)
        head = f"func.func private @{_name_of(symbol)}({', '.join(args)}) attributes {{llvm.bareptr = true}} {{"
        return [head, *t.render(), "return", "}"]

    def _compute_steps(self) -> None:
        t, start = self.t, self._first_tile()
        first = {y.name: self.loaded[y.name] for y in self.operands.states}

        def step(at: str) -> None:
            self._read_before(at, first)
            self._share(at, start)

        last = self._mark(t.shifted(self.steps, -1), _LINE, self._word(0))
        is_over = t.let(f"arith.cmpi eq, {last}, {self._all_tiles} : i32")
        t.each((t.index(0), t.choose(is_over, t.index(0), self.steps), t.index(1)), step)

    def _read_before(self, at: str, first: Mapping[str, tuple[str, str]]) -> None:
        """Makes the states that a step reads those of the step before, or the first ones."""
        t = self.t
        begins, each = t.test("eq", at, t.index(0)), t.arith("muli", self.rows, t.index(self.spec.H))
        before = t.arith("muli", t.shifted(at, -1), each)
        for (name, (value, type_)), written in zip(first.items(), self._written, strict=True):
            # Of the first step the place before it is nowhere, and is not read.
            offset = t.arith("addi", f"{written}_offset", before)
            place, _ = self._view(written, offset, self.operands.states[0].shape, "f32")
            self.loaded[name] = t.let(f"arith.select {begins}, {value}, {place} : {type_}"), type_

    @property
    def _written(self) -> list[str]:
        """Where the states of all steps are."""
        return ["%all", "%cells"][: self.spec.states]

    def _view(self, name: str, offset: str, shape: Sequence[Dim], element: str) -> tuple[str, str]:
        """An operand of the function from an offset on, in a shape; and its type."""
        t, strides, shown = self.t, list[str](), list[str]()
        for axis in range(len(shape)):
            inner = shape[axis + 1 :]
            known = math.prod(d for d in inner if isinstance(d, int))
            free = [f"%{d}" for d in inner if isinstance(d, str)]
            shown.append("?" if free else str(known))
            strides.append(t.arith("muli", free[0], t.index(known)) if free else str(known))
        dims = "x".join("?" if isinstance(d, str) else str(d) for d in shape)
        type_ = f"memref<{dims}x{element}, strided<[{', '.join(shown)}], offset: ?>>"
        value = t.let(
            f"memref.reinterpret_cast {name}_base to offset: [{offset}], sizes: [{', '.join(map(size_of, shape))}], "
            f"strides: [{', '.join(strides)}] : memref<{element}> to {type_}"
        )
        return value, type_

    def _first_tile(self) -> str:
        """The tile with which a workgroup begins. The first ones begin far from each other, and each reads in every step the same
        part of the weight, in their number's bits turned round."""
        t, bits, turned = self.t, _GROUPS.bit_length() - 1, self.t.index(0)
        for i in range(bits):
            bit = t.arith("andi", t.arith("shrui", "%group", t.index(i)), t.index(1))
            turned = t.arith("addi", turned, t.arith("shli", bit, t.index(bits - 1 - i)))
        return t.arith("divui", t.arith("muli", turned, t.index(self.tiles)), t.index(_GROUPS))

    def _copy_states(self) -> None:
        """Where there are no steps, the last states are the first."""
        t = self.t

        def panel(at: str) -> None:
            column = self.column_of(at)

            def row(row: str) -> None:
                for y in self.operands.states:
                    t.write(t.read(*self.loaded[y.name], row, column), *self.loaded[f"{y.name}_last"], row, column)

            t.each((t.index(0), self.rows, t.index(1)), row)

        t.each((t.index(0), t.index(self.spec.panels), t.index(1)), panel)

    def _share(self, at: str, start: str) -> None:
        """Computes of a step what is left, and waits for all of it. What a workgroup has done of its tiles it says at once, when
        there is nothing more to claim: nobody goes on before, and each word is written by few."""
        t, none = self.t, self._word(0)

        def over_tiles(tried: str, carried: list[str]) -> list[str]:
            tile, is_mine, seen = self._claim(at, start, tried, carried[0])
            self._if(is_mine, lambda: self._tile(at, tile))
            mine = t.let(f"arith.select {is_mine}, {self._bit(tile)}, {none} : i32")
            return [seen, t.arith("ori", carried[1], mine, "i32")]

        bounds = t.index(0), t.index(self.tiles), t.index(1)
        _, mine = t.loop(bounds, [(none, "i32"), (none, "i32")], over_tiles)
        self._mark(at, _LINE, mine)
        self._wait(at)

    @property
    def _all_tiles(self) -> str:
        return self._word((1 << self.tiles) - 1)

    def _wait(self, at: str) -> None:
        """Until a step is done altogether, of which this computes what stays away."""
        t, full, (before, looks, done) = self.t, self._all_tiles, (self.t.fresh() for _ in range(3))
        t.do(f"scf.while ({before} = {t.index(1)}) : (index) -> (i32, index) {{")
        now = self._mark(at, _LINE, self._word(0))
        t.do(f"scf.condition({t.let(f'arith.cmpi ne, {now}, {full} : i32')}) {now}, {before} : i32, index")
        t.do("} do {")
        t.do(f"^bb0({done}: i32, {looks}: index):")
        t.do(_PAUSE)
        is_late = t.test("eq", looks, t.index(_LOOKS))

        def compute() -> None:
            missing = t.let(f"math.cttz {t.arith('xori', done, full, 'i32')} : i32")
            self._tile(at, missing)
            self._mark(at, _LINE, self._bit(missing))

        self._if(is_late, compute)
        t.do(f"scf.yield {t.choose(is_late, t.index(1), t.shifted(looks, 1))} : index")
        t.do("}")

    def _bit(self, tile: str) -> str:
        return self.t.arith("shli", self._word(1), tile, "i32")

    def _claim(self, at: str, start: str, tried: str, seen: str) -> tuple[str, str, str]:
        """The tile `tried` behind the start, as i32, whether this claimed it, and which tiles are claimed, of those known to be."""
        t = self.t
        place = t.arith("addi", start, tried)
        place = t.choose(t.test("uge", place, t.index(self.tiles)), t.shifted(place, -self.tiles), place)
        tile = t.let(f"arith.index_cast {place} : index to i32")
        bit = self._bit(tile)
        # Each change takes the word's cache line from the others, so that what is known to be claimed is left alone.
        is_known = self._has(seen, bit)

        def claim() -> list[str]:
            old = self._mark(at, 0, bit)
            return [t.let(f"arith.cmpi eq, {t.arith('andi', old, bit, 'i32')}, {self._word(0)} : i32"), old]

        is_mine, now = t.either(is_known, ["i1", "i32"], lambda: [t.let("arith.constant false"), seen], claim)
        return tile, is_mine, now

    def _has(self, word: str, bit: str) -> str:
        t = self.t
        return t.let(f"arith.cmpi ne, {t.arith('andi', word, bit, 'i32')}, {self._word(0)} : i32")

    def _word(self, bits: int) -> str:
        return self.t.constant(str(bits), "i32")

    def _mark(self, at: str, place: int, bits: str) -> str:
        """Sets bits of a word of a step, and returns what it was. What was written before is seen by whoever sees them; without
        bits this only looks, and LLVM makes it a fence and a load."""
        t, (words, type_) = self.t, self.loaded["%words"]
        return t.let(f"memref.atomic_rmw ori {bits}, {words}[{at}, {t.index(place)}] : (i32, {type_}) -> i32")

    def _tile(self, at: str, tile: str) -> None:
        """Writes the states of a tile of a step."""
        t, states = self.t, self.operands.states
        tile = t.let(f"arith.index_cast {tile} : i32 to index")
        first = t.arith("muli", tile, t.index(self.across))
        end = t.arith("minsi", t.shifted(first, self.across), t.index(self.spec.panels))
        ends = t.test("eq", t.shifted(at, 1), self.steps)

        def over_panels(panel: str) -> None:
            column = self.column_of(panel)

            def over_rows(rows: list[str]) -> None:
                made = self.next_states(panel, [(at, row) for row in rows], rows, column)
                for row, values in zip(rows, made, strict=True):
                    for value, name in zip(values, self._written, strict=True):
                        t.write(value, *self.loaded[name], at, row, column)

                def write_last() -> None:
                    for row, values in zip(rows, made, strict=True):
                        for value, y in zip(values, states, strict=True):
                            t.write(value, *self.loaded[f"{y.name}_last"], row, column)

                self._if(ends, write_last)

            self.each_rows(self.operands.lead[1], over_rows)

        t.each((first, end, t.index(1)), over_panels)

    def _if(self, condition: str, body: Callable[[], None]) -> None:
        self.t.do(f"scf.if {condition} {{")
        body()
        self.t.do("}")


@dataclass(frozen=True)
class _Worker:
    """The function beside that of the dispatch `symbol`."""

    symbol: str
    lines: tuple[str, ...]

    @property
    def helper(self) -> list[str]:
        return list(self.lines)

    @property
    def keep(self) -> str:
        return f"onnx_fa.helper = @{_name_of(self.symbol)}"


def _name_of(symbol: str) -> str:
    return f"{symbol}_worker"


def _call_of(worker: _Worker, operands: list[Operand], words: Operand, outputs: list[Operand]) -> list[str]:
    """The body of the dispatch: the worker's call."""
    t = Text()
    changed = [(words, "readwrite"), *((y, "writeonly") for y in outputs)]
    read = [load(t, x, "readonly", ["0"] * len(x.shape), x.shape) for x in operands]
    made = [load(t, x, access, ["0"] * len(x.shape), x.shape) for x, access in changed]
    numbers = [t.let("flow.dispatch.workgroup.id[0] : index"), *(f"%{s}" for s in operands[0].symbols)]
    results = t.several(
        f'iree_codegen.ukernel.generic "{_name_of(worker.symbol)}" ins({_typed(read)}) outs({_typed(made)}) '
        f"({', '.join(numbers)} : {', '.join([INDEX] * len(numbers))}) "
        f"strided_dims([{', '.join(['[]'] * len(read + made))}]) -> {', '.join(type_ for _, type_ in made)}",
        len(made),
    )
    for value, (_, type_), (x, access) in zip(results, made, changed, strict=True):
        store(t, value, type_, x, ["0"] * len(x.shape), x.shape, access)
    return t.render()


def _typed(values: list[tuple[str, str]]) -> str:
    return f"{', '.join(v for v, _ in values)} : {', '.join(type_ for _, type_ in values)}"

"""Writes a Loop of a number of rounds, which carries, of each type, all values of free sizes as the numbers of one row (see
collected.py)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

from onnx_fa.errors import ModelError
from onnx_fa.iree.legalise.renamed import rename_values
from onnx_fa.iree.legalise.writer import GraphWriter

Dims = Sequence[int | str | None]
_I64, _BOOL = TensorProto.INT64, TensorProto.BOOL


@dataclass(frozen=True)
class State:
    """A carried value: what it is at first, in the body, behind it, and behind the loop."""

    start: str
    before: str
    after: str
    result: str


@dataclass(frozen=True)
class Rows:
    """A value of each round, stacked along an axis of the result; the last round first if `back`."""

    value: str
    result: str
    axis: int = 0
    back: bool = False


@dataclass(frozen=True)
class Rounds:
    """A Loop. `step` and `going` are the round and the condition that its body is given, `on` the condition that it gives."""

    name: str
    trip: str
    start: str
    body: onnx.GraphProto
    step: str
    going: str
    on: str
    states: list[State]
    rows: list[Rows]
    size: int | str | None = None
    """How many rounds there are, where all are made."""
    keeps: bool = False
    """Every carried value has one shape in all rounds, as ONNX asks of a Scan."""


@dataclass(frozen=True)
class Piece:
    """Of a row that a Loop carries: its numbers at first and how many they are, their name in the body ("" if that reads none), the
    places (n, 1) and the values that a round writes, and the numbers at last."""

    start: str
    count: str
    before: str
    places: str
    values: str
    result: str


class LoopWriter:
    """A Loop on the way: what it carries, and the nodes in front of it (written at once), in its body, and behind it."""

    def __init__(
        self, g: GraphWriter, rounds: Rounds, sizes: Mapping[str, tuple[str, int]], *, is_always: bool
    ) -> None:
        """`sizes`: a value and its axis for each size that has a name, in front of the loop. `is_always`: no round's condition is
        false."""
        self.g, self.rounds, self.sizes, self.hint = g, rounds, sizes, rounds.name
        self.inner = g.within(rounds.body)
        self.step, going, on = (g.fresh(f"{rounds.name}_{what}") for what in ("step", "yes", "on"))
        self.starts: list[str] = []
        self.inputs = [self._info(self.step, _I64, []), self._info(going, _BOOL, [])]
        self.outputs = [self._info(on, _BOOL, [])]
        self.results: list[str] = []
        self.rows: dict[int, list[Piece]] = {}
        self.first: list[onnx.NodeProto] = []
        self.last: list[onnx.NodeProto] = []
        self.behind: list[tuple[str, list[str], str, dict[str, Any]]] = []
        self.zero, self.one, self.flat = (g.const(np.array(n, np.int64), self.hint) for n in (0, 1, [-1]))
        self._add(self.last, "Identity", going, out=on)
        self.first_round: dict[str, str] = {}
        """What `_of_first_round` calls the values of the body."""
        self.flag = ""
        """Of the body, whether this round is one of the model's; "" where all are."""
        if is_always:
            self._add(self.first, "Identity", going, out=rounds.going)
            self._add(self.first, "Identity", self.step, out=rounds.step)
        else:
            self._carry_flag()

    @staticmethod
    def _info(name: str, kind: int, shape: Dims) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(name, kind, list(shape))

    def _add(
        self, nodes: list[onnx.NodeProto], op: str, *inputs: str, out: str | None = None, **attributes: Any
    ) -> str:
        """A node of the body; its result."""
        made = out or self.g.fresh(f"{self.hint}_{op}")
        nodes.append(helper.make_node(op, list(inputs), [made], self.g.fresh(f"{self.hint}/{op}"), **attributes))
        return made

    def _number(self, op: str, *inputs: str) -> str:
        """A single number in front of the loop."""
        return self.g.typed(self.g.add(op, list(inputs), self.hint), _I64, [])

    def _pass(self, start: str, before: str, after: str, result: str, kind: int, shape: Dims) -> None:
        self.starts.append(start)
        self.inputs.append(self._info(before, kind, shape))
        self.outputs.append(self._info(after, kind, shape))
        self.results.append(self.g.typed(result or self.g.fresh(f"{self.hint}_last"), kind, shape))

    def _carry_flag(self) -> None:
        """IREE makes all rounds, whatever their condition says: those behind the last are made of what the loop begins with, and
        change nothing."""
        g, rounds = self.g, self.rounds
        self.flag, result = (g.fresh(f"{self.hint}_{what}") for what in ("goes", "went"))
        start = g.typed(g.reshape(rounds.start, [], self.hint), _BOOL, [])
        self._add(self.first, "Identity", self.flag, out=rounds.going)
        self._add(self.first, "Where", self.flag, self.step, self.zero, out=rounds.step)
        self._pass(start, self.flag, self._add(self.last, "And", self.flag, rounds.on), result, _BOOL, [])

    def _guarded(self, before: str, inside: str, start: str, after: str) -> str:
        """What a round leaves of a carried value `before`, which the body reads as `inside`, and makes `after` of."""
        if not self.flag:
            if before != inside:
                self._add(self.first, "Identity", before, out=inside)
            return after
        self._add(self.first, "Where", self.flag, before, start, out=inside)
        return self._add(self.last, "Where", self.flag, after, before)

    def carry(self, state: State, shape: Dims | None) -> None:
        """A value of the model's own as it is. `shape`: in each round, where it keeps it."""
        known = self.inner.shape(state.before) if shape is None else shape
        kind = self.g.kind(state.start) or self.inner.kind(state.before)
        if known is None:
            raise ModelError(f"node {self.hint!r}: carries {state.before!r}, of which the number of axes is not known")
        if self.flag and shape is None:
            raise ModelError(
                f"node {self.hint!r}: carries {state.before!r}, which may change its sizes, as long as a condition holds"
            )
        before = self.g.fresh(f"{state.before}/before")
        after = self._guarded(before, state.before, state.start, state.after)
        self._pass(state.start, before, after, state.result, kind, known)
        self.rounds.body.value_info.append(self._info(state.before, kind, known))
        self.g.types[state.result] = (kind, list(known))

    def carry_in_row(self, state: State, shape: Dims) -> None:
        """A value that keeps its sizes, among the numbers of a row."""
        g, kind = self.g, self.g.kind(state.start)
        sizes = self._sizes(shape, lambda: state.start)
        dims, count = self._dims(shape, sizes), self._product(shape, sizes)
        start = g.typed(g.add("Reshape", [state.start, self.flat], self.hint), kind, [None])
        before, inside, result = (g.fresh(f"{state.before}/{what}") for what in ("before", "flat", "result"))
        after = self._guarded(before, inside, start, self._add(self.last, "Reshape", state.after, self.flat))
        self._add(self.first, "Reshape", inside, dims, out=state.before)
        self.rounds.body.value_info.append(self._info(state.before, kind, shape))
        self.rows.setdefault(kind, []).append(Piece(start, count, before, self._places(count), after, result))
        if state.result:
            self.behind.append(("Reshape", [result, dims], state.result, {}))
            g.types[state.result] = (kind, list(shape))

    def count(self) -> str:
        """How many rounds of the model's there were."""
        before, result = (self.g.fresh(f"{self.hint}_{what}") for what in ("rounds", "count"))
        after = self._add(self.last, "Add", before, self._add(self.last, "Cast", self.flag, to=_I64))
        self._pass(self.zero, before, after, result, _I64, [])
        return result

    def collect(self, rows: Rows, count: str) -> None:
        """All rounds' numbers. Raises ModelError where not even how many axes a round's have is known."""
        g, hint = self.g, self.hint
        kind, shape = self.inner.kind(rows.value), self.inner.shape(rows.value)
        if shape is None or not kind:
            raise ModelError(f"node {hint!r}: collects {rows.value!r}, of which the number of axes is not known")
        sizes = self._sizes(shape, lambda: self._of_first_round(rows.value))
        dims, each = self._dims(shape, sizes), self._product(shape, sizes)
        total = self._number("Mul", self.rounds.trip, each)
        nothing = g.const(np.zeros([], helper.tensor_dtype_to_np_dtype(kind)), hint)
        start = g.typed(g.add("Expand", [nothing, g.reshape(total, [1], hint)], hint), kind, [None])
        place = self.step
        if rows.back:
            place = self._add(self.last, "Sub", self._number("Sub", self.rounds.trip, self.one), place)
        begin = self._add(self.last, "Mul", place, each)
        places = self._add(self.last, "Add", begin, self._places(each))
        values = self._add(self.last, "Reshape", rows.value, self.flat)
        result = g.fresh(f"{rows.value}/all")
        self.rows.setdefault(kind, []).append(Piece(start, total, "", places, values, result))
        self._shape_rows(rows, result, count, each, dims, len(shape))
        axis = rows.axis % (len(shape) + 1)
        g.types[rows.result] = (kind, [*shape[:axis], self.rounds.size, *shape[axis:]])

    def _shape_rows(self, rows: Rows, result: str, count: str, each: str, dims: str, rank: int) -> None:
        """Behind the loop: of the row, what there is, in the shape of the result."""
        g, hint = self.g, self.hint
        one = g.ints([1], hint)
        if count != self.rounds.trip:
            end, ends, cut = (g.fresh(f"{hint}_{what}") for what in ("end", "ends", "cut"))
            self.behind.append(("Mul", [count, each], end, {}))
            self.behind.append(("Reshape", [end, one], ends, {}))
            self.behind.append(("Slice", [result, g.ints([0], hint), ends], cut, {}))
            result = cut
        rounds, target = (g.fresh(f"{hint}_{what}") for what in ("rounds", "shape"))
        self.behind.append(("Reshape", [count, one], rounds, {}))
        self.behind.append(("Concat", [rounds, dims] if rank else [rounds], target, {"axis": 0}))
        axis = rows.axis % (rank + 1)
        stacked = g.fresh(f"{hint}_stacked") if axis else rows.result
        self.behind.append(("Reshape", [result, target], stacked, {}))
        if axis:
            order = [*range(1, axis + 1), 0, *range(axis + 1, rank + 1)]
            self.behind.append(("Transpose", [stacked], rows.result, {"perm": order}))

    def _sizes(self, shape: Dims, whose: Callable[[], str]) -> list[tuple[str, int]]:
        """In front of the loop: for each free size of a value a tensor that has it, and the axis. `whose`: of a size without a name
        there."""
        free = [(axis, dim) for axis, dim in enumerate(shape) if not isinstance(dim, int)]
        return [self.sizes[dim] if dim is not None and dim in self.sizes else (whose(), axis) for axis, dim in free]

    def _dims(self, shape: Dims, sizes: Sequence[tuple[str, int]]) -> str:
        """A vector of sizes as a run has them, in front of the loop."""
        parts, free = [], iter(sizes)
        for dim in shape:
            if isinstance(dim, int):
                parts.append(self.g.ints([dim], self.hint))
            else:
                of, axis = next(free)
                own = self.g.add("Shape", [of], self.hint, start=axis, end=axis + 1)
                parts.append(self.g.typed(own, _I64, [1]))
        if not parts:
            return self.g.ints([], self.hint)
        return self.g.typed(self.g.add("Concat", parts, self.hint, axis=0), _I64, [len(parts)])

    def _product(self, shape: Dims, sizes: Sequence[tuple[str, int]]) -> str:
        """How many numbers a value has, in front of the loop."""
        each = self.g.const(np.array(math.prod(d for d in shape if isinstance(d, int)), np.int64), self.hint)
        for of, axis in sizes:
            each = self._number("Mul", each, self.g.typed(self.g.size(of, axis, self.hint), _I64, []))
        return each

    def _of_first_round(self, value: str) -> str:
        """A value of the body as the first round has it, in front of the loop: of it the sizes alone are read."""
        if not self.first_round:
            g, rounds, body = self.g, self.rounds, onnx.GraphProto()
            body.CopyFrom(rounds.body)
            self.first_round = {name: g.fresh(f"{name}/once") for node in body.node for name in node.output if name}
            self.first_round |= {rounds.step: self.zero, rounds.going: rounds.start}
            self.first_round |= {state.before: state.start for state in rounds.states}
            rename_values(body, self.first_round)
            for name, new in self.first_round.items():
                if name in self.inner.types:
                    g.types.setdefault(new, self.inner.types[name])
            g.nodes.extend(body.node)
        return self.first_round[value]

    def _places(self, count: str) -> str:
        """(count, 1): 0, 1 and so on, in front of the loop."""
        row = self.g.typed(self.g.add("Range", [self.zero, count, self.one], self.hint), _I64, [None])
        return self.g.typed(self.g.add("Unsqueeze", [row, self.g.ints([1], self.hint)], self.hint), _I64, [None, 1])

    def _pass_row(self, kind: int, pieces: Sequence[Piece]) -> None:
        """Carries the pieces one behind the other."""
        g, hint = self.g, self.hint
        before, after, result = (g.fresh(f"{hint}_{what}") for what in ("row", "row_after", "row_result"))
        begin, places, cuts = self.zero, list[str](), list[tuple[str, list[str], str, dict[str, Any]]]()
        for piece in pieces:
            end = self._number("Add", begin, piece.count)
            bounds = [g.typed(g.reshape(n, [1], hint), _I64, [1]) for n in (begin, end)]
            if piece.before:
                self.first.insert(
                    0, helper.make_node("Slice", [before, *bounds], [piece.before], g.fresh(f"{hint}/Slice"))
                )
            places.append(self._add(self.last, "Add", piece.places, begin))
            cuts.append(("Slice", [result, *bounds], piece.result, {}))
            begin = end
        one = len(pieces) == 1
        start = pieces[0].start if one else g.add("Concat", [piece.start for piece in pieces], hint, axis=0)
        values = [piece.values for piece in pieces]
        at, new = (x[0] if one else self._add(self.last, "Concat", *x, axis=0) for x in (places, values))
        self._add(self.last, "ScatterND", before, at, new, out=after)
        self._pass(g.typed(start, kind, [None]), before, after, result, kind, [None])
        self.behind[:0] = cuts

    def write(self) -> None:
        g, body = self.g, self.rounds.body
        for kind, pieces in self.rows.items():
            self._pass_row(kind, pieces)
        made = onnx.GraphProto()
        made.CopyFrom(body)
        for name in ("node", "input", "output"):
            del getattr(made, name)[:]
        made.name = made.name or g.fresh(f"{self.hint}_body")
        made.node.extend([*self.first, *body.node, *self.last])
        made.input.extend(self.inputs)
        made.output.extend(self.outputs)
        named = {v.name for v in (*made.input, *made.output)}
        kept = [v for v in made.value_info if v.name not in named]
        del made.value_info[:]
        made.value_info.extend(kept)
        inputs = [self.rounds.trip, g.const(np.array(True), self.hint), *self.starts]
        g.nodes.append(helper.make_node("Loop", inputs, self.results, g.fresh(f"{self.hint}/Loop"), body=made))
        for op, inputs, out, attributes in self.behind:
            g.add(op, inputs, self.hint, out=out, **attributes)

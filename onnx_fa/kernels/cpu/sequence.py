"""Convolutions along an axis of free length for llvm-cpu, with channels last: of which places there are, and which of their taps
lie in x, a workgroup finds out itself, so that nobody pads x nor cuts it.

Tiles whose windows lie in x altogether are those of any convolution (window_body.py). Of others each tap reads what is nearest,
and the sums of those places for which it lies outside stay as they were.
"""

from __future__ import annotations

from dataclasses import dataclass

from onnx_fa.kernels.cpu.epilogues import tensor_operands
from onnx_fa.kernels.cpu.homes import ranges_of
from onnx_fa.kernels.cpu.row_dispatch import call_changing, index_of, joined, size_of
from onnx_fa.kernels.cpu.window import tiles_along
from onnx_fa.kernels.cpu.window_body import WindowBody
from onnx_fa.kernels.mlir.operand import Operand
from onnx_fa.kernels.mlir.text import Text
from onnx_fa.kernels.mlir.vectors import Lanes
from onnx_fa.spec.linear import LinearSpec
from onnx_fa.spec.sequences import SequenceSpec
from onnx_fa.spec.target import Target
from onnx_fa.spec.terms import Dim

_NOMINAL = 1024
"""Places that a sequence of free length is taken to have."""


def lead_of(spec: SequenceSpec) -> Dim:
    """How many images there are, or a symbol for that."""
    return "images" if spec.images is None else spec.images


def operands_of(spec: SequenceSpec) -> list[Operand]:
    """Of the function: x, the weight, the bias, and the tensors of what becomes of the sums."""
    length: Dim = "length" if spec.length is None else spec.length
    return [Operand("%x", (lead_of(spec), length, spec.groups * spec.channels), spec.dtype), *_behind_x(spec)]


def y_of(spec: SequenceSpec) -> Operand:
    """The result of the function."""
    images, places, _ = spec.whole
    if isinstance(places, int):
        places *= spec.phases
    return Operand("%y", (images, places, spec.columns // spec.phases), spec.dtype)


def _made(spec: SequenceSpec) -> Operand:
    """The result of the dispatch."""
    return Operand("%y", spec.whole, spec.dtype)


def _behind_x(spec: SequenceSpec) -> list[Operand]:
    found = [Operand("%w", (spec.groups * spec.window(1).panels, spec.window(1).K, spec.panel), spec.dtype)]
    found += [Operand("%b", (spec.groups, spec.N), spec.dtype)] * spec.bias
    return [*found, *tensor_operands(spec.tensors, spec.whole)]


def _flat(spec: SequenceSpec) -> Operand:
    """x as the dispatch reads it."""
    numbers: Dim = "numbers" if spec.length is None else spec.length * spec.groups * spec.channels
    return Operand("%x", (lead_of(spec), numbers), spec.dtype)


@dataclass(frozen=True)
class SequenceConv:
    """The kernel of a spec."""

    spec: SequenceSpec

    @property
    def name(self) -> str:
        return self.spec.name

    @property
    def product(self) -> LinearSpec:
        return self.spec.product

    @property
    def y(self) -> Operand:
        return y_of(self.spec)

    def texts(self, target: Target) -> dict[str, str]:
        """The executable and the function of the name, by their symbols."""
        return emit_sequence(self.spec, target)


def emit_sequence(spec: SequenceSpec, target: Target) -> dict[str, str]:
    """The executable and the function of the spec's name, which takes the operands and returns y, by their symbols."""
    t, symbol, operands, made, y = Text(), f"{spec.name}_tiles", operands_of(spec), _made(spec), y_of(spec)
    x, flat = operands[0], _flat(spec)
    if spec.images is None:
        t.do(f"%images = tensor.dim %x, {t.index(0)} : {x.type}")
    if spec.length is None:
        length = t.let(f"tensor.dim %x, {t.index(1)} : {x.type}")
        room = t.arith("floordivsi", t.shifted(length, sum(spec.pads) - spec.span), t.index(spec.stride))
        t.do(f"%places = arith.maxsi {t.shifted(room, 1)}, {t.index(0)} : index")
        t.do(f"%numbers = arith.muli {length}, {t.index(spec.groups * spec.channels)} : index")
    rows = t.let(f"tensor.collapse_shape %x [[0], [1, 2]] : {x.type} into {flat.type}")
    body = SequenceBody(spec, target)
    executable = body.executable(symbol)
    values = [rows, *(v.name for v in operands[1:])]
    (result,) = call_changing(t, symbol, [flat, *operands[1:]], values, [made], body.changed)
    if spec.phases > 1:
        apart = Operand("%apart", (*made.shape[:2], spec.phases, spec.columns // spec.phases), spec.dtype)
        sizes = ", ".join(map(size_of, apart.shape))
        result = t.let(
            f"tensor.expand_shape {result} [[0], [1], [2, 3]] output_shape [{sizes}] : {made.type} into {apart.type}"
        )
        result = t.let(f"tensor.collapse_shape {result} [[0], [1, 2], [3]] : {apart.type} into {y.type}")
    arguments = ", ".join(f"{v.name}: {v.type}" for v in operands)
    head = f"util.func private @{spec.name}({arguments}) -> {y.type} {{"
    function = [head, *t.render(), f"util.return {result} : {y.type}", "}"]
    return {symbol: joined(executable), spec.name: joined(function)}


class SequenceBody(WindowBody):
    """Writes the dispatch. `spec` is the convolution of one tile, `sequence` all of it."""

    def __init__(self, spec: SequenceSpec, target: Target) -> None:
        tiles = tiles_along(spec.window(1), target)
        super().__init__(spec.window(tiles.rows), tiles, ranges_of(target))
        self.sequence, self.operands, self.y = spec, [_flat(spec), *_behind_x(spec)], _made(spec)
        self.unit = tiles.rows

    def executable(self, symbol: str) -> list[str]:
        t, spec = Lanes(self.tiles.lanes), self.sequence
        each = t.arith("muli", self._down(t), t.index(self.across * spec.groups))
        t.do(f"%x = arith.muli {each}, {index_of(t, lead_of(spec))} : index")
        return self.write_executable(symbol, t.render())

    @property
    def _has_large_images(self) -> bool:
        spec = self.sequence
        places = _NOMINAL if spec.length is None else spec.length
        return places * (spec.channels + spec.N) > self.spec.K * spec.N

    def _down(self, t: Text) -> str:
        """Workgroups of an image, behind each other."""
        return t.arith("ceildivui", index_of(t, self.y.shape[1]), t.index(self.unit * self.tiles.down))

    def _counts(self) -> tuple[str, str, str]:
        t, numbers = self.t, self.operands[0].shape[1]
        self.places = index_of(t, self.y.shape[1])
        channels = t.index(self.sequence.groups * self.sequence.channels)
        self.length = t.arith("divui", index_of(t, numbers), channels)
        self.last = t.shifted(self.places, -1)
        self.taps = t.choose(t.test("sgt", self.length, t.index(0)), t.index(self.sequence.kernel), t.index(0))
        down = self._down(t)
        return down, self.places, t.arith("muli", down, t.index(self.across))

    def _place(self, row: str, i: int) -> str:
        return self.t.arith("minsi", self.t.shifted(row, i), self.last)

    def _first_place(self, at: str) -> str:
        """Of a tile; the last begins earlier, and one that has more rows than there are places writes some twice."""
        t = self.t
        return t.arith("maxsi", t.arith("minsi", at, t.shifted(self.places, -self.unit)), t.index(0))

    def _products(self, image: str, matrix: str, row: str, channel: str, sums: list[str]) -> list[str]:
        t, spec, step = self.t, self.sequence, self.spec.steps[0]

        def start_of(place: str) -> str:
            start = t.arith("muli", place, t.index(step))
            return t.arith("addi", start, channel) if channel else start

        first = [
            t.shifted(t.arith("muli", self._place(row, i), t.index(spec.stride)), -spec.pads[0])
            for i in range(self.unit)
        ]
        end = t.shifted(first[0], (self.unit - 1) * spec.stride + spec.span)
        inside = t.test("sge", first[0], t.index(0))
        for test in (t.test("sle", end, self.length), t.test("sle", t.shifted(row, self.unit), self.places)):
            inside = t.arith("andi", inside, test, "i1")

        def within() -> list[str]:
            carried = [(v, t.vec) for v in sums]
            return self._sums(image, matrix, [start_of(p) for p in first], t.index(0), t.index(0), 0, carried)

        def at_ends() -> list[str]:
            def tap(i: str, carried: list[str]) -> list[str]:
                places = [t.arith("addi", p, t.arith("muli", i, t.index(spec.dilation))) for p in first]
                nearest = [
                    t.arith("minsi", t.arith("maxsi", p, t.index(0)), t.shifted(self.length, -1)) for p in places
                ]
                k_at = t.arith("muli", i, t.index(self._channels))
                made = self._over_channels(image, matrix, [start_of(p) for p in nearest], k_at, [*carried])
                there = [t.test("eq", p, near) for p, near in zip(places, nearest, strict=True)]
                return [self._one(there[i // self.vectors], made[i], old) for i, old in enumerate(carried)]

            return t.loop((t.index(0), self.taps, t.index(1)), [(v, t.vec) for v in sums], tap)

        return self._either(inside, within, at_ends)

    def _one(self, condition: str, a: str, b: str) -> str:
        return self.t.let(f"arith.select {condition}, {a}, {b} : {self.t.vec}")

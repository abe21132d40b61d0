"""What norms of channels take from sequences whose channels come last, on CPUs, in two dispatches.

The first has a part of the places for each workgroup, which the second cache holds: the mean of each channel over them, and the
sum of the squares of what it leaves. The second puts parts together (Chan, Golub, LeVeque: Algorithms for Computing the Sample
Variance, 1983). So no sum has many terms, and none loses what is small beside a mean.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from onnx_fa.kernels.cpu.row_dispatch import call_dispatch, index_of, joined, load, make_executable, store
from onnx_fa.kernels.mlir.operand import Operand
from onnx_fa.kernels.mlir.text import Text, memref_type
from onnx_fa.kernels.mlir.vectors import Lanes
from onnx_fa.spec.channel_norm import ChannelSpec
from onnx_fa.spec.target import Target
from onnx_fa.spec.terms import Dim

_PLACES = 128
"""Of a part."""
_COLUMNS = 512
"""Of a workgroup of the first dispatch at most: its part takes 256 KiB."""
_DOWN = 4
"""Places that are added to a sum at a time."""
_VECTORS = 4
"""Of a workgroup of the second dispatch."""
_TERMS = 128
"""Parts whose numbers are added up before these are added to others'."""


def takes_channels(channels: int, target: Target) -> bool:
    """Whether a kernel is to stand for sequences of so many channels."""
    return not target.is_gpu and target.kernels == "auto" and target.has_avx2 and channels >= target.lanes


@dataclass(frozen=True)
class ChannelStatistics:
    """The kernel of a spec."""

    spec: ChannelSpec

    @property
    def name(self) -> str:
        return self.spec.name

    @property
    def _images(self) -> Dim:
        return "images" if self.spec.images is None else self.spec.images

    @property
    def x(self) -> Operand:
        length: Dim = "length" if self.spec.length is None else self.spec.length
        return Operand("%x", (self._images, length, self.spec.channels), self.spec.dtype)

    @property
    def scale(self) -> Operand:
        return Operand("%scale", (self.spec.channels,), "f32")

    @property
    def parts(self) -> Operand:
        """Of each part the means, and the sums of squares."""
        parts: Dim = "parts" if self.spec.length is None else -(-self.spec.length // _PLACES)
        return Operand("%parted", (self._images, parts, 2, self.spec.channels), "f32")

    @property
    def results(self) -> list[Operand]:
        return [Operand(name, (self._images, 1, self.spec.channels), "f32") for name in ("%mean", "%factor")]

    @property
    def counted(self) -> list[str]:
        """What the second dispatch is told besides: how many places there are."""
        return ["%length"] if self.spec.length is None else []

    def texts(self, target: Target) -> dict[str, str]:
        """The executables and the function of the name, which takes x and the scale, by their symbols."""
        t, x, names = Text(), self.x, (f"{self.name}_parts", f"{self.name}_whole")
        for axis, dim in enumerate(x.shape):
            if isinstance(dim, str):
                t.do(f"%{dim} = tensor.dim %x, {t.index(axis)} : {x.type}")
        if self.spec.length is None:
            t.do(f"%parts = arith.ceildivui %length, {t.index(_PLACES)} : index")
        (parted,) = call_dispatch(t, names[0], [x], ["%x"], [self.parts])
        operands, numbers = [self.parts, self.scale], self.counted
        made = call_dispatch(t, names[1], operands, [parted, self.scale.name], self.results, numbers=numbers)
        types = ", ".join(y.type for y in self.results)
        head = f"util.func private @{self.name}(%x: {x.type}, %scale: {self.scale.type}) -> ({types}) {{"
        function = [head, *t.render(), f"util.return {', '.join(made)} : {types}", "}"]
        parts, whole = _PartBody(self, target).executable(names[0]), _WholeBody(self, target).executable(names[1])
        return {names[0]: joined(parts), names[1]: joined(whole), self.name: joined(function)}


class _PartBody:
    """Writes the first dispatch. A workgroup's columns are vectors of their own in memory of the stack, as the last begin earlier
    where they would pass the end."""

    def __init__(self, kernel: ChannelStatistics, target: Target) -> None:
        self.kernel, self.t = kernel, Lanes(target.lanes)
        self.columns = min(kernel.spec.channels, _COLUMNS)
        self.across = -(-kernel.spec.channels // self.columns)
        self.vectors = -(-self.columns // target.lanes)
        self.memory = memref_type((self.vectors * target.lanes,), "f32")

    def executable(self, symbol: str) -> list[str]:
        kernel, count = self.kernel, Text()
        images, parts = (index_of(count, d) for d in kernel.parts.shape[:2])
        each = count.arith("muli", parts, count.index(self.across))
        count.do(f"%x = arith.muli {images}, {each} : index")
        return make_executable(symbol, [kernel.x], [kernel.parts], count.render(), self._body())

    def _body(self) -> list[str]:
        t, x, parts = self.t, self.kernel.x, self.kernel.parts
        self.x = load(t, x, "readonly", ["0"] * 3, x.shape)
        made, type_ = load(t, parts, "writeonly", ["0"] * 4, parts.shape)
        group = t.let("flow.dispatch.workgroup.id[0] : index")
        block, chunk = (t.arith(op, group, t.index(self.across)) for op in ("divui", "remui"))
        count = index_of(t, parts.shape[1])
        self.image, part = t.arith("divui", block, count), t.arith("remui", block, count)
        low = t.arith("muli", chunk, t.index(self.columns))
        self.low = t.arith("minsi", low, t.index(self.kernel.spec.channels - self.columns))
        first = t.arith("muli", part, t.index(_PLACES))
        self.places = first, t.arith("minsi", t.shifted(first, _PLACES), index_of(t, x.shape[1]))
        self.count = count_of(t, t.arith("subi", self.places[1], first))
        means, left, squares = (t.empty(self.memory) for _ in range(3))
        self._add([means], lambda v, _, sums: [t.vop("arith.addf", v, sums[0])])
        self._each_vector(
            lambda at: t.write(t.vop("arith.divf", self._held(means, at), self.count), means, self.memory, at)
        )

        def add_square(value: str, at: str, sums: list[str]) -> list[str]:
            d = t.vop("arith.subf", value, self._held(means, at))
            return [t.vop("arith.addf", d, sums[0]), t.vop("vector.fma", d, d, sums[1])]

        self._add([left, squares], add_square)

        def give(v: str, carried: list[str]) -> list[str]:
            at, column = self._places_of(v)
            rest = t.vop("arith.divf", self._held(left, at), self.count)
            mean = t.vop("arith.addf", self._held(means, at), rest)
            square = t.vop("arith.subf", self._held(squares, at), t.vop("arith.mulf", rest, self._held(left, at)))
            value = t.write(mean, carried[0], type_, self.image, part, t.index(0), column)
            return [t.write(square, value, type_, self.image, part, t.index(1), column)]

        (value,) = t.loop((t.index(0), t.index(self.vectors), t.index(1)), [(made, type_)], give)
        store(t, value, type_, parts, ["0"] * 4, parts.shape)
        return t.render()

    def _held(self, memory: str, at: str) -> str:
        return self.t.read(memory, self.memory, at)

    def _places_of(self, vector: str) -> tuple[str, str]:
        """Where a vector lies in memory, and its first column."""
        t = self.t
        at = t.arith("muli", vector, t.index(t.width))
        inside = t.arith("minsi", at, t.index(self.columns - t.width))
        return at, t.arith("addi", self.low, inside)

    def _each_vector(self, body: Callable[[str], object]) -> None:
        t = self.t

        def each(at: str) -> None:
            body(at)

        t.each((t.index(0), t.index(self.vectors * t.width), t.index(t.width)), each)

    def _add(self, memories: list[str], added: Callable[[str, str, list[str]], list[str]]) -> None:
        """Adds to sums in memory, 0 at first, what `added` makes of a vector of each place, its place in memory, and the sums."""
        t, (first, last) = self.t, self.places
        self._each_vector(lambda at: [t.write(t.splat(0.0), m, self.memory, at) for m in memories])

        def some(place: str, down: int) -> None:
            def vector(v: str) -> None:
                at, column = self._places_of(v)
                sums = [self._held(m, at) for m in memories]
                for i in range(down):
                    sums = added(t.read(*self.x, self.image, t.shifted(place, i), column), at, sums)
                for m, value in zip(memories, sums, strict=True):
                    t.write(value, m, self.memory, at)

            t.each((t.index(0), t.index(self.vectors), t.index(1)), vector)

        count = t.arith("subi", last, first)
        whole = t.arith("subi", last, t.arith("remui", count, t.index(_DOWN)))
        t.each((first, whole, t.index(_DOWN)), lambda place: some(place, _DOWN))
        t.each((whole, last, t.index(1)), lambda place: some(place, 1))


def count_of(t: Lanes, number: str) -> str:
    """An index in all lanes."""
    whole = t.let(f"arith.index_cast {number} : index to i32")
    return t.broadcast(t.let(f"arith.sitofp {whole} : i32 to f32"))


class _WholeBody:
    """Writes the second dispatch, whose workgroups have some columns of an image each."""

    def __init__(self, kernel: ChannelStatistics, target: Target) -> None:
        self.kernel, self.t = kernel, Lanes(target.lanes)
        self.vectors = -(-kernel.spec.channels // target.lanes)
        self.across = -(-self.vectors // _VECTORS)

    def executable(self, symbol: str) -> list[str]:
        kernel, count = self.kernel, Text()
        images = index_of(count, kernel.parts.shape[0])
        count.do(f"%x = arith.muli {images}, {count.index(self.across)} : index")
        operands = [kernel.parts, kernel.scale]
        return make_executable(
            symbol, operands, kernel.results, count.render(), self._body(operands), numbers=kernel.counted
        )

    def _body(self, operands: list[Operand]) -> list[str]:
        t, kernel = self.t, self.kernel
        self.parted, scale = (load(t, v, "readonly", ["0"] * len(v.shape), v.shape) for v in operands)
        made = [load(t, y, "writeonly", ["0"] * 3, y.shape) for y in kernel.results]
        group = t.let("flow.dispatch.workgroup.id[0] : index")
        self.image, chunk = (t.arith(op, group, t.index(self.across)) for op in ("divui", "remui"))
        first = t.arith("muli", chunk, t.index(_VECTORS))
        last = t.arith("minsi", t.shifted(first, _VECTORS), t.index(self.vectors))
        self.length = index_of(t, kernel.x.shape[1])

        def vector(v: str, carried: list[str]) -> list[str]:
            column = t.arith("muli", v, t.index(t.width))
            column = t.arith("minsi", column, t.index(kernel.spec.channels - t.width))
            mean, square = self._statistics(column)
            root = t.vop("math.sqrt", t.vop("arith.addf", square, t.splat(kernel.spec.epsilon)))
            factor = t.vop("arith.divf", t.read(*scale, column), root)
            places = self.image, t.index(0), column
            return [
                t.write(value, y, type_, *places)
                for value, y, (_, type_) in zip((mean, factor), carried, made, strict=True)
            ]

        written = t.loop((first, last, t.index(1)), made, vector)
        for value, (_, type_), y in zip(written, made, kernel.results, strict=True):
            store(t, value, type_, y, ["0"] * 3, y.shape)
        return t.render()

    def _statistics(self, column: str) -> tuple[str, str]:
        """The mean of a vector of columns, and the mean square of what it leaves."""
        t, whole = self.t, count_of(self.t, self.length)

        def add_mean(mean: str, _: str, count: str, sums: list[str]) -> list[str]:
            return [t.vop("vector.fma", count, mean, sums[0])]

        (mean,) = (t.vop("arith.divf", v, whole) for v in self._sums(1, add_mean, column))

        def add_square(part: str, square: str, count: str, sums: list[str]) -> list[str]:
            d = t.vop("arith.subf", part, mean)
            by = t.vop("arith.mulf", count, d)
            return [t.vop("arith.addf", by, sums[0]), t.vop("vector.fma", by, d, t.vop("arith.addf", square, sums[1]))]

        left, square = (t.vop("arith.divf", v, whole) for v in self._sums(2, add_square, column))
        corrected = t.vop("arith.subf", square, t.vop("arith.mulf", left, left))
        return t.vop("arith.addf", mean, left), t.vop("arith.maximumf", corrected, t.splat(0.0))

    def _sums(self, count: int, added: Callable[[str, str, str, list[str]], list[str]], column: str) -> list[str]:
        """So many sums, to which `added` adds what it makes of the means, the squares and the places of a part."""
        t, parts = self.t, index_of(self.t, self.kernel.parts.shape[1])
        nothing = [(t.splat(0.0), t.vec)] * count

        def part(at: str, carried: list[str]) -> list[str]:
            mean, square = (t.read(*self.parted, self.image, at, t.index(i), column) for i in (0, 1))
            first = t.arith("muli", at, t.index(_PLACES))
            places = t.arith("minsi", t.index(_PLACES), t.arith("subi", self.length, first))
            return added(mean, square, count_of(t, places), carried)

        def some(first: str, carried: list[str]) -> list[str]:
            last = t.arith("minsi", t.shifted(first, _TERMS), parts)
            sums = t.loop((first, last, t.index(1)), nothing, part)
            return [t.vop("arith.addf", a, b) for a, b in zip(carried, sums, strict=True)]

        return t.loop((t.index(0), parts, t.index(_TERMS)), nothing, some)

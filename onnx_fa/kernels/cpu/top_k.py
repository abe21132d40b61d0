"""The k largest, or smallest, numbers of each row and their places, in order, of rows that a workgroup has a few of.

What is no better than the worst of the best k so far is passed by, a few vectors at once. The rest is put into a buffer, which is
sorted when it is full, so that its best k stay: O(n log k) in all, with no branch that depends on the numbers but for what passes.
k = n is one sort.

A number in the buffer is an i64: above, an integer that is larger for better numbers; below, its place, inverted, so that the first
of equal numbers is the better one. -0 and 0 are equal; NaN is more than infinity (as in PyTorch; onnxruntime's order changes with
k).
"""

from __future__ import annotations

from dataclasses import dataclass

from onnx_fa.kernels.cpu.merge_sort import RUN, Sorter, Steps
from onnx_fa.kernels.cpu.row_dispatch import call_dispatch, joined, load, make_executable, store
from onnx_fa.kernels.mlir.called import function_text
from onnx_fa.kernels.mlir.operand import ROWS, Operand
from onnx_fa.kernels.mlir.text import INDEX, memref_type
from onnx_fa.kernels.mlir.vectors import Lanes
from onnx_fa.spec.processor import WIDTHS
from onnx_fa.spec.target import Target
from onnx_fa.spec.terms import Dim

_FLOATS = ("f32", "f16", "bf16")
"""Others are signed integers of 32 bits at most."""
_NUMBERS = 8192
"""Of the rows of a workgroup, about."""
_STACK = 16384
"""Bytes of both halves of a buffer on the stack, of which the compiler allows 32 KiB; longer ones are memory of the program's."""
_GROUPS = 16
"""Workgroups that have long buffers, of which there are as many."""
_VECTORS = 2
"""That are looked at at once."""
_STEP = _VECTORS * WIDTHS[0]
"""Numbers in them, at most."""
_NAN = 0x7FC00000
"""The bits of an f32 that is none, as an integer above those of all others."""
_LOW = 0xFFFFFFFF
"""The bits of a place."""


@dataclass(frozen=True)
class TopK:
    """Of `rows` (None: known at run time only) of n numbers of type `element`, the best k each: the largest or smallest."""

    rows: int | None
    n: int
    k: int
    element: str
    largest: bool

    @property
    def lead(self) -> Dim:
        return ROWS if self.rows is None else self.rows

    @property
    def name(self) -> str:
        return f"{self.symbol}_of"

    @property
    def symbol(self) -> str:
        """Of the dispatch."""
        rows = "n" if self.rows is None else self.rows
        return f"top_k_{rows}x{self.n}_{self.k}_{self.element}_{'largest' if self.largest else 'smallest'}_rows"

    @property
    def x(self) -> Operand:
        """(rows, n)."""
        return Operand("%x", (self.lead, self.n), self.element)

    @property
    def results(self) -> tuple[Operand, Operand]:
        """The numbers and their places, (rows, k)."""
        shape = (self.lead, self.k)
        return Operand("%y", shape, self.element), Operand("%places", shape, "i64")

    @property
    def scratch(self) -> tuple[Operand, ...]:
        """Halves of the buffers of all workgroups, where they are too long for the stack."""
        if not self.is_long:
            return ()
        shape = (self.groups, self.buffer)
        return Operand("%here", shape, "i64"), Operand("%there", shape, "i64")

    @property
    def is_long(self) -> bool:
        return 16 * self.buffer > _STACK

    @property
    def groups(self) -> int:
        """Workgroups with long buffers, at most."""
        return _GROUPS if self.rows is None else min(self.rows, _GROUPS)

    @property
    def buffer(self) -> int:
        """Numbers that are sorted at once, a power of two: all of a row, or the best k and at least as many new ones."""
        most = min(self.n, 2 * self.k + _STEP)
        return max(RUN, 1 << (most - 1).bit_length())

    def texts(self, target: Target) -> dict[str, str]:
        """The executable and the function of the name, which takes x and returns the results, by their symbols."""
        t = Lanes(target.lanes)
        made = call_dispatch(t, self.symbol, [self.x], [self.x.name], [*self.results, *self.scratch])
        function = function_text(self.name, [self.x], self.results, t, made[:2])
        return {self.symbol: joined(TopKBody(self, target.lanes).executable()), self.name: joined(function)}


def kept_why(spec: TopK, target: Target) -> str:
    """Why the compiler keeps a TopK, in a few words; "" where the kernel stands for it."""
    if target.kernels != "auto":
        return f"--kernels {target.kernels}"
    return "" if target.has_avx2 else "vectors of four lanes"


class TopKBody:
    """Writes the dispatch with vectors of so many lanes of 32 bits."""

    def __init__(self, spec: TopK, width: int) -> None:
        self.spec, self.t = spec, Steps(width)
        self.is_float = spec.element in _FLOATS
        self.wide = "f32" if self.is_float else "i32"
        self.step = _VECTORS * width
        self.looks = spec.n >= self.step and spec.k < spec.n
        self.buffer_type = f"tensor<1x{spec.buffer}xi64>" if spec.is_long else memref_type((1, spec.buffer), "i64")
        self.sorter = Sorter(self.t, spec.buffer, self.buffer_type)

    def executable(self) -> list[str]:
        spec, each = self.spec, self._each()
        if spec.is_long:
            count = [f"%x = arith.constant {spec.groups} : index"]
        elif spec.rows is not None:
            count = [f"%x = arith.constant {-(-spec.rows // each)} : index"]
        else:
            count = [f"%each = arith.constant {each} : index", "%x = arith.ceildivui %rows, %each : index"]
        return make_executable(spec.symbol, [spec.x], [*spec.results, *spec.scratch], count, self._body(each))

    def _each(self) -> int:
        """The rows of a workgroup."""
        return max(1, _NUMBERS // self.spec.n)

    def _body(self, each: int) -> list[str]:
        t, spec = self.t, self.spec
        group = t.let("flow.dispatch.workgroup.id[0] : index")
        self.x, self.x_type = load(t, spec.x, "readonly", ["0", "0"], spec.x.shape)
        made = [load(t, y, "writeonly", ["0", "0"], y.shape) for y in spec.results]
        rows = "%rows" if spec.rows is None else t.index(spec.rows)
        if spec.is_long:
            bounds = (group, rows, t.index(spec.groups))
            made += [load(t, half, "writeonly", [group, "0"], (1, spec.buffer)) for half in spec.scratch]
        else:
            first = t.arith("muli", group, t.index(each))
            bounds = (first, t.arith("minsi", t.shifted(first, each), rows), t.index(1))
            made += [(t.empty(self.buffer_type), self.buffer_type) for _ in range(2)]
        written = t.loop(bounds, made, self._row)
        for value, y in zip(written, spec.results, strict=False):
            store(t, value, y.type, y, ["0", "0"], y.shape)
        for value, half in zip(written[2:], spec.scratch, strict=False):
            store(t, value, self.buffer_type, half, [group, "0"], (1, spec.buffer))
        return t.render()

    def _row(self, row: str, carried: list[str]) -> list[str]:
        """The results and the halves of the buffer with one row."""
        t, spec = self.t, self.spec
        results, halves = carried[:2], carried[2:]
        steps = -(-spec.n // self.step)
        zero, one = t.index(0), t.index(1)

        def look(number: str, values: list[str]) -> list[str]:
            """At the next few numbers, after the last of which what is in the buffer is sorted."""
            at = t.arith("muli", number, t.index(self.step))
            last = t.test("eq", number, t.index(steps - 1))
            if not self.looks:
                return self._take(row, at, last, values)
            passes = t.arith("ori", self._any(row, at, values[1]), last, "i1")
            types = [INDEX, self.wide, self.buffer_type, self.buffer_type]
            return t.when(passes, list(zip(values, types, strict=True)), lambda v: self._take(row, at, last, v))

        start = [(zero, INDEX), (self._everything(), self.wide), *self.sorter.halves(*halves)]
        _, _, here, there = t.loop((zero, t.index(steps), one), start, look)

        def give(at: str, made: list[str]) -> list[str]:
            place = self._place(t.extract(here, self.buffer_type, zero, at))
            number = t.extract(self.x, self.x_type, row, place)
            y, places = spec.results
            places_value = t.let(f"arith.index_cast {place} : index to i64")
            return [
                t.insert(number, made[0], y.type, row, at),
                t.insert(places_value, made[1], places.type, row, at),
            ]

        types = [y.type for y in spec.results]
        results = t.loop((zero, t.index(spec.k), one), list(zip(results, types, strict=True)), give)
        return [*results, here, there]

    def _everything(self) -> str:
        """What every number is better than."""
        t = self.t
        if self.is_float:
            return t.constant(f"{_NAN:#x}", "f32")
        return t.constant(str(-(2**31) if self.spec.largest else 2**31 - 1), "i32")

    def _better(self, x: str, worst: str, type_: str) -> str:
        """Whether numbers, widened, are to be put into the buffer: at least those that are better than `worst`."""
        if self.is_float:
            return self.t.let(f"arith.cmpf {'ugt' if self.spec.largest else 'ult'}, {x}, {worst} : {type_}")
        return self.t.let(f"arith.cmpi {'sge' if self.spec.largest else 'sle'}, {x}, {worst} : {type_}")

    def _widened(self, x: str, shape: str = "") -> str:
        """A number of x, or a vector of them, as f32 or i32."""
        element = self.spec.element
        if element == self.wide:
            return x
        types = [f"vector<{shape}x{e}>" if shape else e for e in (element, self.wide)]
        return self.t.let(f"arith.ext{'f' if self.is_float else 'si'} {x} : {types[0]} to {types[1]}")

    def _any(self, row: str, at: str, worst: str) -> str:
        """Whether one of the numbers from `at` on is to be put into the buffer. Of the last step that is beside the point."""
        t, lanes = self.t, self.t.width
        first = t.arith("minsi", at, t.index(self.spec.n - self.step))
        against = t.broadcast(worst, self.wide)
        found = list[str]()
        for i in range(_VECTORS):
            x = t.read(self.x, self.x_type, row, t.shifted(first, i * lanes), element=self.spec.element)
            found.append(self._better(self._widened(x, str(lanes)), against, t.type(self.wide)))
        while len(found) > 1:
            found = [t.arith("ori", a, b, t.bvec) for a, b in zip(found[::2], found[1::2], strict=True)]
        return t.let(f"vector.reduction <or>, {found[0]} : {t.bvec} into i1")

    def _take(self, row: str, at: str, last: str, values: list[str]) -> list[str]:
        """The count of what is in the buffer, the worst of the best k, and the halves of the buffer, with the numbers of a step."""
        t, spec = self.t, self.spec
        zero = t.index(0)
        _, worst, *halves = values
        end = t.arith("minsi", t.shifted(at, self.step), t.index(spec.n))

        def put(place: str, carried: list[str]) -> list[str]:
            count, here = carried
            x = self._widened(t.extract(self.x, self.x_type, row, place))
            here = t.insert(self._packed(x, place), here, self.buffer_type, zero, count)
            taken = t.let(f"arith.index_castui {self._better(x, worst, self.wide)} : i1 to index")
            return [t.arith("addi", count, taken), here]

        carried = [(values[0], INDEX), (halves[0], self.buffer_type)]
        count, here = t.loop((at, end, t.index(1)), carried, put)
        full = t.arith("ori", last, t.test("sgt", count, t.index(spec.buffer - self.step)), "i1")
        types = [INDEX, self.wide, self.buffer_type, self.buffer_type]
        given = list(zip([count, worst, here, halves[1]], types, strict=True))
        return t.when(full, given, lambda v: self._sort(row, v))

    def _packed(self, x: str, place: str) -> str:
        """A widened number and its place as what is sorted."""
        t = self.t
        key = x
        if self.is_float:
            bits = t.let(f"arith.bitcast {t.arith('addf', x, t.f32(0.0), 'f32')} : f32 to i32")  # -0 becomes 0
            sign = t.arith("shrsi", bits, t.constant("31", "i32"), "i32")
            key = t.arith("xori", bits, t.arith("andi", sign, t.constant(str(2**31 - 1), "i32"), "i32"), "i32")
            nan = t.let(f"arith.cmpf uno, {x}, {x} : f32")
            key = t.let(f"arith.select {nan}, {t.constant(str(_NAN), 'i32')}, {key} : i32")
        if not self.spec.largest:
            key = t.arith("xori", key, t.constant("-1", "i32"), "i32")
        high = t.arith("shli", t.let(f"arith.extsi {key} : i32 to i64"), t.constant("32", "i64"), "i64")
        low = t.arith("subi", t.constant(str(_LOW), "i64"), t.let(f"arith.index_cast {place} : index to i64"), "i64")
        return t.arith("ori", high, low, "i64")

    def _place(self, packed: str) -> str:
        t, low = self.t, self.t.constant(str(_LOW), "i64")
        place = t.arith("subi", low, t.arith("andi", packed, low, "i64"), "i64")
        return t.let(f"arith.index_cast {place} : i64 to index")

    def _sort(self, row: str, values: list[str]) -> list[str]:
        """As _take, with the best k in order, which alone stay."""
        t, spec = self.t, self.spec
        zero, (count, _, here, there) = t.index(0), values
        here, there = self.sorter.sort(count, here, there)
        place = self._place(t.extract(here, self.buffer_type, zero, t.index(spec.k - 1)))
        worst = self._widened(t.extract(self.x, self.x_type, row, t.arith("minsi", place, t.index(spec.n - 1))))
        if not self.is_float:
            worst = t.arith("addi" if spec.largest else "subi", worst, t.constant("1", "i32"), "i32")
        return [t.index(spec.k), worst, here, there]

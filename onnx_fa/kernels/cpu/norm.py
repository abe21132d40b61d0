"""Norm sites for llvm-cpu: a workgroup has a few whole rows, which the first cache holds, so that the mean, the mean square of what
is left and the result each take one walk over them."""

from __future__ import annotations

import math
from collections.abc import Callable

from onnx_fa.errors import UnsupportedError
from onnx_fa.kernels.cpu.row_dispatch import RowEntry, joined, load, make_executable, store
from onnx_fa.kernels.mlir.operand import ROWS, Operand
from onnx_fa.kernels.mlir.vectors import Lanes
from onnx_fa.kernels.tiles.origin import Origin, built_in
from onnx_fa.spec.norm import NormSpec, norm_name
from onnx_fa.spec.target import Target

_SUMS = 4
"""Vectors that are added up apart: the next addition to one of them has to wait for the last."""
_NUMBERS = 8192
"""Of the rows of a workgroup, about: a worker has begun with the next one before it has finished more of them."""
_STEPS = 512
"""Additions to one sum, at most, where rows are long."""
_LEAST = 2.0**-126
"""Below the square of a deviation that f32 can tell in a row that was made small."""
_SMALL = 2.0**-80
"""Brings f32's largest numbers to where their squares can be added up."""


def kept_why(spec: NormSpec, target: Target) -> str:
    """Why the compiler keeps a site, in a few words; "" where the kernel stands for it."""
    if target.kernels != "auto":
        return f"--kernels {target.kernels}"
    if not target.has_avx2:
        return "vectors of four lanes"
    return "" if target.lanes_dividing(spec.N) else f"rows of {spec.N} numbers, which no vector divides"


def origin_of(spec: NormSpec, target: Target) -> Origin:
    """The tiles and where they are from."""
    return built_in({"lanes": target.lanes_dividing(spec.N), "rows": _rows_of(spec)}, "a rule")


def emit_norm(spec: NormSpec, target: Target) -> dict[str, str]:
    """The executable and the function of the site's name, which takes its operands and returns its results, by their symbols.
    Raises UnsupportedError where there is no kernel."""
    if why := kept_why(spec, target):
        raise UnsupportedError(f"vector kernel, norm site: {why}")
    name = norm_name(spec)
    symbol = f"{name}_rows"
    body, entry = NormBody(spec, target.lanes_dividing(spec.N)), RowEntry(spec, name)
    function = entry.text_lines(symbol, spec.lead, spec.operand_shapes, body.operands, body.results)
    return {symbol: joined(body.executable(symbol)), name: joined(function)}


def _rows_of(spec: NormSpec) -> int:
    """The rows of a workgroup."""
    return max(1, _NUMBERS // spec.N)


def _part_of(numbers: int, step: int) -> int:
    """The numbers that are added up before their sums are added to those of the row: a row of a million would else lose some
    thirteen bits of each number that it adds. Of all steps, as many as divide them."""
    steps = numbers // step
    if steps <= _STEPS:
        return numbers
    return step * next(n for n in range(_STEPS, 0, -1) if steps % n == 0)


def operands_of(spec: NormSpec) -> list[Operand]:
    """The operands as the dispatch has them, rows flat."""
    return [Operand(f"%{name}", _flat(spec, len(shape)), dtype) for name, shape, dtype in spec.operands]


def results_of(spec: NormSpec) -> list[Operand]:
    return [Operand(f"%y{i}", _flat(spec), dtype) for i, (_, dtype) in enumerate(spec.results)]


def _flat(spec: NormSpec, rank: int = 2) -> tuple[int | str, ...]:
    return (ROWS if spec.rows is None else spec.rows, spec.N) if rank > 1 else (spec.N,)


class NormBody:
    """Writes the dispatch of a site with vectors of so many lanes, which divide its rows."""

    def __init__(self, spec: NormSpec, width: int) -> None:
        self.spec, self.t = spec, Lanes(width)
        self.sums = next(n for n in (_SUMS, 2, 1) if spec.N // width % n == 0)
        self.part = _part_of(spec.N, self.sums * width)
        self.operands, self.results = operands_of(spec), results_of(spec)

    def executable(self, symbol: str) -> list[str]:
        spec, each = self.spec, _rows_of(self.spec)
        if spec.rows is not None:
            count = [f"%x = arith.constant {-(-spec.rows // each)} : index"]
        else:
            count = [f"%each = arith.constant {each} : index", "%x = arith.ceildivui %rows, %each : index"]
        return make_executable(symbol, self.operands, self.results, count, self._body(each))

    def _body(self, each: int) -> list[str]:
        t, spec = self.t, self.spec
        self.loaded = {x.name: load(t, x, "readonly", ["0"] * len(x.shape), x.shape) for x in self.operands}
        made = [load(t, y, "writeonly", ["0", "0"], y.shape) for y in self.results]
        self.result_types = [type_ for _, type_ in made]
        rows = "%rows" if spec.rows is None else t.index(spec.rows)
        first = t.arith("muli", t.let("flow.dispatch.workgroup.id[0] : index"), t.index(each))
        last = t.arith("minsi", t.shifted(first, each), rows)
        written = t.loop((first, last, t.index(1)), made, self._row)
        for value, y in zip(written, self.results, strict=True):
            store(t, value, y.type, y, ["0", "0"], y.shape)
        return t.render()

    def _row(self, row: str, results: list[str]) -> list[str]:
        """The results with one row."""
        t, spec = self.t, self.spec
        if spec.gives_sum:
            results = [results[0], self._write_sum(row, results[1])]
        one = t.f32(1.0)
        mean, square = self._statistics(row, one)
        small = one
        if spec.dtype != "f16":
            # Rows whose squares f32 does not hold are made smaller, which changes no norm. A row with an infinity stays NaN.
            held = t.let(f"arith.cmpf olt, {square}, {t.f32(math.inf)} : f32")
            chosen = t.several(f"scf.if {held} -> (f32, f32, f32) {{", 3)
            t.do(f"scf.yield {one}, {mean}, {square} : f32, f32, f32")
            t.do("} else {")
            again = self._statistics(row, t.f32(_SMALL))
            t.do(f"scf.yield {t.f32(_SMALL)}, {again[0]}, {again[1]} : f32, f32, f32")
            t.do("}")
            small, mean, square = chosen
        epsilon = t.f32(spec.epsilon)
        for _ in range(2 * (small != one)):
            epsilon = t.arith("mulf", epsilon, small, "f32")
        if small != one and spec.epsilon:  # still more than nothing, for rows whose numbers are all the same
            epsilon = t.let(f"arith.maximumf {epsilon}, {t.f32(_LEAST)} : f32")
        root = t.let(f"math.sqrt {t.arith('addf', square, epsilon, 'f32')} : f32")
        by, mean, small = (t.broadcast(x) for x in (t.arith("divf", one, root, "f32"), mean, small))

        def column(n: str, carried: list[str]) -> list[str]:
            y = carried[0]
            for i in range(self.sums):
                at = t.shifted(n, i * t.width)
                value = t.vop("arith.mulf", self._deviation(row, at, small, mean), by)
                if spec.scale:
                    value = t.vop("arith.mulf", value, self._read("%scale", at))
                if spec.bias:
                    value = t.vop("arith.addf", value, self._read("%bias", at))
                y = self._write(value, y, 0, row, at)
            return [y]

        (y,) = t.loop(self._bounds(), [(results[0], self.result_types[0])], column)
        return [y, *results[1:]]

    def _bounds(self) -> tuple[str, str, str]:
        return self.t.index(0), self.t.index(self.spec.N), self.t.index(self.sums * self.t.width)

    def _write_sum(self, row: str, total: str) -> str:
        """The second result with a row of the sum."""
        t = self.t

        def column(n: str, carried: list[str]) -> list[str]:
            made = carried[0]
            for i in range(self.sums):
                at = t.shifted(n, i * t.width)
                made = self._write(self._value(row, at), made, 1, row, at)
            return [made]

        return t.loop(self._bounds(), [(total, self.result_types[1])], column)[0]

    def _statistics(self, row: str, small: str) -> tuple[str, str]:
        """The mean, and the mean square of what it leaves, of a row times `small`: scalars of f32. What a rounded mean leaves has a
        mean of its own, by which both are corrected (Chan, Golub, LeVeque: Algorithms for Computing the Sample Variance, 1983)."""
        t, by = self.t, self.t.broadcast(small)
        if not self.spec.centred:

            def square(at: str, so_far: list[str]) -> list[str]:
                x = self._scaled(row, at, by)
                return [t.vop("vector.fma", x, x, so_far[0])]

            return t.f32(0.0), self._means(1, square)[0]
        (mean,) = self._means(1, lambda at, so_far: [t.vop("arith.addf", self._scaled(row, at, by), so_far[0])])
        away = t.broadcast(mean)

        def deviations(at: str, so_far: list[str]) -> list[str]:
            d = self._deviation(row, at, by, away)
            return [t.vop("arith.addf", d, so_far[0]), t.vop("vector.fma", d, d, so_far[1])]

        left, square_left = self._means(2, deviations)
        corrected = t.arith("subf", square_left, t.arith("mulf", left, left, "f32"), "f32")
        return t.arith("addf", mean, left, "f32"), t.arith("maximumf", corrected, t.f32(0.0), "f32")

    def _means(self, count: int, added: Callable[[str, list[str]], list[str]]) -> list[str]:
        """So many sums, to which `added` adds for each vector of a row, by the row's length."""
        t = self.t
        nothing = [(t.splat(0.0), t.vec)] * (self.sums * count)

        def column(n: str, carried: list[str]) -> list[str]:
            made = [added(t.shifted(n, i * t.width), carried[i * count : (i + 1) * count]) for i in range(self.sums)]
            return [x for each in made for x in each]

        def part(n: str, carried: list[str]) -> list[str]:
            last = t.shifted(n, self.part)
            sums = t.loop((n, last, t.index(self.sums * t.width)), nothing, column)
            return [t.vop("arith.addf", a, b) for a, b in zip(carried, sums, strict=True)]

        low, high, step = self._bounds()
        if self.part < self.spec.N:
            sums = t.loop((low, high, t.index(self.part)), nothing, part)
        else:
            sums = t.loop((low, high, step), nothing, column)
        while len(sums) > count:
            half = len(sums) // 2
            sums = [t.vop("arith.addf", a, b) for a, b in zip(sums[:half], sums[half:], strict=True)]
        totals = [t.let(f"vector.reduction <add>, {x} : {t.vec} into f32") for x in sums]
        return [t.arith("divf", total, t.f32(float(self.spec.N)), "f32") for total in totals]

    def _deviation(self, row: str, at: str, by: str, mean: str) -> str:
        """A vector of a row times `by`, less the mean."""
        x = self._scaled(row, at, by)
        return self.t.vop("arith.subf", x, mean) if self.spec.centred else x

    def _scaled(self, row: str, at: str, by: str) -> str:
        return self.t.vop("arith.mulf", self._value(row, at), by)

    def _value(self, row: str, at: str) -> str:
        """A vector of what is normalised: of x, or of the sum as others read it."""
        t, dtype = self.t, self.spec.dtype
        x = self._read("%x", row, at)
        if not self.spec.skip:
            return x
        return self._widened(self._narrowed(t.vop("arith.addf", x, self._read("%skip", row, at)), dtype), dtype)

    def _read(self, name: str, *at: str) -> str:
        """A vector of an operand, as f32."""
        value, type_ = self.loaded[name]
        element = next(x.element for x in self.operands if x.name == name)
        return self._widened(self.t.read(value, type_, *at, element=element), element)

    def _write(self, value: str, result: str, which: int, row: str, at: str) -> str:
        element = self.results[which].element
        narrow = self._narrowed(value, element)
        return self.t.write(narrow, result, self.result_types[which], row, at, element=element)

    def _widened(self, value: str, element: str) -> str:
        t = self.t
        return value if element == "f32" else t.let(f"arith.extf {value} : {t.type(element)} to {t.vec}")

    def _narrowed(self, value: str, element: str) -> str:
        t = self.t
        return value if element == "f32" else t.let(f"arith.truncf {value} : {t.vec} to {t.type(element)}")

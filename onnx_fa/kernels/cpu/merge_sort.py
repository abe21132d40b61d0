"""Sorting within a dispatch: 64-bit integers, largest first, by merges of pairs of runs from both of their ends at once (as "parity
merges" of quadsort do, Igor van den Hoven, github.com/scandum/quadsort): no run can come to its end before the other, and no branch
depends on the numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from onnx_fa.kernels.mlir.text import INDEX, is_memref
from onnx_fa.kernels.mlir.vectors import Lanes

RUN = 4
"""Numbers that are sorted in registers first; no fewer make a buffer."""
_NETWORK = ((0, 1), (2, 3), (0, 2), (1, 3), (1, 2))
"""Pairs of them that are put in order, one after the other."""
_LEAST = -(2**63)

Carried = Sequence[tuple[str, str]]
"""Values and their types."""


class Steps(Lanes):
    """Vectors, and loops and conditions over what may be tensors or memory, which is no value that they carry."""

    def loop(
        self, bounds: tuple[str, str, str], carried: Carried, body: Callable[[str, list[str]], list[str]]
    ) -> list[str]:
        moved = [pair for pair in carried if not is_memref(pair[1])]

        def inner(iv: str, values: list[str]) -> list[str]:
            return _moved(carried, body(iv, _all(carried, values)))

        return _all(carried, super().loop(bounds, moved, inner) if moved else self._plain(bounds, inner))

    def _plain(self, bounds: tuple[str, str, str], body: Callable[[str, list[str]], list[str]]) -> list[str]:
        """A loop that changes memory alone."""
        iv = self.fresh()
        low, high, step = bounds
        self.do(f"scf.for {iv} = {low} to {high} step {step} {{")
        body(iv, [])
        self.do("}")
        return []

    def when(self, condition: str, carried: Carried, body: Callable[[list[str]], list[str]]) -> list[str]:
        """What is carried, of which something is no memory, as `body` makes it where the condition holds."""
        moved = [pair for pair in carried if not is_memref(pair[1])]
        types = ", ".join(type_ for _, type_ in moved)
        results = self.several(f"scf.if {condition} -> ({types}) {{", len(moved))
        made = _moved(carried, body([value for value, _ in carried]))
        self.do(f"scf.yield {', '.join(made)} : {types}")
        self.do("} else {")
        self.do(f"scf.yield {', '.join(value for value, _ in moved)} : {types}")
        self.do("}")
        return _all(carried, results)


def _moved(carried: Carried, values: Sequence[str]) -> list[str]:
    return [value for value, (_, type_) in zip(values, carried, strict=True) if not is_memref(type_)]


def _all(carried: Carried, moved: Sequence[str]) -> list[str]:
    left = iter(moved)
    return [value if is_memref(type_) else next(left) for value, type_ in carried]


class Sorter:
    """Writes sorts of a buffer of `size` numbers, a power of two, and another of that type, (1, size), which is written over."""

    def __init__(self, t: Steps, size: int, type_: str) -> None:
        self.t, self.size, self.buffer_type = t, size, type_

    def halves(self, *halves: str) -> list[tuple[str, str]]:
        """The buffers with their type."""
        return [(half, self.buffer_type) for half in halves]

    def sort(self, count: str, here: str, there: str) -> list[str]:
        """Both with the first `count` numbers of the first in order there, and the least behind them."""
        t, zero = self.t, self.t.index(0)
        least = t.constant(str(_LEAST), "i64")

        def fill(at: str, halves: list[str]) -> list[str]:
            return [t.insert(least, half, self.buffer_type, zero, at) for half in halves]

        here, there = t.loop((count, t.index(self.size), t.index(1)), self.halves(here, there), fill)
        passes = (self.size // RUN).bit_length() - 1
        if passes % 2:
            here, there = self._runs(count, here, there)
            there, here = self._merge(count, t.index(RUN), there, here)
        else:
            here, _ = self._runs(count, here, here)

        def twice(_: str, carried: list[str]) -> list[str]:
            run, here, there = carried
            here, there = self._merge(count, run, here, there)
            run = t.arith("addi", run, run)
            there, here = self._merge(count, run, there, here)
            return [t.arith("addi", run, run), here, there]

        if passes > 1:
            carried = [(t.index(RUN << passes % 2), INDEX), *self.halves(here, there)]
            _, here, there = t.loop((zero, t.index(passes // 2), t.index(1)), carried, twice)
        return [here, there]

    def _runs(self, count: str, source: str, to: str) -> tuple[str, str]:
        """The halves where `to` has the numbers of `source` in runs of RUN, each sorted; both may be one."""
        t, zero = self.t, self.t.index(0)
        alone = source == to

        def sort(at: str, halves: list[str]) -> list[str]:
            places = [t.shifted(at, i) for i in range(RUN)]
            numbers = [t.extract(halves[0], self.buffer_type, zero, place) for place in places]
            for a, b in _NETWORK:
                pair = (numbers[a], numbers[b])
                numbers[a], numbers[b] = (t.arith(op, *pair, "i64") for op in ("maxsi", "minsi"))
            made = halves[-1]
            for number, place in zip(numbers, places, strict=True):
                made = t.insert(number, made, self.buffer_type, zero, place)
            return [*halves[:-1], made]

        carried = self.halves(*([source] if alone else [source, to]))
        made = t.loop((zero, count, t.index(RUN)), carried, sort)
        return made[0], made[-1]

    def _merge(self, count: str, run: str, source: str, to: str) -> tuple[str, str]:
        """The halves where `to` has the numbers of `source` in runs twice as long as `run`. A step gives the best and the worst
        that are left of a pair of runs."""
        t, zero, one = self.t, self.t.index(0), self.t.index(1)
        pair = t.arith("addi", run, run)

        def merge(base: str, halves: list[str]) -> list[str]:
            middle = t.arith("addi", base, run)
            last = t.arith("subi", t.arith("addi", base, pair), one)

            def step(i: str, carried: list[str]) -> list[str]:
                low, high, source, to = carried
                other = t.arith("subi", t.arith("addi", middle, i), t.arith("subi", low, base))
                a, b = (t.extract(source, self.buffer_type, zero, at) for at in (low, other))
                first = t.let(f"arith.cmpi sge, {a}, {b} : i64")
                to = t.insert(t.arith("maxsi", a, b, "i64"), to, self.buffer_type, zero, t.arith("addi", base, i))
                low = t.arith("addi", low, t.let(f"arith.index_castui {first} : i1 to index"))
                # `high` runs down in the first run; what is gone of the second is what is left of i.
                gone = t.arith("subi", t.arith("subi", middle, one), high)
                other = t.arith("subi", last, t.arith("subi", i, gone))
                a, b = (t.extract(source, self.buffer_type, zero, at) for at in (high, other))
                worse = t.let(f"arith.cmpi slt, {a}, {b} : i64")
                to = t.insert(t.arith("minsi", a, b, "i64"), to, self.buffer_type, zero, t.arith("subi", last, i))
                high = t.arith("subi", high, t.let(f"arith.index_castui {worse} : i1 to index"))
                return [low, high, source, to]

            carried = [(base, INDEX), (t.arith("subi", middle, one), INDEX), *self.halves(*halves)]
            return t.loop((zero, run, one), carried, step)[2:]

        source, to = t.loop((zero, count, pair), self.halves(source, to), merge)
        return source, to

"""The dispatch of a convolution of 3 x 3 taps by 16 products for four places in place of 36 (winograd_turns.py).

A workgroup takes blocks of tiles, each of two by two places. What their windows see is turned once. For each panel of the weight
some channels at a time are turned and multiplied: each of the 16 m is a product of matrices, tiles by channels by columns. Then the
m of the panel become its places. All of this waits in memory that a worker has in its caches (slots.py).

A window may see an infinity, and sums of finite numbers may pass the largest: some m are not finite then, and where a tile's places
are not, all of them are computed by their definition.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from onnx_fa.kernels.cpu.addresses import Helpers
from onnx_fa.kernels.cpu.epilogues import EpilogueVectors
from onnx_fa.kernels.cpu.homes import Homes
from onnx_fa.kernels.cpu.row_dispatch import Changed, load, make_executable, store
from onnx_fa.kernels.cpu.slots import Slots
from onnx_fa.kernels.cpu.window_body import operands_of, y_of
from onnx_fa.kernels.cpu.window_place import PlaceSums
from onnx_fa.kernels.cpu.winograd_turns import MADE, SEEN, TAPS, make_places, turn_seen, turn_taps, turn_twice
from onnx_fa.kernels.mlir.operand import Operand
from onnx_fa.kernels.mlir.vectors import Lanes
from onnx_fa.spec.windows import WindowSpec

_APART = 16
"""Numbers between matrices in memory: those whose distance is a power of two share lines of the first cache."""


@dataclass(frozen=True)
class WinogradTiles:
    """A register tile has `rows` tiles of two by two places by as many vectors of `lanes` columns as a panel has. A block has
    `block` of them, a multiple of `rows`, and a workgroup makes `across` panels of a block at a time, of `chunk` channels at a
    time, a multiple of `lanes`. There are `groups` workgroups at most."""

    lanes: int
    rows: int
    block: int
    across: int
    chunk: int
    groups: int


class WinogradBody:
    """Writes the dispatch of a convolution of 3 x 3 taps without strides or dilations, of f32, whose channels come last in x and y
    and fill vectors."""

    def __init__(self, spec: WindowSpec, tiles: WinogradTiles, symbol: str, ranges: int = 0) -> None:
        """`ranges`: of the workgroups, one for each core, where that is known (homes.py)."""
        self.spec, self.tiles, self.t, self.symbol = spec, tiles, Lanes(tiles.lanes), symbol
        self.operands, self.y = operands_of(spec), y_of(spec)
        self.vectors = spec.panel // tiles.lanes
        self.then = EpilogueVectors(self.t, spec.then, spec.tensors, spec.columns)
        lines, self.line = (-(-n // MADE) for n in spec.places)
        self.count = lines * self.line
        """Tiles of an image, of which `line` lie beside each other."""
        self.across = -(-spec.panels // tiles.across)
        self.items = -(-self.count // tiles.block) * self.across * spec.groups
        """What workgroups do of an image: some panels of a block each."""
        self.slots = Slots(symbol, tiles.groups if spec.parts is None else min(tiles.groups, self.items * spec.parts))
        self.homes = Homes(symbol, ranges) if ranges else None

    @property
    def scratch(self) -> list[Operand]:
        """Of all slots: what tiles see, turned, for each m as register tiles read it; some channels of a panel, turned; and the
        sums of products."""
        spec, tiles = self.spec, self.tiles
        shapes = {
            "%seen": (tiles.block * spec.channels + _APART,),
            "%turned": (tiles.chunk + 1, spec.panel),
            "%sums": (tiles.block + 1, spec.panel),
        }
        return [Operand(name, (self.slots.count, SEEN**2, *shape), "f32") for name, shape in shapes.items()]

    def executable(self) -> list[str]:
        """The executable, a function of the name of the dispatch."""
        count, outputs = [f"%x = arith.constant {self.slots.count} : index"], [self.y, *self.scratch]
        return make_executable(
            self.symbol,
            self.operands,
            outputs,
            count,
            self._body(),
            changed=[x.operand for x in self.changed],
            helper=Helpers([self.slots, *([self.homes] if self.homes else [])]),
        )

    @property
    def changed(self) -> Sequence[Changed]:
        """What the dispatch reads and writes besides."""
        return [self.slots, *([self.homes] if self.homes else [])]

    def _body(self) -> list[str]:
        t, spec = self.t, self.spec
        self.loaded = {x.name: load(t, x, "readonly", ["0"] * len(x.shape), x.shape) for x in self.operands}
        self.place_sums = PlaceSums(t, spec, self.vectors, self.loaded)
        claim = self.slots.claim(t)
        parts = {x.name: ([claim.slot, *["0"] * (len(x.shape) - 1)], (1, *x.shape[1:])) for x in self.scratch}
        memory = [load(t, self.y, "writeonly", ["0"] * 3, self.y.shape)]
        memory += [load(t, x, "writeonly", *parts[x.name]) for x in self.scratch]
        self.y_type, self.seen_type, self.turned_type, self.sums_type = self.types = [type_ for _, type_ in memory]
        made = t.loop((*self._own_items(), t.index(1)), memory, self._item)
        store(t, made[0], self.y_type, self.y, ["0"] * 3, self.y.shape)
        for x, value, type_ in zip(self.scratch, made[1:], self.types[1:], strict=True):
            store(t, value, type_, x, *parts[x.name])
        self.slots.free(t, claim, made[-1], self.sums_type)
        return t.render()

    def _own_items(self) -> tuple[str, str]:
        """The first item of a workgroup and that behind its last; all have as many, or one less."""
        t, each, count = self.t, self.t.index(self.items), self.t.index(self.slots.count)
        own = self.homes.workgroup(t, count) if self.homes else t.let("flow.dispatch.workgroup.id[0] : index")
        items = t.arith("muli", "%rows" if self.spec.parts is None else t.index(self.spec.parts), each)
        first, last = (t.arith("divui", t.arith("muli", n, items), count) for n in (own, t.shifted(own, 1)))
        return first, last

    def _item(self, item: str, memory: list[str]) -> list[str]:
        """y and the memory with some panels of a block."""
        t, spec, tiles = self.t, self.spec, self.tiles
        y, seen, turned, sums = memory
        image, left = self._divided(item, self.items)
        block, left = self._divided(left, self.across * spec.groups)
        group, across = self._divided(left, self.across)
        first = t.arith("muli", block, t.index(tiles.block))
        count = t.arith("minsi", t.index(tiles.block), t.arith("subi", t.index(self.count), first))
        bounds = t.index(0), count, t.index(1)

        def see(i: str, values: list[str]) -> list[str]:
            return [self._see(image, self._place(first, i), group, i, values[0])]

        (seen,) = t.loop(bounds, [(seen, self.seen_type)], see)

        def of_panel(panel: str, values: list[str]) -> list[str]:
            column = t.arith("muli", panel, t.index(spec.panel))
            if spec.N % spec.panel:
                column = t.arith("minsi", column, t.index(spec.N - spec.panel))
            matrix = t.arith("addi", t.arith("muli", group, t.index(spec.panels)), panel)
            turned, sums = self._multiply(matrix, count, seen, values[1:])

            def make(i: str, values: list[str]) -> list[str]:
                return [self._make((image, group, matrix), self._place(first, i), (i, column), sums, values[0])]

            (y,) = t.loop(bounds, [(values[0], self.y_type)], make)
            return [y, turned, sums]

        first_panel = t.arith("muli", across, t.index(tiles.across))
        last_panel = t.arith("minsi", t.shifted(first_panel, tiles.across), t.index(spec.panels))
        carried = [(y, self.y_type), (turned, self.turned_type), (sums, self.sums_type)]
        y, turned, sums = t.loop((first_panel, last_panel, t.index(1)), carried, of_panel)
        return [y, seen, turned, sums]

    def _divided(self, number: str, by: int) -> tuple[str, str]:
        """The quotient and the rest."""
        t = self.t
        return t.arith("divui", number, t.index(by)), t.arith("remui", number, t.index(by))

    def _place(self, first: str, i: str) -> tuple[str, str]:
        """The line and the column of the first place of tile i of a block that begins with this one."""
        t = self.t
        line, column = self._divided(t.arith("addi", first, i), self.line)
        return t.arith("muli", line, t.index(MADE)), t.arith("muli", column, t.index(MADE))

    def _see(self, image: str, place: tuple[str, str], group: str, i: str, seen: str) -> str:
        """The memory with what tile i of a block sees, turned."""
        t, spec = self.t, self.spec
        starts = [t.arith("subi", at, t.index(pad)) for at, pad in zip(place, spec.before, strict=True)]
        # A number before the image is above all as one without a sign.
        inside = [
            [t.test("ult", t.shifted(start, k), t.index(size)) for k in range(SEEN)]
            for start, size in zip(starts, spec.sizes, strict=True)
        ]
        whole = self._all([tests[k] for tests in inside for k in (0, SEEN - 1)])
        tile, row = self._divided(i, self.tiles.rows)
        to = t.arith("muli", tile, t.index(self.tiles.rows * spec.channels))
        to = t.arith("addi", to, t.arith("muli", row, t.index(t.width)))
        channel = t.arith("muli", group, t.index(spec.channels))

        def read(is_whole: bool) -> list[str]:
            lines, columns = (
                [
                    t.arith("muli", at if is_whole else t.choose(test, at, t.index(0)), t.index(step))
                    for at, test in zip((t.shifted(start, k) for k in range(SEEN)), tests, strict=True)
                ]
                for start, tests, step in zip(starts, inside, spec.steps, strict=True)
            )
            at = [[t.arith("addi", t.arith("addi", a, b), channel) for b in columns] for a in lines]
            there = [] if is_whole else [[self._all([a, b]) for b in inside[1]] for a in inside[0]]
            return self._turn_image(image, at, there, to, seen)

        return t.either(whole, [self.seen_type], lambda: read(True), lambda: read(False))[0]

    def _turn_image(self, image: str, at: list[list[str]], there: list[list[str]], to: str, seen: str) -> list[str]:
        """The memory with what lies at these places of an image, turned: zeros at those that are not there, if any may not be."""
        t, (x, x_type) = self.t, self.loaded["%x"]

        def of_channels(c: str, values: list[str]) -> list[str]:
            square = [[t.read(x, x_type, image, t.arith("addi", place, c)) for place in row] for row in at]
            if there:
                square = [
                    [t.let(f"arith.select {a}, {v}, {t.splat(0.0)} : {t.vec}") for a, v in zip(*rows, strict=True)]
                    for rows in zip(there, square, strict=True)
                ]
            where = t.arith("addi", to, t.arith("muli", c, t.index(self.tiles.rows)))
            return [self._keep(turn_twice(t, turn_seen, square), values[0], self.seen_type, where)]

        bounds = t.index(0), t.index(self.spec.channels), t.index(t.width)
        return t.loop(bounds, [(seen, self.seen_type)], of_channels)

    def _keep(self, m: list[list[str]], memory: str, type_: str, *where: str) -> str:
        """The memory with a vector of each m."""
        for k, value in enumerate(value for row in m for value in row):
            memory = self.t.write(value, memory, type_, self.t.index(0), self.t.index(k), *where)
        return memory

    def _multiply(self, matrix: str, count: str, seen: str, memory: list[str]) -> list[str]:
        """The memory with a panel, turned, and its sums."""
        t, chunk, channels = self.t, self.tiles.chunk, self.spec.channels

        def step(c: str, size: int, values: list[str], *, is_first: bool = False) -> list[str]:
            turned = self._turn_weight(matrix, c, size, values[0])
            return [turned, self._products(c, size, count, (seen, turned, values[1]), is_first)]

        made = step(t.index(0), min(chunk, channels), memory, is_first=True)
        if channels >= 2 * chunk:
            bounds = t.index(chunk), t.index(channels // chunk * chunk), t.index(chunk)
            carried = list(zip(made, (self.turned_type, self.sums_type), strict=True))
            made = t.loop(bounds, carried, lambda c, values: step(c, chunk, values))
        if channels > chunk and (left := channels % chunk):
            made = step(t.index(channels - left), left, made)
        return made

    def _turn_weight(self, matrix: str, c: str, size: int, turned: str) -> str:
        """The memory with so many channels of a panel, from this one on, turned."""
        t, spec, (w, w_type) = self.t, self.spec, self.loaded["%w"]

        def of_channel(i: str, values: list[str]) -> list[str]:
            at, made = t.arith("addi", c, i), values[0]
            rows = [[t.shifted(at, (TAPS * a + b) * spec.channels) for b in range(TAPS)] for a in range(TAPS)]
            for column in self._columns():
                taps = [[t.read(w, w_type, matrix, k, column) for k in row] for row in rows]
                made = self._keep(turn_twice(t, turn_taps, taps), made, self.turned_type, i, column)
            return [made]

        return t.loop((t.index(0), t.index(size), t.index(1)), [(turned, self.turned_type)], of_channel)[0]

    def _columns(self) -> list[str]:
        """Where the vectors of a panel begin."""
        return [self.t.index(j * self.t.width) for j in range(self.vectors)]

    def _products(self, c: str, size: int, count: str, memory: tuple[str, str, str], is_first: bool) -> str:
        """The sums with the products of so many channels, from this one on; they begin with the first."""
        t, tall, channels = self.t, self.tiles.rows, self.spec.channels
        seen, turned, sums = memory
        zero, columns = t.index(0), self._columns()

        def of_m(m: str, values: list[str]) -> list[str]:
            def of_tile(first: str, values: list[str]) -> list[str]:
                at = [(t.shifted(first, i), column) for i in range(tall) for column in columns]
                totals = [t.splat(0.0)] * len(at)
                if not is_first:
                    totals = [t.read(values[0], self.sums_type, zero, m, *where) for where in at]
                start = t.arith("muli", first, t.index(channels))
                start = t.arith("addi", start, t.arith("muli", c, t.index(tall)))

                def along(k: str, carried: list[str]) -> list[str]:
                    here = t.arith("addi", start, t.arith("muli", k, t.index(tall)))
                    return self._written_out(m, k, here, (seen, turned), carried)

                bounds = zero, t.index(size), t.index(t.width)
                made = values[0]
                for total, where in zip(t.loop(bounds, [(v, t.vec) for v in totals], along), at, strict=True):
                    made = t.write(total, made, self.sums_type, zero, m, *where)
                return [made]

            return t.loop((zero, count, t.index(tall)), [(values[0], self.sums_type)], of_tile)

        return t.loop((zero, t.index(SEEN**2), t.index(1)), [(sums, self.sums_type)], of_m)[0]

    def _written_out(self, m: str, k: str, here: str, memory: tuple[str, str], sums: list[str]) -> list[str]:
        """The sums of a register tile with the products of as many channels as a vector has lanes."""
        t, n, zero = self.t, self.vectors, self.t.index(0)
        sums = list(sums)
        for u in range(t.width):
            row = t.shifted(k, u)
            weights = [t.read(memory[1], self.turned_type, zero, m, row, column) for column in self._columns()]
            for i in range(self.tiles.rows):
                at = t.shifted(here, i * t.width + u)
                number = t.broadcast(t.extract(memory[0], self.seen_type, zero, m, at))
                for j, weight in enumerate(weights):
                    sums[i * n + j] = t.vop("vector.fma", number, weight, sums[i * n + j])
        return sums

    def _make(self, where: tuple[str, str, str], place: tuple[str, str], at: tuple[str, str], sums: str, y: str) -> str:
        """y with the places of a tile, by the columns of a panel."""
        t, spec, n = self.t, self.spec, self.vectors
        (image, group, matrix), (i, column) = where, at
        by_vector = []
        for j in self._columns():
            m = [t.read(sums, self.sums_type, t.index(0), t.index(k), i, j) for k in range(SEEN**2)]
            made = turn_twice(t, make_places, [m[SEEN * a : SEEN * (a + 1)] for a in range(SEEN)])
            by_vector.append([value for row in made for value in row])
        found = [value for of_place in zip(*by_vector, strict=True) for value in of_place]
        places = [divmod(k, MADE) for k in range(MADE**2)]
        found = t.either(
            self._are_finite(found),
            [t.vec] * len(found),
            lambda: found,
            lambda: [v for of in places for v in self.place_sums.emit(image, group, matrix, self._of(place, of))],
        )
        columns = [t.shifted(column, j * t.width) for j in range(n)]
        if spec.bias:
            b, b_type = self.loaded["%b"]
            bias = [t.read(b, b_type, group, c) for c in columns]
            found = [t.vop("arith.addf", v, bias[k % n]) for k, v in enumerate(found)]
        if spec.groups > 1:
            columns = [t.arith("addi", t.arith("muli", group, t.index(spec.N)), c) for c in columns]
        for k, of in enumerate(places):
            y = self._write(image, self._of(place, of), of, list(zip(columns, found[k * n :], strict=False)), y)
        return y

    def _of(self, place: tuple[str, str], of: tuple[int, int]) -> tuple[str, str]:
        """One of the places of a tile that begins at this one."""
        return self.t.shifted(place[0], of[0]), self.t.shifted(place[1], of[1])

    def _are_finite(self, values: list[str]) -> str:
        """Whether all numbers of some vectors are finite; of huge ones it may say that they are not."""
        t, total = self.t, values[0]
        for value in values[1:]:
            total = t.vop("arith.addf", total, value)
        finite = t.compare("olt", t.vop("math.absf", total), t.splat(float("inf")))
        return t.let(f"vector.reduction <and>, {finite} : {t.bvec} into i1")

    def _all(self, conditions: Iterable[str]) -> str:
        first, *more = conditions
        for condition in more:
            first = self.t.arith("andi", first, condition, "i1")
        return first

    def _write(
        self, image: str, place: tuple[str, str], of: tuple[int, int], vectors: list[tuple[str, str]], y: str
    ) -> str:
        """y with vectors, at their columns, of one place of a tile, if the image has it."""
        t, places = self.t, self.spec.places
        axes = zip(place, of, places, strict=True)
        there = [t.test("ult", at, t.index(size)) for at, k, size in axes if k and size % MADE]

        def write() -> list[str]:
            made, row = y, t.arith("addi", t.arith("muli", place[0], t.index(places[1])), place[1])
            for column, value in vectors:
                to = [image, row, column]
                made = t.write(self.then.emit(value, to, self.loaded), made, self.y_type, *to)
            return [made]

        return t.either(self._all(there), [self.y_type], write, lambda: [y])[0] if there else write()[0]

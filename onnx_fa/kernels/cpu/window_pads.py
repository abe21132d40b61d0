"""The dispatch of a convolution whose windows reach into pads of zeros that nobody has written, over an image with its channels
last. Register tiles lie within a line of places: which lines of taps lie in the image is then one question for all of a tile, and
which of its places a tap of a line finds outside is known when compiling, but for whether the tile is at an end of its line.
"""

from __future__ import annotations

from collections import Counter

from onnx_fa.kernels.cpu.window_body import WindowBody


class PaddedBody(WindowBody):
    """Writes the dispatch of a convolution with pads. Tiles are counted, not places."""

    def _count_units(self) -> tuple[int, int]:
        lines, across = self.spec.places
        self.columns = [min(first, across - self.tiles.rows) for first in range(0, across, self.tiles.rows)]
        """The first places of the tiles of a line; the last begins earlier."""
        return lines * len(self.columns), 1

    def _first_place(self, at: str) -> str:
        t, across, tall = self.t, self.spec.places[1], self.tiles.rows
        line, tile = (t.arith(op, at, t.index(len(self.columns))) for op in ("divui", "remui"))
        column = t.arith("muli", tile, t.index(tall))
        if across % tall:
            column = t.arith("minsi", column, t.index(across - tall))
        return t.arith("addi", t.arith("muli", line, t.index(across)), column)

    def _products(self, image: str, matrix: str, row: str, channel: str, sums: list[str]) -> list[str]:
        t, spec = self.t, self.spec
        line, column = (t.arith(op, row, t.index(spec.places[1])) for op in ("divui", "remui"))
        down, across = (
            t.arith("subi", t.arith("muli", at, t.index(stride)), t.index(pad))
            for at, stride, pad in zip((line, column), spec.strides, spec.pads[:2], strict=True)
        )
        start = t.arith(
            "addi", *(t.arith("muli", at, t.index(s)) for at, s in zip((down, across), spec.steps, strict=True))
        )
        if channel:
            start = t.arith("addi", start, channel)
        taps, step = spec.kernel[1], spec.dilations[0] * spec.steps[0]

        def line_of_taps(i: str, carried: list[str]) -> list[str]:
            at = t.arith("addi", start, t.arith("muli", i, t.index(step)))
            first_k = t.arith("muli", i, t.index(taps * self._channels))
            for tap in range(taps):
                k_at, x_at = (
                    t.shifted(first_k, tap * self._channels),
                    t.shifted(at, tap * spec.dilations[1] * spec.steps[1]),
                )
                carried = self._tap(tap, column, carried, (image, matrix, x_at, k_at))
            return carried

        bounds = self._taps_inside(down)
        return t.loop((*bounds, t.index(1)), [(v, t.vec) for v in sums], line_of_taps)

    def _taps_inside(self, down: str) -> tuple[str, str]:
        """The first line of taps that lies in the image, and that behind the last, of windows that begin at this line of it."""
        t, spec, each = self.t, self.spec, self.spec.dilations[0]

        def taps(lines: str) -> str:
            some = t.arith("maxsi", lines, t.index(0))
            some = t.arith("divui", t.shifted(some, each - 1), t.index(each)) if each > 1 else some
            return t.arith("minsi", some, t.index(spec.kernel[0]))

        return taps(t.arith("subi", t.index(0), down)), taps(t.arith("subi", t.index(spec.sizes[0]), down))

    def _inside(self, tap: int, column: int) -> tuple[int, ...]:
        """The places of a tile from this column on whose tap lies in the image."""
        spec = self.spec
        first = column * spec.strides[1] - spec.pads[1] + tap * spec.dilations[1]
        return tuple(i for i in range(self.tiles.rows) if 0 <= first + i * spec.strides[1] < spec.sizes[1])

    def _tap(self, tap: int, column: str, sums: list[str], where: tuple[str, str, str, str]) -> list[str]:
        """The sums with the products of one tap, whichever tile of its line it is."""
        t = self.t
        inside = {at: self._inside(tap, at) for at in self.columns}
        (usual, _), *_ = Counter(inside.values()).most_common(1)
        others = sorted((at, places) for at, places in inside.items() if places != usual)

        def choose(left: list[tuple[int, tuple[int, ...]]]) -> list[str]:
            if not left:
                return self._along_channels(usual, sums, *where)
            (at, places), *rest = left
            is_there = t.test("eq", column, t.index(at))
            return self._either(is_there, lambda: self._along_channels(places, sums, *where), lambda: choose(rest))

        return choose(others)

    def _along_channels(
        self, places: tuple[int, ...], sums: list[str], image: str, matrix: str, x_at: str, k_at: str
    ) -> list[str]:
        """The sums with the products of a tap by all channels, at some places of the tile alone."""
        n, stride = self.vectors, self.spec.strides[1] * self.spec.steps[1]
        if not places:
            return sums
        own = [sums[i * n + j] for i in places for j in range(n)]
        made = self._over_channels(image, matrix, [self.t.shifted(x_at, i * stride) for i in places], k_at, own)
        sums = list(sums)
        for at, i in enumerate(places):
            sums[i * n : (i + 1) * n] = made[at * n : (at + 1) * n]
        return sums

"""The sums of a single place of a convolution, number by number, for where a faster way does not hold."""

from __future__ import annotations

from collections.abc import Mapping

from onnx_fa.kernels.mlir.vectors import Lanes
from onnx_fa.spec.windows import WindowSpec


class PlaceSums:
    """Emits the sums, without a bias, of so many vectors of columns, of windows along two axes without strides or dilations over an
    image with its channels last. `loaded` has the dispatch's operands and their types by name."""

    def __init__(self, t: Lanes, spec: WindowSpec, vectors: int, loaded: Mapping[str, tuple[str, str]]) -> None:
        self.t, self.spec, self.vectors, self.loaded = t, spec, vectors, loaded

    def emit(self, image: str, group: str, matrix: str, place: tuple[str, str]) -> list[str]:
        """Of the place of this line and column, by a panel, `matrix`, of a group."""
        t, spec, taps = self.t, self.spec, self.spec.kernel
        start = [t.arith("subi", at, t.index(pad)) for at, pad in zip(place, spec.before, strict=True)]
        channel, types = t.arith("muli", group, t.index(spec.channels)), [t.vec] * self.vectors

        def tap(k: str, sums: list[str]) -> list[str]:
            offsets = (t.arith(op, k, t.index(taps[1])) for op in ("divui", "remui"))
            at = [t.arith("addi", s, offset) for s, offset in zip(start, offsets, strict=True)]
            # A number before the image is above all as one without a sign.
            there = (t.test("ult", i, t.index(size)) for i, size in zip(at, spec.sizes, strict=True))
            both = t.let(f"arith.andi {', '.join(there)} : i1")
            return t.either(both, types, lambda: products(k, at, sums), lambda: sums)

        def products(k: str, at: list[str], sums: list[str]) -> list[str]:
            line, column = (t.arith("muli", i, t.index(step)) for i, step in zip(at, spec.steps, strict=True))
            first = t.arith("addi", t.arith("addi", line, column), channel)
            row = t.arith("muli", k, t.index(spec.channels))
            bounds = t.index(0), t.index(spec.channels), t.index(1)
            return t.loop(bounds, list(zip(sums, types, strict=True)), lambda c, s: multiply(c, first, row, s))

        def multiply(c: str, first: str, row: str, sums: list[str]) -> list[str]:
            (x, x_type), (w, w_type) = self.loaded["%x"], self.loaded["%w"]
            number = t.broadcast(t.extract(x, x_type, image, t.arith("addi", first, c)))
            at = t.arith("addi", row, c)
            weights = [t.read(w, w_type, matrix, at, t.index(j * t.width)) for j in range(self.vectors)]
            return [t.vop("vector.fma", number, weight, total) for weight, total in zip(weights, sums, strict=True)]

        zeros = [(t.splat(0.0), t.vec)] * self.vectors
        return t.loop((t.index(0), t.index(taps[0] * taps[1]), t.index(1)), zeros, tap)

"""K and V kept as integers, read by a kernel as f32: (integer - zero point) * scale, in registers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from onnx_fa.kernels.mlir.stored import is_packed
from onnx_fa.kernels.mlir.vectors import Lanes
from onnx_fa.spec.terms import Quantized


@dataclass(frozen=True)
class Scales:
    """A scale or zero point of one head, as a tensor: does it vary along the rows, and how many head dims share a number
    (0: all)?"""

    value: str
    type: str
    element: str
    rows: bool
    shared: int
    swapped: bool = False

    def at(self, t: Lanes, row: str, d: str) -> str:
        """The element for one row and head dim."""
        indices = [row] * self.rows
        if self.shared:
            indices.append(t.arith("divui", d, t.index(self.shared)) if self.shared > 1 else d)
        if self.swapped:
            indices.reverse()
        return t.let(f"tensor.extract {self.value}[{', '.join(indices or [t.index(0)])}] : {self.type}")


@dataclass(frozen=True)
class Integers:
    """Rows of integers: one head of K or V. `tensor` is bytes, rows x head dims, or the other way round if `swapped`."""

    t: Lanes
    quant: Quantized
    tensor: str
    type: str
    swapped: bool
    scale: Scales
    zero: Scales | None

    @property
    def packed(self) -> bool:
        """Two integers make a byte, the first in its low half."""
        return is_packed(self.quant.dtype)

    @property
    def extension(self) -> str:
        return "ui" if self.quant.dtype.startswith("u") else "si"

    def element(self, row: str, d: str) -> str:
        """One number."""
        t = self.t
        at = t.arith("divui", d, t.index(2)) if self.packed else d
        indices = (at, row) if self.swapped else (row, at)
        x = t.let(f"tensor.extract {self.tensor}[{', '.join(indices)}] : {self.type}")
        if self.packed:
            odd = t.let(f"arith.index_cast {t.arith('remui', d, t.index(2))} : index to i8")
            up = t.arith("shli", t.arith("subi", t.constant("1", "i8"), odd, "i8"), t.constant("2", "i8"), "i8")
            x = t.arith("shli", x, up, "i8")
            x = t.arith("shrui" if self.extension == "ui" else "shrsi", x, t.constant("4", "i8"), "i8")
        value = t.let(f"arith.ext{self.extension} {x} : i8 to i32")
        if self.zero is not None:
            zero = t.let(f"arith.ext{self.extension} {self.zero.at(t, row, d)} : i8 to i32")
            value = t.arith("subi", value, zero, "i32")
        value = t.let(f"arith.sitofp {value} : i32 to f32")
        return self._product(value, self._widened(self.scale.at(t, row, d), ""), "")

    def in_vectors(self, width: int) -> bool:
        """Whether `row` can read rows of so many head dims: lanes, head dims, groups and layout go together."""
        return (
            not self.swapped
            and width % self.t.width == 0
            and (self.scale.shared < 2 or self.scale.shared % self.t.width == 0)
        )

    @property
    def one_per_row(self) -> bool:
        """Whether products with a row may be scaled instead of its numbers: these are f32, and have one scale."""
        return self.scale.shared == 0 and self.scale.element == "f32"

    def row_scales(self, first: str, inside: bool) -> str:
        """The scales of the rows from `first` on, one per lane, where there is one per row."""
        s = self.scale
        if not s.rows:
            return self.t.broadcast(s.at(self.t, first, self.t.index(0)))
        return self.t.read(s.value, s.type, first, in_bounds=inside)

    def row(self, row: str, *, scaled: bool = True) -> Callable[[str], str]:
        """A function from a head dim, a multiple of the lanes, to that row's numbers from there on, as a vector (see `in_vectors`);
        without their scale if not `scaled`."""
        t, w = self.t, self.t.width
        scales = [self.scale, *([self.zero] if self.zero is not None else [])]
        # What does not vary along the head dim is made once per row.
        kept = [
            self._parameter(s, row, t.index(0)) if not s.shared and (scaled or s is self.zero) else "" for s in scales
        ]

        def vector(d: str) -> str:
            x = t.let(f"arith.ext{self.extension} {self._bytes(row, d)} : vector<{w}xi8> to {t.ivec}")
            if self.zero is not None:
                x = t.arith("subi", x, kept[1] or self._parameter(self.zero, row, d), t.ivec)
            x = t.let(f"arith.sitofp {x} : {t.ivec} to {t.vec}")
            return self._product(x, kept[0] or self._parameter(self.scale, row, d), f"{w}x") if scaled else x

        return vector

    def _parameter(self, s: Scales, row: str, d: str) -> str:
        """The scales as f32, or zero points as i32, of the numbers from a head dim on."""
        t = self.t
        if s.shared == 1:
            x = t.read(s.value, s.type, *[row] * s.rows, d, element=s.element)
        else:
            x = t.broadcast(s.at(t, row, d), s.element)
        if s is self.scale:
            return self._widened(x, f"{t.width}x")
        return t.let(f"arith.ext{self.extension} {x} : vector<{t.width}xi8> to {t.ivec}")

    def _bytes(self, row: str, d: str) -> str:
        """The integers of a vector as i8."""
        t, w = self.t, self.t.width
        zero = t.constant("0", "i8")
        count = w // 2 if self.packed else w
        at = t.arith("divui", d, t.index(2)) if self.packed else d
        x = t.let(
            f"vector.transfer_read {self.tensor}[{row}, {at}], {zero} {{in_bounds = [true]}} : {self.type}, vector<{count}xi8>"
        )
        if not self.packed:
            return x
        half = f"vector<{count}xi8>"
        four = t.constant("dense<4>", half)
        shift = "shrui" if self.extension == "ui" else "shrsi"
        low, high = t.arith(shift, t.arith("shli", x, four, half), four, half), t.arith(shift, x, four, half)
        order = [i + half_ * count for i in range(count) for half_ in (0, 1)]
        return t.let(f"vector.shuffle {low}, {high} {order} : {half}, {half}")

    def _product(self, integer: str, scale: str, lanes: str) -> str:
        """Their product, rounded to the type of the scale."""
        t = self.t
        wide, bits, own = (f"vector<{lanes}{e}>" if lanes else e for e in ("f32", "i32", self.scale.element))
        x = t.arith("mulf", integer, scale, wide)
        if self.scale.element != "bf16":
            return x if own == wide else self._widened(t.let(f"arith.truncf {x} : {wide} to {own}"), lanes)

        def number(value: int) -> str:
            return t.constant(f"dense<{value}>" if lanes else str(value), bits)

        # Half to even by hand: the compiler takes truncf and extf together for nothing.
        x = t.let(f"arith.bitcast {x} : {wide} to {bits}")
        odd = t.arith("andi", t.arith("shrui", x, number(16), bits), number(1), bits)
        x = t.arith("addi", t.arith("addi", x, number(0x7FFF), bits), odd, bits)
        return t.let(f"arith.bitcast {t.arith('andi', x, number(-0x10000), bits)} : {bits} to {wide}")

    def _widened(self, x: str, lanes: str) -> str:
        """A scale as f32."""
        if self.scale.element == "f32":
            return x
        types = [f"vector<{lanes}{e}>" if lanes else e for e in (self.scale.element, "f32")]
        return self.t.let(f"arith.extf {x} : {types[0]} to {types[1]}")

"""Rotary embedding (Su et al. 2021, "RoFormer", arXiv:2104.09864) of heads that lie side by side in a row, in one dispatch: with
a pair of numbers i and i + D/2 of a head,

    y[i] = x[i] cos[i] - x[i + D/2] sin[i],    y[i + D/2] = x[i] sin[i] + x[i + D/2] cos[i]

The heads may be some columns of longer rows, such as those of queries, keys and values that one product makes: they are read where
they lie. A workgroup takes a row.
"""

from __future__ import annotations

from dataclasses import dataclass

from onnx_fa.kernels.cpu.row_dispatch import call_dispatch, joined, load, make_executable, store
from onnx_fa.kernels.mlir.called import function_text
from onnx_fa.kernels.mlir.operand import ROWS, Operand
from onnx_fa.kernels.mlir.vectors import Lanes
from onnx_fa.spec.target import Target
from onnx_fa.spec.terms import Dim


@dataclass(frozen=True)
class RotatedHeads:
    """`heads` of D numbers, from column `first` on, of `rows` (None: known at run time only) of `width` numbers, all f32."""

    rows: int | None
    width: int
    first: int
    heads: int
    D: int

    @property
    def lead(self) -> Dim:
        return ROWS if self.rows is None else self.rows

    @property
    def name(self) -> str:
        return f"{self.symbol}_of"

    @property
    def symbol(self) -> str:
        """Of the dispatch."""
        return f"rotate_{'n' if self.rows is None else self.rows}x{self.width}_{self.first}_{self.heads}x{self.D}_rows"

    @property
    def operands(self) -> tuple[Operand, ...]:
        """x (rows, width), cos and sin (rows, D / 2)."""
        half = (self.lead, self.D // 2)
        return (
            Operand("%x", (self.lead, self.width), "f32"),
            Operand("%cos", half, "f32"),
            Operand("%sin", half, "f32"),
        )

    @property
    def y(self) -> Operand:
        """(rows, heads * D)."""
        return Operand("%y", (self.lead, self.heads * self.D), "f32")

    def lanes(self, target: Target) -> int:
        """Of the longest vector that half a head is made of; 0 where that is short."""
        return 0 if self.D % 2 else target.lanes_dividing(self.D // 2)

    def texts(self, target: Target) -> dict[str, str]:
        """The executable and the function of the name, which takes the operands and returns y, by their symbols."""
        t = Lanes(self.lanes(target))
        made = call_dispatch(t, self.symbol, self.operands, [x.name for x in self.operands], [self.y])
        function = function_text(self.name, self.operands, [self.y], t, made)
        return {self.symbol: joined(_text(self, target)), self.name: joined(function)}


def _text(spec: RotatedHeads, target: Target) -> list[str]:
    t, half, wide = Lanes(spec.lanes(target)), spec.D // 2, spec.heads * spec.D
    row, zero = t.let("flow.dispatch.workgroup.id[0] : index"), t.index(0)
    x, *tables = spec.operands
    values, x_type = load(t, x, "readonly", [row, str(spec.first)], (1, wide))
    cos, sin = (load(t, table, "readonly", [row, "0"], (1, half)) for table in tables)
    y = load(t, spec.y, "writeonly", [row, "0"], (1, wide))

    def rotate(head: str, carried: list[str]) -> list[str]:
        (made,) = carried
        start = t.arith("muli", head, t.index(spec.D))
        for step in range(0, half, t.width):
            low, high = t.shifted(start, step), t.shifted(start, step + half)
            first, second = (t.read(values, x_type, zero, at) for at in (low, high))
            c, s = (t.read(*table, zero, t.index(step)) for table in (cos, sin))
            real = t.vop("arith.subf", t.vop("arith.mulf", first, c), t.vop("arith.mulf", second, s))
            imaginary = t.vop("arith.addf", t.vop("arith.mulf", first, s), t.vop("arith.mulf", second, c))
            made = t.write(real, made, y[1], zero, low)
            made = t.write(imaginary, made, y[1], zero, high)
        return [made]

    (made,) = t.loop((zero, t.index(spec.heads), t.index(1)), [y], rotate)
    store(t, made, y[1], spec.y, [row, "0"], (1, wide))
    groups = [f"%x = arith.constant {spec.rows} : index"]
    if spec.rows is None:
        groups = ["%zero = arith.constant 0 : index", "%x = arith.addi %rows, %zero : index"]
    return make_executable(spec.symbol, spec.operands, [spec.y], groups, t.render())

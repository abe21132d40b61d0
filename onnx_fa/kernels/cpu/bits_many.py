"""A product of many rows with a weight of a few bits: a block of the weight becomes f32 on the stack, once for all rows of a
workgroup, and is multiplied as weights of f32 are (linear_staged.py).

The weight stays as it is for a few rows, by its own rows, along which K runs. The columns of a panel are rows of it, of which one
word of 32 bits each is read into a lane of a vector; a shift brings each of its numbers to the lowest place.
"""

from __future__ import annotations

from dataclasses import asdict, replace

from onnx_fa.kernels.cpu.bits_spec import BitsProduct
from onnx_fa.kernels.cpu.bits_table import all_numbers, has_table, looked_up
from onnx_fa.kernels.cpu.linear_body import FEW, LinearTiles
from onnx_fa.kernels.cpu.linear_measured import find_tiles
from onnx_fa.kernels.cpu.linear_staged import DEEP, StagedBody
from onnx_fa.kernels.cpu.row_dispatch import tile_height
from onnx_fa.kernels.cpu.workgroups import WORKERS
from onnx_fa.kernels.mlir.operand import Operand
from onnx_fa.kernels.tiles.origin import BY_RULE, Origin, built_in, measured
from onnx_fa.spec.linear import Bits, LinearSpec
from onnx_fa.spec.target import Target

BODY = "linear_bits"
"""What families of the tuning database call the kernel."""
_WORD = 32
_VECTORS = 2
"""Of a panel."""
_DOWN, _ACROSS = 8, 2
"""Tiles of rows and panels of a workgroup."""


def can_stage(product: BitsProduct, target: Target) -> bool:
    """Whether the weight has as many rows as a panel, words do not hold numbers of two blocks, and blocks divide a staged one or
    are divided by it."""
    whole_words = product.block * product.bits % _WORD == 0
    return _VECTORS * target.lanes <= product.N and whole_words and DEEP % min(product.block, DEEP) == 0


def spec_of(product: BitsProduct) -> LinearSpec:
    """The linear site that a product is."""
    kept = Bits(product.bits, product.block, product.scales, product.zeros)  # type: ignore[arg-type]  # the graph's own words
    return LinearSpec((product.lead,), product.K, product.N, "f32", True, kept)


def product_of(spec: LinearSpec) -> BitsProduct:
    """The product of a linear site with a weight of a few bits."""
    assert spec.bits is not None
    return BitsProduct(spec.rows, spec.N, spec.K, spec.bits.block, spec.bits.bits, spec.bits.scales, spec.bits.zeros)


def origin_of(product: BitsProduct, target: Target) -> Origin:
    """The tiles of many rows, and where they are from."""
    if product.rounded or not has_many(product, target):
        return BY_RULE
    found = find_tiles(spec_of(product), target, BODY)
    if found is not None:
        return measured(found)
    return built_in(asdict(_tiles_by_rule(product, target)), f"nothing was measured of {product.bits} bits by {BODY}")


def has_many(product: BitsProduct, target: Target) -> bool:
    """Whether there is a form for many rows."""
    return can_stage(product, target) and (product.rows is None or product.rows > FEW)


def tiles_of(product: BitsProduct, target: Target) -> LinearTiles:
    """The fastest tiles that were measured on the nearest case, or, where none was, such as leave few rows over."""
    found = find_tiles(spec_of(product), target, BODY)
    return _tiles_by_rule(product, target) if found is None else LinearTiles(**found.choice.tiles)


def _tiles_by_rule(product: BitsProduct, target: Target) -> LinearTiles:
    most = 8 if target.has_many_registers else 5
    rows = product.rows
    tall = most if rows is None else tile_height(rows, range(min(most, rows), most // 2, -1), most)
    return LinearTiles(target.lanes, tall, 4, _DOWN, _ACROSS)


def words_of(product: BitsProduct) -> list[Operand]:
    """The operands as the dispatch has them: the weight in words."""
    x, weight, *rest = product.operands
    return [x, replace(weight, shape=(product.N, product.K * product.bits // _WORD), element="i32"), *rest]


class StagedBits(StagedBody):
    """Products of f32 with what integers of a few bits become."""

    widens_in_registers = False

    def __init__(self, product: BitsProduct, tiles: LinearTiles) -> None:
        panel = tiles.vectors * tiles.lanes
        super().__init__(LinearSpec((product.lead,), product.K, product.N, "f32", panel=panel), tiles, WORKERS)
        self.p, self.operands = product, words_of(product)
        self.by_table = has_table(product.bits, tiles.lanes)

    def _stage_weight(self, panel: str, column: str) -> None:
        t, p = self.t, self.p
        deep, a_word = min(p.block, DEEP), _WORD // p.bits
        for j in range(self.vectors):
            rows = [t.shifted(column, t.width * j + i) for i in range(t.width)]

            def block(first: str, rows: list[str] = rows, j: int = j) -> None:
                at = t.arith("addi", self.start, first)
                scale, zero = self._factors(rows, t.arith("divui", at, t.index(p.block)))
                begin = t.arith("divui", at, t.index(a_word))

                def word(w: str) -> None:
                    words = self._column("%weight", rows, t.arith("addi", begin, w), "i32")
                    to = t.arith("addi", first, t.arith("muli", w, t.index(a_word)))
                    for place in range(a_word):
                        number = t.vop("arith.mulf", self._less(self._number_at(words, place), zero), scale)
                        t.write(number, self.w_block, self.w_type, t.shifted(to, place), t.index(t.width * j))

                self._each(t.index(deep // a_word), 1, word)

            self._each(self.size, deep, block)

    def _factors(self, rows: list[str], block: str) -> tuple[str, str]:
        """The scales of a block of some rows of the weight, and their zero points ("" where `_number_at` knows them)."""
        t, p = self.t, self.p
        scale = self._wide(self._column("%scale", rows, block, p.scales), p.scales)
        if p.zeros != "packed":
            return scale, self._wide(self._column("%zero", rows, block, p.zeros), p.zeros) if p.zeros else ""
        bytes_ = self._column("%zero", rows, t.arith("divui", block, t.index(p.places)), "i8")
        whole = t.let(f"arith.extui {bytes_} : {t.type('i8')} to {t.ivec}")
        if p.places > 1:
            place = t.arith("muli", t.arith("remui", block, t.index(p.places)), t.index(p.bits))
            by = t.broadcast(t.let(f"arith.index_cast {place} : index to i32"), "i32")
            whole = t.arith("andi", t.arith("shrui", whole, by, t.ivec), self._mask(), t.ivec)
        return scale, t.let(f"arith.sitofp {whole} : {t.ivec} to {t.vec}")

    def _column(self, name: str, rows: list[str], at: str, element: str) -> str:
        """An element of each of some rows."""
        value, type_ = self.loaded[name]
        each = [self.t.extract(value, type_, row, at) for row in rows]
        return self.t.let(f"vector.from_elements {', '.join(each)} : {self.t.type(element)}")

    def _wide(self, value: str, element: str) -> str:
        return value if element == "f32" else self.t.let(f"arith.extf {value} : {self.t.type(element)} to {self.t.vec}")

    def _mask(self) -> str:
        return self.t.dense(str((1 << self.p.bits) - 1), "i32")

    def _number_at(self, words: str, place: int) -> str:
        """The numbers at a place of some words, less the middle of the range where no zero point is an operand."""
        t, p = self.t, self.p
        least = 0 if p.zeros else -p.middle
        if place:
            words = t.arith("shrui", words, t.dense(str(p.bits * place), "i32"), t.ivec)
        if self.by_table:
            return looked_up(t, all_numbers(t, t.vec, least), words)
        if p.bits * (place + 1) < _WORD:
            words = t.arith("andi", words, self._mask(), t.ivec)
        if least:
            words = t.arith("addi", words, t.dense(str(least), "i32"), t.ivec)
        return t.let(f"arith.sitofp {words} : {t.ivec} to {t.vec}")

    def _less(self, number: str, zero: str) -> str:
        return self.t.vop("arith.subf", number, zero) if zero else number

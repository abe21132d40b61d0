"""Products of bf16 (AVX512_BF16) for queries along the lanes, each of which takes two head dims or keys in a lane.

    S^T[k, q] += K[k, 2 d] Q[q, 2 d] + K[k, 2 d + 1] Q[q, 2 d + 1]

Q^T, blocks of K and V, and the probabilities are kept as pairs of bf16: the lower half of an f32's place holds the even head dim
(of Q and K) or key (of P and V). Products are exact and sums f32; what is not bf16 is rounded to it, and probabilities always are.
Scores, maxima and sums are f32 as with other products.
"""

from __future__ import annotations

from collections.abc import Callable

from onnx_fa.errors import UnsupportedError
from onnx_fa.kernels.cpu.key_rows import passes_last_key, row_at
from onnx_fa.kernels.cpu.operands import Operands
from onnx_fa.kernels.cpu.state import Block, Slab
from onnx_fa.kernels.cpu.tile_loops import copy_rows, over_rows, over_tiles
from onnx_fa.kernels.mlir.text import tensor_type
from onnx_fa.spec.attention import AttentionSpec


def check_dot(spec: AttentionSpec) -> None:
    """Raises UnsupportedError for what has no products of bf16."""
    if spec.quantized or spec.rounding is not None:
        raise UnsupportedError("products of bf16: K, V or probabilities are integers")
    if spec.D % 2 or spec.D < 8 or spec.Dv < 4:
        raise UnsupportedError(f"products of bf16: head dims {spec.D} and {spec.Dv} do not fill pairs of lanes")


class PairProducts:
    """Products of pairs of bf16. Raises UnsupportedError for what `check_dot` refuses, and for tiles of an odd number of keys, or
    of more lanes than D / 2 or Dv."""

    per_step = 2

    def __init__(self, operands: Operands, query_factor: float) -> None:
        spec, config = operands.spec, operands.config
        check_dot(spec)
        if config.tile_keys % 2 or min(spec.D // 2, spec.Dv) < config.lanes:
            raise UnsupportedError(f"products of bf16: tiles {config} do not fit head dims {spec.D} and {spec.Dv}")
        self.operands, self.query_factor = operands, query_factor
        self.t = operands.t
        self.queries_type = tensor_type((spec.D // 2, config.BM), "f32")
        self.copied_type = tensor_type((config.BK, max(spec.D // 2, spec.Dv)), "f32")
        self.halves = f"vector<{2 * config.lanes}xbf16>"

    # Pairs.

    def rounded(self, low: str, high: str) -> str:
        """Two vectors of f32, one after the other, as bf16."""
        op = f'llvm.call_intrinsic "llvm.x86.avx512bf16.cvtne2ps2bf16.{32 * self.t.width}"({high}, {low})'
        return self.t.let(f"{op} : ({self.t.vec}, {self.t.vec}) -> {self.halves}")

    def as_pairs(self, halves: str) -> str:
        """Neighbours as pairs."""
        return self.t.let(f"vector.bitcast {halves} : {self.halves} to {self.t.vec}")

    def interleaved(self, halves: str) -> str:
        """Pairs of the numbers at the same place of the two halves of a vector."""
        return self.shuffled(halves, halves, self.halves)

    def shuffled(self, low: str, high: str, type_: str) -> str:
        """Pairs of numbers i and W + i, for i below W, of two vectors of a type, one behind the other."""
        order = [i + part for i in range(self.t.width) for part in (0, self.t.width)]
        return self.as_pairs(self.t.let(f"vector.shuffle {low}, {high} {order} : {type_}, {type_}"))

    def neighbours(self, slab: Slab, row: str, pair: str) -> str:
        """W pairs of neighbours in a row."""
        t, at = self.t, self.t.arith("muli", pair, self.t.index(2))
        if slab.element != "bf16":
            low, high = (self.operands.read_f32(slab, row, t.shifted(at, n)) for n in (0, t.width))
            return self.as_pairs(self.rounded(low, high))
        zero = t.constant("0.0", "bf16")
        read = f"vector.transfer_read {slab.value}[{row}, {at}], {zero} {{in_bounds = [true]}}"
        return self.as_pairs(t.let(f"{read} : {slab.type}, {self.halves}"))

    def one_pair(self, slab: Slab, low: tuple[str, str], high: tuple[str, str]) -> str:
        """Two numbers of a slab as a scalar pair."""
        t, bits = self.t, []
        for at in (low, high):
            x = self.operands.extract(slab, *at)
            half = t.let(f"arith.truncf {x} : f32 to bf16")
            short = t.let(f"arith.bitcast {half} : bf16 to i16")
            bits.append(t.let(f"arith.extui {short} : i16 to i32"))
        upper = t.arith("shli", bits[1], t.constant("16", "i32"), "i32")
        return t.let(f"arith.bitcast {t.arith('ori', bits[0], upper, 'i32')} : i32 to f32")

    # Operands.

    def load_queries(self) -> str:
        """Pairs of Q^T, D/2 x BM, without the scale, which would have to be rounded: see `scale_score`."""
        t, w, pairs = self.t, self.t.width, self.operands.spec.D // 2
        empty = self.empty_queries()

        def by_one(d: str, row: str, out: str) -> str:
            even, odd = self.two(d)
            for lane in range(w):
                column = t.shifted(row, lane)
                query = self.operands.query_row(column)
                x = self.one_pair(self.operands.q, (query, even), (query, odd))
                out = t.insert(x, out, self.queries_type, d, column)
            return out

        def body(row: str, d: str, out: str) -> str:
            rows = [self.neighbours(self.operands.q, self.operands.query_row(t.shifted(row, i)), d) for i in range(w)]
            for i, x in enumerate(t.transpose(rows)):
                out = t.write(x, out, self.queries_type, t.shifted(d, i), row)
            return out

        if self.operands.q.swapped:
            return over_rows(t, self.operands.config.BM, pairs, empty, self.queries_type, by_one)
        return over_tiles(t, self.operands.config.BM, pairs, empty, self.queries_type, body)

    def empty_queries(self) -> str:
        """The tile of queries, before any is in it."""
        return self.t.empty(self.queries_type)

    def two(self, pair: str) -> tuple[str, str]:
        """The two places of a pair."""
        even = self.t.arith("muli", pair, self.t.index(2))
        return even, self.t.shifted(even, 1)

    def copy_keys(self, tile: str, block: Block) -> str:
        """A row per key, of pairs of head dims."""

        def pairs(i: str) -> Callable[[str], str]:
            key = row_at(self.operands, block, i).stored

            def pair(d: str) -> str:
                even, odd = self.two(d)
                return self.one_pair(self.operands.k, (key, even), (key, odd))

            return pair if self.operands.k.swapped else lambda d: self.neighbours(self.operands.k, key, d)

        return copy_rows(
            self.t, self.copied_type, tile, block.rows, self.operands.spec.D // 2, pairs, self.operands.k.swapped
        )

    def copy_values(self, tile: str, block: Block) -> str:
        """A row per two keys, of pairs of these."""
        steps = self.t.arith("divui", block.rows, self.t.index(2))
        width, v = self.operands.spec.Dv, self.operands.v
        return copy_rows(self.t, self.copied_type, tile, steps, width, lambda i: self.values_of(block, i), v.swapped)

    def values_of(self, block: Block, two: str) -> Callable[[str], str]:
        """The values of two keys by head dim: a pair where V is swapped, else W pairs. Past the last key they are zeros, for 0
        times an infinite value is NaN."""
        t, v = self.t, self.operands.v
        rows = [row_at(self.operands, block, x) for x in self.two(two)]
        even, odd = (row.stored for row in rows)
        known = self.halves_of_keys(rows[0].key, rows[1].key) if passes_last_key(self.operands, block) else None

        def pair(d: str) -> str:
            return self.kept(self.one_pair(v, (even, d), (odd, d)), known, "f32", "i32")

        def vector(d: str) -> str:
            if v.element != "bf16":
                found = self.interleaved(self.rounded(*(self.operands.read_f32(v, row, d) for row in (even, odd))))
            else:
                low, high = (t.read(v.value, v.type, row, d, element="bf16") for row in (even, odd))
                found = self.shuffled(low, high, t.type("bf16"))
            return self.kept(found, known and t.broadcast(known, "i32"), t.vec, t.ivec)

        return pair if v.swapped else vector

    def halves_of_keys(self, even: str, odd: str) -> str:
        """The bits of a pair's halves whose keys there are, as i32."""
        t = self.t
        found = t.constant("0", "i32")
        for key, bits in ((even, 0xFFFF), (odd, -1)):
            inside = t.arith("cmpi slt,", key, self.operands.skv)
            found = t.let(f"arith.select {inside}, {t.constant(str(bits), 'i32')}, {found} : i32")
        return found

    def kept(self, pair: str, bits: str | None, floats: str, integers: str) -> str:
        """A pair of bf16, or a vector of pairs, of whose bits only those stay; None for all."""
        if bits is None:
            return pair
        t = self.t
        whole = t.let(f"arith.bitcast {pair} : {floats} to {integers}")
        return t.let(f"arith.bitcast {t.arith('andi', whole, bits, integers)} : {integers} to {floats}")

    # One block of keys.

    def multiply(self, scalar: str, vector: str, total: str) -> str:
        t = self.t
        a, b = (t.let(f"vector.bitcast {x} : {t.vec} to {self.halves}") for x in (scalar, vector))
        op = f'llvm.call_intrinsic "llvm.x86.avx512bf16.dpbf16ps.{32 * t.width}"({total}, {a}, {b})'
        return t.let(f"{op} : ({t.vec}, {self.halves}, {self.halves}) -> {t.vec}")

    def scale_score(self, product: str) -> str:
        return self.t.vop("arith.mulf", product, self.t.splat(self.query_factor))

    def join_weights(self, weights: list[str]) -> str:
        return self.interleaved(self.rounded(*weights))

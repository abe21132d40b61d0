"""The body of the vector-level attention dispatch: what one workgroup does, as MLIR text.

A workgroup owns BM queries of one head. It keeps Q^T (D x BM, scaled), O^T (Dv x BM) and the scores S^T of one block
of BK keys (BK x BM) on its stack, and walks the keys with the running maximum m and sum l of online softmax:

    S^T = K Q^T;  m' = max(m, S);  P = 2^(S - m');  l = l 2^(m - m') + sum P;  O^T = O^T 2^(m - m') + V^T P

With queries along the lanes the row statistics are plain vectors, and K and V are read as scalars that are broadcast
into fused multiply-adds, in whatever layout they have. Scores are in units of log2, so that exp is exp2.

Index masks (causal, window) decide which key blocks are visited: blocks that no query sees are skipped, blocks that
every query sees run without a compare, and only the blocks on an edge test positions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from onnx_fa.kernels.cpu.block_walk import KeyWalk
from onnx_fa.kernels.cpu.dequantize import Integers
from onnx_fa.kernels.cpu.state import Block, Row, Slab, SoftmaxState
from onnx_fa.kernels.cpu.tile_loops import copy_rows, fma_tile, over_rows, over_tiles, statistic
from onnx_fa.kernels.cpu.tiles import VectorConfig
from onnx_fa.kernels.mlir.text import tensor_type
from onnx_fa.kernels.plan.score import MAX_START, tile_slots
from onnx_fa.spec.attention import AttentionSpec
from onnx_fa.spec.expr import ScoreExpr

_LOWERING = (
    "#iree_cpu.lowering_config<distribution = [0, 0], vector_common_parallel = [0, 0], vector_reduction = [0, 0]>"
)


class VectorBody(KeyWalk):
    """Writes the dispatch's function for one spec. Arguments: those of `operand_names`, `dims` for the symbols, %out."""

    PER_STEP = 1
    """How many head dims, or keys, one step of a product takes."""

    def __init__(self, spec: AttentionSpec, config: VectorConfig, splits: int = 1) -> None:
        super().__init__(spec, config, splits)
        self.queries_type = tensor_type((spec.D // self.PER_STEP, config.BM), "f32")
        self.tiles: dict[ScoreExpr, list[str]] = {}

    def render(self) -> list[str]:
        """The operations of the function, without its return."""
        t = self.t
        self.queries = self.load_queries()
        config = f"{{lowering_config = {_LOWERING}}}"
        empty = t.let(f"tensor.empty() : {self.acc_type}")
        acc = t.let(f"linalg.fill {config} ins({t.f32(0.0)} : f32) outs({empty} : {self.acc_type}) -> {self.acc_type}")
        scratch = tuple(t.let(f"tensor.empty() : {s}") for s in self.scratch_types)
        scores = t.let(f"tensor.empty() : {self.tile_type}")
        best, total = (t.splat(MAX_START),) * self.vectors, (t.splat(0.0),) * self.vectors
        if self.sink:  # one more logit, without a value
            best = tuple(t.maximum(x, t.splat(MAX_START)) for x in self.sink)
            total = tuple(self.once(self.first_sum(x, b)) for x, b in zip(self.sink, best, strict=True))
        state = self.attended(SoftmaxState(acc, scores, scratch, best, total))
        divided = replace(state, total=self.divisors(state.total))
        results = [(self.out, self.finish_output(divided))]
        results += [(slab, self.row_statistic(i, state)) for i, slab in enumerate(self.stats)]
        if self.splits > 1:
            best = self.unless_empty(divided.best, 0.0)  # of an infinite sink, what the parts weigh would be NaN
            results.append((self.part_best, self.row_numbers(self.part_best, best)))
            results.append((self.part_total, self.row_numbers(self.part_total, self.sums(divided.total))))
        for (slab, result), (name, shape, element) in zip(results, self.outputs, strict=True):
            t.do(
                f"iree_tensor_ext.dispatch.tensor.store {result}, {name}, {slab.place} : {slab.type} -> "
                f"{self.binding('writeonly', shape, element)}"
            )
        return t.render()

    def attended(self, state: SoftmaxState) -> SoftmaxState:
        """The state after all keys."""
        return self.all_keys(state)

    def divisors(self, total: tuple[str, ...]) -> tuple[str, ...]:
        """The sums that the output is divided by. Without any keys they are 1, so that the output is 0."""
        return self.unless_empty(total, 1.0)

    def unless_empty(self, vectors: tuple[str, ...], number: float) -> tuple[str, ...]:
        """The vectors, or without any keys this number in all of them."""
        if isinstance(self.spec.Skv, int):
            return vectors
        t = self.t
        none = t.let(f"arith.cmpi eq, {self.skv}, {t.index(0)} : index")
        return tuple(t.let(f"arith.select {none}, {t.splat(number)}, {x} : {t.vec}") for x in vectors)

    def sums(self, total: tuple[str, ...]) -> tuple[str, ...]:
        """The sum of each query."""
        return total

    def row_numbers(self, slab: Slab, vectors: tuple[str, ...]) -> str:
        """A number per query, from vectors of queries: the tensor of that result."""
        t = self.t
        tile, type_ = slab.value, slab.type
        if self.few_queries:
            tile, type_ = t.let(f"tensor.empty() : {self.row_type}"), self.row_type
        for j, x in enumerate(vectors):
            tile = t.write(x, tile, type_, self.lane(j))
        if not self.few_queries:
            return tile

        def copy(row: str, carried: list[str]) -> list[str]:
            """One by one: of vectors that reach over the end, all but the first would be lost (docs/developer/iree-bugs.md)."""
            x = t.let(f"tensor.extract {tile}[{row}] : {type_}")
            return [t.let(f"tensor.insert {x} into {carried[0]}[{row}] : {slab.type}")]

        return t.loop((t.index(0), self.rows, t.index(1)), [(slab.value, slab.type)], copy)[0]

    def once(self, x: str) -> str:
        """x in the first split of the keys, 0 in the others."""
        if self.splits == 1:
            return x
        first = self.t.let(f"arith.cmpi eq, {self.split}, {self.t.index(0)} : index")
        return self.t.let(f"arith.select {first}, {x}, {self.t.splat(0.0)} : {self.t.vec}")

    def first_sum(self, sink: str, best: str) -> str:
        """What a sink adds to the sums of a vector of queries."""
        return self.t.exp2(self.t.vop("arith.subf", sink, best))

    # Into and out of the layout with queries along the lanes.

    @property
    def query_factor(self) -> float:
        """What queries are multiplied by: the scale, and the first softcap or the change of unit."""
        return self.spec.scale / self.spec.mods[0].cap if self.spec.mods else self.spec.scale * self.unit

    def load_queries(self) -> str:
        """Q^T, D x BM, times the scale (and log2 e, where nothing needs scores as they are)."""
        t, spec, wide = self.t, self.spec, self.t.width <= self.spec.D
        factor = self.query_factor
        scale = t.splat(factor)

        def swapped(d: str, row: str, out: str) -> str:
            if self.few_queries:  # one by one, so that the last query is repeated
                for lane in range(t.width):
                    column = t.shifted(row, lane)
                    x = t.arith("mulf", self.extract(self.q, self.query_row(column), d), t.f32(factor), "f32")
                    out = t.let(f"tensor.insert {x} into {out}[{d}, {column}] : {self.queries_type}")
                return out
            x = self.read_f32(self.q, d, row)
            return t.write(t.vop("arith.mulf", x, scale), out, self.queries_type, d, row)

        def body(row: str, d: str, out: str) -> str:
            rows = [self.read_f32(self.q, self.query_row(t.shifted(row, i)), d, wide) for i in range(t.width)]
            for i, x in enumerate(t.transpose([t.vop("arith.mulf", x, scale) for x in rows])[: spec.D]):
                out = t.write(x, out, self.queries_type, t.shifted(d, i), row)
            return out

        empty = t.let(f"tensor.empty() : {self.queries_type}")
        if self.q.swapped:
            return over_rows(t, self.config.BM, spec.D, empty, self.queries_type, swapped)
        return over_tiles(t, self.config.BM, spec.D, empty, self.queries_type, body)

    def inverse(self, total: str) -> str:
        """1 / l of a vector of sums, or what stands for it in rows without a key."""
        t, zero = self.t, self.t.splat(0.0)
        if self.splits > 1:
            return t.splat(1.0)
        inverse = t.vop("arith.divf", t.splat(1.0), total)
        if self.spec.empty_row == "zero":
            return t.select(t.compare("oeq", total, zero), zero, inverse)
        if self.spec.empty_row == "guarded":
            return t.select(t.compare("ogt", total, zero), inverse, zero)
        return inverse

    def guarded(self, x: str, total: str) -> str:
        """x, but zero where the probabilities are NaN."""
        return self.t.select(self.t.compare("ord", total, total), x, self.t.splat(0.0))

    def write_out(self, x: str, result: str, row: str, column: str, inside: bool) -> str:
        """The result with a vector of it replaced, in its element type."""
        t, out = self.t, self.out
        if out.element != "f32":
            x = t.let(f"arith.truncf {x} : {t.vec} to vector<{t.width}x{out.element}>")
        return t.write(x, result, out.type, row, column, element=out.element, in_bounds=inside)

    def finish_output(self, state: SoftmaxState) -> str:
        """O = (O^T / l)^T. Rows without a key have l = 0: they are NaN (0 * inf), or 0 if the spec says so."""
        t, spec, out = self.t, self.spec, self.out
        guarded = spec.empty_row == "guarded" and self.splits == 1
        inverses = t.let(f"tensor.empty() : {self.row_type}")
        sums = t.let(f"tensor.empty() : {self.row_type}") if guarded else ""
        for j, total in enumerate(state.total):
            if guarded:
                sums = t.write(total, sums, self.row_type, self.lane(j))
            inverses = t.write(self.inverse(total), inverses, self.row_type, self.lane(j))

        def value(d: str, row: str) -> str:
            x = t.vop("arith.mulf", t.read(state.acc, self.acc_type, d, row), t.read(inverses, self.row_type, row))
            return self.guarded(x, t.read(sums, self.row_type, row)) if guarded else x

        def write(x: str, result: str, at: str, column: str, inside: bool) -> str:
            return self.write_out(x, result, at, column, inside)

        def body(row: str, d: str, result: str) -> str:
            columns = [value(t.shifted(d, i), row) for i in range(min(t.width, spec.Dv))]
            columns += [t.splat(0.0)] * (t.width - len(columns))
            for i, x in enumerate(t.transpose(columns)):
                result = write(x, result, self.query_row(t.shifted(row, i)), d, spec.Dv >= t.width)
            return result

        if out.swapped:
            columnwise = lambda d, row, result: write(value(d, row), result, d, row, not self.few_queries)  # noqa: E731
            return over_rows(t, self.config.BM, spec.Dv, out.value, out.type, columnwise)
        return over_tiles(t, self.config.BM, spec.Dv, out.value, out.type, body)

    def row_statistic(self, i: int, state: SoftmaxState) -> str:
        """A row statistic of every query, as the tensor of that result."""
        which, totals = self.spec.stats[i], self.sums(state.total)
        numbers = [statistic(self.t, which, best, total) for best, total in zip(state.best, totals, strict=True)]
        return self.row_numbers(self.stats[i], tuple(numbers))

    # One block of keys.

    def product(self, scalar: str, vector: str, acc: str) -> str:
        """acc plus one step of a product, `scalar` in all lanes."""
        return self.t.vop("vector.fma", scalar, vector, acc)

    def one_step(self, weights: list[str]) -> str:
        """What one step of the product with V takes of the probabilities, PER_STEP keys of them."""
        return weights[0]

    def in_steps(self, keys: str) -> str:
        """A number of keys in steps of the product with V."""
        return keys if self.PER_STEP == 1 else self.t.arith("divui", keys, self.t.index(self.PER_STEP))

    def raw_score(self, x: str) -> str:
        """A product of Q and K with the factor of the queries."""
        return x

    def copied_keys(self, tile: str, block: Block) -> str:
        """The block of K as the product takes it."""
        return self.widened(self.k, self.k_integers, self.spec.D, tile, block)

    def copied_values(self, tile: str, block: Block) -> str:
        return self.widened(self.v, self.v_integers, self.spec.Dv, tile, block)

    def widened(self, slab: Slab, integers: Integers | None, width: int, tile: str, block: Block) -> str:
        """Copies a block of K or V to f32: once per block instead of once per use."""
        by_one = slab.swapped or width < self.t.width if integers is None else not integers.in_vectors(width)

        def numbers(i: str) -> Callable[[str], str]:
            row = self.row(block, i).stored
            if by_one:
                return lambda d: self.extract(slab, row, d) if integers is None else integers.element(row, d)
            return integers.row(row) if integers is not None else lambda d: self.read_f32(slab, row, d)

        return copy_rows(self.t, self.wide_type, tile, block.rows, width, numbers, by_one)

    def row(self, block: Block, i: str) -> Row:
        """Row i of the block; past the last key, that key is read."""
        t = self.t
        key = t.arith("addi", block.k0, i)
        read = key
        if block.edge and self.ragged_keys:
            read = t.arith("minsi", key, t.arith("subi", self.skv, t.index(1)))
        return Row(i, key, read, self.row_of(read))

    def unroll(self, block: Block) -> int:
        """Few blocks are on an edge: there, short code matters more than the loop's overhead."""
        return min(self.config.unroll, 2) if block.edge else self.config.unroll

    def passes_last_key(self, block: Block) -> bool:
        """Whether rows of the block may lie past the last key, and then read that one's K and V."""
        skv = self.spec.Skv
        return block.edge and not (isinstance(skv, int) and skv % self.config.tile_keys == 0)

    def keys_with_values(self, block: Block, unroll: int) -> tuple[str, int]:
        """How many keys of a block are multiplied with V, and so many at a time: rows past the last key would read the last one's
        value, and 0 times an infinite one is NaN. (Steps of several keys have zeros there.)"""
        if self.PER_STEP > 1 or not self.passes_last_key(block):
            return block.rows, unroll
        return self.unexplained(self.t.arith("minsi", block.rows, self.t.arith("subi", self.skv, block.k0))), 1

    def block(self, state: SoftmaxState, block: Block) -> SoftmaxState:
        spec, scratch = self.spec, list(state.scratch)
        self.tiles = tiles = dict[ScoreExpr, list[str]]()
        at = 0
        for part in self.parts:
            end = at + tile_slots(part, spec.tensors)
            if not block.clear or part in self.clear_parts:
                scratch[at:end] = tiles[part] = self.mask_tile(part, scratch[at:end], block)
            at = end
        if self.widen:
            scratch[-1] = self.copied_keys(scratch[-1], block)
        scores, best = self.scores(state, block, tiles, scratch)
        decay = self.decays(state.best, best)
        scores, total = self.probabilities(scores, best, decay, state.total, block)
        acc = self.values(state.acc, scores, decay, block, scratch)
        return SoftmaxState(acc, scores, tuple(scratch), tuple(best), tuple(total))

    def scores(
        self, state: SoftmaxState, block: Block, tiles: dict[ScoreExpr, list[str]], scratch: list[str]
    ) -> tuple[str, list[str]]:
        """S^T = K Q^T of the block, `tile_keys` keys at a time, masked; and the new maximum."""
        t, config = self.t, self.config

        def wide(i: str) -> Callable[[str], str]:
            return lambda d: t.let(f"tensor.extract {scratch[-1]}[{i}, {d}] : {self.wide_type}")

        def stored(key: str) -> Callable[[str], str]:
            return lambda d: self.extract(self.k, key, d)

        def body(i: str, carried: list[str]) -> list[str]:
            tile, best = carried[0], carried[1:]
            rows = [self.row(block, t.shifted(i, r)) for r in range(config.tile_keys)]
            scalars = [wide(row.at) if self.widen else stored(row.stored) for row in rows]
            zeros = [[t.splat(0.0)] * self.vectors] * config.tile_keys
            steps = self.spec.D // self.PER_STEP
            raw = fma_tile(t, self.product, scalars, steps, self.unroll(block), self.queries, self.queries_type, zeros)
            for row, vectors in zip(rows, raw, strict=True):
                for j, x in enumerate(vectors):
                    s = self.score(self.raw_score(x), row, j, block, tiles)
                    tile = t.write(s, tile, self.tile_type, row.at, self.lane(j))
                    best[j] = t.maximum(s, best[j])
            return [tile, *best]

        carried = [(state.scores, self.tile_type), *((b, t.vec) for b in state.best)]
        tile, *best = t.loop((t.index(0), block.rows, t.index(config.tile_keys)), carried, body)
        return tile, best

    def decays(self, old: Sequence[str], new: Sequence[str]) -> list[str]:
        """What sums and output so far are multiplied by, as the maximum grew from `old` to `new`."""
        return [self.t.exp2(self.t.vop("arith.subf", a, b)) for a, b in zip(old, new, strict=True)]

    def weight(self, s: str, best: str, total: str) -> str:
        """What values are multiplied by, for scores of a vector of queries, whose sum so far is `total`."""
        return self.t.exp2(self.t.vop("arith.subf", s, best))

    def probabilities(
        self, scores: str, best: list[str], decay: list[str], total: Sequence[str], block: Block
    ) -> tuple[str, list[str]]:
        """P = 2^(S - m) in the scores' place, as the product takes them, and the new sum (the block by itself first, which rounds
        less)."""
        t = self.t

        def body(i: str, carried: list[str]) -> list[str]:
            tile, sums = carried[0], carried[1:]
            place = self.in_steps(i)
            for j in range(self.vectors):
                weights = []
                for n in range(self.PER_STEP):
                    s = t.read(tile, self.tile_type, t.shifted(i, n), self.lane(j))
                    p = self.weight(s, best[j], total[j])
                    sums[j] = t.vop("arith.addf", sums[j], p)
                    if self.plan.weights is not None:
                        row = self.row(block, t.shifted(i, n))
                        p = self.expression(self.plan.weights, p, row, j, self.tiles)
                    weights.append(p)
                tile = t.write(self.one_step(weights), tile, self.tile_type, place, self.lane(j))
            return [tile, *sums]

        carried = [(scores, self.tile_type), *[(t.splat(0.0), t.vec)] * self.vectors]
        tile, *sums = t.loop((t.index(0), block.rows, t.index(self.PER_STEP)), carried, body)
        return tile, [t.vop("vector.fma", x, a, new) for x, a, new in zip(total, decay, sums, strict=True)]

    def values(self, acc: str, tile: str, decay: list[str], block: Block, scratch: list[str]) -> str:
        """O^T = O^T decay + V^T P, `tile_dims` head dims at a time (the block by itself first, which rounds less)."""
        t, config, dv = self.t, self.config, self.spec.Dv
        if self.widen:
            scratch[-1] = self.copied_values(scratch[-1], block)
        unroll = math.gcd(self.unroll(block), (config.tile_keys if block.edge else config.BK) // self.PER_STEP)
        keys, unroll = self.keys_with_values(block, unroll)
        steps = self.in_steps(keys)

        def column(d: str) -> Callable[[str], str]:
            if self.widen:
                return lambda i: t.let(f"tensor.extract {scratch[-1]}[{i}, {d}] : {self.wide_type}")
            return lambda i: self.extract(self.v, self.row(block, i).stored, d)

        def body(d: str, acc: str, count: int) -> str:
            dims = [t.shifted(d, r) for r in range(count)]
            zeros = [[t.splat(0.0)] * self.vectors] * count
            new = fma_tile(t, self.product, [column(x) for x in dims], steps, unroll, tile, self.tile_type, zeros)
            for x, row in zip(dims, new, strict=True):
                for j, value in enumerate(row):
                    old = t.read(acc, self.acc_type, x, self.lane(j))
                    acc = t.write(t.vop("vector.fma", old, decay[j], value), acc, self.acc_type, x, self.lane(j))
            return acc

        rest = dv % config.tile_dims
        bounds = (t.index(0), t.index(dv - rest), t.index(config.tile_dims))
        out = t.loop(bounds, [(acc, self.acc_type)], lambda d, c: [body(d, c[0], config.tile_dims)])[0]
        return body(t.index(dv - rest), out, rest) if rest else out

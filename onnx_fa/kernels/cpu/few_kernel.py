"""Blocks of keys for a few queries, with keys along the lanes of the scores. A workgroup owns all queries of one key/value head. It
keeps Q, O, and the scores S of one block of BK keys, a row per query:

    S = Q K^T: each product summed along the head dim in a vector, as many as lanes of them transposed and added up;
    O = O decay + P V, with head dims along the lanes.

K and V are so read as whole vectors, once: where queries along the lanes (lane_kernel.py) would leave most lanes idle, this
runs at the speed of memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from onnx_fa.kernels.cpu.dequantize import Integers
from onnx_fa.kernels.cpu.few_scores import FewScores, LaneKeys
from onnx_fa.kernels.cpu.key_rows import keys_with_values, row_at
from onnx_fa.kernels.cpu.masks import ScoreTerms
from onnx_fa.kernels.cpu.query_rows import VectorPerQuery
from onnx_fa.kernels.cpu.recurrence import add_decayed, visit_in_turn
from onnx_fa.kernels.cpu.state import Block, Slab, SoftmaxState, StateTypes
from onnx_fa.kernels.cpu.sweep import Sweep
from onnx_fa.kernels.cpu.tile_loops import guard_output
from onnx_fa.kernels.mlir.text import tensor_type


class FewKernel:
    """The BlockKernel for a spec whose Sq is config.BM. Sums of probabilities are parts, one in each lane, until the end."""

    clear_apart = False  # a compare per vector of keys costs less than a second body

    def __init__(self, terms: ScoreTerms, rows: VectorPerQuery) -> None:
        self.terms, self.rows, self.few_scores = terms, rows, FewScores(terms)
        self.operands, self.t, self.queries = terms.operands, terms.t, ""
        self.spec, self.config = self.operands.spec, self.operands.config
        w, queries = self.config.lanes, self.config.BM
        self.vectors_of_d = -(-self.spec.D // w)
        self.vectors_of_dv = -(-self.spec.Dv // w)
        self.queries_type = tensor_type((queries, self.vectors_of_d * w), "f32")
        acc = tensor_type((queries, self.vectors_of_dv * w), "f32")
        self.types = StateTypes(acc, tensor_type((queries, self.config.BK), "f32"), (), self.t.vec, queries, queries)

    def load_queries(self) -> None:
        """Q times the scale, head dims filled up with zeros to whole vectors."""
        t, spec, operands, w = self.t, self.spec, self.operands, self.t.width
        scale, tile = t.splat(self.terms.query_factor), t.let(f"tensor.empty() : {self.queries_type}")

        def copy(r: str, carried: list[str]) -> list[str]:
            out = carried[0]
            for n in range(self.vectors_of_d):
                x = operands.read_f32(operands.q, r, t.index(n * w), (n + 1) * w <= spec.D)
                out = t.write(t.vop("arith.mulf", x, scale), out, self.queries_type, r, t.index(n * w))
            return [out]

        bounds = (t.index(0), t.index(self.config.BM), t.index(1))
        self.queries = t.loop(bounds, [(tile, self.queries_type)], copy)[0]

    def prepare(self, state: SoftmaxState, block: Block) -> tuple[SoftmaxState, Block]:
        return state, block

    @property
    def parts(self) -> Sequence[slice]:
        return (slice(0, self.config.BM),)

    def needs(self, part: slice) -> str:
        return ""

    def visit_parts(self, sweep: Sweep, state: SoftmaxState, block: Block) -> SoftmaxState:
        return visit_in_turn(sweep, self, state, block)

    def scores(self, state: SoftmaxState, block: Block, part: slice) -> tuple[str, list[str]]:
        t, integers, tile_type = self.t, self.operands.k_integers, self.types.scores

        def body(i: str, carried: list[str]) -> list[str]:
            tile, best = carried[0], carried[1:]
            keys = self.few_scores.keys_at(i, block)
            read = [row_at(self.operands, block, t.shifted(i, n)).stored for n in range(t.width)]
            once = integers is not None and self.config.BM > 1
            products = self._products_with_integers(read) if once else []
            for r in range(self.config.BM):
                product = products[r] if once else self._products(r, read)
                s = self.few_scores.score(self._times_scale(product, integers, keys, block), keys, r, block)
                tile = t.write(s, tile, tile_type, t.index(r), i)
                if best:
                    best[r] = t.maximum(s, best[r])
            return [tile, *best]

        carried = [(state.scores, tile_type), *((b, t.vec) for b in state.best)]
        tile, *best = t.loop((t.index(0), block.rows, t.index(t.width)), carried, body)
        return tile, [self.rows.reduce(b, "maxnumf") for b in best]

    def probabilities(self, sweep: Sweep, state: SoftmaxState, block: Block, part: slice) -> tuple[str, list[str]]:
        t, tile_type, weights = self.t, self.types.scores, self.terms.plan.weights

        def body(i: str, carried: list[str]) -> list[str]:
            tile, sums = carried[0], carried[1:]
            for r in range(self.config.BM):
                s = t.read(tile, tile_type, t.index(r), i)
                p, mass = sweep.values(r, s, state.best)
                if mass and not sweep.walk.mass_multiplied:
                    sums[r] = t.vop("arith.addf", sums[r], mass)
                keys = self.few_scores.keys_at(i, block)
                if weights is not None:
                    p = self.few_scores.expression(weights, p, keys, r, block)
                if mass and sweep.walk.mass_multiplied:
                    sums[r] = t.vop("arith.addf", sums[r], p)
                p = self._times_scale(p, self.operands.v_integers, keys, block)
                tile = t.write(p, tile, tile_type, t.index(r), i)
            return [tile, *sums]

        carried = [(state.scores, tile_type), *[(t.splat(0.0), t.vec)] * len(state.total)]
        tile, *sums = t.loop((t.index(0), block.rows, t.index(t.width)), carried, body)
        return tile, sums

    def add_values(self, state: SoftmaxState, decay: Sequence[str], block: Block, part: slice) -> SoftmaxState:
        """O = O decay + P V: register tiles of some queries and `tile_dims` vectors of head dims."""
        t, w, config, acc, acc_type = self.t, self.t.width, self.config, state.acc, self.types.acc
        keys, unroll = keys_with_values(self.operands, block, min(config.unroll, w))
        queries_at_once = max(1, config.tile_dims // self.vectors_of_dv)
        for n0 in range(0, self.vectors_of_dv, config.tile_dims):
            dims = range(n0, min(n0 + config.tile_dims, self.vectors_of_dv))
            for r0 in range(0, config.BM, queries_at_once):
                rows = range(r0, min(r0 + queries_at_once, config.BM))
                new = self._products_with_values(state.scores, block, (keys, unroll), dims, rows)
                for place, r in enumerate(rows):
                    for n, x in zip(dims, new[place * len(dims) :], strict=False):
                        at = (t.index(r), t.index(n * w))
                        old = t.read(acc, acc_type, *at)
                        acc = t.write(add_decayed(t, old, decay[r], x), acc, acc_type, *at)
        return replace(state, acc=acc)

    def _products_with_values(
        self, weights: str, block: Block, loop: tuple[str, int], dims: range, rows: range
    ) -> list[str]:
        """P V for some queries and some vectors of head dims, query by query. `loop`: how many keys, and so many unrolled."""
        t, w, keys, unroll = self.t, self.t.width, *loop

        def step(i: str, sums: list[str]) -> list[str]:
            key = row_at(self.operands, block, i).stored
            read = self._row_reader(self.operands.v, self.operands.v_integers, key)
            v = [read(t.index(n * w), (n + 1) * w <= self.spec.Dv) for n in dims]
            out = []
            for place, r in enumerate(rows):
                p = t.broadcast(t.let(f"tensor.extract {weights}[{t.index(r)}, {i}] : {self.types.scores}"))
                own = sums[place * len(v) : (place + 1) * len(v)]
                out += [t.vop("vector.fma", p, x, s) for x, s in zip(v, own, strict=True)]
            return out

        def several(i: str, sums: list[str]) -> list[str]:
            for u in range(unroll):
                sums = step(t.shifted(i, u), sums)
            return sums

        zeros = [(t.splat(0.0), t.vec)] * (len(dims) * len(rows))
        return t.loop((t.index(0), keys, t.index(unroll)), zeros, several)

    def finish_output(self, state: SoftmaxState, inverse: Callable[[str], str]) -> str:
        t, w, operands, result = self.t, self.t.width, self.operands, self.operands.out.value
        for r, total in enumerate(self.rows.sums(state.total) or ("",) * self.config.BM):
            factor, row = inverse(total), t.index(r)
            for n in range(self.vectors_of_dv):
                x = t.vop("arith.mulf", t.read(state.acc, self.types.acc, row, t.index(n * w)), factor)
                x = guard_output(t, x, total) if operands.guards_output else x
                result = operands.write_out(x, result, row, t.index(n * w), (n + 1) * w <= self.spec.Dv)
        return result

    # Rows of K and V.

    def _row_reader(self, slab: Slab, integers: Integers | None, row: str) -> Callable[[str, bool], str]:
        """A function from a head dim, and whether all lanes lie inside, to the numbers of a row of K or V; integers with one scale
        per row without it."""
        if integers is None:
            return lambda d, inside: self.operands.read_f32(slab, row, d, inside)
        vector = integers.row(row, scaled=not integers.one_per_row)
        return lambda d, inside: vector(d)

    def _times_scale(self, x: str, integers: Integers | None, keys: LaneKeys, block: Block) -> str:
        """What `_row_reader` left out, for a vector of keys."""
        if integers is None or not integers.one_per_row:
            return x
        inside = not (block.edge and self.operands.ragged_keys)
        return self.t.vop("arith.mulf", x, integers.row_scales(keys.first, inside))

    # Products of Q and K.

    def _products(self, r: int, keys: list[str]) -> str:
        """q k of one query and as many keys as lanes, along these."""
        t, w, unroll, operands = self.t, self.t.width, self.config.unroll, self.operands

        def several(d: str, sums: list[str], places: Sequence[int] = tuple(range(unroll))) -> list[str]:
            """One key after the other, as they lie in memory: the prefetcher follows."""
            at = [(t.shifted(d, n * w), (n + 1) * w <= self.spec.D) for n in places]
            x = [t.read(self.queries, self.queries_type, t.index(r), column) for column, _ in at]
            out = []
            for key, s in zip(keys, sums, strict=True):
                read = self._row_reader(operands.k, operands.k_integers, key)
                for (column, inside), q in zip(at, x, strict=True):
                    s = t.vop("vector.fma", q, read(column, inside), s)
                out.append(s)
            return out

        sums = [t.splat(0.0)] * w
        whole = self.spec.D // w
        looped = whole - whole % unroll
        if looped > unroll:
            bounds = (t.index(0), t.index(looped * w), t.index(unroll * w))
            sums = t.loop(bounds, [(s, t.vec) for s in sums], several)
        else:
            looped = 0
        return self.t.sum_lanes(several(t.index(0), sums, range(looped, self.vectors_of_d)))

    def _products_with_integers(self, keys: list[str]) -> list[str]:
        """`_products` of every query: each number of K is converted once, for all of them."""
        t, w, operands, queries = self.t, self.t.width, self.operands, range(self.config.BM)
        columns = [t.index(n * w) for n in range(self.vectors_of_d)]
        q = [[t.read(self.queries, self.queries_type, t.index(r), column) for column in columns] for r in queries]
        sums: list[list[str]] = [[] for _ in q]
        for key in keys:
            read = self._row_reader(operands.k, operands.k_integers, key)
            own = [t.splat(0.0) for _ in queries]
            for n, column in enumerate(columns):
                x = read(column, True)
                own = [t.vop("vector.fma", row[n], x, s) for row, s in zip(q, own, strict=True)]
            for s, of_query in zip(own, sums, strict=True):
                of_query.append(s)
        return [self.t.sum_lanes(s) for s in sums]

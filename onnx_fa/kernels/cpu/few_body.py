"""The body of the attention dispatch for a few queries, with keys along the lanes of the scores.

A workgroup owns all queries of one key/value head. It keeps Q, O, and the scores S of one block of BK keys, a row per query:

    S = Q K^T: each product summed along the head dim in a vector, W of them transposed and added up;
    O = O 2^(m - m') + P V, with head dims along the lanes.

K and V are so read as whole vectors, once: where queries along the lanes (vector_body.py) would leave most lanes idle, this
runs at the speed of memory. Which blocks are visited, and all that follows from it, is as there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from onnx_fa.kernels.cpu.dequantize import Integers
from onnx_fa.kernels.cpu.state import Block, Slab, SoftmaxState
from onnx_fa.kernels.cpu.tiles import VectorConfig
from onnx_fa.kernels.cpu.vector_body import VectorBody
from onnx_fa.kernels.mlir.expressions import Vector
from onnx_fa.kernels.mlir.text import I32, tensor_type
from onnx_fa.kernels.plan.bounds import Truth
from onnx_fa.kernels.plan.score import IndexStep, uses, varies, window
from onnx_fa.spec.attention import AttentionSpec
from onnx_fa.spec.expr import SCORE, K, ScoreExpr, Tensor
from onnx_fa.spec.terms import IndexMask, TensorArg


@dataclass(frozen=True)
class FewConfig(VectorConfig):
    """Tiles, in queries, keys and vectors of head dims: BM are all queries, `tile_keys` as many as lanes, `tile_dims`
    counts vectors of head dims. BK is a multiple of `tile_keys`. Raises ValueError otherwise."""

    def check(self) -> None:
        if self.BK % self.tile_keys or self.tile_keys != self.lanes:
            raise ValueError(f"BK must be a multiple of tile_keys, and tile_keys be lanes: {self}")


@dataclass(frozen=True)
class _Keys:
    """W keys of a block: the first one's place in the block, and its position; all positions; what is known of them alone."""

    at: str
    first: str
    positions: str
    known: dict[ScoreExpr, Vector]


class FewBody(VectorBody):
    """Writes the dispatch's function for one spec whose Sq is config.BM; arguments as in VectorBody."""

    def __init__(self, spec: AttentionSpec, config: FewConfig, splits: int = 1) -> None:
        super().__init__(spec, config, splits)
        w = config.lanes
        self.vectors_of_d = -(-spec.D // w)
        self.vectors_of_dv = -(-spec.Dv // w)
        self.queries_type = tensor_type((config.BM, self.vectors_of_d * w), "f32")
        self.acc_type = tensor_type((config.BM, self.vectors_of_dv * w), "f32")
        self.tile_type = tensor_type((config.BM, config.BK), "f32")
        self.scratch_types = []

    @property
    def row_vector_count(self) -> int:
        return self.config.BM  # each query's number in every lane

    def proofs(self, k0: str, rows: str) -> tuple[Truth, Truth]:
        return super().proofs(k0, rows)[0], False  # a compare per W keys costs less than a second body

    def lane_numbers(self) -> str:
        """0, 1, 2, ... along the lanes."""
        t = self.t
        lanes = t.let(f"vector.step : vector<{t.width}xindex>")
        return t.let(f"arith.index_cast {lanes} : vector<{t.width}xindex> to {t.ivec}")

    def query_positions(self) -> list[str]:
        return [self.t.dense(str(r), "i32") for r in range(self.config.BM)]

    def row_vectors(self, tensor: TensorArg, slab: Slab) -> list[Vector]:
        by_row = varies(tensor)[0]
        return [self.splat_of(slab, self.t.index(r if by_row else 0)) for r in range(self.vectors)]

    def first_sum(self, sink: str, best: str) -> str:
        first = self.t.let(f"arith.cmpi eq, {self.lane_numbers()}, {self.t.dense('0', 'i32')} : {self.t.ivec}")
        return self.t.select(first, super().first_sum(sink, best), self.t.splat(0.0))

    def sum_of(self, x: str, combine: str = "add") -> str:
        """The sum (or maximum) of the lanes, in all lanes."""
        t = self.t
        return t.broadcast(t.let(f"vector.reduction <{combine}>, {x} : {t.vec} into f32"))

    def sums(self, total: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(self.sum_of(x) for x in total)

    def row_numbers(self, slab: Slab, vectors: tuple[str, ...]) -> str:
        t, out = self.t, slab.value
        for r, x in enumerate(vectors):
            number = t.let(f"vector.extract {x}[0] : f32 from {t.vec}")
            out = t.let(f"tensor.insert {number} into {out}[{t.index(r)}] : {slab.type}")
        return out

    # Into and out of the tiles.

    def load_queries(self) -> str:
        """Q times the scale, head dims filled up with zeros to whole vectors."""
        t, spec, w = self.t, self.spec, self.t.width
        scale, tile = t.splat(self.query_factor), t.let(f"tensor.empty() : {self.queries_type}")

        def row(r: str, carried: list[str]) -> list[str]:
            out = carried[0]
            for n in range(self.vectors_of_d):
                x = self.read_f32(self.q, r, t.index(n * w), (n + 1) * w <= spec.D)
                out = t.write(t.vop("arith.mulf", x, scale), out, self.queries_type, r, t.index(n * w))
            return [out]

        return t.loop((t.index(0), t.index(self.config.BM), t.index(1)), [(tile, self.queries_type)], row)[0]

    def finish_output(self, state: SoftmaxState) -> str:
        t, spec, w, result = self.t, self.spec, self.t.width, self.out.value
        for r, total in enumerate(self.sums(state.total)):
            inverse, row = self.inverse(total), t.index(r)
            for n in range(self.vectors_of_dv):
                x = t.vop("arith.mulf", t.read(state.acc, self.acc_type, row, t.index(n * w)), inverse)
                x = self.guarded(x, total) if spec.empty_row == "guarded" and self.splits == 1 else x
                result = self.write_out(x, result, row, t.index(n * w), (n + 1) * w <= spec.Dv)
        return result

    def row_reader(self, slab: Slab, integers: Integers | None, row: str) -> Callable[[str, bool], str]:
        """A function from a head dim, and whether all lanes lie inside, to the numbers of a row of K or V; integers with one scale
        per row without it."""
        if integers is None:
            return lambda d, inside: self.read_f32(slab, row, d, inside)
        vector = integers.row(row, scaled=not integers.one_per_row)
        return lambda d, inside: vector(d)

    def times_scale(self, x: str, integers: Integers | None, keys: _Keys, block: Block) -> str:
        """What `row_reader` left out, for W keys."""
        if integers is None or not integers.one_per_row:
            return x
        return self.t.vop("arith.mulf", x, integers.row_scales(keys.first, not (block.edge and self.ragged_keys)))

    # Scores.

    def keys_at(self, at: str, block: Block) -> _Keys:
        t = self.t
        first = t.arith("addi", block.k0, at)
        return _Keys(at, first, t.arith("addi", t.broadcast(self.i32(first), I32), self.lane_numbers(), t.ivec), {})

    def masked(self, s: str, keys: _Keys, r: int, block: Block) -> str:
        """What the softmax sees, in units of log2, for one query and W keys."""
        t, s = self.t, self.capped(s)
        for step in self.steps(block):
            if not isinstance(step, IndexStep):
                s = self.key_expression(step.expr, s, keys, r, block)
            elif block.edge:
                s = t.select(self.kept(step.mask, keys, r), s, t.splat(step.fill))
        if block.edge and self.ragged_keys:
            inside = t.let(f"arith.cmpi slt, {keys.positions}, {t.broadcast(self.i32(self.skv), I32)} : {t.ivec}")
            s = t.select(inside, s, t.splat(-float("inf")))
        return s

    def kept(self, mask: IndexMask, keys: _Keys, r: int) -> str:
        """query + offset - left <= key <= query + offset + right"""
        t, keep = self.t, self.t.dense("true", "i1")
        left, right = window(mask)
        for predicate, by in (("sle", right), ("sge", None if left is None else -left)):
            if by is not None:
                limit = t.broadcast(self.i32(t.arith("addi", self.offset(mask), t.index(r + by))), I32)
                inside = t.let(f"arith.cmpi {predicate}, {keys.positions}, {limit} : {t.ivec}")
                keep = t.arith("andi", keep, inside, t.bvec)
        return keep

    def key_expression(self, expr: ScoreExpr, s: str, keys: _Keys, r: int, block: Block) -> str:
        t, tensors = self.t, self.spec.tensors

        def stored(e: Tensor) -> Vector:
            slab, inside = self.masks[e.index], not (block.edge and self.ragged_keys)
            at = [*([t.index(r)] if varies(tensors[e.index])[0] else []), keys.first]
            return self.to_vector(
                t.read(slab.value, slab.type, *at, element=slab.element, in_bounds=inside), slab.element
            )

        def by_key(e: ScoreExpr) -> Vector | None:
            if e == K:
                return Vector(keys.positions, "i32")
            if e in self.row_values[r]:
                return self.row_values[r][e]  # the same for all queries, as nothing here varies along them
            return stored(e) if isinstance(e, Tensor) else None

        def known(e: ScoreExpr) -> Vector | None:
            if e == SCORE:
                return Vector(s, "f32")
            if e in self.row_values[r]:
                return self.row_values[r][e]
            if uses(e, tensors) == {"k"}:
                return self.vector.emit(e, by_key, keys.known)
            return stored(e) if isinstance(e, Tensor) else None

        return self.vector.emit(expr, known, {}).value

    def products(self, r: int, keys: list[str]) -> str:
        """q k of one query and W keys, along the lanes."""
        t, w, unroll = self.t, self.t.width, self.config.unroll

        def several(d: str, sums: list[str], places: Sequence[int] = tuple(range(unroll))) -> list[str]:
            """One key after the other, as they lie in memory: the prefetcher follows."""
            at = [(t.shifted(d, n * w), (n + 1) * w <= self.spec.D) for n in places]
            x = [t.read(self.queries, self.queries_type, t.index(r), column) for column, _ in at]
            out = []
            for key, s in zip(keys, sums, strict=True):
                read = self.row_reader(self.k, self.k_integers, key)
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
        return self.added_up(several(t.index(0), sums, range(looped, self.vectors_of_d)))

    def products_with_integers(self, keys: list[str]) -> list[str]:
        """`products` of every query: each number of K is converted once, for all of them."""
        t, w = self.t, self.t.width
        columns = [t.index(n * w) for n in range(self.vectors_of_d)]
        q = [
            [t.read(self.queries, self.queries_type, t.index(r), column) for column in columns]
            for r in range(self.vectors)
        ]
        sums: list[list[str]] = [[] for _ in q]
        for key in keys:
            read, own = self.row_reader(self.k, self.k_integers, key), [t.splat(0.0)] * self.vectors
            for n, column in enumerate(columns):
                x = read(column, True)
                own = [t.vop("vector.fma", row[n], x, s) for row, s in zip(q, own, strict=True)]
            for s, of_query in zip(own, sums, strict=True):
                of_query.append(s)
        return [self.added_up(s) for s in sums]

    def added_up(self, sums: list[str]) -> str:
        """The sum of the lanes of each of W vectors, in a lane of its own."""
        t, parts = self.t, self.t.transpose(sums)
        while len(parts) > 1:
            parts = [t.vop("arith.addf", a, b) for a, b in zip(parts[::2], parts[1::2], strict=True)]
        return parts[0]

    # One block of keys.

    def block(self, state: SoftmaxState, block: Block) -> SoftmaxState:
        scores, best = self.scores_and_best(state, block)
        decay = self.decays(state.best, best)
        scores, total = self.probabilities(scores, best, decay, state.total, block)
        return SoftmaxState(self.values(state.acc, scores, decay, block, []), scores, (), tuple(best), tuple(total))

    def scores_and_best(self, state: SoftmaxState, block: Block) -> tuple[str, list[str]]:
        """S of the block, masked; and the new maxima."""
        t = self.t

        def body(i: str, carried: list[str]) -> list[str]:
            tile, best = carried[0], carried[1:]
            keys = self.keys_at(i, block)
            read = [self.row(block, t.shifted(i, n)).stored for n in range(t.width)]
            once = self.k_integers is not None and self.vectors > 1
            products = self.products_with_integers(read) if once else []
            for r in range(self.vectors):
                s = self.times_scale(products[r] if once else self.products(r, read), self.k_integers, keys, block)
                s = self.masked(s, keys, r, block)
                tile = t.write(s, tile, self.tile_type, t.index(r), i)
                best[r] = t.maximum(s, best[r])
            return [tile, *best]

        carried = [(state.scores, self.tile_type), *((b, t.vec) for b in state.best)]
        tile, *best = t.loop((t.index(0), block.rows, t.index(t.width)), carried, body)
        return tile, [self.sum_of(b, "maxnumf") for b in best]

    def probabilities(
        self, scores: str, best: list[str], decay: list[str], total: Sequence[str], block: Block
    ) -> tuple[str, list[str]]:
        """P = 2^(S - m) in the scores' place, and the new sums, lane by lane."""
        t = self.t

        def body(i: str, carried: list[str]) -> list[str]:
            tile, sums = carried[0], carried[1:]
            for r in range(self.vectors):
                s = t.read(tile, self.tile_type, t.index(r), i)
                p = self.weight(s, best[r], total[r])
                sums[r] = t.vop("arith.addf", sums[r], p)
                keys = self.keys_at(i, block)
                if self.plan.weights is not None:
                    p = self.key_expression(self.plan.weights, p, keys, r, block)
                p = self.times_scale(p, self.v_integers, keys, block)
                tile = t.write(p, tile, self.tile_type, t.index(r), i)
            return [tile, *sums]

        carried = [(scores, self.tile_type), *[(t.splat(0.0), t.vec)] * self.vectors]
        tile, *sums = t.loop((t.index(0), block.rows, t.index(t.width)), carried, body)
        return tile, [t.vop("vector.fma", x, a, new) for x, a, new in zip(total, decay, sums, strict=True)]

    def values(self, acc: str, tile: str, decay: list[str], block: Block, scratch: list[str]) -> str:
        """O = O decay + P V: register tiles of some queries and `tile_dims` vectors of head dims."""
        t, w, config = self.t, self.t.width, self.config
        keys, unroll = self.keys_with_values(block, min(config.unroll, w))
        at_once = max(1, config.tile_dims // self.vectors_of_dv)  # queries
        for n0 in range(0, self.vectors_of_dv, config.tile_dims):
            dims = range(n0, min(n0 + config.tile_dims, self.vectors_of_dv))
            for r0 in range(0, self.vectors, at_once):
                rows = range(r0, min(r0 + at_once, self.vectors))

                def step(i: str, sums: list[str], dims: range = dims, rows: range = rows) -> list[str]:
                    key = self.row(block, i).stored
                    read = self.row_reader(self.v, self.v_integers, key)
                    v = [read(t.index(n * w), (n + 1) * w <= self.spec.Dv) for n in dims]
                    out = []
                    for place, r in enumerate(rows):
                        p = t.broadcast(t.let(f"tensor.extract {tile}[{t.index(r)}, {i}] : {self.tile_type}"))
                        own = sums[place * len(v) : (place + 1) * len(v)]
                        out += [t.vop("vector.fma", p, x, s) for x, s in zip(v, own, strict=True)]
                    return out

                def several(i: str, sums: list[str], step: object = step) -> list[str]:
                    assert callable(step)
                    for u in range(unroll):
                        sums = step(t.shifted(i, u), sums)
                    return sums

                zeros = [(t.splat(0.0), t.vec)] * (len(dims) * len(rows))
                new = t.loop((t.index(0), keys, t.index(unroll)), zeros, several)
                for place, r in enumerate(rows):
                    for n, x in zip(dims, new[place * len(dims) :], strict=False):
                        at = (t.index(r), t.index(n * w))
                        old = t.read(acc, self.acc_type, *at)
                        acc = t.write(t.vop("vector.fma", old, decay[r], x), acc, self.acc_type, *at)
        return acc

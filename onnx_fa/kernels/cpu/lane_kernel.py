"""Blocks of keys for queries along the lanes: Q^T (D x BM, scaled), O^T (Dv x BM) and the scores S^T of one block (BK x BM) are
tiles on a workgroup's stack:

    S^T = K Q^T;  O^T = O^T decay + V^T P

With queries along the lanes the row statistics are plain vectors, and K and V are read as scalars that are broadcast
into fused multiply-adds (or another `Product`), in whatever layout they have.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from onnx_fa.kernels.cpu.key_rows import keys_with_values, row_at, unroll_in
from onnx_fa.kernels.cpu.masks import LaneScores, ScoreTerms
from onnx_fa.kernels.cpu.products import Product
from onnx_fa.kernels.cpu.recurrence import add_decayed, visit_in_turn
from onnx_fa.kernels.cpu.state import Block, SoftmaxState, StateTypes
from onnx_fa.kernels.cpu.sweep import Sweep
from onnx_fa.kernels.cpu.tile_loops import fma_tile, guard_output, keep_in_loop, over_rows, over_tiles
from onnx_fa.kernels.cpu.tiles import mask_tiles
from onnx_fa.kernels.mlir.text import tensor_type
from onnx_fa.kernels.plan.score import tile_slots
from onnx_fa.spec.expr import ScoreExpr


class LaneKernel:
    """The BlockKernel for queries along the lanes, and any `product`. The last of the state's scratch tiles is the product's, if it
    copies blocks of K and V."""

    clear_apart = True

    def __init__(self, terms: ScoreTerms, product: Product) -> None:
        self.terms, self.product, self.lane_scores = terms, product, LaneScores(terms)
        self.operands, self.t, self.vectors = terms.operands, terms.t, terms.rows.count
        self.spec, self.config = self.operands.spec, self.operands.config
        scratch = [self.lane_scores.tile_type] * mask_tiles(self.spec)
        if product.copied_type:
            scratch.append(product.copied_type)
        acc = tensor_type((self.spec.Dv, self.config.BM), "f32")
        self.types = StateTypes(acc, self.lane_scores.tile_type, tuple(scratch), self.t.vec, self.vectors, self.vectors)
        self.queries = ""

    @property
    def parts(self) -> Sequence[slice]:
        return (slice(0, self.vectors),)

    def needs(self, part: slice) -> str:
        return ""

    def visit_parts(self, sweep: Sweep, state: SoftmaxState, block: Block) -> SoftmaxState:
        return visit_in_turn(sweep, self, state, block)

    @property
    def computed(self) -> int | str:
        """The queries whose outputs are there, those of whole vectors."""
        return self.config.BM

    def load_queries(self) -> None:
        self.queries = self.product.load_queries()

    def prepare(self, state: SoftmaxState, block: Block) -> tuple[SoftmaxState, Block]:
        state, block = self.prepare_masks(state, block)
        if not self.product.copied_type:
            return state, block
        copied = self.product.copy_keys(state.scratch[-1], block)
        return replace(state, scratch=(*state.scratch[:-1], copied)), block

    def prepare_masks(self, state: SoftmaxState, block: Block) -> tuple[SoftmaxState, Block]:
        """Copies the terms that are tensors of Sq x Skv into the state's tiles, and names these in the block."""
        scratch, tiles, end = list(state.scratch), dict[ScoreExpr, list[str]](), 0
        for part in self.terms.parts:
            at, end = end, end + tile_slots(part, self.spec.tensors)
            if not block.clear or part in self.terms.clear_parts:
                scratch[at:end] = tiles[part] = self.lane_scores.mask_tile(part, scratch[at:end], block)
        return replace(state, scratch=tuple(scratch)), replace(block, tiles=tiles)

    def scores(self, state: SoftmaxState, block: Block, part: slice) -> tuple[str, list[str]]:
        """S^T = K Q^T of the block, `tile_keys` keys at a time, masked; and the new maximum."""
        t, config, operands, product = self.t, self.config, self.operands, self.product
        tile_type = self.types.scores

        def copied(i: str) -> Callable[[str], str]:
            return lambda d: t.extract(state.scratch[-1], product.copied_type, i, d)

        def stored(key: str) -> Callable[[str], str]:
            return lambda d: operands.extract(operands.k, key, d)

        def body(i: str, carried: list[str]) -> list[str]:
            tile, best = carried[0], carried[1:]
            rows = [row_at(operands, block, t.shifted(i, r)) for r in range(config.tile_keys)]
            scalars = [copied(row.at) if product.copied_type else stored(row.stored) for row in rows]
            zeros = [[t.splat(0.0)] * self.vectors] * config.tile_keys
            steps, unroll = self.spec.D // product.per_step, unroll_in(operands, block)
            raw = fma_tile(
                t, product.multiply, lambda: scalars, steps, unroll, self.queries, product.queries_type, zeros
            )
            for row, vectors in zip(rows, raw, strict=True):
                for j, x in enumerate(vectors):
                    s = self.lane_scores.score(product.scale_score(x), row, j, block)
                    tile = t.write(s, tile, tile_type, row.at, operands.lane(j))
                    if best:
                        best[j] = t.maximum(s, best[j])
            return [tile, *best]

        carried = [(state.scores, tile_type), *((b, t.vec) for b in state.best)]
        tile, *best = t.loop((t.index(0), block.rows, t.index(config.tile_keys)), carried, body)
        return tile, best

    def probabilities(self, sweep: Sweep, state: SoftmaxState, block: Block, part: slice) -> tuple[str, list[str]]:
        t, tile_type, operands, weights = self.t, self.types.scores, self.operands, self.terms.plan.weights

        def body(i: str, carried: list[str]) -> list[str]:
            tile, sums = carried[0], carried[1:]
            place = self._in_steps(i)
            for at, j in enumerate(range(part.start, part.stop)):
                joined = []
                for n in range(self.product.per_step):
                    s = t.read(tile, tile_type, t.shifted(i, n), operands.lane(at))
                    p, mass = sweep.values(j, s, state.best)
                    if mass and not sweep.walk.mass_multiplied:
                        sums[at] = t.vop("arith.addf", sums[at], mass)
                    if weights is not None:
                        row = row_at(operands, block, t.shifted(i, n))
                        p = self.lane_scores.expression(weights, p, row, j, block)
                    if mass and sweep.walk.mass_multiplied:
                        sums[at] = t.vop("arith.addf", sums[at], p)
                    joined.append(p)
                tile = t.write(self.product.join_weights(joined), tile, tile_type, place, operands.lane(at))
            return [tile, *sums]

        carried = [(state.scores, tile_type), *[(t.splat(0.0), t.vec)] * len(state.total[part])]
        tile, *sums = t.loop((t.index(0), block.rows, t.index(self.product.per_step)), carried, body)
        return tile, sums

    def _in_steps(self, keys: str) -> str:
        """A number of keys in steps of the product with V."""
        per_step = self.product.per_step
        return keys if per_step == 1 else self.t.arith("divui", keys, self.t.index(per_step))

    def add_values(self, state: SoftmaxState, decay: Sequence[str], block: Block, part: slice) -> SoftmaxState:
        """O^T = O^T decay + V^T P, `tile_dims` head dims at a time."""
        t, config, operands, product = self.t, self.config, self.operands, self.product
        dv, acc_type, scratch = self.spec.Dv, self.types.acc, list(state.scratch)
        if product.copied_type:
            scratch[-1] = product.copy_values(scratch[-1], block)
        in_block = config.tile_keys if block.edge else config.BK
        unroll, keys = math.gcd(unroll_in(operands, block), in_block // product.per_step), block.rows
        if product.per_step == 1:  # steps of several keys have zeros past the last one
            keys, unroll = keys_with_values(operands, block, unroll)
        steps = self._in_steps(keys)

        def column(d: str) -> Callable[[str], str]:
            if product.copied_type:
                return lambda i: t.extract(scratch[-1], product.copied_type, i, d)
            return lambda i: operands.extract(operands.v, row_at(operands, block, i).stored, d)

        def body(d: str, acc: str, count: int) -> str:
            dims = [t.shifted(d, r) for r in range(count)]
            zeros = [[t.splat(0.0)] * self.vectors] * count

            def columns() -> list[Callable[[str], str]]:
                first = keep_in_loop(t, d)
                return [column(t.shifted(first, r)) for r in range(count)]

            new = fma_tile(t, product.multiply, columns, steps, unroll, state.scores, self.types.scores, zeros)
            for x, row in zip(dims, new, strict=True):
                for j, value in enumerate(row):
                    old = t.read(acc, acc_type, x, operands.lane(j))
                    acc = t.write(add_decayed(t, old, decay[j], value), acc, acc_type, x, operands.lane(j))
            return acc

        rest = dv % config.tile_dims
        bounds = (t.index(0), t.index(dv - rest), t.index(config.tile_dims))
        out = t.loop(bounds, [(state.acc, acc_type)], lambda d, c: [body(d, c[0], config.tile_dims)])[0]
        acc = body(t.index(dv - rest), out, rest) if rest else out
        return replace(state, acc=acc, scratch=tuple(scratch))

    def finish_output(self, state: SoftmaxState, inverse: Callable[[str], str]) -> str:
        """O = (O^T / l)^T. Rows without a key have l = 0: they are NaN (0 * inf), or 0 if the spec says so."""
        t, spec, operands, out = self.t, self.spec, self.operands, self.operands.out
        row_type, acc_type, guarded = operands.row_type, self.types.acc, operands.guards_output
        inverses = t.let(f"tensor.empty() : {row_type}")
        sums = t.let(f"tensor.empty() : {row_type}") if guarded else ""
        for j, total in enumerate(state.total or ("",) * self.vectors):
            if guarded:
                sums = t.write(total, sums, row_type, operands.lane(j))
            inverses = t.write(inverse(total), inverses, row_type, operands.lane(j))

        def value(d: str, row: str) -> str:
            x = t.vop("arith.mulf", t.read(state.acc, acc_type, d, row), t.read(inverses, row_type, row))
            return guard_output(t, x, t.read(sums, row_type, row)) if guarded else x

        def rowwise(row: str, d: str, result: str) -> str:
            columns = [value(t.shifted(d, i), row) for i in range(min(t.width, spec.Dv))]
            columns += [t.splat(0.0)] * (t.width - len(columns))
            for i, x in enumerate(t.transpose(columns)):
                place = operands.query_row(t.shifted(row, i))
                result = operands.write_out(x, result, place, d, spec.Dv >= t.width)
            return result

        def columnwise(d: str, row: str, result: str) -> str:
            return operands.write_out(value(d, row), result, d, row, not operands.few_queries)

        if out.swapped:
            return over_rows(t, self.config.BM, spec.Dv, out.value, out.type, columnwise)
        return over_tiles(t, self.computed, spec.Dv, out.value, out.type, rowwise)

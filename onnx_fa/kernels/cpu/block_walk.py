"""Which blocks of keys a workgroup of a vector kernel visits: none that is masked as a whole, and few that must test positions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from onnx_fa.kernels.cpu.key_rows import hide_origin
from onnx_fa.kernels.cpu.masks import ScoreTerms
from onnx_fa.kernels.cpu.operands import Operands
from onnx_fa.kernels.cpu.state import Block, SoftmaxState, StateTypes
from onnx_fa.kernels.mlir.vectors import Lanes
from onnx_fa.kernels.plan.bounds import BlockBounds, Range, Truth, Truths
from onnx_fa.kernels.plan.score import varies, window
from onnx_fa.spec.expr import SKV, SQ, K, Q, ScoreExpr, Tensor
from onnx_fa.spec.terms import IndexMask


@dataclass(frozen=True)
class KeyWalk:
    """Walks the keys with a state of `types`, which `step` changes with every block that is visited.

    `clear_apart`: blocks whose terms leave all scores as they are are told apart, and visited with `Block.clear`.
    `best`: the rows' maxima, for a walk that does not find them."""

    terms: ScoreTerms
    types: StateTypes
    step: Callable[[SoftmaxState, Block], SoftmaxState]
    clear_apart: bool
    best: tuple[str, ...] = ()

    @property
    def operands(self) -> Operands:
        return self.terms.operands

    @property
    def t(self) -> Lanes:
        return self.terms.t

    def visit_keys(self, state: SoftmaxState) -> SoftmaxState:
        """Full blocks, then blocks on an edge, then, if some row found nothing else, the blocks that were left out."""
        t, bk = self.t, self.t.index(self.operands.config.BK)
        zero = t.index(0)
        low, high = self.operands.key_limits
        first, full_first, full_end, end = self.ranges()

        def full(k0: str, carried: list[str]) -> list[str]:
            needed, clear = self.proofs(k0, bk)
            state = self.types.unpack(carried)
            if clear is not True:
                needed = needed if clear is False else self.neither(clear, needed)
                state = self.block_if(needed, state, Block(k0, bk, False))
            return self.types.pack(state if clear is False else self.block_if(clear, state, Block(k0, bk, False, True)))

        state = self.types.unpack(t.loop((full_first, full_end, bk), self.types.carried(state), full))
        edges = [(first, full_first)] if full_first != low else []
        edges += [(full_end, end)] if full_end != high else []
        if edges:
            state = self.edge_blocks(state, edges)
        skipped = [(low, first)] if first != low else []
        skipped += [(end, high)] if end != high else []
        anywhere = self.needed(zero, bk) is not True  # blocks between these ranges may have been left out as well
        if self.terms.skips.threshold is None or not (skipped or anywhere):
            return state
        lowest, *others = state.best or self.best
        for b in others:
            lowest = t.select(t.compare("olt", b, lowest), b, lowest)
        least = t.let(f"vector.reduction <minnumf>, {lowest} : {t.vec} into f32")
        needed = t.let(f"arith.cmpf ole, {least}, {t.f32(self.terms.skips.threshold)} : f32")
        ranges = [(a, t.let(f"arith.select {needed}, {b}, {a} : index")) for a, b in skipped]
        if anywhere:
            return self.edge_blocks(
                state, [(first, t.let(f"arith.select {needed}, {end}, {first} : index")), *ranges], 1
            )
        return self.edge_blocks(state, ranges, 0)

    def needed(self, k0: str, rows: str) -> Truth:
        """Whether a block may hold a key that is not masked, as far as its own values tell."""
        return self.proofs(k0, rows)[0]

    def proofs(self, k0: str, rows: str) -> tuple[Truth, Truth]:
        """Whether a block may hold a key that is not masked, and whether all terms that choose surely choose the score, as far as
        intervals of positions, lengths, integers and booleans tell."""
        t, operands, terms = self.t, self.operands, self.terms
        sq, skv = operands.sq, operands.skv
        last = t.arith("subi", t.arith("minsi", t.arith("addi", k0, rows), skv), t.index(1))
        ranges: dict[ScoreExpr, Range | None] = {Q: (operands.m0, t.arith("addi", operands.m0, operands.last_row))}
        ranges |= {K: (k0, last), SQ: (sq, sq), SKV: (skv, skv)}

        def leaf(e: ScoreExpr) -> Range | None:
            if isinstance(e, Tensor) and e not in ranges:
                by_row, by_key = varies(terms.spec.tensors[e.index])
                if by_key and not by_row:
                    ranges[e] = terms.key_range(e.index, k0, rows)
                else:
                    ranges[e] = terms.row_ranges.get(e.index)
            return ranges[e]

        bounds = BlockBounds(t, leaf)
        low: Truth = False
        for condition in terms.skips.low:
            low = bounds.either(low, bounds.truth(condition)[0])
        clear: Truth = bool(terms.skips.kept)
        for condition in terms.skips.kept.values():
            clear = bounds.both(clear, bounds.truth(condition)[0])
        return self.neither(low, True), clear if self.clear_apart else False

    def neither(self, proof: Truth, otherwise: Truth) -> Truth:
        """`otherwise` where the proof does not hold."""
        if isinstance(proof, bool):
            return False if proof else otherwise
        other = self.t.arith("xori", proof, self.t.constant("1", "i1"), "i1")
        return other if otherwise is True else Truths(self.t).both(other, otherwise)

    def block_if(self, needed: Truth, state: SoftmaxState, block: Block) -> SoftmaxState:
        """The state after a block, or as it was where the block is not needed."""
        t = self.t
        if needed is True:
            return self.step(state, block)
        once = t.let(f"arith.select {needed}, {t.index(1)}, {t.index(0)} : index") if needed else t.index(0)
        bounds = (t.index(0), once, t.index(1))

        def visit(_: str, carried: list[str]) -> list[str]:
            return self.types.pack(self.step(self.types.unpack(carried), block))

        return self.types.unpack(t.loop(bounds, self.types.carried(state), visit))

    def ranges(self) -> tuple[str, str, str, str]:
        """(first, full_first, full_end, end): the keys to visit, and among them the blocks that test no positions."""
        t, bk = self.t, self.operands.config.BK
        low, high = self.operands.key_limits
        first, full_first, full_end, end = low, low, high, high
        last = t.arith("addi", self.operands.m0, self.operands.last_row)
        for i, mask in enumerate(self.terms.spec.masks):
            if not isinstance(mask, IndexMask):
                continue
            left, right = window(mask)
            if right is not None:
                reach = t.arith("addi", self.terms.offset(mask), t.index(right + 1))
                full_end = t.arith("minsi", full_end, t.arith("addi", self.operands.m0, reach))
                if i in self.terms.skips.terms:
                    end = t.arith("minsi", end, t.arith("addi", last, reach))
            if left is not None:
                reach = t.arith("subi", self.terms.offset(mask), t.index(left))
                full_first = t.arith("maxsi", full_first, t.arith("addi", last, reach))
                if i in self.terms.skips.terms:
                    first = t.arith("maxsi", first, t.arith("addi", self.operands.m0, reach))

        def floor(x: str) -> str:
            return t.arith("muli", t.arith("divui", x, t.index(bk)), t.index(bk))

        if end != high:  # whole rows of register tiles: what is visited must not be visited again
            ri = t.index(self.operands.config.tile_keys)
            end = t.arith("muli", t.arith("ceildivui", t.arith("maxsi", end, low), ri), ri)
        if first != low:
            first = floor(t.arith("minsi", first, end))
        if full_end != high or self.operands.ragged_keys:
            full_end = floor(t.arith("maxsi", full_end, low))
        if full_first != low:
            full_first = floor(t.shifted(t.arith("minsi", full_first, end), bk - 1))
            full_end = t.arith("maxsi", full_end, full_first)
            if end != high:
                end = t.arith("maxsi", end, full_first)
        return first, full_first, full_end, end

    def edge_blocks(
        self, state: SoftmaxState, ranges: list[tuple[str, str]], left_out: int | None = None
    ) -> SoftmaxState:
        """Visits the blocks of some ranges of keys, the last of each as short as it is, testing positions.

        Blocks that are masked as a whole are left out; with `left_out`, only those are visited in that many first ranges,
        and all in the others.
        """
        t, bk, ri = self.t, self.t.index(self.operands.config.BK), self.t.index(self.operands.config.tile_keys)
        counts = [
            t.arith("ceildivui", t.arith("maxsi", t.arith("subi", high, low), t.index(0)), bk) for low, high in ranges
        ]
        starts = [t.index(0)]
        for count in counts:
            starts.append(t.arith("addi", starts[-1], count))

        def body(step: str, carried: list[str]) -> list[str]:
            (low, high), at = ranges[0], step
            for start, following in zip(starts[1:], ranges[1:], strict=False):
                later = t.arith("cmpi sge,", step, start)
                pairs = [(following[0], low), (following[1], high), (t.arith("subi", step, start), at)]
                low, high, at = (t.let(f"arith.select {later}, {b}, {a} : index") for b, a in pairs)
            k0 = t.arith("addi", low, t.arith("muli", at, bk))
            keys = t.arith("minsi", t.arith("subi", high, k0), bk)
            rows = hide_origin(self.operands, t.arith("muli", t.arith("ceildivui", keys, ri), ri))
            needed = self.needed(k0, rows) if left_out != 0 else True
            if left_out:
                other = t.arith("cmpi sge,", step, starts[left_out])
                needed = Truths(t).either(self.neither(needed, True), other)
            return self.types.pack(self.block_if(needed, self.types.unpack(carried), Block(k0, rows, True)))

        return self.types.unpack(t.loop((t.index(0), starts[-1], t.index(1)), self.types.carried(state), body))

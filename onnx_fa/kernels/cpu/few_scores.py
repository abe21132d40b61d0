"""From products of q and k to what the softmax sees, for one query and keys along the lanes."""

from __future__ import annotations

from dataclasses import dataclass

from onnx_fa.derive.attention import hidden_score
from onnx_fa.kernels.cpu.masks import ScoreTerms
from onnx_fa.kernels.cpu.state import Block
from onnx_fa.kernels.mlir.expressions import Vector
from onnx_fa.kernels.mlir.text import I32
from onnx_fa.kernels.plan.score import IndexStep, uses, varies, window
from onnx_fa.spec.expr import SCORE, K, ScoreExpr, Tensor
from onnx_fa.spec.terms import IndexMask


@dataclass(frozen=True)
class LaneKeys:
    """As many keys of a block as a vector has lanes: the first one's place in the block, and its position; all positions; what is
    known of them alone."""

    at: str
    first: str
    positions: str
    known: dict[ScoreExpr, Vector]


@dataclass(frozen=True)
class FewScores:
    """Scores of one query (whose numbers `terms` have in vectors of their own) and a vector of keys."""

    terms: ScoreTerms

    def keys_at(self, at: str, block: Block) -> LaneKeys:
        """The keys from a place of the block on."""
        t, operands = self.terms.t, self.terms.operands
        first = t.arith("addi", block.k0, at)
        positions = t.arith("addi", t.broadcast(operands.i32(first), I32), operands.lane_numbers(), t.ivec)
        return LaneKeys(at, first, positions, {})

    def score(self, product: str, keys: LaneKeys, r: int, block: Block) -> str:
        """What the softmax sees, in units of log2."""
        t, operands, s = self.terms.t, self.terms.operands, self.terms.capped(product)
        for step in self.terms.steps(block):
            if not isinstance(step, IndexStep):
                s = self.expression(step.expr, s, keys, r, block)
            elif block.edge:
                s = t.select(self._kept(step.mask, keys, r), s, t.splat(step.fill))
        if block.edge and operands.ragged_keys:
            inside = t.let(
                f"arith.cmpi slt, {keys.positions}, {t.broadcast(operands.i32(operands.skv), I32)} : {t.ivec}"
            )
            s = t.select(inside, s, t.splat(hidden_score(operands.spec)))
        return s

    def _kept(self, mask: IndexMask, keys: LaneKeys, r: int) -> str:
        """query + offset - left <= key <= query + offset + right"""
        t, keep = self.terms.t, self.terms.t.dense("true", "i1")
        left, right = window(mask)
        for predicate, by in (("sle", right), ("sge", None if left is None else -left)):
            if by is not None:
                last = t.arith("addi", self.terms.offset(mask), t.index(r + by))
                limit = t.broadcast(self.terms.operands.i32(last), I32)
                inside = t.let(f"arith.cmpi {predicate}, {keys.positions}, {limit} : {t.ivec}")
                keep = t.arith("andi", keep, inside, t.bvec)
        return keep

    def expression(self, expr: ScoreExpr, s: str, keys: LaneKeys, r: int, block: Block) -> str:
        """A step of the plan for one query and the keys."""
        t, terms, operands = self.terms.t, self.terms, self.terms.operands
        tensors = terms.spec.tensors

        def stored(e: Tensor) -> Vector:
            slab, inside = operands.masks[e.index], not (block.edge and operands.ragged_keys)
            at = [*([t.index(r)] if varies(tensors[e.index])[0] else []), keys.first]
            read = t.read(slab.value, slab.type, *at, element=slab.element, in_bounds=inside)
            return operands.to_vector(read, slab.element)

        def by_key(e: ScoreExpr) -> Vector | None:
            if e == K:
                return Vector(keys.positions, "i32")
            if e in terms.row_values[r]:
                return terms.row_values[r][e]  # the same for all queries, as nothing here varies along them
            return stored(e) if isinstance(e, Tensor) else None

        def known(e: ScoreExpr) -> Vector | None:
            if e == SCORE:
                return Vector(s, "f32")
            if e in terms.row_values[r]:
                return terms.row_values[r][e]
            if uses(e, tensors) == {"k"}:
                return terms.vector.emit(e, by_key, keys.known)
            return stored(e) if isinstance(e, Tensor) else None

        return terms.vector.emit(expr, known, {}).value

"""From a product of q and k to what the softmax sees: scale, softcaps, masks and score functions, on tiles of a Triton kernel.
Scores are in units of log2, so that exp is exp2."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from onnx_fa.derive.attention import hidden_score
from onnx_fa.derive.loop import MAXIMUM, SCORE, Walk
from onnx_fa.derive.terms import Term
from onnx_fa.derive.writer import write
from onnx_fa.kernels.plan.score import LOG2E, ExprStep, IndexStep, ScorePlan, window
from onnx_fa.kernels.plan.skipping import Skipping
from onnx_fa.kernels.triton.expressions import SLOPE, Expressions, float_text
from onnx_fa.kernels.triton.language import TritonLanguage
from onnx_fa.kernels.triton.places import Places
from onnx_fa.kernels.triton.ramp import find_ramp, position_text
from onnx_fa.spec.expr import SCORE as UNCHANGED
from onnx_fa.spec.expr import SKV, SQ, Apply, Float, K, Q, ScoreExpr, Tensor, leaves


class Scores:
    """Writes scores and probabilities. `sure` names, for the expressions that a block inside the masks need not compute, what
    stands for them there (BlockRanges.sure); `broadcast` makes a whole tile of a column or a row."""

    def __init__(
        self,
        places: Places,
        plan: ScorePlan,
        skips: Skipping,
        sure: Mapping[ScoreExpr, ScoreExpr],
        broadcast: Callable[[str], str],
    ) -> None:
        spec = places.spec
        self.places, self.plan, self.sure, self.broadcast = places, plan, sure, broadcast
        self.t = places.t
        self.unit = 1.0 if plan.natural else LOG2E
        self.factor = spec.scale * self.unit
        self.ramp = find_ramp(spec, plan, skips)
        self.expressions = Expressions(self.t, spec.Sq, spec.Skv, spec.tensors, spec.dtype == "f32")

    def start_ramp(self) -> None:
        """What a ramp adds along a block of keys; what it adds to the whole block, see `rise`."""
        t = self.t
        if self.ramp is None:
            return
        known: dict[ScoreExpr, str] = {Tensor(i): tile for i, tile in self.places.tiles.items()} | {
            SQ: self.places.sq,
            SKV: self.places.skv,
        }
        slope = self.expressions.emit(Apply(SLOPE, self.ramp.slope), known.get)
        start = position_text(self.ramp.start, {Q: self.places.m0, SQ: self.places.sq, SKV: self.places.skv})
        t.do(f"slope = {slope}")
        t.do("ramp = slope * on.to(tl.float32)[None, :]")
        t.do(f"ramp_start = {start}")

    def rise(self, k0: str) -> str:
        """What a ramp adds to every score of a block, for the workgroup's first query; "" without one."""
        return self.t.let(f"slope * ({k0} - ramp_start).to(tl.float32)") if self.ramp else ""

    def weigh(
        self, walk: Walk, found: Mapping[Term, str], s: str, k0: str, inside: str, edge: bool
    ) -> tuple[str, str, str]:
        """Of a block of products of Q and K: the new maximum of the rows, "" where the walk has none; what multiplies V, "" where
        the walk makes no output; what is summed, "" for nothing. `found`: what earlier walks left."""
        s, factor = self.score(s, k0, inside, edge)
        times, rise = f" * {factor!r}" if factor != 1.0 else "", self.rise(k0)
        known, new = {SCORE: f"{s}{times}"} | {term: f"{x}[:, None]" for term, x in found.items()}, ""
        if walk.has_maximum:
            new = self.t.let(f"tl.maximum(m, tl.max({s}, 1){times}{f' + {rise}' if rise else ''})")
            less = self.t.let(f"{new} - {rise}") if rise else new
            known[MAXIMUM] = f"{less}[:, None]"
        elif rise:
            known[SCORE] += f" + {rise}"
        whole = (
            not edge
            and walk.mass is None
            and all(isinstance(x, ExprStep) and _adds(x.expr) for x in self.steps_of(edge))
        )
        language = TritonLanguage(self.places, {known[SCORE]: (s, factor)} if whole else None)
        written: dict[tuple[Term | None, bool], str] = {}
        for term, multiplied in ((walk.weight, walk.weight_multiplied), (walk.mass, walk.mass_multiplied)):
            if term is not None and (term, False) not in written:
                written[term, False] = self.t.let(write(term, language, known))
            if term is not None and multiplied and (term, True) not in written:
                written[term, True] = self.multiplied(written[term, False], k0, inside)
        weight, mass = (walk.weight, walk.weight_multiplied), (walk.mass, walk.mass_multiplied)
        return new, written.get(weight, ""), written.get(mass, "")

    def multiplied(self, p: str, k0: str, inside: str) -> str:
        """Probabilities times the spec's weights."""
        assert self.plan.weights is not None
        tiles = dict(self.places.tiles)
        for leaf in leaves(self.plan.weights):
            if isinstance(leaf, Tensor) and leaf.index not in tiles:
                tiles[leaf.index] = self.places.tensor_tile(leaf.index, k0, inside)
        known: dict[ScoreExpr, str] = {UNCHANGED: p} | {Tensor(i): tile for i, tile in tiles.items()}
        return self.t.let(self.expressions.emit(self.plan.weights, known.get))

    def steps_of(self, edge: bool) -> list[IndexStep | ExprStep]:
        """The steps that blocks need: on an edge all of them, elsewhere what does not leave the score as it is."""
        steps: list[IndexStep | ExprStep] = []
        for step in self.plan.steps:
            if isinstance(step, IndexStep):
                if edge:
                    steps.append(step)
            elif edge or self.sure.get(step.expr) != UNCHANGED:
                steps.append(step if edge else ExprStep(self.sure.get(step.expr, step.expr)))
        return steps

    def score(self, s: str, k0: str, inside: str, edge: bool) -> tuple[str, float]:
        """What the softmax sees, and a positive factor that is still to be applied."""
        t, places, spec = self.t, self.places, self.places.spec
        steps = self.steps_of(edge)
        late = not spec.mods and self.factor > 0
        late = late and all(isinstance(x, IndexStep) and x.fill == -math.inf for x in steps)
        if spec.mods:
            s = t.let(f"{s} * {spec.scale!r}")
            for i, mod in enumerate(spec.mods):
                s = t.let(self.expressions.tanh(t.let(f"{s} * {1 / mod.cap!r}")))
                s = t.let(f"{s} * {mod.cap * (self.unit if i == len(spec.mods) - 1 else 1.0)!r}")
        elif not late:
            s = t.let(f"{s} * {self.factor!r}")
        tiles = dict(self.places.tiles)
        position = ""
        if steps:
            position = t.let(f"({k0} + on)[None, :]")
        for step in steps:
            if isinstance(step, IndexStep):
                s = self.index_mask(step, s, position)
                continue
            if self.ramp is not None:
                s = t.let(f"{s} + ramp")
                continue
            for leaf in leaves(step.expr):
                if isinstance(leaf, Tensor) and leaf.index not in tiles:
                    tiles[leaf.index] = self.places.tensor_tile(leaf.index, k0, inside)
            now = s
            positions = {Q: places.position, K: position, SQ: places.sq, SKV: places.skv}

            def known(e: ScoreExpr, now: str = now, positions: Mapping[ScoreExpr, str] = positions) -> str | None:
                if isinstance(e, Tensor):
                    return tiles[e.index]
                return positions.get(e, now if e == UNCHANGED else None)

            s = t.let(self.expressions.emit(step.expr, known))
        if steps and not late:
            # An expression may have made a column or a row of it.
            s = self.broadcast(s)
        if inside:
            s = t.let(f"tl.where({inside}[None, :], {s}, {float_text(hidden_score(spec))})")
        return s, self.factor if late else 1.0

    def index_mask(self, step: IndexStep, s: str, position: str) -> str:
        """q + offset - left <= k <= q + offset + right"""
        left, right = window(step.mask)
        offset = f"({self.places.skv} - {self.places.sq})" if step.mask.offset == "end" else f"({step.mask.offset})"
        keeps = [f"({position} <= {self.places.position} + {offset} + {right})"] if right is not None else []
        keeps += [f"({position} >= {self.places.position} + {offset} - {left})"] if left is not None else []
        if not keeps:
            return s
        return self.t.let(f"tl.where({' & '.join(keeps)}, {s}, {float_text(step.fill)})")


def _adds(expr: ScoreExpr) -> bool:
    """Whether an expression adds a finite constant to the score, or is the score."""
    match expr:
        case Apply("Add" | "Sub", (a, Float(value))):
            return math.isfinite(value) and _adds(a)
    return expr == UNCHANGED

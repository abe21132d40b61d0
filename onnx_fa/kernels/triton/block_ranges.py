"""Which blocks of keys a workgroup visits, and which of them no mask touches: from index masks directly, and from masks that
expressions make by interval arithmetic, for many blocks at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from onnx_fa.kernels.plan.bounds import BlockBounds, Range, Truth
from onnx_fa.kernels.plan.score import ExprStep, ScorePlan, free, varies, window
from onnx_fa.kernels.plan.skipping import Skipping
from onnx_fa.kernels.triton.config import power_of_two
from onnx_fa.kernels.triton.expressions import Block, BoundsText
from onnx_fa.kernels.triton.places import Places
from onnx_fa.spec.expr import SKV, SQ, Apply, Bool, Float, K, Q, ScoreExpr, Tensor, tensors_of
from onnx_fa.spec.terms import IndexMask

Ends = tuple[str, str, str, str]
"""(first, full_first, full_end, end): the blocks to visit, and among them a run that no mask touches."""
_SCANNED = 4096
"""Elements of a tensor that are looked at together when blocks are classified."""
_MOST_AT_ONCE = 128
"""Blocks that are classified together where no tensor is looked at."""
_NO_BLOCK = 1 << 30
"""Beyond any number of blocks."""


@dataclass(frozen=True)
class _Choice:
    """A mask that an expression makes: where `condition` holds, the step `expr` leaves `kept`, elsewhere a number."""

    expr: ScoreExpr
    condition: ScoreExpr
    kept: ScoreExpr


class BlockRanges:
    """Writes the classification. `blocks_layout` is appended to the arguments of what counts blocks. `sure` has the expressions
    that blocks between full_first and full_end need not compute, and what stands for them there."""

    def __init__(self, places: Places, plan: ScorePlan, skips: Skipping, blocks_layout: str) -> None:
        self.places, self.plan, self.skips, self.blocks_layout = places, plan, skips, blocks_layout
        self.t = places.t
        self.may_skip = places.config.splits == 1 or skips.threshold is None
        self.sure: dict[ScoreExpr, ScoreExpr] = {}
        self.scanned = False
        self.count = self.last = ""

    def find(self) -> Ends:
        """The blocks of the workgroup, of its split of the keys where these are split."""
        t, places = self.t, self.places
        spec, splits, bn = places.spec, places.config.splits, places.config.BN
        count = t.let(f"tl.cdiv({places.skv}, {bn})") if isinstance(spec.Skv, str) else str(-(-spec.Skv // bn))
        whole = count if not places.ragged_keys else t.let(f"{places.skv} // {bn}")
        self.count = count
        first, full_first, full_end, end = self._of_index_masks(whole)
        scanned = self._scan()
        self.scanned = scanned is not None
        if scanned:
            first, end = (
                t.let(f"tl.{f}({x}, {y})") for f, x, y in (("maximum", scanned[0], first), ("minimum", scanned[3], end))
            )
            full_first = t.let(f"tl.maximum({scanned[1]}, {full_first})")
            full_end = t.let(f"tl.minimum({scanned[2]}, {full_end})")
        if splits > 1:
            t.do("split = tl.program_id(1)")
            per = t.let(f"tl.cdiv(tl.maximum({end} - {first}, 0), {splits})")
            end, first = t.let(f"tl.minimum({first} + (split + 1) * {per}, {end})"), t.let(f"{first} + split * {per}")
        if full_first != "0" or first != "0":
            full_first = t.let(f"tl.maximum({full_first}, {first})")
        if (full_end, end) != (count, count):
            full_end = t.let(f"tl.minimum({full_end}, {end})")
        return first, full_first, full_end, end

    def _of_index_masks(self, whole: str) -> Ends:
        """What index masks leave, of which `whole` blocks lie before the last key."""
        t, places = self.t, self.places
        bn, m0 = places.config.BN, places.m0
        first, full_first, full_end, end = "0", "0", whole, self.count
        if places.ragged_rows:
            self.last = t.let(f"tl.minimum({m0} + {places.span}, {places.sq}) - 1")
        else:
            self.last = t.let(f"{m0} + {places.span - 1}")
        lows, highs, full_lows, full_highs = [], [], [], []
        for i, mask in enumerate(places.spec.masks):
            if not isinstance(mask, IndexMask):
                continue
            left, right = window(mask)
            offset = f"({places.skv} - {places.sq})" if mask.offset == "end" else str(mask.offset)
            skip = i in self.skips.terms and self.may_skip
            if right is not None:
                full_highs.append(f"tl.maximum({m0} + {offset} + {right + 1}, 0) // {bn}")
                if skip:
                    highs.append(f"(tl.maximum({self.last} + {offset} + {right + 1}, 0) + {bn - 1}) // {bn}")
            if left is not None:
                full_lows.append(f"(tl.maximum({self.last} + {offset} - {left}, 0) + {bn - 1}) // {bn}")
                if skip:
                    lows.append(f"tl.maximum({m0} + {offset} - {left}, 0) // {bn}")
        for x in highs:
            end = t.let(f"tl.minimum({x}, {end})")
        for x in lows:
            first = t.let(f"tl.maximum({x}, {first})")
        for x in full_highs:
            full_end = t.let(f"tl.minimum({x}, {full_end})")
        for x in full_lows:
            full_first = t.let(f"tl.maximum({x}, {full_first})")
        return first, full_first, full_end, end

    def _scan(self) -> Ends | None:
        """Classifies all blocks by the masks that expressions make. None where nothing can be known."""
        t, places, count = self.t, self.places, self.count
        lows = self.skips.low if self.may_skip else ()
        choices = self._choices()
        if not lows and not choices:
            return None
        of_keys = self._integers_of_keys((*lows, *(c.condition for c in choices)))
        at_once = max(1, _SCANNED // places.config.BN) if of_keys else _MOST_AT_ONCE
        known = int(count) if count.isdigit() else None
        if known is not None:
            at_once = min(at_once, power_of_two(known))
        looped = known is None or known > at_once
        # A dry run tells whether anything can be known at all.
        if not self._anything((*lows, *(c.condition for c in choices)), of_keys):
            return None
        rows = self._row_ranges()
        ranges: dict[ScoreExpr, Range] = {Q: (t.let(f"{places.m0}.to(tl.int64)"), t.let(f"{self.last}.to(tl.int64)"))}
        names = ("first", "full_first", "full_end", "end")
        for name in names:
            t.do(f"{name} = {count} * 0 + {0 if name == 'end' else _NO_BLOCK}")
        if looped:
            t.do(f"for scanned in range(0, {count}, {at_once}):")
            t.indent += 1
        at = t.let(f"{'scanned + ' if looped else ''}tl.arange(0, {at_once}{self.blocks_layout})")
        inside = t.let(f"{at} < {count}")
        k_low = t.let(f"({at} * {places.config.BN}).to(tl.int64)")
        ranges[K] = (k_low, t.let(f"tl.minimum({k_low} + {places.config.BN}, {places.skv}) - 1"))
        for i in of_keys:
            keys = t.let(f"{at}[:, None] * {places.config.BN} + on[None, :]")
            if known is None or known % at_once or places.ragged_keys:
                keys = f"tl.minimum({keys}, {places.skv} - 1)"
            tile = t.let(f"tl.load({places.bases[i]} + {keys})")
            rows[i] = t.let(f"tl.min({tile}, axis=1).to(tl.int64)"), t.let(f"tl.max({tile}, axis=1).to(tl.int64)")
        for length, d, text in ((SQ, places.spec.Sq, places.sq), (SKV, places.spec.Skv, places.skv)):
            ranges[length] = (d, d) if isinstance(d, int) else (text, text)
        bounds = BlockBounds(BoundsText(t), lambda e: rows.get(e.index) if isinstance(e, Tensor) else ranges[e])
        self._count_in(at, inside, *self._proofs(bounds, lows, choices))
        if looped:
            t.indent -= 1
        return names

    def _choices(self) -> list[_Choice]:
        """The masks that expressions make."""
        choices = []
        for step in self.plan.steps:
            if isinstance(step, ExprStep):
                match step.expr:
                    case Apply("Where", (condition, kept, Float(_))) if free(condition) and not isinstance(
                        condition, Bool
                    ):
                        choices.append(_Choice(step.expr, condition, kept))
        return choices

    def _integers_of_keys(self, conditions: Sequence[ScoreExpr]) -> set[int]:
        """The tensors of integers in some conditions that vary along the keys alone."""
        tensors = self.places.spec.tensors
        return {
            index
            for e in conditions
            for index in tensors_of(e)
            if varies(tensors[index]) == (False, True) and tensors[index].kind == "int"
        }

    def _anything(self, conditions: Sequence[ScoreExpr], of_keys: set[int]) -> bool:
        """Whether interval arithmetic can say anything about the conditions."""

        def leaf(e: ScoreExpr) -> Range | None:
            if not isinstance(e, Tensor):
                return "x", "x"
            tensor = self.places.spec.tensors[e.index]
            return ("x", "x") if tensor.kind == "int" and (e.index in of_keys or not varies(tensor)[1]) else None

        bounds = BlockBounds(BoundsText(Block()), leaf)
        return any(bounds.truth(c)[0] is not False for c in conditions)

    def _row_ranges(self) -> dict[int, Range]:
        """The least and the largest of the integers that do not vary along the keys, over the workgroup's queries."""
        rows: dict[int, Range] = {}
        for i, x in enumerate(self.places.spec.tensors):
            if x.kind == "int" and not varies(x)[1]:
                tile = self.places.tiles[i]
                ends = [
                    self.t.let(f"tl.{f}({tile}).to(tl.int64)" if varies(x)[0] else f"{tile}.to(tl.int64)")
                    for f in ("min", "max")
                ]
                rows[i] = ends[0], ends[1]
        return rows

    def _proofs(
        self, bounds: BlockBounds, lows: Sequence[ScoreExpr], choices: Sequence[_Choice]
    ) -> tuple[Truth, Truth]:
        """Whether a block is surely masked as a whole, and whether no mask that can be proved to keep it touches it."""
        low: Truth = False
        for condition in lows:
            low = bounds.either(low, bounds.truth(condition)[0])
        full: Truth = True
        for choice in choices:
            sure = bounds.truth(choice.condition)[0]
            if sure is not False:
                self.sure[choice.expr] = choice.kept
                full = bounds.both(full, sure)
        return low, full if self.sure else True

    def _count_in(self, at: str, inside: str, low: Truth, full: Truth) -> None:
        """Extends the ranges by the blocks `at`, of which those `inside` exist."""
        t = self.t
        if low is False:
            needed = inside
        else:
            needed = t.let(f"{inside} & ~{low}" if isinstance(low, str) else f"{inside} & ({at} < 0)")
        whole = needed if full is True else t.let(f"{needed} & {full}")
        t.do(f"first = tl.minimum(first, tl.min(tl.where({needed}, {at}, {_NO_BLOCK})))")
        t.do(f"end = tl.maximum(end, tl.max(tl.where({needed}, {at} + 1, 0)))")
        t.do(f"full_first = tl.minimum(full_first, tl.min(tl.where({whole}, {at}, {_NO_BLOCK})))")
        broken = t.let(f"tl.min(tl.where({inside} & ~({whole}) & ({at} > full_first), {at}, {_NO_BLOCK}))")
        t.do(f"full_end = tl.minimum(full_end, {broken})")

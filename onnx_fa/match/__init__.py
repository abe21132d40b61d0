"""The matching engine: anchor at each softmax, walk outward one layer at a time, and name what was found as an AttentionSpec.

A layer is a function from `patterns/` that peels one optional thing (a scale, a mask, a softcap, a transpose, ...). Layers know
nothing of each other, so spellings add up instead of multiplying. What ends in an AttentionSpec is a Match, everything else a
Miss with a reason and a node.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import onnx_ir as ir

from onnx_fa.graph.ops import op_of
from onnx_fa.graph.view import DTYPES, GraphView
from onnx_fa.match.asked import find_asked
from onnx_fa.match.assemble import Found, build_match
from onnx_fa.match.division import one_if_zero, positive_or, reciprocal_of, walk_tail
from onnx_fa.match.dropped import apply_drops, drop_rows, kept_by, masks_by_numbers
from onnx_fa.match.exprs import Call, Const, Expr, known_array, values_of
from onnx_fa.match.in_place import fold_drops, in_words_of_weights, value_at, write_weighting
from onnx_fa.match.low_scores import check_whole_rows
from onnx_fa.match.misses import Miss, NoMatch
from onnx_fa.match.mixed import Types, cast_up_scores, check_mixed, check_scores, in_one_type, is_cast_up, is_mixed
from onnx_fa.match.nans import check_nan
from onnx_fa.match.operands import choose_readings, plan_site
from onnx_fa.match.placed import Site, place_at_softmax, place_on_probabilities, place_steps
from onnx_fa.match.readers import find_other_reader
from onnx_fa.match.several_outputs import add_probabilities, add_statistics, merge_matches
from onnx_fa.match.shown import find_shown_scores
from onnx_fa.match.summed_products import join_summed_products
from onnx_fa.match.types import (
    AddTerm,
    After,
    AfterLayer,
    Anchor,
    Behind,
    Cap,
    Factor,
    Further,
    Guard,
    Integers,
    Map,
    MaskRule,
    Match,
    Nothing,
    OperandChoice,
    Operands,
    OwnSum,
    Patterns,
    Peel,
    Product,
    Regroup,
    Scale,
    ScoreLayer,
    ScoreStage,
    Select,
    Step,
    Tail,
    Term,
    Weighting,
)
from onnx_fa.match.walk_down import walk_after
from onnx_fa.match.walk_up import Reading, parse_score
from onnx_fa.match.wraps import wrap_in_type
from onnx_fa.spec.attention import AttentionSpec
from onnx_fa.spec.terms import never_empty


def find_sites(view: GraphView, patterns: Patterns) -> tuple[list[Match], list[Miss]]:
    """Every attention in the model's graph and its subgraphs, in graph order, and a Miss for every softmax or attention op that
    is not one. Functions are not looked into: see `functions.inline_attention`."""
    matches: list[Match] = []
    misses: list[Miss] = []
    own: set[int] = set()  # bodies of loops that the rewriter wrote: their products are no attention of their own
    for graph in view.model.graphs():
        if isinstance(graph, ir.Function) or id(graph) in own:
            continue
        for node in graph:
            label = node.name or f"{node.op_type}:{node.outputs[0].name if node.outputs else '?'}"
            anchor = None
            try:
                found = _match_op(view, node, label, patterns)
                if found is not None:
                    matches.append(found)
                    if found.keep:
                        own |= {id(a.as_graph()) for a in node.attributes.values() if a.type == ir.AttributeType.GRAPH}
                    continue
                anchor = next((a for rule in patterns.anchors if (a := rule(view, node)) is not None), None)
                if anchor is not None:
                    matches += _match_anchor(view, anchor, label, patterns)
            except NoMatch as miss:
                where = miss.node.name or miss.node.op_type if miss.node is not None else None
                reason = miss.reason if where in (None, label) else f"{miss.reason} (at {where})"
                if anchor is not None and anchor.weight is not None:
                    reason = in_words_of_weights(reason)
                misses.append(Miss(label, anchor.op if anchor else op_of(node), reason))
    return matches, misses


def _match_op(view: GraphView, node: ir.Node, label: str, patterns: Patterns) -> Match | None:
    for rule in patterns.ops:
        found = rule(view, node, label)
        if found is not None:
            return found
    return None


def _match_anchor(view: GraphView, anchor: Anchor, label: str, patterns: Patterns) -> list[Match]:
    """The matches of every matmul with V that reads the probabilities. Matches that differ in V alone become one. Raises NoMatch if
    one of the matmuls is no attention: then none of them is a site."""
    behinds = walk_after(view, anchor, patterns)
    found = [_match_behind(view, anchor, label, patterns, b) for b in behinds]
    outputs = [match.output for match, _, _ in found]
    matches = [match for match, _, _ in found]
    first, qk, site = found[0]
    first = add_probabilities(view, behinds[0], first, site)
    first = replace(first, shown=tuple(find_shown_scores(view, qk, anchor.score)))
    outputs += [f.value for f in first.probabilities]
    if anchor.weight is None:
        matches[0], own = add_statistics(view, anchor, behinds[0], first, site, qk, outputs)
        outputs += [*own, *(f.value for f in matches[0].further)]
    else:
        matches[0] = first
    for _, qk, _ in found:
        reader = find_other_reader(view, qk, outputs, first.shown)
        if reader is not None:
            raise NoMatch("the scores are used for something else too, and would be computed twice", reader)
    asked = [find_asked(view, match, node, outputs) for match, node, _ in found]
    matches[0] = replace(matches[0], asked=tuple(dict.fromkeys(pair for pairs in asked for pair in pairs)))
    return merge_matches(view, matches)


def _match_behind(
    view: GraphView, anchor: Anchor, label: str, patterns: Patterns, behind: Behind
) -> tuple[Match, ir.Node, Site]:
    """The match, the product of Q and K, and the site's dims."""
    if behind.shown or anchor.weight is not None:  # they are shown without the share of a sink that a gate stands for
        patterns = replace(patterns, tail=())
    found = _match_tail(view, anchor, label, patterns, behind)
    spec = found[0].spec
    if spec.sink is not None and anchor.sink is None and spec.empty_row == "nan" and not never_empty(spec.masks):
        # A gate times the NaN of a row without keys is NaN, where a sink's share of it would be zero: the gate stays outside.
        return _match_tail(view, anchor, label, replace(patterns, tail=()), behind)
    return found


@dataclass(frozen=True)
class _Dropped:
    """What the masks on the probabilities mean: steps on the score, a guard, weights of the probabilities, or something that is
    done to the rows of the output. `why` they are weights and not the score's own masks."""

    steps: Sequence[Step]
    guard: Guard
    weights: Expr | None = None
    rows: tuple[Callable[[Expr], Expr], ...] = ()
    why: NoMatch | None = None


def _read_drops(
    view: GraphView,
    patterns: Patterns,
    read: Reading,
    steps: Sequence[Step],
    behind: Behind,
    guard: Guard,
    anchor: Anchor,
) -> _Dropped:
    """What masks mean that set probabilities to zero: those that are not the score's own are weights of 0 or 1, or zeros of rows.
    Raises NoMatch where they are neither."""
    if anchor.weight is not None:
        kept, left = fold_drops(steps, behind, anchor.weight)
        if left is None:
            return _Dropped(kept, guard, behind.weights)
        return _Dropped(
            kept, guard, kept_by(view, [left]), why=NoMatch("weights that may be NaN are set to zero", anchor.node)
        )
    if behind.renormalised and len(behind.drops) == 1 and behind.rounding is None:
        return _Dropped(steps, guard, kept_by(view, behind.drops))
    if behind.renormalised:
        raise NoMatch("probabilities that were divided anew are masked again or rounded", behind.weighting.product.node)
    try:
        return _Dropped(*apply_drops(view, patterns, read, steps, replace(behind, guard=guard), anchor), behind.weights)
    except NoMatch as why:
        rows = drop_rows(view, steps, behind, anchor)
        if rows is not None:
            return _Dropped(steps, guard, rows=rows)
        if behind.rounding is not None:
            raise
        return _Dropped(steps, guard, kept_by(view, behind.drops), why=why)


def _is_nan_dropped(spec: AttentionSpec) -> bool:
    """Whether a key that is dropped behind the softmax, or what stands in its place, may have a NaN there."""
    weighting = spec.weighting
    if weighting is None:
        return spec.empty_row == "nan" and not never_empty(spec.masks)
    zero_by_zero = weighting.total is not None and not (weighting.plus > 0.0 or weighting.least > 0.0)
    return zero_by_zero or (bool(spec.masks) and math.isnan(value_at(weighting.weight, -math.inf)))


def _match_tail(
    view: GraphView, anchor: Anchor, label: str, patterns: Patterns, behind: Behind
) -> tuple[Match, ir.Node, Site]:
    output, guard, sink = walk_tail(view, anchor, behind, patterns)
    if guard == "guarded" and anchor.op.startswith("Exp/"):
        raise NoMatch(
            "exponentials without the row maximum overflow, and a guard turns the NaN of that into zero", anchor.node
        )
    if anchor.op.startswith("Exp/") or behind.steps:
        check_nan(view, anchor, behind, output)
    if sink is not None and behind.steps:
        raise NoMatch("a softmax with a sink is divided anew, without the sink", behind.weighting.product.node)
    v = behind.weighting.product.operands[1 - behind.weighting.side]
    dtype = DTYPES.get(output.dtype or (v.dtype if isinstance(v, ir.Value) else None) or ir.DataType.UNDEFINED)
    failure: NoMatch | None = None
    readings = [(r, join_summed_products(view, patterns, *r)) for r in parse_score(view, anchor.score, patterns)]
    readings.sort(key=lambda r: r[1][1] is r[0][1])  # the product that takes in the others comes first
    for read, (inner, qk) in readings:
        try:
            dropped = _read_drops(view, patterns, read, [*inner, *behind.steps], behind, guard, anchor)
            steps, weights, why = dropped.steps, dropped.weights, dropped.why
            mixed, is_wide = is_mixed(qk, dtype), is_cast_up(view, qk, dtype)
            if mixed:
                check_mixed(anchor, behind)
            elif not is_wide:
                check_scores(qk, dtype, anchor.node)
            narrow = dtype if mixed else None
            site = plan_site(view, patterns, qk, steps, anchor.score, behind.weighting, anchor.axes, narrow)
            operands, types = cast_up_scores(site.operands) if is_wide else site.operands, Types(dtype, dtype)
            if mixed:
                operands, types = in_one_type(operands, dtype, output)
            placed = place_steps(view, patterns, site, steps, types.scores)
            match = build_match(
                view,
                patterns.mask,
                Found(
                    name=label,
                    op=anchor.op,
                    dtype=types.site,
                    scores=types.scores,
                    leaves_as=types.leaves_as,
                    operands=operands,
                    steps=placed,
                    guard=dropped.guard,
                    output=output,
                    anchor=anchor.node,
                    wrap=wrap_in_type(view, (*dropped.rows, *behind.wrap), dtype, anchor.node),
                    v_factors=[place_on_probabilities(view, patterns, site, x) for x in behind.keys],
                    sink=place_at_softmax(site, sink),
                    weights=None if weights is None else place_on_probabilities(view, patterns, site, weights),
                    keeps=why is not None or behind.renormalised,
                    renormalised=behind.renormalised,
                    weighting=write_weighting(anchor, behind),
                ),
            )
            if why is not None and _is_nan_dropped(match.spec) and not masks_by_numbers(view, patterns, read):
                raise why  # a dropped probability is zero even where its row is NaN
            if anchor.by_log:
                check_whole_rows(view, match.spec, match.operands, anchor.node)
            match = replace(match, spec=replace(match.spec, rounding=behind.rounding), exact_scores=mixed)
            return match, qk.node, site
        except NoMatch as e:
            failure = failure or e
    assert failure is not None
    raise failure


__all__ = [
    "AddTerm",
    "After",
    "AfterLayer",
    "Anchor",
    "Behind",
    "Call",
    "Cap",
    "Const",
    "Expr",
    "Factor",
    "Found",
    "Further",
    "Guard",
    "Integers",
    "Map",
    "MaskRule",
    "Match",
    "NoMatch",
    "Nothing",
    "OperandChoice",
    "Operands",
    "OwnSum",
    "Patterns",
    "Peel",
    "Product",
    "Regroup",
    "Scale",
    "ScoreLayer",
    "ScoreStage",
    "Select",
    "Step",
    "Tail",
    "Term",
    "Weighting",
    "build_match",
    "choose_readings",
    "find_sites",
    "known_array",
    "one_if_zero",
    "parse_score",
    "positive_or",
    "reciprocal_of",
    "values_of",
]

"""Brings the tensors of steps, sinks and factors into a form that broadcasts to the canonical dims of a site."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import onnx_ir as ir

from onnx_fa.graph.view import GraphView
from onnx_fa.match.axes import Axis, Group, Sources, leaves
from onnx_fa.match.exprs import Call, Expr
from onnx_fa.match.frames import Frames
from onnx_fa.match.joined import widen_mask
from onnx_fa.match.misses import NoMatch
from onnx_fa.match.types import AddTerm, Factor, Map, Operands, Patterns, Regroup, Select, Step
from onnx_fa.spec.expr import Position, ScoreExpr, parts


@dataclass
class Site:
    """Everything about one site's dims."""

    operands: Operands
    groups: tuple[Group, ...]
    """The score's canonical dims (b.., h, s, t)."""
    sources: Sources
    frames: Frames
    plain: bool
    """No step moves axes: whatever broadcasts to the score broadcasts to the canonical dims."""
    keys_sure: bool
    """K and V have provably equal lengths, or K is expanded to V's: what broadcasts with the score has that many keys, or one."""


def place_steps(
    view: GraphView, patterns: Patterns, site: Site, steps: Sequence[Step], dtype: str | None
) -> list[Step]:
    """The steps without those that move axes. Their tensors broadcast to the canonical dims."""
    result: list[Step] = []
    for step, axes in zip(steps, site.frames.steps, strict=True):
        if isinstance(step, Regroup):
            continue
        if isinstance(step, Map) and reads_position(step.expr) and not _is_aligned(site, axes, 2):
            raise NoMatch("a score function reads positions of axes that are moved afterwards")
        if isinstance(step, Map) and reads_position(step.expr) and any(a.apart for g in site.groups for a in g.atoms):
            raise NoMatch("a score function reads positions of rows that may be repeated afterwards")
        placed = change_tensors(step, _make_fit(view, patterns, site, axes))
        result.append(_expand_mask(view, patterns, site, axes, placed, dtype))
    return result


def change_tensors(step: Step, change: Callable[[Expr], Expr]) -> Step:
    """The step with its tensors changed."""
    match step:
        case AddTerm() | Factor():
            return replace(step, value=change(step.value))
        case Select():
            return replace(step, keep=change(step.keep))
        case Map():
            return replace(step, values=tuple(change(v) for v in step.values))
    return step


def _expand_mask(
    view: GraphView, patterns: Patterns, site: Site, axes: Sequence[Axis], step: Step, dtype: str | None
) -> Step:
    """The step with a mask expanded along the keys, where the length that the mask names is not known to be theirs, and along
    dims in which it may be shorter than the site.

    Along the keys it is that length or one: the product with V fixes how many keys the score has behind the mask, and K how many
    before it.
    """
    if dtype is None or not isinstance(step, (AddTerm, Select, Map)):
        return step

    expanded = change_tensors(step, lambda value: _widen(view, site, axes, value))
    if expanded == step:
        return step
    try:
        patterns.mask(view, step, tuple(g.size for g in site.groups), dtype)
    except NoMatch:
        return expanded
    return step


def _widen(view: GraphView, site: Site, axes: Sequence[Axis], value: Expr) -> Expr:
    """A tensor expanded along those of its last axes that are canonical dims, where it may be shorter."""
    shape = view.shape(value) if isinstance(value, ir.Value) else None
    if isinstance(value, Call):
        shape = value.shape
    if not shape:
        return value
    aligned = next(n for n in range(len(shape), -1, -1) if _is_aligned(site, axes, n))
    return widen_mask(view, value, shape, site.groups[len(site.groups) - aligned :], site.sources, site.keys_sure)


def place_at_softmax(site: Site, value: Expr | None) -> Expr | None:
    """Takes a tensor that broadcasts to the softmax's rows (…, 1), and gives one that broadcasts to the canonical dims."""
    if value is None or _is_aligned(site, site.frames.given, len(site.frames.given)):
        return value
    raise NoMatch("a sink on a softmax whose axes are moved")


def place_on_probabilities(view: GraphView, patterns: Patterns, site: Site, value: Expr) -> Expr:
    """Takes a tensor that broadcasts to the softmax's result, and gives one that broadcasts to the canonical dims."""
    placed = _make_fit(view, patterns, site, site.frames.given)(value)
    return _widen(view, site, site.frames.given, placed) if placed is value else placed


def _make_fit(view: GraphView, patterns: Patterns, site: Site, axes: Sequence[Axis]) -> Callable[[Expr], Expr]:
    def fit(value: Expr) -> Expr:
        shape = view.shape(value) if isinstance(value, ir.Value) else None
        if site.plain:
            return value
        if shape is not None:
            while shape and shape[0] == 1:
                shape = shape[1:]
            if _is_aligned(site, axes, len(shape)):
                return value
        return patterns.place(view, value, axes, site.groups, site.sources)

    return fit


def _is_aligned(site: Site, axes: Sequence[Axis], last: int) -> bool:
    """Whether the last axes are the canonical ones."""
    if last > len(axes) or last > len(site.groups):
        return False
    return all([leaves(axes[-i]) == list(site.groups[-i].atoms) for i in range(1, last + 1)])


def reads_position(expr: ScoreExpr) -> bool:
    """Whether a score function depends on where a score stands."""
    return any(isinstance(part, Position) for part in parts(expr))

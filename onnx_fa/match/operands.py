"""Names the dims of Q, K and V, proves them equal where they must be, and picks how far up the graph each operand is read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import onnx_ir as ir

from onnx_fa.graph.axes import LAST_AXIS, Axes
from onnx_fa.graph.view import GraphView
from onnx_fa.match.axes import Atom, Axis, Group, Source, Sources, leaves, move_axes
from onnx_fa.match.dims import (
    add_unit_groups,
    find_queries,
    find_side_of_keys,
    is_unit,
    merge_sizes,
    name_atoms,
    name_value_axes,
)
from onnx_fa.match.exprs import Expr, values_of
from onnx_fa.match.frames import Frames, trace_axes
from onnx_fa.match.hints import say_sizes
from onnx_fa.match.joined import find_size, widen_reading
from onnx_fa.match.misses import NoMatch
from onnx_fa.match.placed import Site
from onnx_fa.match.types import OperandChoice, Operands, Patterns, Product, Step, Weighting
from onnx_fa.match.walk_up import operands_of
from onnx_fa.spec.terms import Dim


@dataclass(frozen=True)
class _Operand:
    """Q, K or V: operand number `side` of a product, with its axes and, as groups, its rows and its head dim."""

    of: Product
    side: int
    axes: Sequence[Axis]
    rows: Group
    width: Group
    sums_rows: bool = False
    """The product sums over the rows (V), not over the head dim."""

    @property
    def value(self) -> Expr:
        return self.of.operands[self.side]


def plan_site(
    view: GraphView,
    patterns: Patterns,
    qk: Product,
    steps: Sequence[Step],
    score: ir.Value,
    weighting: Weighting,
    over: Axes = LAST_AXIS,
    narrow: str | None = None,
) -> Site:
    """Names the dims of the product of Q and K, of the score on its way through `steps` to the input `score` of a softmax over
    the axes `over`, and of the product with V, and reads Q, K and V. Where Q and K are both cast up from the element type `narrow`
    they are read in front of the casts.

    Raises NoMatch where a dim cannot be proved equal to the one it must equal, or where the products are not an attention's.
    """
    pv, at = weighting.product, qk.node
    atoms = name_atoms(view, qk, at)
    axes = [
        [[atoms[x]] if x in atoms and not is_unit(qk, side, x) else [] for x in qk.letters[side]] for side in (0, 1)
    ]
    start = [[atoms[x]] if x in atoms else [] for x in qk.out]
    frames = trace_axes(view, start, steps, score, weighting, over)
    # What the softmax is over are the keys.
    keys = leaves(frames.softmax[-1]) if frames.softmax else []
    k_side = find_side_of_keys(qk, atoms, keys, at)
    q_letters = qk.letters[1 - k_side]
    q_axes, k_axes = axes[1 - k_side], axes[k_side]
    v_axes, out, e_atoms = name_value_axes(view, weighting, frames, keys)
    in_q, in_k = ({a for axis in x for a in leaves(axis)} for x in (q_axes, k_axes))
    d_atoms = [a for x in q_letters if x not in qk.out and x in atoms for a in atoms[x].leaves()]
    key_dims = [x for x in qk.letters[k_side] if x in atoms and set(atoms[x].leaves()) <= set(keys)]
    own = [atoms[x] for x in q_letters if x in atoms and x in qk.out]
    rows = find_queries(frames, in_q - in_k, own, len(key_dims))
    sizes = [merge_sizes(at, name, x) for name, x in (("q", rows), ("k", keys), ("d", d_atoms), ("e", e_atoms))]
    (Sq, Skv, D, Dv) = sizes
    if not isinstance(D, int) or not isinstance(Dv, int):
        whose = "V" if isinstance(D, int) else "Q and K"
        raise NoMatch(f"the head dim of {whose} is not static{say_sizes(view, (D, Dv))}", at)
    lead = _group_lead(frames, [*rows, *keys], q_axes, k_axes)
    q_rows, k_rows = Group("s", tuple(rows), Sq), Group("s", tuple(keys), Skv)
    d_group, e_group = Group("d", tuple(d_atoms), D), Group("d", tuple(e_atoms), Dv)
    q = _Operand(qk, 1 - k_side, q_axes, q_rows, d_group)
    k = _Operand(qk, k_side, k_axes, k_rows, d_group)
    v = _Operand(pv, 1 - weighting.side, v_axes, k_rows, e_group, sums_rows=True)
    sources = _find_sources(view, (q, k, v), steps)
    kinds = (narrow, narrow, None)
    readings = [_read_operand(view, patterns, o, lead, sources, kind) for o, kind in zip((q, k, v), kinds, strict=True)]
    Hq = lead[-1].size
    chosen = _choose_alike(readings[0], readings[1], readings[2], Hq, at)
    if pv.factor != 1.0:
        chosen = (*chosen[:2], _scale_reading(chosen[2], pv.factor))
    layout, wrap = _lay_out_result(out, (*lead, q_rows, e_group), sources)
    batch = tuple(g.size for g in lead[:-1])
    operands = Operands(*chosen, batch, Hq, chosen[1].heads, Sq, Skv, D, Dv, False, layout, wrap)
    groups = (*lead, q_rows, Group("t", tuple(keys), Skv))
    canonical = [list(g.atoms) for g in groups]
    plain = all([leaves(a) for a in f] == canonical[-len(f) :] for f in (*frames.steps, frames.given))
    keys_sure = _are_lengths_equal(k, v, keys) or any(a.apart for a in keys)
    return Site(operands, groups, sources, frames, plain, keys_sure)


def _group_lead(
    frames: Frames, behind: Sequence[Atom], q_axes: Sequence[Axis], k_axes: Sequence[Axis]
) -> tuple[Group, ...]:
    """The dims other than queries and keys (`behind`), in the softmax's order: batch dims, and last the heads."""
    in_q, in_k = ({a for axis in x for a in leaves(axis)} for x in (q_axes, k_axes))
    lead = [a for axis in frames.softmax for a in leaves(axis) if a not in behind]
    # Heads are what only Q has, because K and V are shared by groups of them; else the last dim that both have.
    grouped = [a for a in lead if a not in in_k and isinstance(a.size, int)]
    shared = [a for a in lead if a in in_k and a in in_q]
    candidates = grouped or shared
    head = candidates[-1] if candidates else None
    batch = [a for a in lead if a is not head]
    groups: tuple[Group, ...] = (
        *(Group(f"b{i}", (a,), a.size) for i, a in enumerate(batch)),
        Group("h", (head,), head.size) if head is not None else Group("h", (), 1),
    )
    # A unit axis that nothing else needs stays a batch dim, so that operands are read as they are.
    if not grouped or head is lead[-1]:
        return add_unit_groups(groups, frames, bool(grouped), q_axes, k_axes)
    return groups


def _find_sources(view: GraphView, operands: Sequence[_Operand], steps: Sequence[Step]) -> Sources:
    """For each atom a value and its axis of that size: an operand's where the atom is an axis of its own, else that of anything
    that the score is made of, as of a mask for each of the windows that Q has beside the batch."""
    sources: Sources = {}
    values = values_of(*(o.value for o in operands), *(x for step in steps for x in operands_of(step)))
    for operand in operands:
        for i, axis in enumerate(operand.axes):
            if len(leaves(axis)) != 1:
                continue
            (atom,) = leaves(axis)
            source = find_size(view, atom, values) if atom.apart else Source(operand.value, i)
            if source is not None:
                sources.setdefault(atom, source)
    for atom in (a for operand in operands for axis in operand.axes for a in leaves(axis)):
        if isinstance(atom.size, str) and atom not in sources and (source := find_size(view, atom, values)) is not None:
            sources[atom] = source
    return sources


def _read_operand(
    view: GraphView,
    patterns: Patterns,
    operand: _Operand,
    lead: tuple[Group, ...],
    sources: Sources,
    narrow: str | None,
) -> list[OperandChoice]:
    """Every reading of an operand, from the product up the graph, and through a Cast from the element type `narrow`."""
    summed, own = (operand.rows, operand.width) if operand.sums_rows else (operand.width, operand.rows)
    marked = _mark_units(operand.of, operand.side, operand.axes, summed, own)
    groups = (*lead, operand.rows, operand.width)
    found = patterns.operand(view, operand.value, marked, groups, sources, narrow)
    if not any(a.apart for axis in operand.axes for a in leaves(axis)):
        return found
    lengths = operand.of.shapes[operand.side]
    return [widen_reading(c, operand.axes, lengths, groups, sources) for c in found if c.integers is None]


def _are_lengths_equal(k: _Operand, v: _Operand, keys: Sequence[Atom]) -> bool:
    """Whether K and V have provably as many rows."""
    rows_of_v = [d for x, d in zip(v.of.letters[v.side], v.of.shapes[v.side], strict=True) if x not in v.of.out]
    keys_of_k = [d for axis, d in zip(k.axes, k.of.shapes[k.side], strict=True) if keys and leaves(axis) == keys]
    return len(keys_of_k) == 1 and keys_of_k == rows_of_v and keys_of_k[0] is not None


def _mark_units(of: Product, side: int, axes: Sequence[Axis], summed: Group, own: Group) -> list[Axis]:
    """An operand's axes. A unit axis carries a mark that says which dim it is: the one summed over, or the operand's own."""
    result: list[Axis] = []
    for letter, axis in zip(of.letters[side], axes, strict=True):
        group: Group | None = None
        if letter not in of.out:
            group = summed
        elif letter not in of.letters[1 - side]:
            group = own
        result.append(leaves(axis) or ([group.mark] if group is not None and not group.atoms else []))
    return result


def _scale_reading(choice: OperandChoice, factor: float) -> OperandChoice:
    """The same reading times a factor, and so the reading behind its dequantisation."""
    integers = choice.integers and replace(choice.integers, plain=_scale_reading(choice.integers.plain, factor))
    return replace(choice, scale=choice.scale * factor, integers=integers)


def _lay_out_result(
    out: Sequence[Axis], groups: Sequence[Group], sources: Sources
) -> tuple[tuple[int, ...], tuple[Callable[[Expr], Expr], ...]]:
    """How the product with V is laid out: a layout that leaves Dv innermost, or else a function of the canonical output."""
    canonical = [list(g.atoms) for g in groups]
    out = [leaves(a) for a in out]
    if out == canonical:
        return (), ()
    if len(out) == len(groups):
        free = list(range(len(groups)))
        layout: list[int] = []
        for axis in out:
            at = next((i for i in free if canonical[i] == axis), None)
            if at is None:
                break
            free.remove(at)
            layout.append(at)
        if len(layout) == len(groups) and layout[-1] == len(groups) - 1:
            return tuple(layout), ()
    return (), (lambda e: move_axes(e, canonical, out, sources),)


def _choose_alike(
    q_all: Sequence[OperandChoice],
    k_all: Sequence[OperandChoice],
    v_all: Sequence[OperandChoice],
    Hq: Dim,
    at: ir.Node,
) -> tuple[OperandChoice, OperandChoice, OperandChoice]:
    """As `choose_readings`, with Q and K both in front of a cast, or else both as the product reads them."""
    q, k = ([c for c in every if c.widened] for every in (q_all, k_all))
    if k and any(c.heads == Hq and c.integers is None for c in q):
        try:
            return choose_readings(q, k, v_all, Hq, at)
        except NoMatch:
            pass  # K has its repeats in front of the product only
    q, k = ([c for c in every if not c.widened] for every in (q_all, k_all))
    return choose_readings(q, k, v_all, Hq, at)


def choose_readings(
    q_all: Sequence[OperandChoice],
    k_all: Sequence[OperandChoice],
    v_all: Sequence[OperandChoice],
    Hq: Dim,
    at: ir.Node,
) -> tuple[OperandChoice, OperandChoice, OperandChoice]:
    """The readings furthest up the graph in which K and V have equal heads that group those of Q, which is never read as integers.
    Raises NoMatch."""
    q = [c for c in q_all if c.heads == Hq and c.integers is None][-1]
    for k in reversed(k_all):
        for v in reversed(v_all):
            if k.heads == v.heads and _groups(Hq, k.heads):
                return q, k, v
    raise NoMatch(f"the heads of Q ({Hq}), K ({k_all[0].heads}) and V ({v_all[0].heads}) do not form groups", at)


def _groups(hq: Dim, hkv: Dim) -> bool:
    return hq == hkv or (isinstance(hq, int) and isinstance(hkv, int) and hkv > 0 and hq % hkv == 0)

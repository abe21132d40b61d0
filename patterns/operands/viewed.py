"""An operand as it stands, reshaped and expanded to the canonical dims of the site."""

from __future__ import annotations

from collections.abc import Sequence

from onnx_fa.match import Expr, OperandChoice
from onnx_fa.match.axes import Axis, Group, Sources, expand_axes, leaves, move_axes, regroup_axes
from onnx_fa.spec.terms import Dim


def view_as_canonical(
    value: Expr, axes: Sequence[Axis], groups: Sequence[Group], sources: Sources, repeat_heads: bool
) -> OperandChoice:
    """The operand reshaped, and if need be expanded, to the canonical dims. Raises NoMatch where a size cannot be told."""
    axes = [[a for a in leaves(axis) if a.size != 1] for axis in axes]
    present = [a for axis in axes for a in axis]
    parts = {g.name: [a for a in g.atoms if a in present] for g in groups}
    whole = [parts[g.name] for g in groups if parts[g.name]]
    stored = sorted(whole, key=lambda axis: present.index(axis[0]))
    if [a for axis in stored for a in axis] != present:
        stored = whole  # a group's atoms are not adjacent: a transpose is needed
    # Unit axes stand where they would in canonical order.
    order = sorted(range(len(groups)), key=lambda i: _place_of(i, groups, parts, stored))
    want = [parts[groups[i].name] for i in order]
    expr = move_axes(value, axes, want, sources)
    missing = [[a for a in groups[i].atoms if a not in present] for i in order]
    missing = [m if groups[i].name != "h" or repeat_heads else [] for m, i in zip(missing, order, strict=True)]
    if any(missing):
        expr = spread_axes(expr, want, [list(groups[i].atoms) for i in order], missing, sources)
    heads: Dim = 1 if not parts["h"] and not repeat_heads else next(g.size for g in groups if g.name == "h")
    return OperandChoice(expr, tuple(order), 1.0, heads)


def _place_of(i: int, groups: Sequence[Group], parts: dict[str, Axis], stored: Sequence[Axis]) -> tuple[float, int]:
    """Where a canonical dim stands among the stored axes; a unit dim right behind the last one before it."""
    for j in range(i, -1, -1):
        axis = parts[groups[j].name]
        if axis:
            at = next(n for n, s in enumerate(stored) if s == axis)
            return at + (0.5 if j != i else 0.0), i
    return -1.0, i


def spread_axes(
    expr: Expr, have: Sequence[Axis], want: Sequence[Axis], missing: Sequence[Axis], sources: Sources
) -> Expr:
    """Expands `have` to `want`, axis by axis; an axis may have only some of its atoms."""
    single_have: list[Axis] = []
    single_want: list[Axis] = []
    for h, w, m in zip(have, want, missing, strict=True):
        if not m:
            single_have.append(h)
            single_want.append(h)
        elif not h:
            single_have.append([])
            single_want.append(w)
        else:
            single_have += [[a] if a in h else [] for a in w]
            single_want += [[a] for a in w]
    expr = regroup_axes(expr, have, single_have, sources)
    grown = [w if h != w else None for h, w in zip(single_have, single_want, strict=True)]
    expr = expand_axes(expr, grown, sources)
    final = [w if m else h for h, w, m in zip(have, want, missing, strict=True)]
    return regroup_axes(expr, single_want, final, sources)

"""Names the dims of Q, K and V, proves them equal where they must be, and picks how far up the graph each operand is read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import onnx_ir as ir

from onnx_fa.graph.ops import op_of
from onnx_fa.graph.symbolic import known, placed_axes
from onnx_fa.graph.view import GraphView, axes_of
from onnx_fa.match.axes import (
    Atom,
    Axis,
    Group,
    Source,
    Sources,
    has_size,
    leaves,
    moved,
    product,
    regroup,
    run_time_size,
    split_atom,
    spread_atom,
)
from onnx_fa.match.types import (
    AddTerm,
    Call,
    Expr,
    Factor,
    Map,
    NoMatch,
    OperandChoice,
    Operands,
    Patterns,
    Product,
    Regroup,
    Select,
    Step,
    Weighting,
)
from onnx_fa.spec.attention import Dim


@dataclass
class Frames:
    """The axes of the score at the product of Q and K, after each step, at the softmax, and of the probabilities."""

    start: list[Axis]
    steps: list[list[Axis]] = field(default_factory=list)
    """The axes that each step sees."""
    given: list[Axis] = field(default_factory=list)
    """Those of the softmax's input and result."""
    softmax: list[Axis] = field(default_factory=list)
    """The same with the axis that the softmax is over last."""
    prob: list[Axis] = field(default_factory=list)


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
    """K and V have provably equal lengths: then what broadcasts with the score has that many keys, or one."""


def plan_site(
    view: GraphView,
    patterns: Patterns,
    qk: Product,
    steps: Sequence[Step],
    score: ir.Value,
    weighting: Weighting,
    over: int = -1,
) -> Site:
    """Names the dims of the product of Q and K, of the score on its way through `steps` to the input `score` of a softmax over
    the axis `over`, and of the product with V, and reads Q, K and V.

    Raises NoMatch where a dim cannot be proved equal to the one it must equal, or where the products are not an attention's.
    """
    pv, at = weighting.product, qk.node
    atoms = _atoms(qk, at)
    axes = [[[atoms[x]] if x in atoms and not _unit(qk, side, x) else [] for x in qk.letters[side]] for side in (0, 1)]
    start = [[atoms[x]] if x in atoms else [] for x in qk.out]
    frames = _trace(view, start, steps, score, weighting, over)
    # What the softmax is over are the keys.
    keys = leaves(frames.softmax[-1]) if frames.softmax else []
    k_side = _side_of_keys(qk, atoms, keys, at)
    q_letters = qk.letters[1 - k_side]
    q_axes, k_axes = axes[1 - k_side], axes[k_side]
    v_axes, out, e_atoms = _values(view, weighting, frames, keys)
    in_q, in_k = ({a for axis in x for a in leaves(axis)} for x in (q_axes, k_axes))
    d_atoms = [a for x in q_letters if x not in qk.out and x in atoms for a in atoms[x].leaves()]
    rows = _rows(frames, in_q - in_k, [atoms[x] for x in q_letters if x in atoms and x in qk.out])
    # The remaining dims, in the order in which the softmax has them, are batch dims and heads.
    lead = [a for axis in frames.softmax for a in leaves(axis) if a not in rows and a not in keys]
    grouped = [a for a in lead if a not in in_k and isinstance(a.size, int)]
    shared = [a for a in lead if a in in_k and a in in_q]
    head = grouped[-1] if grouped else shared[-1] if shared else None
    batch = [a for a in lead if a is not head]
    sizes = [_merged(at, name, x) for name, x in (("q", rows), ("k", keys), ("d", d_atoms), ("e", e_atoms))]
    (Sq, Skv, D, Dv) = sizes
    if not isinstance(D, int) or not isinstance(Dv, int):
        raise NoMatch("the head dim is not static", at)
    lead_groups: tuple[Group, ...] = (
        *(Group(f"b{i}", (a,), a.size) for i, a in enumerate(batch)),
        Group("h", (head,), head.size) if head is not None else Group("h", (), 1),
    )
    # A unit axis that nothing else needs stays a batch dim, so that operands are read as they are.
    if not grouped or head is lead[-1]:
        lead_groups = _with_units(lead_groups, frames, bool(grouped), q_axes, k_axes)
    Hq = lead_groups[-1].size
    q_rows, k_rows = Group("s", tuple(rows), Sq), Group("s", tuple(keys), Skv)
    d_group, e_group = Group("d", tuple(d_atoms), D), Group("d", tuple(e_atoms), Dv)
    q, k, v = qk.operands[1 - k_side], qk.operands[k_side], pv.operands[1 - weighting.side]
    sources: Sources = {}
    for value, value_axes in ((q, q_axes), (k, k_axes), (v, v_axes)):
        for i, axis in enumerate(value_axes):
            if len(leaves(axis)) == 1:
                sources.setdefault(leaves(axis)[0], Source(value, i))

    def read(of: Product, side: int, value_axes: Sequence[Axis], rows: Group, width: Group) -> list[OperandChoice]:
        summed, own = (rows, width) if of is pv else (width, rows)
        marked = _marked(of, side, value_axes, summed, own)
        return patterns.operand(view, of.operands[side], marked, (*lead_groups, rows, width), sources)

    chosen = common_reading(
        read(qk, 1 - k_side, q_axes, q_rows, d_group),
        read(qk, k_side, k_axes, k_rows, d_group),
        read(pv, 1 - weighting.side, v_axes, k_rows, e_group),
        Hq,
        at,
    )
    if pv.factor != 1.0:
        chosen = (*chosen[:2], _scaled(chosen[2], pv.factor))
    layout, wrap = _output(out, (*lead_groups, q_rows, e_group), sources)
    batch_dims = tuple(g.size for g in lead_groups[:-1])
    operands = Operands(*chosen, batch_dims, Hq, chosen[1].heads, Sq, Skv, D, Dv, False, layout, wrap)
    groups = (*lead_groups, Group("s", tuple(rows), Sq), Group("t", tuple(keys), Skv))
    canonical = [list(g.atoms) for g in groups]
    plain = all([leaves(a) for a in f] == canonical[-len(f) :] for f in (*frames.steps, frames.given))
    rows_of_v = [
        d for x, d in zip(pv.letters[1 - weighting.side], pv.shapes[1 - weighting.side], strict=True) if x not in pv.out
    ]
    keys_of_k = [d for a, d in zip(k_axes, qk.shapes[k_side], strict=True) if keys and leaves(a) == keys]
    keys_sure = len(keys_of_k) == 1 and keys_of_k == rows_of_v and keys_of_k[0] is not None
    return Site(operands, groups, sources, frames, plain, keys_sure)


def _marked(of: Product, side: int, axes: Sequence[Axis], summed: Group, own: Group) -> list[Axis]:
    """An operand's axes, where a unit axis says which dim it is: the one summed over, or the operand's own."""
    result: list[Axis] = []
    for letter, axis in zip(of.letters[side], axes, strict=True):
        group = summed if letter not in of.out else own if letter not in of.letters[1 - side] else None
        result.append(leaves(axis) or ([group.mark] if group is not None and not group.atoms else []))
    return result


def placed_steps(
    view: GraphView, patterns: Patterns, site: Site, steps: Sequence[Step], dtype: str | None
) -> list[Step]:
    """The steps without those that move axes, their tensors as they broadcast to the canonical dims."""
    result: list[Step] = []
    for step, axes in zip(steps, site.frames.steps, strict=True):
        if isinstance(step, Regroup):
            continue
        if isinstance(step, Map) and _reads_position(step.expr) and not _aligned(site, axes, 2):
            raise NoMatch("a score function reads positions of axes that are moved afterwards")
        placed = _with_tensors(step, _fitter(view, patterns, site, axes))
        result.append(_with_all_keys(view, patterns, site, axes, placed, dtype))
    return result


def _with_tensors(step: Step, change: Callable[[Expr], Expr]) -> Step:
    match step:
        case AddTerm() | Factor():
            return replace(step, value=change(step.value))
        case Select():
            return replace(step, keep=change(step.keep))
        case Map():
            return replace(step, values=tuple(change(v) for v in step.values))
    return step


def _with_all_keys(
    view: GraphView, patterns: Patterns, site: Site, axes: Sequence[Axis], step: Step, dtype: str | None
) -> Step:
    """The step with a mask expanded along the keys, where the length that the mask names is not known to be theirs.

    It is that length or one: the product with V fixes how many keys the score has behind the mask, and K how many before it.
    """
    keys = site.groups[-1]
    symbolic = site.keys_sure and isinstance(keys.size, str) and len(keys.atoms) == 1
    if dtype is None or not symbolic or not _aligned(site, axes, 1) or not isinstance(step, (AddTerm, Select, Map)):
        return step

    def wide(value: Expr) -> Expr:
        shape = view.shape(value) if isinstance(value, ir.Value) else None
        if not shape or shape[-1] in (1, keys.size):
            return value
        count = run_time_size(list(keys.atoms), site.sources)
        return Call("Expand", (value, count), shape=(*shape[:-1], keys.size))

    expanded = _with_tensors(step, wide)
    if expanded == step:
        return step
    try:
        patterns.mask(view, step, tuple(g.size for g in site.groups), dtype)
    except NoMatch:
        return expanded
    return step


def placed_at_softmax(site: Site, value: Expr | None) -> Expr | None:
    """A tensor that broadcasts to the softmax's rows (…, 1), as it broadcasts to the canonical dims."""
    if value is None or _aligned(site, site.frames.given, len(site.frames.given)):
        return value
    raise NoMatch("a sink on a softmax whose axes are moved")


def _scaled(choice: OperandChoice, factor: float) -> OperandChoice:
    """The same reading times a factor, also as it is behind the dequantisation."""
    integers = choice.integers and replace(choice.integers, plain=_scaled(choice.integers.plain, factor))
    return replace(choice, scale=choice.scale * factor, integers=integers)


def placed_on_probabilities(view: GraphView, patterns: Patterns, site: Site, value: Expr) -> Expr:
    """A tensor that broadcasts to the softmax's result, as it broadcasts to the canonical dims."""
    return _fitter(view, patterns, site, site.frames.given)(value)


def _fitter(view: GraphView, patterns: Patterns, site: Site, axes: Sequence[Axis]) -> Callable[[Expr], Expr]:
    def fit(value: Expr) -> Expr:
        shape = view.shape(value) if isinstance(value, ir.Value) else None
        if site.plain:
            return value
        if shape is not None:
            while shape and shape[0] == 1:
                shape = shape[1:]
            if _aligned(site, axes, len(shape)):
                return value
        return patterns.place(view, value, axes, site.groups, site.sources)

    return fit


def _aligned(site: Site, axes: Sequence[Axis], last: int) -> bool:
    """Whether the last axes are the canonical ones."""
    if last > len(axes) or last > len(site.groups):
        return False
    return all([leaves(axes[-i]) == list(site.groups[-i].atoms) for i in range(1, last + 1)])


def _reads_position(expr: object) -> bool:
    if not isinstance(expr, tuple):
        return False
    return expr[0] in ("q", "k") or any(_reads_position(x) for x in expr[1:])


def _unit(p: Product, side: int, letter: str) -> bool:
    return p.shapes[side][p.letters[side].index(letter)] == 1


def _atoms(p: Product, at: ir.Node) -> dict[str, Atom]:
    """An atom for every letter that is not of size one. Raises NoMatch for batch dims that are not provably equal."""
    atoms: dict[str, Atom] = {}
    for letter in dict.fromkeys("".join(p.letters)):
        dims = [p.shapes[i][p.letters[i].index(letter)] for i in (0, 1) if letter in p.letters[i]]
        if letter in p.out and len(dims) == 2:
            wide = [d for d in dims if d != 1]
            if len(wide) == 2 and (wide[0] is None or wide[0] != wide[1]):
                batch = [
                    [s[i] for i, x in enumerate(t) if x in p.out[:-2]] for s, t in zip(p.shapes, p.letters, strict=True)
                ]
                raise NoMatch(f"the batch dims of Q {batch[0]} and K {batch[1]} are not provably equal", at)
            dims = wide
        size = best_name(dims, f"{at.name}_{letter}")
        if size != 1:
            atoms[letter] = Atom(letter, size)
    return atoms


def best_name(dims: Sequence[Dim | None], other: str) -> Dim:
    """Of sizes that are equal, a number, or else the first that someone named; 1 for no sizes."""
    if not dims:
        return 1
    some = [d for d in dims if d is not None]
    numbers = [d for d in some if isinstance(d, int)]
    named = [d for d in some if known(d)]
    return (numbers or named or some or [other])[0]


def _trace(
    view: GraphView, start: list[Axis], steps: Sequence[Step], score: ir.Value, weighting: Weighting, over: int
) -> Frames:
    """Follows the axes through the steps. Atoms split where a Reshape splits an axis."""
    frames = Frames(start)
    axes = start
    after = iter([*(s.node for s in steps if isinstance(s, Regroup)), None])
    node = next(after)
    for step in steps:
        source = node.inputs[0] if node is not None else score
        axes = _padded(view, axes, source)
        frames.steps.append(axes)
        if isinstance(step, Regroup):
            axes = regrouped_axes(view, step.node, axes)
            node = next(after)
    frames.given = axes = _padded(view, axes, score)
    if not -len(axes) <= over < 0:
        raise NoMatch(f"the softmax is over axis {over} of scores that have {len(axes)}")
    at = len(axes) + over
    frames.softmax = [*axes[:at], *axes[at + 1 :], axes[at]]
    for moved_by in weighting.regroups:
        axes = regrouped_axes(view, moved_by, axes)
    frames.prob = axes
    return frames


def _padded(view: GraphView, axes: list[Axis], value: ir.Value | None) -> list[Axis]:
    """The axes with the unit dims in front that broadcasting a mask has added."""
    shape = view.shape(value)
    if shape is None:
        raise NoMatch("the rank of the score is unknown", value.producer() if value is not None else None)
    extra = len(shape) - len(axes)
    if extra < 0 or any(d != 1 for d in shape[:extra]):
        raise NoMatch("a mask broadcasts the score to more dims", value.producer() if value is not None else None)
    return [*([] for _ in range(extra)), *axes]


def regrouped_axes(view: GraphView, node: ir.Node, axes: list[Axis]) -> list[Axis]:
    """The axes behind a Reshape, Transpose, Squeeze, Unsqueeze or Flatten. Raises NoMatch where they cannot be told."""
    shape = view.shape(node.outputs[0])
    if shape is None:
        raise NoMatch("the rank of the score is unknown", node)
    if op_of(node) == "Transpose":
        perm = list(node.attributes["perm"].as_ints()) if "perm" in node.attributes else list(range(len(axes)))[::-1]
        return [axes[p] for p in perm]
    listed = axes_of(view, node) if op_of(node) in ("Squeeze", "Unsqueeze") else None
    placed = placed_axes(listed, len(shape) if op_of(node) == "Unsqueeze" else len(axes))
    if listed is not None and placed is None:
        raise NoMatch(f"its axes {listed} are none of the score", node)
    if placed is not None and op_of(node) == "Unsqueeze":
        rest = iter(axes)
        return [[] if i in placed else next(rest) for i in range(len(shape))]
    if placed is not None:
        if any(leaves(axes[i]) for i in placed):
            raise NoMatch("an axis that is not provably of size one is squeezed", node)
        return [axis for i, axis in enumerate(axes) if i not in placed]
    found = regroup([a for axis in axes for a in leaves(axis)], shape, split_atom, spread_atom)
    if found is None:
        raise NoMatch(f"how {node.op_type} regroups the axes of the score to {list(shape)} cannot be told", node)
    return found


def _side_of_keys(qk: Product, atoms: dict[str, Atom], keys: Sequence[Atom], at: ir.Node) -> int:
    """Which operand of the product is K: the one that alone has the axis of the softmax."""
    free = []
    for side in (0, 1):
        mine, other = (set(qk.letters[i]) for i in (side, 1 - side))
        free.append(
            {a for x in mine if x in atoms and (x not in other or _unit(qk, 1 - side, x)) for a in atoms[x].leaves()}
        )
    if not keys:  # a single key: the operand that has nothing else of its own
        return 1 if not free[1] or free[0] else 0
    for side in (1, 0):
        if set(keys) <= free[side]:
            return side
    raise NoMatch("the softmax is over another axis than the keys", at)


def _rows(frames: Frames, free: set[Atom], letters: Sequence[Atom]) -> list[Atom]:
    """The queries: of Q's own dims the one next to the keys, else the last."""
    second = set(leaves(frames.softmax[-2])) if len(frames.softmax) > 1 else set()
    if not second:
        return []  # a single query
    own = [x for x in letters if x.leaves() and set(x.leaves()) <= free]
    near = [x for x in own if second & set(x.leaves())]
    best = (near or own)[-1:]
    return [a for x in best for a in x.leaves()]


def _values(
    view: GraphView, weighting: Weighting, frames: Frames, keys: list[Atom]
) -> tuple[list[Axis], list[Axis], list[Atom]]:
    """The axes of V, of the product with V, and V's own atoms."""
    pv, side = weighting.product, weighting.side
    p_letters, v_letters = pv.letters[side], pv.letters[1 - side]
    v_shape = pv.shapes[1 - side]
    if len(frames.prob) != len(p_letters):
        raise NoMatch("the rank of the probabilities is not that of the score", pv.node)
    of: dict[str, Axis] = {x: leaves(a) for x, a in zip(p_letters, frames.prob, strict=True)}
    contracted = [x for x in p_letters if x not in pv.out]
    if [a for x in contracted for a in of[x]] != list(keys) or len(contracted) != 1:
        raise NoMatch(
            "the probabilities are not the left operand of the matmul with V, or it sums over another axis than the keys",
            pv.node,
        )
    axes: list[Axis] = []
    own: list[Atom] = []
    for letter, dim in zip(v_letters, v_shape, strict=True):
        if letter not in p_letters:
            atom = Atom(letter, best_name([dim], f"{pv.node.name}_{letter}"))
            own += [atom] if dim != 1 else []
            of[letter] = [atom] if dim != 1 else []
            axes.append(of[letter])
        elif letter in contracted:
            if (len(keys) == 1 and isinstance(dim, int)) or (len(keys) == 1 and not known(keys[0].size) and known(dim)):
                assert dim is not None
                keys[0].size = dim  # the product with V makes them equal
            axes.append(of[letter])
        elif dim == 1:
            axes.append([])
        elif not of[letter]:  # the probabilities broadcast: one more dim of V's own
            own.append(Atom(letter, best_name([dim], f"{pv.node.name}_{letter}")))
            of[letter] = own[-1:]
            axes.append(of[letter])
        else:
            have = of[letter]
            p_dim = pv.shapes[side][p_letters.index(letter)]
            if dim is None or (not has_size(have, dim) and dim != p_dim):
                batch = [
                    [s[i] for i, x in enumerate(t) if x in pv.out[:-2]]
                    for s, t in zip(pv.shapes, pv.letters, strict=True)
                ]
                raise NoMatch(
                    f"the batch dims of the probabilities {batch[side]} and V {batch[1 - side]} are not provably equal",
                    pv.node,
                )
            axes.append(have)
    return axes, [of[x] for x in pv.out], own


def _merged(at: ir.Node, name: str, atoms: Sequence[Atom]) -> Dim:
    number, symbols = product(atoms)
    if not symbols:
        return number
    return next(iter(symbols)) if number == 1 and symbols.total() == 1 else f"{at.name}_{name}"


def _with_units(
    groups: tuple[Group, ...], frames: Frames, grouped: bool, *operands: Sequence[Axis]
) -> tuple[Group, ...]:
    """The leading groups with unit dims among them, where the score has them and Q and K too."""
    lead = [leaves(a) for a in frames.softmax[:-2]]
    rank = len(frames.softmax)
    if rank < 3 or any(len(o) != rank for o in operands) or len(lead) < len(groups):
        return groups
    real = [g for g in groups if g.atoms]
    if [a for a in lead if a] != [list(g.atoms) for g in real]:
        return groups
    rest = iter(real)
    spread = [next(rest) if axis else Group("", (), 1) for axis in lead]
    if grouped and spread[-1] is not groups[-1]:
        return groups  # K has no such dim: it must stay the head
    sizes = [(g.atoms, g.size) for g in spread]
    return (*(Group(f"b{i}", a, n) for i, (a, n) in enumerate(sizes[:-1])), Group("h", *sizes[-1]))


def _output(
    out: Sequence[Axis], groups: Sequence[Group], sources: Sources
) -> tuple[tuple[int, ...], tuple[Callable[[Expr], Expr], ...]]:
    """How the product with V is laid out: as a layout that leaves Dv innermost, or as what makes it of the canonical output."""
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
    return (), (lambda e: moved(e, canonical, out, sources),)


def common_reading(
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

"""One softmax may have several results. Its products with several V become one site, and row statistics become outputs of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import onnx_ir as ir

from onnx_fa.graph.axes import Axes
from onnx_fa.graph.ops import op_of
from onnx_fa.graph.view import DTYPES, GraphView
from onnx_fa.match.axes import leaves, move_axes
from onnx_fa.match.exprs import Call, Const, Expr, values_of
from onnx_fa.match.low_scores import check_low_scores
from onnx_fa.match.misses import NoMatch
from onnx_fa.match.placed import Site
from onnx_fa.match.readers import find_other_reader
from onnx_fa.match.types import Anchor, Behind, Further, Match, Select
from onnx_fa.match.wraps import wrap_in_type
from onnx_fa.spec.attention import Stat
from onnx_fa.spec.dtypes import NUMPY

_OPS: dict[str, Stat] = {"ReduceLogSumExp": "lse", "ReduceMax": "max"}
_MAX_DV_SIDE_BY_SIDE = 512
"""Values are put side by side up to this width: a kernel holds a block of the output."""


def add_statistics(
    view: GraphView, anchor: Anchor, behind: Behind, match: Match, site: Site, qk: ir.Node, outputs: Sequence[ir.Value]
) -> tuple[Match, list[ir.Value]]:
    """The match with the log-sum-exp and the maximum of its scores as further outputs, where something else reads them, and those
    that stay the model's own; `outputs` are those of all matches of the softmax, whose first match this is.

    Raises NoMatch where what is read cannot be told by the kernel.
    """
    found = [(n.outputs[0], _OPS[op_of(n)]) for n in view.users(anchor.score) if _over_keys(view, n, anchor)]
    if anchor.mass is not None:
        found.append((anchor.mass, "sum"))
    values = [value for value, _ in found]
    stats: list[Stat] = []
    further: list[Further] = []
    own: list[ir.Value] = []
    for value, which in found:
        others = [v for v in values if v is not value]
        merged = _leads_elsewhere(view, anchor.score, value, [*outputs, *others])
        if not merged and find_other_reader(view, qk, [*outputs, *others], match.shown) is None:
            continue  # part of the softmax
        if find_other_reader(view, qk, [*outputs, *values], match.shown) is not None:
            continue  # the scores are read by something else as well: a miss
        if _is_taken_out(view, anchor.score, value, [*outputs, *others]):
            own.append(value)
            continue
        _check(view, match, anchor, behind, value, which)
        if which not in stats:
            stats.append(which)
        further.append(Further(value, 1 + stats.index(which), (_as_read(view, site, match, value, anchor.axes),)))
    return replace(match, spec=replace(match.spec, stats=tuple(stats)), further=tuple(further)), own


def _leads_elsewhere(view: GraphView, score: ir.Value, value: ir.Value, stops: Sequence[ir.Value]) -> bool:
    """Whether a row's maximum or sum is read for more than the softmax, by exponentials of its own: where parts of the keys are
    merged. Those of another softmax over the same scores are none."""
    inside = _in_front(stops)
    others = [user for user in view.users(value) if user not in inside]
    return bool(others) and not _is_taken_out(view, score, value, stops)


def _is_taken_out(view: GraphView, score: ir.Value, value: ir.Value, stops: Sequence[ir.Value]) -> bool:
    """Whether what is made of a statistic is subtracted from the scores again, other than in front of `stops`. The site's own
    scores are rounded otherwise, in the place of their largest number."""
    inside = _in_front(stops)
    seen, stack = {value}, [value]
    while stack:
        for user in view.users(stack.pop()):
            if op_of(user) == "Sub" and user not in inside and score in user.inputs:
                return True
            new = [o for o in user.outputs if o not in seen and o not in stops]
            seen.update(new)
            stack += new
    return False


def _in_front(values: Sequence[ir.Value]) -> set[ir.Node]:
    """All nodes that lead to the values."""
    found: set[ir.Node] = set()
    stack = list(values)
    while stack:
        node = stack.pop().producer()
        if node is not None and node not in found:
            found.add(node)
            stack += [i for i in node.inputs if i is not None]
    return found


def _over_keys(view: GraphView, node: ir.Node, anchor: Anchor) -> bool:
    if view.producer(node.outputs[0], *_OPS) is None or node.inputs[0] is not anchor.score:
        return False
    if "axes" in node.attributes:
        axes = list(node.attributes["axes"].as_ints())
    else:
        given = view.const(node.inputs[1]) if len(node.inputs) > 1 and node.inputs[1] is not None else None
        axes = [] if given is None else [int(a) for a in given.ravel()]
    return view.are_axes(anchor.score, axes, anchor.axes)


def _check(view: GraphView, match: Match, anchor: Anchor, behind: Behind, value: ir.Value, which: Stat) -> None:
    node = value.producer()
    if match.spec.sink is not None:
        raise NoMatch("a row statistic without the sink that the softmax has", node)
    dropped = behind.drops and match.spec.weights is None  # else they weigh what is divided already
    if anchor.unscaled or behind.steps or dropped:
        raise NoMatch("a row statistic of scores that are masked anew behind the softmax", node)
    if which != "sum" and not (which == "max" and _is_only_compared(view, value)):
        check_low_scores(view, match.spec, match.operands, node)


_COMPARED = frozenset("Cast Concat Equal Identity Max ReduceMax Reshape Squeeze Sub Transpose Unsqueeze Where".split())
"""What stands between row maxima and the exponentials of their differences."""
_MAX_COMPARISONS = 200


def _is_only_compared(view: GraphView, top: ir.Value) -> bool:
    """Whether everything that is made of a row's maximum ends in an Exp, as where parts of the keys are merged: how far below
    LOWEST_STAT two maxima are does not count there, as it does not for two scores of one kernel."""
    seen, stack = {top}, [top]
    while stack:
        value = stack.pop()
        if value.is_graph_output() or len(seen) > _MAX_COMPARISONS:
            return False
        for user in view.users(value):
            if op_of(user) == "Exp":
                continue
            if op_of(user) not in _COMPARED:
                return False
            new = [o for o in user.outputs if o not in seen]
            seen.update(new)
            stack += new
    return True


def _as_read(view: GraphView, site: Site, match: Match, value: ir.Value, over: Axes) -> Callable[[Expr], Expr]:
    """A function that turns a statistic of shape (*B, Hq, Sq) into the value that the model reads."""
    shape = view.shape(value)
    rows = [leaves(a) for a in site.frames.softmax[:-1]]
    if shape is not None and len(shape) == len(rows) + len(over):
        for at in sorted(len(shape) + axis for axis in over):
            rows.insert(at, [])
    canonical = [list(g.atoms) for g in site.groups[:-1]]
    changed = canonical != rows
    want = value.dtype
    exact = ir.DataType.DOUBLE if match.spec.dtype == "f64" else ir.DataType.FLOAT
    if shape is None or want is None:
        raise NoMatch("a row statistic of unknown rank or type", value.producer())
    if changed:
        move_axes(value, canonical, rows, site.sources)  # raises NoMatch here and now

    def made(e: Expr) -> Expr:
        e = move_axes(e, canonical, rows, site.sources) if changed else e
        return e if want == exact else Call("Cast", (e,), (("to", int(want)),))

    return made


def add_probabilities(view: GraphView, behind: Behind, match: Match, site: Site) -> Match:
    """The match with the probabilities that are an output of the model. Raises NoMatch where their axes cannot be told."""
    canonical, given = [list(g.atoms) for g in site.groups], [leaves(a) for a in site.frames.given]
    further: list[Further] = []
    for shown in behind.shown:
        value, dtype = shown.value, shown.value.dtype
        if dtype is None:
            raise NoMatch("probabilities of an unknown type are an output", value.producer())
        move_axes(value, canonical, given, site.sources)  # raises NoMatch here and now
        wraps: list[Callable[[Expr], Expr]] = []
        if canonical != given:
            wraps.append(lambda e: move_axes(e, canonical, given, site.sources))
        if DTYPES.get(dtype) != match.spec.dtype:
            wraps.append(lambda e, to=dtype: Call("Cast", (e,), (("to", int(to)),)))  # type: ignore[misc]
        wraps += [_dropped(view, drop, value, dtype) for drop in dict.fromkeys(behind.drops)]
        wraps += wrap_in_type(view, shown.wrap, DTYPES.get(dtype), match.anchor)
        further.append(Further(value, 0, tuple(wraps)))
    return replace(match, probabilities=tuple(further))


def _dropped(view: GraphView, drop: Select, value: ir.Value, dtype: ir.DataType) -> Callable[[Expr], Expr]:
    """Sets to zero what the model has set to zero when it shows the probabilities `value`. Raises NoMatch where that might widen
    them."""
    keep, want = view.shape(drop.keep) if isinstance(drop.keep, ir.Value) else None, view.shape(value)
    pairs = [] if keep is None or want is None else list(zip(reversed(keep), reversed(want), strict=False))
    fits = all(k == 1 or (k is not None and k == d) for k, d in pairs)
    if dtype not in DTYPES or keep is None or want is None or len(keep) > len(want) or not fits:
        raise NoMatch("probabilities that a mask of other dims sets to zero are an output", value.producer())
    zero = Const(np.asarray(0, NUMPY[DTYPES[dtype]]))
    return lambda e: Call("Where", (drop.keep, zero, e) if drop.inverted else (drop.keep, e, zero))


def merge_matches(view: GraphView, matches: Sequence[Match]) -> list[Match]:
    """Makes one match of those that differ in V alone: their values stand side by side, and the output is cut.

    That costs a copy of the values, and saves the scores. A single query is left alone: then the values are most of the work.
    """
    groups: list[list[Match]] = []
    for match in matches:
        group = next((g for g in groups if _joins(view, g, match)), None)
        if group is None:
            groups.append([match])
        else:
            group.append(match)
    return [_side_by_side(g) if len(g) > 1 else g[0] for g in groups]


def _joins(view: GraphView, group: Sequence[Match], match: Match) -> bool:
    first = group[0]
    if match.spec.rank != first.spec.rank:
        return False  # a V of more axes, as of points in space, makes a frame of as many
    if match.spec.Sq == 1 or sum(m.spec.Dv for m in (*group, match)) > _MAX_DV_SIDE_BY_SIDE:
        return False
    like = replace(match.spec, Dv=first.spec.Dv, v_layout=first.spec.v_layout, o_layout=first.spec.o_layout)
    if replace(first.spec, stats=()) != replace(like, stats=()) or match.presents or match.scores or match.keep:
        return False
    pairs = zip(first.operands, match.operands, strict=True)
    if not all(i == 2 or _equal(a, b) for i, (a, b) in enumerate(pairs)):
        return False
    products = [p for m in group if (p := m.output.producer()) is not None]
    return not any(view.depends(v, p) for v in values_of(match.operands[2]) for p in products)


def _equal(a: Expr, b: Expr) -> bool:
    if isinstance(a, Call) and isinstance(b, Call):
        same = (a.op, a.attrs, len(a.args)) == (b.op, b.attrs, len(b.args))
        return same and all(_equal(x, y) for x, y in zip(a.args, b.args, strict=True))
    if isinstance(a, Const) and isinstance(b, Const):
        return a.array.dtype == b.array.dtype and np.array_equal(a.array, b.array)
    return a is b


def _side_by_side(group: Sequence[Match]) -> Match:
    first, rank = group[0], group[0].spec.rank
    layout, out = first.spec.v_layout, first.spec.o_layout
    values = [_turned(m.operands[2], m.spec.v_layout, layout) for m in group]
    v = Call("Concat", tuple(values), (("axis", layout.index(rank - 1)),))
    starts = [0]
    for m in group:
        starts.append(starts[-1] + m.spec.Dv)

    def cut(i: int) -> Callable[[Expr], Expr]:
        bounds = (starts[i], starts[i + 1], out.index(rank - 1))

        def part(e: Expr) -> Expr:
            args = tuple(Const(np.asarray([x], np.int64)) for x in bounds)
            return _turned(Call("Slice", (e, *args)), out, group[i].spec.o_layout)

        return part

    parts = [(cut(i), *m.wrap) for i, m in enumerate(group)]
    stats = next((m.spec.stats for m in group if m.spec.stats), ())
    others = [Further(m.output, 0, wrap) for m, wrap in zip(group[1:], parts[1:], strict=True)]
    return replace(
        first,
        spec=replace(first.spec, Dv=starts[-1], stats=stats),
        operands=(*first.operands[:2], v, *first.operands[3:]),
        wrap=parts[0],
        further=(*others, *(f for m in group for f in m.further)),
    )


def _turned(e: Expr, have: tuple[int, ...], want: tuple[int, ...]) -> Expr:
    """Moves a tensor from one layout to another."""
    return e if have == want else Call("Transpose", (e,), (("perm", tuple(have.index(a) for a in want)),))

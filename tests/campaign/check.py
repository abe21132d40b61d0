"""What came of rewriting one drawn graph."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np
import onnx
from onnx import numpy_helper as nh

from onnx_fa.errors import ModelError
from onnx_fa.forms.replace import Form
from onnx_fa.forms.report import RewriteReport
from onnx_fa.forms.rewrite import rewrite
from tests.support.accounting import unaccounted
from tests.support.time_limit import Endless, time_limit

from .changes import PRODUCTS, SOFTMAX
from .draw import Drawn
from .inputs import Array, Engine, Inputs, has_bfloat16
from .noise import by_rows, distance, movement
from .readings import as_defined, nearest, results_of_readings, shows
from .undefined import MOVES, lost, renormalises, without_maximum

FORMS: tuple[Form, ...] = ("decomposed", "attention", "decomposed", "blocked")
TOLERANCE = {8: 1e-12, 4: 2e-6, 2: 2e-3}
"""Relative norm error of attention against the same in another order of operations, by the bytes of an element."""
BFLOAT16_TOLERANCE = 1.6e-2
SECONDS = 20.0
"""A rewrite of a graph of some hundred nodes takes a fraction of one."""
FINE = ("same", "invalid", "not drawn")


class Fault(Exception):
    """A broken promise: (its kind in a word or two, what happened)."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(f"{kind}: {text}")
        self.kind, self.text = kind, text


@dataclass
class Outcome:
    """`verdict` is "same", "invalid" (no engine runs the original), "not drawn", or the kind of a fault, told in `text`."""

    verdict: str
    sites: int = 0
    misses: int = 0
    text: str = ""
    notes: list[str] = field(default_factory=list)


def _rewritten(model: onnx.ModelProto, form: Form) -> tuple[onnx.ModelProto, RewriteReport]:
    try:
        with time_limit(SECONDS):
            return rewrite(model, form)
    except Endless:
        raise Fault("endless", f"rewrite to {form} took more than {SECONDS:g} s") from None
    except ModelError as error:
        raise Fault(_refusal(model), str(error)) from error
    except Exception as error:
        last = "".join(traceback.format_exception(error)[-4:])[-1500:]
        raise Fault("traceback", f"{type(error).__name__}: {str(error)[:200]}\n{last}") from error


def _refusal(model: onnx.ModelProto) -> str:
    """A refusal is a fault, but of a model that only ONNX's reference evaluator runs, which checks no shapes, and that the checker
    refuses as well."""
    if has_bfloat16(model):
        try:
            onnx.checker.check_model(model, full_check=True)
        except Exception:  # any reason will do
            return "invalid"
    return "refused"


Say = Callable[[str], None]


def check(drawn: Drawn | None, seed: int, say: Say = lambda step: None) -> Outcome:
    """Rewrites the graph to one form and holds the result to every promise. To save time a third is rewritten once more, and of
    what nothing runs a quarter is rewritten at all. `say` hears what runs next, "original", "rewrite" or "result", so that a
    process that ends tells whose fault it was."""
    if drawn is None:
        return Outcome("not drawn")
    form = FORMS[seed % len(FORMS)]
    if form == "attention" and next(o.version for o in drawn.model.opset_import if not o.domain) < 23:
        form = "decomposed"  # there is no such op yet
    say("original")
    if not drawn.feeds.runs(drawn.model, drawn.fixed):
        say("rewrite")
        return _survives(drawn, form) if seed // len(FORMS) % 4 == 0 else Outcome("invalid")
    outcome = Outcome("same")
    try:
        _hold(drawn, form, seed, outcome, say)
    except Fault as fault:
        outcome.verdict, outcome.text = fault.kind, f"{form}: {fault.text}"
    return outcome


def _survives(drawn: Drawn, form: Form) -> Outcome:
    """What nobody runs has no result to keep; but it ends, in a model or in an error of ours."""
    outcome = Outcome("invalid")
    try:
        _rewritten(drawn.model, form)
    except Fault as fault:
        if fault.kind != "refused":
            outcome.verdict, outcome.text = fault.kind, f"of an invalid model, {form}: {fault.text}"
    return outcome


def _hold(drawn: Drawn, form: Form, seed: int, outcome: Outcome, say: Say) -> None:
    say("rewrite")
    model, before = drawn.model, drawn.model.SerializeToString()
    new, report = _rewritten(model, form)
    outcome.sites, outcome.misses = len(report.sites), len(report.misses)
    if model.SerializeToString() != before:
        raise Fault("input changed", "rewrite changed the model that it was given")
    lost = unaccounted(model, report)
    if lost:
        raise Fault("unaccounted", f"neither a site nor a miss: {lost}")
    if seed // len(FORMS) % 3 == 0:
        _settle(new, form, outcome)
    if not report.sites:
        old_ops = [n.op_type for n in model.graph.node]
        if not model.functions and [n.op_type for n in new.graph.node] != old_ops:
            raise Fault("changed", "no site was found, and yet the nodes are others")
        return
    _valid(model, new)
    _compare(replace(drawn, fixed=as_defined(drawn.fixed)), new, form, seed, outcome, say)


def _settle(new: onnx.ModelProto, form: Form, outcome: Outcome) -> None:
    """Rewriting again changes nothing. A site that reads another one's result may be understood only once that is rewritten."""
    for turn in range(4):
        again, _ = _rewritten(new, form)
        if again.SerializeToString() == new.SerializeToString():
            if turn:
                outcome.notes.append("settled later")
            return
        new = again
    raise Fault("unsettled", "rewriting again and again keeps changing the model")


def _valid(model: onnx.ModelProto, new: onnx.ModelProto) -> None:
    try:
        onnx.checker.check_model(model, full_check=True)
    except Exception:  # the checker is stricter than what runs
        return
    try:
        onnx.checker.check_model(new, full_check=True)
    except Exception as error:
        raise Fault("invalid result", str(error)[:500]) from error


def _engine(model: onnx.ModelProto, *, optimise: bool) -> Engine:
    try:
        return Engine(model, optimise=optimise)
    except Exception as error:
        way = "with" if optimise else "without"
        raise Fault("does not load", f"{way} the optimiser: {str(error)[:500]}") from error


def _run(engine: Engine, inputs: Inputs, what: str) -> list[Array]:
    try:
        return engine.run(inputs)
    except Exception as error:
        raise Fault("does not run", f"{what}: {str(error)[:500]}") from error


@dataclass
class _Wanted:
    """What the original makes of one kind of inputs; `optimised` too, unless the optimiser changes it."""

    label: str
    inputs: Inputs
    judge: Judge
    want: list[Array]
    optimised: bool


def _originals(drawn: Drawn, form: Form, seed: int, outcome: Outcome) -> list[_Wanted]:
    """The original's results for all kinds of inputs."""
    fixed, found = drawn.fixed, []
    # onnxruntime's Attention op departs from ONNX's definition where a single causal query has a past, and its scale is of f32.
    has_past = any(len(n.input) > 4 for n in _attention_ops(fixed))
    by_definition = has_past or _has_wide_attention(fixed)
    old, fast = Engine(fixed, by_definition=by_definition), None
    if not old.by_definition and not _odd_keepdims(fixed):
        try:
            fast = Engine(fixed, optimise=True)
        except Exception:  # onnxruntime's exceptions share no base class
            outcome.notes.append("the optimiser refuses the original")
    for label, inputs in drawn.feeds.kinds(fixed, seed % 7, changed=bool(drawn.mutations)).items():
        try:
            want = old.run(inputs)
        except Exception:
            outcome.notes.append("the original fails on other inputs")
            continue
        judge, optimised = Judge(drawn, old, label, inputs, form), False
        if fast is not None:
            try:
                optimised = judge.agree(want, fast.run(inputs))
                if not optimised:
                    outcome.notes.append("the optimiser is wrong on the original")
            except Exception:
                outcome.notes.append("the optimised original fails")
        found.append(_Wanted(label, inputs, judge, want, optimised))
    return found


def _attention_ops(model: onnx.ModelProto) -> list[onnx.NodeProto]:
    return [n for n in model.graph.node if n.op_type == "Attention" and not n.domain]


def _has_wide_attention(model: onnx.ModelProto) -> bool:
    """Whether an Attention op may be of f64."""
    wide = any(i.type.tensor_type.elem_type == onnx.TensorProto.DOUBLE for i in model.graph.input)
    return wide and bool(_attention_ops(model))


def _odd_keepdims(model: onnx.ModelProto) -> bool:
    """Whether a reduction has a keepdims that ONNX does not define: onnxruntime's kernels drop the axis then, and its optimiser,
    which moves a Transpose in front of the reduction, takes it for kept (docs/developer/onnxruntime-bugs.md)."""
    return any(a.name == "keepdims" and a.i not in (0, 1) for n in model.graph.node for a in n.attribute)


def _compare(drawn: Drawn, new: onnx.ModelProto, form: Form, seed: int, outcome: Outcome, say: Say) -> None:
    """Raises Fault where results differ for one kind of inputs."""
    say("original")
    wanted = _originals(drawn, form, seed, outcome)
    say("result")
    have = _engine(new, optimise=False)
    fast = _engine(new, optimise=True) if any(w.optimised for w in wanted) else None
    if _has_wide_attention(drawn.fixed) and _has_wide_attention(new):
        have = Engine(new, by_definition=True)  # onnxruntime departs from it as before
    for w in wanted:
        w.judge.hold(w.want, _run(have, w.inputs, w.label), "")
        if w.optimised and fast is not None:
            w.judge.hold(w.want, _run(fast, w.inputs, f"{w.label}, optimised"), ", optimised")
    if any(w.judge.loose for w in wanted):
        outcome.notes.append("a row of the result is as small as its noise")


class Judge:
    """Says whether results are equal for one kind of inputs. What the original's readings and its noise make of these is computed
    once, where it is asked for."""

    def __init__(self, drawn: Drawn, old: Engine, label: str, inputs: Inputs, form: Form) -> None:
        self.model, self.old, self.label, self.inputs = drawn.fixed, old, label, inputs
        self.bare = bool(without_maximum(self.model))
        self.step = _step(self.model)
        self.more = (shows,) if form == "attention" else ()
        self.loose = False
        """Whether a row of a result was allowed to be anything of its size."""
        self.rounded_on_the_way = _rounded_behind_a_move(self.model)
        self._readings: dict[int, list[Array]] = {}
        self._moves: dict[tuple[int, bytes], tuple[Array, Array]] = {}

    def agree(self, want: list[Array], have: list[Array]) -> bool:
        try:
            self.hold(want, have, "")
        except Fault:
            return False
        return True

    def hold(self, want: list[Array], have: list[Array], how: str) -> None:
        for i, (a, b) in enumerate(zip(want, have, strict=True)):
            if a.shape != b.shape or a.dtype != b.dtype:
                raise Fault("wrong", f"{self.label}{how}: output {i} is {b.dtype}{b.shape}, not {a.dtype}{a.shape}")
            if how and self.model.graph.output[i].name in self.rounded_on_the_way:
                continue
            if a.dtype.kind in "iub":
                self._hold_integers(i, a, b, how)
                continue
            self._hold_floats(i, a, b, how)

    def _others(self, i: int) -> list[Array]:
        if i not in self._readings:
            self._readings[i] = results_of_readings(self.model, self.old, self.inputs, i, self.more)
        return self._readings[i]

    def _movement(self, i: int, want: Array) -> tuple[Array, Array]:
        key = i, want.tobytes()
        if key not in self._moves:
            self._moves[key] = movement(self.model, self.old, self.inputs, i, want)
        return self._moves[key]

    def _hold_integers(self, i: int, a: Array, b: Array, how: str) -> None:
        """Of integers and booleans, such as what IsNaN says of a result, only readings may make others."""
        if np.array_equal(a, b):
            return
        x, y = a.astype(np.float64), b.astype(np.float64)
        right = (a == b) | ((x != y) & (nearest(self._others(i), x, y) == y))
        if not right.all():
            raise Fault("wrong", f"{self.label}{how}: output {i} differs")

    def _hold_floats(self, i: int, a: Array, b: Array, how: str) -> None:
        tolerance = (
            BFLOAT16_TOLERANCE if a.dtype.kind == "V" or a.dtype.name == "bfloat16" else TOLERANCE[a.dtype.itemsize]
        )
        x, y = a.astype(np.float64), b.astype(np.float64)
        if distance(x, y) <= tolerance * _size(x):
            return
        x = nearest(self._others(i), x, y)
        if distance(x, y) <= tolerance * _size(x):
            return
        moves, jumped = self._movement(i, a)
        if moves.size:  # of a row that is another one in a reading the original's noise tells nothing
            moves = np.where(by_rows(np.where(_same(a.astype(np.float64), x), 0.0, 1.0)) > 0, moves.max(), moves)
        allowed = tolerance * _size(x) + 8 * moves + 2 * self.step + _SUBNORMAL
        x = np.where(jumped, y, x)
        self.loose |= bool((allowed >= by_rows(x)).any())
        if _is_near(x, y, allowed):
            return
        if (self.bare or renormalises(self.model)) and " in " not in self.label:
            gone = lost(self.model, self.inputs, i, by_definition=self.old.by_definition)
            x = x if gone is None else np.where(gone, y, x)
        if not _is_near(x, y, allowed):
            text = f"{self.label}{how}: output {i} is off by {distance(x, y):.3g} of {_size(x):.3g}, allowed {allowed.min():.3g}"
            raise Fault("wrong", f"{text} to {allowed.max():.3g}\n{a}\n{b}"[:1500])


_SUBNORMAL = 2.0**-126
"""The smallest normal number of f32. Below it onnxruntime's Softmax makes zeros with AVX2 and keeps what it is with AVX-512."""


def _same(x: Array, y: Array) -> Array:
    return (x == y) | (np.isnan(x) & np.isnan(y))


def _is_near(x: Array, y: Array, allowed: Array) -> bool:
    """Whether each row is as near as it may be, and what is not finite the same."""
    with np.errstate(invalid="ignore"):
        return bool(np.isfinite(distance(x, y)) and (by_rows(x - y) <= allowed).all())


def _size(x: Array) -> float:
    return float(np.linalg.norm(x[np.isfinite(x)]))


def _rounded_behind_a_move(model: onnx.ModelProto) -> set[str]:
    """Outputs that onnxruntime's optimiser may return as a QuantizeLinear behind a move of theirs rounds them
    (docs/developer/onnxruntime-bugs.md)."""
    behind = {n.input[0] for n in model.graph.node if n.op_type == "QuantizeLinear"}
    for node in reversed(model.graph.node):
        if node.op_type in MOVES and node.output[0] in behind:
            behind.add(node.input[0])
    return behind & {o.name for o in model.graph.output}


def _step(model: onnx.ModelProto) -> float:
    """The widest step of those QuantizeLinear nodes that round a result, 0 without one: noise turns over the others, and shows what
    that does to the result."""
    behind = {o.name for o in model.graph.output}
    for node in reversed(model.graph.node):
        if behind.intersection(node.output) and node.op_type not in (*PRODUCTS, *SOFTMAX):
            behind.update(node.input)
    scales = {n.input[1] for n in model.graph.node if n.op_type == "QuantizeLinear" and n.output[0] in behind}
    found = (nh.to_array(i).astype(np.float64) for i in model.graph.initializer if i.name in scales)
    return max((float(x.max()) for x in found if x.size and np.isfinite(x).all()), default=0.0)

"""Random attention graphs: whatever the matcher makes of one, the rewritten graph gives the original's result.

A case is a spelling of every axis, changes to the graph (`graph_changes.py`), symbolic dims and a seed. Most are matched, many
must not be: both are checked alike, against onnxruntime. `ONNX_FA_GRAPHS=20000 pytest tests/match/test_random_attention.py` draws
that many, and ONNX_FA_SEED=N others. A failing case is printed as Python: `check(Case(...))` runs it again.
"""

from __future__ import annotations

import copy
import os
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from onnx import helper as h
from onnx import numpy_helper as nh
from onnx.reference import ReferenceEvaluator

from onnx_fa.forms.replace import Form
from onnx_fa.forms.rewrite import rewrite
from tests.support.accounting import unaccounted
from tests.support.graph_changes import CHANGES, symbolise
from tests.support.ort_run import session
from tests.support.spelling_table import AXES, Entry, entries, of_spelling
from tests.support.spellings import WEIGHT, Spelling

GRAPHS = int(os.environ.get("ONNX_FA_GRAPHS", "0"))
SEED = int(os.environ.get("ONNX_FA_SEED", "0"))
PART = 1000
"""So many of the graphs that are asked for are one test, so that processes can share them and one failure does not end them all."""
TOLERANCE = {8: 1e-12, 4: 2e-6, 2: 2e-3}
"""Relative norm error of attention against the same in another order of operations, by the bytes of an element."""
MATCHED_FLOOR = 0.5
"""Of the valid graphs; a matcher that refuses everything is never wrong."""

Inputs = dict[str, np.ndarray[Any, np.dtype[Any]]]
NAMED = {e.id: e for e in entries()}
BUILDERS = [e.id for e in NAMED.values() if e.spelling is None and e.expected == "match"]
REFUSED = [e.id for e in NAMED.values() if e.spelling is None and e.expected == "refuse"]
"""Graphs that no spelling of the axes makes."""


@dataclass(frozen=True)
class Case:
    """A graph to try: a spelling, or a row of the table by its id; then every (change, place) in order, then symbols as `symbolise`
    reads them (0: none)."""

    base: Spelling | str
    changes: tuple[tuple[str, int], ...] = ()
    symbols: int = 0
    form: Form = "decomposed"
    seed: int = 0

    @property
    def entry(self) -> Entry:
        return NAMED[self.base] if isinstance(self.base, str) else of_spelling("random", "", self.base)


def _axis(name: str, values: tuple[Any, ...]) -> st.SearchStrategy[Any]:
    """Any value, every other time the default one, so that graphs of many unusual layers do not crowd out all others."""
    default = getattr(Spelling(), name)
    return st.just(default) | st.sampled_from([default, *(v for v in values if v != default)])


SPELLINGS = st.builds(
    Spelling,
    **{name: _axis(name, (*values, *WEIGHT) if name == "softmax" else values) for name, values in AXES.items()},
    softcap=st.sampled_from([False, False, False, True]),
    B=st.integers(1, 3),
    Sq=st.integers(1, 6),
    Skv=st.integers(1, 7),
    D=st.integers(1, 5),
    Dv=st.integers(1, 5),
    opset=st.sampled_from([18, 13, 23]),
    fill=st.sampled_from([float("-inf"), -3.4028235e38, -1e9, -1e4]),
)
CASES = st.builds(
    Case,
    st.sampled_from(BUILDERS)
    | st.sampled_from([*BUILDERS, *REFUSED])
    | st.builds(
        lambda s, heads: replace(s, Hq=heads[0], Hkv=heads[1]),
        SPELLINGS,
        st.sampled_from([(2, 2), (4, 4), (4, 2), (4, 1), (1, 1)]),
    ),
    st.just(())
    | st.lists(st.tuples(st.sampled_from(list(CHANGES)), st.integers(0, 255)), min_size=1, max_size=3).map(tuple),
    st.just(0) | st.just(0) | st.integers(1, (1 << 13) - 1),  # unprovable lengths make a graph one to refuse
    st.sampled_from(["decomposed", "decomposed", "attention", "blocked"]),
    st.integers(0, 9),
)


def _feeds(model: onnx.ModelProto, case: Case) -> dict[str, Inputs]:
    """Inputs of many kinds: plain, large scores, rows without any key, a NaN in Q, V or a mask, an infinity in V or a mask.

    Infinite scores are left out: a finite fill is then no longer below every score, and a mask hides other keys than it says. So is
    a NaN in K: adding -inf to its score gives NaN, while a mask term hides that key. What a NaN is
    quantised to, and what an attention op makes of one, nobody says.
    """
    seed, feeds = case.seed, case.entry.feeds
    kinds = {
        "plain": feeds(model, seed),
        "large": feeds(model, seed, large=True),
        "empty rows": feeds(model, seed, empty_rows=True),
    }
    if any(n.domain or n.op_type in ("QuantizeLinear", "Attention") for n in model.graph.node):
        return kinds
    every = (np.nan, np.inf, -np.inf)
    # In a changed graph Q or V may be K as well, and a mask may hide another one's NaN.
    poked = {} if case.changes else {"m": every, "q": every[:1], "v": every}
    for i, (name, value) in enumerate(feeds(model, seed).items()):
        if value.dtype.kind == "f" and value.size and (name[0] in "qv" or name.startswith("mask")):
            for bad in poked.get(name[0], ())[: 1 + (seed + i) % 3]:
                inputs = dict(kinds["plain"])
                inputs[name] = value.copy()
                inputs[name].reshape(-1)[(seed * 7 + i) % value.size] = bad
                kinds[f"{bad} in {name}"] = inputs
    return kinds


def _nudged(inputs: Inputs, seed: int) -> Inputs:
    """The same inputs with every float moved by one ulp, up or down."""
    rng = np.random.default_rng(seed)
    return {
        n: np.where(np.isfinite(x), x * (1 + rng.choice([-1, 1], x.shape) * np.finfo(x.dtype).eps), x).astype(x.dtype)
        if x.dtype.kind == "f"
        else x
        for n, x in inputs.items()
    }


def distance(a: np.ndarray[Any, Any], b: np.ndarray[Any, Any]) -> float:
    """Norm of the difference where both are finite; infinite when they differ in what is not."""
    finite = np.isfinite(a)
    if not np.array_equal(finite, np.isfinite(b)) or not np.array_equal(a[~finite], b[~finite], equal_nan=True):
        return float("inf")
    with np.errstate(over="ignore"):
        return float(np.linalg.norm(a[finite].astype(np.float64) - b[finite].astype(np.float64)))


def _rounding(case: Case, label: str) -> float:
    """How far apart two correct results may be beyond the tolerance, because exp turns an ulp of a score into a relative error.

    2e-4 for scores of several thousand; an ulp of the fill in rows where every key is masked by adding one like -1e4. A fill that
    swallows scores leaves nothing to round.
    """
    if label == "large":
        return 2e-4
    if label != "empty rows" or isinstance(case.base, str) or case.base.fill < -1e37:
        return 0.0
    return abs(case.base.fill) * float(np.finfo(np.float32).eps)


def _step(model: onnx.ModelProto) -> float:
    """The widest step of a QuantizeLinear in the model, 0 without one."""
    scales = {n.input[1] for n in model.graph.node if n.op_type == "QuantizeLinear"}
    return max((float(nh.to_array(i).max()) for i in model.graph.initializer if i.name in scales), default=0.0)


def _assert_same(
    label: str,
    old: ort.InferenceSession | ReferenceEvaluator,
    new: ort.InferenceSession,
    inputs: Inputs,
    rounding: float,
    *,
    heals: bool,
    step: float,
) -> None:
    """Equal, up to the tolerance, or to what moving the inputs by an ulp does to the original where that is more.

    A NaN of the original may have become a number where V holds a NaN or an infinity (zero times a NaN is NaN, while a mask term
    and a guard never look at the keys that they hide), and where scores are large: an original that takes Exp without the maximum,
    or divides anew what is left of the probabilities, divides infinity by infinity or zero by zero there.
    """
    want, have = old.run(None, inputs), new.run(None, inputs)
    if heals or label.endswith("large") or not all(np.isfinite(inputs[n]).all() for n in inputs if n[0] == "v"):
        want = [
            np.where(np.isnan(a), b, a) if a.dtype.kind == "f" and a.shape == b.shape else a
            for a, b in zip(want, have, strict=True)
        ]
    for i, (a, b) in enumerate(zip(want, have, strict=True)):
        assert a.shape == b.shape and a.dtype == b.dtype, label
        if a.dtype.kind != "f":
            np.testing.assert_array_equal(a, b, err_msg=label)
            continue
        allowed = (TOLERANCE[a.dtype.itemsize] + rounding) * float(np.linalg.norm(a[np.isfinite(a)].astype(np.float64)))
        error = distance(a, b)
        if error > allowed:
            moves = [distance(a, old.run(None, _nudged(inputs, seed))[i]) for seed in range(4)]
            allowed += 8 * max((m for m in moves if np.isfinite(m)), default=0.0) + 2 * step
        assert error <= allowed, f"{label}: output {i} is off by {error:.3g}, allowed {allowed:.3g}\n{a}\n{b}"


def _runs(model: onnx.ModelProto, inputs: Callable[[], Inputs]) -> bool:
    """Whether the model is valid for the checker and for onnxruntime; its outputs get the ranks that they turn out to have."""
    try:
        results = session(model, optimise=False).run(None, inputs())
        for info, result in zip(model.graph.output, results, strict=True):
            kind = info.type.tensor_type.elem_type
            info.CopyFrom(h.make_tensor_value_info(info.name, kind, [f"{info.name}_{i}" for i in range(result.ndim)]))
        onnx.checker.check_model(model)
    except Exception:  # both raise kinds of their own; such a graph asks nothing of the matcher
        return False
    return True


def graphs_of(case: Case) -> tuple[onnx.ModelProto, onnx.ModelProto] | None:
    """The case's graph with all dims known, and with symbols. A change that would make it invalid moves on to the next place,
    and is left out when there is none. None when the spelling itself is none that can be built."""
    try:
        model = case.entry.build()
    except (ValueError, onnx.checker.ValidationError):
        return None
    fixed = model

    def inputs() -> Inputs:
        return case.entry.feeds(fixed, case.seed)

    if not _runs(model, inputs):
        return None
    for kind, place in case.changes:
        for step in range(8):
            changed = copy.deepcopy(model)
            if not CHANGES[kind](changed, place + step):
                break
            fixed = changed
            if _runs(changed, inputs):
                model = changed
                break
    fixed = copy.deepcopy(model)
    if case.symbols:
        symbolise(model, case.symbols)
        if not _runs(model, inputs):
            return None
    return fixed, model


def _without_maximum(model: onnx.ModelProto) -> bool:
    """Whether exponentials are taken of scores as they are."""
    tops = {n.output[0] for n in model.graph.node if n.op_type == "ReduceMax"}
    nodes = [n for n in model.graph.node if n.op_type == "Softmax" or (n.op_type == "Sub" and n.input[1] in tops)]
    return not nodes


def check(case: Case) -> str:
    """Tries the form "decomposed" and the case's own. Raises AssertionError when a rewrite changes a result. Returns "matched",
    "refused" or "invalid"."""
    matched = matched_in(case, dict.fromkeys(("decomposed", case.form)))
    if matched is None:
        return "invalid"
    return "matched" if any(matched.values()) else "refused"


def matched_in(case: Case, forms: Iterable[Form]) -> dict[Form, bool] | None:
    """Whether there is a site, by form; None for an invalid graph. Raises AssertionError when a rewrite changes a result."""
    made = graphs_of(case)
    if made is None:
        return None
    fixed, model = made
    # onnxruntime's Attention op departs from ONNX's definition where a single causal query has a past: then that decides.
    defined = case.changes and any(
        n.op_type == "Attention"
        and not n.domain
        and len(n.input) > 4
        and any(x.name == "is_causal" for x in n.attribute)
        for n in model.graph.node
    )
    old = ReferenceEvaluator(fixed) if defined else session(model, optimise=False)
    matched = {}
    for form in forms:
        new, report = rewrite(model, form)
        assert not unaccounted(model, report), f"{form}: neither a site nor a miss"
        again, _ = rewrite(new, form)
        if case.changes:
            # A site that reads another one's result may be understood only once that one is rewritten.
            for _ in range(3):
                new, again = again, rewrite(again, form)[0]
        assert again.SerializeToString() == new.SerializeToString(), f"{form}: rewriting twice changed something"
        matched[form] = bool(report.sites)
        if not report.sites:
            assert model.functions or [n.op_type for n in new.graph.node] == [n.op_type for n in model.graph.node]
            continue
        onnx.checker.check_model(new, full_check=True)
        rewritten = session(new, optimise=False)
        for label, inputs in _feeds(fixed, case).items():
            # The Attention op only knows added masks, and those do not hide a score that is not finite.
            if form == "attention" and not all(np.isfinite(inputs[n]).all() for n in "qk" if n in inputs):
                continue
            # onnxruntime's ReduceMax of NaN and -inf is either, depending on their order: so is what a guard makes of it.
            if label == "nan in q" and any(x in str(case.base) for x in ("maximum is -inf", "lost_rows")):
                continue
            # Without the maximum, exp of a low score has few bits left or none, and so has the original's result.
            bare = bool(case.changes) and _without_maximum(fixed)
            if bare and label in ("large", "empty rows"):
                continue
            # A difference of softmaxes times an infinity becomes a difference of infinities.
            if "difference/" in str(case.base) and label.endswith(" v") and "inf" in label:
                continue
            # A subtracted mask of -inf makes scores infinite, and NaN where another mask adds -inf, which is read as a choice.
            inputs_of = {i.name for i in fixed.graph.input if i.name.startswith("m")}
            heals = bare or any(n.op_type == "Sub" and n.input[1] in inputs_of for n in fixed.graph.node)
            rounding = _rounding(case, label)
            _assert_same(f"{form}, {label}", old, rewritten, inputs, rounding, heals=heals, step=_step(fixed))
    return matched


@pytest.mark.parametrize("part", range(max(1, GRAPHS // PART)))
def test_random_graphs_keep_their_results(part: int, pytestconfig: pytest.Config) -> None:
    tally: Counter[str] = Counter()
    usual = 300 if pytestconfig.getoption("whole") else 100

    @settings(
        max_examples=PART if GRAPHS else usual,
        deadline=None,
        database=None,
        phases=[Phase.generate, Phase.shrink],
        suppress_health_check=list(HealthCheck),
        print_blob=False,
    )
    @seed(1000 * SEED + part)
    @given(case=CASES)
    def one(case: Case) -> None:
        tally[check(case)] += 1

    one()
    print(dict(tally))
    valid = tally["matched"] + tally["refused"]
    assert valid >= 0.7 * tally.total()
    assert tally["matched"] >= MATCHED_FLOOR * valid


@pytest.mark.parametrize("change", CHANGES)
def test_every_change_applies_and_keeps_the_result(change: str) -> None:
    assert any(check(Case(Spelling(mask="and"), ((change, place),))) != "invalid" for place in range(40))
    assert CHANGES[change](of_spelling("", "", Spelling(mask="and")).build(), 0)

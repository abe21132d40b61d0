"""One softmax, several results: row statistics as outputs, and products with more than one V."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import numpy as np
import onnx
import pytest
from onnx import TensorProto as T

from onnx_fa.forms.rewrite import FORMS, explain, rewrite, rewrite_in_place
from onnx_fa.graph.io import load
from onnx_fa.iree.compile import compile_model
from onnx_fa.iree.run import load_module
from onnx_fa.spec.cases import FLOAT_MIN
from onnx_fa.spec.target import parse_target
from onnx_fa.spec.terms import AddMask
from tests.support.ort_run import assert_same, run
from tests.support.spellings_score import Site, feeds

B, H, SQ, SKV, D, DV = 2, 3, 5, 7, 8, 6
ROWS = [B, H, SQ]


def _reduced(op: str, opset: int = 18, keep: int = 1) -> onnx.ModelProto:
    """A softmax, and a reduction of its scores as a further output."""
    g = Site(opset)
    s = g.masked(g.keep(B, 1, SQ, SKV))
    by_input = [g.const([-1], np.int64)] if opset >= 18 else []
    row = g.op(op, s, *by_input, keepdims=keep, **({} if by_input else {"axes": [-1]}))
    out = g.times_v(g.softmax(s))
    return g.model({out: ([B, H, SQ, DV], T.FLOAT), row: (ROWS + [1] * keep, T.FLOAT)})


def _by_lse() -> onnx.ModelProto:
    """exp(score - lse) @ v, and lse."""
    g = Site()
    s = g.score()
    lse = g.reduce("ReduceLogSumExp", s)
    out = g.times_v(g.op("Exp", g.op("Sub", s, lse)))
    return g.model({out: ([B, H, SQ, DV], T.FLOAT), lse: ([*ROWS, 1], T.FLOAT)})


def _both() -> onnx.ModelProto:
    """The spelled-out softmax shows its maximum, and the log-sum-exp feeds a node of the model's own."""
    g = Site()
    s = g.score()
    e, top = g.exp(s)
    out = g.times_v(g.op("Div", e, g.reduce("ReduceSum", e)))
    z = g.op("Mul", g.reduce("ReduceLogSumExp", s), g.const(2.0))
    return g.model({out: ([B, H, SQ, DV], T.FLOAT), top: ([*ROWS, 1], T.FLOAT), z: ([*ROWS, 1], T.FLOAT)})


def _values(count: int = 2, late: bool = False) -> onnx.ModelProto:
    """The probabilities times several V of different widths; the last comes after the first product, if `late`."""
    g = Site()
    p = g.softmax(g.masked(g.keep(B, 1, 1, SKV)))
    outs = {g.times_v(p): ([B, H, SQ, DV], T.FLOAT)}
    for i in range(1, count):
        v = g.input(f"w{i}", [B, H, SKV, DV + i])
        if late:
            v = g.op("Neg", v)
        outs[g.op("MatMul", p, v)] = ([B, H, SQ, DV + i], T.FLOAT)
    return g.model(outs)


def _points() -> onnx.ModelProto:
    """Invariant point attention: values, and points (*, keys, 4, 3) that are flattened and written back."""
    g = Site()
    p = g.softmax(g.score())
    out = g.times_v(p)
    points = g.op("Reshape", g.input("points", [B, SKV, H, 4, 3]), g.const([B, SKV, H, 12], np.int64))
    moved = g.op("Transpose", points, perm=[0, 2, 1, 3])
    o = g.op("Transpose", g.op("MatMul", p, moved), perm=[0, 2, 1, 3])
    o = g.op("Reshape", o, g.const([B, SQ, H, 4, 3], np.int64))
    return g.model({out: ([B, H, SQ, DV], T.FLOAT), o: ([B, SQ, H, 4, 3], T.FLOAT)})


def _chain() -> onnx.ModelProto:
    """The same probabilities twice in a row: V of the second product is the first's result, so they cannot be one."""
    g = Site()
    k = g.input("square", [B, H, SQ, D])
    s = g.op("MatMul", g.q, g.op("Transpose", k, perm=[0, 1, 3, 2]))
    p = g.softmax(s)
    first = g.op("MatMul", p, k)
    second = g.op("MatMul", p, first)
    return g.model({first: ([B, H, SQ, D], T.FLOAT), second: ([B, H, SQ, D], T.FLOAT)})


def _pairs() -> onnx.ModelProto:
    """Values, and what there is of each pair of places: by weights of each head it is a term of the scores, too. Of this product
    the heads are rows, and the frame has an axis more."""
    g = Site()
    pairs = g.input("pairs", [B, SQ, SKV, 8])
    weights = g.const(np.linspace(-1, 1, 8 * H, dtype=np.float32).reshape(8, H))
    term = g.op("Transpose", g.op("MatMul", pairs, weights), perm=[0, 3, 1, 2])
    p = g.softmax(g.op("Add", g.score(), term))
    of_pairs = g.op("Einsum", p, pairs, equation="bhij,bijd->bhid")
    return g.model({g.times_v(p): ([B, H, SQ, DV], T.FLOAT), of_pairs: ([B, H, SQ, 8], T.FLOAT)})


def _agents() -> onnx.ModelProto:
    """Agents gather from the keys, and queries from the agents: the last softmax stands in front of the first."""
    g = Site()
    agents = g.const(np.linspace(-1, 1, B * H * 4 * D, dtype=np.float32).reshape(B, H, 4, D))
    from_agents = g.softmax(g.op("MatMul", g.q, g.op("Transpose", agents, perm=[0, 1, 3, 2])))
    from_keys = g.softmax(g.op("MatMul", agents, g.op("Transpose", g.k, perm=[0, 1, 3, 2])))
    out = g.op("MatMul", from_agents, g.times_v(from_keys))
    return g.model({out: ([B, H, SQ, DV], T.FLOAT)})


MODELS: dict[str, tuple[Callable[[], onnx.ModelProto], int, tuple[str, ...], int]] = {
    "lse": (lambda: _reduced("ReduceLogSumExp"), 1, ("lse",), DV),
    "lse, no unit axis": (lambda: _reduced("ReduceLogSumExp", keep=0), 1, ("lse",), DV),
    "maximum, old opset": (lambda: _reduced("ReduceMax", 13), 1, ("max",), DV),
    "softmax by lse": (_by_lse, 1, ("lse",), DV),
    "both": (_both, 1, ("max", "lse"), DV),
    "two values": (_values, 1, (), 2 * DV + 1),
    "three values": (lambda: _values(3, late=True), 1, (), 3 * DV + 3),
    "points": (_points, 1, (), DV + 12),
    "pairs": (_pairs, 2, (), 8),
    "chain": (_chain, 2, (), D),
    "agents": (_agents, 2, (), DV),
}


@pytest.mark.parametrize("name", MODELS)
def test_one_site(name: str) -> None:
    build, sites, stats, dv = MODELS[name]
    model = build()
    report = explain(model)
    assert len(report.sites) == sites and not report.misses, report.misses
    spec = report.sites[0].spec
    assert set(spec.stats) == set(stats) and spec.Dv == dv
    for form in ("decomposed", *(("blocked",) if not stats else ())):
        new, done = rewrite(model, form)  # type: ignore[arg-type]
        onnx.checker.check_model(new, full_check=True)
        assert len(done.sites) == sites and not done.misses
        inputs = feeds(model, 1)
        assert_same(run(model, inputs), run(new, inputs))
        again, _ = rewrite(new, form)  # type: ignore[arg-type]
        assert again.SerializeToString() == new.SerializeToString(), "rewriting twice changed something"


@pytest.mark.parametrize("form", ["decomposed", "site"])
def test_sites_read_what_is_in_the_model(form: Literal["decomposed", "site"]) -> None:
    model = load(_agents())
    _, sites = rewrite_in_place(model, form)
    made = {*model.graph.inputs, *model.graph.initializers.values(), *(o for node in model.graph for o in node.outputs)}
    assert len(sites) == 2 and all(made.issuperset(site.operands) for site in sites)
    assert sites[0].operands[2] is sites[1].output


def test_a_form_that_refuses_leaves_nothing_behind() -> None:
    g = Site()
    q = g.input("q3", [H, SQ, D])  # an Unsqueeze, with a constant, would make it canonical
    s = g.op("MatMul", q, g.op("Transpose", g.k, perm=[0, 1, 3, 2]))
    e, top = g.exp(s)
    out = g.times_v(g.op("Div", e, g.reduce("ReduceSum", e)))
    model = g.model({out: ([B, H, SQ, DV], T.FLOAT), top: ([*ROWS, 1], T.FLOAT)})
    once, report = rewrite(model, "blocked")
    assert not report.sites and "row statistics" in report.misses[0].reason
    assert [i.name for i in once.graph.initializer] == [i.name for i in model.graph.initializer]
    assert rewrite(once, "blocked")[0].SerializeToString() == once.SerializeToString()


def _with_lse(change: Callable[[Site, str], str]) -> onnx.ModelProto:
    g = Site()
    s = change(g, g.score())
    lse = g.reduce("ReduceLogSumExp", s)
    return g.model({g.times_v(g.softmax(s)): ([B, H, SQ, DV], T.FLOAT), lse: ([*ROWS, 1], T.FLOAT)})


def _fill(value: float) -> np.ndarray[Any, Any]:
    """A mask whose second row masks every key."""
    mask = np.zeros((SQ, SKV), np.float32)
    mask[1], mask[2, 3:] = value, value
    return mask


def _less_ones(g: Site, fill: float) -> str:
    kept = g.op("Cast", g.keep(B, 1, SQ, SKV), to=T.FLOAT)
    return g.op("Mul", g.op("Sub", g.const(1.0), kept), g.const(fill))


def _lowest_twice(g: Site, s: str) -> str:
    return g.op("Add", g.op("Add", s, g.const(_fill(FLOAT_MIN))), g.const(_fill(FLOAT_MIN)))


TOLD: dict[str, Callable[[Site, str], str]] = {
    "a constant of -1e4": lambda g, s: g.op("Add", s, g.const(_fill(-1e4))),
    "a constant of -1e36": lambda g, s: g.op("Add", s, g.const(_fill(-1e36))),
    "the lowest f32": lambda g, s: g.op("Add", s, g.const(_fill(FLOAT_MIN))),
    "-inf": lambda g, s: g.op("Add", s, g.const(_fill(-np.inf))),
    "a mask of f16": lambda g, s: g.op("Add", s, g.op("Cast", g.input("h", [SQ, SKV], T.FLOAT16), to=T.FLOAT)),
    "the lowest f32 in place of scores": lambda g, s: g.op("Where", g.keep(B, 1, SQ, SKV), s, g.const(FLOAT_MIN)),
    "(1 - mask) * -1e4": lambda g, s: g.op("Add", s, _less_ones(g, -1e4)),
}
NOT_TOLD: dict[str, Callable[[Site, str], str]] = {
    "a constant of -1e38": lambda g, s: g.op("Add", s, g.const(_fill(-1e38))),
    "half the lowest f32": lambda g, s: g.op("Add", s, g.op("Mul", g.const(_fill(FLOAT_MIN)), g.const(0.5))),
    "the lowest f32 twice": _lowest_twice,
    "a tensor": lambda g, s: g.op("Add", s, g.input("m", [SQ, SKV])),
    "-1e38 in place of scores": lambda g, s: g.op("Where", g.keep(B, 1, SQ, SKV), s, g.const(-1e38)),
    "(1 - mask) * -1e38": lambda g, s: g.op("Add", s, _less_ones(g, -1e38)),
}
"""Masks with which a row's largest score can lie where kernels know one number only."""


@pytest.mark.parametrize("name", [*TOLD, *NOT_TOLD])
def test_row_statistics_of_low_masks(name: str) -> None:
    report = explain(_with_lse({**TOLD, **NOT_TOLD}[name]))
    if name in TOLD:
        assert report.sites[0].spec.stats == ("lse",) and not report.misses
    else:
        assert not report.sites and "a row statistic of scores" in report.misses[0].reason


# A score of several products.


def _latent(where: str = "first", heads: int = 1, scaled: bool = False, opset: int = 18) -> onnx.ModelProto:
    """Multi-head latent attention: the score is a product of contents plus one of rotary positions, whose keys the heads share."""
    g = Site(opset)
    q2, k2 = g.input("q2", [B, H, SQ, 4]), g.input("k2", [B, heads, 4, SKV])
    plain = g.op("MatMul", g.q, g.op("Transpose", g.k, perm=[0, 1, 3, 2]))
    if scaled:
        plain = g.op("Mul", plain, g.const(0.3))
    pair = [plain, g.op("MatMul", q2, k2)]
    score = g.op("Add", *(pair if where == "first" else pair[::-1]))
    if not scaled:
        score = g.op("Mul", score, g.const(0.3))
    return g.done(g.times_v(g.softmax(g.op("Where", g.keep(B, 1, SQ, SKV), score, g.const(-np.inf)))))


def _by_einsum() -> onnx.ModelProto:
    """Absorbed latent attention: both products are over one latent head of keys, and V is that latent."""
    g = Site()
    c, r = g.input("latent", [B, SKV, D]), g.input("rope", [B, SKV, 4])
    plain = g.op("Einsum", g.input("qc", [B, SQ, H, D]), c, equation="bshc,btc->bhst")
    rope = g.op("Einsum", g.input("qr", [B, SQ, H, 4]), r, equation="bshr,btr->bhst")
    p = g.softmax(g.op("Mul", g.op("Add", plain, rope), g.const(0.3)))
    out = g.op("Einsum", p, c, equation="bhst,btc->bshc")
    return g.model({out: ([B, SQ, H, D], T.FLOAT)})


SUMS: dict[str, tuple[Callable[[], onnx.ModelProto], int]] = {
    "rope last": (_latent, D + 4),
    "rope first": (lambda: _latent("last"), D + 4),
    "of every head": (lambda: _latent(heads=H), D + 4),
    "scaled apart": (lambda: _latent(scaled=True), D + 4),
    "absorbed": (_by_einsum, D + 4),
}


@pytest.mark.parametrize("name", SUMS)
def test_sum_of_products(name: str) -> None:
    build, d = SUMS[name]
    model = build()
    report = explain(model)
    (site,) = report.sites
    assert not report.misses and d == site.spec.D and not any(isinstance(m, AddMask) for m in site.spec.masks)
    for form in FORMS:
        new, _ = rewrite(model, form)
        onnx.checker.check_model(new, full_check=True)
        inputs = feeds(model, 1)
        assert_same(run(model, inputs), run(new, inputs))
        again, _ = rewrite(new, form)
        assert again.SerializeToString() == new.SerializeToString(), "rewriting twice changed something"


def test_a_product_that_is_read_twice_stays_a_bias() -> None:
    g = Site()
    far = g.op("MatMul", g.input("q2", [B, H, SQ, 4]), g.input("k2", [B, H, 4, SKV]))
    out = g.times_v(g.softmax(g.op("Add", g.score(), far)))
    model = g.model({out: ([B, H, SQ, DV], T.FLOAT), far: ([B, H, SQ, SKV], T.FLOAT)})
    (site,) = explain(model).sites
    assert site.spec.D == D and [type(m) for m in site.spec.masks] == [AddMask]


@pytest.mark.parametrize("again", [True, False])
def test_a_maximum_that_is_taken_out_of_the_scores_again(again: bool) -> None:
    """Scores of thousands are rounded otherwise in the site: of its maximum and the model's scores the exponentials are not 1.
    Where something else reads the maximum alone, it is the site's."""
    g = Site()
    s = g.op("Mul", g.score(), g.const(0.3))
    out = g.times_v(g.softmax(s))
    top = g.reduce("ReduceMax", s)
    if again:
        total = g.reduce("ReduceSum", g.op("Exp", g.op("Sub", s, top)))
        top = g.op("Min", g.op("Log", total), g.op("Mul", top, top))
    model = g.model({out: ([B, H, SQ, DV], T.FLOAT), top: ([*ROWS, 1], T.FLOAT)})
    inputs = {name: x * np.float32(1 if name == "v" else 30) for name, x in feeds(model, 1).items()}
    new, report = rewrite(model, "decomposed")
    assert report.sites[0].spec.stats == (() if again else ("max",))
    (_, want), (_, have) = run(model, inputs), run(new, inputs)
    np.testing.assert_allclose(have, want, rtol=1e-6, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("form", ["site", "decomposed"])
def test_compiled(form: str, tmp_path: Path) -> None:
    """A score of two products, two V and the log-sum-exp: one dispatch, and the original's numbers; also of the written model."""
    g = Site()
    rope = g.op("MatMul", g.input("q2", [B, H, SQ, 4]), g.input("k2", [B, 1, 4, SKV]))
    s = g.op("Where", g.keep(B, 1, SQ, SKV), g.op("Add", g.score(), rope), g.const(-np.inf))
    p = g.softmax(s)
    out, other = g.times_v(p), g.op("MatMul", p, g.input("w", [B, H, SKV, 4]))
    lse = g.op("ReduceLogSumExp", s, g.const([-1], np.int64), keepdims=0)
    model = g.model({out: ([B, H, SQ, DV], T.FLOAT), other: ([B, H, SQ, 4], T.FLOAT), lse: (ROWS, T.FLOAT)})
    report = compile_model(
        model if form == "site" else rewrite(model)[0], tmp_path / "m.vmfb", parse_target("cpu-host")
    )
    (site,) = report.sites
    assert (site.fused, site.dispatches, report.misses) == (True, 1, ())
    assert (site.spec.D, site.spec.Dv, site.spec.stats) == (D + 4, DV + 4, ("lse",))
    inputs = feeds(model, 1)
    have = load_module(tmp_path / "m.vmfb")(*(inputs[i.name] for i in model.graph.input))
    assert_same(run(model, inputs), [np.asarray(x) for x in have])

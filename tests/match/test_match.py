"""What the matcher recognises and what it must leave alone; every rewritten graph equals the original in onnxruntime."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import TensorProto as T
from onnx import helper as h

from onnx_fa.forms.rewrite import FORMS, explain, rewrite
from onnx_fa.spec.terms import AddMask, BoolMask, Causal, SlidingWindow, Softcap
from tests.support.ort_run import TOLERANCE, assert_same, run
from tests.support.spellings import GUARD, KT, MASK, PV, REPEAT, SCALE, SOFTMAX, Graph, Spelling, build, feeds

LARGE_SCORE_TOLERANCE = 2e-4
"""The same with scores up to several thousand: an ulp of such a score is 2e-4, and exp turns it into a relative error."""


def check(model: onnx.ModelProto, *, seed: int = 0, sites: int = 1, inputs: Any = feeds) -> None:
    report = explain(model)
    assert len(report.sites) == sites, report.misses
    for form in FORMS:
        new, rewritten = rewrite(model, form)
        onnx.checker.check_model(new, full_check=True)
        assert [i.name for i in new.graph.input] == [i.name for i in model.graph.input]
        assert [o.name for o in new.graph.output] == [o.name for o in model.graph.output]
        assert new.opset_import == model.opset_import
        if form != "attention" and sites:
            assert not rewritten.misses
        for large, empty in ((False, False), (True, False), (False, True)):
            given = inputs(model, seed, large=large, empty_rows=empty)
            assert_same(run(model, given), run(new, given), LARGE_SCORE_TOLERANCE if large else TOLERANCE)
        poisoned = inputs(model, seed)
        poisoned["q"].reshape(-1)[0] = np.nan
        assert_same(run(model, poisoned), run(new, poisoned))
        again, _ = rewrite(new, form)
        assert again.SerializeToString() == new.SerializeToString(), "rewriting twice changed something"


AXES = [
    *(Spelling(scale=x) for x in SCALE),
    *(Spelling(kt=x) for x in KT),
    *(Spelling(kt=x, mask="where") for x in KT),
    *(Spelling(pv=x, mask="and") for x in PV),
    *(Spelling(repeat=x, Hkv=n) for x in REPEAT for n in (1, 2)),
    *(Spelling(mask=x) for x in MASK),
    *(Spelling(mask=x, fill=-3.4028235e38) for x in ("where", "bool_add", "and", "const_causal")),
    *(Spelling(mask="where", fill=f) for f in (-1e9, -1e4)),
    *(Spelling(softmax=x, mask="bool_add") for x in SOFTMAX),
    *(Spelling(guard=x, mask="bool_add") for x in GUARD),
    Spelling(softcap=True),
    Spelling(softcap=True, mask="and", guard="isnan"),
    Spelling(Hkv=2),
    Spelling(Hkv=1, mask="add"),
    Spelling(Hkv=2, kt="sandwich", mask="and", scale="both", guard="isnan"),
    Spelling(opset=13, softmax="explicit"),
    Spelling(opset=13, softmax="deferred", Hkv=2),
]


@pytest.mark.parametrize(
    "spelling",
    AXES,
    ids=lambda s: "-".join(f"{k}={v}" for k, v in vars(s).items() if v != vars(Spelling())[k]) or "plain",
)
def test_each_axis(spelling: Spelling) -> None:
    check(build(spelling))


spellings = st.builds(
    Spelling,
    scale=st.sampled_from(SCALE),
    kt=st.sampled_from(KT),
    pv=st.sampled_from(PV),
    repeat=st.sampled_from(REPEAT),
    mask=st.sampled_from(MASK),
    softmax=st.sampled_from(SOFTMAX),
    guard=st.sampled_from(GUARD),
    softcap=st.booleans(),
    B=st.integers(1, 3),
    Sq=st.integers(1, 9),
    Skv=st.integers(2, 9),
    D=st.integers(1, 9),
    Dv=st.integers(1, 9),
    fill=st.sampled_from([float("-inf"), -3.4028235e38]),
).map(lambda s: replace(s, guard="none", pv="matmul") if s.softmax == "deferred" else s)


@settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
@given(spelling=spellings, heads=st.sampled_from([(4, 4), (4, 2), (4, 1), (1, 1)]), seed=st.integers(0, 99))
def test_any_combination_is_matched_or_refused_and_never_wrong(
    spelling: Spelling, heads: tuple[int, int], seed: int
) -> None:
    if heads[0] != heads[1] and spelling.kt in ("bshd", "given"):
        heads = (heads[0], heads[0])
    if spelling.kt == "bmm" or spelling.guard == "row_factor":
        spelling = replace(spelling, pv="matmul")  # nothing may move axes between these and the output
    model = build(replace(spelling, Hq=heads[0], Hkv=heads[1]))
    unusual = spelling.softcap and spelling.scale == "after_mask"
    check(model, seed=seed, sites=0 if unusual and explain(model).misses else 1)


def spec_of(**kwargs: Any) -> Any:
    (site,) = explain(build(Spelling(**kwargs))).sites
    return site.spec


def test_recovers_the_meaning() -> None:
    spec = spec_of(Hkv=2, scale="both", kt="sandwich", mask="and", guard="isnan")
    assert (spec.Hq, spec.Hkv, spec.Sq, spec.Skv, spec.D, spec.Dv, spec.batch) == (4, 2, 7, 9, 8, 6, (2,))
    assert spec.scale == pytest.approx(8**-0.5)
    assert spec.empty_row == "guarded"
    assert spec.masks == (Causal(0), BoolMask((2, 1, 1, 9)))
    assert spec_of(softcap=True).mods == (Softcap(3.0),)
    assert spec_of(mask="const_causal").masks == (Causal(0),)
    assert spec_of(mask="range_causal").masks == (Causal(0),)
    assert spec_of(mask="const_window").masks == (SlidingWindow(left=2, right=1),)
    assert spec_of(mask="sub").masks == (AddMask((2, 1, 1, 9), factor=-1.0),)
    assert spec_of(mask="after_mask", scale="none").masks == ()
    assert spec_of(kt="bshd").k_layout == (0, 2, 1, 3)
    assert spec_of(kt="given").k_layout == (0, 1, 3, 2)
    assert spec_of(mask="where", fill=-3.4028235e38).empty_row == "mean"


def test_attention_op_with_every_simple_attribute() -> None:
    for attrs in ({}, {"is_causal": 1}, {"scale": 0.3}, {"softcap": 2.0}, {"is_causal": 1, "softcap": 4.0}):
        for mask, kind in ((None, 0), ([2, 1, 7, 9], T.FLOAT), ([7, 9], T.BOOL)):
            g = Graph(23)
            q, k, v = g.input("q", [2, 4, 7, 8]), g.input("k", [2, 2, 9, 8]), g.input("v", [2, 2, 9, 6])
            extra = [g.input("mask", list(mask), kind)] if mask else []
            g.nodes.append(h.make_node("Attention", [q, k, v, *extra], ["o"], name="attn", **attrs))
            model = g.model({"o": ([2, 4, 7, 6], T.FLOAT)})
            (site,) = explain(model).sites
            assert site.op == "Attention" and site.spec.empty_row == "zero"
            for form in ("decomposed", "blocked"):
                new, _ = rewrite(model, form)
                assert not any(n.op_type == "Attention" for n in new.graph.node)
                inputs = feeds(model, empty_rows=bool(mask))
                if mask and kind == T.BOOL:
                    inputs["mask"][0] = True  # onnxruntime and the standard differ on rows without any key
                elif mask:
                    inputs["mask"][np.isneginf(inputs["mask"])] = -5.0
                assert_same(run(model, inputs), run(new, inputs))


def test_three_dimensional_attention_op_with_past() -> None:
    g = Graph(23)
    q, k, v = g.input("q", [2, 3, 16]), g.input("k", [2, 3, 8]), g.input("v", [2, 3, 8])
    past = [g.input("pk", [2, 2, 5, 4]), g.input("pv", [2, 2, 5, 4])]
    g.nodes.append(
        h.make_node(
            "Attention",
            [q, k, v, "", *past],
            ["o", "nk", "nv"],
            q_num_heads=4,
            kv_num_heads=2,
            is_causal=1,
            name="attn",
        )
    )
    model = g.model({"o": ([2, 3, 16], T.FLOAT), "nk": ([2, 2, 8, 4], T.FLOAT), "nv": ([2, 2, 8, 4], T.FLOAT)})
    (site,) = explain(model).sites
    assert site.spec.masks == (Causal(5),) and site.spec.Skv == 8
    inputs = feeds(model)
    for form in ("decomposed", "blocked"):
        new, _ = rewrite(model, form)
        assert_same(run(model, inputs), run(new, inputs))


def must_not_match(g: Graph, outputs: dict[str, tuple[list[int | str], int]], reason: str) -> None:
    model = g.model(outputs)
    report = explain(model)
    assert not report.sites
    assert any(reason in m.reason for m in report.misses), report.misses
    new, _ = rewrite(model)
    assert [n.op_type for n in new.graph.node] == [n.op_type for n in model.graph.node]


def test_leaves_alone_what_is_not_attention() -> None:
    def qkv(g: Graph) -> tuple[str, str, str]:
        return g.input("q", [2, 4, 8, 8]), g.input("k", [2, 4, 8, 8]), g.input("v", [2, 4, 8, 8])

    out = {"o": ([2, 4, 8, 8], T.FLOAT)}
    g = Graph(18)
    q, k, v = qkv(g)
    p = g.op("Softmax", g.op("MatMul", q, k), axis=2)
    g.nodes.append(h.make_node("MatMul", [p, v], ["o"]))
    must_not_match(g, out, "another axis than the keys")

    g = Graph(18)
    x, w = g.input("x", [2, 8]), g.const(np.ones((8, 10)))
    g.nodes.append(h.make_node("Softmax", [g.op("MatMul", x, w)], ["o"], axis=-1))
    must_not_match(g, {"o": ([2, 10], T.FLOAT)}, "graph output")

    g = Graph(18)
    x, w = g.input("x", [2, 8]), g.const(np.ones((8, 4)))
    p = g.op("Softmax", g.op("MatMul", x, w), axis=-1)
    g.nodes.append(h.make_node("TopK", [p, g.const([2], np.int64)], ["o", "i"]))
    must_not_match(g, {"o": ([2, 2], T.FLOAT), "i": ([2, 2], T.INT64)}, "TopK")

    g = Graph(18)
    q, k, v = qkv(g)
    p = g.op("Softmax", g.op("MatMul", q, k), axis=-1)
    p = g.op("Div", p, g.input("w", [8, 8]))
    g.nodes.append(h.make_node("MatMul", [p, v], ["o"]))
    must_not_match(g, out, "divided by a tensor")

    g = Graph(18)
    q, k, v = qkv(g)
    p = g.op("Softmax", g.op("MatMul", q, k), axis=-1)
    o = g.op("MatMul", p, v)
    g.nodes.append(h.make_node("Add", [o, p], ["o"]))
    must_not_match(g, out, "several nodes")

    g = Graph(18)
    q, k, v = qkv(g)
    p = g.op("Softmax", g.op("MatMul", q, k), axis=-1)
    g.nodes.append(h.make_node("MatMul", [v, p], ["o"]))
    must_not_match(g, out, "left operand")

    g = Graph(18)
    q, _, v = qkv(g)
    p = g.op("Softmax", g.op("Sin", q), axis=-1)
    g.nodes.append(h.make_node("MatMul", [p, v], ["o"]))
    must_not_match(g, out, "not from a matmul")

    g = Graph(18)
    q, k = g.input("q", ["a", 4, 8, 8]), g.input("k", [None, 4, 8, 8])
    v = g.input("v", ["a", 4, 8, 8])
    g.nodes.append(h.make_node("MatMul", [g.op("Softmax", g.op("MatMul", q, k), axis=-1), v], ["o"]))
    must_not_match(g, {"o": (["a", 4, 8, 8], T.FLOAT)}, "not provably equal")


def test_keeps_names_metadata_and_the_callers_model() -> None:
    model = build(Spelling(mask="add"))
    model.producer_name, model.doc_string = "someone", "notes"
    entry = model.metadata_props.add()
    entry.key, entry.value = "who", "me"
    before = model.SerializeToString()
    new, _ = rewrite(model)
    assert model.SerializeToString() == before
    assert (new.producer_name, new.doc_string) == ("someone", "notes")
    assert [(p.key, p.value) for p in new.metadata_props] == [("who", "me")]


def test_symbolic_lengths() -> None:
    g = Graph(18)
    q, k, v = g.input("q", ["b", 4, "s", 8]), g.input("k", ["b", 2, "t", 8]), g.input("v", ["b", 2, "t", 8])
    shape = g.op(
        "Concat", g.op("Shape", q, start=0, end=1), g.const([4], np.int64), g.op("Shape", k, start=2, end=4), axis=0
    )
    five = g.op(
        "Concat", g.op("Shape", k, start=0, end=2), g.const([2], np.int64), g.op("Shape", k, start=2, end=4), axis=0
    )

    def repeat(x: str) -> str:
        return g.op("Reshape", g.op("Expand", g.op("Unsqueeze", x, g.const([2], np.int64)), five), shape)

    kt = g.op("Transpose", repeat(k), perm=[0, 1, 3, 2])
    score = g.op("Mul", g.op("MatMul", q, kt), g.const(0.3))
    p = g.op("Softmax", score, axis=-1)
    g.nodes.append(h.make_node("MatMul", [p, repeat(v)], ["o"]))
    model = g.model({"o": (["b", 4, "s", 8], T.FLOAT)})
    (site,) = explain(model).sites
    assert (site.spec.batch, site.spec.Hkv, site.spec.Sq, site.spec.Skv) == (("b",), 2, "s", "t")
    rng = np.random.default_rng(0)
    for b, s, t in ((1, 1, 1), (2, 5, 3), (3, 7, 70)):
        inputs = {
            n: rng.standard_normal((b, hh, x, 8)).astype(np.float32)
            for n, hh, x in (("q", 4, s), ("k", 2, t), ("v", 2, t))
        }
        for form in ("decomposed", "blocked"):
            assert_same(run(model, inputs), run(rewrite(model, form)[0], inputs))

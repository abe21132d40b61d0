"""Probabilities that are multiplied by a tensor, or partly set to zero, before they multiply V: one site with weights."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto as T
from onnx.reference import ReferenceEvaluator

from onnx_fa.errors import UnsupportedError
from onnx_fa.forms.rewrite import explain, rewrite
from onnx_fa.iree.compile import compile_model
from onnx_fa.iree.run import load_module
from onnx_fa.kernels.choose import emit_kernel
from onnx_fa.spec.attention import AttentionSpec
from onnx_fa.spec.cases import draw_operands
from onnx_fa.spec.reference import attention
from onnx_fa.spec.target import parse_target
from onnx_fa.spec.terms import BoolMask, Causal, TensorArg
from tests.support.kernel_harness import Kernels, mismatch
from tests.support.ort_run import TOLERANCE, assert_same, run
from tests.support.spellings_layout import B, D, E, H, Layout, N, S, feeds, qkv

LARGE_SCORE_TOLERANCE = 2e-4


def _weighted(how: str, kv: int = H) -> Callable[[], onnx.ModelProto]:
    def build() -> onnx.ModelProto:
        g = Layout(18)
        q, k, v = qkv(g, (B, H, S, D), (B, kv, N, D), (B, kv, N, E))
        if kv != H:
            k, v = (g.op("Gather", x, g.const(np.repeat(np.arange(kv), H // kv), np.int64), axis=1) for x in (k, v))
        keep = g.input("mask", [B, 1, S, N], T.BOOL)
        upright = how == "upright"
        if upright:
            score = g.scaled(g.op("MatMul", k, g.transpose(q, 0, 1, 3, 2)))
        else:
            score = g.scaled(g.op("MatMul", q, g.transpose(k, 0, 1, 3, 2)))
        if how in ("masked otherwise", "drop where rows may be empty", "divided anew where rows may be empty"):
            fill = -1e9 if how == "masked otherwise" else -np.inf
            score = g.op("Where", g.input("mask_other", [S, N], T.BOOL), score, g.const(fill))
        if how.startswith("triangle dropped"):  # what Keras and keras_hub do about a causal mask
            keep = g.const(np.tril(np.ones((S, N))), bool)
            score = g.op("Where", keep, score, g.const(-1e9 if how == "triangle dropped" else -1.0))
            keep = g.const(np.tril(np.ones((S, N)), -1), bool) if how.endswith("rows") else keep
        if how == "masked by -inf":
            score = g.op("Where", keep, score, g.const(-np.inf))
        p = _probabilities(g, how, score, keep)
        if upright:
            return g.done(g.op("MatMul", g.transpose(v, 0, 1, 3, 2), p), B, H, E, S)
        out = g.op("MatMul", p, v)
        if how == "deferred":
            out = g.op("Div", out, g.op("ReduceSum", g.exponentials, g.const([-1], np.int64)))
        return g.done(out, B, H, S, E)

    return build


def _probabilities(g: Layout, how: str, score: str, keep: str) -> str:
    if how == "deferred":
        g.exponentials = g.op("Exp", g.op("Sub", score, g.op("ReduceMax", score, g.const([-1], np.int64))))
        return g.op("Mul", g.exponentials, g.input("weights", [S, N]))
    p = g.op("Softmax", score, axis=-2 if how == "upright" else -1)
    zero = g.const(0.0)
    match how:
        case (
            "drop"
            | "masked otherwise"
            | "drop where rows may be empty"
            | "triangle dropped"
            | "triangle dropped, other rows"
        ):
            return g.op("Where", keep, p, zero)
        case "drop inverted":
            return g.op("Where", keep, zero, p)
        case "times a mask":
            return g.op("Mul", p, g.op("Cast", keep, to=T.FLOAT))
        case "of heads":
            return g.op("Mul", g.input("weights", [1, H, S, N]), p)
        case "triangle":
            return g.op("Mul", p, g.const(np.tril(np.ones((S, N)))))
        case "masked by -inf":
            p = g.op("Where", g.op("IsNaN", p), zero, p)
            return g.op("Mul", p, g.input("weights", [S, N]))
        case "upright":
            return g.op("Mul", p, g.input("weights", [N, S]))
        case "and per row":
            p = g.op("Mul", p, g.const(np.linspace(-1, 1, S)[:, None]))
            return g.op("Mul", g.op("Mul", p, g.input("weights", [S, N])), g.const(np.linspace(0, 2, N)))
        case "divided":
            return g.op("Div", p, g.input("weights", [S, N]))
        case "twice":
            return g.op("Mul", g.op("Mul", p, g.input("weights", [S, N])), g.input("weights_too", [S, N]))
        case "by the scores":
            return g.op("Mul", p, g.op("Sigmoid", score))
        case "divided anew" | "divided anew, dropped" | "divided anew where rows may be empty":
            if how == "divided anew":
                kept = g.op("Mul", p, g.op("Cast", keep, to=T.FLOAT))
            else:
                kept = g.op("Where", keep, p, zero)
            total = g.op("ReduceSum", kept, g.const([-1], np.int64))
            some = g.op("Greater", total, zero)
            return g.op("Where", some, g.op("Div", kept, g.op("Where", some, total, g.const(1.0))), zero)
        case "guarded behind":
            p = g.op("Mul", p, g.input("weights", [S, N]))
            return g.op("Where", g.op("IsNaN", p), zero, p)
    return g.op("Mul", p, g.input("weights", [S, N]))


MATCH = (
    *("plain", "drop", "drop inverted", "masked otherwise", "times a mask", "of heads", "triangle"),
    *("masked by -inf", "upright", "and per row", "deferred", "triangle dropped", "triangle dropped, other rows"),
    *("divided anew", "divided anew, dropped", "divided anew where rows may be empty"),
)
MODELS = {how: _weighted(how) for how in MATCH} | {"shared heads": _weighted("drop", 2), "one head": _weighted("", 1)}
LEFT = {
    "divided": "divided by a tensor",
    "twice": "two tensors",
    "by the scores": "computed from the scores",
    "guarded behind": "several nodes",
    "drop where rows may be empty": "does not have as its only mask",
}


@pytest.mark.parametrize("name", MODELS)
def test_weights_are_part_of_the_site(name: str) -> None:
    model = MODELS[name]()
    report = explain(model)
    assert not report.misses and report.sites[0].spec.weights is not None, report.misses
    for form in ("decomposed", "blocked"):
        new, done = rewrite(model, form)  # type: ignore[call-overload]
        onnx.checker.check_model(new, full_check=True)
        assert len(done.sites) == 1 and not done.misses, done.misses
        for large, empty in ((False, False), (True, False), (False, True)):
            given = feeds(model, large=large, empty_rows=empty)
            # Softmax of onnxruntime makes probabilities below 2^-126 zero with AVX2, not with AVX-512: a row of nothing else that
            # is kept would be empty. ONNX's own evaluator keeps them everywhere.
            want = list(ReferenceEvaluator(model).run(None, given)) if large else run(model, given)
            for optimise in (True, False):
                have = run(new, given, optimise=optimise)
                assert_same(want, have, LARGE_SCORE_TOLERANCE if large else TOLERANCE)
        again, _ = rewrite(new, form)  # type: ignore[call-overload]
        assert again.SerializeToString() == new.SerializeToString(), "rewriting twice changed something"


@pytest.mark.parametrize("how", LEFT)
def test_what_is_left_alone(how: str) -> None:
    model = _weighted(how)()
    new, report = rewrite(model)
    assert not report.sites and any(LEFT[how] in m.reason for m in report.misses), report
    assert [n.op_type for n in new.graph.node] == [n.op_type for n in model.graph.node]


def _spec(sq: int, kv: int = 2, **fields: object) -> AttentionSpec:
    return AttentionSpec("f32", 4, kv, sq, 70, 16, 24, (2,), scale=0.25, **fields)  # type: ignore[arg-type]


def test_forms_and_kernels_that_have_no_weights_say_so() -> None:
    spec = _spec(40, weights=TensorArg((40, 70)))
    assert AttentionSpec.from_dict(spec.to_dict()) == spec and spec.variant.endswith("weighted")
    with pytest.raises(UnsupportedError, match="multiplied by a tensor"):
        emit_kernel(spec, parse_target("cuda", kernels="iree"))
    assert emit_kernel(spec, parse_target("cuda")).body == "triton"
    anew = _spec(40, weights=TensorArg((40, 70), "bool"), renormalised=True, empty_row="guarded")
    assert AttentionSpec.from_dict(anew.to_dict()) == anew and anew.variant.endswith("renormalised")
    for wrong in ({"empty_row": "nan"}, {"weights": TensorArg((40, 70))}, {"stats": ("lse",)}, {"weights": None}):
        with pytest.raises(ValueError, match="renormalised"):
            dataclasses.replace(anew, **wrong)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="weights"):
        _spec(4, weights=TensorArg((4, 70), "i32"))


@pytest.mark.slow
def test_kernels(tmp_path: Path) -> None:
    """Both bodies, weights of every shape, beside masks, a sink, integers of V and rows without keys."""
    specs = [
        _spec(40, weights=TensorArg((2, 4, 40, 70))),
        _spec(40, weights=TensorArg((40, 70), "bool"), masks=(Causal("end"),)),
        _spec(3, weights=TensorArg((3, 70))),
        _spec(1, weights=TensorArg((2, 4, 1, 70), "bool"), masks=(BoolMask((2, 1, 1, 70)),), empty_row="zero"),
        _spec(40, weights=TensorArg((2, 1, 40, 70), "bool"), renormalised=True, empty_row="guarded"),
        _spec(
            3,
            weights=TensorArg((70,), "bool"),
            renormalised=True,
            empty_row="guarded",
            masks=(BoolMask((2, 1, 1, 70)),),
        ),
        _spec(37, 4, weights=TensorArg((2, 1, 37, 70)), sink=TensorArg((4, 1, 1)), masks=(BoolMask((2, 1, 37, 70)),)),
    ]
    target = parse_target("cpu-host")
    kernels = [emit_kernel(spec, target) for spec in specs]
    assert {k.body for k in kernels} == {"vector", "few"}
    made = Kernels(kernels, tmp_path)
    for i, spec in enumerate(specs):
        for adversarial in (False, True):
            operands = draw_operands(spec, 1, adversarial=adversarial)
            assert mismatch(spec, operands, made.run(i, operands)) is None, (i, adversarial)


def test_what_is_divided_anew_and_shown_is_left_alone() -> None:
    model = MODELS["divided anew"]()
    shown = next(n.output[0] for n in reversed(model.graph.node) if n.op_type == "Where")
    model.graph.output.append(onnx.helper.make_tensor_value_info(shown, T.FLOAT, [B, H, S, N]))
    report = explain(model)
    assert not report.sites and "the sum of those that were kept" in report.misses[0].reason


def test_a_large_score_that_is_not_kept_empties_the_row() -> None:
    """A probability that is zero beside it stays zero: a mask on the scores would bring it back."""
    model = MODELS["divided anew"]()
    given = feeds(model)
    given["q"][0, 0, 0], given["k"][0, 0, :], given["k"][0, 0, 2] = 40, 1, 40
    given["mask"][0, 0, 0], given["mask"][0, 0, 0, 2] = True, False
    for form in ("decomposed", "blocked"):
        new, report = rewrite(model, form)  # type: ignore[call-overload]
        have = run(new, given)[0]
        assert report.sites[0].spec.renormalised and not have[0, 0, 0].any()
        assert_same(run(model, given), [have])
    q, k, v, keep = (given[i.name] for i in model.graph.input)
    spec = report.sites[0].spec
    assert_same([have], [attention(spec, q, k, v, keep).astype(np.float32)], 2e-5)


@pytest.mark.slow
def test_compiled(tmp_path: Path) -> None:
    """One dispatch, without a buffer of Sq x Skv that the model itself does not hand in."""
    model = MODELS["shared heads"]()
    report = compile_model(model, tmp_path / "m.vmfb", parse_target("cpu-host"))
    (site,) = report.sites
    assert (site.fused, site.dispatches, report.misses, report.inspection.buffers) == (True, 1, (), ())
    for empty in (False, True):
        given = feeds(model, empty_rows=empty)
        have = load_module(tmp_path / "m.vmfb")(*(given[i.name] for i in model.graph.input))
        assert_same(run(model, given), [np.asarray(x) for x in have], 2e-5)


def test_a_row_of_nan_stays_nan_whatever_is_dropped() -> None:
    """What weights change (docs/developer/architecture.md): a Where that drops every key of such a row makes it zero."""
    model = MODELS["drop"]()
    given = feeds(model)
    given["q"][0, 0, 0] = np.nan
    given["mask"][0, 0, 0] = False
    want, have = run(model, given)[0], run(rewrite(model)[0], given)[0]
    assert not want[0, 0, 0].any() and np.isnan(have[0, 0, 0]).all()
    have[0, 0, 0] = 0
    assert_same([want], [have])


@pytest.mark.parametrize(
    ("op", "factor"), [("Mul", -np.inf), ("Mul", np.nan), ("Div", 0.0), ("Mul", 2.0), ("Div", 4.0)]
)
def test_an_infinite_factor_stays_with_the_probabilities(op: str, factor: float) -> None:
    """Infinities of both signs add up to NaN, which an infinity times the sum is not."""
    g = Layout(18)
    q, k, v = qkv(g, (B, H, S, D), (B, H, N, D), (B, H, N, E))
    p = g.op("Softmax", g.op("MatMul", q, g.transpose(k, 0, 1, 3, 2)), axis=-1)
    model = g.done(g.op("MatMul", g.op(op, p, g.const(factor)), v), B, H, S, E)
    new, report = rewrite(model)
    inputs = feeds(model, 0)
    assert_same(run(model, inputs), run(new, inputs), LARGE_SCORE_TOLERANCE)
    if factor in (2.0, 4.0):
        assert report.sites
    else:
        assert "times infinity or NaN" in report.misses[0].reason

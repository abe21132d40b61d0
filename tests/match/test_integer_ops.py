"""Attentions by onnxruntime's operators on bytes: equal with onnxruntime's optimiser and without, ties of roundings included."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.parser
import pytest

from onnx_fa.forms.rewrite import explain, rewrite
from tests.support.on_bytes import on_bytes
from tests.support.ort_run import run
from tests.support.quantised_graphs import PLACES, Drawn, build, draw, feeds

EVERY = {
    "unsigned": Drawn(PLACES, np.uint8, 0, 17, layout="tokens", mask="added"),
    "an odd zero point, whose ties go the other way": Drawn(PLACES, np.uint8, -3, 18, layout="quantised first"),
    "signed, odd": Drawn(PLACES, np.int8, -3, 21, layout="quantised first", mask="added", group=2),
    "probabilities rounded twice": Drawn(PLACES, np.uint8, 0, 18, layout="tokens", again=True),
    "a softmax of floats": Drawn(("q", "k", "v", "scores"), np.uint8, 0, 17, layout="quantised first"),
}


@pytest.mark.parametrize("drawn", EVERY.values(), ids=EVERY)
def test_chosen(drawn: Drawn) -> None:
    names = _same_in_all_forms(drawn, 0)
    assert "QLinearMatMul" in names and ("QLinearSoftmax" in names or "probabilities" not in drawn.places)


def test_drawn() -> None:
    """Of random graphs, among which are all four operators. Seed 60 has scores halfway between two steps."""
    names = set[str]().union(*(_same_in_all_forms(draw(seed), seed) for seed in (*range(3), 8, 60)))
    assert names == {"QLinearMatMul", "QLinearAdd", "QLinearMul", "QLinearSoftmax"}


def _same_in_all_forms(drawn: Drawn, seed: int) -> set[str]:
    """The operators on bytes in the graph."""
    model = on_bytes(build(drawn))
    names = {node.op_type for node in model.graph.node if node.op_type.startswith("QLinear")}
    inputs = feeds(model, seed)
    (want,) = run(model, inputs, optimise=False)
    for form in ("decomposed", "blocked") if names else ():
        new, report = rewrite(model, form)  # type: ignore[call-overload]
        assert report.sites, (drawn, report.misses)
        assert not any(node.metadata_props for node in new.graph.node if node.op_type.startswith("QLinear"))
        onnx.checker.check_model(new)
        assert rewrite(new, form)[0].SerializeToString() == new.SerializeToString()  # type: ignore[call-overload]
        for optimise in (False, True):
            (have,) = run(new, inputs, optimise=optimise)
            np.testing.assert_allclose(have, want, atol=2e-6, err_msg=f"{form}, optimiser {optimise}, {drawn}")
    return names


def _written(change: str = "") -> onnx.ModelProto:
    """q8 [2,5,16], k8, v8 [2,7,16] to o8, with something changed."""
    scale = {"255 steps": 1 / 255, "infinite": np.inf}
    axis, attribute = ("1", 12) if change == "all of a plane" else ("-1", 13)
    given = ", float step_p" if change == "found at run time" else ""
    read = ", uint8[2,5,keys] p" if change == "read" else ""
    keys = 1 if change == "one key" else 7
    infinite = np.inf if change == "infinite" else 0.03
    text = f"""<ir_version: 8, opset_import: ["": 17, "com.microsoft": 1]>
g (uint8[2,5,16] q, uint8[2,{keys},16] k, uint8[2,{keys},16] v{given}) => (uint8[2,5,16] o{read})
<uint8 zero = {{128}}, float step = {{0.04}}, float step_o = {{0.0213}}, uint8 nought = {{0}}>
{{
  kt = Transpose<perm = [0, 2, 1]>(k)
  s = QLinearMatMul(q, step, zero, kt, step, zero, step_s, zero)
  p = com.microsoft.QLinearSoftmax<axis = {axis}, opset = {attribute}>(s, step_s, zero, step_p, nought)
  {"sub = Sub(p, nought)" if change == "computed with" else ""}
  o = QLinearMatMul({"sub" if change == "computed with" else "p"}, step_p, nought, v, step, zero, step_o, zero)
}}"""
    model = onnx.parser.parse_model(text)
    numbers = {"step_s": infinite} | ({} if given else {"step_p": scale.get(change, 1 / 256)})
    if change == "infinite":
        numbers["step_p"] = 1 / 256
    model.graph.initializer.extend(onnx.numpy_helper.from_array(np.float32(x), name) for name, x in numbers.items())
    return model


def test_bytes_in_and_out() -> None:
    """The site reads K and V as bytes, and the operators in front of it and behind it stay."""
    (site,) = explain(_written()).sites
    assert site.spec.k_quant is not None and site.spec.v_quant is not None and site.spec.rounding is not None
    rng = np.random.default_rng(3)
    inputs = {name: rng.integers(0, 256, (2, n, 16), np.uint8) for name, n in (("q", 5), ("k", 7), ("v", 7))}
    (want,) = run(_written(), inputs, optimise=False)
    new, _ = rewrite(_written())
    for optimise in (False, True):
        np.testing.assert_array_equal(run(new, inputs, optimise=optimise)[0], want)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ("255 steps", "whole part of 254.99998"),
        ("infinite", "rounded in steps of infinity"),
        ("found at run time", "not each one constant number"),
        ("all of a plane", "over another axis"),
        ("one key", "one key, and gives zero"),
        ("read", "not by a pair"),
        ("computed with", "not by a pair"),
    ],
)
def test_left_alone(change: str, reason: str) -> None:
    model = _written(change)
    new, report = rewrite(model)
    assert not report.sites and [miss.op for miss in report.misses] == ["com.microsoft.QLinearSoftmax"]
    assert reason in report.misses[0].reason
    assert [n.op_type for n in new.graph.node] == [n.op_type for n in model.graph.node]


def test_what_onnxruntime_makes() -> None:
    """The facts that this rests on: which steps a QLinearSoftmax gives, and that with one key it gives none."""
    steps = []
    for scale, keys in ((1 / 256, 300), (1 / 255, 300), (1 / 256, 1)):
        model = onnx.parser.parse_model(f"""<ir_version: 8, opset_import: ["": 17, "com.microsoft": 1]>
g (uint8[40,{keys}] x) => (uint8[40,{keys}] y) <float step = {{0.1}}, uint8 zero = {{0}}>
{{ y = com.microsoft.QLinearSoftmax<axis = -1, opset = 13>(x, step, zero, scale, zero) }}""")
        model.graph.initializer.append(onnx.numpy_helper.from_array(np.float32(scale), "scale"))
        x = np.random.default_rng(0).integers(0, 256, (40, keys), np.uint8)
        e = np.exp(0.1 * (x - x.max(axis=-1, keepdims=True).astype(np.float64)))
        want = np.clip(np.rint(e / e.sum(axis=-1, keepdims=True) / np.float32(scale)), 0, 255)
        steps.append(run(model, {"x": x}, optimise=False)[0] - want)
    assert not steps[0].any() and set(np.unique(steps[1])) == {-1.0, 0.0} and (steps[2] == -255).all()

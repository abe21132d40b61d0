"""Probabilities that are rounded before they multiply V: forms, what is found and what is left alone, how far ties go.

Their kernels are tried with all other cases of the table (test_vector_kernel.py, test_few_kernel.py).
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto as T
from onnx import helper as h

from onnx_fa.errors import UnsupportedError
from onnx_fa.forms.plain import input_names, plain_model
from onnx_fa.forms.rewrite import explain, rewrite
from onnx_fa.kernels.choose import emit_kernel
from onnx_fa.kernels.cpu.vector import emit_vector
from onnx_fa.spec.accuracy import expect
from onnx_fa.spec.attention import AttentionSpec
from onnx_fa.spec.reference import attention, rounded
from onnx_fa.spec.rounding_bounds import slack
from onnx_fa.spec.target import parse_target
from onnx_fa.spec.terms import Rounding
from tests.match.test_match_ops import run
from tests.support.cases import BY_NAME, Case, draw_operands, select
from tests.support.kernel_harness import HOST
from tests.support.spellings_ops import OUT, QKV, SCALE, model, plain

_CASES = select("rounded")
_PLAIN = [c for c in _CASES if c.spec.empty_row in ("nan", "mean") and not (c.spec.stats and c.spec.sink)]


@pytest.mark.parametrize("case", _PLAIN, ids=lambda c: c.name)
def test_found_and_written_back(case: Case) -> None:
    """The plain spelling is found with its rounding, and both forms mean what the reference says."""
    proto, spec = ir.to_proto(plain_model(case.spec)), case.bound()[0]
    (site,) = explain(proto).sites
    assert site.spec.rounding is not None and spec.rounding is not None
    for found, asked in zip(site.spec.rounding.chain, spec.rounding.chain, strict=True):
        assert (found.zero_point, found.dtype) == (asked.zero_point, asked.dtype)
        assert np.float32(found.scale) == np.float32(asked.scale)
    operands = draw_operands(spec, 0)
    feeds = dict(zip(input_names(spec), operands, strict=True))
    expected = expect(dataclasses.replace(spec, stats=(), rounding=site.spec.rounding), operands)
    for form in ("decomposed", "blocked"):
        new, report = rewrite(proto, form)  # type: ignore[call-overload]
        if form == "blocked" and spec.stats:
            assert "row statistics" in report.misses[0].reason
            continue
        assert len(report.sites) == 1
        onnx.checker.check_model(new, full_check=True)
        assert rewrite(new, form)[0].SerializeToString() == new.SerializeToString()  # type: ignore[call-overload]
        assert not expected.compare(run(new, feeds, optimise=False)[0]).problem
    assert "does not round" in rewrite(_opset(proto, 23), "attention")[1].misses[0].reason


def _opset(proto: onnx.ModelProto, version: int) -> onnx.ModelProto:
    new = onnx.ModelProto()
    new.CopyFrom(proto)
    new.opset_import[0].version = version
    return new


def _spelled(change: str, opset: int = 21) -> onnx.ModelProto:
    """softmax, QuantizeLinear, DequantizeLinear, V, with something changed on the way."""
    other = "other" if change == "other scale" else "step"
    zeros = ["zero"] if change != "no zero point" else []
    nodes: list[onnx.NodeProto] = []
    for node in plain("o"):
        if node.op_type != "MatMul" or node.output[0] != "o":
            if node.op_type == "Softmax" and change == "exponentials":
                nodes += [
                    h.make_node("ReduceMax", [node.input[0], "last"], ["top"], keepdims=1),
                    h.make_node("Sub", [node.input[0], "top"], ["less"]),
                    h.make_node("Exp", ["less"], ["o_p"]),
                    h.make_node("ReduceSum", ["o_p", "last"], ["total"], keepdims=1),
                ]
            else:
                nodes.append(node)
            continue
        p = "o_p"
        if change == "guard before":
            nodes += [h.make_node("IsNaN", ["o_p"], ["bad"]), h.make_node("Where", ["bad", "nought", "o_p"], ["o_g"])]
            p = "o_g"
        if change == "factor before":
            nodes.append(h.make_node("Mul", ["o_p", "half"], ["o_f"]))
            p = "o_f"
        nodes.append(h.make_node("QuantizeLinear", [p, "step", *zeros], ["p8"]))
        nodes.append(h.make_node("DequantizeLinear", ["p8", other, *zeros], ["p_r"]))
        p = "p_r"
        if change == "two readers":
            nodes.append(h.make_node("DequantizeLinear", ["p8", "step", *zeros], ["p_s"]))
            nodes.append(h.make_node("MatMul", ["p_s", "v"], ["o_two"]))
        if change in ("guard behind", "twice, a guard between"):
            nodes += [h.make_node("IsNaN", ["p_r"], ["bad"]), h.make_node("Where", ["bad", "nought", "p_r"], ["p_g"])]
            p = "p_g"
        if change == "number behind":
            nodes += [
                h.make_node("Equal", ["p_r", "p_r"], ["good"]),
                h.make_node("Where", ["good", "p_r", "nought"], ["p_g"]),
            ]
            p = "p_g"
        if change == "guard by the softmax behind":
            nodes += [h.make_node("IsNaN", ["o_p"], ["bad"]), h.make_node("Where", ["bad", "nought", "p_r"], ["p_g"])]
            p = "p_g"
        for time in range({"twice": 1, "twice, a guard between": 1, "five times": 4}.get(change, 0)):
            nodes.append(h.make_node("QuantizeLinear", [p, "small", *zeros], [f"p8_{time}"]))
            nodes.append(h.make_node("DequantizeLinear", [f"p8_{time}", "small", *zeros], [f"p_r{time}"]))
            p = f"p_r{time}"
        if change == "factor behind":
            nodes.append(h.make_node("Mul", ["p_r", "half"], ["p_h"]))
            p = "p_h"
        if change == "exponentials":
            nodes += [h.make_node("MatMul", [p, "v"], ["acc"]), h.make_node("Div", ["acc", "total"], ["o"])]
        elif change == "two readers":
            nodes += [h.make_node("MatMul", [p, "v"], ["o_r"]), h.make_node("Add", ["o_r", "o_two"], ["o"])]
        else:
            nodes.append(h.make_node("MatMul", [p, "v"], ["o"]))
    kind = np.uint16 if change == "16 bits" else np.uint8
    constants: dict[str, Any] = {
        **SCALE,
        "step": np.float32(np.inf if change == "infinite scale" else 0.01),
        "other": np.float32(0.02),
        "small": np.float32(0.0037),
        "half": np.float32(0.5),
        "nought": np.float32(0),
        "zero": kind(0),
        "last": np.asarray([-1]),
    }
    used = {i for n in nodes for i in n.input}
    outputs = [OUT]
    if change == "read":
        outputs.append(("p8", (*QKV[0][1][:2], QKV[0][1][2], QKV[1][1][2]), T.UINT8))
    made = model(nodes, QKV, outputs, opset, {n: x for n, x in constants.items() if n in used})
    if change == "scale at run time":
        made.graph.initializer.remove(next(i for i in made.graph.initializer if i.name == "step"))
        made.graph.input.append(h.make_tensor_value_info("step", T.FLOAT, []))
    return made


@pytest.mark.parametrize(
    "change",
    [
        "",
        "no zero point",
        "guard before",
        "guard behind",
        "number behind",
        "factor behind",
        "16 bits",
        "twice",
        "twice, a guard between",
    ],
)
def test_found(change: str) -> None:
    made = _spelled(change)
    (site,) = explain(made).sites
    kind = "u16" if change == "16 bits" else "u8"
    rounding = Rounding(float(np.float32(0.01)), 0, kind)
    if change.startswith("twice"):
        rounding = Rounding(float(np.float32(0.0037)), 0, kind, rounding)
    assert site.spec.rounding == rounding
    assert site.spec.empty_row == ("guarded" if change == "guard before" else "nan")
    rng = np.random.default_rng(0)
    feeds = {n: rng.standard_normal(s).astype(np.float32) for n, s, _ in QKV}
    for form in ("decomposed", "blocked"):
        new, report = rewrite(made, form)  # type: ignore[call-overload]
        assert report.sites
        want, have = (run(m, feeds, optimise=False)[0] for m in (made, new))
        np.testing.assert_allclose(have, want, atol=2e-6)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ("other scale", "not by a pair"),
        ("scale at run time", "not by a pair"),
        ("infinite scale", "not by a pair"),
        ("two readers", "not by a pair"),
        ("read", "not by a pair"),
        ("exponentials", "before they are divided"),
        ("factor before", "changed before they are rounded"),
        ("guard by the softmax behind", ""),
        ("five times", "rounded more than 4 times"),
    ],
)
def test_left_alone(change: str, reason: str) -> None:
    report = explain(_spelled(change))
    assert not report.sites and reason in report.misses[0].reason


def test_ties() -> None:
    """Three equal scores: probabilities of a third, in steps of 2/9, are one and a half of them, which may become one or two. A
    fourth key, with a probability of 0, is near no tie."""
    spec = AttentionSpec("f32", 1, 1, 1, 4, 8, 8, rounding=Rounding(2 / 9))
    q, k, v = (np.ones((1, n, 8), np.float32) for n in (1, 4, 4))
    k[:, 3] = -100
    v[:, 3] = 1000
    np.testing.assert_allclose(slack(spec, [q, k, v]), 3 * 2 / 9 * np.ones((1, 1, 8)))
    assert not slack(dataclasses.replace(spec, rounding=Rounding(0.3)), [q, k, v]).any()
    want = attention(spec, q, k, v)
    expected = expect(spec, [q, k, v])
    for flips in (0, 1, 2, 3):  # two thirds or one of each of the three keys
        result = np.full((1, 1, 8), (3 * 2 - flips) * 2 / 9)
        assert not expected.compare(result).problem
    assert expected.compare(want + 7 * 2 / 9).problem and expected.compare(np.full((1, 1, 8), 2 * 2 / 9)).problem


def test_ties_of_scores() -> None:
    """A score between two steps may become either, which moves the weights of the whole row."""
    spec = AttentionSpec("f32", 1, 1, 1, 2, 8, 8, masks=BY_NAME["rounded_steps"].spec.masks[:1])
    q, k = np.zeros((1, 1, 8), np.float32), np.zeros((1, 2, 8), np.float32)
    q[..., 0], k[0, 0, 0], v = 1.0, 1.5 * 0.0625, np.asarray([[[1.0] * 8, [0.0] * 8]], np.float32)
    both = [1 / (1 + np.exp(-n * 0.0625)) for n in (1, 2)]
    np.testing.assert_allclose(attention(spec, q, k, v), both[1])
    np.testing.assert_allclose(slack(spec, [q, k, v]), both[1] - both[0], rtol=1e-6)
    k[0, 0, 0] = 1.4 * 0.0625
    assert not slack(spec, [q, k, v]).any()


def test_refusals() -> None:
    spec = BY_NAME["rounded_u8"].spec
    with pytest.raises(UnsupportedError, match=r"gpu: .*second sweep"):
        emit_kernel(spec, parse_target("cuda-sm_80"), body="gpu")
    with pytest.raises(UnsupportedError, match="not split"):
        emit_vector(spec, HOST, "fa_x", splits=2)
    four = Rounding(0.1, before=Rounding(0.1, before=Rounding(0.1, before=Rounding(0.1))))
    wrongs: list[dict[str, Any]] = [{"scale": 0.1, "zero_point": 256}, {"scale": 0.1, "dtype": "i4"}]
    for wrong in ({"scale": 0.0}, *wrongs, {"scale": 0.1, "before": four}):
        with pytest.raises(ValueError, match="round"):
            Rounding(**wrong)  # type: ignore[arg-type]
    for kept in (spec, BY_NAME["rounded_three_times"].spec):
        assert AttentionSpec.from_dict(kept.to_dict()) == kept


def test_a_rounding_of_rounded_numbers_is_that_of_f32() -> None:
    """A tenth, as f32, is two and a half steps of 0.04, which become two; as f64 it would be a little more."""
    p, steps = np.asarray([0.1, 0.3, np.nan, 2.0]), Rounding(0.1)
    assert np.float32(np.float32(1) * np.float32(0.1)) / np.float32(0.04) == 2.5
    got = rounded(Rounding(0.04, 0, "u8", steps), p)
    np.testing.assert_allclose(got, [0.08, 0.32, 0.0, 2.0])
    graph_of = [np.rint(np.float32(n) * np.float32(0.1) / np.float32(0.04)) for n in range(256)]
    np.testing.assert_allclose(
        rounded(Rounding(0.04, 0, "u16", steps), np.arange(256) * 0.1), 0.04 * np.asarray(graph_of)
    )


def test_decode_uses_the_body_for_few_queries() -> None:
    assert emit_kernel(BY_NAME["rounded_decode"].spec, HOST).body == "few"

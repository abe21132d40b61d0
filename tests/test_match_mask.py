"""Masks in every spelling: what the matcher makes of them, and that every rewritten graph equals the original in onnxruntime."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto as T
from spellings_mask import MATCHED, REFUSED, WIDE, B, L, S, describe, is_wide
from test_match import LARGE_SCORE_TOLERANCE, TOLERANCE, assert_same, run

from onnx_fa.rewriter import FORMS, explain, rewrite
from onnx_fa.spec import AttentionSpec

SIZES = {"b": B, "s": S, "t": L, "c": B}
TYPES = {T.FLOAT: np.float32, T.INT64: np.int64, T.INT32: np.int32, T.UINT8: np.uint8}


def inputs_of(model: onnx.ModelProto, kind: str, seed: int = 0) -> dict[str, np.ndarray]:
    """Inputs: "normal", "large" (scores in the hundreds), "empty" (rows without keys), "dense" (nothing masked)."""
    rng = np.random.default_rng(seed)
    result: dict[str, np.ndarray] = {}
    for i in model.graph.input:
        shape = [d.dim_value or SIZES[d.dim_param] for d in i.type.tensor_type.shape.dim]
        element = i.type.tensor_type.elem_type
        if element == T.BOOL:
            x = rng.random(shape) < (1.0 if kind == "dense" else 0.6)
            if kind != "empty":
                x[..., 0] = True
            else:
                x[0] = rng.random(shape[1:]) < 0.2
                x[0, ..., :2] = False
        elif element == T.FLOAT:
            x = rng.standard_normal(shape).astype(np.float32)
            if i.name.startswith("mask"):
                x = np.where(rng.random(shape) < 0.3, -np.inf if kind == "empty" else -3e38, x).astype(np.float32)
                x[..., 0] = 0
            elif kind == "large" and i.name in "qk":
                x *= 20
        else:
            x = rng.integers(0, 4, shape).astype(TYPES[element])
        result[i.name] = x
    return result


def only_spec(model: onnx.ModelProto) -> AttentionSpec:
    report = explain(model)
    assert len(report.sites) == 1, report.misses
    return report.sites[0].spec


@pytest.mark.parametrize("name", MATCHED)
def test_mask_is_understood_and_exact(name: str) -> None:
    build, said = MATCHED[name]
    model = build()
    spec = only_spec(model)
    assert said in describe(spec), describe(spec)
    assert is_wide(spec) == (name in WIDE), describe(spec)
    for form in FORMS:
        new, _ = rewrite(model, form)
        onnx.checker.check_model(new, full_check=True)
        for kind in ("normal", "large", "empty", "dense"):
            for seed in (0, 1):
                inputs = inputs_of(model, kind, seed)
                want = run(model, inputs)
                assert_same(want, run(new, inputs), LARGE_SCORE_TOLERANCE if kind == "large" else TOLERANCE)
        again, _ = rewrite(new, form)
        assert again.SerializeToString() == new.SerializeToString(), "rewriting twice changed something"


@pytest.mark.parametrize("name", REFUSED)
def test_mask_is_left_alone(name: str) -> None:
    build, reason = REFUSED[name]
    model = build()
    report = explain(model)
    assert not report.sites
    assert any(reason in m.reason for m in report.misses), report.misses
    new, _ = rewrite(model)
    assert [n.op_type for n in new.graph.node] == [n.op_type for n in model.graph.node]

"""LSTMs and GRUs whose steps are a kernel: which are, and that they mean the same."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import TensorProto as T
from onnx import helper as h
from onnx import numpy_helper
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun

import onnx_fa
from onnx_fa.graph.ops import op_of
from onnx_fa.graph.site_op import DOMAIN
from onnx_fa.iree.inference import infer_types
from onnx_fa.iree.legalise.recurrent_steps import RECURRENT_STEPS, recurrent_steps_of
from onnx_fa.iree.legalise.rules import legalize
from onnx_fa.iree.run import load_module
from onnx_fa.spec.recurrent import GATES, Cell, unroll
from onnx_fa.spec.target import Target, parse_target
from tests.support.joined_models import join_models
from tests.support.ort_run import assert_same, run
from tests.support.triton_sources import triton_sources

NARROW, CUDA = parse_target("cpu-avx2"), parse_target("cuda")
IN = 5


def layer(
    op: Cell, H: int, *, free: bool = True, bias: bool = True, states: bool = False, **attributes: Any
) -> onnx.ModelProto:
    """One node over an x of (steps, batch, IN), of which both are free, or 6 and 3."""
    rng, ways = np.random.default_rng(0), 2 if attributes.get("direction") == "bidirectional" else 1
    shapes = {"w": (GATES[op] * H, IN), "r": (GATES[op] * H, H), "b": (2 * GATES[op] * H,) * bias}
    # States of many numbers whose weights are as large as those of a few would make of roundings what is no rounding any more.
    sizes = {"r": max(2.0, H**0.5)}
    held = {k: (rng.standard_normal((ways, *s)) / sizes.get(k, 2)).astype(np.float32) for k, s in shapes.items() if s}
    steps, batch = ("S", "B") if free else (6, 3)
    inputs = [h.make_tensor_value_info("x", T.FLOAT, [steps, batch, IN])]
    first = ("h0", "c0")[: 2 if op == "LSTM" else 1] if states else ()
    inputs += [h.make_tensor_value_info(name, T.FLOAT, [ways, batch, H]) for name in first]
    outputs = ["y", "yh", "yc"][: 3 if op == "LSTM" else 2]
    more = {"linear_before_reset": 1} if op == "GRU" else {}
    read = ["x", "w", "r", "b" if bias else "", "", *first]
    node = h.make_node(op, read, outputs, "layer", hidden_size=H, **{**more, **attributes})
    results = [h.make_tensor_value_info(name, T.FLOAT, [None] * (4 - (i > 0))) for i, name in enumerate(outputs)]
    tensors = [numpy_helper.from_array(a, k) for k, a in held.items()]
    graph = h.make_graph([node], "g", inputs, results, tensors)
    return h.make_model(graph, opset_imports=[h.make_opsetid("", 18)], ir_version=9)


def feeds_of(model: onnx.ModelProto, steps: int, batch: int) -> dict[str, np.ndarray]:
    rng, sizes = np.random.default_rng(steps), {"S": steps, "B": batch}
    return {
        v.name: rng.standard_normal([d.dim_value or sizes[d.dim_param] for d in v.type.tensor_type.shape.dim]).astype(
            "f"
        )
        for v in model.graph.input
    }


def joined_feeds(models: Sequence[onnx.ModelProto], steps: int, batch: int) -> dict[str, np.ndarray]:
    """Of the models joined, all of as many steps and rows."""
    return {f"m{i}_{k}": v for i, m in enumerate(models) for k, v in feeds_of(m, steps, batch).items()}


def legal(model: onnx.ModelProto, target: Any = NARROW) -> onnx.ModelProto:
    copy = onnx.ModelProto.FromString(model.SerializeToString())
    infer_types(copy, {})
    return legalize(copy, target=target)


class RecurrentSteps(OpRun):
    """What the node means."""

    op_domain = DOMAIN

    def _run(self, x: np.ndarray, w: np.ndarray, *more: np.ndarray, **attributes: Any) -> tuple[np.ndarray, ...]:
        attributes["cell"] = attributes["cell"].encode()
        spec = recurrent_steps_of([v.shape for v in (x, w, *more)], attributes).spec
        return tuple(v.astype(np.float32) for v in unroll(spec, x, w, *more))


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    st.sampled_from(["LSTM", "GRU"]),
    st.sampled_from([8, 9, 16, 21]),
    *[st.booleans()] * 3,
    st.sampled_from(["forward", "reverse", "bidirectional"]),
    st.sampled_from([NARROW, CUDA]),
)
def test_drawn(op: Cell, H: int, free: bool, bias: bool, states: bool, direction: str, target: Target) -> None:
    model = layer(op, H, free=free, bias=bias, states=states, direction=direction)
    with triton_sources():
        made = legal(model, target)
    kinds = [op_of(node) for node in made.graph.node]
    assert op not in kinds and kinds.count(RECURRENT_STEPS) == (2 if direction == "bidirectional" else 1)
    feeds = feeds_of(model, 6, 3)
    have = ReferenceEvaluator(made, new_ops=[RecurrentSteps]).run(None, feeds)
    assert_same(run(model, feeds, optimise=False), list(have), 1e-5)  # type: ignore[arg-type]


def test_compiled(tmp_path: Path) -> None:
    """Rows of the batch for themselves: of one step and of many, and states that panels do not divide."""
    models = [
        layer("LSTM", 21, direction="bidirectional", states=True),
        layer("GRU", 19, states=True),
        layer("GRU", 32, free=False, bias=False, direction="reverse"),
        layer("LSTM", 40, free=False),
    ]
    joined = join_models(models, own_dims=True)
    onnx_fa.compile(joined, tmp_path / "m.vmfb")
    call = load_module(tmp_path / "m.vmfb")
    for steps, batch in ((1, 1), (7, 4), (6, 0)):
        feeds = joined_feeds(models, steps, batch)
        if batch:
            assert_same(run(joined, feeds), call(*feeds.values()), 1e-5)
        else:
            assert call(*feeds.values())[0].shape == (steps, 2, 0, 21)


def test_no_steps(tmp_path: Path) -> None:
    """Last states are 0 in every direction, whatever the first are, as in onnxruntime: of an LSTM, as a GRU of no steps ends its
    process, and but for the cells, which it leaves unwritten."""
    ways = ("forward", "reverse", "bidirectional")
    models = [layer(op, 21, states=True, direction=way) for op in GATES for way in ways]
    onnx_fa.compile(join_models(models, own_dims=True), tmp_path / "m.vmfb")
    call = load_module(tmp_path / "m.vmfb")
    for steps, batch in ((0, 2), (4, 2), (0, 0)):
        have = iter(call(*joined_feeds(models, steps, batch).values()))
        for model in models:
            got, is_lstm = [next(have) for _ in model.graph.output], len(model.graph.output) == 3
            if not steps:
                assert got[0].shape[0] == 0 and got[0].shape[2] == batch and not any(last.any() for last in got[1:])
            if batch and (steps or is_lstm):
                for optimise in (True, False):
                    want = run(model, feeds_of(model, steps, batch), optimise=optimise)
                    some = slice(2 if not steps else None)
                    assert_same(want[some], got[some], 1e-5)


def test_large_numbers(tmp_path: Path) -> None:
    """Gates that are wide open or shut, by an infinity too. (Of a NaN onnxruntime makes numbers.)"""
    model = layer("LSTM", 16)
    onnx_fa.compile(model, tmp_path / "m.vmfb")
    feeds = feeds_of(model, 5, 3)
    feeds["x"] *= np.float32(300)
    feeds["x"][2, 1, 0] = np.inf
    assert_same(run(model, feeds), load_module(tmp_path / "m.vmfb")(feeds["x"]), 1e-5)


@pytest.mark.parametrize(
    ("op", "H", "options"),
    [
        ("LSTM", 7, {}),  # fewer numbers than a vector has lanes
        ("GRU", 16, {"linear_before_reset": 0}),  # a product of what is reset
        ("LSTM", 16, {"activations": ["Sigmoid", "Relu", "Tanh"]}),
        ("LSTM", 16, {"input_forget": 1}),
    ],
)
def test_others_stay(op: Cell, H: int, options: dict[str, Any]) -> None:
    kinds = [op_of(node) for node in legal(layer(op, H, free=False, **options)).graph.node]
    assert op in kinds and RECURRENT_STEPS not in kinds


@pytest.mark.parametrize("target", [parse_target("cuda", "iree"), parse_target("vulkan")])
def test_gpus_without_triton_have_none(target: Target) -> None:
    with triton_sources():
        made = legal(layer("LSTM", 16, free=False), target)
    assert RECURRENT_STEPS not in [op_of(n) for n in made.graph.node]

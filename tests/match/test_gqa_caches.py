"""GroupQueryAttention over caches of integers, and over caches that hold a window only: equal to onnxruntime's CPU provider."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto as T

from onnx_fa.forms.rewrite import explain
from tests.match.test_match_ops import rewritten
from tests.support import spellings_ops as so
from tests.support.ort_run import TOLERANCE, assert_same, run

F16_TOLERANCE = 2e-3
CALLS: dict[str, dict[str, Any]] = {
    "prompt": {"past": 0},
    "ragged prompt in a buffer": {"past": 9, "lengths": (so.S, 3)},
    "decode": {"s": 1, "past": 8, "lengths": (6, 4)},
    "decode and grow": {"s": 1, "past": 6, "lengths": (7, 7)},
    "chunk": {"s": 3, "past": 6, "lengths": (9,)},
    "packed, rotary": {"past": 0, "packed": True, "rotary": 8},
    "window": {"s": 1, "past": 8, "lengths": (6, 4), "local_window_size": 3},
}


def given(model: onnx.ModelProto, seed: int = 0) -> dict[str, np.ndarray]:
    """Inputs whose integers fill their range, and whose new rows go beyond it."""
    inputs, rng = so.feeds(model, seed), np.random.default_rng(seed)
    bits = next((a.i for a in model.graph.node[0].attribute if a.name == "kv_cache_bit_width"), 8)
    for name, x in inputs.items():
        if name in ("pk", "pv") and x.dtype.kind in "iu":
            inputs[name] = rng.integers(np.iinfo(x.dtype).min, np.iinfo(x.dtype).max + 1, x.shape, x.dtype)
        elif name in ("k_scale", "v_scale"):
            inputs[name] = rng.uniform(0.01, 0.03, x.shape).astype(np.float32) * (1 if bits == 8 else 16)
        elif name in ("k", "v"):
            inputs[name] = (2 * x).astype(x.dtype)
    return inputs


@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("how", ["PER_TENSOR", "PER_CHANNEL"])
@pytest.mark.parametrize("call", CALLS)
def test_cache_of_integers(call: str, how: str, bits: int) -> None:
    model = so.gqa(integers=(how, bits), **CALLS[call])
    new = rewritten(model, "blocked" if call == "decode" else "decomposed", sites=1)
    assert not any(n.domain for n in new.graph.node)
    inputs = given(model)
    want = run(model, inputs)
    for optimise in (True, False):
        have = run(new, inputs, optimise=optimise)
        assert_same(want[:1], have[:1], TOLERANCE)
        assert all((x == y).all() for x, y in zip(want[1:], have[1:], strict=True))
    (site,) = explain(model).sites
    assert (site.spec.k_quant is not None) == (bits == 8), "kernels read int8 as it is kept"


def test_cache_of_integers_beside_f16() -> None:
    model = so.gqa(1, 8, (6, 4), integers=("PER_CHANNEL", 8), kind=T.FLOAT16)
    inputs = given(model)
    want, have = run(model, inputs), run(rewritten(model, "decomposed", sites=1), inputs)
    assert np.abs(want[0].astype(np.float32) - have[0].astype(np.float32)).max() < 2 * F16_TOLERANCE
    assert all((x == y).all() for x, y in zip(want[1:], have[1:], strict=True))


def test_halves_are_rounded_to_even_by_the_inverse_of_the_scale() -> None:
    model = so.gqa(1, 0, (1,), integers=("PER_TENSOR", 8))
    inputs = given(model)
    for name in "kv":
        for scale in (0.25, 0.3, 0.1):
            inputs[f"{name}_scale"] = np.full(1, scale, np.float32)
            halves = np.arange(inputs[name].size).reshape(inputs[name].shape) - inputs[name].size / 2 + 0.5
            inputs[name] = halves.astype(np.float32) * np.float32(scale)
            want, have = run(model, inputs), run(rewritten(model, "decomposed", sites=1), inputs)
            assert all((x == y).all() for x, y in zip(want[1:], have[1:], strict=True))


def left(tokens: int, capacity: int, window: int) -> int:
    """The op's description: how many rows a window's cache holds."""
    step = capacity - window + 1
    return tokens if tokens <= capacity else tokens - step * -(-(tokens - capacity) // step)


WINDOWED = [
    # queries, capacity, window, tokens with those of this call
    (5, 6, 4, (5,)),
    (7, 4, 4, (7,)),
    (1, 4, 4, (4, 2)),
    (1, 4, 4, (5, 3)),
    (1, 6, 4, (7, 6)),
    (1, 6, 4, (9, 12)),
    (1, 7, 3, (8, 30)),
    (3, 6, 4, (9,)),
    (9, 5, 4, (20,)),
]


@pytest.mark.parametrize("integers", [None, ("PER_CHANNEL", 8)])
@pytest.mark.parametrize(("queries", "capacity", "window", "tokens"), WINDOWED)
def test_cache_of_a_window(
    queries: int, capacity: int, window: int, tokens: tuple[int, ...], integers: tuple[str, int] | None
) -> None:
    model = so.gqa(
        queries, capacity, tokens, rotary=8, integers=integers, sliding_window_cache=1, local_window_size=window
    )
    new = rewritten(model, "blocked" if queries == 3 else "decomposed", sites=1)
    inputs = given(model)
    want, have = run(model, inputs), run(new, inputs)
    assert_same(want[:1], have[:1], TOLERANCE)
    for row, count in enumerate(tokens):
        held = left(count, capacity, window)
        assert_same(*([x[row, :, :held].astype(np.float32) for x in out[1:]] for out in (want, have)), TOLERANCE)


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (so.gqa(k_quant_type="PER_TENSOR"), "without past_key and past_value, whose type"),
        (so.gqa(past=8, k_quant_type="PER_TENSOR"), "a quantised cache of FLOAT, PER_TENSOR, 8 bits"),
        (so.gqa(past=8, integers=("PER_BLOCK", 8)), "PER_BLOCK"),
        (so.gqa(sliding_window_cache=1), "whose length is its capacity"),
        (so.gqa(past=8, sliding_window_cache=1), "without a local_window_size"),
        (so.gqa(1, 8, (6,), extra=[1, 1, 1, 6], sliding_window_cache=1, local_window_size=4), "attention_bias"),
    ],
)
def test_what_is_left_alone(model: onnx.ModelProto, reason: str) -> None:
    report = explain(model)
    assert not report.sites and reason in report.misses[0].reason


def test_a_scale_is_needed() -> None:
    model = so.gqa(past=8, integers=("PER_TENSOR", 8))
    model.graph.node[0].input[13] = ""
    assert "without a v_scale" in explain(model).misses[0].reason

"""MoE and QMoE, written out for IREE: the same results in onnxruntime, with every attribute."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import onnx
import pytest

from onnx_fa.errors import ModelError
from onnx_fa.graph.ops import STANDARD
from tests.iree.test_contrib_ops import TOLERANCE, Array, one_node, written
from tests.support.ort_run import assert_same, run

EXPERTS, HIDDEN, INNER, TOKENS = 5, 64, 32, 6


def experts(
    op: str,
    act: str = "silu",
    *,
    bits: int = 4,
    block: int = 0,
    zeros: bool = False,
    bias: bool = True,
    shares: bool = False,
    flat: bool = False,
    dtype: Any = np.float32,
    **attrs: Any,
) -> tuple[onnx.ModelProto, dict[str, Array]]:
    """A node, and what it is fed. `shares`: the router's weights are given beside its logits; `flat`: tokens of two dims."""
    random = np.random.default_rng(1)
    rows = INNER * 2 if act == "swiglu" else INNER
    shape = (TOKENS, HIDDEN) if flat else (2, TOKENS // 2, HIDDEN)
    layers = ((rows, HIDDEN), (HIDDEN, INNER))

    def floats(*dims: int, size: float = 0.3) -> Array:
        return (random.standard_normal(dims) * size).astype(dtype)

    arrays: list[Array | None] = [floats(*shape, size=1), floats(TOKENS, EXPERTS, size=1)]
    biases = [floats(EXPERTS, n) if bias else None for n, _ in layers]
    attrs = {"k": 2, "activation_type": act} | attrs
    if act == "swiglu":
        attrs.setdefault("swiglu_fusion", 1)
    if op == "MoE":
        for (n, width), b in zip(layers, biases, strict=True):
            arrays += [floats(EXPERTS, n, width, size=width**-0.5), b]
    else:
        attrs = {"expert_weight_bits": bits} | ({"block_size": block} if block else {}) | attrs
        points: list[Array | None] = []
        for (n, width), b in zip(layers, biases, strict=True):
            dims = (n, width // block) if block else (n,)
            packed = random.integers(0, 256, (EXPERTS, n, width * bits // 8), np.uint8)
            arrays += [packed, ((random.random((EXPERTS, *dims)) + 0.1) / 3 / 2**bits).astype(dtype), b]
            size = (EXPERTS, *dims[:-1], -(-dims[-1] * bits // 8))
            points.append(random.integers(0, 256, size, np.uint8) if zeros else None)
        arrays += [None, None, None, *points, None, np.abs(floats(TOKENS, EXPERTS)) if shares else None]
    while arrays[-1] is None:
        arrays.pop()
    return one_node(op, arrays, [2 if flat else 3], **attrs)


def assert_equal(model: onnx.ModelProto, given: dict[str, Array]) -> None:
    new = written(model)
    assert {n.domain for n in new.graph.node} <= set(STANDARD)
    onnx.checker.check_model(new, full_check=True)
    want = run(model, given)
    assert_same(want, run(new, given), TOLERANCE[want[0].dtype])


SWIGLU = {"swiglu_limit": 0.5, "activation_alpha": 1.702, "activation_beta": 1.0}


@pytest.mark.parametrize("act", ["relu", "gelu", "silu", "identity", "swiglu"])
@pytest.mark.parametrize("op", ["MoE", "QMoE"])
def test_activations(op: str, act: str) -> None:
    assert_equal(*experts(op, act))


@pytest.mark.parametrize(("bits", "block", "zeros"), list(itertools.product((2, 4, 8), (0, 16, 32), (False, True))))
def test_packed_weights(bits: int, block: int, zeros: bool) -> None:
    assert_equal(*experts("QMoE", bits=bits, block=block, zeros=zeros))


@pytest.mark.parametrize(
    ("op", "options"),
    [
        ("MoE", {"bias": False, "flat": True, "k": 1}),
        ("MoE", {"normalize_routing_weights": 1, "k": 3}),
        ("MoE", {"act": "swiglu", **SWIGLU}),
        ("MoE", {"dtype": np.float16, "normalize_routing_weights": 1}),
        ("QMoE", {"act": "swiglu", "normalize_routing_weights": 1, **SWIGLU}),
        ("QMoE", {"shares": True, "bits": 8}),
        ("QMoE", {"shares": True, "normalize_routing_weights": 1, "k": 3}),
        ("QMoE", {"dtype": np.float16, "block": 32, "flat": True}),
    ],
)
def test_options(op: str, options: dict[str, Any]) -> None:
    assert_equal(*experts(op, **options))


def test_bits_of_each_layer() -> None:
    """The CPU provider refuses them, also where they are equal: the same numbers as with one attribute for all."""
    model, given = experts("QMoE", bits=8)
    each, _ = experts("QMoE", bits=8, expert_weight_bits=4, fc1_expert_weight_bits=8, fc2_expert_weight_bits=8)
    assert_same(run(model, given), run(written(each), given))


@pytest.mark.parametrize("op", ["MoE", "QMoE"])
def test_equal_and_undefined_logits(op: str) -> None:
    """Of equal experts the last are chosen, and none where all logits are NaN."""
    model, given = experts(op)
    given["x1"][:] = [
        [1, 1, 1, 1, 1],
        [0, 2, 0, 2, 2],
        [3, 1, 3, 1, 3],
        [np.nan] * 5,
        [0, 0, np.inf, 0, 0],
        [-np.inf] * 5,
    ]
    assert_equal(model, given)


def test_gates_in_front_of_the_linear_parts() -> None:
    """swiglu_fusion 2, which the CPU provider refuses: the same numbers as with gates and linear parts in turns."""
    for op in ("MoE", "QMoE"):
        model, given = experts(op, "swiglu", **SWIGLU)
        turned, _ = experts(op, "swiglu", swiglu_fusion=2, **SWIGLU)
        order = np.r_[0 : 2 * INNER : 2, 1 : 2 * INNER : 2]
        rows = ("x2", "x3", "x4") if op == "QMoE" else ("x2", "x3")
        moved = given | {name: given[name][:, order] for name in rows}
        assert_same(run(model, given), run(written(turned), moved))


@pytest.mark.parametrize(
    ("op", "options", "words"),
    [
        ("MoE", {"use_sparse_mixer": 1}, "use_sparse_mixer"),
        ("MoE", {"activation_type": "mish"}, "'mish'"),
        ("MoE", {"act": "swiglu", "swiglu_fusion": 0}, "two layers"),
        ("QMoE", {"quant_type": "fp4"}, "of fp4"),
        ("QMoE", {"weights_prepacked": 1}, "weights_prepacked"),
        ("QMoE", {"expert_weight_bits": 3}, "3 and 3 bits"),
    ],
)
def test_refused(op: str, options: dict[str, Any], words: str) -> None:
    model, _ = experts(op, **options)
    with pytest.raises(ModelError, match=f"'node'.*{words}"):
        written(model)


def test_a_third_layer_is_refused() -> None:
    model, _ = experts("MoE")
    model.graph.node[0].input.append("x2")
    with pytest.raises(ModelError, match="fc3"):
        written(model)

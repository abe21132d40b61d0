"""Shared reciprocals in Triton: what the instructions compute, where they stand, and that every form compiles with them."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest

from onnx_fa.kernels.triton import ptx
from onnx_fa.kernels.triton.config import TritonConfig
from onnx_fa.kernels.triton.expressions import Block
from onnx_fa.kernels.triton.module import program_of
from onnx_fa.kernels.triton.reciprocals import MOST, shared_sigmoid, shared_tanh
from onnx_fa.spec.attention import AttentionSpec
from onnx_fa.spec.cases import case
from onnx_fa.spec.expr import SCORE, Apply, Float
from onnx_fa.spec.terms import BoolMask, Causal, MaskTerm, Weighting

F32 = npt.NDArray[np.float32]
SIGMOID = Apply("Sigmoid", SCORE)
SOFTPLUS = Apply("Softplus", SCORE)
OPS: dict[str, Callable[..., F32]] = {
    "mul.f32": np.multiply,
    "neg.f32": np.negative,
    "fma.rn.f32": lambda a, b, c: (a.astype(np.float64) * b + c).astype(np.float32),
    "rcp.approx.ftz.f32": lambda x: np.float32(1) / x,
    "mov.b32": lambda x: x,
    "sub.s32": lambda a, b: (a.view(np.int32) - b.view(np.int32)).view(np.float32),
}


def executed(text: str, inputs: list[F32]) -> list[F32]:
    """The results of the PTX of an inline_asm_elementwise of as many results as inputs."""
    count = len(inputs)
    registers = {f"${count + i}": x for i, x in enumerate(inputs)}

    def value(name: str) -> F32:
        if name.startswith("0f"):
            return np.array([int(name[2:], 16)], np.uint32).view(np.float32)
        return np.array([int(name, 16)], np.int32).view(np.float32) if name.startswith("0x") else registers[name]

    for line in (x.strip() for x in text.strip("{} ").split(";")):
        if line and not line.startswith(".reg"):
            op, _, rest = line.partition(" ")
            result, *sources = (x.strip() for x in rest.split(","))
            registers[result] = OPS[op](*map(value, sources))
    return [registers[f"${i}"] for i in range(count)]


@pytest.mark.parametrize("width", [64, 128])
def test_numbers(width: int) -> None:
    """Every sigmoid is within 2e-4 of itself, whichever score it shares a reciprocal with; NaN stays its own."""
    text = re.search(r'"({.*?})"', shared_sigmoid(Block().let, "s", 1.0, width))
    assert text is not None
    rng = np.random.default_rng(0)
    count = text[1].count("$") and max(int(n) for n in re.findall(r"\$(\d+)", text[1])) // 2 + 1
    scores = [
        (rng.standard_normal(4096) * rng.choice([0.1, 3, 40, 300], 4096)).astype(np.float64) for _ in range(count)
    ]
    scores[0][:3] = (np.inf, -np.inf, 0.0)
    divisors = [(1 + np.exp2(np.minimum(-s * np.log2(np.e), MOST))).astype(np.float32) for s in scores]
    for s, got in zip(scores, executed(text[1], divisors), strict=True):
        want = 1 / (1 + np.exp(np.minimum(-s, MOST * np.log(2))))
        assert np.max(np.abs(got / want - 1)) < 2e-4
    divisors[0][5] = np.nan
    results = executed(text[1], divisors)
    assert np.isnan(results[0][5]) and all(np.isfinite(x[:5]).all() for x in results)


def test_tangents() -> None:
    """Of any size, also where 2^x overflows: as near as 2 / (1 + e^2x) is to be had in f32."""
    text = re.search(
        r'"({.*?})"', "".join((block := Block()).lines) + shared_tanh(block.let, "x") + "".join(block.lines)
    )
    assert text is not None
    x = [np.linspace(-20, 20, 4001), np.array([-np.inf, np.inf, -1e30, 1e30] + [0.5] * 3997)]
    divisors = [(1 + np.exp2(np.minimum(v * 2 * np.log2(np.e), MOST))).astype(np.float32) for v in x]
    for v, got in zip(x, executed(text[1], divisors), strict=True):
        assert np.max(np.abs(1 - 2 * got.astype(np.float64) - np.tanh(v))) < 4e-7


def spec_of(weight: Apply, **changes: object) -> AttentionSpec:
    given = {"dtype": "f16", "Sq": 256, "Skv": 256, "D": 64, "Dv": 64, "weighting": Weighting(weight)}
    return case("x", **given | changes).spec


@pytest.mark.parametrize(
    ("masks", "weighting", "dtype", "shares"),
    [
        ((), Weighting(SIGMOID), "bf16", True),
        ((Causal(),), Weighting(SIGMOID), "f16", True),
        ((), Weighting(Apply("Sigmoid", Apply("Sub", SCORE, Float(5.0)))), "f16", True),
        ((BoolMask((2, 1, 1, 256)),), Weighting(SIGMOID), "f16", False),
        ((), Weighting(SIGMOID, SIGMOID), "f16", False),
        ((), Weighting(SIGMOID), "f32", False),
    ],
)
def test_where_they_are_shared(masks: tuple[MaskTerm, ...], weighting: Weighting, dtype: str, shares: bool) -> None:
    """Not where a mask makes scores -inf, whose weight is zero, nor where small weights are divided by their sum, nor in f32."""
    config = TritonConfig(64, 64, 4, 2, overlap=0 if dtype == "f32" else 1)
    text = program_of(spec_of(SIGMOID, masks=masks, weighting=weighting, dtype=dtype), config, "f", 90).text
    assert ("inline_asm_elementwise" in text) == shares
    assert "tl.rsqrt" in text  # the first block, and those at edges


@pytest.mark.parametrize(("weight", "overlap"), [(SIGMOID, 0), (SIGMOID, 2), (SOFTPLUS, 1), (SOFTPLUS, 2)])
def test_compiles(weight: Apply, overlap: int) -> None:
    """NaN goes through the least and the largest of two numbers in Gluon's forms, too."""
    spec = spec_of(weight, D=128, Dv=128, Sq=1024, Skv=1024)
    config = TritonConfig(128 if overlap == 2 else 64, 64, 4, 2, overlap=overlap)
    code = ptx.compile_program(program_of(spec, config, "f", 90), 90, 4, 2).text
    assert "ex2.approx" in code and "NaN.f32" in code

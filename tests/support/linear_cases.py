"""Linear sites: one table for the interpreter, the compiler and runs on a GPU."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from onnx_fa.spec.dtypes import NUMPY
from onnx_fa.spec.expr import SCORE, Apply, Tensor
from onnx_fa.spec.fused_linear import FusedLinear
from onnx_fa.spec.linear import Bits, LinearSpec, biased, followed
from onnx_fa.spec.linear_cases import GELU, RESIDUAL, draw_linear
from onnx_fa.spec.norm import NormSpec
from onnx_fa.spec.terms import TensorArg

_BIASED = Apply("Add", SCORE, Tensor(0))
SCALED = Apply("Add", Apply("Mul", SCORE, Tensor(0)), Tensor(1))
GATED = Apply("Mul", Apply("Mul", SCORE, Apply("Sigmoid", SCORE)), Tensor(0))

CASES: dict[str, LinearSpec] = {
    "plain": LinearSpec((48,), 64, 96, "f32"),
    "transposed_bias": biased(LinearSpec((2, 3, 7), 64, 96, "f32", transposed=True)),
    "one_row": LinearSpec((1, 1), 256, 80, "f32"),
    "odd": biased(LinearSpec((197,), 77, 53, "f32")),
    "odd_transposed": LinearSpec((5,), 77, 53, "f16", transposed=True),
    "half": biased(LinearSpec((200,), 128, 130, "f16")),
    "bfloat": LinearSpec((4, 40), 192, 128, "bf16", transposed=True),
    "bfloat_rows": biased(LinearSpec(("b", "s"), 96, 72, "bf16")),
    "bfloat_narrow": LinearSpec((19,), 34, 40, "bf16", then=GATED, tensors=(TensorArg((19, 40), "bf16"),)),
    "bfloat_gelu": LinearSpec((33,), 64, 64, "bf16", True, then=GELU, tensors=(TensorArg((64,), "bf16"),)),
    "dynamic": biased(LinearSpec(("b", "s"), 128, 160, "f16")),
    "dynamic_one": LinearSpec((1, "s"), 96, 64, "f32"),
    "long": biased(LinearSpec((37,), 200, 53, "f32")),
    "long_parts": LinearSpec((20,), 256, 96, "f16", True, parts=(32, 64)),
    "bits4": LinearSpec((20,), 128, 72, "f32", True, Bits(4, 32, "f32")),
    "bits4_zeros": biased(LinearSpec((1, 1), 192, 72, "f16", True, Bits(4, 64, "f16", "packed"))),
    "bits4_float_zeros": LinearSpec((33,), 96, 40, "f32", True, Bits(4, 16, "f32", "f32")),
    "bits8": LinearSpec((3,), 128, 48, "f32", True, Bits(8, 32, "f32", "packed")),
    "bits4_row": LinearSpec((1,), 288, 75, "f32", True, Bits(4, 32, "f32")),
    "bits4_rows": LinearSpec((4,), 256, 41, "bf16", True, Bits(4, 128, "f32", "bf16")),
    "bits2_row": biased(LinearSpec((1, 1), 192, 40, "f32", True, Bits(2, 32, "f16", "packed"))),
    "bits2_rows": LinearSpec((2,), 192, 40, "f16", True, Bits(2, 16, "f32")),
    "bits8_row": LinearSpec((1,), 160, 36, "f16", True, Bits(8, 32, "f32", "f32"), parts=(16, 20)),
    "bits2_dynamic": LinearSpec(("b", "s"), 128, 48, "f16", True, Bits(2, 32, "f16", "packed")),
    "bits4_bfloat": LinearSpec(("b", 1), 256, 96, "bf16", True, Bits(4, 128, "bf16")),
    "gelu": LinearSpec((2, 50), 64, 100, "f32", then=GELU, tensors=(TensorArg((100,)),)),
    "gated": LinearSpec((70,), 96, 64, "f16", then=GATED, tensors=(TensorArg((70, 64), "f16"),)),
    "residual_row": LinearSpec(
        (1, 3), 160, 72, "f32", then=RESIDUAL, tensors=(TensorArg((72,)), TensorArg((1, 3, 72)))
    ),
    "residual_dynamic": LinearSpec(
        ("b", "s"), 64, 80, "f32", True, then=RESIDUAL, tensors=(TensorArg((80,)), TensorArg(("b", "s", 80)))
    ),
    "bits4_gated": LinearSpec((9,), 64, 40, "f32", True, Bits(4, 32, "f32"), GATED, (TensorArg((9, 40)),)),
    "parts": biased(LinearSpec((70,), 64, 128, "f32", parts=(64, 32, 32))),
    "parts_dynamic": LinearSpec(("b", "s"), 64, 160, "f16", True, parts=(96, 64)),
    "parts_row": LinearSpec(
        (1, 2), 256, 96, "f32", then=RESIDUAL, parts=(32, 64), tensors=(TensorArg((96,)), TensorArg((1, 2, 96)))
    ),
    "parts_bits4": LinearSpec((9,), 64, 96, "f16", True, Bits(4, 32, "f16"), parts=(32, 32, 32)),
    "bits4_odd_blocks": LinearSpec((17,), 96, 24, "f32", True, Bits(4, 32, "f32", "packed")),
    "bytes": LinearSpec((40,), 128, 72, "u8"),
    "bytes_zero": LinearSpec((2, 19), 64, 53, "u8", True, None, SCALED, (TensorArg(()), TensorArg((53,))), zero=True),
    "bytes_signed": LinearSpec((33,), 192, 96, "i8", zero=True),
    "bytes_odd": LinearSpec(
        (197,), 76, 130, "i8", True, None, SCALED, (TensorArg((130,)), TensorArg((130,))), zero=True
    ),
    "bytes_rows": LinearSpec(
        ("b", "s"), 128, 80, "u8", then=SCALED, tensors=(TensorArg(()), TensorArg((80,))), zero=True
    ),
    "bytes_row": LinearSpec((1, 1), 256, 64, "u8", zero=True),
}
_ROW = LinearSpec((1, 1), 288, 74, "f32", True, Bits(4, 32, "f32", "packed"))
_ROWS = LinearSpec((1, 3), 192, 40, "f16", True, Bits(4, 64, "f16"))
_RMS = NormSpec((1, 1), 288, "f32", "f32", 1e-5, centred=False, scale="f32")
_SILU = Apply("Mul", SCORE, Apply("Sigmoid", SCORE))
_TIMES = Apply("Mul", SCORE, Tensor(0))
FUSED: dict[str, FusedLinear] = {
    "normed": FusedLinear(_ROW, _RMS),
    "normed_bare": FusedLinear(
        replace(biased(_ROWS), parts=(16, 24)), NormSpec((1, 3), 192, "f32", "f16", 1e-6, False)
    ),
    "gated_pair": FusedLinear(
        followed(_ROW, _TIMES, (TensorArg((1, 1, 74)),)),
        None,
        replace(biased(_ROW), then=Apply("Mul", SCORE, Tensor(0))),
    ),
    "normed_pair": FusedLinear(
        followed(biased(_ROWS), _TIMES, (TensorArg((1, 3, 40), "f16"),)),
        NormSpec((1, 3), 192, "f16", "f16", 1e-5, False, "f16"),
        replace(_ROWS, then=_SILU),
        1,
    ),
    "normed_floats": FusedLinear(
        LinearSpec((1, 2), 256, 50, "f32"), NormSpec((1, 2), 256, "f32", "f32", 1e-5, False, "f32")
    ),
    "normed_parts": FusedLinear(
        LinearSpec((3,), 200, 96, "f16", True, parts=(32, 64)), NormSpec((3,), 200, "f16", "f16", 1e-6, False, "f16")
    ),
    "normed_pair_floats": FusedLinear(
        LinearSpec((1, 1), 224, 72, "f16", then=_TIMES, tensors=(TensorArg((72,), "f16"),)),
        NormSpec((1, 1), 224, "f32", "f16", 1e-5, False, "f32"),
        LinearSpec((1, 1), 224, 72, "f16", then=_SILU),
    ),
    "pair_floats": FusedLinear(
        LinearSpec((2,), 256, 40, "f32", True, then=_TIMES, tensors=(TensorArg((2, 40)),)),
        None,
        biased(LinearSpec((2,), 256, 40, "f32", True)),
    ),
}
"""Of a few rows, with a norm in front and a gate beside them."""
SIZES = ({"b": 1, "s": 1}, {"b": 2, "s": 37})


def bound(spec: LinearSpec, sizes: dict[str, int]) -> tuple[int, ...]:
    """The dims of x before the last, all known."""
    return tuple(d if isinstance(d, int) else sizes[d] for d in spec.lead)


def draw(spec: LinearSpec, lead: tuple[int, ...], seed: int = 0, size: float = 1.0) -> list[npt.NDArray[Any]]:
    """Operands, of x with these dims before the last, and numbers of that size."""
    sizes = {d: n for d, n in zip(spec.lead, lead, strict=True) if isinstance(d, str)}
    return draw_linear(spec.bind(sizes), seed, size=size)


def draw_fused(spec: FusedLinear, seed: int = 0, size: float = 1.0) -> list[npt.NDArray[Any]]:
    """Operands, and numbers of x of that size."""
    product = draw_linear(spec.product, seed, size=size)
    given = dict(zip(spec.product.operand_names(), product, strict=True))
    if spec.gate is not None:
        gate = draw_linear(spec.gate, seed + 1)[1:]
        many = len(gate) - len(spec.gate.tensors)
        names = spec.gate.operand_names("u")[1:]
        given |= zip([*(f"g{name}" for name in names[:many]), *names[many:]], gate, strict=True)
    if spec.norm is not None:
        rng = np.random.default_rng(seed)
        x = rng.standard_normal(given["x"].shape) * size
        given["x"] = x.astype(NUMPY[spec.norm.dtype])
        given["gain"] = rng.uniform(0.5, 1.5, spec.norm.N).astype(NUMPY[spec.norm.scale or "f32"])
    return [given[name] for name in spec.operand_names()]

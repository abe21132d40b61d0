"""Norm sites: one table for the interpreter and the compilers, and how far results are from float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from onnx_fa.kernels.mlir.text import element_type, tensor_type
from onnx_fa.spec.norm import NormSpec, norm_name, normalise

NUMPY = {"f32": np.float32, "f16": np.float16, "bf16": ml_dtypes.bfloat16}

CASES: dict[str, NormSpec] = {
    "layer": NormSpec((2, 9), 64, "f32", "f32", 1e-5, True, "f32", "f32"),
    "layer_half": NormSpec((7,), 96, "f16", "f16", 1e-5, True, "f16", "f16"),
    "odd": NormSpec((5,), 77, "f32", "f32", 1e-12, True, "f32", "f32"),
    "odd_half": NormSpec((5,), 53, "f16", "f16", 1e-5, True, "f16"),
    "bare": NormSpec((3,), 40, "f32", "f32", 1e-5),
    "rms": NormSpec((11,), 64, "f32", "f32", 1e-6, False, "f32"),
    "rms_half": NormSpec((1, 4), 100, "f16", "f16", 1e-6, False, "f16"),
    "rms_widened": NormSpec((6,), 64, "f16", "f32", 1e-6, False, "f32"),
    "narrowed": NormSpec((6,), 48, "f32", "f16", 1e-5, True, "f32", "f32"),
    "shift": NormSpec((6,), 48, "f32", "f32", 1e-5, True, "", "f32"),
    "sum": NormSpec((2, 5), 80, "f16", "f16", 1e-5, True, "f16", "f16", True, True),
    "sum_unread": NormSpec((2, 5), 80, "f32", "f32", 1e-5, False, "f32", "", True),
    "dynamic": NormSpec(("b", "s"), 72, "f16", "f16", 1e-5, True, "f16", "f16"),
    "dynamic_sum": NormSpec(("b", 1, "s"), 64, "f32", "f32", 1e-5, False, "f32", "", True, True),
    "bfloat": NormSpec((9,), 64, "bf16", "bf16", 1e-5, True, "bf16", "bf16"),
    "one_number": NormSpec((4,), 1, "f32", "f32", 1e-5, True, "f32", "f32"),
}
SIZES = ({"b": 1, "s": 1}, {"b": 2, "s": 7})
LARGE = {"f32": 3e37, "f16": 1e4, "bf16": 3e37}
"""Numbers whose squares the type does not hold."""
ALIKE = 12345.678
"""Of a row of it throughout the mean is not exact, and what it leaves is more than an epsilon."""
TOLERANCE = {"f32": 4e-6, "f16": 5e-4, "bf16": 2.0**-8}
"""Of numbers that are computed in f32 and rounded once. A mean of thirty deviations leaves ten times f32's rounding."""
Run = Callable[[NormSpec, tuple[int, ...], list[npt.NDArray[Any]], int], list[npt.NDArray[Any]]]
"""Computes a site's results, of its shapes, by workgroups of so many rows, if it can choose."""


def bound(spec: NormSpec, sizes: dict[str, int]) -> tuple[int, ...]:
    """The dims of x before the last, all known."""
    return tuple(d if isinstance(d, int) else sizes[d] for d in spec.lead)


def draw(spec: NormSpec, lead: tuple[int, ...], size: float = 1.0, shift: float = 0.5) -> list[npt.NDArray[Any]]:
    """Operands; numbers of x of about that size, around a shift of as many times it."""
    rng, found = np.random.default_rng(0), []
    for name, shape, dtype in spec.operands:
        own = (*lead, spec.N) if len(shape) > 1 else shape
        numbers = rng.standard_normal(tuple(d for d in own if isinstance(d, int)))
        if name in ("x", "skip"):
            numbers = (numbers + shift) * size
        found.append(numbers.astype(NUMPY[dtype]))
    return found


def tolerance(spec: NormSpec) -> float:
    return max(TOLERANCE[dtype] for dtype in (spec.dtype, spec.result))


def distance(spec: NormSpec, run: Run) -> float:
    """The largest relative distance of a result from float64, over sizes of numbers and of dims; NaN where one is NaN and the other
    is not."""
    found = 0.0
    for lead in dict.fromkeys(bound(spec, sizes) for sizes in SIZES):
        for size, shift, rows in ((1e-3, 0.0, 1), (1.0, 30.0, 4), (LARGE[spec.dtype], 0.0, 2)):
            operands = draw(spec, lead, size, shift)
            if spec.skip and size > 1:
                operands[1] = -operands[0] / 2  # a sum that is no infinity
            wanted = normalise(spec, operands)
            for got, want in zip(run(spec, lead, operands, rows), wanted, strict=True):
                scale = np.linalg.norm(want) or 1.0
                found = float(np.maximum(found, np.linalg.norm((got.astype(np.float64) - want).ravel() / scale)))
    return found


def keeps_special_rows(spec: NormSpec, run: Run) -> bool:
    """Whether rows of infinities, NaNs, zeros and one large number are NaN, and finite, where those of float64 are, and right; and
    other rows unmoved."""
    lead = bound(spec, {"b": 2, "s": 7})
    operands = draw(spec, lead)
    plain = run(spec, lead, operands, 1)[0].reshape(-1, spec.N)
    x = operands[0].reshape(-1, spec.N)
    x[0, 0], x[1, -1], x[2], x[3:4], x[4:5] = np.inf, np.nan, 0, LARGE[spec.dtype], ALIKE
    got = run(spec, lead, operands, 4)[0].reshape(-1, spec.N).astype(np.float64)
    want = normalise(spec, operands)[0].reshape(-1, spec.N)
    same = np.array_equal(np.isnan(got), np.isnan(want)) and np.array_equal(got[5:], plain[5:].astype(np.float64))
    near = 1e-2 if "bf16" in (spec.dtype, spec.result) else 2e-3
    alike = [2, *range(4, len(got))][: 1 if spec.skip else 2]
    return bool(same and np.allclose(np.nan_to_num(got[alike]), np.nan_to_num(want[alike]), atol=near))


def function_text(name: str, spec: NormSpec) -> str:
    """A function of this name, which is the site."""
    types = [tensor_type(s, element_type(d)) for s, d in zip(spec.operand_shapes, spec.operand_dtypes, strict=True)]
    results, names = [tensor_type(shape, dtype) for shape, dtype in spec.results], [f"%a{i}" for i in range(len(types))]
    arguments, result = ", ".join(f"{n}: {t}" for n, t in zip(names, types, strict=True)), ", ".join(results)
    call = f"%r:{len(results)} = util.call @{norm_name(spec)}({', '.join(names)}) : ({', '.join(types)}) -> ({result})"
    given = ", ".join(f"%r#{i}" for i in range(len(results)))
    return f"func.func @{name}({arguments}) -> ({result}) {{\n{call}\nreturn {given} : {result}\n}}"

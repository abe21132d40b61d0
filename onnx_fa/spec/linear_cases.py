"""The table of linear sites that tuner and benchmarks measure and tests try, and how operands are drawn.

Tests add many small odd ones of their own to it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from onnx_fa.spec.dtypes import NUMPY
from onnx_fa.spec.expr import SCORE, Apply, Float, ScoreExpr, Tensor
from onnx_fa.spec.linear import Bits, LinearSpec, biased, in_a_word, panel_starts
from onnx_fa.spec.linear_accuracy import LinearExpected, expect_linear
from onnx_fa.spec.terms import Dim, DType, TensorArg

Array = npt.NDArray[Any]

_BIASED = Apply("Add", SCORE, Tensor(0))
_ERF = Apply("Erf", Apply("Mul", _BIASED, Float(0.7071067811865476)))
GELU: ScoreExpr = Apply("Mul", Apply("Mul", _BIASED, Apply("Add", _ERF, Float(1.0))), Float(0.5))
"""Of the sum with a bias."""
RESIDUAL: ScoreExpr = Apply("Add", Tensor(1), _BIASED)
"""The sum with a bias, and a tensor of as many numbers."""


@dataclass(frozen=True)
class LinearCase:
    """One product with a weight. `sizes` are where one whose rows only the run knows is tried, tags and `title` as of attentions
    (spec/cases.py)."""

    name: str
    spec: LinearSpec
    tags: frozenset[str] = frozenset()
    sizes: tuple[tuple[tuple[str, int], ...], ...] = ((),)
    title: str = ""

    def bound(self) -> list[LinearSpec]:
        """The specs to run, symbols replaced."""
        return [self.spec.bind(dict(s)) for s in self.sizes]

    def draw(self, spec: LinearSpec, *, adversarial: bool = False) -> list[Array]:
        return draw_linear(spec, 0, adversarial=adversarial)

    def expect(self, spec: LinearSpec, operands: Sequence[Array], budget: int) -> LinearExpected:
        return expect_linear(spec, operands)


def _layer(name: str, rows: Dim, K: int, N: int, then: str, *tags: str, dtype: DType = "f32") -> LinearCase:
    """A layer of a network: rows x K by a weight of K x N, and a bias, a GELU or a residual."""
    spec = LinearSpec((rows,), K, N, dtype)
    bias, whole = TensorArg((N,), dtype), TensorArg((rows, N), dtype)
    spec = {
        "": lambda: spec,
        "bias": lambda: biased(spec),
        "gelu": lambda: LinearSpec((rows,), K, N, dtype, then=GELU, tensors=(bias,)),
        "residual": lambda: LinearSpec((rows,), K, N, dtype, then=RESIDUAL, tensors=(bias, whole)),
    }[then]()
    sizes: tuple[tuple[tuple[str, int], ...], ...] = (((rows, 512),),) if isinstance(rows, str) else ((),)
    title = f"{'512 (free)' if isinstance(rows, str) else rows} x {K} x {N} {dtype} {then}".strip()
    return LinearCase(name, spec, frozenset(tags), sizes, title)


def _of_bytes(rows: int, K: int, N: int) -> LinearSpec:
    """A product of a dynamically quantised model: whole numbers, of which a scale makes floats."""
    scaled = Apply("Add", Apply("Mul", SCORE, Tensor(0)), Tensor(1))
    return LinearSpec((rows,), K, N, "u8", then=scaled, tensors=(TensorArg(()), TensorArg((N,))), zero=True)


_SHORTER: tuple[DType, ...] = ("bf16", "f16")


def _cases() -> Iterator[LinearCase]:
    yield _layer("linear_up", 512, 768, 3072, "gelu", "tune")
    yield _layer("linear_down", 512, 3072, 768, "residual", "tune")
    yield _layer("linear_square", 512, 768, 768, "bias", "tune")
    yield _layer("linear_free", "rows", 768, 3072, "gelu", "tune")
    yield _layer("linear_some", 16, 768, 3072, "gelu", "tune")
    yield _layer("linear_few", 4, 768, 3072, "gelu", "tune")
    yield _layer("linear_one", 1, 768, 3072, "gelu", "tune")
    yield _layer("linear_narrow", 512, 256, 256, "bias", "tune")
    yield _layer("linear_vit", 197, 768, 768, "bias")
    for dtype in _SHORTER:
        yield _layer(f"linear_{dtype}_up", 512, 768, 3072, "gelu", f"tune_{dtype}", dtype=dtype)
        yield _layer(f"linear_{dtype}_down", 512, 3072, 768, "residual", f"tune_{dtype}", dtype=dtype)
        yield _layer(f"linear_{dtype}_some", 16, 768, 3072, "gelu", f"tune_{dtype}", dtype=dtype)
        yield _layer(f"linear_{dtype}_one", 1, 768, 3072, "gelu", f"tune_{dtype}", dtype=dtype)
    for name, rows in (("many", 512), ("one", 1)):
        stored = LinearSpec((rows,), 768, 3072, "f32", stored="f16")
        title = f"{rows} x 768 x 3072 f32 by f16 bias"
        yield LinearCase(f"linear_stored_{name}", biased(stored), frozenset({"tune_stored"}), title=title)
    for name, (rows, K, N) in {"up": (512, 768, 3072), "down": (512, 3072, 768), "one": (1, 768, 3072)}.items():
        title = f"{rows} x {K} x {N} u8 by i8, scaled, bias"
        yield LinearCase(f"linear_u8_{name}", _of_bytes(rows, K, N), frozenset({"tune_u8"}), title=title)
    for bits in (2, 4, 8):
        spec = LinearSpec((512,), 768, 3072, "f32", True, Bits(bits, 32, "f32"))
        title = f"512 x 768 x 3072 f32 by {bits} bits"
        yield LinearCase(f"linear_bits{bits}_many", spec, frozenset({"tune_bits"}), title=title)
    yield _layer("linear_tiny", 6, 32, 48, "gelu")


LINEAR_CASES: tuple[LinearCase, ...] = tuple(_cases())


def draw_linear(spec: LinearSpec, seed: int, *, adversarial: bool = False, size: float = 1.0) -> list[Array]:
    """Operands of a spec without symbols: numbers ~ N(0, 1), x times `size`, scales of blocks a tenth of it, integers of all
    values of their types. Adversarial: every other row of x is 64 times as large (bytes: lies on the ends of its type), the first
    nothing but zeros, and the last has an infinity. The other operands are the same, so that a program may hold the weight."""
    found = []
    shapes = [tuple(d for d in shape if isinstance(d, int)) for shape in spec.operand_shapes]
    for i, (name, shape, dtype) in enumerate(zip(spec.operand_names(), shapes, spec.operand_dtypes, strict=True)):
        rng = np.random.default_rng([seed, i])
        if dtype in ("u8", "i8"):
            low, high = (0, 256) if dtype == "u8" else (-128, 128)
            drawn = rng.integers(low, high, shape).astype(NUMPY[dtype])
        elif name == "zero" and spec.zero:
            drawn = np.array(rng.integers(0, 256) - 128 * (spec.dtype == "i8"), np.int32)
        elif name == "zero":
            drawn = rng.integers(0, 1 << (spec.bits.bits if spec.bits else 1), shape).astype(NUMPY[dtype])
        else:
            scale = {"scale": 0.1, "x": size}.get(name, 1.0)
            drawn = np.asarray(rng.standard_normal(shape) * scale).astype(NUMPY[dtype])
        found.append(_made_adverse(drawn) if adversarial and name == "x" else drawn)
    return found


def _made_adverse(x: Array) -> Array:
    rows = x.reshape(-1, x.shape[-1]).copy()
    if x.dtype in (np.uint8, np.int8):
        ends = np.iinfo(x.dtype)
        rows[::2] = np.where(rows[::2] > (ends.min + ends.max) // 2, ends.max, ends.min)
    else:
        rows[1::2] = (rows[1::2].astype(np.float64) * 64).astype(x.dtype)
        if len(rows) > 1:
            rows[0] = 0
        rows[-1, 0] = np.inf
    return rows.reshape(x.shape)


_IN_A_WORD = {np.dtype(np.int8): 4, np.dtype(ml_dtypes.bfloat16): 2}


def in_panels(w: Array, panel: int, together: int | None = None, parts: Sequence[int] = ()) -> Array:
    """A weight (K, N) as panels of columns, the last of them the last columns, of each of its `parts` where it has several; so many
    rows `together`, by default those of bf16 in pairs and of bytes in fours."""
    starts = panel_starts(parts or w.shape[1:], panel)
    panels = np.stack([w[:, i : i + panel] for i in starts])
    n = together or _IN_A_WORD.get(w.dtype, 1)
    words = np.stack([panels[:, i::n] for i in range(n)], axis=-1)
    return words.reshape(len(starts), len(w) // n, n * panel)


def packed(spec: LinearSpec, operands: Sequence[Array], panel: int) -> list[Array]:
    """Operands as a spec with panels of so many columns has them."""
    w = operands[1].T if spec.transposed else operands[1]
    rest = list(operands[2:])
    if spec.zero:
        rest[1:1] = [w.sum(0, dtype=np.int32)]
    return [operands[0], in_panels(w, panel, in_a_word(spec.dtype), spec.parts), *rest]

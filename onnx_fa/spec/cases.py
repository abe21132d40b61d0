"""The table of attentions that tuner and benchmarks measure and tests try, and how operands are drawn.

Tests add many small odd ones of their own to it.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from onnx_fa.errors import OnnxFaError
from onnx_fa.spec.accuracy import Expected, expect
from onnx_fa.spec.attention import AttentionSpec
from onnx_fa.spec.dtypes import F16_MAX, F32_MAX, NUMPY
from onnx_fa.spec.expr import SCORE, Apply, Float, Int, K, Q, ScoreExpr, Tensor, leaves
from onnx_fa.spec.terms import (
    NEG_INF,
    AddMask,
    BoolMask,
    Causal,
    Dim,
    Elementwise,
    Quantized,
    SlidingWindow,
    Softcap,
    TensorArg,
    TensorMask,
    Weighting,
)

Array = npt.NDArray[Any]
FLOAT_MIN = -F32_MAX
DOCUMENTS = 4
"""Integer tensors are drawn as document ids: this many runs of equal numbers."""


@dataclass(frozen=True)
class Case:
    """One attention. `sizes` are where a dynamic spec is tried: each a tuple of (symbol, size). Tag "table" puts it in the table
    of benchmarks, "quick" in the short one, "tune" among what the tuner tries, "ablate" among what optimisations are switched off
    for, "forms" among what stock IREE is given in every form, "bench" keeps it out of tests that run everything; those tags with
    "_gpu" are for GPUs. `title` is for tables."""

    name: str
    spec: AttentionSpec
    tags: frozenset[str] = frozenset()
    sizes: tuple[tuple[tuple[str, int], ...], ...] = ((),)
    title: str = ""

    def bound(self) -> list[AttentionSpec]:
        """The specs to run, symbols replaced."""
        return [self.spec.bind(dict(s)) for s in self.sizes]

    def draw(self, spec: AttentionSpec, *, adversarial: bool = False) -> list[Array]:
        return draw_operands(spec, 0, adversarial=adversarial)

    def expect(self, spec: AttentionSpec, operands: Sequence[Array], budget: int) -> Expected:
        return expect(spec, operands, budget=budget)


def case(name: str, *tags: str, title: str = "", **changes: Any) -> Case:
    """A case of B2 H2 S64 D32, f32, scale 1/sqrt(D), with fields of the spec changed."""
    sizes = changes.pop("sizes", ((),))
    base: dict[str, Any] = {"dtype": "f32", "Hq": 2, "Hkv": 2, "Sq": 64, "Skv": 64, "D": 32, "Dv": 32, "batch": (2,)}
    base |= changes
    base.setdefault("scale", base["D"] ** -0.5)
    return Case(name, AttentionSpec(**base), frozenset(tags), sizes, title or name)


def alibi(heads: int) -> Elementwise:
    """The score plus a slope per head times the distance from query to key (Press et al., "Train Short, Test Long")."""
    distance: ScoreExpr = Apply("ToFloat", Apply("Sub", K, Q))
    expr: ScoreExpr = Apply("Add", SCORE, Apply("Mul", Tensor(0), distance))
    return Elementwise(expr, (TensorArg((heads, 1, 1)),), "alibi")


def prefix(length: int) -> Elementwise:
    """Causal, but every query sees the first `length` keys."""
    keep: ScoreExpr = Apply("Or", Apply("LessOrEqual", K, Q), Apply("Less", K, Int(length)))
    return Elementwise(Apply("Where", keep, SCORE, Float(NEG_INF)), (), "prefix")


def document(B: int, S: int) -> Elementwise:
    """Queries see the keys of their own document: two tensors of ids, (B, 1, S, 1) and (B, 1, 1, S)."""
    keep: ScoreExpr = Apply("Equal", Tensor(0), Tensor(1))
    tensors = (TensorArg((B, 1, S, 1), "i32"), TensorArg((B, 1, 1, S), "i32"))
    return Elementwise(Apply("Where", keep, SCORE, Float(NEG_INF)), tensors, "document")


_BENCH: dict[str, Any] = {"batch": (1,), "Hq": 8, "Hkv": 8, "D": 64, "Dv": 64}


def _cases() -> Iterator[Case]:
    yield from _prefill_cases()
    yield from _decode_cases()
    yield from _tuner_cases()
    yield from _gpu_cases()
    yield from _ablation_cases()
    yield case("tiny", "bench", Sq=8, Skv=8, D=4, Dv=4)  # what benchmarks take for next to nothing


def _in_table(name: str, title: str, *tags: str, S: int = 0, **changes: Any) -> Case:
    """A row of the table of benchmarks; S: as many queries as keys."""
    lengths = {"Sq": S, "Skv": S} if S else {}
    return case(name, "bench", "table", *tags, title=title, **_BENCH | lengths | changes)


def _tags_if(**holds: bool) -> list[str]:
    """The names of what holds."""
    return [tag for tag, is_true in holds.items() if is_true]


def _prefill_cases() -> Iterator[Case]:
    h16: dict[str, Any] = {"Hq": 16, "Hkv": 16, "D": 128, "Dv": 128}
    for causal in (False, True):
        end, word = ("_causal", " causal") if causal else ("", "")
        masks: dict[str, Any] = {"masks": (Causal(),)} if causal else {}
        for s in (512, 1024, 2048, 4096, 8192):
            ablate = s == (2048 if causal else 1024)
            quick = _tags_if(quick=s == 512, tune=s == 1024, ablate=ablate)
            yield _in_table(f"bench_s{s}{end}", f"B1 H8 S{s} D64{word}", *quick, S=s, **masks)
        for s, name in ((1024, "bench_d128"), (4096, "bench_d128_s4096")):
            tags = _tags_if(tune=s == 1024)
            yield _in_table(f"{name}{end}", f"B1 H16 S{s} D128{word}", *tags, S=s, **h16 | masks)
    for s, name in ((4096, "bench_window"), (8192, "bench_window_s8192")):
        tags = _tags_if(tune=s == 4096, ablate=s == 4096)
        yield _in_table(name, f"B1 H8 S{s} D64 window 256", *tags, S=s, masks=(SlidingWindow(256, 0),))
    s = 1024
    yield _in_table("bench_alibi", f"B1 H8 S{s} D64 ALiBi causal", "quick", "tune", S=s, masks=(alibi(8), Causal()))
    yield _in_table("bench_softcap", f"B1 H8 S{s} D64 softcap", "ablate", S=s, mods=(Softcap(20.0),))
    yield _in_table("bench_prefix", f"B1 H8 S{s} D64 prefix 256", S=s, masks=(prefix(256),))
    yield _in_table("bench_document", f"B1 H8 S{s} D64 {DOCUMENTS} documents", S=s, masks=(document(1, s),))
    yield _in_table("bench_t5", f"B1 H8 S{s} D64 T5 bias", "tune", S=s, scale=1.0, masks=(AddMask((1, 8, s, s)),))
    yield _in_table("bench_gqa8", f"B1 H32:4 S{s} D64 GQA causal", S=s, Hq=32, Hkv=4, masks=(Causal(),))
    evoformer = (AddMask((1, 128, 1, 1, 256)), AddMask((1, 1, 4, 256, 256)))
    yield _in_table(
        "bench_evoformer",
        "B1 N128 S256 H4 D32 Evoformer",
        "tune",
        S=256,
        **{"batch": (1, 128), "Hq": 4, "Hkv": 4, "D": 32, "Dv": 32, "masks": evoformer},
    )


def _decode_cases() -> Iterator[Case]:
    decode: dict[str, Any] = {"Sq": 1, "Hq": 32, "D": 128, "Dv": 128}
    for skv, end in ((2048, ""), (8192, "_8k"), (32768, "_32k")):
        quick = _tags_if(quick=skv == 2048, tune=skv == 2048)
        yield _in_table(
            f"bench_decode{end}", f"B1 H32 Sq1 Skv{skv} D128 decode", "decode", *quick, Skv=skv, **decode | {"Hkv": 32}
        )
    for skv, end in ((2048, ""), (8192, "_8k"), (32768, "_32k")):
        tags = _tags_if(tune=skv == 8192, ablate=skv == 8192)
        yield _in_table(
            f"bench_decode_gqa{end}",
            f"B1 H32:8 Sq1 Skv{skv} D128 decode",
            "decode",
            *tags,
            Skv=skv,
            **decode | {"Hkv": 8},
        )
    for hkv, heads in ((32, "H32"), (8, "H32:8")):
        skv, token = 8192, Quantized("i8", (1, hkv, 8192, 1))
        yield _in_table(
            f"bench_decode{'_gqa' if hkv == 8 else ''}_int8",
            f"B1 {heads} Sq1 Skv{skv} D128 decode, K and V int8",
            "decode",
            Skv=skv,
            **decode | {"Hkv": hkv, "k_quant": token, "v_quant": token},
        )


def _tuner_cases() -> Iterator[Case]:
    """Not in the table of benchmarks: for the tuner."""
    s1024 = {"Sq": 1024, "Skv": 1024}
    yield case("bench_gqa", "bench", **_BENCH | s1024 | {"Hkv": 2, "masks": (Causal(),)})
    squared: ScoreExpr = Apply("Mul", Apply("Relu", SCORE), Apply("Relu", SCORE))
    without_softmax = {
        "sigmoid": Weighting(Apply("Sigmoid", SCORE), label="sigmoid"),
        "relu": Weighting(Apply("Div", Apply("Relu", SCORE), Float(1024.0)), label="relu"),
        "relu2": Weighting(squared, squared, label="relu2"),
    }
    for name, weighting in without_softmax.items():
        yield case(f"bench_{name}", "bench", "weighting", **_BENCH | s1024 | {"weighting": weighting})
    yield case("bench_add_mask", "bench", **_BENCH | s1024 | {"masks": (AddMask((1, 1, 1, 1024)),)})
    yield case(
        "bench_bert",
        "bench",
        **_BENCH | {"Sq": 512, "Skv": 512, "Hq": 12, "Hkv": 12, "masks": (BoolMask((1, 1, 1, 512)),)},
    )
    yield case("bench_vit", "bench", **_BENCH | {"Sq": 197, "Skv": 197, "Hq": 12, "Hkv": 12})
    for D, Skv in ((64, 12288), (256, 8192)):
        yield case(f"bench_decode_d{D}", "bench", "tune", **_BENCH | {"Sq": 1, "Skv": Skv, "D": D, "Dv": D})
    yield case("bench_dynamic", "bench", "dynamic", **_BENCH | {"Sq": "s", "Skv": "s"}, sizes=((("s", 1024),),))


def _half(name: str, H: int, S: int, D: int, *tags: str, B: int = 1, **changes: Any) -> Case:
    """A case in f16 of as many queries as keys."""
    base: dict[str, Any] = {"dtype": "f16", "Hq": H, "Hkv": H, "Sq": S, "Skv": S, "D": D, "Dv": D, "batch": (B,)}
    return case(name, "bench", *tags, **base | changes)


def _ablation_cases() -> Iterator[Case]:
    """What the other cases with the tag lack: halves on CPUs, a few queries, tensors with heads behind their lengths."""
    order = (0, 2, 1, 3)
    bshd: dict[str, Any] = {f"{x}_layout": order for x in "qkvo"}
    few: dict[str, Any] = {"Hq": 4, "Hkv": 1, "Sq": 2, "Skv": 16384, "D": 128, "Dv": 128}
    s1024 = _BENCH | {"Sq": 1024, "Skv": 1024}
    yield case("ablate_f16", "bench", "ablate", title="B1 H8 S1024 D64 f16", **s1024 | {"dtype": "f16"})
    yield case("ablate_few", "bench", "ablate", title="B1 H4:1 Sq2 Skv16384 D128", **_BENCH | few)
    yield case("ablate_bshd", "bench", "ablate", title="B1 S1024 H8 D64 (BSHD)", **s1024 | bshd)
    title = "B1 H32:8 Sq4 Skv16384 D128 f16"
    yield _half("ablate_gpu_few", 32, 16384, 128, "ablate_gpu", title=title, Hkv=8, Sq=4)
    capped: dict[str, Any] = {"dtype": "f32", "mods": (Softcap(50.0),)}
    yield _half("ablate_gpu_f32_softcap", 16, 2048, 64, "ablate_gpu", title="B1 H16 S2048 D64 f32 softcap", **capped)
    yield case("forms", "bench", "forms", title="B1 H8 S2048 D64", **_BENCH | {"Sq": 2048, "Skv": 2048})
    yield _half("forms_gpu", 16, 2048, 64, "forms_gpu", title="B1 H16 S2048 D64 f16")
    yield _half("ablate_gpu_bshd", 16, 2048, 128, "ablate_gpu", title="B2 S2048 H16 D128 f16 (BSHD)", B=2, **bshd)


def _gpu_cases() -> Iterator[Case]:
    """What the tuner tries on GPUs: large enough to fill one, K and V of a decode too large for its cache."""

    def gpu(name: str, H: int, S: int, D: int, B: int = 1, **changes: Any) -> Case:
        tags = _tags_if(ablate_gpu=name in ("causal", "window", "s4096_d128", "decode", "f32"))
        return _half(f"gpu_{name}", H, S, D, "tune_gpu", *tags, B=B, **changes)

    causal: dict[str, Any] = {"masks": (Causal(),)}
    yield gpu("s512", 32, 512, 64)
    yield gpu("s2048", 32, 2048, 64)
    yield gpu("causal", 16, 4096, 64, 4, **causal)
    yield gpu("window", 16, 4096, 64, 4, masks=(SlidingWindow(256, 0),))
    yield gpu("prefix", 16, 4096, 64, 4, masks=(prefix(256),))
    yield gpu("s512_d128", 16, 512, 128, 8)
    yield gpu("s4096_d128", 32, 4096, 128)
    yield gpu("s4096_d128_causal", 32, 4096, 128, **causal)
    yield gpu("gqa", 32, 2048, 128, 2, Hkv=8, **causal)
    dynamic: dict[str, Any] = {"Sq": "s", "Skv": "s", "sizes": ((("s", 2048),),)}
    yield gpu("dynamic", 32, 2048, 128, 2, **dynamic | causal)
    pairs = AddMask((4, 256, 1, 1, 256), "f16"), AddMask((4, 1, 4, 256, 256), "f16")
    yield gpu("evoformer", 4, 256, 64, batch=(4, 256), masks=pairs)
    yield gpu("d32", 16, 4096, 32, 4)
    yield gpu("d256", 16, 4096, 256)
    yield gpu("decode", 32, 32768, 128, Hkv=8, Sq=1)
    yield gpu("decode_d64", 32, 32768, 64, Hkv=16, Sq=1)
    yield gpu("f32", 8, 2048, 64, dtype="f32")
    yield gpu("f32_d128", 8, 2048, 128, dtype="f32")


CASES: tuple[Case, ...] = tuple(_cases())
BY_NAME = {c.name: c for c in CASES}


def find(name: str) -> Case:
    """The attention of that name. Raises OnnxFaError."""
    if name not in BY_NAME:
        raise OnnxFaError(f"no case {name!r}: `onnx-fa cases --kind attention` lists them")
    return BY_NAME[name]


def draw_operands(spec: AttentionSpec, seed: int, *, adversarial: bool = False) -> list[Array]:
    """Operands of a spec without symbols: q, k, v ~ N(0, 1), on a grid where they are integers, masks that keep three of four
    keys, numbers of other tensors ~ N(0, 1), other integers as document ids that start at 0, or as lengths where there is one for
    all queries and keys.

    `adversarial` draws queries, biases and sinks ten times as large, makes some rows lose every key (where a mask has rows or a
    padding to do it with), gives additive masks finfo.min or -inf in place of small numbers, and mixes document ids.
    """
    if spec.symbols:
        raise ValueError(f"symbols {spec.symbols} have no size")
    rng = np.random.default_rng([seed, zlib.crc32(repr(spec).encode())])
    operands: list[Array] = []
    for i, (shape, dtype) in enumerate(zip(spec.operand_shapes[:3], spec.operand_dtypes[:3], strict=True)):
        size = 10.0 if adversarial and i == 0 else 1.0
        numbers = size * rng.standard_normal(_ints(shape))
        operands.append(numbers.astype(NUMPY[dtype]) if dtype not in STEPS else _integers(numbers, dtype, adversarial))
    for term in spec.masks:
        if isinstance(term, TensorMask):
            operands.append(_draw_mask(rng, spec, term, adversarial))
        elif isinstance(term, Elementwise):
            operands += [_draw_tensor(rng, spec, t, adversarial, _is_mask(term)) for t in term.tensors]
    for further in (spec.weights, spec.sink):
        if further is not None:
            operands.append(_draw_tensor(rng, spec, further, adversarial))
    for quant in spec.quantized:
        shape, step = _ints(quant.shape), 1 / STEPS[quant.dtype]
        operands.append(np.asarray(step * rng.uniform(0.5, 1.5, shape)).astype(NUMPY[spec.dtype]))
        if quant.zero_point:
            middle = _middle(quant.dtype)
            operands.append(np.asarray(rng.integers(middle - 2, middle + 3, shape)).astype(_zero_type(quant.dtype)))
    if spec.gathered is not None:
        rows = int(spec.gathered.rows) - spec.gathered.head_rows * (int(spec.Hkv) - 1)
        index = rng.integers(0, rows, _ints(spec.operand_shapes[-1]))
        operands.append(index.astype(NUMPY[spec.gathered.dtype]))
    return operands


STEPS = {"i8": 40.0, "u8": 40.0, "i4": 2.5, "u4": 2.5}
"""Integers to a standard deviation of what they stand for."""


def _middle(dtype: str) -> int:
    return {"u8": 128, "u4": 8}.get(dtype, 0)


def _zero_type(dtype: str) -> Any:
    return np.uint8 if dtype.startswith("u") else np.int8


def _integers(numbers: Array, dtype: str, adversarial: bool) -> Array:
    """Numbers of deviation 1 on the grid of an integer type; `adversarial` ones lie on its ends as often."""
    bits = int(dtype[1:])
    low, high = (0, (1 << bits) - 1) if dtype.startswith("u") else (-(1 << bits - 1), (1 << bits - 1) - 1)
    steps = STEPS[dtype] * (4 if adversarial else 1)
    whole: Array = np.clip(np.rint(steps * numbers) + _middle(dtype), low, high).astype(np.int32)
    return whole.astype(NUMPY[dtype])


def packed(x: Array) -> Array:
    """4-bit integers two to a byte, the first in the low half, as kernels take them; other arrays as they are."""
    if x.dtype not in (np.dtype(ml_dtypes.int4), np.dtype(ml_dtypes.uint4)):
        return x
    nibbles = x.astype(np.int8).view(np.uint8) & 15
    pairs: Array = np.asarray(nibbles[..., ::2] | (nibbles[..., 1::2] << 4), np.uint8).view(np.int8)
    return pairs


def _ints(shape: tuple[Dim, ...]) -> tuple[int, ...]:
    return tuple(d for d in shape if isinstance(d, int))


def _draw_mask(rng: np.random.Generator, spec: AttentionSpec, mask: TensorMask, adversarial: bool) -> Array:
    shape = _ints(mask.shape)
    keep = rng.random(shape) < 0.75
    if keep.shape[-1] > 1 and keep.ndim > 1:
        keep[..., 0] = True  # a row loses all keys only on purpose
    if adversarial and keep.ndim > 1 and keep.size:
        rows = keep.reshape(-1, keep.shape[-1])
        rows[:: max(1, len(rows) // 5)] = False
    if isinstance(mask, BoolMask):
        return keep
    low = FLOAT_MIN if spec.empty_row == "mean" else NEG_INF
    if mask.dtype == "f16" and low == FLOAT_MIN:
        low = -F16_MAX
    values = rng.standard_normal(shape) if not adversarial else np.where(keep, 0.0, low)
    if mask.factor != 1.0:
        values = np.where(keep, 0.0, 1.0) if mask.factor < 0 else values
    return np.asarray(values).astype(NUMPY[mask.dtype])


def _is_mask(term: Elementwise) -> bool:
    """Whether an expression makes a mask of its floats: it holds a constant that swallows any score."""
    return any(isinstance(leaf, Float) and 1e4 <= abs(leaf.value) < np.inf for leaf in leaves(term.expr))


def _draw_tensor(
    rng: np.random.Generator, spec: AttentionSpec, tensor: TensorArg, adversarial: bool, mask: bool = False
) -> Array:
    """A tensor of a score expression, or a sink."""
    shape = _ints(tensor.shape)
    if tensor.kind == "bool" or (tensor.kind == "float" and mask):
        return np.asarray(rng.random(shape) < 0.75).astype(NUMPY[tensor.dtype])
    if tensor.kind == "float":
        size = 10.0 if adversarial else 1.0
        return np.asarray(size * rng.standard_normal(shape)).astype(NUMPY[tensor.dtype])
    if all(n == 1 for n in shape[-2:]):
        assert isinstance(spec.Skv, int)
        return rng.integers(0 if adversarial else 1, spec.Skv + 2, shape).astype(NUMPY[tensor.dtype])
    axis = next((a for a in reversed(range(len(shape))) if shape[a] > 1), None)
    if axis is None or adversarial:
        return rng.integers(0, DOCUMENTS, shape).astype(NUMPY[tensor.dtype])
    ids = np.arange(shape[axis]) * DOCUMENTS // shape[axis]
    along = ids.reshape([-1 if a == axis else 1 for a in range(len(shape))])
    return np.broadcast_to(along, shape).astype(NUMPY[tensor.dtype])

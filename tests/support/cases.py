"""The attentions that tests try: those of `onnx_fa.spec.cases`, which feed tuner and benchmarks too, and many small odd ones."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

from onnx_fa.spec import cases
from onnx_fa.spec.accuracy import TOLERANCE
from onnx_fa.spec.cases import FLOAT_MIN, Case, case, draw_operands
from onnx_fa.spec.expr import SCORE, SKV, SQ, Apply, Float, Int, K, Q, ScoreExpr, Tensor
from onnx_fa.spec.terms import (
    NEG_INF,
    AddMask,
    BoolMask,
    Causal,
    Dim,
    Elementwise,
    Gathered,
    IntegerType,
    Quantized,
    Rounding,
    SlidingWindow,
    Softcap,
    TensorArg,
    Weighting,
)

__all__ = ["BY_NAME", "CASES", "FLOAT_MIN", "TOLERANCE", "Case", "draw_operands", "select"]


def where(keep: ScoreExpr, fill: float = NEG_INF) -> ScoreExpr:
    """The score where `keep` holds, else the fill."""
    return Apply("Where", keep, SCORE, Float(fill))


def added(bias: ScoreExpr) -> ScoreExpr:
    """The score plus a bias."""
    return Apply("Add", SCORE, bias)


CAUSAL: ScoreExpr = Apply("LessOrEqual", K, Q)
DISTANCE: ScoreExpr = Apply("Sub", Q, K)
T0: ScoreExpr = Tensor(0)
T1: ScoreExpr = Tensor(1)


def term(expr: ScoreExpr, *tensors: TensorArg, label: str = "elementwise") -> Elementwise:
    return Elementwise(expr, tensors, label)


def _rounded_cases() -> Iterator[tuple[str, dict[str, Any]]]:
    """Specs that round their probabilities, as changes to the base (B2 H2 S64 D32): types, zero points, saturation, and what else
    has a part in the softmax."""
    byte, signed, fine = Rounding(1 / 255), Rounding(1 / 255, -128, "i8"), Rounding(1 / 4000, -300, "i16")
    steps: ScoreExpr = Apply("Mul", Apply("Round", Apply("Div", SCORE, Float(0.0625))), Float(0.0625))
    yield "u8", {"rounding": byte}
    yield "saturated", {"rounding": Rounding(0.0005, 10), "masks": (Causal(),)}
    yield "symmetric_gqa", {"rounding": Rounding(1 / 127, 0, "i8"), "Hq": 8, "masks": (SlidingWindow(9, 0),)}
    yield "i16_odd", {"rounding": fine, "Sq": 45, "Skv": 77, "D": 33, "Dv": 21, "masks": (BoolMask((2, 1, 1, 77)),)}
    yield "sink_stats", {"rounding": byte, "sink": TensorArg((2, 1, 1)), "stats": ("lse",)}
    yield "empty_rows", {"rounding": signed, "masks": (Causal(-3),), "empty_row": "guarded"}
    yield "mean", {"rounding": fine, "masks": (Causal(-3, FLOAT_MIN),), "empty_row": "mean"}
    yield "steps", {"rounding": byte, "masks": (term(steps), BoolMask((2, 1, 1, 64)))}
    yield "integers", {"rounding": byte, "k_quant": Quantized("u8", (), True), "v_quant": Quantized("u8", (), True)}
    yield "f16", {"rounding": fine, "dtype": "f16"}
    twice = Rounding(0.0021930721, 0, "u8", byte)
    yield "twice", {"rounding": twice, "Sq": 45, "Skv": 77, "empty_row": "guarded", "masks": (Causal(-3),)}
    yield "twice_decode", {"rounding": Rounding(0.003, -120, "i8", Rounding(1 / 300, 3)), "Sq": 1, "Skv": 130}
    yield "three_times", {"rounding": Rounding(1 / 127, 0, "i8", twice), "masks": (BoolMask((2, 1, 1, 64)),)}
    yield "decode", {"rounding": byte, "Sq": 1, "Hq": 8, "Skv": 130}
    yield (
        "dynamic",
        {"rounding": byte, "Sq": "s", "Skv": "t", "sizes": ((("s", 64), ("t", 64)), (("s", 13), ("t", 29)))},
    )


def _quantized_cases() -> Iterator[tuple[str, dict[str, Any]]]:
    """Specs with K and V kept as integers, as changes to the base (B2 H2 S64 D32): how the scale varies, types, layouts."""

    def both(
        dtype: IntegerType, k: tuple[Dim, ...], v: tuple[Dim, ...] | None = None, zero: bool = False
    ) -> dict[str, Any]:
        return {"k_quant": Quantized(dtype, k, zero), "v_quant": Quantized(dtype, k if v is None else v, zero)}

    token, channel, decode = (2, 2, 64, 1), (2, 1, 32), {"Sq": 1, "Hq": 8, "Skv": 130}
    yield "tensor", both("i8", ())
    yield "tensor_zero", both("u8", (), zero=True)
    yield "token", both("i8", token) | {"masks": (Causal(),)}
    yield "token_zero", both("u8", token, zero=True)
    yield "channel", both("i8", channel) | {"Hq": 4}
    yield "channel_zero", both("i8", channel, zero=True)
    yield "keys_by_channel", both("i8", channel, token)
    yield "every_element", both("i8", (2, 2, 64, 32))
    yield "only_k", {"k_quant": Quantized("i8", (2, 1, 1))}
    yield "only_v", {"v_quant": Quantized("i8", token)}
    yield "groups", both("i8", (2, 2, 64, 2))
    yield "narrow_groups", both("i8", (2, 2, 64, 8), zero=True)
    yield "i4_token", both("i4", token)
    yield "i4_groups", both("i4", (2, 2, 64, 2)) | {"masks": (SlidingWindow(20, 0),)}
    yield "u4_groups", both("u4", (2, 2, 64, 4), zero=True)
    yield "i4_tensor_odd_keys", both("i4", ()) | {"Sq": 45, "Skv": 77}
    yield "i4_head_dim_20", both("i4", (2, 2, 64, 2)) | {"D": 20, "Dv": 20}
    yield "head_dim_33", both("i8", token) | {"D": 33, "Dv": 41}
    yield "odd_groups", both("i8", (2, 2, 77, 3)) | {"Sq": 45, "Skv": 77, "D": 33, "Dv": 21}
    yield "bshd", both("i8", (2, 64, 2, 1)) | dict.fromkeys(("k_layout", "v_layout"), (0, 2, 1, 3))
    yield "k_transposed", both("i8", (2, 2, 1, 64), token) | {"k_layout": (0, 1, 3, 2)}
    yield "k_transposed_groups", both("i8", (2, 2, 4, 64), token) | {"k_layout": (0, 1, 3, 2)}
    yield "f16", both("i8", token) | {"dtype": "f16"}
    yield "bf16_i4", both("i4", (2, 2, 64, 2), zero=True) | {"dtype": "bf16"}
    yield "f16_group_zero", both("u8", (2, 2, 64, 2), zero=True) | {"dtype": "f16"}
    yield "f16_channel_decode", both("i8", channel, (2, 2, 130, 4), zero=True) | decode | {"dtype": "f16"}
    words: dict[str, Any] = {"Sq": 1, "Hq": 8, "Skv": 700, "D": 64, "Dv": 68, "dtype": "f16"}
    yield "words_decode", both("i8", (2, 2, 700, 1), (2, 2, 700, 4), zero=True) | words
    yield "words_i4_decode", both("i4", (2, 2, 700, 2), (2, 2, 700, 17)) | words
    yield "words_u4_decode", both("u4", (), zero=True) | words | {"dtype": "f32", "masks": (Causal("end"),)}
    yield "words_u8_decode", both("u8", (2, 1, 64), (2, 2, 700, 1), zero=True) | words | {"dtype": "bf16"}
    yield "f16_i4_decode", both("i4", (2, 2, 130, 2)) | decode | {"dtype": "f16"}
    yield "f16_u4_zero", both("u4", (2, 2, 64, 4), zero=True) | {"dtype": "f16", "Hq": 4}
    yield "lse", both("i8", token) | {"stats": ("lse", "max"), "masks": (Causal(-3),), "empty_row": "zero"}
    yield "weights", both("u8", (), zero=True) | {"weights": TensorArg((2, 2, 64, 64))}
    yield "i4_rounded", both("i4", token) | {"rounding": Rounding(1 / 255)}
    yield "mask_sink", both("i8", token) | {"masks": (BoolMask((2, 1, 1, 64)),), "sink": TensorArg((2, 1, 1))}
    yield "decode", both("i8", (2, 2, 130, 1)) | decode
    yield "decode_channel", both("i8", (2, 1, 32), (2, 2, 130, 1), zero=True) | decode
    yield "decode_i4", both("i4", (2, 2, 130, 2)) | decode | {"Hq": 2}
    lengths = {
        "Sq": "s",
        "Skv": "t",
        "batch": ("b",),
        "sizes": ((("s", 33), ("t", 70), ("b", 2)), (("s", 1), ("t", 5), ("b", 1))),
    }
    yield "dynamic", both("i8", ("b", 2, "t", 1)) | lengths | {"masks": (Causal("end"),), "empty_row": "zero"}
    yield "dynamic_i4", both("i4", ("b", 2, "t", 2)) | lengths
    yield "dynamic_decode", both("i8", ("b", 2, "t", 1)) | lengths | {"Sq": 1, "Hq": 4}


def _expression_cases() -> Iterator[tuple[str, dict[str, Any]]]:
    """Specs with score expressions, as changes to the base (B2 H2 S64 D16); lengths of up to several blocks, so that some are
    skipped."""
    long = {"Sq": 300, "Skv": 300, "batch": (1,)}
    s = 70
    square = {"Sq": s, "Skv": s}
    for name, fill, empty in (("", NEG_INF, "nan"), ("_finite", FLOAT_MIN, "mean")):
        prefix = where(Apply("Or", CAUSAL, Apply("Less", K, Int(75))), fill)
        yield f"prefix{name}", long | {"masks": (term(prefix, label="prefix"),), "empty_row": empty}
        chunk: ScoreExpr = Apply("Equal", Apply("Div", Q, Int(64)), Apply("Div", K, Int(64)))
        yield f"chunked{name}", long | {"masks": (term(where(Apply("And", CAUSAL, chunk), fill)),), "empty_row": empty}
        document = where(Apply("And", CAUSAL, Apply("Equal", T0, T1)), fill)
        ids = TensorArg((2, 1, s, 1), "i64"), TensorArg((2, 1, 1, s), "i64")
        yield f"document{name}", square | {"masks": (term(document, *ids, label="document"),), "empty_row": empty}
        lengths = term(where(Apply("Less", K, T0), fill), TensorArg((2, 1, 1, 1), "i64"), label="lengths")
        yield f"lengths{name}", {"Sq": 50, "Skv": 300, "masks": (lengths,), "empty_row": empty}
        yield f"lengths_causal{name}", {"Sq": 90, "Skv": 300, "masks": (Causal(-9, fill), lengths), "empty_row": empty}
        rows = term(where(Apply("LessOrEqual", K, Apply("Add", Q, T0)), fill), TensorArg((2, 1, 90, 1), "i32"))
        yield f"positions{name}", {"Sq": 90, "Skv": 140, "masks": (rows,), "empty_row": empty}
        band = Apply(
            "Not", Apply("Or", Apply("Greater", DISTANCE, Int(40)), Apply("Greater", Apply("Neg", DISTANCE), Int(9)))
        )
        yield f"band{name}", long | {"masks": (term(where(band, fill)),), "empty_row": empty}
        choice: ScoreExpr = Apply("Where", Apply("Less", K, T0), Float(0.0), Float(fill))
        one_length = TensorArg((2, 1, 1, 1), "i32")
        yield f"lengths_added{name}", {"Skv": 200, "masks": (term(added(choice), one_length),), "empty_row": empty}
    for empty in ("zero", "guarded"):
        lengths = term(where(Apply("Less", K, T0)), TensorArg((2, 1, 1, 1), "i32"), label="lengths")
        yield f"lengths_{empty}", {"masks": (lengths,), "empty_row": empty}
    yield "dilated", square | {"masks": (term(where(Apply("Equal", Apply("Mod", DISTANCE, Int(3)), Int(0)))),)}
    window: ScoreExpr = Apply("LessOrEqual", Apply("Abs", DISTANCE), Int(9))
    global_keys: ScoreExpr = Apply("Or", window, Apply("Or", Apply("Less", K, Int(2)), Apply("Less", Q, Int(2))))
    yield "global", long | {"masks": (term(where(global_keys), label="global"),)}
    first: ScoreExpr = Apply("Max", Apply("Min", Apply("Sub", Q, Int(4)), Int(s - 9)), Int(0))
    near: ScoreExpr = Apply("And", Apply("GreaterOrEqual", K, first), Apply("Less", K, Apply("Add", first, Int(9))))
    yield "neighbours", square | {"masks": (term(where(near), label="natten"),)}
    rows, columns = (Apply("Abs", Apply("Sub", Apply(op, Q, Int(10)), Apply(op, K, Int(10)))) for op in ("Div", "Mod"))
    image: ScoreExpr = Apply("And", Apply("LessOrEqual", rows, Int(2)), Apply("LessOrEqual", columns, Int(3)))
    yield "neighbours_2d", square | {"masks": (term(where(image), label="natten"),)}
    strided: ScoreExpr = Apply("Less", Apply("Mod", K, Int(150)), Int(10))
    yield "strided", long | {"masks": (term(where(strided)),)}

    # Biases.
    alibi: ScoreExpr = Apply("Mul", T0, Apply("ToFloat", Apply("Neg", Apply("Abs", DISTANCE))))
    slopes = TensorArg((4, 1, 1))
    yield "alibi", square | {"Hq": 4, "Hkv": 4, "masks": (term(added(alibi), slopes, label="alibi"),)}
    yield "alibi_gqa", square | {"Hq": 4, "masks": (Causal(), term(added(alibi), slopes, label="alibi"))}
    yield "alibi_f16", {"dtype": "f16", "Hq": 4, "Hkv": 4, "masks": (term(added(alibi), TensorArg((4, 1, 1), "f16")),)}
    yield "alibi_both_sides_f16", square | {"dtype": "f16", "Hq": 4, "Hkv": 4, "masks": (cases.alibi(4),)}
    past: ScoreExpr = Apply("Mul", T0, Apply("ToFloat", Apply("Sub", K, Apply("Add", Q, Apply("Sub", SKV, SQ)))))
    behind = (Causal("end"), term(added(past), slopes, label="alibi"))
    yield "alibi_past_f16", {"dtype": "f16", "Hq": 4, "Sq": 90, "Skv": 140, "masks": behind}
    yield "t5_bias", square | {"scale": 1.0, "masks": (term(added(T0), TensorArg((1, 2, s, s))),)}
    swin: dict[str, Any] = {"batch": (3, 2), "Sq": 49, "Skv": 49, "Dv": 32}
    yield (
        "swin",
        swin | {"masks": (term(added(Apply("Add", T0, T1)), TensorArg((2, 49, 49)), TensorArg((1, 2, 1, 49, 49))),)},
    )
    pair, padding = AddMask((2, 1, 2, 33, 33)), TensorArg((2, 3, 1, 1, 33))
    keep: ScoreExpr = Apply("Mul", Float(1e9), Apply("Sub", T0, Float(1.0)))
    evoformer: dict[str, Any] = {"batch": (2, 3), "Sq": 33, "Skv": 33, "D": 16, "Dv": 16}
    yield "evoformer", evoformer | {"masks": (pair, term(added(keep), padding)), "empty_row": "mean"}
    halves = AddMask((2, 1, 2, 33, 33), "bf16"), term(added(keep), TensorArg((2, 3, 1, 1, 33), "f32"))
    yield "evoformer_bf16", evoformer | {"dtype": "bf16", "masks": halves, "empty_row": "mean"}
    wave: ScoreExpr = Apply(
        "Add", Apply("Sin", Apply("ToFloat", Q)), Apply("Cos", Apply("Mul", Float(0.1), Apply("ToFloat", DISTANCE)))
    )
    yield "trigonometric", square | {"masks": (term(added(wave)),)}

    # Functions of the score.
    yield "softplus", square | {"masks": (term(Apply("Softplus", SCORE)),)}
    yield (
        "sigmoid",
        square | {"masks": (term(Apply("Log", Apply("Add", Float(1e-3), Apply("Sigmoid", SCORE)))), Causal())},
    )
    yield (
        "erf",
        {"masks": (term(Apply("Mul", Float(3.0), Apply("Erf", Apply("Mul", Float(0.5), SCORE)))),), "dtype": "f16"},
    )
    cap: ScoreExpr = Apply("Mul", Float(5.0), Apply("Tanh", Apply("Div", SCORE, Float(5.0))))
    yield "cap_after_mask", {"masks": (Causal(), term(cap))}
    yield "cap_after_prefix", long | {"masks": (term(where(CAUSAL)), term(cap))}
    yield "cap_twice", {"mods": (Softcap(9.0),), "masks": (term(cap), Causal())}
    parts: ScoreExpr = Apply("Mul", Apply("Sign", SCORE), Apply("Sqrt", Apply("Add", Apply("Abs", SCORE), Float(1e-3))))
    yield "signed_root", {"masks": (term(parts), AddMask((64, 64)))}
    yield "square", {"masks": (term(Apply("Pow", SCORE, Float(2.0))), Causal())}
    yield "powers", {"masks": (term(added(Apply("Pow", Apply("ToFloat", Apply("Add", K, Int(1))), Float(0.3)))),)}
    yield (
        "decay",
        {
            "masks": (
                term(
                    Apply(
                        "Mul", SCORE, Apply("Exp", Apply("Mul", Float(-0.05), Apply("ToFloat", Apply("Abs", DISTANCE))))
                    )
                ),
            )
        },
    )
    yield (
        "rounding",
        {
            "masks": (
                term(added(Apply("Floor", Apply("Div", Apply("ToFloat", Q), Float(7.5))))),
                term(Apply("Relu", SCORE)),
            )
        },
    )
    guard: ScoreExpr = Apply("Where", Apply("IsNaN", SCORE), Float(0.0), Apply("Max", SCORE, Float(-2.0)))
    yield "guarded_score", {"masks": (BoolMask((2, 1, 64, 64)), term(guard))}

    # Tensors of every type and broadcast.
    for dtype in ("bool", "i32", "i64", "f32", "f16", "bf16"):
        test: ScoreExpr = T0 if dtype == "bool" else Apply("Greater", T0, Int(0) if dtype[0] == "i" else Float(-0.5))
        shapes = ((2, 2, s, s), (s, s), (1, 2, 1, s), (2, 1, s, 1), (1,))
        for i, shape in enumerate(shapes):
            if dtype in ("i64", "bool") or i in (1, 3):
                masks = (term(where(test), TensorArg(shape, dtype)),)
                yield f"tensor_{dtype}_{i}", square | {"masks": masks, "empty_row": "zero"}
    difference: ScoreExpr = Apply("ToFloat", Apply("Sub", T0, Apply("Mul", T1, K)))
    yield "integers", square | {"masks": (term(added(difference), TensorArg((s, s), "i64"), TensorArg((s, 1), "i32")),)}
    division: ScoreExpr = Apply("ToFloat", Apply("Mod", Apply("Div", T0, T1), Apply("Sub", T1, Int(2))))
    ids = TensorArg((1, 2, s, 1), "i64"), TensorArg((s,), "i32")
    yield "division", square | {"masks": (term(added(division), *ids),)}
    several = (
        term(where(Apply("Less", K, T0)), TensorArg((2, 1, 1, 1), "i32")),
        Causal("end"),
        term(added(alibi), TensorArg((2, 1, 1))),
        BoolMask((1, 1, 1, s)),
        term(cap),
        SlidingWindow(30, 0),
    )
    yield "several", square | {"masks": several, "empty_row": "zero"}

    # Sinks.
    yield "sink", {"sink": TensorArg((2, 1, 1))}
    for i, (shape, dtype) in enumerate(
        (((1,), "f32"), ((2, 2, 64, 1), "f32"), ((64, 1), "f16"), ((2, 1, 1, 1), "bf16"))
    ):
        yield f"sink_{i}", {"sink": TensorArg(shape, dtype), "masks": (BoolMask((2, 1, 64, 64)),)}  # type: ignore[arg-type]
    window = (Causal("end"), SlidingWindow(20, None, "end"))
    yield "sink_window_gqa", {"Hq": 8, "sink": TensorArg((8, 1, 1)), "masks": window, "Sq": 90, "Skv": 140}
    yield "sink_finite", long | {"sink": TensorArg((2, 1, 1)), "masks": (Causal(-9, FLOAT_MIN),), "empty_row": "mean"}
    yield "sink_bf16", {"dtype": "bf16", "sink": TensorArg((2, 1, 1), "bf16"), "masks": (Causal(),)}
    yield "sink_cap", {"sink": TensorArg((2, 1, 1)), "masks": (term(cap), Causal()), "empty_row": "zero"}
    yield "sink_softcap", {"sink": TensorArg((2, 1, 1)), "mods": (Softcap(3.0),)}

    # A single query, or a few.
    one: dict[str, Any] = {"Sq": 1, "Skv": 300}
    lengths = term(where(Apply("Less", K, T0)), TensorArg((2, 1, 1, 1), "i64"), label="lengths")
    yield "decode_lengths", one | {"masks": (lengths,), "empty_row": "zero"}
    yield "decode_gqa_lengths", one | {"Hq": 8, "masks": (lengths,), "empty_row": "zero"}
    late: ScoreExpr = Apply("Mul", T0, Apply("ToFloat", Apply("Sub", K, Apply("Sub", SKV, Int(1)))))
    yield "decode_alibi_gqa", one | {"Hq": 8, "masks": (term(added(late), TensorArg((8, 1, 1))),)}
    yield "decode_sink_window", one | {"Hq": 8, "sink": TensorArg((8, 1, 1)), "masks": (SlidingWindow(20, 0, "end"),)}
    # Slot k of a ring holds the newest position that is k modulo the size of the ring; T0 is how many have been written.
    age: ScoreExpr = Apply("Mod", Apply("Sub", Apply("Add", Apply("Sub", T0, K), SKV), Int(1)), SKV)
    ring = term(
        where(Apply("And", Apply("Less", age, T0), Apply("Less", age, Int(256)))),
        TensorArg((2, 1, 1, 1), "i64"),
        label="ring",
    )
    yield "decode_ring", one | {"Hq": 8, "masks": (ring,), "empty_row": "zero"}
    last: ScoreExpr = Apply("Add", Q, Apply("Sub", T0, SQ))
    held = term(
        where(Apply("And", Apply("Less", K, T0), Apply("LessOrEqual", K, last))),
        TensorArg((2, 1, 1, 1), "i64"),
        label="cache",
    )
    yield "prefill_cache", {"Sq": 40, "Skv": 150, "Hq": 4, "masks": (held,), "empty_row": "zero"}

    # Row statistics.
    yield "lse", {"stats": ("lse",)}
    yield (
        "lse_max_causal",
        {"stats": ("lse", "max"), "masks": (Causal("end"),), "Sq": 70, "Skv": 50, "empty_row": "zero"},
    )
    yield "lse_ragged_rows", {"stats": ("lse", "max"), "Sq": 21, "Skv": 30}
    yield "max_softcap_f16", {"stats": ("max",), "mods": (Softcap(9.0),), "dtype": "f16", "Sq": 33}
    yield "lse_sink_bf16", {"stats": ("lse",), "sink": TensorArg((2, 1, 1)), "dtype": "bf16"}
    yield "lse_decode_gqa", one | {"stats": ("max", "lse"), "Hq": 8, "masks": (lengths,), "empty_row": "nan"}
    yield "lse_alibi_f16", {"stats": ("lse", "max"), "dtype": "f16", "Hkv": 4, "Hq": 4, "masks": (cases.alibi(4),)}
    yield "lse_finite", {"stats": ("lse", "max"), "masks": (BoolMask((2, 1, 64, 64), FLOAT_MIN),), "empty_row": "mean"}
    yield "sum_causal", {"stats": ("max", "sum"), "masks": (Causal("end"),), "Sq": 70, "Skv": 50, "empty_row": "zero"}
    yield "sum_finite", {"stats": ("sum", "max"), "masks": (BoolMask((2, 1, 64, 64), FLOAT_MIN),), "empty_row": "mean"}
    yield "sum_decode_gqa", one | {"stats": ("max", "sum"), "Hq": 8, "masks": (lengths,), "empty_row": "zero"}
    few: dict[str, Any] = {"Sq": 4, "Hq": 6, "Skv": 130}
    yield "few_causal", few | {"masks": (Causal("end"),)}
    yield "few_window", few | {"masks": (SlidingWindow(9, 2, "end"), Causal(100)), "sink": TensorArg((6, 4, 1))}
    yield "few_empty", few | {"masks": (Causal(-2),), "empty_row": "zero"}
    yield "few_finite", few | {"masks": (Causal(-2, FLOAT_MIN),), "empty_row": "mean", "dtype": "bf16"}
    yield "few_masks", few | {"masks": (BoolMask((2, 1, 1, 130)), AddMask((2, 6, 4, 130)), AddMask((6, 4, 1)))}
    yield "few_rows_mask", few | {"masks": (BoolMask((2, 1, 4, 130)),)}
    yield "few_alibi", few | {"masks": (term(added(alibi), TensorArg((6, 1, 1))), Causal("end"))}
    yield (
        "few_distance",
        few | {"masks": (term(added(Apply("Mul", Float(0.1), Apply("ToFloat", DISTANCE)))),), "scale": 1.0},
    )
    yield "few_bshd", few | {"q_layout": (0, 2, 1, 3), "o_layout": (0, 2, 1, 3), "masks": (Causal("end"),)}
    yield (
        "few_queries",
        {"Sq": 3, "Hq": 4, "Skv": 130, "masks": (Causal("end"), term(where(Apply("Less", K, Int(99)))))},
    )


def _cases() -> Iterator[Case]:
    yield case("plain", "smoke")
    yield case("plain_b1", batch=(1,))
    yield case("no_batch", batch=())
    yield case("scale_one", scale=1.0)
    yield case("scale_negative", scale=-0.3)
    yield case("cross", Sq=48, Skv=80)
    yield case("dv_wider", D=16, Dv=48)
    yield case("dv_narrower", D=64, Dv=16)

    # Head dims, and lengths that divide nothing.
    for d in (8, 16, 24, 33, 40, 72, 80, 96, 128, 160, 192, 256, 512):
        yield case(f"head_dim_{d}", "head_dim", D=d, Dv=d, batch=(1,))
    yield case("head_dim_odd_dv", "head_dim", D=19, Dv=37, batch=(1,))
    # Two tiles of columns on GPUs, the last with columns that there are not.
    two: dict[str, Any] = {"dtype": "f16", "D": 72, "Dv": 104, "batch": (1,)}
    yield case("head_dim_two_tiles_causal", "head_dim", **two, Sq=70, Skv=70, masks=(Causal(),))
    yield case("many_split_keys", "head_dim", "split_keys", **two, Sq=70, Skv=300, Hq=4)
    yield case("head_dim_two_tiles_decode", "head_dim", **two, Sq=1, Skv=150, Hq=4)
    yield case("odd_lengths", "odd", Sq=53, Skv=67)
    yield case("odd_lengths_causal", "odd", Sq=61, Skv=61, masks=(Causal(),))
    yield case("prime_vit", "odd", Sq=197, Skv=197, Hq=1, Hkv=1)
    yield case("short", "odd", Sq=3, Skv=5)
    yield case("one_key", "odd", Sq=7, Skv=1)
    yield case("long_keys", "odd", Sq=5, Skv=333)

    # Index masks.
    yield case("causal", "smoke", masks=(Causal(),))
    yield case("causal_offset", masks=(Causal(16),), Sq=32, Skv=48)
    yield case("causal_end", masks=(Causal("end"),), Sq=24, Skv=70)
    yield case("causal_end_empty_rows", "empty", masks=(Causal("end"),), Sq=40, Skv=30)
    yield case("causal_finite_fill", masks=(Causal(0, FLOAT_MIN),))
    yield case("window", masks=(SlidingWindow(7, 0),))
    yield case("window_both", masks=(SlidingWindow(5, 3),), Sq=50, Skv=70)
    yield case("window_right", masks=(SlidingWindow(None, 2),))
    yield case("window_end", masks=(SlidingWindow(9, 0, "end"),), Sq=20, Skv=90)
    yield case("window_empty_rows", "empty", masks=(SlidingWindow(4, 0),), Sq=64, Skv=32)
    yield case("window_empty_zero", "empty", masks=(SlidingWindow(4, 0),), Sq=64, Skv=32, empty_row="zero")
    yield case("window_unbounded", masks=(SlidingWindow(),))

    # Tensor masks, each broadcast.
    shapes = ((2, 2, 64, 64), (2, 1, 64, 64), (1, 1, 64, 64), (64, 64), (2, 1, 1, 64), (1, 2, 1, 64), (64,))
    for i, shape in enumerate(shapes):
        yield case(f"bool_mask_{i}", "mask", masks=(BoolMask(shape),))
        yield case(f"add_mask_{i}", "mask", masks=(AddMask(shape),))
    yield case("bool_mask_row", "mask", masks=(BoolMask((2, 1, 64, 1)),), empty_row="zero")
    yield case("add_mask_row", "mask", masks=(AddMask((2, 1, 64, 1)),))
    yield case("add_mask_scalar", "mask", masks=(AddMask((1,)),))
    yield case("add_mask_factor", "mask", masks=(AddMask((2, 1, 1, 64), factor=-1e4),))
    yield case("add_mask_f16", "mask", masks=(AddMask((64, 64), "f16"),))
    yield case("bool_mask_finite", "mask", masks=(BoolMask((2, 1, 1, 64), -1e9),), empty_row="mean")
    yield case("bool_then_causal", "mask", masks=(BoolMask((2, 1, 1, 64)), Causal()))
    yield case("causal_then_add", "mask", masks=(Causal(), AddMask((2, 64, 64))))
    yield case("add_add_bool", "mask", masks=(AddMask((64, 64)), AddMask((2, 1, 1, 64)), BoolMask((64, 64), FLOAT_MIN)))
    yield case(
        "two_finite_fills", "mask", masks=(BoolMask((2, 1, 1, 64), -1e9), Causal(0, FLOAT_MIN)), empty_row="mean"
    )

    # What changes the score.
    yield case("softcap", mods=(Softcap(2.0),))
    yield case("softcap_causal", mods=(Softcap(20.0),), masks=(Causal(),))
    yield case("softcap_window_gqa", Hq=4, mods=(Softcap(5.0),), masks=(SlidingWindow(9, 0),))

    # Heads.
    yield case("gqa", "smoke", "gqa", Hq=8, Hkv=2, masks=(Causal(),))
    yield case("gqa_mask_per_head", "gqa", Hq=4, Hkv=2, masks=(AddMask((2, 4, 64, 64)),))
    yield case("mqa", "gqa", Hq=4, Hkv=1)
    yield case("mqa_b1", "gqa", Hq=4, Hkv=1, batch=(1,), masks=(Causal(),))
    yield case("gqa_3d", "gqa", Hq=6, Hkv=2, batch=())
    yield case("one_head", Hq=1, Hkv=1)

    # Rows with no key left.
    for how in ("nan", "zero", "guarded"):
        yield case(f"empty_{how}_bool", "empty", masks=(BoolMask((2, 1, 64, 64)),), empty_row=how)
        yield case(f"empty_{how}_padding", "empty", masks=(BoolMask((2, 1, 1, 64)), Causal()), empty_row=how)
        yield case(f"empty_{how}_add", "empty", masks=(AddMask((2, 1, 64, 64)),), empty_row=how)
    for fill in (FLOAT_MIN, -1e9, -65504.0):
        masks = (BoolMask((2, 1, 64, 64), fill),)
        yield case(f"empty_mean_{-fill:.0e}", "empty", masks=masks, empty_row="mean")
    yield case("empty_mean_add", "empty", masks=(AddMask((2, 1, 64, 64)),), empty_row="mean")
    yield case("empty_mean_causal", "empty", masks=(Causal("end", FLOAT_MIN),), Sq=40, Skv=30, empty_row="mean")

    # Layouts.
    bshd, kt = (0, 2, 1, 3), (0, 1, 3, 2)
    all_bshd: dict[str, Any] = dict.fromkeys(("q_layout", "k_layout", "v_layout", "o_layout"), bshd)
    yield case("bshd", "layout", "smoke", **all_bshd)
    yield case("bshd_gqa", "layout", Hq=4, **all_bshd, masks=(Causal(),))
    yield case("bshd_out", "layout", o_layout=bshd, Sq=31)
    yield case("k_transposed", "layout", k_layout=kt)
    yield case("k_transposed_odd", "layout", k_layout=kt, Sq=45, Skv=77)
    yield case("k_bhds_from_bshd", "layout", k_layout=(0, 2, 3, 1), v_layout=bshd)
    yield case("all_transposed", "layout", q_layout=kt, k_layout=kt, v_layout=kt, o_layout=kt)
    yield case("batch_5d", "layout", batch=(2, 3))
    yield case("batch_5d_unit", "layout", batch=(2, 1), masks=(AddMask((2, 1, 1, 64, 64)),))
    yield case("batch_5d_masks", "layout", batch=(2, 3), masks=(AddMask((1, 3, 1, 64, 64)), BoolMask((2, 1, 1, 1, 64))))

    # Types.
    for dtype in ("f16", "bf16"):
        yield case(f"{dtype}", "smoke", dtype=dtype)
        yield case(f"{dtype}_causal_gqa", dtype=dtype, Hq=4, masks=(Causal(),), Sq=50, Skv=50)
        yield case(f"{dtype}_mask", dtype=dtype, masks=(AddMask((2, 1, 1, 64), dtype),), empty_row="zero")
        yield case(f"{dtype}_decode", "decode", dtype=dtype, Sq=1, Hq=4)

    # Narrow heads, and few queries.
    for d, dv in ((1, 1), (2, 3), (3, 5), (5, 2)):
        yield case(f"narrow_{d}_{dv}", "narrow", D=d, Dv=dv)
        yield case(f"narrow_{d}_{dv}_f16", "narrow", D=d, Dv=dv, dtype="f16", Sq=3, Skv=70)
    swapped: dict[str, Any] = dict.fromkeys(("q_layout", "k_layout", "v_layout", "o_layout"), kt)
    yield case("narrow_swapped", "narrow", D=3, Dv=2, Sq=5, **swapped)
    yield case("swapped_odd", "layout", D=21, Dv=13, Sq=45, Skv=53, **swapped)

    # Score expressions and sinks. Head dims are no part of either, and compile times grow with them.
    for name, changes in _expression_cases():
        yield case(name, "expression", **{"D": 16, "Dv": 16} | changes)

    # Decode.
    yield case("decode", "decode", Sq=1, Skv=200)
    yield case("decode_gqa", "decode", "smoke", Sq=1, Hq=8, Skv=130, masks=(Causal("end"),))
    yield case("decode_mqa_b1", "decode", Sq=1, Hq=8, Hkv=1, batch=(1,), Skv=99)
    yield case("decode_gqa_mask", "decode", Sq=1, Hq=4, Skv=77, masks=(AddMask((2, 4, 1, 77)), BoolMask((2, 1, 1, 77))))
    yield case("decode_window", "decode", Sq=1, Skv=77, masks=(SlidingWindow(20, 0, "end"),))
    yield case("decode_bshd", "decode", Sq=1, Hq=4, Skv=65, **all_bshd)
    yield case("decode_kt", "decode", Sq=1, Skv=65, k_layout=kt)

    # Several results of one softmax: V of 32 and 24 side by side.
    yield case("values_side_by_side", Dv=56)
    # Multi-head latent attention: keys of 128 and of 64 with positions; absorbed, one latent head of 512 and 64.
    yield case("latent", Hq=2, Hkv=2, D=192, Dv=128, Sq=33, Skv=33, batch=(1,), masks=(Causal(),))
    yield case("latent_absorbed", "decode", Hq=16, Hkv=1, D=576, Dv=512, Sq=1, Skv=40, batch=(1,))
    # K and V kept as integers.
    for name, changes in _quantized_cases():
        yield case(f"quant_{name}", "quantized", **changes)

    # Probabilities rounded to integers.
    for name, changes in _rounded_cases():
        yield case(f"rounded_{name}", "rounded", **changes)

    # K and V as rows of pools: pages of a cache, or keys picked for each batch row.
    pool: dict[str, Any] = {"gathered": Gathered(150), "k_layout": bshd, "v_layout": bshd}
    yield case("gathered", "gathered", Sq=40, Skv=75, Hq=4, **pool)
    yield case(
        "gathered_f16", "gathered", Sq=70, Skv=64, dtype="f16", gathered=Gathered(9, "i32"), masks=(Causal("end"),)
    )
    yield case("gathered_decode", "gathered", Sq=1, Skv=130, Hq=8, **pool)
    yield case(
        "gathered_decode_causal", "gathered", Sq=3, Skv=130, batch=(3,), gathered=Gathered(40), masks=(Causal("end"),)
    )
    pages = {"gathered": Gathered(96, head_rows=8), "batch": (3,), "masks": (Causal("end"),)}
    yield case("gathered_heads", "gathered", Sq=40, Skv=75, Hq=4, **pages)
    yield case("gathered_heads_decode", "gathered", Sq=1, Skv=130, Hq=8, **pages)
    yield case(
        "gathered_lse", "gathered", Sq=40, Skv=75, stats=("lse", "max"), gathered=Gathered(20), masks=(Causal("end"),)
    )
    yield case("gathered_rounded", "gathered", Sq=40, Skv=75, rounding=Rounding(1 / 255), gathered=Gathered(20, "i32"))
    yield case(
        "gathered_weights",
        "gathered",
        Skv=75,
        Sq=1,
        weights=TensorArg((2, 2, 1, 75), "bool"),
        **pages | {"batch": (2,)},
    )
    yield case("gathered_5d", "gathered", Sq=20, Skv=33, batch=(2, 3), gathered=Gathered(50, "i32"))

    # Head dims of several tiles, with what else reads K and V in its own way.
    wide: dict[str, Any] = {"D": 320, "Dv": 288, "batch": (1,)}
    yield case("wide_causal", "wide", Sq=40, Skv=30, **wide, masks=(Causal("end"),), empty_row="zero", stats=("lse",))
    yield case("wide_f16", "wide", dtype="f16", Sq=45, Skv=77, Hq=4, **wide)
    yield case("wide_bf16_decode", "wide", dtype="bf16", Sq=1, Skv=130, Hq=8, **wide)
    yield case("wide_narrow_values", "wide", Sq=33, Skv=50, batch=(1,), D=513, Dv=24, k_layout=kt)
    yield case("wide_gathered", "wide", "gathered", Sq=1, Skv=130, Hq=8, **wide, gathered=Gathered(40))
    groups: dict[str, Any] = {
        "k_quant": Quantized("u4", (1, 2, 77, 10), True),
        "v_quant": Quantized("i8", (1, 2, 77, 1)),
    }
    yield case("wide_integers", "wide", "quantized", dtype="f16", Sq=45, Skv=77, **wide, **groups)
    yield case("wide_rounded", "wide", Sq=20, Skv=45, **wide, rounding=Rounding(1 / 255))
    yield case(
        "wide_dynamic", "wide", "dynamic", **wide, Sq="s", Skv="t", sizes=((("s", 33), ("t", 50)), (("s", 1), ("t", 3)))
    )

    # Dynamic shapes.
    two = ((("s", 64), ("t", 64), ("b", 2)), (("s", 13), ("t", 29), ("b", 1)), (("s", 70), ("t", 3), ("b", 3)))
    same = ((("s", 64), ("b", 2)), (("s", 1), ("b", 1)), (("s", 37), ("b", 3)))
    dyn: dict[str, Any] = {"Sq": "s", "Skv": "t", "sizes": two}
    yield case("dyn_lengths", "dynamic", "smoke", **dyn)
    yield case("dyn_all", "dynamic", **dyn, batch=("b",), masks=(Causal("end"),), empty_row="zero")
    yield case("dyn_same", "dynamic", Sq="s", Skv="s", sizes=same, batch=("b",), masks=(Causal(),))
    yield case("dyn_mask", "dynamic", **dyn, batch=("b",), masks=(BoolMask(("b", 1, 1, "t")),))
    yield case("dyn_add_mask", "dynamic", **dyn, batch=("b",), masks=(AddMask(("b", 1, "s", "t")),))
    yield case("dyn_gqa", "dynamic", **dyn, Hq=4, masks=(SlidingWindow(7, 0, "end"),), empty_row="zero")
    heads = tuple((("h", h), ("s", s)) for h, s in ((3, 20), (1, 33)))
    yield case("dyn_heads", "dynamic", Hq="h", Hkv="h", Sq="s", Skv="s", sizes=heads)
    yield case("dyn_stats", "dynamic", **dyn, batch=("b",), stats=("lse",), masks=(Causal("end"),), empty_row="zero")
    every = tuple(
        (("b", b), ("h", h), ("s", s), ("t", t)) for b, h, s, t in ((2, 3, 20, 33), (1, 1, 1, 70), (3, 2, 41, 1))
    )
    yield case("dyn_every_dim", "dynamic", batch=("b",), Hq="h", Hkv="h", Sq="s", Skv="t", sizes=every)
    pages = tuple((("b", b), ("t", t), ("r", r)) for b, t, r in ((2, 64, 99), (1, 13, 7), (3, 131, 40)))
    yield case(
        "dyn_gathered", "dynamic", "gathered", Skv="t", sizes=pages, **{**pool, "gathered": Gathered("r")}, batch=("b",)
    )
    one_query = {**pool, "gathered": Gathered("r")}
    yield case(
        "dyn_gathered_decode", "dynamic", "gathered", Sq=1, Hq=4, Skv="t", sizes=pages, **one_query, batch=("b",)
    )
    yield case("dyn_keys", "dynamic", Skv="t", sizes=two)
    yield case("dyn_bshd", "dynamic", **dyn, **all_bshd)
    yield case("dyn_odd_head_dim", "dynamic", **dyn, D=27, Dv=41)
    yield case("dyn_f16", "dynamic", **dyn, dtype="f16")
    yield case("dyn_symbol_names", "dynamic", Sq="seq len", Skv="past + 1", sizes=((("seq len", 5), ("past + 1", 40)),))
    yield case("dyn_decode", "dynamic", "decode", Sq=1, Skv="t", sizes=two)
    yield case("dyn_decode_gqa", "dynamic", "decode", Sq=1, Skv="t", Hq=8, batch=("b",), sizes=two)

    grown = Apply("LessOrEqual", K, Apply("Add", Q, Apply("Sub", SKV, SQ)))
    within = term(where(Apply("And", grown, Apply("Less", K, T0))), TensorArg(("b", 1, 1, 1), "i64"))
    yield case("dyn_lengths_rows", "dynamic", "expression", **dyn, batch=("b",), masks=(within,), empty_row="zero")
    ids = TensorArg(("b", 1, "s", 1), "i64"), TensorArg(("b", 1, 1, "t"), "i64")
    document = term(where(Apply("Equal", T0, T1), FLOAT_MIN), *ids)
    yield case("dyn_document", "dynamic", "expression", **dyn, batch=("b",), masks=(document,), empty_row="mean")
    pair = term(added(Apply("Mul", T0, Float(0.5))), TensorArg(("b", 2, "s", "t")))
    yield case("dyn_pair_bias", "dynamic", "expression", **dyn, batch=("b",), masks=(pair,))
    yield case("dyn_sink", "dynamic", "expression", **dyn, batch=("b",), sink=TensorArg((1, 2, "s", 1)))
    yield case("dyn_swapped", "dynamic", **dyn, q_layout=kt, o_layout=kt)
    for name, changes in _weighed_cases():
        yield case(f"weighed_{name}", "weighting", **changes)


def _weighed_cases() -> Iterator[tuple[str, dict[str, Any]]]:
    """Attentions without a softmax, as changes to the base (B2 H2 S64 D32): functions, divisors, masks, sizes."""
    relu: ScoreExpr = Apply("Relu", SCORE)
    squared: ScoreExpr = Apply("Mul", relu, relu)
    sigmoid = Weighting(Apply("Sigmoid", SCORE), label="sigmoid")
    shared = Weighting(squared, squared, label="relu2")
    per_key = Weighting(Apply("Div", relu, Apply("ToFloat", SKV)), label="relu")
    odd = {"Sq": 45, "Skv": 77, "D": 27, "Dv": 41}
    two = ((("s", 64), ("t", 64)), (("s", 13), ("t", 29)))
    yield "sigmoid", {"weighting": sigmoid}
    yield "sigmoid_bias", {"weighting": sigmoid, "masks": (AddMask((64, 64)),)}
    yield "sigmoid_causal", {"weighting": sigmoid, "masks": (Causal(),), **odd}
    yield "sigmoid_decode", {"weighting": sigmoid, "Sq": 1, "Hq": 8, "Skv": 130}
    yield "relu_per_key", {"weighting": per_key, **odd}
    yield "relu2", {"weighting": shared}
    yield "relu2_split", {"weighting": shared, "Sq": 1, "Skv": 4096, "batch": (1,)}
    yield "relu2_window", {"weighting": dataclasses.replace(shared, plus=1e-6), "masks": (SlidingWindow(9, 3),)}
    yield (
        "relu2_guarded",
        {"weighting": shared, "masks": (BoolMask((2, 1, 1, 64)),), "empty_row": "guarded", "Hq": 8},
    )
    yield "floored", {"weighting": Weighting(relu, relu, least=1e-3), "mods": (Softcap(3.0),), **odd}
    yield "one_more", {"weighting": Weighting(Apply("Exp", SCORE), Apply("Exp", SCORE), plus=1.0)}
    softplus = Apply("Softplus", SCORE)
    yield "softplus_by_sum", {"weighting": Weighting(softplus, softplus, label="softplus"), "masks": (Causal(),), **odd}
    yield "f16", {"weighting": sigmoid, "dtype": "f16", **odd}
    # A score of -inf would weigh something, one of 0 does not.
    silu = Apply("Mul", SCORE, Apply("Sigmoid", SCORE))
    recommender = Weighting(Apply("Div", silu, Apply("ToFloat", SKV)), label="swish")
    sizes = Weighting(SCORE, Apply("Abs", SCORE), least=1e-6, label="l1")
    yield "silu", {"weighting": recommender, **odd}
    yield "silu_causal", {"weighting": recommender, "masks": (Causal(fill=0.0),), **odd}
    yield "silu_kept", {"weighting": recommender, "masks": (BoolMask((2, 1, 1, 64), fill=0.0),), "dtype": "bf16"}
    yield "silu_dynamic", {"weighting": recommender, "Sq": "s", "Skv": "t", "sizes": two}
    yield "l1", {"weighting": sizes, **odd}
    yield "l1_decode", {"weighting": sizes, "Sq": 1, "Hq": 8, "Skv": 130}
    yield "l1_split", {"weighting": sizes, "Sq": 1, "Skv": 4095, "batch": (1,)}
    yield "integers", {"weighting": sigmoid, "k_quant": Quantized("i8", ()), "v_quant": Quantized("i8", ())}
    yield "weights", {"weighting": shared, "weights": TensorArg((2, 2, 1, 1), "bool")}
    yield "dynamic", {"weighting": per_key, "Sq": "s", "Skv": "t", "sizes": two}


CASES: tuple[Case, ...] = (*_cases(), *cases.CASES)
BY_NAME = {c.name: c for c in CASES}


def select(*tags: str, without: tuple[str, ...] = ("bench",)) -> list[Case]:
    """The cases that have every one of `tags` and none of `without`."""
    return [c for c in CASES if c.tags.issuperset(tags) and not c.tags.intersection(without)]

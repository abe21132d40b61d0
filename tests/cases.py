"""The attentions that tests try: those of `onnx_fa.cases`, which feed tuner and benchmarks too, and many small odd ones."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from onnx_fa import cases
from onnx_fa.accuracy import TOLERANCE
from onnx_fa.cases import DTYPES, FLOAT_MIN, Case, case, draw_operands
from onnx_fa.spec import AddMask, BoolMask, Causal, SlidingWindow, Softcap

__all__ = ["BY_NAME", "CASES", "DTYPES", "FLOAT_MIN", "TOLERANCE", "Case", "draw_operands", "select"]


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

    # Decode.
    yield case("decode", "decode", Sq=1, Skv=200)
    yield case("decode_gqa", "decode", "smoke", Sq=1, Hq=8, Skv=130, masks=(Causal("end"),))
    yield case("decode_mqa_b1", "decode", Sq=1, Hq=8, Hkv=1, batch=(1,), Skv=99)
    yield case("decode_gqa_mask", "decode", Sq=1, Hq=4, Skv=77, masks=(AddMask((2, 4, 1, 77)), BoolMask((2, 1, 1, 77))))
    yield case("decode_window", "decode", Sq=1, Skv=77, masks=(SlidingWindow(20, 0, "end"),))
    yield case("decode_bshd", "decode", Sq=1, Hq=4, Skv=65, **all_bshd)
    yield case("decode_kt", "decode", Sq=1, Skv=65, k_layout=kt)

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
    yield case("dyn_keys", "dynamic", Skv="t", sizes=two)
    yield case("dyn_bshd", "dynamic", **dyn, **all_bshd)
    yield case("dyn_odd_head_dim", "dynamic", **dyn, D=27, Dv=41)
    yield case("dyn_f16", "dynamic", **dyn, dtype="f16")
    yield case("dyn_symbol_names", "dynamic", Sq="seq len", Skv="past + 1", sizes=((("seq len", 5), ("past + 1", 40)),))
    yield case("dyn_decode", "dynamic", "decode", Sq=1, Skv="t", sizes=two)
    yield case("dyn_decode_gqa", "dynamic", "decode", Sq=1, Skv="t", Hq=8, batch=("b",), sizes=two)


CASES: tuple[Case, ...] = (*_cases(), *cases.CASES)
BY_NAME = {c.name: c for c in CASES}


def select(*tags: str, without: tuple[str, ...] = ("bench",)) -> list[Case]:
    """The cases that have every one of `tags` and none of `without`."""
    return [c for c in CASES if c.tags.issuperset(tags) and not c.tags.intersection(without)]

"""Which case shows which variant of attention, and what carries it.

`python -m tests.support.variant_table` writes docs/reference/variants.md.
"""

from __future__ import annotations

from pathlib import Path

from onnx_fa.errors import UnsupportedError
from onnx_fa.kernels.choose import emit_kernel
from onnx_fa.spec.target import parse_target
from tests.support.cases import BY_NAME

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "variants.md"
TARGET = parse_target("cpu-avx512")

VARIANTS: dict[str, dict[str, tuple[str, ...]]] = {
    "Heads": {
        "multi-head": ("plain", "no_batch"),
        "grouped, K and V not repeated": ("gqa", "gqa_mask_per_head"),
        "multi-query": ("mqa", "mqa_b1"),
        "cross attention": ("cross",),
        "head dims of V and of Q and K differ": ("dv_wider", "dv_narrower"),
        "head dims 8 to 512, odd ones": ("head_dim_8", "head_dim_33", "head_dim_512", "head_dim_odd_dv", "narrow_1_1"),
        "head dims above 256; on CUDA up to 1024, in tiles beside each other": (
            "wide_causal",
            "wide_f16",
            "wide_bf16_decode",
            "wide_narrow_values",
            "wide_integers",
            "wide_dynamic",
        ),
        "layouts BSHD, K transposed, any": ("bshd", "k_transposed", "all_transposed"),
        "more batch dims": ("batch_5d", "batch_5d_masks"),
    },
    "Masks from positions": {
        "causal": ("causal",),
        "causal, any offset": ("causal_offset", "causal_end", "causal_end_empty_rows"),
        "sliding window, either side": ("window", "window_both", "window_right"),
        "prefix": ("prefix", "prefix_finite"),
        "chunked (Llama 4)": ("chunked", "chunked_finite"),
        "dilated, strided": ("dilated", "strided"),
        "neighbourhood (NATTEN), 1-D and 2-D": ("neighbours", "neighbours_2d"),
        "window and global tokens (Longformer)": ("global",),
        "and / or / not of these": ("band", "several"),
    },
    "Masks from small tensors": {
        "documents, segments": ("document", "document_finite", "dyn_document"),
        "key padding": ("bool_mask_4", "bool_mask_finite"),
        "lengths of the batch rows": ("lengths", "lengths_causal", "decode_lengths"),
        "positions of the queries": ("positions",),
        "boolean tensors, any broadcast": ("bool_mask_0", "bool_mask_3", "bool_mask_row"),
    },
    "Biases": {
        "additive tensors, any broadcast": ("add_mask_0", "add_mask_6", "add_mask_row", "add_mask_scalar"),
        "T5": ("t5_bias",),
        "Swin": ("swin",),
        "ALiBi, from slopes": ("alibi", "alibi_gqa", "alibi_f16"),
        "Evoformer: a bias of pairs and a mask, 5-D": ("evoformer", "evoformer_bf16"),
        "distances in a graph": ("integers",),
    },
    "Functions of the score": {
        "softcap": ("softcap", "softcap_causal"),
        "any elementwise function": ("sigmoid", "signed_root", "decay", "cap_after_mask"),
        "sinks": ("sink", "sink_window_gqa", "sink_bf16"),
    },
    "Results": {
        "log-sum-exp": ("lse", "lse_ragged_rows", "lse_decode_gqa", "lse_sink_bf16"),
        "row maximum": ("lse_max_causal", "max_softcap_f16", "lse_finite"),
        "several V of one softmax (IPA), side by side": ("values_side_by_side",),
        "a score of two products (MLA), as one of longer rows": ("latent",),
        "absorbed latent attention": ("latent_absorbed",),
        "empty rows: NaN": ("empty_nan_bool",),
        "empty rows: zero": ("empty_zero_bool",),
        "empty rows: NaN replaced by zero": ("empty_guarded_bool",),
        "empty rows: the mean of V": ("empty_mean_causal",),
    },
    "KV cache": {
        "decode": ("decode", "decode_gqa", "decode_bshd"),
        "decode into a ring": ("decode_ring",),
        "paged, or keys picked for each batch row": (
            "gathered",
            "gathered_decode",
            "gathered_heads",
            "dyn_gathered_decode",
        ),
        "a few queries": ("few_causal", "few_window"),
        "prefill with a cache, valid keys of each batch row": ("prefill_cache", "dyn_lengths_rows"),
    },
    "Types": {
        "f32": ("plain",),
        "f16, f32 inside": ("f16", "f16_mask", "f16_decode"),
        "bf16, f32 inside": ("bf16", "bf16_causal_gqa"),
    },
    "Quantised": {
        "K and V as int8: per tensor, channel, token": (
            "quant_tensor_zero",
            "quant_channel",
            "quant_token",
            "quant_decode",
        ),
        "K and V as int4, in groups": ("quant_i4_groups", "quant_u4_groups"),
        "probabilities rounded to integers (QDQ): two sweeps over the keys": (
            "rounded_u8",
            "rounded_steps",
            "rounded_decode",
        ),
    },
    "Dynamic dims": {
        "lengths": ("dyn_lengths", "dyn_same", "dyn_keys"),
        "batch, heads and lengths at once": ("dyn_every_dim", "dyn_all"),
        "of masks too": ("dyn_mask", "dyn_add_mask"),
        "lengths that divide nothing": ("odd_lengths", "prime_vit", "one_key"),
    },
}

GRAPHS: dict[str, tuple[str, str]] = {
    "no softmax: sigmoid, ReLU, squared ReLU, SiLU, GELU, tanh and other functions of the score": (
        "tests/match/test_in_place.py",
        "one site with the function; with masks on scores or weights, divided by a constant, the keys' number or their own sum; "
        "the score itself over the sum of its sizes (L1)",
    ),
    "differential attention": ("tests/match/test_distribute.py", "two sites and a subtraction"),
    "values of distances between positions (VITS, Glow-TTS), in f32": (
        "tests/match/test_relative_values.py",
        "two sites: all keys, and a window whose values are unit vectors; the query's and the window's sums beside them",
    ),
    "several V that share a softmax (IPA, two values)": (
        "tests/match/test_shared.py",
        "one site; V side by side, a copy of S x Dv; apart where a V is made of another's result, or with a single query",
    ),
    "keys and queries of several axes, as the rows and columns of an image": (
        "tests/support/spellings_axes.py",
        "one site, the axes merged",
    ),
    "log-sum-exp or maximum as an output": (
        "tests/match/test_shared.py",
        "one site with more results; not on the stock road",
    ),
    "a score of several products (MLA, rope apart or absorbed)": (
        "tests/match/test_shared.py",
        "one product of longer rows, a copy of Q and K; a bias with a single query or rows longer than 768",
    ),
    "relative positions by gather or shift (DeBERTa, Transformer-XL, SAM)": (
        "tests/support/spellings_score.py",
        "a bias of Sq x Skv, which the model makes",
    ),
    "past keys and values, appended": ("tests/support/spellings_layout.py", "the model's own Concat; no further copy"),
    "learned queries that are the weight of a convolution of one tap over a map (MGP-STR, TokenLearner)": (
        "tests/support/spellings_layout.py",
        "one site, the map's channels read as K; none where the convolution has a bias or groups",
    ),
    "scores of parts of the keys, concatenated, and the probabilities cut again (Pegasus-X's local tokens)": (
        "tests/support/spellings_layout.py",
        "K and V concatenated, which copies them; parts that blocks or heads share are repeated; no mask on a part alone",
    ),
    "a static cache (ScatterND, ScatterElements, TensorScatter)": (
        "tests/support/spellings_layout.py",
        "read where it is, whole; keys that are not there yet are masked",
    ),
    "a paged cache, or keys picked by an index (Gather along the pages or rows)": (
        "tests/match/test_gathered.py",
        "compiled, the pool is read in place by a row per key, heads before or behind the rows of a page; a copy in ONNX forms",
    ),
    "probabilities rounded to integers (QDQ)": (
        "tests/match/test_rounded.py",
        "two sweeps over the keys in one dispatch; refused on GPUs, and where scale or zero point are no constants. 36.9 ms, "
        "23.1 without (B1 H8 S1024 D64, 2 threads, medians of 10)",
    ),
    "nonpad_kv_seqlen": ("tests/support/spellings_ops.py", "lengths of the batch rows, inside the kernel"),
    "Q and K in int8 per token, with K's mean taken out (`rewrite --int8-qk`)": (
        "tests/match/test_int8_qk.py",
        "only where asked for: ops in front of the site round Q and K, the kernel reads K as int8; the error is printed. No faster "
        "on a CPU: 23.8 ms, 23.1 without (B1 H8 S1024 D64, 2 threads, medians of 10)",
    ),
    "f32 through one product of tf32 (`--tf32`, CUDA)": (
        "tests/kernels/test_triton_kernel.py",
        "only where asked for, with a tolerance of its own: [GPUs](../guide/gpus.md); `verify` prints the error",
    ),
    "f32, f16 and bf16 through products of bf16 (`--bf16-dot`, AVX512_BF16)": (
        "tests/kernels/test_dot_body.py",
        "only where asked for, with a tolerance of its own: [performance](../results/performance.md); `verify` prints the error",
    ),
    "f64": (
        "tests/kernels/test_kernel.py",
        "refused by name; the site stays decomposed, in f64, which `compile` tells IREE to keep",
    ),
}

_HEAD = """# Variants of attention

What the kernels carry, and which case of the case table (`tests/support/cases.py`) shows it. Every case is compiled for the CPU and
compared with the float64 reference, with ordinary operands and with adversarial ones
(`tests/kernels/test_vector_kernel.py`); random specs of all of this are compared by `python -m tests.fuzz`. This page is written by
`python -m tests.support.variant_table`, and a test compares it with what the kernels say.

Row statistics: a row without keys has -inf; finite ones below -1e37, which only masks make, are given as the lowest f32. A model
that reads one is matched only where its masks cannot make a number between the two (`match/low_scores.py`).

No keys at run time (Skv = 0) give zero, a product over nothing, whatever a row whose keys are all masked gives. Where a
length is 0 for sure, nothing is fused.

Infinities and NaN: one in Q, K, a bias or a score becomes what softmax makes of it, and one in V of a key that a row sees shows
in that row as it is. Four things differ from onnxruntime:

* A key that a mask hides is not always read: blocks that are masked as a whole are left out. There a NaN or +inf in a bias that
  is added behind that mask (-inf and NaN is NaN) may not show, nor an infinite or NaN V (zero times it is NaN). The row is then
  the softmax over the other keys.
* A probability below 2^-126, the least normal f32, is zero, so that an infinite V times it is NaN. onnxruntime has infinity there
  for scores up to 103 below the row's maximum (87 here), and NaN behind that.
* A row with both +inf and NaN among its scores has the statistic +inf (onnxruntime's ReduceMax gives one or the other, by their
  order).
* A mask by positions alone that leaves every row a key (a causal one), with a finite fill: where all the keys that it leaves a row
  have the score -inf, or one below the fill, onnxruntime gives the mean of V over all masked keys, and a kernel that over the
  masked keys of the blocks which it reads. It does not look for such rows, and so does not go back for the others.

`tests/kernels/test_no_keys.py` and `python -m tests.fuzz` try all of these, and hold every row to one or the other
(`tests/kernels/test_odd_operands.py`).

"""


def body(case: str) -> tuple[str, int]:
    """The body that carries a case, and how many dispatches its text has."""
    kernel = emit_kernel(BY_NAME[case].spec, TARGET)
    return kernel.body, kernel.text.count("flow.dispatch @")


def _row(variant: str, names: tuple[str, ...]) -> str:
    found = []
    for name in names:
        try:
            found.append(body(name))
        except UnsupportedError:
            found.append(("none", 0))
    bodies = ", ".join(dict.fromkeys(b for b, _ in found))
    return f"| {variant} | {', '.join(names)} | {bodies} | {max(n for _, n in found)} |"


def page() -> str:
    """The text of docs/reference/variants.md."""
    lines = ["| variant | cases | body | dispatches |", "| --- | --- | --- | --- |"]
    for group, variants in VARIANTS.items():
        lines.append(f"| **{group}** | | | |")
        lines += [_row(variant, names) for variant, names in variants.items()]
    lines += ["", "In graphs:", "", "| variant | shown by | what becomes of it |", "| --- | --- | --- |"]
    lines += [f"| {variant} | `{where}` | {what} |" for variant, (where, what) in GRAPHS.items()]
    return _HEAD + "\n".join(lines) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page())

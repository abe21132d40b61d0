"""x-transformers: one library's many options, in language models with a dynamic batch and length."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from x_transformers import Decoder, Encoder, TransformerWrapper, ViTransformerWrapper

from corpus.case import Case
from corpus.feeds import Run
from corpus.torch_export import Module, cases_of

SIZES: dict[str, Any] = {"dim": 48, "depth": 2, "heads": 4, "attn_dim_head": 12}
RUNS = (Run("inputs"), Run("longer", batch=3, length=11))
MIXED = "heads are mixed in the scores or probabilities"
LATENT = {"attn_use_latent_q": True, "attn_dim_latent_q": 16, "attn_use_latent_kv": True, "attn_dim_latent_kv": 16}
OPTIONS: tuple[tuple[str, dict[str, Any], int | None, str], ...] = (
    ("plain", {}, None, ""),
    ("rotary", {"rotary_pos_emb": True}, None, ""),
    ("rotary-xpos", {"rotary_xpos": True}, None, ""),
    ("alibi", {"alibi_pos_bias": True, "alibi_num_heads": 2}, None, ""),
    ("t5-bias", {"rel_pos_bias": True}, None, ""),
    ("dynamic-bias", {"dynamic_pos_bias": True, "dynamic_pos_bias_log_distance": False}, None, ""),
    ("one-kv-head", {"attn_one_kv_head": True}, None, ""),
    ("kv-heads", {"attn_kv_heads": 2}, None, ""),
    ("qk-norm", {"attn_qk_norm": True}, None, ""),
    ("qk-norm-scale", {"attn_qk_norm": True, "attn_qk_norm_dim_scale": True}, None, ""),
    ("memory", {"attn_num_mem_kv": 3}, None, ""),
    ("softclamp", {"attn_softclamp_logits": True, "attn_logit_softclamp_value": 30.0}, None, ""),
    ("flash", {"attn_flash": True}, None, ""),
    ("flash-alibi", {"attn_flash": True, "alibi_pos_bias": True}, None, ""),
    ("gate-values", {"attn_gate_values": True}, None, ""),
    ("head-scale", {"attn_head_scale": True}, None, ""),
    ("max-distance", {"attn_max_attend_past": 4}, None, ""),
    ("sandwich", {"sandwich_norm": True}, None, ""),
    ("macaron", {"macaron": True}, None, ""),
    ("rms", {"use_rmsnorm": True, "ff_glu": True}, None, ""),
    ("post-norm", {"pre_norm": False}, None, ""),
    ("talking-heads", {"attn_pre_talking_heads": True, "attn_post_talking_heads": True}, 0, MIXED),
    ("sink", {"attn_head_learned_sink": True}, None, ""),
    ("zero-kv", {"attn_add_zero_kv": True}, None, ""),
    ("flash-memory", {"attn_flash": True, "attn_num_mem_kv": 3}, None, ""),
    ("residual-attention", {"residual_attn": True}, None, ""),
    ("polar", {"polar_pos_emb": True}, None, ""),
    ("laser", {"attn_laser": True}, None, ""),
    ("signed", {"attn_cog_signed": True}, None, ""),
    ("inverted", {"attn_inverted_attention": True}, None, ""),
    ("value-width", {"attn_value_dim_head": 20}, None, ""),
    ("output-gate", {"attn_output_gate": True}, None, ""),
    ("orthogonal-values", {"attn_orthog_projected_values": True}, None, ""),
    ("alibi-of-the-data", {"attn_data_dependent_alibi": True, "attn_data_dependent_alibi_per_row": True}, None, ""),
    ("latent", LATENT, None, ""),
    ("hard", {"attn_hard": True}, 0, "one key of each row has all the weight"),
    ("selective", {"attn_selective": True}, 0, "a bias is computed from the scores"),
    ("cope", {"attn_use_cope": True}, 0, "a bias is computed from the scores"),
    ("top-k", {"attn_sparse_topk": 4}, 0, "all but the largest scores are masked"),
)


def language_model(stack: Any, options: dict[str, Any]) -> Any:
    return TransformerWrapper(num_tokens=96, max_seq_len=32, attn_layers=stack(**SIZES, **options))


def vision(options: dict[str, Any]) -> Any:
    return ViTransformerWrapper(image_size=32, patch_size=8, num_classes=10, attn_layers=Encoder(**SIZES, **options))


def cases() -> Iterator[Case]:
    free = {"ids": {0: "batch", 1: "sequence"}}
    ids, types = {"ids": (2, 7)}, {"ids": torch.int64}
    modules = [
        Module(f"decoder-{name}", partial(language_model, Decoder, options), ids, count, why, types, free, runs=RUNS)
        for name, options, count, why in OPTIONS
    ]
    for name, options, _, _ in (*OPTIONS[:2], *OPTIONS[3:5]):  # rotary-xpos is for decoders alone
        modules.append(
            Module(f"encoder-{name}", partial(language_model, Encoder, options), ids, None, "", types, free, runs=RUNS)
        )
    modules.append(Module("vit", partial(vision, {}), {"image": (2, 3, 32, 32)}))
    return cases_of(modules)

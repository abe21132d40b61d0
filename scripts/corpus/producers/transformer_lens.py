"""TransformerLens: language models in which every step has a hook, by its HookedTransformer, with a dynamic batch and length.
Probabilities that are no numbers become zeros of the same shape, and masks are a buffer's number by position."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch

from corpus.case import Case
from corpus.feeds import Run
from corpus.torch_export import BOTH, Module, cases_of

SIZES: dict[str, Any] = {
    "n_layers": 2,
    "d_model": 48,
    "d_head": 12,
    "n_heads": 4,
    "d_mlp": 96,
    "n_ctx": 32,
    "d_vocab": 96,
}
RUNS = (Run("inputs"), Run("longer", batch=3, length=11))
ROTARY = {"positional_embedding_type": "rotary", "rotary_dim": 12}
OPTIONS: dict[str, dict[str, Any]] = {
    "gpt": {"act_fn": "gelu_new", "normalization_type": "LNPre"},
    "rotary": {"act_fn": "silu", "normalization_type": "RMS", **ROTARY, "gated_mlp": True, "n_key_value_heads": 2},
    "rotary-of-a-part": {
        "act_fn": "gelu",
        "normalization_type": "LN",
        **ROTARY,
        "rotary_dim": 4,
        "parallel_attn_mlp": True,
    },
    "shortformer": {"act_fn": "relu", "normalization_type": "LN", "positional_embedding_type": "shortformer"},
    "alibi": {"act_fn": "gelu", "normalization_type": "LN", "positional_embedding_type": "alibi"},
    "local": {
        "act_fn": "gelu",
        "normalization_type": "LN",
        "use_local_attn": True,
        "attn_types": ["global", "local"],
        "window_size": 5,
    },
    "softcap": {
        "act_fn": "gelu_pytorch_tanh",
        "normalization_type": "RMS",
        **ROTARY,
        "attn_scores_soft_cap": 30.0,
        "output_logits_soft_cap": 20.0,
    },
    "both-ways": {"act_fn": "gelu", "normalization_type": "LN", "attention_dir": "bidirectional"},
    "solu": {"act_fn": "solu_ln", "normalization_type": "LNPre"},
    "results-of-heads": {
        "act_fn": "gelu",
        "normalization_type": None,
        "use_attn_result": True,
        "use_split_qkv_input": True,
    },
    "qk-norm": {"act_fn": "gelu", "normalization_type": "RMS", "use_qk_norm": True, **ROTARY},
    "no-scale": {"act_fn": "gelu", "normalization_type": "LN", "use_attn_scale": False},
}


class Logits(torch.nn.Module):
    """What follows each token, without a loss."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.model(ids, return_type="logits")
        return logits


def language_model(options: dict[str, Any]) -> Logits:
    # Not before torch_export, which makes torchvision importable.
    from transformer_lens import HookedTransformer, HookedTransformerConfig

    model = HookedTransformer(HookedTransformerConfig(**SIZES, **options, device="cpu", seed=0))
    for parameter in model.parameters():  # biases are zeros
        if not parameter.any():
            torch.nn.init.normal_(parameter, std=0.02)
    return Logits(model)


def cases() -> Iterator[Case]:
    free = {"ids": {0: "batch", 1: "sequence"}}
    ids, types = {"ids": (2, 7)}, {"ids": torch.int64}
    return cases_of(
        Module(
            name,
            partial(language_model, options),
            ids,
            SIZES["n_layers"],
            "one in each layer",
            types,
            free,
            exporters=BOTH,
            runs=RUNS,
        )
        for name, options in OPTIONS.items()
    )

"""litgpt: its decoders, whole and step by step with a cache of a fixed length that is given and returned."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch

from corpus.case import Case
from corpus.feeds import Run
from corpus.torch_export import BOTH, Exporter, Module, cases_of

WIDTH, HEADS, LAYERS, LENGTH = 48, 4, 2, 64
DYNAMO: tuple[Exporter, ...] = ("dynamo",)
"""What the other exporter does not know: `mT` of scores that are capped."""
SMALL: dict[str, Any] = {
    "block_size": LENGTH,
    "n_layer": LAYERS,
    "n_embd": WIDTH,
    "n_head": HEADS,
    "vocab_size": 64,
    "padded_vocab_size": 64,
    "intermediate_size": 64,
}
LLAMA: dict[str, Any] = {"mlp_class_name": "LLaMAMLP", "norm_class_name": "RMSNorm", "bias": False}
LLAMA |= {"parallel_residual": False, "rotary_percentage": 1.0}
MODELS: dict[str, dict[str, Any]] = {
    "neox": {},
    "llama": LLAMA | {"n_query_groups": 2},
    "one-key-head": LLAMA | {"n_query_groups": 1},
    "gemma2": LLAMA
    | {"mlp_class_name": "GemmaMLP", "attention_logit_softcapping": 50.0, "final_logit_softcapping": 30.0}
    | {"n_query_groups": 2, "attention_scores_scalar": 24, "sliding_window_size": 4, "sliding_window_indices": [1, 0]},
    "gemma3": LLAMA
    | {"mlp_class_name": "GemmaMLP", "norm_qk": True, "n_query_groups": 2, "rope_local_base_freq": 10000}
    | {"rope_indices": [1, 0], "sliding_window_size": 4, "sliding_window_indices": [1, 0]},
    "olmo2": LLAMA | {"norm_qk": True, "norm_qk_type": "olmo2", "post_attention_norm": True, "norm_1": False},
    "interleaved": LLAMA | {"rope_interleave": True},
    "latent": LLAMA
    | {"latent_attention": {"q_lora_rank": 24, "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8}}
    | {"rope_interleave": True, "head_size": 16},
}
MODELS["latent"]["latent_attention"]["v_head_dim"] = 12


def decoder(options: dict[str, Any]) -> Any:
    from litgpt.config import Config
    from litgpt.model import GPT

    return GPT(Config(**(SMALL | options)))


class Cached(torch.nn.Module):
    """A decoder whose caches come in and go out."""

    def __init__(self, options: dict[str, Any]) -> None:
        super().__init__()
        self.model = decoder(options)
        self.model.set_kv_cache(batch_size=2, max_seq_length=LENGTH)

    def forward(self, ids: torch.Tensor, positions: torch.Tensor, *flat: torch.Tensor) -> Any:
        caches = [block.attn.kv_cache for block in self.model.transformer.h]
        for cache, k, v in zip(caches, flat[::2], flat[1::2], strict=True):
            cache.k, cache.v = k.clone(), v.clone()
        logits = self.model(ids, positions)
        return logits, *(x for cache in caches for x in (cache.k, cache.v))


def cases() -> Iterator[Case]:
    ids = {"ids": torch.int64}
    modules = []
    for name, options in MODELS.items():
        modules.append(
            Module(
                name,
                partial(decoder, options),
                {"ids": (2, 9)},
                types=ids,
                axes={"ids": {0: "batch"}},
                exporters=DYNAMO if name == "gemma2" else BOTH,
            )
        )
    for name in ("llama",):
        groups, head = MODELS[name]["n_query_groups"], WIDTH // HEADS
        shape = (2, groups, LENGTH, head)
        sizes = {f"past_{layer}_{part}": shape for layer in range(LAYERS) for part in "kv"}
        if name == "gemma2":
            sizes |= {f"past_0_{part}": (2, groups, 4, head) for part in "kv"}
        modules += [
            Module(
                f"{name}-{way}",
                partial(Cached, MODELS[name]),
                {"ids": (2, length), "position_ids": (length,), **sizes},
                types=ids | {"position_ids": torch.int64},
                axes={"ids": {}},
                exporters=DYNAMO if name == "gemma2" else ("torchscript",),
                runs=(Run("step", past=past),),
            )
            for way, length, past in (("step", 1, 7), ("prompt", 4, 0))
        ]
    return cases_of(modules)

"""onnxruntime-genai's model builder on tiny random checkpoints, with a tokenizer made by hand."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import onnx

import corpus.torch_setup  # noqa: F401
from corpus.case import Case, Made
from corpus.feeds import Run, runs_of

BASE: dict[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 96,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "tie_word_embeddings": False,
}
HEAD = {"head_dim": 16}
WIDE = {"num_attention_heads": 2, "num_key_value_heads": 2}
"""Heads of 32: GroupQueryAttention rotates a multiple of 16 of their elements."""
WINDOW = {"sliding_window": 8}
GEMMA = BASE | HEAD | {"query_pre_attn_scalar": 16, "hidden_activation": "gelu_pytorch_tanh"}
GPT_OSS = BASE | HEAD | {"sliding_window": 4, "num_local_experts": 2, "num_experts_per_tok": 1}
DELTA = {
    "num_hidden_layers": 3,
    "layer_types": ["linear_attention", "full_attention", "linear_attention"],
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 10000.0,
        "mrope_section": [1, 1, 0],
        "mrope_interleaved": True,
        "partial_rotary_factor": 0.25,
    },
}
SEES = {
    "depth": 1,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_heads": 2,
    "num_position_embeddings": 16,
    "out_hidden_size": 64,
}
LONG = {"type": "longrope", "long_factor": [1.5] * 8, "short_factor": [1.0] * 8}


@dataclass(frozen=True)
class Model:
    """A checkpoint: a model type of transformers with its options, and its attentions."""

    name: str
    model_type: str
    options: dict[str, Any] = field(hash=False)
    attentions: int = 2
    why: str = ""
    without: str = ""
    """A run that is left out."""
    sees: Mapping[str, Any] = field(default_factory=dict, hash=False)
    """Of a model that also sees: the options of that part, which the builder leaves out."""


MODELS = (
    Model("llama", "llama", BASE),
    Model("llama-mha", "llama", BASE | {"num_key_value_heads": 4}),
    Model("mistral", "mistral", BASE | HEAD | {"sliding_window": None}),
    Model("mistral-window", "mistral", BASE | HEAD | WINDOW),
    Model("qwen2", "qwen2", BASE),
    Model("qwen3", "qwen3", BASE | HEAD),
    Model("phi", "phi", BASE | WIDE | {"partial_rotary_factor": 0.5}),
    Model("phi3", "phi3", BASE | {"original_max_position_embeddings": 64}),
    Model("phi3-window", "phi3", BASE | WINDOW | {"original_max_position_embeddings": 64}),
    Model("phi3-long", "phi3", BASE | {"original_max_position_embeddings": 32, "rope_scaling": LONG}),
    Model("gemma", "gemma", BASE | HEAD),
    Model("gemma2", "gemma2", GEMMA | WINDOW),
    Model("granite", "granite", BASE),
    Model("nemotron", "nemotron", BASE | WIDE),
    Model("olmo", "olmo", BASE),
    Model("smollm3", "smollm3", BASE),
    Model("ernie", "ernie4_5", BASE | HEAD),
    Model("hunyuan", "hunyuan_v1_dense", BASE | HEAD),
    # Of one more token onnxruntime leaves part of the window's cache unwritten: two runs give different numbers.
    Model("gpt-oss", "gpt_oss", GPT_OSS, without="step"),
    Model(
        "lfm2",
        "lfm2",
        BASE | {"layer_types": ["conv", "full_attention"], "block_multiple_of": 32},
        attentions=1,
        why="one of the two layers is a convolution",
    ),
    Model(
        "qwen3.5",
        "qwen3_5",
        BASE | HEAD | DELTA,
        attentions=1,
        why="the other two layers are LinearAttention, which has no scores",
        sees=SEES,
    ),
)
TARGETS = (("fp32", "cpu"), ("fp16", "cuda"))
MORE: tuple[tuple[str, str, str, tuple[str, ...]], ...] = (
    ("llama", "fp16", "cpu", ()),
    ("llama", "int4", "cpu", ()),
    ("phi3", "int4", "cpu", ()),
    ("qwen3", "int4", "cpu", ()),
    ("gemma2", "int4", "cpu", ()),
    ("mistral", "int4", "cpu", ()),
    ("llama", "int4", "cuda", ()),
    ("llama", "bf16", "cuda", ()),
    ("llama", "fp16", "dml", ()),
    ("llama", "fp16", "webgpu", ()),
    ("llama", "fp32", "webgpu", ()),
    ("llama-mha", "fp16", "dml", ()),
    ("llama-mha", "fp32", "cuda", ()),
    ("phi", "fp16", "dml", ()),
    ("qwen3", "fp16", "dml", ()),
    ("llama", "fp32", "cpu", ("exclude_embeds=true",)),
    ("llama", "fp32", "cpu", ("exclude_lm_head=true",)),
    ("llama", "fp32", "cpu", ("fuse_qkv=false",)),
    ("llama", "int4", "cpu", ("use_qdq=true",)),
    ("llama", "fp32", "cpu", ("kv_cache_quant_scheme=int8_per_tensor",)),
    ("llama", "fp32", "cpu", ("kv_cache_quant_scheme=int8_per_channel",)),
    ("llama", "fp32", "cpu", ("kv_cache_quant_scheme=int4_per_channel",)),
    ("llama", "fp16", "cuda", ("kv_cache_quant_scheme=int8_per_tensor",)),
    ("qwen3.5", "int4", "cpu", ()),
    ("qwen3", "fp16", "cuda", ("fuse_qk_norm_gqa=true",)),
    ("qwen3", "fp32", "cpu", ("fuse_qk_norm_gqa=true",)),
)
"""A model, a precision, an execution provider, and extra options."""
DIM = {"kv_cache_dim": 16}
RUNS = (
    Run("prompt", sizes=DIM),
    Run("right padding", padding="right", sizes=DIM),
    Run("step", length=1, past=6, sizes=DIM),
    Run("chunk", batch=1, length=4, past=5, sizes=DIM),
)
"""GroupQueryAttention takes no padding on the left, and a chunk behind a cache for one sequence only."""


def cases() -> Iterator[Case]:
    known = {model.name: model for model in MODELS}
    listed = [(model.name, precision, provider, ()) for precision, provider in TARGETS for model in MODELS]
    for name, precision, provider, extra in (*listed, *MORE):
        words = [name, precision, provider, *(option.removesuffix("=true").replace("=", "-") for option in extra)]
        title = "-".join(words)
        yield Case(title, partial(export, title, known[name], precision, provider, extra))


def checkpoint(model: Model, folder: Path) -> None:
    """Random weights of seed 0, the configuration and a tokenizer of whole words."""
    import torch
    import transformers
    from tokenizers import Tokenizer, models

    torch.manual_seed(0)
    if model.sees:
        parts = {"text_config": model.options, "vision_config": model.sees, "tie_word_embeddings": False}
        tokens = {f"{name}_token_id": 90 + n for n, name in enumerate(("image", "video", "vision_start", "vision_end"))}
        config = transformers.AutoConfig.for_model(model.model_type, **parts, **tokens)
        made = transformers.AutoModelForImageTextToText.from_config(config).float().eval()
    else:
        config = transformers.AutoConfig.for_model(model.model_type, **model.options)
        made = transformers.AutoModelForCausalLM.from_config(config).float().eval()
    made.save_pretrained(folder)
    words = {"<pad>": 0, "<s>": 1, "</s>": 2, "<unk>": 3} | {f"w{n}": n for n in range(4, 96)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    special = {"pad_token": "<pad>", "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special).save_pretrained(folder)


def export(
    name: str, model: Model, precision: str, provider: str, extra: tuple[str, ...], folder: Path
) -> Iterable[Made]:
    """What the builder makes of a checkpoint."""
    import onnxruntime_genai.models  # noqa: F401, which puts the builder's own modules on the path
    from builder import create_model, parse_extra_options

    source, out, cache = folder / "checkpoint", folder / "out", folder / "cache"
    for made in (source, out, cache):
        made.mkdir()
    checkpoint(model, source)
    where = ("", os.fspath(source), os.fspath(out), precision, provider, os.fspath(cache))
    if model.sees:
        extra = (*extra, "exclude_embeds=false")
    if any(option.startswith("kv_cache_quant_scheme") and "per_token" not in option for option in extra):
        extra = (*extra, f"kv_cache_scale_file={_scales(extra[0], folder / 'scales.json')}")
    create_model(*where, **parse_extra_options(*where, list(extra)))
    for path in sorted(out.glob("*.onnx")):
        title = name if path.stem == "model" else f"{name}-{path.stem}"
        runs = [run for run in RUNS if run.name != model.without]
        yield Made(title, path, model.attentions, model.why, runs_of(onnx.load(path), runs))


def _scales(option: str, path: Path) -> Path:
    """A file of scales for the cache's integers: one for each layer, or for each layer's channels."""
    layer: Any = [0.02] * (2 * 16) if "per_channel" in option else 0.02
    path.write_text(json.dumps({"scales": {"k_scales": [layer] * 2, "v_scales": [layer] * 2}}))
    return path

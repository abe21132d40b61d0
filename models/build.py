"""Frozen configs -> seeded torch modules that hold attention the way real models do. Nothing is downloaded.

Models return the last hidden state, without a KV cache. Weights are drawn so that scores have a spread of about 1, and every
parameter that its library starts at a constant (biases, norm weights) is drawn too, so that each one counts.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, cast

import numpy as np
import numpy.typing as npt

from onnx_fa.errors import MissingDependencyError, OnnxFaError

os.environ.setdefault("HF_HUB_OFFLINE", "1")
try:
    import torch
    from torch import nn
    from torch.nn import functional as F  # noqa: N812 - its customary name
except ImportError as error:
    raise MissingDependencyError("the model zoo needs PyTorch: pip install 'onnx-fa[torch]'") from error

Attn = Literal["sdpa", "eager"]
Arrays = dict[str, npt.NDArray[Any]]


@dataclass(frozen=True)
class Model:
    """A model of the zoo. S counts tokens (for vit: patches + 1); `image` and `patch` are pixels, for vit only."""

    name: str
    family: str
    S: int
    hidden: int
    heads: int
    layers: int
    kv_heads: int = 0
    B: int = 1
    intermediate: int = 0
    vocab: int = 8192
    image: int = 0
    patch: int = 0
    seed: int = 0

    @property
    def head_dim(self) -> int:
        return self.hidden // self.heads

    @property
    def sites(self) -> int:
        """Attention sites in the model: one per layer."""
        return self.layers


_ALL = (
    Model("bert", "bert", S=512, hidden=768, heads=12, layers=4, intermediate=3072),
    Model("gpt", "gpt", S=1024, hidden=768, heads=12, layers=4, intermediate=3072),
    Model("llama", "llama", S=1024, hidden=512, heads=8, kv_heads=2, layers=4, intermediate=1536),
    Model("vit", "vit", S=197, hidden=768, heads=12, layers=4, intermediate=3072, image=224, patch=16),
    Model("tiny_bert", "bert", S=48, hidden=64, heads=4, layers=2, B=2, intermediate=128, vocab=128),
    Model("tiny_gpt", "gpt", S=33, hidden=64, heads=4, layers=2, intermediate=128, vocab=128),
    Model("tiny_llama", "llama", S=64, hidden=128, heads=4, kv_heads=2, layers=2, intermediate=256, vocab=128),
    Model("tiny_vit", "vit", S=50, hidden=64, heads=4, layers=2, B=2, intermediate=128, image=28, patch=4),
    # One attention each, in plain PyTorch.
    Model("attn_sdpa", "attn_sdpa", S=40, hidden=64, heads=4, layers=1, B=2),
    Model("attn_sdpa_causal", "attn_sdpa_causal", S=40, hidden=64, heads=4, layers=1, B=2),
    Model("attn_sdpa_mask", "attn_sdpa_mask", S=40, hidden=64, heads=4, layers=1, B=2),
    Model("attn_sdpa_bool_mask", "attn_sdpa_bool_mask", S=40, hidden=64, heads=4, layers=1, B=2),
    Model("attn_eager", "attn_eager", S=40, hidden=64, heads=4, layers=1, B=2),
    Model("attn_gqa", "attn_gqa", S=40, hidden=64, heads=4, kv_heads=2, layers=1, B=2),
    Model("attn_mha", "attn_mha", S=40, hidden=64, heads=4, layers=1, B=2),
    Model("attn_softcap", "attn_softcap", S=40, hidden=64, heads=4, layers=1, B=2),
)
MODELS: dict[str, Model] = {m.name: m for m in _ALL}
DEMO = ("bert", "gpt", "llama", "vit")


def find(name: str) -> Model:
    """The model of that name. Raises OnnxFaError naming the known ones."""
    if name not in MODELS:
        raise OnnxFaError(f"no model {name!r} in the zoo: use one of {', '.join(MODELS)}")
    return MODELS[name]


class _Transformer(nn.Module):
    """A transformers model reduced to tensors in, last hidden state out."""

    def __init__(self, inner: nn.Module, input_names: tuple[str, ...], **options: bool) -> None:
        super().__init__()
        self.inner, self.input_names, self.options = inner, input_names, options

    def forward(self, *args: torch.Tensor) -> torch.Tensor:
        given = dict(zip(self.input_names, args, strict=True))
        tracing = bool(cast(Any, torch.jit).is_tracing())  # the TorchScript exporter; dynamo does not trace like this
        if tracing and self.input_names == ("input_ids",):
            # Without a mask transformers looks for packed sequences, with an operator that the TorchScript exporter lacks.
            given["attention_mask"] = torch.ones_like(args[0])
        result = self.inner(**given, **self.options)
        hidden: torch.Tensor = result.last_hidden_state
        return hidden


def wrapped(inner: nn.Module, input_names: tuple[str, ...]) -> nn.Module:
    """A transformers encoder as a module of tensors in, last hidden state out."""
    return _Transformer(inner, input_names)


def _transformer(model: Model, attn: Attn) -> nn.Module:
    try:
        import transformers
    except ImportError as error:
        raise MissingDependencyError("the model zoo needs transformers: pip install 'onnx-fa[torch]'") from error

    build = _FAMILIES.get(model.family)
    if build is None:
        raise OnnxFaError(f"the zoo has no family {model.family!r}")
    spread = {"initializer_range": model.hidden**-0.5}
    return build(transformers, model, spread | _attention(attn))


def _build_bert(transformers: Any, model: Model, options: dict[str, Any]) -> nn.Module:
    config = transformers.BertConfig(
        vocab_size=model.vocab,
        hidden_size=model.hidden,
        num_hidden_layers=model.layers,
        num_attention_heads=model.heads,
        intermediate_size=model.intermediate,
        max_position_embeddings=model.S,
        **options,
    )
    return _Transformer(transformers.BertModel(config, add_pooling_layer=False), ("input_ids", "attention_mask"))


def _build_gpt(transformers: Any, model: Model, options: dict[str, Any]) -> nn.Module:
    config = transformers.GPT2Config(
        vocab_size=model.vocab,
        n_positions=model.S,
        n_embd=model.hidden,
        n_layer=model.layers,
        n_head=model.heads,
        n_inner=model.intermediate,
        use_cache=False,
        **options,
    )
    return _Transformer(transformers.GPT2Model(config), ("input_ids",), use_cache=False)


def _build_llama(transformers: Any, model: Model, options: dict[str, Any]) -> nn.Module:
    config = transformers.LlamaConfig(
        vocab_size=model.vocab,
        hidden_size=model.hidden,
        intermediate_size=model.intermediate,
        num_hidden_layers=model.layers,
        num_attention_heads=model.heads,
        num_key_value_heads=model.kv_heads,
        max_position_embeddings=model.S,
        use_cache=False,
        **options,
    )
    return _Transformer(transformers.LlamaModel(config), ("input_ids",), use_cache=False)


def _build_vit(transformers: Any, model: Model, options: dict[str, Any]) -> nn.Module:
    config = transformers.ViTConfig(
        hidden_size=model.hidden,
        num_hidden_layers=model.layers,
        num_attention_heads=model.heads,
        intermediate_size=model.intermediate,
        image_size=model.image,
        patch_size=model.patch,
        **options,
    )
    return _Transformer(transformers.ViTModel(config, add_pooling_layer=False), ("pixel_values",))


_FAMILIES: dict[str, Callable[[Any, Model, dict[str, Any]], nn.Module]] = {
    "bert": _build_bert,
    "gpt": _build_gpt,
    "llama": _build_llama,
    "vit": _build_vit,
}


class _Attention(nn.Module):
    """One attention with projections: x (B, S, hidden) and perhaps a mask in, (B, S, hidden) out."""

    def __init__(self, model: Model, core: Callable[..., torch.Tensor]) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.core = model.heads, model.kv_heads or model.heads, core
        self.q = nn.Linear(model.hidden, model.hidden)
        self.k = nn.Linear(model.hidden, self.kv_heads * model.head_dim)
        self.v = nn.Linear(model.hidden, self.kv_heads * model.head_dim)
        self.o = nn.Linear(model.hidden, model.hidden)

    def forward(
        self, *args: torch.Tensor
    ) -> torch.Tensor:  # one parameter, as in _Transformer: dynamic shapes follow it
        x, *mask = args
        B, S, hidden = x.shape
        q = self.q(x).view(B, S, self.heads, -1).transpose(1, 2)
        k = self.k(x).view(B, S, self.kv_heads, -1).transpose(1, 2)
        v = self.v(x).view(B, S, self.kv_heads, -1).transpose(1, 2)
        out: torch.Tensor = self.o(self.core(q, k, v, *mask).transpose(1, 2).reshape(B, S, hidden))
        return out


class _MultiheadAttention(nn.Module):
    def __init__(self, model: Model) -> None:
        super().__init__()
        self.mha = nn.MultiheadAttention(model.hidden, model.heads, batch_first=True)

    def forward(self, *args: torch.Tensor) -> torch.Tensor:
        (x,) = args
        out: torch.Tensor = self.mha(x, x, x, need_weights=False)[0]
        return out


def _causal(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def _eager(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, cap: float | None = None) -> torch.Tensor:
    score = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5
    if cap is not None:
        score = cap * torch.tanh(score / cap)
    return torch.softmax(score, dim=-1) @ v


def _softcap(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return _eager(q, k, v, cap=2.0)


def _repeat_kv(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """The expand-and-reshape that Llama-like code writes for grouped queries."""

    def repeat(x: torch.Tensor) -> torch.Tensor:
        B, Hkv, S, D = x.shape
        group = q.shape[1] // Hkv
        return x[:, :, None].expand(B, Hkv, group, S, D).reshape(B, Hkv * group, S, D)

    return _eager(q, repeat(k), repeat(v))


_CORES: dict[str, Callable[..., torch.Tensor]] = {
    "attn_sdpa": F.scaled_dot_product_attention,
    "attn_sdpa_causal": _causal,
    "attn_sdpa_mask": F.scaled_dot_product_attention,
    "attn_sdpa_bool_mask": F.scaled_dot_product_attention,
    "attn_eager": _eager,
    "attn_gqa": _repeat_kv,
    "attn_softcap": _softcap,
}


def _attention(attn: Attn) -> Any:
    """The config keyword, which transformers' own types do not list."""
    return {"attn_implementation": attn}


def draw_constants(module: nn.Module) -> None:
    """Moves every constant parameter (a zero bias, a norm weight of one) off its value."""
    with torch.no_grad():
        for parameter in module.parameters():
            flat = parameter.flatten()
            if bool((flat == flat[0]).all()):
                parameter.add_(0.1 * torch.randn_like(parameter))


def build(model: Model, attn: Attn = "sdpa") -> nn.Module:
    """The seeded module in eval mode, f32. `attn` picks how the transformers families spell their attention.

    Raises MissingDependencyError without transformers, OnnxFaError for an unknown family.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(model.seed)
        if model.family in _CORES:
            module: nn.Module = _Attention(model, _CORES[model.family])
        elif model.family == "attn_mha":
            module = _MultiheadAttention(model)
        else:
            module = _transformer(model, attn)
        draw_constants(module)
    return module.eval()


def inputs(model: Model, *, seed: int = 0, B: int | None = None, S: int | None = None) -> Arrays:
    """Example inputs by name. B and S default to the model's; vit takes no other S."""
    B, S = B or model.B, S or model.S
    rng = np.random.default_rng(seed)
    match model.family:
        case "bert":
            # Row b keeps its first tokens only, more padding in later rows.
            keep = np.array([S - S // 8 - b % S for b in range(B)])
            mask = (np.arange(S) < keep[:, None]).astype(np.int64)
            return {"input_ids": rng.integers(0, model.vocab, (B, S)), "attention_mask": mask}
        case "gpt" | "llama":
            return {"input_ids": rng.integers(0, model.vocab, (B, S))}
        case "vit":
            return {"pixel_values": rng.standard_normal((B, 3, model.image, model.image), np.float32)}
    x = rng.standard_normal((B, S, model.hidden), np.float32)
    if model.family == "attn_sdpa_mask":
        return {"x": x, "mask": rng.standard_normal((B, 1, S, S), np.float32)}
    if model.family == "attn_sdpa_bool_mask":
        keep = rng.random((B, 1, S, S)) < 0.7
        keep[..., 0] = True  # no empty row: what that yields is tested apart
        return {"x": x, "mask": keep}
    return {"x": x}


def dynamic_dims(model: Model) -> dict[str, dict[int, str]]:
    """Which axes of which input are symbolic in a dynamic export: batch, and length where the model takes any."""
    match model.family:
        case "vit":
            return {"pixel_values": {0: "batch"}}
        case "attn_sdpa_mask" | "attn_sdpa_bool_mask":
            return {"x": {0: "batch", 1: "seq"}, "mask": {0: "batch", 2: "seq", 3: "seq"}}
    return {name: {0: "batch", 1: "seq"} for name in inputs(model, B=1, S=8)}

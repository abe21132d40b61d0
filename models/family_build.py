"""Entries of `families` -> seeded torch modules and example inputs. Nothing is downloaded."""

from __future__ import annotations

from typing import Any, cast

import numpy as np

from onnx_fa.errors import MissingDependencyError, OnnxFaError
from onnx_fa.models.build import Arrays, Attn, draw_constants
from onnx_fa.models.families import HEADS, HIDDEN, VOCAB, Family, Input

try:
    import torch
    from torch import nn
except ImportError as error:
    raise MissingDependencyError("the model families need PyTorch: pip install 'onnx-fa[torch]'") from error


def build(family: Family, attn: Attn = "sdpa") -> nn.Module:
    """The seeded module in eval mode, f32: the family's inputs in, its output (and the grown cache) out.

    Raises MissingDependencyError without transformers.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(family.seed)
        inner = _transformer(family, attn) if family.config else _torch_module(family)
        draw_constants(inner)
    return inner.eval()


def inputs(family: Family, seed: int = 0) -> Arrays:
    """Example inputs by name."""
    rng = np.random.default_rng(seed)
    return {i.name: _fill(i, rng) for i in family.inputs}


def outputs(family: Family) -> list[str]:
    """Names of the outputs: the result, then the grown cache in the order of the past inputs."""
    return ["hidden", *(i.name.replace("past", "present") for i in family.inputs if i.name.startswith("past"))]


def _fill(i: Input, rng: np.random.Generator) -> Any:
    match i.fill:
        case "ids":
            return rng.integers(4, VOCAB, i.shape)  # the first few are special tokens
        case "normal":
            return rng.standard_normal(i.shape, np.float32)
        case "ones":
            ones = np.ones(i.shape, np.float32)
            ones[..., -1] = 0
            return ones
    B, length = i.shape[:2]
    padding = np.arange(B)[:, None] * length // 5  # none in row 0
    at = np.arange(length)
    match i.fill:
        case "left":
            return (at >= padding).astype(np.int64)
        case "right":
            return (at < length - padding).astype(np.int64)
        case "documents":
            return np.broadcast_to(at // (length // 3 + 1), i.shape).astype(np.int64) + np.arange(B)[:, None]
        case "drop":
            return at >= length - padding
        case "corner":
            keep = at < length - padding
            return (keep[:, :, None] & keep[:, None, :]).astype(np.int64)
    raise OnnxFaError(f"no way to fill input {i.name!r}")


class _Transformer(nn.Module):
    """A transformers model reduced to tensors in, tensors out."""

    def __init__(self, inner: nn.Module, family: Family) -> None:
        super().__init__()
        self.inner, self.family = inner, family

    def forward(self, *args: torch.Tensor) -> Any:
        given: dict[str, Any] = dict(zip((i.name for i in self.family.inputs), args, strict=True))
        past = [given.pop(name) for name in list(given) if name.startswith("past")]
        if past:
            import transformers

            given["past_key_values"] = transformers.DynamicCache()
            for layer, (k, v) in enumerate(zip(past[::2], past[1::2], strict=True)):
                given["past_key_values"].update(k, v, layer)
        if past or self.family.kind in ("decoder", "encoder-decoder"):
            given["use_cache"] = bool(past)
        result = self.inner(**given)
        hidden: torch.Tensor = result[self.family.output]
        if self.family.probabilities:
            hidden = torch.softmax(hidden, -1)
        if not past:
            return hidden
        return (hidden, *(x for layer in result.past_key_values.layers for x in (layer.keys, layer.values)))


def _transformer(family: Family, attn: Attn) -> nn.Module:
    try:
        import transformers
    except ImportError as error:
        raise MissingDependencyError("the model families need transformers: pip install 'onnx-fa[torch]'") from error
    # A convolutional backbone has no attention, and so no choice of it.
    how = {"": attn, "backbone_config": "eager"} if "backbone_config" in family.options else attn
    config = getattr(transformers, family.config)(**family.options, attn_implementation=how)
    # Scores with a spread of about 1.
    for name in ("initializer_range", "init_std"):
        if hasattr(config, name):
            setattr(config, name, HIDDEN**-0.5)
    model: nn.Module = getattr(transformers, family.model)(config)
    return _Transformer(model, family)


class _MultiheadAttention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.mha = nn.MultiheadAttention(HIDDEN, HEADS, batch_first=True)

    def forward(self, *args: torch.Tensor) -> torch.Tensor:
        x, *drop = args
        mask = drop[0] if drop else None
        return cast(torch.Tensor, self.mha(x, x, x, key_padding_mask=mask, need_weights=False)[0])


class _Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(HIDDEN, HEADS, 112, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def forward(self, *args: torch.Tensor) -> torch.Tensor:
        x, drop = args
        return cast(torch.Tensor, self.encoder(x, src_key_padding_mask=drop))


class _EncoderDecoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.both = nn.Transformer(HIDDEN, HEADS, 2, 2, 112, batch_first=True)

    def forward(self, *args: torch.Tensor) -> torch.Tensor:
        x, y, drop = args
        causal = nn.Transformer.generate_square_subsequent_mask(y.shape[1])
        return cast(
            torch.Tensor,
            self.both(
                x, y, tgt_mask=causal, src_key_padding_mask=drop, memory_key_padding_mask=drop, tgt_is_causal=True
            ),
        )


def _torch_module(family: Family) -> nn.Module:
    match family.model:
        case "torch.mha":
            return _MultiheadAttention()
        case "torch.encoder":
            return _Encoder()
        case "torch.transformer":
            return _EncoderDecoder()
    from onnx_fa.models.variants import MODULES

    kind, _, name = family.model.partition(".")
    if kind == "variant" and name in MODULES:
        return MODULES[name]()
    raise OnnxFaError(f"no torch module {family.model!r}")

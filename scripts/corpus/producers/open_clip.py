"""open_clip: CLIP's two towers, and CoCa's text decoder with cross attention."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch

from corpus.case import Case
from corpus.torch_export import Module, cases_of

VISION: dict[str, Any] = {"image_size": 32, "patch_size": 8, "layers": 2, "width": 48, "head_width": 12}
TEXT: dict[str, Any] = {"context_length": 9, "vocab_size": 96, "width": 48, "heads": 4, "layers": 2}
POOLED = VISION | {"attentional_pool": True, "attn_pooler_queries": 5, "attn_pooler_heads": 4}
MODELS: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("clip", "CLIP", {"vision_cfg": VISION, "text_cfg": TEXT}),
    ("clip-quick-gelu", "CLIP", {"vision_cfg": VISION, "text_cfg": TEXT, "quick_gelu": True}),
    ("clip-no-causal", "CLIP", {"vision_cfg": VISION, "text_cfg": TEXT | {"no_causal_mask": True}}),
    ("clip-text-tower", "CustomTextCLIP", {"vision_cfg": VISION, "text_cfg": TEXT}),
    ("clip-pooler", "CLIP", {"vision_cfg": POOLED, "text_cfg": TEXT}),
)


def make(name: str, options: dict[str, Any]) -> Any:
    """A model with random weights. open_clip imports torchvision, which torch_export has to be imported before."""
    import open_clip.model

    return getattr(open_clip.model, name)(embed_dim=24, **options)


def cases() -> Iterator[Case]:
    inputs = {"image": (2, 3, 32, 32), "text": (2, 9)}
    modules = [
        Module(title, partial(make, name, options), inputs, types={"text": torch.int64})
        for title, name, options in MODELS
    ]
    return cases_of(modules, positional=False)

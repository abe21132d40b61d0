"""docTR: readers of words (ViTSTR, PARSeq, which writes letter by letter) and MASTER's decoder, made small."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch

from corpus.case import Case
from corpus.torch_export import BOTH, Call, Module, cases_of

WIDTH, HEADS, LAYERS = 48, 4, 2
LETTERS = "abcdefghijklmnopqrstuvwxyz"
LONGEST = 5
"""A word's letters."""
SHAPE = (3, 32, 64)


def vision(top: bool) -> Any:
    """The vision transformer that both readers begin with."""
    from doctr.models.classification.vit.pytorch import VisionTransformer

    return VisionTransformer(
        WIDTH, LAYERS, HEADS, 2, patch_size=(4, 8), input_shape=SHAPE, num_classes=10, include_top=top
    )


def reader(name: str, **options: Any) -> Any:
    """A reader whose results are numbers for every letter."""
    from doctr.models import recognition
    from torchvision.models._utils import IntermediateLayerGetter

    begin = IntermediateLayerGetter(vision(False), {"1": "features"})
    made = getattr(recognition, name)(begin, LETTERS, max_length=LONGEST, input_shape=SHAPE, exportable=True, **options)
    return Call(made, lambda model, image: model(image)["logits"])


def decoder() -> Any:
    """MASTER's decoder: letters attend to those before and to an image."""
    from doctr.models.modules.transformer.pytorch import Decoder

    made = Decoder(
        num_layers=LAYERS, num_heads=HEADS, d_model=WIDTH, vocab_size=64, dff=64, maximum_position_encoding=20
    )
    return Call(made, lambda m, ids, memory, mask: m(ids, memory, None, mask))


def cases() -> Iterator[Case]:
    word = {"image": (2, *SHAPE)}
    modules = [
        Module("vit", partial(vision, True), word, exporters=BOTH),
        Module("vitstr", partial(reader, "ViTSTR", embedding_units=WIDTH), word, exporters=BOTH),
        Module(
            "parseq",
            partial(reader, "PARSeq", embedding_units=WIDTH, dec_num_heads=HEADS, dec_ff_dim=64, dec_ffd_ratio=1),
            word,
        ),
        Module(
            "decoder",
            decoder,
            {"ids": (2, 9), "memory": (2, 20, WIDTH), "mask": (9, 9)},
            types={"ids": torch.int64, "mask": torch.bool},
            axes={"ids": {0: "batch"}, "memory": {0: "batch"}},
            exporters=BOTH,
        ),
    ]
    return cases_of(modules)

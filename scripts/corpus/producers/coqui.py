"""Coqui's TTS: encoders of text with relative positions on keys and values (VITS, Glow-TTS)."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch

from corpus.case import Case
from corpus.feeds import Run
from corpus.torch_export import BOTH, Call, Module, cases_of, lengths_of
from corpus.torch_setup import stand_in_for, without_compiled_torchaudio

WIDTH, HEADS, LAYERS, VOCABULARY = 32, 4, 2, 64
without_compiled_torchaudio()
stand_in_for("trainer", "trainer.io", "trainer.torch", "trainer.generic_utils", "trainer.trainer_utils", "coqpit")
stand_in_for("monotonic_alignment_search", "fsspec", "torchcodec", "librosa", "librosa.filters", "soundfile")


def transformer(window: int | None, kind: str) -> Any:
    from TTS.tts.layers.glow_tts.transformer import RelativePositionTransformer

    made = RelativePositionTransformer(
        WIDTH, WIDTH, WIDTH, 48, HEADS, LAYERS, kernel_size=3, rel_attn_window_size=window, layer_norm_type=kind
    )

    def masked(m: Any, x: Any, parts: Any) -> Any:
        kept = torch.arange(x.size(2))[None, None, :] < lengths_of(parts, x.size(2))[:, None, None]
        return m(x * kept.float(), kept.float())

    return Call(made, masked)


def vits() -> Any:
    from TTS.tts.layers.vits.networks import TextEncoder

    made = TextEncoder(VOCABULARY, WIDTH, WIDTH, 48, HEADS, LAYERS, 3, 0.0)
    return Call(made, lambda m, ids, parts: m(ids, lengths_of(parts, ids.size(1)))[1:3])


def cases() -> Iterator[Case]:
    frames = {"x": (2, WIDTH, 11), "parts": (2,)}
    free = {"x": {0: "batch", 2: "frames"}, "parts": {0: "batch"}}
    runs = (Run("inputs", sizes={"frames": 11}), Run("one", batch=1, sizes={"frames": 11}))
    modules = [
        Module("glow", partial(transformer, None, "1"), frames, axes=free, exporters=BOTH, runs=runs),
        Module("glow-window", partial(transformer, 4, "1"), frames, axes=free, exporters=BOTH, runs=runs),
        Module(
            "vits",
            vits,
            {"ids": (2, 11), "parts": (2,)},
            types={"ids": torch.int64},
            axes={"ids": {0: "batch", 1: "frames"}, "parts": {0: "batch"}},
            exporters=BOTH,
            runs=runs,
        ),
    ]
    return cases_of(modules)

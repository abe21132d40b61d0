"""SpeechBrain: Conformers and Branchformers with relative positions, rotary attention, and what recurrent decoders have."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch

from corpus.case import Case
from corpus.torch_export import BOTH, Call, Module, cases_of
from corpus.torch_setup import without_compiled_torchaudio

WIDTH, HEADS, LAYERS = 48, 4, 2
without_compiled_torchaudio()


def recogniser(kind: str, encoder: str, causal: bool) -> Any:
    """An encoder of frames and a decoder of tokens, with the lengths of the sounds as parts of the longest."""
    from speechbrain.lobes.models.transformer.TransformerASR import TransformerASR

    model = TransformerASR(
        tgt_vocab=64,
        input_size=20,
        d_model=WIDTH,
        nhead=HEADS,
        num_encoder_layers=LAYERS,
        num_decoder_layers=LAYERS,
        d_ffn=64,
        dropout=0.0,
        encoder_module=encoder,
        attention_type=kind,
        positional_encoding="fixed_abs_sine" if kind == "regularMHA" else None,
        normalize_before=True,
        causal=causal,
        csgu_linear_units=64,
        kernel_size=7,
    )
    return Call(model, lambda m, frames, tokens, lengths: m(frames, tokens.remainder(63) + 1, lengths, pad_idx=0))


def language() -> Any:
    from speechbrain.lobes.models.transformer.TransformerLM import TransformerLM

    model = TransformerLM(
        vocab=64, d_model=WIDTH, nhead=HEADS, num_encoder_layers=LAYERS, num_decoder_layers=0, d_ffn=64, dropout=0.0
    )
    return Call(model, lambda m, ids: m(ids))


def rotary() -> Any:
    from speechbrain.nnet.attention import RoPEMHA

    return Call(RoPEMHA(num_heads=HEADS, embed_dim=WIDTH), lambda m, x: m(x, x, x)[0])


def relative(future: bool) -> Any:
    """Transformer-XL's, which returns its probabilities too."""
    from speechbrain.nnet.attention import RelPosMHAXL

    made = RelPosMHAXL(num_heads=HEADS, embed_dim=WIDTH, mask_pos_future=future)
    return Call(made, lambda m, x, places, dropped: m(x, x, x, places, key_padding_mask=dropped)[0])


def key_value() -> Any:
    """One query attends to the encoder's frames: scores are a product."""
    from speechbrain.nnet.attention import KeyValueAttention

    made = KeyValueAttention(enc_dim=WIDTH, dec_dim=WIDTH, attn_dim=16, output_dim=WIDTH)
    return Call(made, lambda m, frames, lengths, state: m(frames, lengths, state)[0])


def content(name: str) -> Any:
    """One query attends to the encoder's frames: scores are a tanh times a vector."""
    from speechbrain.nnet import attention

    more = {} if name == "ContentBasedAttention" else {"conv_channels": 4, "kernel_size": 5}
    made = getattr(attention, name)(enc_dim=WIDTH, dec_dim=WIDTH, attn_dim=16, output_dim=WIDTH, **more)
    return Call(made, lambda m, frames, lengths, state: m(frames, lengths, state)[0])


def cases() -> Iterator[Case]:
    sound = {"frames": (2, 20, 20), "tokens": (2, 6), "lengths": (2,)}
    axes = {"frames": {0: "batch"}, "tokens": {0: "batch"}, "lengths": {0: "batch"}}
    modules = [
        Module(
            f"{encoder}-{kind}{'-causal' if causal else ''}",
            partial(recogniser, kind, encoder, causal),
            sound,
            types={"tokens": torch.int64},
            axes=axes,
            exporters=BOTH if kind == "regularMHA" else ("torchscript",),
        )
        for encoder, kind, causal in (
            ("transformer", "regularMHA", True),
            ("conformer", "regularMHA", False),
            ("conformer", "RelPosMHAXL", True),
            ("conformer", "RoPEMHA", False),
            ("branchformer", "RelPosMHAXL", False),
        )
    ]
    frames = {"frames": (2, 11, WIDTH), "lengths": (2,), "state": (2, WIDTH)}
    tanh = "scores of a tanh, no product"
    modules += [
        Module("language", language, {"ids": (2, 9)}, types={"ids": torch.int64}, exporters=BOTH),
        Module("rotary", rotary, {"x": (2, 9, WIDTH)}, exporters=BOTH),
        *(
            Module(
                f"relative{way}",
                partial(relative, bool(way)),
                {"x": (2, 9, WIDTH), "places": (1, 17, WIDTH), "dropped": (2, 9)},
                types={"dropped": torch.bool},
                axes={"x": {0: "batch"}, "dropped": {0: "batch"}},
                exporters=BOTH,
            )
            for way in ("", "-no-future")
        ),
        Module("key-value", key_value, frames),
        Module("content", partial(content, "ContentBasedAttention"), frames, 0, tanh),
        Module("location", partial(content, "LocationAwareAttention"), frames, 0, tanh),
    ]
    return cases_of(modules)

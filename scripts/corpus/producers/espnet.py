"""ESPnet: encoders with relative positions, branches and contextual blocks, decoders with caches, speech synthesis, and what
espnet_onnx makes of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch

from corpus.case import Case, Made
from corpus.feeds import Run
from corpus.torch_export import BOTH, Call, Count, Module, cases_of, lengths_of
from corpus.torch_setup import stand_in_for, without_compiled_torchaudio

WIDTH, HEADS, LAYERS, VOCABULARY = 32, 4, 2, 64
without_compiled_torchaudio()
stand_in_for("g2p_en", "tacotron_cleaner", "tacotron_cleaner.cleaners")  # turn text into phonemes
stand_in_for(
    "espnet2.bin.asr_inference", "espnet2.bin.tts_inference", "espnet_model_zoo", "espnet_model_zoo.downloader"
)


def _encoder(kind: str, **more: Any) -> Any:
    from importlib import import_module

    module, name = kind.rsplit(".", 1)
    small: dict[str, Any] = {"output_size": WIDTH, "attention_heads": HEADS, "num_blocks": LAYERS}
    if "branchformer" not in module or "e_branch" in module:
        small["linear_units"] = 48
    if "branchformer" in module:
        small |= {"cgmlp_linear_units": 48, "cgmlp_conv_kernel": 5}
    return getattr(import_module(f"espnet2.asr.encoder.{module}"), name)(input_size=20, **small, **more)


def encoder(kind: str, **more: Any) -> Any:
    return Call(_encoder(kind, **more), lambda m, frames, parts: m(frames, lengths_of(parts, frames.size(1)))[0])


def attention(name: str, *options: Any) -> Any:
    """An attention alone, with a mask of its own for each query."""
    from espnet.nets.pytorch_backend.transformer import attention as all_of_them

    made = getattr(all_of_them, name)(HEADS, WIDTH, 0.0, *options)
    if "RelPosition" in name:
        return Call(made, lambda m, x, places, mask: m(x, x, x, places, mask))
    return Call(made, lambda m, x, mask: m(x, x, x, mask))


def decoder(name: str = "TransformerDecoder") -> Any:
    """All tokens at once, behind an encoder."""
    from espnet2.asr.decoder import transformer_decoder

    made = getattr(transformer_decoder, name)(
        VOCABULARY, WIDTH, attention_heads=HEADS, linear_units=48, num_blocks=LAYERS
    )

    def all_tokens(m: Any, frames: Any, parts: Any, tokens: Any, token_parts: Any) -> Any:
        return m(frames, lengths_of(parts, frames.size(1)), tokens, lengths_of(token_parts, tokens.size(1)))[0]

    return Call(made, all_tokens)


def step() -> Any:
    """One token, with what the layers made of those before."""
    from espnet2.asr.decoder.transformer_decoder import TransformerDecoder

    made = TransformerDecoder(VOCABULARY, WIDTH, attention_heads=HEADS, linear_units=48, num_blocks=LAYERS)

    def one(m: Any, tokens: Any, mask: Any, frames: Any, first: Any, second: Any) -> Any:
        return m.forward_one_step(tokens, mask, frames, cache=[first, second])

    return Call(made, one)


def text_encoder() -> Any:
    """Of VITS."""
    from espnet2.gan_tts.vits.text_encoder import TextEncoder

    made = TextEncoder(VOCABULARY, attention_dim=WIDTH, attention_heads=HEADS, linear_units=48, blocks=LAYERS)
    return Call(made, lambda m, ids, parts: m(ids, lengths_of(parts, ids.size(1)))[:3])


def language() -> Any:
    from espnet2.lm.transformer_lm import TransformerLM

    made = TransformerLM(VOCABULARY, embed_unit=16, att_unit=WIDTH, head=HEADS, unit=48, layer=LAYERS)
    return Call(made, lambda m, ids: m(ids, None)[0])


def exported_encoder(kind: str, **more: Any) -> Any:
    """As espnet_onnx writes it: masks of -10000 from the lengths."""
    from espnet_onnx.export.asr.models.encoder_wrapper import DefaultEncoder
    from espnet_onnx.export.asr.models.encoders.conformer import ConformerEncoder
    from espnet_onnx.export.asr.models.encoders.contextual_block_xformer import ContextualBlockXformerEncoder
    from espnet_onnx.export.asr.models.encoders.transformer import TransformerEncoder

    made = _encoder(kind, **more).eval()
    if "Contextual" in kind:
        return ContextualBlockXformerEncoder(made, feats_dim=20)
    wrapped = (ConformerEncoder if "Conformer" in kind else TransformerEncoder)(made, feats_dim=20)
    return DefaultEncoder(wrapped, None, feats_dim=20)


def exported_decoder() -> Any:
    from espnet2.asr.decoder.transformer_decoder import TransformerDecoder
    from espnet_onnx.export.asr.models.decoders.xformer import XformerDecoder

    made = TransformerDecoder(VOCABULARY, WIDTH, attention_heads=HEADS, linear_units=48, num_blocks=LAYERS)
    return XformerDecoder(made.eval())


def exported_language() -> Any:
    from espnet2.lm.transformer_lm import TransformerLM
    from espnet_onnx.export.asr.models.language_models.transformer import TransformerLM as Exported

    made = TransformerLM(VOCABULARY, embed_unit=16, att_unit=WIDTH, head=HEADS, unit=48, layer=LAYERS)
    return Exported(made.eval())


def export(name: str, make: Callable[[], Any], folder: Path) -> Iterable[Made]:
    """A file by what espnet_onnx says of inputs and axes."""
    torch.manual_seed(0)
    model = make().eval()
    given = model.get_dummy_inputs(WIDTH) if "decoder" in name else model.get_dummy_inputs()
    arguments = given if isinstance(given, tuple) else (given,)
    path = folder / "model.onnx"
    with torch.no_grad(), Count() as seen:
        model(*arguments)
    with torch.no_grad():
        torch.onnx.export(
            model,
            arguments,
            path,
            input_names=model.get_input_names(),
            output_names=model.get_output_names(),
            dynamic_axes=model.get_dynamic_axes(),
            opset_version=12 if name.endswith("-12") else 17,
            dynamo=False,
        )
    flat = [t for x in arguments for t in (x if isinstance(x, list | tuple) else (x,))]
    feeds = {key: t.numpy() for key, t in zip(model.get_input_names(), flat, strict=True)}
    yield Made(name, path, seen.count, "counted while the module runs", {"inputs": feeds})


def cases() -> Iterator[Case]:
    frames = {"frames": (2, 40, 20), "parts": (2,)}
    long = {"tokens": torch.int64, "ids": torch.int64}
    relative = {"rel_pos_type": "latest", "pos_enc_layer_type": "rel_pos", "selfattention_layer_type": "rel_selfattn"}
    legacy = {
        "rel_pos_type": "legacy",
        "pos_enc_layer_type": "rel_pos",
        "selfattention_layer_type": "rel_selfattn",
    }
    branches = {"pos_enc_layer_type": "rel_pos", "attention_layer_type": "rel_selfattn", "rel_pos_type": "latest"}
    modules = [
        Module(name, partial(encoder, kind, **more), frames, types=long)
        for name, kind, more in (
            ("conformer", "conformer_encoder.ConformerEncoder", relative),
            ("conformer-legacy", "conformer_encoder.ConformerEncoder", legacy),
            ("transformer", "transformer_encoder.TransformerEncoder", {}),
            ("branchformer", "branchformer_encoder.BranchformerEncoder", branches),
            ("e-branchformer", "e_branchformer_encoder.EBranchformerEncoder", branches),
        )
    ]
    sequence, mask = (2, 9, WIDTH), (2, 9, 9)
    axes = {"x": {0: "batch"}, "mask": {0: "batch"}}
    for name, options, places in (
        ("MultiHeadedAttention", (False, False), 0),
        ("RelPositionMultiHeadedAttention", (), 17),
        ("RelPositionMultiHeadedAttention-future", (True,), 17),
        ("LegacyRelPositionMultiHeadedAttention", (), 9),
    ):
        inputs = {"x": sequence} | ({"places": (1, places, WIDTH)} if places else {}) | {"mask": mask}
        made = partial(attention, name.removesuffix("-future"), *options)
        modules.append(Module(name, made, inputs, types={"mask": torch.bool}, axes=axes, exporters=BOTH))
    tokens = {"frames": (2, 11, WIDTH), "parts": (2,), "tokens": (2, 6), "token_parts": (2,)}
    modules += [
        Module("decoder", decoder, tokens, types=long),
        Module(
            "decoder-step",
            step,
            {
                "tokens": (2, 6),
                "mask": (1, 6, 6),
                "frames": (2, 11, WIDTH),
                "first": (2, 5, WIDTH),
                "second": (2, 5, WIDTH),
            },
            types={"tokens": torch.int64, "mask": torch.bool},
            axes={
                "tokens": {0: "batch", 1: "tokens"},
                "mask": {1: "tokens", 2: "tokens"},
                "frames": {0: "batch", 1: "frames"},
                "first": {0: "batch", 1: "past"},
                "second": {0: "batch", 1: "past"},
            },
            runs=tuple(
                Run(f"token {n}", batch=batch, sizes={"tokens": n, "past": n - 1, "frames": 11})
                for n, batch in ((6, 2), (2, 1))
            ),
        ),
        Module("vits-text-encoder", text_encoder, {"ids": (2, 9), "parts": (2,)}, types=long),
        Module("language", language, {"ids": (2, 9)}, types=long, axes={"ids": {0: "batch"}}),
    ]
    yield from cases_of(modules)
    made: dict[str, Callable[[], Any]] = {
        "onnx-conformer": partial(exported_encoder, "conformer_encoder.ConformerEncoder", **relative),
        "onnx-conformer-12": partial(exported_encoder, "conformer_encoder.ConformerEncoder", **relative),
        "onnx-conformer-legacy": partial(exported_encoder, "conformer_encoder.ConformerEncoder", **legacy),
        "onnx-transformer": partial(exported_encoder, "transformer_encoder.TransformerEncoder"),
        "onnx-contextual": partial(
            exported_encoder, "contextual_block_conformer_encoder.ContextualBlockConformerEncoder"
        ),
        "onnx-decoder": exported_decoder,
        "onnx-decoder-12": exported_decoder,
        "onnx-language": exported_language,
    }
    for name, make in made.items():
        yield Case(name, partial(export, name, make))

"""NeMo, by its own export: encoders of its recognisers (Conformer, FastConformer, in chunks with caches, with local attention) and
Canary's decoder."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import onnx
import torch

from corpus.case import Case, Made
from corpus.torch_export import Count
from corpus.torch_setup import without_compiled_torchaudio

WIDTH, HEADS, LAYERS, BINS = 32, 4, 2, 80
without_compiled_torchaudio()


def encoder(caches: bool = False, **more: Any) -> Any:
    from nemo.collections.asr.modules import ConformerEncoder

    small: dict[str, Any] = {"n_layers": LAYERS, "d_model": WIDTH, "n_heads": HEADS, "ff_expansion_factor": 2}
    fast = {
        "subsampling": "dw_striding",
        "subsampling_factor": 8,
        "subsampling_conv_channels": 16,
        "conv_kernel_size": 9,
    }
    made = ConformerEncoder(feat_in=BINS, pos_emb_max_len=200, **(small | fast | more))
    if caches:
        made.export_cache_support = True
        made.setup_streaming_params(chunk_size=16, shift_size=8, left_chunks=2)
    return made


def decoder() -> Any:
    """Canary's, with what its layers have made before."""
    from nemo.collections.asr.modules.transformer.transformer import TransformerDecoderNM

    made = TransformerDecoderNM(
        vocab_size=2048,
        hidden_size=WIDTH,
        num_layers=LAYERS,
        inner_size=48,
        num_attention_heads=HEADS,
        max_sequence_length=512,
        pre_ln=True,
    )
    return made


def transformer() -> Any:
    """Sortformer's, behind its encoder: it takes frames and a mask of them."""
    from nemo.collections.asr.modules.transformer.transformer_encoders import TransformerEncoder

    return TransformerEncoder(num_layers=LAYERS, hidden_size=WIDTH, inner_size=48, num_attention_heads=HEADS)


def export(name: str, make: Callable[[], Any], attentions: int, folder: Path) -> Iterable[Made]:
    """By the toolkit's own export: what it gives the exporter, and a longer sound beside a short one."""
    torch.manual_seed(0)
    model = make().eval()
    path = folder / "model.onnx"
    with torch.no_grad():
        model.export(str(path), onnx_opset_version=17)
    torch.manual_seed(1)
    given = [x for x in model.input_example() if isinstance(x, torch.Tensor)]
    names = [i.name for i in onnx.load(path).graph.input]
    feeds = {key: x.numpy() for key, x in zip(names, given, strict=True)}
    runs = {"inputs": feeds}
    if names == ["audio_signal", "length"]:
        sounds, lengths = torch.randn(2, BINS, 330), torch.tensor([330, 170], dtype=torch.int64)
        runs["two"] = {"audio_signal": sounds.numpy(), "length": lengths.numpy()}
    yield Made(name, path, attentions, f"{attentions // LAYERS} in each layer", runs)


def export_frames(name: str, folder: Path) -> Iterable[Made]:
    """A module that has no export of its own."""
    torch.manual_seed(0)
    model, path = transformer().eval(), folder / "model.onnx"
    frames, mask = torch.randn(2, 9, WIDTH), torch.ones(2, 9)
    mask[0, 5:] = 0
    with torch.no_grad(), Count() as seen:
        model(frames, mask)
    with torch.no_grad():
        torch.onnx.export(
            model,
            (frames, mask),
            path,
            input_names=["frames", "mask"],
            dynamic_axes={"frames": {0: "batch", 1: "time"}, "mask": {0: "batch", 1: "time"}},
            opset_version=17,
            dynamo=False,
        )
    feeds = {"frames": frames.numpy(), "mask": mask.numpy()}
    yield Made(name, path, seen.count, "counted while the module runs", {"inputs": feeds})


def cases() -> Iterator[Case]:
    chunked = {
        "att_context_size": [8, 3],
        "att_context_style": "chunked_limited",
        "causal_downsampling": True,
        "conv_context_size": "causal",
        "conv_norm_type": "layer_norm",
    }
    plain = {"subsampling": "striding", "subsampling_factor": 4, "conv_kernel_size": 31}
    made: dict[str, Callable[[], Any]] = {
        "conformer": partial(encoder, **plain),
        "conformer-absolute": partial(encoder, self_attention_model="abs_pos", **plain),
        "fastconformer": encoder,
        "fastconformer-sdpa": partial(encoder, use_pytorch_sdpa=True),
        "fastconformer-window": partial(encoder, att_context_size=[4, 4]),
        "fastconformer-local": partial(encoder, self_attention_model="rel_pos_local_attn", att_context_size=[4, 4]),
        "fastconformer-chunks": partial(encoder, **chunked),
        "fastconformer-caches": partial(encoder, caches=True, **chunked),
        "canary-decoder": decoder,
    }
    for name, make in made.items():
        yield Case(name, partial(export, name, make, LAYERS * (2 if make is decoder else 1)))
    yield Case("sortformer-transformer", partial(export_frames, "sortformer-transformer"))

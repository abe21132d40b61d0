"""icefall's Zipformer, as its own package exports it for sherpa: at once and in chunks with caches, for transducers and CTC."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch

from corpus.case import Case, Made
from corpus.torch_export import Count
from corpus.torch_setup import stand_in_for, without_compiled_torchaudio

WIDTH, BINS, VOCABULARY = (32, 48), 80, 64
without_compiled_torchaudio()
stand_in_for("atdataset", "kaldifst", "kaldialign", "ssentencepiece", "torch.utils.tensorboard")
stand_in_for("modelscope", "modelscope.hub", "modelscope.hub.snapshot_download")


def _encoder(causal: bool) -> tuple[Any, Any]:
    """The convolutions in front, and two stacks of layers, the second at half the rate."""
    from zipformer.modules.scaling import ScheduledFloat
    from zipformer.modules.subsampling import Conv2dSubsampling
    from zipformer.modules.zipformer import Zipformer

    embed = Conv2dSubsampling(in_channels=BINS, out_channels=WIDTH[0], dropout=ScheduledFloat((0.0, 0.0), (1.0, 0.0)))
    made = Zipformer(
        output_downsampling_factor=2,
        downsampling_factor=(1, 2),
        encoder_dim=WIDTH,
        num_encoder_layers=(1, 2),
        encoder_unmasked_dim=WIDTH,
        query_head_dim=(8,),
        pos_head_dim=(4,),
        value_head_dim=(6,),
        num_heads=(4,),
        feedforward_dim=(48,),
        cnn_module_kernel=(15,),
        pos_dim=16,
        dropout=0.0,
        causal=causal,
        chunk_size=(16,),
        left_context_frames=(32,),
    )
    return embed, made


def _whole(head: str) -> Any:
    from zipformer.modules.model import OnnxCtcWrapper, OnnxEncoderWrapper

    embed, encoder = _encoder(False)
    if head == "ctc":
        output = torch.nn.Sequential(torch.nn.Linear(max(WIDTH), VOCABULARY), torch.nn.LogSoftmax(dim=-1))
        return OnnxCtcWrapper(encoder, embed, output)
    return OnnxEncoderWrapper(encoder, embed, torch.nn.Linear(max(WIDTH), 24))


def _export_whole(name: str, make: Callable[[], Any], folder: Path) -> Iterable[Made]:
    torch.manual_seed(0)
    model = make().eval()
    x, lengths = torch.randn(2, 100, BINS), torch.tensor([100, 64], dtype=torch.int64)
    with torch.no_grad(), Count() as seen:
        model(x, lengths)
    path = folder / "model.onnx"
    with torch.no_grad():
        torch.onnx.export(
            model,
            (x, lengths),
            path,
            opset_version=13,
            input_names=["x", "x_lens"],
            output_names=["out", "out_lens"],
            dynamic_axes={"x": {0: "N", 1: "T"}, "x_lens": {0: "N"}, "out": {0: "N", 1: "T"}, "out_lens": {0: "N"}},
            dynamo=False,
        )
    runs = {
        "inputs": {"x": x.numpy(), "x_lens": lengths.numpy()},
        "longer": {"x": torch.randn(3, 131, BINS).numpy(), "x_lens": torch.tensor([131, 20, 99]).numpy()},
    }
    yield Made(name, path, seen.count * 3, "three products with values of each softmax", runs)


def _export_chunks(name: str, dynamic: bool, folder: Path) -> Iterable[Made]:
    """By the package's own function, which also writes names of caches."""
    from zipformer.bin.export import export_streaming_encoder_onnx
    from zipformer.modules.model import OnnxStreamingEncoderWrapper

    torch.manual_seed(0)
    embed, encoder = _encoder(True)
    forward = type(encoder).forward
    model = OnnxStreamingEncoderWrapper(encoder, embed, torch.nn.Linear(max(WIDTH), 24)).eval()
    path = folder / "model.onnx"
    whole = torch.onnx.export
    torch.onnx.export = partial(whole, dynamo=False)
    try:
        with torch.no_grad(), Count() as seen:
            export_streaming_encoder_onnx(model, str(path), BINS, dynamic, False, "encoder_out", {}, 13)
    finally:
        torch.onnx.export = whole
        type(encoder).forward = forward
    import onnx

    states = [torch.randn(s.shape) if s.is_floating_point() else s + 40 for s in model.get_init_states()]
    first = torch.randn(1, model.chunk_size * 2 + model.pad_length, BINS)
    names = [i.name for i in onnx.load(path).graph.input]
    runs = {
        what: {key: t.numpy() for key, t in zip(names, (first, *caches), strict=True)}
        for what, caches in (("first chunk", model.get_init_states()), ("chunk", states))
    }
    yield Made(name, path, seen.count * 3, "three products with values of each softmax", runs)


def cases() -> Iterator[Case]:
    for head in ("transducer", "ctc"):
        yield Case(head, partial(_export_whole, head, partial(_whole, head)))
    for dynamic in (False, True):
        name = f"chunks{'-batches' if dynamic else ''}"
        yield Case(name, partial(_export_chunks, name, dynamic))

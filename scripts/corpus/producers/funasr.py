"""FunASR: its own exports of recognisers (Paraformer, SenseVoice) and of models that restore punctuation, at once and in chunks."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from corpus.case import Case, Made
from corpus.torch_export import Count, Exporter
from corpus.torch_setup import without_compiled_torchaudio

WIDTH, HEADS, LAYERS, VOCABULARY = 32, 4, 2, 128
FRAMES = 560
"""What the toolkit's own examples of inputs have."""
Maker = Callable[[], tuple[Any, dict[str, Any]]]
COUNTED = "counted while the module runs"
without_compiled_torchaudio()


def _encoder(**more: Any) -> dict[str, Any]:
    small = {"output_size": WIDTH, "attention_heads": HEADS, "linear_units": 48, "num_blocks": LAYERS}
    return {**small, "input_layer": "pe", "kernel_size": 5, "selfattention_layer_type": "sanm", **more}


def _recogniser(
    kind: str, encoder: str = "SANMEncoder", decoder: str = "ParaformerSANMDecoder"
) -> tuple[Any, dict[str, Any]]:
    """A Paraformer: an encoder of frames, a predictor of how many tokens they are, a decoder of all tokens at once."""
    from funasr.register import tables

    import_models()
    more = {"chunk_size": [4, 8], "stride": [2, 4], "pad_left": [0, 0]} if "Chunk" in encoder else {}
    bias = kind in ("ContextualParaformer", "SeacoParaformer")
    width = 512 if bias else WIDTH  # what the toolkit's example of hot words has
    predictor = "CifPredictorV3" if kind in ("BiCifParaformer", "SeacoParaformer") else "CifPredictorV2"
    times = {"upsample_times": 3, "use_cif1_cnn": False, "upsample_type": "cnn_blstm"} if predictor[-1] == "3" else {}
    nothing_around = {"sanm_shfit": 0, "use_output_layer": False, "wo_input_layer": True}
    layers = {
        "attention_heads": HEADS,
        "linear_units": 48,
        "num_blocks": LAYERS,
        "att_layer_num": LAYERS,
        "kernel_size": 5,
    }
    made = {
        "encoder": encoder,
        "encoder_conf": _encoder(**more, output_size=width),
        "decoder": decoder,
        "decoder_conf": {**layers, "sanm_shfit": 0},
        "predictor": predictor,
        "predictor_conf": {
            "idim": width,
            "l_order": 1,
            "r_order": 1,
            "threshold": 1.0,
            "tail_threshold": 0.45,
            **times,
        },
        "input_size": FRAMES,
        "vocab_size": VOCABULARY,
        "ctc_weight": 0.0,
        "inner_dim": width,
        "bias_encoder_type": "lstm",
        "seaco_decoder": "ParaformerSANMDecoder",
        # Its export reads the sixth layer.
        "seaco_decoder_conf": layers | {"num_blocks": 6, "att_layer_num": 6} | nothing_around,
    }
    return tables.model_classes[kind](**made), made


def _sense_voice() -> tuple[Any, dict[str, Any]]:
    from funasr.register import tables

    import_models()
    made = {
        "encoder": "SenseVoiceEncoderSmall",
        "encoder_conf": _encoder(tp_blocks=LAYERS),
        "input_size": FRAMES,
        "vocab_size": VOCABULARY,
    }
    return tables.model_classes["SenseVoiceSmall"](**made), made


def _punctuation(kind: str, encoder: str) -> tuple[Any, dict[str, Any]]:
    from funasr.register import tables

    import_models()
    made = {
        "encoder": encoder,
        "encoder_conf": _encoder(input_size=WIDTH),
        "vocab_size": VOCABULARY,
        "punc_list": ["_", ",", "."],
        "embed_unit": WIDTH,
        "att_unit": WIDTH,
    }
    return tables.model_classes[kind](**made), made


def import_models() -> None:
    """Every file that registers what the configurations name."""
    from importlib import import_module

    for name in (
        *("paraformer.model", "paraformer.decoder", "paraformer.cif_predictor", "paraformer_streaming.model"),
        *("bicif_paraformer.model", "bicif_paraformer.cif_predictor", "contextual_paraformer.model"),
        *("contextual_paraformer.decoder", "seaco_paraformer.model", "sense_voice.model", "scama.encoder"),
        *("sanm.encoder", "ct_transformer.model", "ct_transformer_streaming.model", "ct_transformer_streaming.encoder"),
    ):
        import_module(f"funasr.models.{name}")


@contextlib.contextmanager
def _by(exporter: Exporter) -> Iterator[None]:
    """The toolkit does not say which of torch's exporters it wants: older releases of torch took TorchScript's."""
    whole = torch.onnx.export
    torch.onnx.export = partial(whole, dynamo=exporter == "dynamo")
    try:
        yield
    finally:
        torch.onnx.export = whole


def _export(name: str, make: Maker, exporter: Exporter, folder: Path) -> Iterable[Made]:
    """All files that the toolkit makes of a model."""
    from funasr.utils.export_utils import _onnx

    torch.manual_seed(0)
    model, config = make()
    parts = model.eval().export(type="onnx", device="cpu", output_dir=str(folder), max_seq_len=512, **config)
    for part in parts if isinstance(parts, list | tuple) else (parts,):
        part.eval()
        given = part.export_dummy_inputs()
        given = (given,) if isinstance(given, torch.Tensor) else tuple(given)
        with torch.no_grad(), Count() as seen:
            part(*given)
        with torch.no_grad(), _by(exporter):
            _onnx(part, export_dir=str(folder))
        called = part.export_name if isinstance(part.export_name, str) else part.export_name()
        path = folder / f"{called.removesuffix('.onnx')}.onnx"
        runs = dict(_runs(part.export_input_names(), given))
        # One softmax of the hot words' decoder is no attention: its probabilities choose among them.
        ranks = int(name.startswith("seaco") and path.stem == "model")
        yield Made(f"{name}-{path.stem}", path, seen.count - ranks, COUNTED, runs)


def _runs(names: list[str], given: tuple[torch.Tensor, ...]) -> Iterator[tuple[str, dict[str, Any]]]:
    """What the toolkit gives its exporter, in which the first of two sounds is short, and the last sound by itself."""
    arrays = {name: tensor.numpy() for name, tensor in zip(names, given, strict=True)}
    yield "inputs", arrays
    batch = len(next(iter(arrays.values())))
    if batch > 1 and all(x.ndim and len(x) == batch for x in arrays.values()):
        yield "one", {name: np.ascontiguousarray(x[-1:]) for name, x in arrays.items()}


def cases() -> Iterator[Case]:
    makers: dict[str, Maker] = {
        "paraformer": partial(_recogniser, "Paraformer"),
        "paraformer-streaming": partial(_recogniser, "ParaformerStreaming"),
        "paraformer-chunks": partial(_recogniser, "ParaformerStreaming", "SANMEncoderChunkOpt"),
        "bicif-paraformer": partial(_recogniser, "BiCifParaformer"),
        "contextual-paraformer": partial(_recogniser, "ContextualParaformer", decoder="ContextualParaformerDecoder"),
        "seaco-paraformer": partial(_recogniser, "SeacoParaformer"),
        "sense-voice": _sense_voice,
        "ct-transformer": partial(_punctuation, "CTTransformer", "SANMEncoder"),
        "ct-transformer-streaming": partial(_punctuation, "CTTransformerStreaming", "SANMVadEncoder"),
    }
    for name, make in makers.items():
        yield Case(name, partial(_export, name, make, "torchscript"))
    for name in ("sense-voice", "ct-transformer"):
        yield Case(f"{name}-dynamo", partial(_export, f"{name}-dynamo", makers[name], "dynamo"))

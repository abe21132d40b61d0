"""Models as large as those that people use, by their libraries' own configurations, with seeded random weights:

    PYTHON scripts/full_size/models.py DIR [--half] [WORD ...]

PYTHON is the interpreter of an environment that holds torch, timm, transformers, diffusers and ultralytics
(`scripts/corpus/environments.py` has their versions). Files that are there are not written again. With `--half` all numbers of
weights and inputs are f16."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, os.fspath(Path(__file__).parents[1]))
import corpus.torch_setup  # noqa: F401
from corpus.torch_export import Exporter, Positional, Tensors, sample, write

os.environ["YOLO_AUTOINSTALL"] = "false"
os.environ["YOLO_OFFLINE"] = "true"


@dataclass(frozen=True)
class Full:
    """A model and the shapes of its inputs. `axes`: dynamic ones, by input; `named`: inputs are given by name."""

    name: str
    make: Callable[[], Any]
    inputs: Mapping[str, tuple[int, ...]]
    types: Mapping[str, torch.dtype] = field(default_factory=dict)
    axes: Mapping[str, dict[int, str]] = field(default_factory=dict)
    exporter: Exporter = "torchscript"
    named: bool = False


TIMM = (
    ("vit_base_patch16_224", 224),
    ("deit_tiny_patch16_224", 224),
    ("vit_small_patch14_dinov2", 518),
    ("eva02_tiny_patch14_224", 224),
    ("beit_base_patch16_224", 224),
    ("swin_tiny_patch4_window7_224", 224),
    ("swinv2_tiny_window8_256", 256),
    ("convnext_tiny", 224),
    ("efficientnet_b0", 224),
    ("mobilenetv3_large_100", 224),
    ("mobilenetv4_conv_medium", 256),
    ("resnet50", 224),
    ("regnety_032", 224),
    ("densenet121", 224),
    ("mobilevit_s", 256),
    ("maxvit_tiny_tf_224", 224),
    ("coatnet_0_rw_224", 224),
    ("levit_256", 224),
    ("xcit_small_12_p16_224", 224),
    ("fastvit_t8", 256),
    ("efficientvit_b1", 224),
    ("davit_tiny", 224),
    ("mixer_b16_224", 224),
    ("pvt_v2_b1", 224),
    ("hiera_tiny_224", 224),
)
IDS = {"input_ids": torch.int64, "attention_mask": torch.int64}


def timm_model(name: str) -> Any:
    import timm

    return timm.create_model(name, pretrained=False, scriptable=False, exportable=True)


def text(kind: str, config: str, attention: str = "sdpa", **options: Any) -> Callable[[], Any]:
    def make() -> Any:
        import transformers

        made = getattr(transformers, config)(**options)
        made._attn_implementation = attention
        return getattr(transformers, kind)(made)

    return make


def yolo(config: str, kind: str = "YOLO") -> Callable[[], Any]:
    def make() -> Any:
        import ultralytics

        model = getattr(ultralytics, kind)(f"{config}.yaml").model.fuse()
        for part in model.modules():
            if hasattr(part, "export"):
                part.export, part.format = True, "onnx"
        return model

    return make


def decoder(kind: str, **options: Any) -> Callable[[], Any]:
    def make() -> Any:
        import diffusers

        vae = getattr(diffusers, kind)(**options)
        vae.forward = lambda latent: vae.decode(latent, return_dict=False)
        return vae

    return make


def part(kind: str, config: str, name: str) -> Callable[[], Any]:
    """Of a model with its library's defaults."""
    return lambda: getattr(text(kind, config, "eager")(), name)


def _sound(name: str, make: Callable[[], Any], *shape: int, along: int = 2) -> Full:
    """Frames to sound; they lie along this axis."""
    return Full(name, make, {"frames": shape}, axes={"frames": {0: "batch", along: "frames"}})


def _text(name: str, make: Callable[[], Any], length: int, *inputs: str, exporter: Exporter = "torchscript") -> Full:
    names = inputs or ("input_ids", "attention_mask")
    axes = {key: {0: "batch", 1: "sequence"} for key in names}
    return Full(name, make, {key: (1, length) for key in names}, IDS, axes, exporter, named=True)


MODELS = (
    *(Full(f"timm-{name}", lambda name=name: timm_model(name), {"x": (1, 3, side, side)}) for name, side in TIMM),
    _text("bert-base", text("BertModel", "BertConfig"), 128),
    _text("distilbert", text("DistilBertModel", "DistilBertConfig"), 128),
    _text(
        "minilm-l6",
        text(
            "BertModel",
            "BertConfig",
            hidden_size=384,
            num_hidden_layers=6,
            num_attention_heads=12,
            intermediate_size=1536,
        ),
        128,
    ),
    _text(
        "deberta-v3-small",
        text(
            "DebertaV2Model",
            "DebertaV2Config",
            "eager",
            vocab_size=128100,
            hidden_size=768,
            num_hidden_layers=6,
            num_attention_heads=12,
            intermediate_size=3072,
            relative_attention=True,
            position_buckets=256,
            norm_rel_ebd="layer_norm",
            share_att_key=True,
            pos_att_type=["p2c", "c2p"],
            max_relative_positions=-1,
            type_vocab_size=0,
            position_biased_input=False,
        ),
        128,
    ),
    _text("modernbert-base", text("ModernBertModel", "ModernBertConfig"), 128),
    _text("t5-small-encoder", text("T5EncoderModel", "T5Config"), 128),
    _text("gpt2", text("GPT2LMHeadModel", "GPT2Config", use_cache=False), 128),
    Full(
        "clip-vision",
        text("CLIPVisionModel", "CLIPVisionConfig"),
        {"pixel_values": (1, 3, 224, 224)},
        named=True,
    ),
    Full(
        "whisper-base-encoder",
        lambda: (
            text(
                "WhisperModel",
                "WhisperConfig",
                d_model=512,
                encoder_layers=6,
                encoder_attention_heads=8,
                encoder_ffn_dim=2048,
                decoder_attention_heads=8,
                decoder_layers=1,
            )().encoder
        ),
        {"input_features": (1, 80, 3000)},
        named=True,
    ),
    Full(
        "wav2vec2-base",
        text("Wav2Vec2Model", "Wav2Vec2Config"),
        {"input_values": (1, 32000)},
        axes={"input_values": {0: "batch", 1: "samples"}},
        named=True,
    ),
    _sound("hifigan", text("SpeechT5HifiGan", "SpeechT5HifiGanConfig", "eager"), 1, 60, 80, along=1),
    _sound("vits-decoder", part("VitsModel", "VitsConfig", "decoder"), 1, 192, 60),
    _sound("dac-decoder", part("DacModel", "DacConfig", "decoder"), 1, 1024, 60),
    _sound("encodec-decoder", part("EncodecModel", "EncodecConfig", "decoder"), 1, 128, 60),
    Full(
        "segformer-b0",
        text("SegformerForSemanticSegmentation", "SegformerConfig"),
        {"pixel_values": (1, 3, 512, 512)},
        named=True,
    ),
    Full(
        "dpt-dinov2-like",
        text("Dinov2Model", "Dinov2Config", hidden_size=384, num_attention_heads=6),
        {"pixel_values": (1, 3, 224, 224)},
        named=True,
    ),
    *(
        Full(name, yolo(name), {"images": (1, 3, 640, 640)})
        for name in ("yolov8n", "yolo11n", "yolo12n", "yolov5nu", "yolo11n-seg")
    ),
    Full("rtdetr-l", yolo("rtdetr-l", "RTDETR"), {"images": (1, 3, 640, 640)}),
    Full(
        "sd-vae-decoder",
        decoder(
            "AutoencoderKL",
            down_block_types=("DownEncoderBlock2D",) * 4,
            up_block_types=("UpDecoderBlock2D",) * 4,
            block_out_channels=(128, 256, 512, 512),
            layers_per_block=2,
            latent_channels=4,
            sample_size=256,
        ),
        {"latent": (1, 4, 32, 32)},
    ),
    Full("taesd-decoder", decoder("AutoencoderTiny"), {"latent": (1, 4, 64, 64)}),
)


def build(model: Full, folder: Path, *, half: bool = False) -> Path:
    """Writes the file, unless it is there: with external weights where they pass what a file may hold. `half`: in f16."""
    path = folder / f"{model.name}.onnx"
    if path.exists():
        return path
    torch.manual_seed(0)
    torch.backends.mha.set_fastpath_enabled(False)
    made, kind = model.make().eval(), torch.float16 if half else torch.float32
    made = made.half() if half else made
    given = {key: sample(shape, model.types.get(key, kind)) for key, shape in model.inputs.items()}
    if "attention_mask" in given:
        given["attention_mask"] = torch.ones_like(given["attention_mask"])
    wrapped = (Tensors if model.named else Positional)(made, list(given))
    axes = dict(model.axes) or {key: {0: "batch"} for key in model.inputs}
    with torch.no_grad():
        write(wrapped, given, axes, model.exporter, path)
    return path


def main() -> None:
    (first, *words), half = [word for word in sys.argv[1:] if word != "--half"], "--half" in sys.argv
    folder = Path(first)
    folder.mkdir(parents=True, exist_ok=True)
    for model in MODELS:
        if words and not any(word in model.name for word in words):
            continue
        try:
            build(model, folder, half=half)
            print("ok", model.name, flush=True)
        except Exception as error:
            print("failed", model.name, type(error).__name__, str(error)[:300].replace("\n", " "), flush=True)


if __name__ == "__main__":
    main()

"""ultralytics: detectors by its own exporter, and the parts of its Segment Anything with attention by torch's."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import onnx
import torch

from corpus.case import Case, Made
from corpus.feeds import Run, runs_of
from corpus.torch_export import Module, cases_of

os.environ["YOLO_AUTOINSTALL"] = "false"
os.environ["YOLO_OFFLINE"] = "true"
WIDTH = 48
ATTENTIONS = ("Attention", "AAttn", "MultiheadAttention")
"""Names of its classes of attention, and torch's. The softmaxes over points of its deformable attention and over the bins of a box
are none."""
RUNS = (Run("batch", side=64), Run("wide", batch=1, sizes={"height": 64, "width": 96}))


def cases() -> Iterator[Case]:
    for name in ("yolov10n", "yolo11n", "yolo12n", "yolo26n"):
        for way, options in {
            "": {},
            "-dynamic": {"dynamic": True},
            "-dynamic-slim": {"dynamic": True, "simplify": True},
        }.items():
            yield Case(f"{name}{way}", partial(detector, f"{name}{way}", f"{name}.yaml", options))
    for name in ("yolo11n-seg", "yolo11n-cls", "yolo12n-pose", "yolo26n-seg", "yolov8n-world", "yolov8n-worldv2"):
        yield Case(name, partial(detector, name, f"{name}.yaml", {"simplify": True}))
    yield Case("yolo11n-opset12", partial(detector, "yolo11n-opset12", "yolo11n.yaml", {"opset": 12}))
    for way, options in {"": {}, "-dynamic-slim": {"dynamic": True, "simplify": True}}.items():
        yield Case(f"rtdetr{way}", partial(rtdetr, f"rtdetr{way}", options))
    yield from cases_of(
        [
            Module("sam2-hiera", hiera, {"image": (2, 3, 64, 64)}),
            Module("sam2-hiera-dynamo", hiera, {"image": (1, 3, 64, 64)}, axes={"image": {}}, exporters=("dynamo",)),
            Module("mobile-sam", tiny, {"image": (2, 3, 64, 64)}),
            Module(
                "sam2-masks",
                two_way,
                {"image": (2, WIDTH, 6, 6), "places": (2, WIDTH, 6, 6), "points": (2, 5, WIDTH)},
                exporters=("torchscript", "dynamo"),
            ),
        ]
    )


def detector(name: str, config: str, options: dict[str, Any], folder: Path) -> Iterable[Made]:
    """A detector's file, as `yolo export` writes it."""
    from ultralytics import YOLO

    yield from exported(name, YOLO, config, options, folder)


def exported(name: str, kind: Any, config: str, options: dict[str, Any], folder: Path) -> Iterator[Made]:
    torch.manual_seed(0)
    model = kind(config)
    model.model.pt_path = os.fspath(folder / "model.pt")
    model.model.yaml_file = os.fspath(folder / "model.yaml")
    here = Path.cwd()
    os.chdir(folder)
    try:
        path = Path(model.export(format="onnx", imgsz=64, **({"simplify": False} | options))).resolve()
    finally:
        os.chdir(here)
    attentions = sum(type(module).__name__ in ATTENTIONS for module in model.model.modules())
    yield Made(name, path, attentions, "counted among its modules", runs_of(onnx.load(path), RUNS))


def rtdetr(name: str, options: dict[str, Any], folder: Path) -> Iterable[Made]:
    """RT-DETR with few channels and two decoder layers."""
    import yaml
    from ultralytics import RTDETR
    from ultralytics.cfg import __file__ as configs

    text = (Path(configs).parent / "models" / "rt-detr" / "rtdetr-resnet50.yaml").read_text()
    config = yaml.safe_load(text.replace("256", "64").replace("[1024, 8]", "[128, 8]"))
    config["backbone"] = [
        [-1, 1, "ResNetLayer", [3, 16, 1, True, 1]],
        *[[-1, 1, "ResNetLayer", [a, b, 2, False, 1]] for a, b in ((16, 16), (64, 16), (64, 16), (64, 16))],
    ]
    config["head"][-1] = [[16, 19, 22], 1, "RTDETRDecoder", ["nc", 64, 30, 4, 8, 2, 128]]
    path = folder / "rtdetr-tiny.yaml"
    path.write_text(yaml.safe_dump(config))
    yield from exported(name, RTDETR, os.fspath(path), options, folder)


def hiera() -> Any:
    """SAM 2's image encoder: windows, and queries that are pooled."""
    from ultralytics.models.sam.modules.encoders import Hiera

    return Hiera(
        embed_dim=16,
        stages=(1, 2, 2),
        q_pool=2,
        window_pos_embed_bkg_spatial_size=(4, 4),
        window_spec=(4, 2, 4),
        global_att_blocks=(4,),
    )


def tiny() -> Any:
    """MobileSAM's image encoder: attention in windows with a learned bias."""
    from ultralytics.models.sam.modules.tiny_encoder import TinyViT

    return TinyViT(
        img_size=64,
        embed_dims=(16, 32, 48),
        depths=(1, 2, 1),
        num_heads=(1, 2, 4),
        window_sizes=(2, 3, 4),
    )


def two_way() -> Any:
    """SAM 2's mask decoder."""
    from ultralytics.models.sam.modules.transformer import TwoWayTransformer

    return TwoWayTransformer(depth=2, embedding_dim=WIDTH, num_heads=4, mlp_dim=WIDTH)

"""RF-DETR: a DINOv2 whose layers attend in windows, and a decoder of deformable attention, in the form that it exports."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from corpus.case import Case
from corpus.torch_export import BOTH, Call, Module, cases_of

SIDE, LAYERS = 64, 4
SMALL: dict[str, Any] = {"pretrain_weights": None, "device": "cpu", "resolution": SIDE, "hidden_dim": 32}
SMALL |= {"sa_nheads": 4, "ca_nheads": 4, "dec_layers": 2, "num_queries": 10, "num_select": 10, "num_classes": 4}
SMALL |= {"out_feature_indexes": [2, LAYERS]}


def detector(name: str, options: dict[str, Any]) -> Any:
    """The detector with a backbone of a few narrow layers."""
    import rfdetr.config
    from rfdetr.models.backbone import dinov2
    from rfdetr.models.lwdetr import build_model_from_config

    whole = dinov2.get_config
    narrow = {"hidden_size": 48, "num_hidden_layers": LAYERS, "num_attention_heads": 4}
    dinov2.get_config = lambda size, registers: whole(size, registers) | narrow
    dinov2.size_to_width["small"] = narrow["hidden_size"]
    made = build_model_from_config(getattr(rfdetr.config, name)(**SMALL, **options)).eval()
    made.export()
    return Call(made, lambda m, image: tuple(m(image)))


def cases() -> Iterator[Case]:
    of_backbone = f"{LAYERS} layers of the backbone and 2 of the decoder; the other softmaxes weigh sampled points"
    patches = {"patch_size": 16, "positional_encoding_size": SIDE // 16}
    modules = [
        Module(
            name,
            partial(detector, config, options),
            {"image": (2, 3, SIDE, SIDE)},
            LAYERS + 2,
            of_backbone,
            axes=axes,
            exporters=BOTH,
        )
        for name, config, options, axes in (
            ("nano", "RFDETRNanoConfig", patches, {}),
            ("nano-fixed", "RFDETRNanoConfig", patches, {"image": {}}),
            ("whole", "RFDETRNanoConfig", patches | {"num_windows": 1}, {}),
            ("base", "RFDETRBaseConfig", patches | {"num_windows": 4}, {"image": {}}),
            ("masks", "RFDETRSegNanoConfig", {"patch_size": 16, "positional_encoding_size": 4, "num_windows": 2}, {}),
        )
    ]
    return cases_of(modules)

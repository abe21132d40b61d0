"""spandrel: super-resolution and restoration networks, with attention in windows, in stripes, over channels, and to tokens."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from importlib import import_module
from typing import Any

from corpus.case import Case
from corpus.feeds import Run
from corpus.torch_export import BOTH, Exporter, Module, cases_of

WINDOWED: dict[str, Any] = {"img_size": 16, "embed_dim": 24, "depths": (2,), "num_heads": (2,), "window_size": 8}
SCALED = WINDOWED | {"upscale": 2, "upsampler": "pixelshuffle"}

ROUGH = {"embed_dim": 32, "num_res_blocks": 1, "attn_resolutions": (8,), "z_channels": 32, "head_size": 4}


def network(package: str, name: str, options: dict[str, Any]) -> Any:
    """A network of spandrel, or of spandrel_extra_arches."""
    return getattr(import_module(f"{package}.architectures.{name}"), name)(**options)


def cases() -> Iterator[Case]:
    """Names, options, the side of the image, and exporters."""
    wide: dict[str, Any] = {"embed_dim": 64, "num_heads": (2,), "upscale": 2}
    listed: tuple[tuple[str, dict[str, Any], int, tuple[Exporter, ...]], ...] = (
        ("SwinIR", SCALED, 16, BOTH),
        ("Swin2SR", SCALED, 16, BOTH),
        ("HAT", SCALED | {"compress_ratio": 3, "squeeze_factor": 8}, 16, BOTH),
        ("DRCT", SCALED | {"gc": 8}, 16, BOTH),
        ("DAT", wide | {"img_size": 16, "split_size": (4, 8), "depth": (2,)}, 16, BOTH),
        ("RGT", wide | {"img_size": 16, "split_size": (4, 8), "depth": (4,)}, 16, BOTH),
        ("OmniSR", {"num_feat": 16, "res_num": 1, "up_scale": 2}, 16, BOTH),
        (
            "GRL",
            {
                "img_size": 16,
                "embed_dim": 24,
                "upscale": 2,
                "upsampler": "pixelshuffle",
                "depths": [2],
                "num_heads_window": [2],
                "num_heads_stripe": [2],
                "stripe_size": [8, 8],
                "stripe_groups": [None, None],
                "stripe_shift": True,
                "anchor_window_down_factor": 2,
            },
            16,
            BOTH,
        ),
        (
            "Uformer",
            {"img_size": 64, "embed_dim": 8, "depths": [1] * 9, "num_heads": [1, 2, 2, 4, 4, 4, 2, 2, 1], "win_size": 4}
            | {"modulator": True},
            64,
            ("torchscript",),
        ),
        ("SCUNet", {"config": [1] * 7, "dim": 64, "input_resolution": 64}, 64, ("torchscript",)),
        ("RetinexFormer", {"n_feat": 12, "stage": 1, "num_blocks": [1, 1, 1]}, 32, BOTH),
        ("IPT", {"patch_size": 12, "n_feats": 8, "num_heads": 4, "num_layers": 2, "scale": [2]}, 12, ("dynamo",)),
        ("DITN", {"dim": 12, "ITL_blocks": 1, "SAL_blocks": 1, "upscale": 2}, 16, BOTH),
        ("CRAFT", {"depths": [2], "num_heads": [6]}, 32, BOTH),
        ("FDAT", {"embed_dim": 24, "num_groups": 1, "depth_per_group": 2, "num_heads": 2, "mid_dim": 16}, 16, BOTH),
        ("HVICIDNet", {"channels": [12, 12, 24, 48]}, 32, ("torchscript",)),
        ("DCTLSA", {"nf": 55, "upscale": 2}, 16, BOTH),
        ("RestoreFormer", {"n_embed": 32, "ch": 32, "ch_mult": (1, 2), "resolution": 16} | ROUGH, 16, ("torchscript",)),
    )
    extra: tuple[tuple[str, dict[str, Any], int, tuple[Exporter, ...]], ...] = (
        ("Restormer", {"dim": 8, "num_blocks": [1, 1, 1, 1], "num_refinement_blocks": 1}, 32, BOTH),
        ("SRFormer", SCALED, 16, BOTH),
    )
    counts: dict[str, tuple[int, str]] = {
        "DCTLSA": (0, "its attention is linear"),
        "HVICIDNet": (11, "six pairs of attentions, of which nothing reads the result of one"),
    }
    modules = [
        Module(
            name.lower(),
            partial(network, package, name, options),
            {"image": (2, 3, side, side)},
            *counts.get(name, (None, "")),
            exporters=exporters,
        )
        for package, rows in (("spandrel", listed), ("spandrel_extra_arches", extra))
        for name, options, side, exporters in rows
    ]
    sides = {"image": {0: "batch", 2: "height", 3: "width"}}
    runs = (Run("image", side=16), Run("another", batch=1, side=32))
    modules += [
        replace(module, name=f"{module.name}-sides", axes=sides, runs=runs)
        for module in modules
        if module.name in ("swinir", "hat", "restormer", "retinexformer", "fdat", "ditn", "omnisr")
    ]
    return cases_of(modules)

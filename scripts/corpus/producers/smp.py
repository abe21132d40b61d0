"""segmentation_models_pytorch: Mix Transformers in front of its decoders."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from importlib import import_module
from typing import Any

from corpus.case import Case
from corpus.torch_export import BOTH, Module, cases_of


def network(name: str, encoder: str, options: dict[str, Any]) -> Any:
    library = import_module("segmentation_models_pytorch")
    return getattr(library, name)(encoder, encoder_weights=None, classes=2, **options)


def cases() -> Iterator[Case]:
    image = {"image": (2, 3, 64, 64)}
    listed: tuple[tuple[str, str, str, dict[str, Any]], ...] = (
        ("segformer-mit", "Segformer", "mit_b0", {}),
        ("unet-mit", "Unet", "mit_b0", {}),
    )
    modules = [
        Module(name, partial(network, model, encoder, options), image, exporters=BOTH)
        for name, model, encoder, options in listed
    ]
    return cases_of(modules)

"""demucs: the transformer of HTDemucs, which separates music: layers within spectrum and waveform, and layers across both."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from corpus.case import Case
from corpus.torch_export import BOTH, Module, cases_of
from corpus.torch_setup import stand_in_for

stand_in_for("julius", "openunmix", "openunmix.filtering")  # resample, and estimate sources
HYBRID = {"spectrum": (2, 32, 4, 6), "sound": (2, 32, 15)}


def encoder(**options: Any) -> Any:
    from demucs.transformer import CrossTransformerEncoder

    return CrossTransformerEncoder(dim=32, num_heads=4, hidden_scale=2.0, **options)


def cases() -> Iterator[Case]:
    kinds: dict[str, dict[str, Any]] = {
        "hybrid": {"num_layers": 3, "layer_scale": True},
        "hybrid-norm-first": {"num_layers": 3, "norm_first": True, "norm_out": True, "layer_scale": True},
        "hybrid-cross-first": {"num_layers": 2, "cross_first": True, "group_norm": True},
        "hybrid-scaled": {"num_layers": 3, "emb": "scaled"},
        "hybrid-learned": {"num_layers": 2, "emb": "cape", "cape_augment": False},
    }
    return cases_of(
        Module(name, partial(encoder, **options), HYBRID, exporters=BOTH) for name, options in kinds.items()
    )

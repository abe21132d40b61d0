"""MultiMolecule: some twenty language models of DNA, RNA and proteins, each with the attention of its authors, with a dynamic batch
and length. Padding is said by a mask."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from functools import partial
from importlib import import_module
from typing import Any

import torch

from corpus.case import Case
from corpus.feeds import ENCODER
from corpus.torch_export import BOTH, Exporter, Module, cases_of

SIZES: dict[str, Any] = {
    "hidden_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 96,
    "max_position_embeddings": 64,
    "vocab_size": 64,
}
DYNAMO: tuple[Exporter, ...] = ("dynamo",)
SCRIPT: tuple[Exporter, ...] = ("torchscript",)
EXPORTERS: dict[str, tuple[Exporter, ...]] = {
    "ablang": SCRIPT,
    "ablang2": DYNAMO,  # TorchScript writes Reshapes that onnxruntime refuses
    "amplify": DYNAMO,
    "dnabert": BOTH,
    "dnabert2": BOTH,
    "dnaberts": BOTH,
    "esmc": BOTH,
    "progen2": DYNAMO,
    "proteinbert": BOTH,
    "ribonanzanet": BOTH,
    "rinalmo": BOTH,
    "rnabert": BOTH,
    "rnaernie": BOTH,
    "rnafm": BOTH,
    "rnamsm": BOTH,
    "splicebert": BOTH,
    "utrbert": BOTH,
    "utrlm": BOTH,
}
"""What takes each model."""
OWN: dict[str, dict[str, Any]] = {"progen2": {"rotary_dim": 4}}
"""Options of some models beside their sizes."""


ATTENTIONS = {"proteinbert": (1, "the last layer's makes what is said of the whole sequence, which is not asked for")}
"""Where not all that run make the result."""


class Hidden(torch.nn.Module):
    """The last hidden state."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        hidden: torch.Tensor = self.model(ids, mask).last_hidden_state
        return hidden


def encoder(name: str) -> Hidden:
    """A model with the sizes that its configuration knows."""
    module = import_module(f"multimolecule.models.{name}")
    own = {n: c for n, c in vars(module).items() if getattr(c, "__module__", "").startswith(module.__name__)}
    config = next(c for n, c in own.items() if n.endswith("Config"))
    model = next(c for n, c in own.items() if n.endswith("Model") and "PreTrained" not in n)
    known = inspect.signature(config).parameters
    made = model(config(**{k: v for k, v in SIZES.items() if k in known}, **OWN.get(name, {})))
    made.config.use_cache = False
    return Hidden(made)


def cases() -> Iterator[Case]:
    names = ("input_ids", "attention_mask")
    shapes, types = dict.fromkeys(names, (2, 7)), dict.fromkeys(names, torch.int64)
    free = {name: {0: "batch", 1: "sequence"} for name in names}
    return cases_of(
        Module(
            name,
            partial(encoder, name),
            shapes,
            *ATTENTIONS.get(name, (None, "")),
            types,
            free,
            exporters=exporters,
            runs=ENCODER,
        )
        for name, exporters in EXPORTERS.items()
    )

"""openai-whisper's own modules, with attention written out and as torch's."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch

from corpus.case import Case
from corpus.feeds import Run
from corpus.torch_export import BOTH, Exporter, Module, cases_of

WIDTH, FRAMES, TEXT, LAYERS, HEADS = 48, 20, 24, 2, 4
DYNAMO: tuple[Exporter, ...] = ("dynamo",)
"""Of torch's own attention alone: whether it is causal is asked of the length, which is no number in TorchScript."""


class Spelled(torch.nn.Module):
    """A module whose attention is written out, or is torch's."""

    def __init__(self, module: Any, written_out: bool) -> None:
        super().__init__()
        self.module, self.written_out = module, written_out

    def forward(self, *inputs: torch.Tensor) -> Any:
        from whisper.model import MultiHeadAttention

        before, MultiHeadAttention.use_sdpa = MultiHeadAttention.use_sdpa, not self.written_out
        try:
            return self.module(*inputs)
        finally:
            MultiHeadAttention.use_sdpa = before


def model() -> Any:
    from whisper.model import ModelDimensions, Whisper

    made = Whisper(ModelDimensions(16, FRAMES, WIDTH, HEADS, LAYERS, 96, TEXT, WIDTH, HEADS, LAYERS))
    torch.nn.init.normal_(made.decoder.positional_embedding, std=0.1)
    return made


def part(name: str, written_out: bool) -> Any:
    made = model()
    return Spelled(made if name == "whole" else getattr(made, name), written_out)


def cases() -> Iterator[Case]:
    sound, heard, ids = {"mel": (2, 16, 2 * FRAMES)}, {"heard": (2, FRAMES, WIDTH)}, {"ids": (2, 7)}
    text = {"ids": torch.int64}
    batch = {0: "batch"}
    both = {"ids": {0: "batch", 1: "length"}, "heard": batch}
    modules = []
    for written_out in (True, False):
        way = "-written-out" if written_out else ""
        modules += [
            Module(f"encoder{way}", partial(part, "encoder", written_out), sound, exporters=BOTH),
            Module(
                f"decoder{way}",
                partial(part, "decoder", written_out),
                ids | heard,
                types=text,
                axes=both if written_out else {name: batch for name in both},
                exporters=BOTH if written_out else DYNAMO,
                runs=(Run("text"), Run("short", batch=1, length=3)),
            ),
            Module(
                f"whole{way}",
                partial(part, "whole", written_out),
                sound | ids,
                types=text,
                axes={"mel": batch, "ids": both["ids"] if written_out else batch},
                exporters=("torchscript",) if written_out else DYNAMO,
            ),
        ]
    return cases_of(modules)

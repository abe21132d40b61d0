"""Models exported under torch.autocast: products in f16 or bf16 between casts, softmaxes and norms in f32."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import onnx
import torch

from corpus import hf_models
from corpus.case import Case, Made
from corpus.feeds import runs_of
from corpus.producers.torchscript import Tensors, arguments, runs_for

TYPES = {"half": torch.float16, "bfloat": torch.bfloat16}
FAMILIES = ("bert", "gpt2", "llama", "t5", "vit", "swin", "clip", "deberta-v2", "gemma2", "segformer", "wav2vec2")


class Mixed(torch.nn.Module):
    """A model that runs under autocast, whose results are f32."""

    def __init__(self, model: Any, kind: torch.dtype) -> None:
        super().__init__()
        self.model, self.kind = model, kind

    def forward(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        with torch.autocast("cpu", dtype=self.kind, cache_enabled=False):
            results = self.model(*tensors)
        return tuple(x.float() if x.is_floating_point() else x for x in results)


def export(model_type: str, spelling: str, type_name: str, dynamo: bool, folder: Path) -> Iterable[Made]:
    """One model; the batch and lengths are dynamic in TorchScript alone."""
    tiny = hf_models.find(model_type)
    model = hf_models.make(tiny, attn_implementation=spelling)
    given, axes = arguments(tiny, model, False)
    path = folder / "model.onnx"
    mixed = Mixed(Tensors(model, list(given)), TYPES[type_name])
    how: dict[str, Any] = {"dynamo": True, "external_data": False, "verbose": False}
    if not dynamo:
        how = {"dynamo": False, "opset_version": 17, "dynamic_axes": axes}
    with torch.no_grad():
        torch.onnx.export(mixed, tuple(given.values()), path, input_names=list(given), **how)
    name = "-".join([model_type, spelling, type_name, *(["dynamo"] if dynamo else [])])
    attentions = tiny.attentions + tiny.decoder
    yield Made(name, path, attentions, tiny.why, runs_of(onnx.load(path), runs_for(tiny, False)))


def cases() -> Iterator[Case]:
    for model_type in FAMILIES:
        spellings = ("eager",) if model_type in ("t5", "deberta-v2", "gemma2") else ("sdpa", "eager")
        for spelling in spellings:
            for type_name in TYPES:
                for dynamo in (False, True) if model_type in ("bert", "gpt2", "llama", "vit", "t5") else (False,):
                    name = "-".join([model_type, spelling, type_name, *(["dynamo"] if dynamo else [])])
                    yield Case(name, partial(export, model_type, spelling, type_name, dynamo))

"""Exports of transformers by both of torch's exporters, changed: quantised, in float16, by onnxslim, by onnxsim."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory

import onnx
import torch

from corpus import hf_models
from corpus.after_export import CHANGES, fused
from corpus.case import Case, Made
from corpus.feeds import runs_of
from corpus.producers import torchscript


@dataclass(frozen=True)
class Source:
    """An export. `opset` 0 is torch.export's, with the opset that it takes; `fused`: what onnxruntime's optimiser for transformers
    is told that it is, "" where it does not run first."""

    model_type: str
    attention: str = "sdpa"
    past: bool = False
    opset: int = 17
    fused: str = ""

    @property
    def name(self) -> str:
        exporter = f"opset{self.opset}" if self.opset else "dynamo"
        parts = [self.model_type, *(["past"] if self.past else []), self.attention, exporter]
        return "-".join(parts + (["fused"] if self.fused else []))


EVERY = tuple(CHANGES)
FEW = ("dynamic", "qdq", "half", "mixed", "slim", "simple")
SOURCES: tuple[tuple[Source, tuple[str, ...]], ...] = (
    (Source("bert"), EVERY),
    (Source("llama", past=True), EVERY),
    (Source("vit", "eager"), EVERY),
    (Source("t5", "eager"), EVERY),
    (Source("bert", opset=0), EVERY),
    (Source("llama", past=True, opset=0), FEW),
    (Source("vit", opset=0), FEW),
    (Source("gpt2", "eager", past=True, opset=13), FEW),
    (Source("swin"), FEW),
    (Source("clip", "eager", opset=14), FEW),
    (Source("bart", "eager", opset=12), FEW),
    (Source("wav2vec2", "eager", opset=11), FEW),
    (Source("deberta-v2", "eager"), FEW),
    (Source("gemma2", "eager", past=True), FEW),
    (Source("bert", "eager", fused="bert"), ("qdq", "4bit", "half", "ort-half", "slim", "simple")),
    (Source("gpt2", "eager", past=True, fused="gpt2"), ("half", "slim")),
    (Source("vit", "eager", fused="vit"), ("qdq", "half", "slim")),
)


def cases() -> Iterator[Case]:
    for source, changes in SOURCES:
        for change in changes:
            yield Case(f"{source.name}-{change}", partial(build, source, change))


def build(source: Source, change: str, folder: Path) -> Iterable[Made]:
    """One file. The inputs are those of the export, in the types of the file."""
    tiny = hf_models.find(source.model_type)
    model, attentions = exported(source)
    path = folder / "exported.onnx"
    onnx.save(model, path)
    runs = torchscript.runs_for(tiny, source.past)
    done = CHANGES[change](path, folder, runs_of(model, runs))
    yield Made(f"{source.name}-{change}", done, attentions, tiny.why, runs_of(done, runs))


@cache
def exported(source: Source) -> tuple[onnx.ModelProto, int]:
    """The export of a source, and its attentions."""
    tiny = hf_models.find(source.model_type)
    with TemporaryDirectory() as scratch:
        folder = Path(scratch)
        if source.opset:
            list(torchscript.export(tiny, source.attention, source.past, source.opset, folder))
            path = folder / "model.onnx"
        else:
            path = by_dynamo(source, folder)
        model = fused(path, folder, {}, source.fused) if source.fused else onnx.load(path)
    return model, tiny.attentions + tiny.decoder


def by_dynamo(source: Source, folder: Path) -> Path:
    """torch.export's file."""
    tiny = hf_models.find(source.model_type)
    model = hf_models.make(tiny, attn_implementation=source.attention)
    given, axes = torchscript.arguments(tiny, model, source.past)
    names = {"past_sequence + sequence": "total_sequence"}
    shapes = tuple({axis: names.get(word, word) for axis, word in axes[name].items()} for name in given)
    path = folder / "model.onnx"
    with torch.no_grad():
        torch.onnx.export(
            torchscript.Tensors(model, list(given)),
            tuple(given.values()),
            path,
            input_names=list(given),
            dynamic_shapes=(shapes,),
            external_data=False,
            verbose=False,
        )
    return path

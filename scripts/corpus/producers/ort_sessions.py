"""Models that onnxruntime saved from a session: optimised at one of its levels, for the CPU."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path

import onnx
import onnxruntime

from corpus import hf_models
from corpus.case import Case, Made
from corpus.feeds import runs_of
from corpus.producers import torchscript

LEVELS = {
    "basic": onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC,
    "extended": onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED,
    "all": onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL,
}
SOURCES = (
    ("bert", False),
    ("distilbert", False),
    ("deberta", False),
    ("gpt2", False),
    ("gpt2", True),
    ("llama", True),
    ("t5", False),
    ("bart", False),
    ("vit", False),
    ("swin", False),
    ("clip", False),
)
"""Models of transformers, and whether they have a cache."""


def cases() -> Iterator[Case]:
    for model_type, past in SOURCES:
        for attention in ("eager", "sdpa") if model_type in ("bert", "vit", "gpt2") else ("eager",):
            for level in LEVELS:
                name = "-".join([model_type, *(["past"] if past else []), attention, level])
                yield Case(name, partial(save, name, model_type, past, attention, level))


def save(name: str, model_type: str, past: bool, attention: str, level: str, folder: Path) -> Iterable[Made]:
    """The model that a session of this level wrote."""
    tiny = hf_models.find(model_type)
    (source,) = torchscript.export(tiny, attention, past, 17, folder)
    path = folder / "saved.onnx"
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = LEVELS[level]
    options.optimized_model_filepath = os.fspath(path)
    onnxruntime.InferenceSession(os.fspath(source.model), options, providers=["CPUExecutionProvider"])
    yield Made(name, path, source.attentions, source.why, runs_of(onnx.load(path), torchscript.runs_for(tiny, past)))

"""onnxruntime.transformers.optimizer on TorchScript exports: com.microsoft's ops, and no declared shapes."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import onnx

from corpus import hf_models
from corpus.case import Case, Made
from corpus.feeds import runs_of
from corpus.producers import torchscript


@dataclass(frozen=True)
class Way:
    """What the optimizer is told. `level`: of onnxruntime's own optimizer, which runs first (0: none)."""

    name: str
    level: int = 0
    half: bool = False
    options: tuple[str, ...] = ()
    """Names of the FusionOptions that are set to true; with a leading "-", to false."""


PLAIN = Way("plain")
WAYS = (
    PLAIN,
    Way("level1", 1),
    Way("level2", 2),
    Way("mha", options=("use_multi_head_attention",)),
    Way("half", half=True),
    Way("raw-mask", options=("use_raw_attention_mask",)),
    Way("no-attention", options=("-enable_attention",)),
)
SOURCES: tuple[tuple[str, str, bool, tuple[Way, ...]], ...] = (
    ("bert", "bert", False, WAYS),
    ("electra", "bert", False, (PLAIN, WAYS[2], WAYS[3])),
    ("albert", "bert", False, (PLAIN, WAYS[2])),
    ("roberta", "bert", False, (PLAIN, WAYS[2], WAYS[4])),
    ("distilbert", "bert", False, (PLAIN, WAYS[2], WAYS[3])),
    ("xlm-roberta", "bert", False, (PLAIN,)),
    ("layoutlm", "bert", False, (PLAIN,)),
    ("deberta", "bert", False, (PLAIN,)),
    ("gpt2", "gpt2", False, WAYS[:5]),
    ("gpt2", "gpt2", True, (PLAIN, WAYS[2], WAYS[4])),
    ("gpt_neo", "gpt2", False, (PLAIN,)),
    ("opt", "gpt2", True, (PLAIN,)),
    ("llama", "gpt2", True, (PLAIN, WAYS[2], WAYS[4])),
    ("mistral", "gpt2", True, (PLAIN,)),
    ("qwen2", "gpt2", True, (PLAIN,)),
    ("phi", "gpt2", True, (PLAIN,)),
    ("t5", "t5", False, (PLAIN, WAYS[2], WAYS[4])),
    ("mt5", "t5", False, (PLAIN,)),
    ("bart", "bart", False, (PLAIN, WAYS[2], WAYS[3])),
    ("marian", "bart", False, (PLAIN,)),
    ("vit", "vit", False, (PLAIN, WAYS[2], WAYS[4])),
    ("deit", "vit", False, (PLAIN,)),
    ("beit", "vit", False, (PLAIN,)),
    ("swin", "swin", False, (PLAIN, WAYS[2])),
    ("clip", "clip", False, (PLAIN, WAYS[2], WAYS[4])),
    ("wav2vec2", "bert", False, (PLAIN,)),
)
"""A model of transformers, the optimizer's type for it, whether it has a cache, and the ways."""

BOTH = ("bert", "gpt2", "bart", "vit", "llama", "clip")
"""Model types of which the export from torch's scaled_dot_product_attention is optimised, too."""


def cases() -> Iterator[Case]:
    for model_type, kind, past, ways in SOURCES:
        for attention in ("eager", "sdpa") if model_type in BOTH else ("eager",):
            for way in ways if attention == "eager" else ways[:1]:
                name = "-".join([model_type, *(["past"] if past else []), attention, way.name])
                yield Case(name, partial(optimise, name, model_type, kind, past, attention, way))


def optimise(
    name: str, model_type: str, kind: str, past: bool, attention: str, way: Way, folder: Path
) -> Iterable[Made]:
    """The optimised model of one TorchScript export. The heads and the hidden size are told, as the command line asks for."""
    from onnxruntime.transformers import optimizer
    from onnxruntime.transformers.fusion_options import FusionOptions

    tiny = hf_models.find(model_type)
    (source,) = torchscript.export(tiny, attention, past, 17, folder)
    options = FusionOptions(kind)
    for option in way.options:
        setattr(options, option.removeprefix("-"), not option.startswith("-"))
    heads, hidden = (0, 0) if model_type in ("swin", "clip") else (4, 48)
    done = optimizer.optimize_model(
        os.fspath(source.model), kind, heads, hidden, options, way.level, only_onnxruntime=False
    )
    if way.half:
        done.convert_float_to_float16(keep_io_types=False)
    path = folder / "optimised.onnx"
    done.save_model_to_file(os.fspath(path))
    yield Made(name, path, source.attentions, source.why, runs_of(onnx.load(path), torchscript.runs_for(tiny, past)))

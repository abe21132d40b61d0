"""torch.onnx.export(dynamo=False) with dynamic axes, on today's transformers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import onnx
import torch

from corpus import hf_models
from corpus.case import Case, Made
from corpus.feeds import DECODER, ENCODER, IMAGE, STEPS, Run, runs_of
from corpus.hf_models import Tiny

TEXT = {0: "batch", 1: "sequence"}
BOTH = (
    "bert electra distilbert roberta gpt2 opt llama mistral qwen2 qwen3 phi t5 bart marian vit beit swin clip wav2vec2"
).split()
"""Model types that are exported from both spellings of attention in transformers; others from the first that they have."""
EAGER = (
    "mpnet roformer convbert ibert squeezebert rembert xlm flaubert deberta deberta-v2 splinter gpt_neo gptj codegen bloom gemma2 "
    "mpt longt5 swinv2 wavlm"
).split()
"""Model types that know no other spelling."""
CACHES = (
    "gpt2 opt llama mistral qwen2 qwen3 phi gpt_neo gptj bloom gemma2 gpt_neox phi3 gemma falcon stablelm granite gemma3_text"
).split()
"""Decoders that are exported with a cache, too."""
SOUND = (Run("sound", sizes={"samples": 310}),)


class Tensors(torch.nn.Module):
    """A model of transformers with tensors as its inputs, by name, and tensors as its results. Inputs named past_N are a cache:
    keys and values of each layer by turns."""

    def __init__(self, model: Any, names: list[str]) -> None:
        super().__init__()
        self.model, self.names = model, names

    def forward(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        from transformers import DynamicCache

        given = dict(zip(self.names, tensors, strict=True))
        past = [given.pop(name) for name in self.names if name.startswith("past_")]
        if past:
            cache = DynamicCache(config=self.model.config)
            for layer in range(len(past) // 2):
                cache.update(past[2 * layer], past[2 * layer + 1], layer)
            given["past_key_values"] = cache
        elif "pixel_values" not in given and "input_values" not in given:
            given["use_cache"] = False
        result = self.model(**given)
        outputs = [value for value in result.values() if isinstance(value, torch.Tensor)]
        if past:
            layers = result.past_key_values.layers
            outputs += [tensor for layer in layers for tensor in (layer.keys, layer.values)]
        return tuple(outputs)


def cases() -> Iterator[Case]:
    for tiny in hf_models.ALL:
        if tiny.model_type == "whisper":  # reads torch.diff, which this exporter does not know
            continue
        for attention in spellings(tiny):
            yield Case(f"{tiny.model_type}-{attention}", partial(export, tiny, attention, False, 17))
            if tiny.model_type in CACHES:
                yield Case(f"{tiny.model_type}-past-{attention}", partial(export, tiny, attention, True, 17))
    for model_type in ("bert", "gpt2", "t5", "vit"):
        for opset in (11, 13, 14, 18, 20):
            yield Case(f"{model_type}-opset{opset}", partial(export, hf_models.find(model_type), "eager", False, opset))


def spellings(tiny: Tiny) -> tuple[str, ...]:
    """Which of transformers' spellings of attention a model is exported from."""
    if tiny.model_type in EAGER:
        return ("eager",)
    return ("sdpa", "eager") if tiny.model_type in BOTH else ("sdpa",)


def arguments(tiny: Tiny, model: Any, past: bool) -> tuple[dict[str, torch.Tensor], dict[str, dict[int, str]]]:
    """Inputs to trace with, and the names of their dynamic axes."""
    ids = torch.randint(3, 60, (2, 7), generator=torch.Generator().manual_seed(0))
    text = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    axes = {"input_ids": TEXT, "attention_mask": TEXT}
    image = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    if tiny.kind == "vision":
        return {"pixel_values": image}, {"pixel_values": {0: "batch"}}
    if tiny.kind == "clip":
        return text | {"pixel_values": image}, axes | {"pixel_values": {0: "image_batch"}}
    if tiny.kind == "speech":
        sound = torch.randn(2, 310, generator=torch.Generator().manual_seed(0))
        return {"input_values": sound}, {"input_values": {0: "batch", 1: "samples"}}
    if tiny.kind == "seq2seq":
        return text | {"decoder_input_ids": ids[:, :5]}, axes | {
            "decoder_input_ids": {0: "batch", 1: "decoder_sequence"}
        }
    if past:
        return with_cache(model, text, axes)
    return text, axes


def with_cache(model: Any, text: dict[str, torch.Tensor], axes: dict[str, dict[int, str]]) -> Any:
    """The inputs of a step with a cache of five tokens, whose shapes are those of the model's own cache."""
    made = model(**text, use_cache=True).past_key_values
    given, names = dict(text), dict(axes)
    given["attention_mask"] = torch.ones(2, 12, dtype=torch.int64)
    names["attention_mask"] = {0: "batch", 1: "past_sequence + sequence"}
    for layer, kept in enumerate(made.layers):
        for kind, tensor in (("key", kept.keys), ("value", kept.values)):
            given[f"past_{layer}_{kind}"] = tensor[:, :, :5].clone()
            names[f"past_{layer}_{kind}"] = {0: "batch", 2: "past_sequence"}
    return given, names


def export(tiny: Tiny, attention: str, past: bool, opset: int, folder: Path) -> Iterable[Made]:
    """One model."""
    model = hf_models.make(tiny, attn_implementation=attention)
    given, axes = arguments(tiny, model, past)
    path = folder / "model.onnx"
    with torch.no_grad():
        torch.onnx.export(
            Tensors(model, list(given)),
            tuple(given.values()),
            path,
            input_names=list(given),
            dynamic_axes=axes,
            opset_version=opset,
            dynamo=False,
        )
    name = "-".join([tiny.model_type, *(["past"] if past else []), attention, f"opset{opset}"])
    yield Made(name, path, tiny.attentions + tiny.decoder, tiny.why, runs_of(onnx.load(path), runs_for(tiny, past)))


def runs_for(tiny: Tiny, past: bool) -> tuple[Run, ...]:
    """The runs that a model is for."""
    if tiny.kind == "vision":
        return IMAGE
    if tiny.kind == "speech":
        return SOUND
    if past:
        return STEPS
    return ENCODER if tiny.kind == "encoder" else DECODER

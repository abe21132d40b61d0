"""optimum: exports by TorchScript with a dynamic batch and length, as most files on model hubs were made."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path

import onnx

from corpus import hf_models
from corpus.case import Case, Made
from corpus.feeds import DECODER, ENCODER, IMAGE, STEPS, Run, runs_of
from corpus.hf_models import Tiny

TASKS = {
    "encoder": ("feature-extraction",),
    "decoder": ("text-generation", "text-generation-with-past"),
    "seq2seq": ("text2text-generation", "text2text-generation-with-past"),
    "vision": ("feature-extraction",),
    "clip": ("feature-extraction",),
    "speech": ("feature-extraction",),
}
SOUND = (Run("sound", sizes={"sequence_length": 310, "audio_sequence_length": 310}),)
UNKNOWN = ("starcoder2", "umt5")
"""What optimum has no configuration for."""
MORE = (
    ("bert", "text-classification"),
    ("bert", "question-answering"),
    ("bert", "fill-mask"),
    ("distilbert", "token-classification"),
    ("roberta", "text-classification"),
    ("vit", "image-classification"),
    ("bart", "feature-extraction"),
    ("bart", "text-classification"),
    ("gpt2", "feature-extraction"),
    ("gpt2", "feature-extraction-with-past"),
)
"""Model types and tasks beside those of the kind."""
AUTO = {
    "text-classification": "AutoModelForSequenceClassification",
    "question-answering": "AutoModelForQuestionAnswering",
    "fill-mask": "AutoModelForMaskedLM",
    "token-classification": "AutoModelForTokenClassification",
    "image-classification": "AutoModelForImageClassification",
    "feature-extraction": "AutoModel",
}


def cases() -> Iterator[Case]:
    for tiny in hf_models.ALL:
        if tiny.model_type in UNKNOWN:
            continue
        tasks = TASKS[tiny.kind]
        if tiny.model_type == "whisper":
            tasks = ("automatic-speech-recognition", "automatic-speech-recognition-with-past")
        for task in tasks:
            yield Case(f"{tiny.model_type}-{task}", partial(export, tiny, task, ""))
    for model_type, task in MORE:
        auto = AUTO[task.removesuffix("-with-past")]
        yield Case(f"{model_type}-{task}", partial(export, hf_models.find(model_type), task, auto))
    for model_type, task in (("bert", "feature-extraction"), ("gpt2", "text-generation-with-past")):
        for level in ("O1", "O2", "O3"):
            yield Case(
                f"{model_type}-{task}-{level}", partial(export, hf_models.find(model_type), task, "", optimise=level)
            )


def export(tiny: Tiny, task: str, auto: str, folder: Path, optimise: str | None = None) -> Iterable[Made]:
    """Every file that one export writes."""
    from optimum.exporters.onnx import onnx_export_from_model

    model = hf_models.make(tiny, auto)
    out = folder / "out"
    onnx_export_from_model(model=model, output=out, task=task, optimize=optimise, do_validation=False, device="cpu")
    name = "-".join([tiny.model_type, task, *([optimise] if optimise else [])])
    for path in sorted(out.glob("*.onnx")):
        attentions, why = attentions_of(tiny, path.stem)
        yield Made(f"{name}-{path.stem}", path, attentions, why, runs_of(onnx.load(path), runs_for(tiny, path.stem)))


def attentions_of(tiny: Tiny, part: str) -> tuple[int, str]:
    """How many attentions a file of that name has, and why."""
    if part.startswith("encoder"):
        return tiny.attentions, "2 layers of self attention"
    if part == "decoder_model_merged" and tiny.decoder:
        return 2 * tiny.decoder, "2 layers of self and cross attention, in each of the two branches"
    if part.startswith("decoder") and tiny.decoder:
        return tiny.decoder, "2 layers of self and cross attention"
    if part == "decoder_model_merged":
        return 2 * tiny.attentions, "2 layers, in each of the two branches"
    return tiny.attentions + tiny.decoder, tiny.why


def runs_for(tiny: Tiny, part: str) -> tuple[Run, ...]:
    """The runs that a file of that name is for."""
    if tiny.kind == "speech" and tiny.model_type != "whisper":
        return SOUND
    if tiny.kind == "vision":
        return IMAGE
    if part.startswith("encoder") or tiny.kind == "encoder":
        return ENCODER
    if "with_past" in part:
        return STEPS
    if part == "decoder_model_merged":
        return (DECODER[0], *STEPS)
    if tiny.kind == "decoder":
        return (*DECODER, *STEPS)
    return DECODER

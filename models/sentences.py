"""A BERT-like sentence encoder with its own weights, exported on real sentences."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from onnx_fa.errors import MissingDependencyError
from onnx_fa.models.build import Arrays, wrapped
from onnx_fa.models.export import Exporter, export_module


def export_sentence_encoder(
    folder: Path, sentences: Sequence[str], output: Path, exporter: Exporter, opset: int
) -> Arrays:
    """Writes the encoder in `folder` (config.json, model.safetensors, tokenizer.json) as ONNX and returns the inputs, int64
    (sentence, token). The output is the last hidden state. Raises ExportError, MissingDependencyError without transformers."""
    try:
        import transformers
    except ImportError as error:
        raise MissingDependencyError("sentence encoders need transformers: pip install 'onnx-fa[torch]'") from error
    tokenizer: Any = transformers.AutoTokenizer.from_pretrained(str(folder))
    tokens = tokenizer(list(sentences), padding=True, return_tensors="np")
    arrays: Arrays = {n: tokens[n].astype("int64") for n in ("input_ids", "attention_mask")}
    model = transformers.AutoModel.from_pretrained(str(folder), add_pooling_layer=False).eval()
    output.write_bytes(export_module(wrapped(model, tuple(arrays)), arrays, exporter, opset).SerializeToString())
    return arrays

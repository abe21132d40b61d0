"""The files of a decoder: one for prompts and one for a token behind a past, which are the same in most layouts."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from onnx_fa.errors import ModelError

GENAI_CONFIG = "genai_config.json"


@dataclass(frozen=True)
class DecoderFiles:
    """`prompt` takes a prompt, perhaps without a past, `step` what comes after it. `config` is genai's, where there is one."""

    prompt: Path
    step: Path
    config: Mapping[str, Any] = field(default_factory=dict)

    @property
    def folder(self) -> Path:
        return self.step.parent

    @property
    def end_tokens(self) -> tuple[int, ...]:
        """Tokens that end a text, as genai's config says."""
        end = self.config.get("model", {}).get("eos_token_id", ())
        if isinstance(end, int):
            return (end,)
        return tuple(end) if isinstance(end, list) else ()

    @property
    def head_size(self) -> int | None:
        size = self.config.get("model", {}).get("decoder", {}).get("head_size")
        return size if isinstance(size, int) else None


def find_files(path: Path) -> DecoderFiles:
    """The files of an .onnx file or a folder: onnxruntime-genai's (genai_config.json), optimum's merged decoder, its pair of
    decoders, or model.onnx. Raises ModelError where there is no decoder."""
    if not path.is_dir():
        if not path.is_file():
            raise ModelError(f"{path}: no such file or folder")
        return DecoderFiles(path, path)
    config = path / GENAI_CONFIG
    if config.is_file():
        try:
            data = json.loads(config.read_text())
            name = data["model"]["decoder"]["filename"]
        except (ValueError, KeyError, TypeError) as e:
            raise ModelError(f"{config}: names no model.decoder.filename ({type(e).__name__})") from e
        if not isinstance(name, str) or not (path / name).is_file():
            raise ModelError(f"{config}: names a decoder that is not there: {name!r}")
        return DecoderFiles(path / name, path / name, data)
    for prompt, step in (
        ("decoder_model_merged.onnx", "decoder_model_merged.onnx"),
        ("decoder_model.onnx", "decoder_with_past_model.onnx"),
        ("model.onnx", "model.onnx"),
    ):
        if (path / prompt).is_file() and (path / step).is_file():
            return DecoderFiles(path / prompt, path / step)
    files = sorted(path.glob("*.onnx"))
    if len(files) == 1:
        return DecoderFiles(files[0], files[0])
    raise ModelError(
        f"{path}: no decoder: neither genai_config.json, decoder_model_merged.onnx, decoder_model.onnx with "
        "decoder_with_past_model.onnx, nor model.onnx; name the file"
    )

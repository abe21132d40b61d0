"""A collection of models, whoever wrote it down: a zoo file of this project, a list, or a config of a test suite."""

from __future__ import annotations

from pathlib import Path

from onnx_fa.errors import OnnxFaError
from onnx_fa.zoo.entries import Entry, load
from onnx_fa.zoo.lists import read_list
from onnx_fa.zoo.suites import read_config

KINDS = "zoo files end in .toml, lists in .txt, configs of iree-test-suites in .json"


def read(path: Path, models: Path | None = None) -> list[Entry]:
    """The entries of a collection, by the ending of its name; `models` is the folder in which a list's names are looked for.

    Raises OnnxFaError, of one line, for what is wrong in it.
    """
    if models is not None and not models.is_dir():
        raise OnnxFaError(f"--models {models}: no such folder")
    match path.suffix.lower():
        case ".toml" if models is not None:
            raise OnnxFaError(f"{path}: a zoo file says itself where its models are; leave --models out")
        case ".toml":
            return load(path)
        case ".txt":
            return read_list(path, models)
        case ".json" | ".json5" | ".jsonc":
            return read_config(path, models)
    raise OnnxFaError(f"{path}: {KINDS}")

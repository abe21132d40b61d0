"""Text files of models: paths and globs, or names such as SHARK-TestSuite's lists hold them."""

from __future__ import annotations

import glob
import os
import re
from collections import Counter
from pathlib import Path, PurePosixPath

from onnx_fa.errors import OnnxFaError
from onnx_fa.files import read_text
from onnx_fa.zoo.entries import Entry
from onnx_fa.zoo.places import find_model


def read_list(path: Path, models: Path | None) -> list[Entry]:
    """The entries of a list, in its order, each once. A `#` at the beginning of a line or behind a blank begins a comment.

    Without `models` each line is a path or a glob, relative to the list. With it each word is a name of a model under that folder,
    as in SHARK-TestSuite's lists. What no file is found for is an entry of its own, which fails. Raises OnnxFaError for a name that
    cannot be one, and for a list without any.
    """
    lines = [re.sub(r"(^|\s)#.*", "", line).strip() for line in read_text(path).splitlines()]
    for number, line in enumerate(lines, 1):
        if not line.isprintable():
            raise OnnxFaError(f"{path}:{number}: {line!r} is no name of a model")
    if models is None:
        entries = [e for line in lines if line for e in _of_line(line, path.resolve().parent)]
    else:
        words = [(number, word) for number, line in enumerate(lines, 1) for word in line.split()]
        for number, word in words:
            check_name(f"{path}:{number}", word)
        entries = named(list(dict.fromkeys(word for _, word in words)), models)
    if not entries:
        raise OnnxFaError(f"{path}: names no model")
    return list({e.name: e for e in entries}.values())


def check_name(where: str, name: str) -> None:
    """Raises OnnxFaError for a name that leads out of the folder of the models."""
    parts = PurePosixPath(name).parts
    if not parts or parts[0] == "/" or ".." in parts:
        raise OnnxFaError(f"{where}: {name!r} leads out of the folder of the models")


def named(names: list[str], models: Path) -> list[Entry]:
    """The entries of these names, with the model of each under the folder `models`."""
    last = Counter(PurePosixPath(n).name for n in names)
    entries = []
    for name in names:
        end = PurePosixPath(name).name
        # SHARK-TestSuite keeps org/model under model: where two names end alike, nothing says whose that is.
        found = find_model(models, (name, end) if last[end] == 1 else (name,))
        entries.append(of_file(name, found.path, models) if found.path else missing(name, found.why))
    return entries


def of_file(name: str, path: str, base: Path) -> Entry:
    """An entry that nothing is expected of but that every step succeeds."""
    return Entry(name, "path", path, misses=None, targets=(), base=str(base.resolve()))


def missing(name: str, why: str) -> Entry:
    return Entry(name, "missing", why, misses=None, targets=())


def _of_line(line: str, folder: Path) -> list[Entry]:
    if (folder / line).is_dir():
        return [missing(line, f"{line} is a folder: name its files, such as {line.rstrip('/')}/*.onnx")]
    if (folder / line).exists() or not glob.has_magic(line):
        return [of_file(Path(os.path.normpath(line)).as_posix(), line, folder)]
    found = sorted(p for p in glob.glob(line, root_dir=folder, recursive=True) if (folder / p).is_file())
    if not found:
        return [missing(line, f"no file matches {line}")]
    return [of_file(Path(os.path.normpath(p)).as_posix(), p, folder) for p in found]

"""Output files, written whole or not at all."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from onnx_fa.errors import CompileError, OnnxFaError


def write_whole(path: str | os.PathLike[str], data: str | bytes) -> None:
    """Writes beside `path` and moves into place. Raises OnnxFaError when the place cannot be written."""
    target = Path(path)
    check_writable(target)
    try:
        with tempfile.TemporaryDirectory(dir=target.parent, prefix=".onnx_fa-") as tmp:
            staged = Path(tmp) / target.name
            staged.write_bytes(data.encode() if isinstance(data, str) else data)
            os.replace(staged, target)
    except OSError as e:
        raise OnnxFaError(f"{target}: cannot be written: {e.strerror or e}") from e


def read_text(path: str | os.PathLike[str]) -> str:
    """The text of a file. Raises OnnxFaError where there is none."""
    try:
        return Path(path).read_text(encoding="utf-8")
    except OSError as e:
        raise OnnxFaError(f"{path}: cannot be read: {e.strerror or e}") from e
    except UnicodeDecodeError as e:
        raise OnnxFaError(f"{path}: is not text: {e}") from e


def check_writable(path: str | os.PathLike[str]) -> None:
    """Raises OnnxFaError when a file cannot be made there: asked before the work, not after it."""
    target = Path(path)
    if target.is_dir():
        raise OnnxFaError(f"{target}: cannot be written: it is a folder")
    if not target.parent.is_dir():
        raise OnnxFaError(f"{target}: cannot be written: no folder {target.parent}")
    if not os.access(target.parent, os.W_OK):
        raise OnnxFaError(f"{target}: cannot be written: no permission in {target.parent}")


@contextlib.contextmanager
def scratch_folder() -> Iterator[Path]:
    """A temporary folder. It stays when a CompileError passes through, because the log that the error names is in
    it."""
    folder = Path(tempfile.mkdtemp(prefix="onnx_fa-"))
    keep = False
    try:
        yield folder
    except CompileError:
        keep = True
        raise
    finally:
        if not keep:
            shutil.rmtree(folder, ignore_errors=True)

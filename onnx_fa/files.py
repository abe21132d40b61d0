"""Output files, written whole or not at all."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from onnx_fa.errors import CompileError, OnnxFaError, one_line
from onnx_fa.staging import staging_folder


@contextlib.contextmanager
def writing(path: str | os.PathLike[str]) -> Iterator[None]:
    """For any OSError inside, a full disk or a folder that cannot be written, raises OnnxFaError that names `path`."""
    try:
        yield
    except OSError as e:
        raise OnnxFaError(f"{path}: cannot be written: {e.strerror or one_line(e)}") from e


@contextlib.contextmanager
def staged_file(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Where to write what shall stand at `path`: it is moved there when the block ends well, and gone otherwise. Raises what
    `writing` raises."""
    target = Path(path)
    with writing(target), staging_folder(target.parent) as folder:
        staged = folder / target.name
        yield staged
        os.replace(staged, target)


def write_whole(path: str | os.PathLike[str], data: str | bytes) -> None:
    """Writes beside `path` and moves into place. Raises OnnxFaError when the place cannot be written."""
    check_writable(path)
    with staged_file(path) as staged:
        staged.write_bytes(data.encode() if isinstance(data, str) else data)


def write_sealed(path: str | os.PathLike[str], data: bytes) -> None:
    """As `write_whole`, with the data's sha256 beside it, for `is_sealed`."""
    write_whole(path, data)
    write_whole(_seal(Path(path)), hashlib.sha256(data).hexdigest() + "\n")


def is_sealed(path: Path) -> bool:
    """Whether the file is there and still as `write_sealed` wrote it."""
    try:
        return _seal(path).read_text().strip() == hashlib.sha256(path.read_bytes()).hexdigest()
    except (OSError, UnicodeDecodeError):
        return False


def _seal(path: Path) -> Path:
    return path.with_name(f"{path.name}.sha256")


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

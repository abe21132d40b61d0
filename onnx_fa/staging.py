"""Folders in which an output is made before it is moved to its place, and what becomes of those that a killed process left."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

PREFIX = ".onnx_fa-"


@contextlib.contextmanager
def staging_folder(parent: Path) -> Iterator[Path]:
    """A folder beside the output, so that moving out of it is one step. It is gone afterwards, with what is left in it.

    The process holds a lock on it. One that was killed holds none: what such have left in `parent` is removed first. OSError
    passes through.
    """
    sweep_stale(parent)
    folder, lock = _make(parent)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        if lock is not None:
            os.close(lock)


def _make(parent: Path) -> tuple[Path, int | None]:
    while True:
        folder = Path(tempfile.mkdtemp(dir=parent, prefix=PREFIX))
        try:
            lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        except FileNotFoundError:  # another process took it for a stale one before it was locked
            continue
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
        except OSError:  # this file system has no locks: then nobody takes the folder for a stale one
            os.close(lock)
            return folder, None
        if folder.is_dir():
            return folder, lock
        os.close(lock)


def sweep_stale(parent: Path) -> None:
    """Removes the staging folders in `parent` that no living process holds. Those that cannot be looked at stay."""
    try:
        names = [n for n in os.listdir(parent) if n.startswith(PREFIX)]
    except OSError:
        return  # whoever writes there says so
    for name in names:
        with contextlib.suppress(OSError):  # it has gone, is a file, is another user's, or is in use
            lock = os.open(parent / name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(parent / name, ignore_errors=True)
            finally:
                os.close(lock)

"""Files of a store that a machine of a cluster keeps, so that not every step fetches its files anew."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from onnx_fa.zoo.step_process import file_digest
from onnx_fa.zoo.store import Store

LIMIT = 16 << 30
"""Bytes of all files that a machine keeps."""
PART = ".part"


class FileCache:
    """What is fetched from `store` and put there, in a local `folder` by sha256, at most `limit` bytes: what was not used for the
    longest time goes first. Threads and processes may share the folder.

    Whoever gets a file gets a copy, which is checked: nothing that is done to it reaches the cache, and what is damaged there is
    fetched anew. Methods raise StoreError as those of the store do, and OSError where there is no space.
    """

    def __init__(self, store: Store, folder: Path, limit: int = LIMIT) -> None:
        self._store, self._folder, self._limit = store, folder, limit
        folder.mkdir(parents=True, exist_ok=True)

    def get(self, digest: str, path: Path) -> None:
        """Writes the file with that sha256 to `path`."""
        # Steps of a model begin at the same time: one of them fetches its file, and the others wait for it.
        with self._locked(digest):
            if not self._copied(digest, path):
                self._store.get(digest, path)
                self._keep(digest, path)

    def put(self, path: Path, digest: str = "") -> str:
        """Gives a file to the store, and keeps it for the next step. Returns its sha256."""
        digest = self._store.put(path, digest)
        with self._locked(digest):
            if not (self._folder / digest).exists():
                self._keep(digest, path)
        return digest

    def _copied(self, digest: str, path: Path) -> bool:
        kept = self._folder / digest
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            shutil.copyfile(kept, path)
        except FileNotFoundError:
            return False
        if file_digest(path) != digest:
            kept.unlink(missing_ok=True)
            return False
        with contextlib.suppress(FileNotFoundError):  # it has just been removed to make room
            os.utime(kept)  # it was used now
        return True

    def _keep(self, digest: str, path: Path) -> None:
        size = path.stat().st_size
        if size > self._limit:
            return
        self._make_room(size)
        # Others see the file once all of it is there. Who holds the lock alone writes under this name: what a killed process left
        # there is written over, or goes as old files go.
        part = self._folder / f"{digest}{PART}"
        shutil.copyfile(path, part)
        with contextlib.suppress(FileNotFoundError):  # it has been removed to make room for a larger one
            os.replace(part, self._folder / digest)

    def _make_room(self, size: int) -> None:
        found = []
        for entry in os.scandir(self._folder):
            with contextlib.suppress(FileNotFoundError):  # another process makes room too
                if entry.is_file():
                    stat = entry.stat()
                    found.append((stat.st_mtime_ns, stat.st_size, entry.path))
        total = sum(bytes_ for _, bytes_, _ in found) + size
        for _, bytes_, name in sorted(found):
            if total <= self._limit:
                return
            Path(name).unlink(missing_ok=True)
            total -= bytes_

    @contextlib.contextmanager
    def _locked(self, digest: str) -> Iterator[None]:
        """One at a time for each file: few lock files do for all. A process that is killed holds its lock no more."""
        locks = self._folder / "locks"
        locks.mkdir(exist_ok=True)
        with (locks / digest[:2]).open("wb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

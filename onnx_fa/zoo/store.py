"""What steps leave, by the sha256 of its content, and what they said, by name: in a folder or at any URL that fsspec knows."""

from __future__ import annotations

import contextlib
import json
import os
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from onnx_fa.errors import MissingDependencyError, OnnxFaError, one_line
from onnx_fa.zoo.step_process import as_record, file_digest

Json = dict[str, Any]
FILES, RECORDS = "files", "records"


class StoreError(OnnxFaError):
    """The store cannot be read or written, or what is in it is damaged."""


class LostFileError(StoreError):
    """A file that should be in the store is not there, or damaged."""


class Store:
    """`url` names the folder from everywhere that shares it. Raises StoreError, as every method does."""

    def __init__(self, place: str | Path) -> None:
        try:
            from fsspec.core import url_to_fs
            from fsspec.implementations.local import LocalFileSystem
        except ImportError as e:
            raise MissingDependencyError("a store needs fsspec: pip install 'onnx-fa[cluster]'") from e
        self.url = str(place)
        with self._access():
            self._fs, path = url_to_fs(self.url)
        self._root = str(path).rstrip("/")
        self._is_local = isinstance(self._fs, LocalFileSystem)
        if self._is_local:
            self.url = self._root  # absolute, for other working folders
        with self._access():
            for kind in (FILES, RECORDS):
                self._fs.makedirs(f"{self._root}/{kind}", exist_ok=True)

    def put(self, path: Path, digest: str = "") -> str:
        """Keeps a file. Returns its sha256, which is computed where it is not given."""
        digest = digest or file_digest(path)
        if self.size(digest) != path.stat().st_size:
            with self._placed(f"{FILES}/{digest}") as place:
                self._fs.put_file(str(path), place)
        return digest

    def size(self, digest: str) -> int | None:
        """The size in bytes of the file with that sha256; None where there is none."""
        with self._access():
            try:
                return int(self._fs.size(f"{self._root}/{FILES}/{digest}"))
            except FileNotFoundError:
                return None

    def get(self, digest: str, path: Path) -> None:
        """Writes the file with that sha256 to `path`. One that is damaged is taken out of the store."""
        path.parent.mkdir(parents=True, exist_ok=True)
        name = f"{self._root}/{FILES}/{digest}"
        with self._access():
            try:
                self._fs.get_file(name, str(path))
            except FileNotFoundError as e:
                raise LostFileError(f"{self.url}: no file {digest} in it: {_AGAIN}") from e
            if file_digest(path) != digest:
                self._fs.rm_file(name)
                raise LostFileError(f"{self.url}: the file {digest} was damaged and is taken out: {_AGAIN}")

    def note(self, name: str, record: Json) -> None:
        """Keeps what a step said."""
        with self._placed(f"{RECORDS}/{name}.json") as place:
            self._fs.pipe_file(place, json.dumps(record).encode())

    def record(self, name: str) -> Json | None:
        """What a step said, if all files that it left are still there; else None."""
        with self._access():
            try:
                found = as_record(self._fs.cat_file(f"{self._root}/{RECORDS}/{name}.json"))
            except FileNotFoundError:
                return None
        return found if found and all(self.size(d) is not None for d in found["files"].values()) else None

    @contextlib.contextmanager
    def _placed(self, name: str) -> Iterator[str]:
        """Where to write a file of the store. Object stores show a file once all of it is there; a folder shows it at once, so that
        there it is written under another name and moved into place."""
        final = f"{self._root}/{name}"
        with self._access():
            if not self._is_local:
                yield final
                return
            staged = f"{final}.{uuid.uuid4().hex}"
            try:
                yield staged
                os.replace(staged, final)
            finally:
                Path(staged).unlink(missing_ok=True)

    @contextlib.contextmanager
    def _access(self) -> Iterator[None]:
        try:
            yield
        except StoreError:
            raise
        except Exception as e:  # the libraries behind fsspec have no base class in common
            raise StoreError(f"{self.url}: cannot be read or written: {one_line(e)}") from e


_AGAIN = "run again, and the step that made it is run again"

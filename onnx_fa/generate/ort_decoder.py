"""A decoder in onnxruntime, as its users run it: results of one call are passed to the next without a copy on the host."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from onnx_fa.errors import RunError, one_line
from onnx_fa.generate.layout import DecoderFiles
from onnx_fa.graph import io
from onnx_fa.graph.accuracy_levels import clear_levels
from onnx_fa.graph.caches import find_cache_pairs, first_rows
from onnx_fa.graph.determined import determined_sizes
from onnx_fa.graph.free_dims import graph_inputs
from onnx_fa.graph.roles import Input, call_arrays, read_roles, tokens_input
from onnx_fa.ort_session import ort_session

Array = npt.NDArray[np.generic]


@dataclass(frozen=True)
class _Way:
    """How onnxruntime runs a model, in `words`."""

    optimise: bool
    reuse: bool
    words: str


_USUAL = _Way(True, True, "")
_WAYS = (
    # It takes two values for equally large where a file calls their dims by one name.
    _Way(True, False, "without reuse of memory"),
    _Way(False, False, "without reuse of memory and its optimiser"),
)


class _Session:
    """One file: what it takes and returns, and onnxruntime's session of it."""

    def __init__(self, path: Path, threads: int | None, way: _Way, files: DecoderFiles, room: int, exact: bool) -> None:
        model = io.load(path)
        self.pairs = find_cache_pairs(model)
        self.inputs: tuple[Input, ...] = read_roles(model, self.pairs)
        self.results = [str(o.name) for o in model.graph.outputs]
        by_name = {str(v.name): v for v in graph_inputs(model)}
        tokens = by_name[tokens_input(self.inputs)].shape
        sizes = {str(tokens[0]): 1, **determined_sizes(model)} if tokens else determined_sizes(model)
        self.empty = {p.past: _empty(by_name[p.past], sizes, files.head_size, room) for p in self.pairs}
        options: dict[str, Any] = {"threads": threads, "optimise": way.optimise, "reuse": way.reuse}
        if not exact:
            self.session = ort_session(path, **options)
            return
        clear_levels(model)
        with tempfile.TemporaryDirectory(prefix="onnx_fa-") as folder:
            io.save(model, copy := Path(folder) / path.name)
            self.session = ort_session(copy, **options)


def _empty(value: ir.Value, sizes: dict[str, int], head_size: int | None, room: int) -> Array:
    """A cache for one text before anything was seen."""
    assert value.shape is not None and value.dtype is not None
    rank, dims = len(value.shape), []
    for axis, dim in enumerate(value.shape):
        if isinstance(dim, int):
            dims.append(dim)
        elif axis == 0 and rank == 4:
            dims.append(1)
        elif str(dim.value) in sizes:
            dims.append(sizes[str(dim.value)])
        elif axis == rank - 1 and head_size is not None:
            dims.append(head_size)
        else:
            dims.append(first_rows(value, room))
    return np.zeros(dims, value.dtype.numpy())


class OrtDecoder:
    """`note` says where it does not run as its users run it. Raises MissingDependencyError, and RunError for what onnxruntime
    refuses."""

    def __init__(self, files: DecoderFiles, room: int, threads: int | None = None, *, exact: bool = False) -> None:
        """`room` is the most tokens that will be seen. `exact`: products by weights of few bits do not round what they multiply
        (see `graph/accuracy_levels.py`)."""
        self._files, self._threads, self.note, self._exact, self._room = files, threads, "", exact, room
        self._left = [*_WAYS]
        self._load(_USUAL)

    def _load(self, way: _Way) -> None:
        files = self._files
        try:
            self._step = _Session(files.step, self._threads, way, files, self._room, self._exact)
            same = files.prompt == files.step
            self._prompt = (
                self._step if same else _Session(files.prompt, self._threads, way, files, self._room, self._exact)
            )
        except (OSError, ValueError, RuntimeError) as e:
            raise RunError(f"onnxruntime does not load {files.step.name}: {one_line(e)}") from e
        self._past: dict[str, Any] = {}
        self._seen = 0
        self._calls: list[tuple[int, ...]] = []

    def start(self) -> None:
        """Forgets what was seen."""
        import onnxruntime as ort

        self._seen, self._calls = 0, []
        self._past = {name: ort.OrtValue.ortvalue_from_numpy(array) for name, array in self._step.empty.items()}

    def run(self, tokens: Sequence[int]) -> Array:
        """The logits (vocabulary) of the last token. Raises RunError."""
        of = self._step if self._seen else self._prompt
        bound = of.session.io_binding()
        for name, array in call_arrays(of.inputs, np.asarray([tokens], np.int64), self._seen, self._room).items():
            bound.bind_cpu_input(name, np.ascontiguousarray(array))
        for pair in of.pairs:
            bound.bind_ortvalue_input(pair.past, self._past[pair.past])
        for name in of.results:
            bound.bind_output(name)
        try:
            of.session.run_with_iobinding(bound)
        except Exception as e:  # onnxruntime's exceptions share no public base class
            if not self._left:
                raise RunError(f"onnxruntime: {one_line(e)}") from e
            return self._run_otherwise(tokens)
        results = dict(zip(of.results, bound.get_outputs(), strict=True))
        self._past = {pair.past: results[pair.present] for pair in self._step.pairs}
        self._seen += len(tokens)
        self._calls.append(tuple(tokens))
        logits = next((n for n in of.results if "logits" in n), of.results[0])
        whole: Array = results[logits].numpy()
        last: Array = whole[(0,) * (whole.ndim - 2) + (-1,)]
        return last

    def _run_otherwise(self, tokens: Sequence[int]) -> Array:
        """Once more from the beginning, in the next way that is left."""
        way, calls = self._left.pop(0), self._calls
        self.note = f"{way.words}, as it fails otherwise"
        self._load(way)
        self.start()
        for before in calls:
            self.run(before)
        return self.run(tokens)

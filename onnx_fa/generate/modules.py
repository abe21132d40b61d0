"""The two modules of a decoder: one for prompts of any length, and one for a single token."""

from __future__ import annotations

import filecmp
import json
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import onnx_ir as ir

from onnx_fa.errors import ModelError, UnsupportedError
from onnx_fa.files import write_whole
from onnx_fa.generate.grow import Grown, grow_caches, return_rows_first
from onnx_fa.generate.last_row import keep_last_row
from onnx_fa.generate.layout import DecoderFiles
from onnx_fa.graph import io
from onnx_fa.graph.caches import CachePair, find_cache_pairs, first_rows
from onnx_fa.graph.determined import determined_sizes
from onnx_fa.graph.fixed_inputs import Scalar, fix_inputs
from onnx_fa.graph.free_dims import fix_dims, graph_inputs, rename_dim, symbols
from onnx_fa.graph.roles import Input, read_roles, tokens_input
from onnx_fa.graph.view import GraphView
from onnx_fa.iree.archives import archive_of
from onnx_fa.iree.compile import CompileReport, compile_planned
from onnx_fa.iree.kernels import Planned, plan_kernels
from onnx_fa.spec.dtypes import ONNX
from onnx_fa.spec.target import Target

_NAMES = {number: name for name, number in ONNX.items()}


@dataclass(frozen=True)
class Cache:
    """A cache of one module: the inputs and outputs that it goes through, and its shape as the module takes it, None for the rows.
    A state has no rows: it is as large behind every token (a short convolution's, linear attention's).

    One that is `grown` is passed rows first, with the new ones to be written; another is passed as the model takes it, and comes
    back as another, longer one."""

    past: str
    present: str
    shape: tuple[int | None, ...]
    dtype: str
    grown: bool
    first_rows: int | None = 0
    """How many rows it has before anything was seen (of zeros); None for as many as there will be tokens."""


@dataclass(frozen=True)
class Module:
    """A compiled module of a decoder. `arguments` are the names of its inputs, `results` of its outputs, in order."""

    vmfb: str
    arguments: tuple[str, ...]
    results: tuple[str, ...]
    inputs: tuple[Input, ...]
    caches: tuple[Cache, ...]
    logits: str
    copied: Mapping[str, str]
    """Why caches are not grown in place, by input name."""


def build_modules(
    files: DecoderFiles,
    target: Target,
    folder: Path,
    *,
    timeout_s: float = 1800,
    progress: Callable[[str], None] = lambda phase: None,
) -> tuple[Module, Module]:
    """Compiles the modules for prompts and for a token into `folder`. Raises ModelError and CompileError."""
    if not find_cache_pairs(io.load(files.step)):
        raise ModelError(
            f"{files.step}: no cache: a decoder that generates takes past keys and values, and returns them with the new ones "
            "(exported with use_cache, or optimum's text-generation-with-past)"
        )
    made = []
    for phase, path in (("prompt", files.prompt), ("step", files.step)):
        progress(f"compiling for {'prompts' if phase == 'prompt' else 'one token'}")
        made.append(_build(path, phase, files, target, folder, timeout_s))
    _join_archives(*(archive_of(Path(module.vmfb)) for module in made))
    return made[0], made[1]


def _join_archives(prompt: Path, step: Path) -> None:
    """Makes one file of both modules' weights where they are the same, so that they are in memory once."""
    if not (prompt.is_file() and step.is_file() and filecmp.cmp(prompt, step, shallow=False)):
        return
    link = step.with_name(f"{step.name}.link")
    try:
        os.link(prompt, link)
    except OSError:
        return  # a file system without links keeps two files
    link.replace(step)


def _build(path: Path, phase: str, files: DecoderFiles, target: Target, folder: Path, timeout_s: float) -> Module:
    model = io.load(path)
    values: dict[str, Scalar] = {}
    merged = any(v.name == "use_cache_branch" for v in graph_inputs(model))
    if merged:  # the branch with a past takes an empty one too
        values["use_cache_branch"] = 1
    model = fix_inputs(model, values) if values else model
    pairs = find_cache_pairs(model)
    inputs = read_roles(model, pairs)
    model = fix_dims(model, _sizes(model, inputs, pairs, phase, files))
    _name_keys(model, inputs, pairs)
    if phase == "prompt":
        keep_last_row(model, _logits_of([str(v.name) for v in model.graph.outputs], {p.present for p in pairs}))
    inputs = read_roles(model, pairs)
    grown, planned = _plan(model, pairs, tokens_input(inputs), target)
    report, planned = compile_planned(planned, folder / f"{phase}.vmfb", timeout_s=timeout_s)
    rows = {p.past: _first_rows(v) for p in pairs for v in model.graph.inputs if v.name == p.past}
    return _describe(grown, report, inputs, pairs, rows)


def _sizes(
    model: ir.Model, inputs: Sequence[Input], pairs: Sequence[CachePair], phase: str, files: DecoderFiles
) -> dict[str, int]:
    """Sizes of free dims: one row of a batch, one token for a step, and what the graph or genai's config leaves no choice."""
    free = set(symbols(model))
    by_name = {str(v.name): v for v in graph_inputs(model)}
    sizes = {name: size for name, size in determined_sizes(model).items()}

    def give(value: ir.Value, axis: int, size: int) -> None:
        assert value.shape is not None
        dim = value.shape[axis]
        if not isinstance(dim, int) and (name := dim.value or f"{value.name}.{axis}") in free:
            sizes[name] = size

    for given in inputs:
        value = by_name[given.name]
        if given.role in ("tokens", "mask", "positions") and len(given.shape) > 1:
            give(value, len(given.shape) - 2 if given.role == "positions" else 0, 1)
        elif given.role in ("last key", "lengths", "past length", "total length") and given.shape:
            give(value, 0, 1)
        if phase == "step" and given.role in ("tokens", "positions"):
            give(value, len(given.shape) - 1, 1)
    for pair in pairs:
        value = by_name[pair.past]
        if value.shape is not None and len(value.shape) == 4:
            give(value, 0, 1)
            if files.head_size is not None:
                give(value, 3, files.head_size)
    return sizes


def _name_keys(model: ir.Model, inputs: Sequence[Input], pairs: Sequence[CachePair]) -> None:
    """Gives the last dim of a mask the name that the keys have behind a cache: a mask has as many."""
    view = GraphView(model)
    outputs = {str(v.name): v for v in model.graph.outputs}
    totals = {d for pair in pairs for d in view.shape(outputs[pair.present]) or () if isinstance(d, str)}
    if len(totals) != 1:
        return
    (total,) = totals
    for value in graph_inputs(model):
        if value.shape is not None and any(i.name == value.name and i.role == "mask" for i in inputs):
            last = value.shape[-1]
            if isinstance(last, ir.SymbolicDim) and last.value not in (None, total):
                rename_dim(model, str(last.value), total)


def _plan(model: ir.Model, pairs: Sequence[CachePair], tokens: str, target: Target) -> tuple[Grown, Planned]:
    """The model with as many growing caches as its kernels read, and its kernels."""
    left: dict[str, str] = {}
    while True:
        grown = grow_caches(model, [p for p in pairs if p.past not in left], tokens)
        planned = plan_kernels(grown.model, target)
        more = return_rows_first(planned.model, {p.present: p.past for p in pairs if p.past in grown.grown})
        if not more:
            return Grown(grown.model, grown.grown, {**grown.copied, **left}), planned
        left.update(more)


def _first_rows(past: ir.Value) -> int | None:
    few = first_rows(past, -1)
    return None if few < 0 else few


def _describe(
    grown: Grown,
    report: CompileReport,
    inputs: Sequence[Input],
    pairs: Sequence[CachePair],
    first: Mapping[str, int | None],
) -> Module:
    values = {str(v.name): v for v in grown.model.graph.inputs}
    caches, copied = [], dict(grown.copied)
    for pair in pairs:
        value = values[pair.past]
        assert value.shape is not None and value.dtype is not None
        shape = tuple(d if isinstance(d, int) else None for d in value.shape)
        if sum(d is None for d in shape) > 1:
            raise UnsupportedError(
                f"input {pair.past!r} of shape [{', '.join(map(str, value.shape))}]: a cache has one free dim, its rows, when the "
                "batch is one row; give the others a size"
            )
        if None not in shape:
            copied[pair.past] = "it is a state, which every token changes as a whole"
        kind, is_grown = _NAMES[int(value.dtype)], pair.past in grown.grown
        caches.append(Cache(pair.past, pair.present, shape, kind, is_grown, first[pair.past]))
    results = tuple(str(v.name) for v in grown.model.graph.outputs)
    logits = _logits_of(results, {c.present for c in caches})
    arguments = tuple(str(v.name) for v in graph_inputs(grown.model))
    return Module(str(report.output), arguments, results, tuple(inputs), tuple(caches), logits, copied)


def _logits_of(results: Sequence[str], presents: Collection[str]) -> str:
    """The output with the logits, which is called so, or is the first beside the caches. Raises ModelError without one."""
    others = [name for name in results if name not in presents]
    logits = [name for name in others if "logits" in name] or others
    if not logits:
        raise ModelError("no output beside the caches: a decoder returns logits")
    return logits[0]


def describe_to(path: Path, modules: tuple[Module, Module]) -> None:
    """Writes what a worker needs to run the modules."""
    write_whole(path, json.dumps([asdict(module) for module in modules]) + "\n")


def read_described(path: Path) -> tuple[Module, Module]:
    """The inverse of `describe_to`."""
    made = []
    for data in json.loads(path.read_text()):
        inputs = tuple(
            Input(i["name"], i["role"], tuple(i["shape"]), ir.DataType(i["dtype"])) for i in data.pop("inputs")
        )
        caches = tuple(Cache(**{**c, "shape": tuple(c["shape"])}) for c in data.pop("caches"))
        for name in ("arguments", "results"):
            data[name] = tuple(data[name])
        made.append(Module(**data, inputs=inputs, caches=caches))
    return made[0], made[1]

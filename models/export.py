"""Exports of the zoo to ONNX by either PyTorch exporter, kept in an on-disk cache keyed by everything that shapes them."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import io
import json
import logging
import os
import warnings
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any, Literal, cast

import onnx
import platformdirs

from onnx_fa.errors import MissingDependencyError, OnnxFaError
from onnx_fa.files import is_sealed, write_sealed
from onnx_fa.models import build as zoo
from onnx_fa.models import family_build
from onnx_fa.models.families import Family

Exporter = Literal["dynamo", "torchscript"]
OUTPUT = "hidden"
Entry = zoo.Model | Family


class ExportError(OnnxFaError):
    """The exporter cannot write this model so; the message says why."""


def cache_dir() -> Path:
    """Where exports are kept: $ONNX_FA_CACHE, or the user's cache folder."""
    return Path(os.environ.get("ONNX_FA_CACHE") or platformdirs.user_cache_dir("onnx_fa")) / "exports"


def export_onnx(
    entry: str | Entry,
    exporter: Exporter = "dynamo",
    opset: int = 18,
    dynamic: bool = False,
    attn: zoo.Attn = "sdpa",
) -> onnx.ModelProto:
    """The model as ONNX, from the cache or exported now.

    A name is one of the zoo's; a family is passed as such. dynamic: batch and length are the symbols "batch" and "seq" (families
    are static). Raises ExportError where the exporter cannot do it, MissingDependencyError without torch, transformers or
    onnxscript.
    """
    return onnx.load(export_path(entry, exporter, opset, dynamic, attn))


def export_path(
    entry: str | Entry,
    exporter: Exporter = "dynamo",
    opset: int = 18,
    dynamic: bool = False,
    attn: zoo.Attn = "sdpa",
) -> Path:
    """The cached file of `export_onnx`, written first where it is missing, or is not as it was written."""
    model = zoo.find(entry) if isinstance(entry, str) else entry
    choice = {"exporter": exporter, "opset": opset, "dynamic": dynamic, "attn": attn}
    path = cache_dir() / f"{model.name}-{_key(model, choice)}.onnx"
    if not is_sealed(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_sealed(path, _export(model, exporter, opset, dynamic, attn).SerializeToString())
    return path


def _key(model: Entry, choice: dict[str, Any]) -> str:
    """A digest of the config, the export's options, the versions that shape it, and this code."""
    versions = {}
    for package in ("torch", "transformers", "onnxscript", "onnx", "onnx-ir"):
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError as error:
            raise MissingDependencyError(f"exporting needs {package}: pip install 'onnx-fa[torch]'") from error
    digest = hashlib.sha256(json.dumps([dataclasses.asdict(model), choice, versions], sort_keys=True).encode())
    for source in (zoo.__file__, __file__, *([family_build.__file__] if isinstance(model, Family) else [])):
        digest.update(Path(source).read_bytes())
    return digest.hexdigest()[:16]


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """The exporters print progress and warn about their own internals; their exceptions still say what went wrong."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        logger.setLevel(logging.ERROR)
        try:
            yield
        finally:
            logger.setLevel(level)


@contextlib.contextmanager
def _no_fused_layers() -> Iterator[None]:
    """torch.nn's transformer layers each run as one fused operator, which the TorchScript exporter does not know: not so here."""
    import torch

    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)


def _export(model: Entry, exporter: Exporter, opset: int, dynamic: bool, attn: zoo.Attn) -> onnx.ModelProto:
    where = f"{model.name} by {exporter} at opset {opset}{', dynamic' if dynamic else ''}"
    if isinstance(model, Family):
        if dynamic:
            raise ExportError(f"cannot export {where}: families have static shapes")
        module, arrays, output_names = (
            family_build.build(model, attn),
            family_build.inputs(model),
            family_build.outputs(model),
        )
    else:
        # A size of 1 would be taken as a constant by a dynamic trace.
        module, arrays, output_names = zoo.build(model, attn), zoo.inputs(model, B=2 if dynamic else None), [OUTPUT]
    axes, shapes = None, None
    if dynamic:
        assert isinstance(model, zoo.Model)
        axes, shapes = zoo.dynamic_dims(model) | {OUTPUT: {0: "batch", 1: "seq"}}, _dynamic_shapes(model)
    return _run_exporter(module, arrays, output_names, exporter, opset, where, axes, shapes)


def export_module(module: Any, arrays: zoo.Arrays, exporter: Exporter, opset: int) -> onnx.ModelProto:
    """Any module as ONNX, with static shapes: `arrays` in the order of its arguments, by name. Raises ExportError."""
    return _run_exporter(module, arrays, [OUTPUT], exporter, opset, f"by {exporter} at opset {opset}", None, None)


def _run_exporter(
    module: Any,
    arrays: zoo.Arrays,
    output_names: list[str],
    exporter: Exporter,
    opset: int,
    where: str,
    axes: Any,
    shapes: Any,
) -> onnx.ModelProto:
    import torch

    args = tuple(torch.from_numpy(a) for a in arrays.values())
    names = list(arrays)
    buffer = io.BytesIO()
    try:
        with _quiet(), torch.no_grad():
            if exporter == "dynamo":
                program = torch.onnx.export(
                    module,
                    args,
                    dynamo=True,
                    opset_version=opset,
                    input_names=names,
                    output_names=output_names,
                    dynamic_shapes=shapes,
                    verbose=False,
                )
                assert program is not None  # given no file, dynamo returns the program
                return program.model_proto
            with _no_fused_layers():
                torch.onnx.export(
                    module,
                    args,
                    cast(Any, buffer),  # it takes a stream too
                    dynamo=False,
                    opset_version=opset,
                    input_names=names,
                    output_names=output_names,
                    dynamic_axes=axes,
                    do_constant_folding=True,
                )
    except Exception as error:  # the exporters raise whatever their passes raise
        deepest: BaseException = error
        while deepest.__cause__ is not None:
            deepest = deepest.__cause__
        reason = next((line for line in str(deepest).splitlines() if line.strip()), "")
        raise ExportError(f"cannot export {where}: {type(deepest).__name__}: {reason.strip()}") from error
    return onnx.load_from_string(buffer.getvalue())


def _dynamic_shapes(model: zoo.Model) -> tuple[Any, ...]:
    """torch.export's tree for a module that takes its inputs as *args (one argument to torch.export): axis -> Dim each."""
    import torch

    dims = {name: torch.export.Dim(name, min=2, max=max(model.S, 64)) for name in ("batch", "seq")}
    return (tuple({axis: dims[s] for axis, s in axes.items()} for axes in zoo.dynamic_dims(model).values()),)

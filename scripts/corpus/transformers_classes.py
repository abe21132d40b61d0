"""Classes of transformers with tiny configurations, exported from each spelling of attention that they have by both of torch's
exporters, with lengths that are free and with none."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

import corpus.torch_setup  # noqa: F401
from corpus.case import Case, Made
from corpus.feeds import Run
from corpus.torch_export import Call, Exporter, Module, export

RUNS = (Run("inputs"), Run("padding", padding="right"), Run("one", batch=1))
Axes = Mapping[str, dict[int, str]]


@dataclass(frozen=True)
class Model:
    """`module` is that of the class below transformers.models, without `modeling_` where both have one name. `call` is given the
    model and its inputs, of which masks are bools and ids integers; `axes` are those that are free, but for files without any.
    `attentions` is None where they are counted. `lacking`: suffixes of files that this exporter does not write."""

    name: str
    module: str
    class_name: str
    config: str
    options: Mapping[str, Any]
    call: Callable[..., Any]
    inputs: Mapping[str, tuple[int, ...]]
    axes: Axes
    attentions: int | None = None
    why: str = ""
    lacking: tuple[str, ...] = ()


def make(model: Model, attention: str | None) -> Any:
    """The model with random weights."""
    package = model.module.split(".")[0]
    where = model.module if "." in model.module else f"{model.module}.modeling_{model.module}"
    classes = import_module(f"transformers.models.{where}")
    config = getattr(import_module(f"transformers.models.{package}"), model.config)(**model.options)
    config._attn_implementation = attention
    made = getattr(classes, model.class_name)(config)
    return Call(made.float(), model.call)


def cases_of(models: Iterable[Model]) -> Iterator[Case]:
    """Three files of each model: by both exporters from its own spelling of attention with sizes that are free, and from the eager
    one with fixed ones."""
    files: tuple[tuple[str, Exporter, bool], ...] = (
        ("", "torchscript", True),
        ("-dynamo", "dynamo", True),
        ("-eager", "torchscript", False),
    )
    for model in models:
        for suffix, exporter, free in files:
            if suffix in model.lacking:
                continue
            name = model.name + suffix
            yield Case(name, partial(_export, name, model, exporter, free))


def _export(name: str, model: Model, exporter: Exporter, free: bool, folder: Path) -> Iterable[Made]:
    types = {key: torch.bool if "mask" in key else torch.int64 for key in model.inputs if "mask" in key or "ids" in key}
    types |= {"target": torch.int64}
    axes = {key: dict(model.axes.get(key, {})) if free else {} for key in model.inputs}
    module = Module(
        name,
        partial(make, model, None if free else "eager"),
        model.inputs,
        model.attentions,
        model.why,
        types,
        axes,
        runs=_runs(model),
    )
    return export(name, module, exporter, True, folder)


def _runs(model: Model) -> tuple[Run, ...]:
    """Runs of the sizes that the model was exported with."""
    sizes = {word: model.inputs[key][axis] for key, named in model.axes.items() for axis, word in named.items()}
    runs = RUNS if sizes.pop("batch", None) is not None else RUNS[:2]
    return tuple(Run(run.name, batch=run.batch, padding=run.padding, sizes=sizes) for run in runs)

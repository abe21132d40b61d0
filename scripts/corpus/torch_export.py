"""Modules of libraries of PyTorch: their attentions, counted while they run, and their exports by both of torch's exporters."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal

import onnx
import torch
from torch.nn import functional
from torch.overrides import TorchFunctionMode

import corpus.torch_setup  # noqa: F401
from corpus.case import Case, Made
from corpus.feeds import Run, runs_of

Exporter = Literal["torchscript", "dynamo"]
BOTH: tuple[Exporter, ...] = ("torchscript", "dynamo")
SOFTMAXES = (torch.softmax, torch.Tensor.softmax, functional.softmax)
WHOLE = (functional.scaled_dot_product_attention, functional.multi_head_attention_forward)


@dataclass(frozen=True)
class Module:
    """A module, made when it is needed, with the shapes of its inputs (integers are token ids, bools masks) and their dynamic axes.

    `attentions` is None where all that `count` sees are: then the number is counted. `outputs`: what of the result is exported."""

    name: str
    make: Callable[[], Any]
    inputs: Mapping[str, tuple[int, ...]]
    attentions: int | None = None
    why: str = ""
    types: Mapping[str, torch.dtype] = field(default_factory=dict)
    axes: Mapping[str, dict[int, str]] = field(default_factory=dict)
    exporters: tuple[Exporter, ...] = ("torchscript",)
    runs: tuple[Run, ...] = (Run("inputs"), Run("one", batch=1))


class Call(torch.nn.Module):
    """A module, called by a function that knows its options."""

    def __init__(self, module: torch.nn.Module, call: Callable[..., Any]) -> None:
        super().__init__()
        self.module, self.call = module, call

    def forward(self, *tensors: torch.Tensor) -> Any:
        return self.call(self.module, *tensors)


class Count(TorchFunctionMode):
    """Counts the attentions that run: whole ones, and softmaxes of scores, which have three axes or more."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        scores = func in SOFTMAXES and args[0].ndim >= 3
        self.count += func in WHOLE or scores
        return func(*args, **(kwargs or {}))


class Tensors(torch.nn.Module):
    """A module with named inputs and the tensors of its result, whatever that is."""

    def __init__(self, module: Any, names: list[str]) -> None:
        super().__init__()
        self.module, self.names = module, names

    def forward(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(_tensors(self.module(**dict(zip(self.names, tensors, strict=True)))))


class Positional(Tensors):
    """The same of a module whose inputs have no names of their own."""

    def forward(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(_tensors(self.module(*tensors)))


def _tensors(result: Any) -> Iterator[torch.Tensor]:
    if isinstance(result, torch.Tensor):
        yield result
    elif isinstance(result, Mapping):
        for value in result.values():
            yield from _tensors(value)
    elif isinstance(result, list | tuple):
        for value in result:
            yield from _tensors(value)
    elif hasattr(result, "sample"):
        yield from _tensors(result.sample)


def lengths_of(parts: Any, whole: int) -> Any:
    """Lengths of which the longest is the whole, from numbers of any size."""
    some = (parts.sigmoid() * whole).ceil().long()
    return torch.where(parts >= parts.max(), whole, some)


def cases_of(modules: Iterable[Module], positional: bool = True) -> Iterator[Case]:
    """A case for each module and exporter. `positional`: whether the inputs are given in order, or by name."""
    for module in modules:
        for exporter in module.exporters:
            name = module.name if exporter == "torchscript" else f"{module.name}-dynamo"
            yield Case(name, partial(export, name, module, exporter, positional))


def export(name: str, module: Module, exporter: Exporter, positional: bool, folder: Path) -> Iterable[Made]:
    """One file. The batch is dynamic where no axes are given."""
    torch.manual_seed(0)
    torch.backends.mha.set_fastpath_enabled(False)  # has no ONNX in either exporter
    made = module.make().eval()
    given = {key: sample(shape, module.types.get(key, torch.float32)) for key, shape in module.inputs.items()}
    wrapped = (Positional if positional else Tensors)(made, list(given))
    with torch.no_grad():
        with Count() as seen:
            wrapped(*given.values())
        path = folder / "model.onnx"
        axes = dict(module.axes) or {key: {0: "batch"} for key, shape in module.inputs.items() if shape}
        write(wrapped, given, axes, exporter, path)
    attentions = seen.count if module.attentions is None else module.attentions
    why = module.why or "counted while the module runs"
    yield Made(name, path, attentions, why, runs_of(onnx.load(path), module.runs))


def write(
    module: Any, given: dict[str, torch.Tensor], axes: dict[str, dict[int, str]], exporter: Exporter, path: Path
) -> None:
    """The file of a module by an exporter. `axes` are free ones, by the inputs' names."""
    arguments = tuple(given.values())
    if exporter == "torchscript":
        torch.onnx.export(
            module, arguments, path, input_names=list(given), dynamic_axes=axes, opset_version=17, dynamo=False
        )
        return
    dims: dict[str, Any] = {}
    shapes = tuple(
        {axis: dims.setdefault(name, torch.export.Dim(name)) for axis, name in axes.get(key, {}).items()}
        for key in given
    )
    torch.onnx.export(
        module, arguments, path, input_names=list(given), dynamic_shapes=(shapes,), external_data=False, verbose=False
    )


def sample(shape: tuple[int, ...], kind: torch.dtype) -> torch.Tensor:
    """A random input; ids are below 60, masks all true."""
    generator = torch.Generator().manual_seed(0)
    if kind == torch.bool:
        return torch.ones(shape, dtype=kind)
    if not kind.is_floating_point:
        return torch.randint(0, 60, shape, generator=generator, dtype=kind)
    return torch.randn(shape, generator=generator).to(kind)

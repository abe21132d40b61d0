"""What a search measures: programs, and the space of those of a kernel body."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy.typing as npt

from onnx_fa.iree.alone import FUNCTION, SiteKernel, compile_alone
from onnx_fa.kernels.tiles.database import Tiles
from onnx_fa.processes import Limits
from onnx_fa.spec.attention import AttentionSpec
from onnx_fa.spec.linear import LinearSpec
from onnx_fa.spec.target import Target

S = TypeVar("S", AttentionSpec, LinearSpec)


@dataclass(frozen=True)
class Program:
    """A candidate. `text` tells it from all others of its case. `compile` makes a module of it, with flags beside those that it
    needs, and raises CompileError; `function` is what the module exports. It takes what `inputs` makes of the operands of a spec,
    in the `layout` of this name."""

    text: str
    compile: Callable[[Path, Sequence[str], Limits], None]
    inputs: Callable[[Sequence[npt.NDArray[Any]]], list[npt.NDArray[Any]]] = list
    layout: str = "plain"
    function: str = FUNCTION


@dataclass(frozen=True)
class Space(Generic[S]):
    """What there is to try for a body of kernels for specs of a `kind`. `default` are the tiles in use; `first` is a coarse grid;
    `around` varies one field at a time of the best so far; `emit` makes the program with given tiles (UnsupportedError or
    ValueError where they do not fit); `queries` are those (or the rows) that are computed; `seen` is the spec as the body looks up
    its tiles; `options` are tried on the best tiles."""

    kind: type[S]
    default: Callable[[S, Target], Tiles]
    first: Callable[[S, Target], Iterator[Tiles]]
    around: Callable[[S, Tiles], Iterator[Tiles]]
    emit: Callable[[S, Target, str, Tiles], Program]
    queries: Callable[[S, Tiles], float]
    seen: Callable[[S], S] = lambda spec: spec
    options: tuple[tuple[str, ...], ...] = ()


def program_of(kernel: SiteKernel, target: Target, **options: Any) -> Program:
    """A kernel as a module of its own."""

    def compile_within(output: Path, flags: Sequence[str], limits: Limits) -> None:
        compile_alone(kernel, output, target, flags=flags, **asdict(limits))

    return Program(kernel.text, compile_within, **options)

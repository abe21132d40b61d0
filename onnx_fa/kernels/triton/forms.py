"""Code of several forms, by their tiles, each for up to so many rows: compiled with the first tiles that Triton takes, and how many
workgroups a call has."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

from onnx_fa.errors import UnsupportedError
from onnx_fa.kernels.mlir.text import Text
from onnx_fa.kernels.triton import ptx
from onnx_fa.kernels.triton.config import ARCHITECTURES
from onnx_fa.kernels.triton.few_source import FewConfig
from onnx_fa.kernels.triton.linear_source import LinearConfig
from onnx_fa.kernels.triton.program import Program
from onnx_fa.kernels.triton.shared_sums import BUSY

Smaller = Sequence[tuple[int, LinearConfig]]
"""Tiles for up to so many rows."""
Config = TypeVar("Config", bound=LinearConfig | FewConfig)


@dataclass(frozen=True)
class FormedCode:
    """One architecture's code, its tiles, and those that it has beside these."""

    arch: int
    code: ptx.Compiled
    config: LinearConfig | FewConfig
    smaller: tuple[tuple[int, LinearConfig], ...] = ()

    @property
    def forms(self) -> tuple[LinearConfig | FewConfig, ...]:
        return (self.config, *(tiles for _, tiles in self.smaller))

    @property
    def most_splits(self) -> int:
        return max(tiles.splits for tiles in self.forms)

    @property
    def largest_part(self) -> int:
        """Numbers of a tile of any form whose sums are cut."""
        return max((tiles.BM * tiles.BN for tiles in self.forms if tiles.splits > 1), default=0)


Formed = tuple[Program, FormedCode]


def compile_first(
    arch: int,
    configs: Iterable[Config],
    smaller_of: Callable[[Config], Smaller],
    write: Callable[[Config, Smaller], Program],
    what: str,
) -> Formed:
    """The program that is written with the first of the tiles which fit, and its code. Raises UnsupportedError, with `what` it is
    of and what is wrong with the first, where none does."""
    problem: UnsupportedError | None = None
    for config in configs:
        smaller = smaller_of(config)
        try:
            program = write(config, smaller)
            code = ptx.compile_program(program, arch, config.warps, config.stages)
        except UnsupportedError as e:
            problem = problem or e
            continue
        return program, FormedCode(arch, code, config, tuple(smaller))
    raise UnsupportedError(f"triton, {what}: {problem}")


def for_all_architectures(compile_one: Callable[[int], Formed]) -> tuple[Program, list[FormedCode]]:
    """Compiled at the same time; the program is the newest architecture's, whose operands are those of all."""
    with ThreadPoolExecutor(len(ARCHITECTURES)) as pool:
        made = list(pool.map(compile_one, ARCHITECTURES))
    return made[0][0], [code for _, code in made]


def workload_of(
    t: Text, code: FormedCode, rows: str, across: Callable[[LinearConfig | FewConfig], int], *, free: bool
) -> list[str]:
    """Workgroups for so many rows, an index, with as many tiles `across` as some tiles have beside each other. `free`: the rows may
    be none, and behind the workgroups it is said into how many parts each one's sums are cut: as many as keep a GPU busy, and as
    the form takes."""

    def tiles_of(config: LinearConfig | FewConfig) -> str:
        down = t.arith("ceildivui", rows, t.index(config.BM))
        if free:
            down = t.arith("maxui", down, t.index(1))  # CUDA takes no launch of nothing
        return t.arith("muli", down, t.index(across(config)))

    count, splits = tiles_of(code.config), t.index(code.config.splits)
    for most, tiles in reversed(code.smaller):
        fit = t.test("ule", rows, t.index(most))
        count = t.let(f"arith.select {fit}, {tiles_of(tiles)}, {count} : index")
        if tiles.splits != code.config.splits:
            splits = t.let(f"arith.select {fit}, {t.index(tiles.splits)}, {splits} : index")
    if not free:
        return [count]
    if code.most_splits == 1:
        return [count, splits]
    fill = t.arith("maxui", t.arith("divui", t.index(BUSY), count), t.index(1))
    return [count, t.arith("minui", fill, splits)]

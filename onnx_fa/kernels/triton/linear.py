"""Linear sites by Triton: tiles, code, and the function that a program calls. Where only a run knows whether rows are few, a kernel
has code for a few and code for many, and chooses for itself."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import fields, replace
from functools import cache

from onnx_fa.errors import UnsupportedError
from onnx_fa.kernels.mlir.entry import KernelEntry
from onnx_fa.kernels.mlir.operand import ROWS
from onnx_fa.kernels.mlir.text import element_type
from onnx_fa.kernels.tiles.origin import Origin, built_in
from onnx_fa.kernels.triton.config import MULTIPROCESSORS
from onnx_fa.kernels.triton.entry import Counters, Dispatched
from onnx_fa.kernels.triton.executable import executable_text
from onnx_fa.kernels.triton.few_source import MOST_ROWS, FewConfig
from onnx_fa.kernels.triton.forms import (
    Formed,
    FormedCode,
    Smaller,
    compile_first,
    for_all_architectures,
    workload_of,
)
from onnx_fa.kernels.triton.fused_linear import config_of, program_of
from onnx_fa.kernels.triton.linear_source import LinearConfig, LinearSource, products_of, program_of_forms
from onnx_fa.kernels.triton.linear_tiles import DATABASE, measured_tiles, nearest
from onnx_fa.kernels.triton.program import Program
from onnx_fa.kernels.triton.shared_sums import BUSY, LOW_TILES, MOST_TILES, most_parts
from onnx_fa.kernels.triton.tiles import PROCESSORS
from onnx_fa.spec.expr import parts
from onnx_fa.spec.fused_linear import FusedLinear
from onnx_fa.spec.linear import LinearSpec, linear_name

FEW = 16
"""Up to so many rows are one block, whose time is that of reading the weight."""
_LEAST = 16
"""Columns of a tile."""
_ANY = 1 << 30
"""More columns than tiles have."""
_TILE = 64 * 128
"""Numbers of a small tile: as many of them as there are multiprocessors fill a GPU without parts of K."""
_SQUARE = 64
"""Rows and columns of a tile, by which it is told whether K is to be cut into parts."""
_HALVES = (LinearConfig(64, 32, 128, 4, 4), LinearConfig(64, 64, 64, 4, 4), LinearConfig(64, 128, 64, 4, 4))
"""Tiles of halves, for ever more rows."""
_TALL = LinearConfig(128, 128, 64, 4, 3)
"""Tiles for the most rows of some, with as many warps as the others, as forms of one kernel have."""
_USUAL_ROWS = 512
"""What unknown numbers of rows are taken to be, where tiles are chosen."""


@cache
def emit_linear(spec: LinearSpec) -> dict[str, str]:
    """The executable and the function of the site's name, which takes its operands and returns y, by their symbols. Raises
    UnsupportedError for bytes, for weights in a shorter type than x, and where Triton refuses all tiles."""
    if spec.is_of_bytes:
        raise UnsupportedError("bytes on CUDA")
    if spec.stored:
        raise UnsupportedError(f"a weight of {spec.stored} for an x of {spec.dtype} on CUDA")
    name, symbol = linear_name(spec), _symbol(spec)
    program, codes = _compiled(spec)
    entry = LinearEntry(spec, name, symbol, codes)
    splits = None if spec.rows is None else [c.config.splits for c in codes]
    texts = {symbol: _joined(executable_text(symbol, program, codes, splits))}
    if entry.counters:
        texts[entry.counters.symbol] = _joined([entry.counters.declaration])
    return {**texts, name: _joined(entry.text_lines())}


def _rows_at_least(spec: LinearSpec) -> int:
    """Of a call that has any: the known ones, or those of one of each free dim."""
    return math.prod(d for d in spec.lead if isinstance(d, int)) if spec.rows is None else spec.rows


def _are_few(spec: LinearSpec) -> bool:
    return spec.rows is not None and spec.rows <= FEW


def _symbol(spec: LinearSpec) -> str:
    return f"{linear_name(spec)}_{'few' if _are_few(spec) else 'many'}"


def origin_of(spec: LinearSpec) -> Origin:
    """The tiles of the newest architecture's code, for many rows where there are two forms, and where they are from."""
    config = max(_compiled(spec)[1], key=lambda code: code.arch).config
    tiles = tuple((f.name, int(getattr(config, f.name))) for f in fields(config))
    if _are_few(spec):
        return built_in(dict(tiles), "few rows")
    if _follows_rows(spec):
        return built_in(dict(tiles), "a rule for rows that only a run knows, measured on an H200")
    found = nearest(spec, _likely_rows(spec))
    if found is None:
        return built_in(dict(tiles), f"nothing was measured of {spec.dtype}{' by few bits' * bool(spec.bits)}")
    size = (found.rows, found.K, found.N)
    differs = "the same product" if size == (spec.rows, spec.K, spec.N) else "nearest"
    return Origin(tiles, f"{DATABASE}: f16 {'x'.join(map(str, size))}; {differs}")


def _joined(lines: Sequence[str]) -> str:
    return "\n".join(lines) + "\n"


@cache
def _compiled(spec: LinearSpec) -> tuple[Program, list[FormedCode]]:
    return for_all_architectures(lambda arch: _code(spec, arch))


def _code(spec: LinearSpec, arch: int) -> Formed:
    configs = [replace(wide, BN=min(wide.BN, _widest(spec))) for wide in _tiles(spec, arch)]

    def smaller_of(config: LinearConfig | FewConfig) -> Smaller:
        return [] if isinstance(config, FewConfig) else _smaller(spec, config, arch)

    def write(config: LinearConfig | FewConfig, smaller: Smaller) -> Program:
        if isinstance(config, FewConfig):
            return program_of(FusedLinear(spec), config, _symbol(spec))
        return _program(spec, config, smaller, arch)

    return compile_first(arch, configs, smaller_of, write, "linear site")


def _program(spec: LinearSpec, config: LinearConfig, smaller: Smaller, arch: int) -> Program:
    if not smaller:
        return _source(spec, config, arch).program()
    forms = [(most, _source(spec, tiles, arch, f"_of_{most}")) for most, tiles in smaller]
    return program_of_forms([*forms, (0, _source(spec, config, arch, "_of_more"))], _symbol(spec))


def _source(spec: LinearSpec, config: LinearConfig, arch: int, suffix: str = "") -> LinearSource:
    return LinearSource(spec, config, _symbol(spec) + suffix, products_of(config, arch))


def _widest(spec: LinearSpec) -> int:
    """The most columns of a tile that belong to one result, a power of two. Raises UnsupportedError for fewer than tensor cores
    take."""
    starts = [sum(spec.parts[:i]) for i in range(1, len(spec.parts))]
    common = math.gcd(*starts) if starts else _ANY
    if (widest := common & -common) < _LEAST:
        raise UnsupportedError(f"results of {spec.parts} columns begin within tiles of {_LEAST}")
    return widest


def _likely_rows(spec: LinearSpec) -> int:
    """What tiles are chosen for."""
    return spec.rows or max(_USUAL_ROWS, _rows_at_least(spec))


def _splits(spec: LinearSpec) -> int:
    """Parts of K, of which a call has fewer where it has more tiles; the same for both architectures, which share the function's
    buffers. None where the fewest rows that a call has fill a GPU."""
    fewest = -(-_rows_at_least(spec) // _SQUARE) * -(-spec.N // _SQUARE)
    # Halves take half as long for as many numbers.
    most = 1 if fewest > MOST_TILES else most_parts(spec.K if spec.dtype == "f32" else spec.K // 2)
    return most if spec.rows is None else max(1, min(most, MOST_TILES // fewest))


def _few_tiles(spec: LinearSpec) -> LinearConfig:
    """Enough workgroups for all multiprocessors, each with as much on its way from memory as it can have."""
    return LinearConfig(16, 16 if spec.N <= 4096 else 32, 64 if spec.dtype == "f32" else 128, 4, 4)


def _has_forms(spec: LinearSpec) -> bool:
    """Whether the code of a free number of rows has tiles for low ones and for many. A row of tiles of a wide f32 fills a GPU."""
    wide = spec.dtype == "f32" and _most_f32(spec) < 2 * _SQUARE
    return spec.bits is None and not wide


def _follows_rows(spec: LinearSpec) -> bool:
    """Whether the tiles are those of halves, for ever more rows."""
    return spec.rows is None and spec.dtype != "f32" and _has_forms(spec)


def _low_forms(spec: LinearSpec, arch: int) -> list[tuple[int, LinearConfig]]:
    """Tiles for so few rows that taller ones leave multiprocessors without work, the lowest first, each with the most rows that it
    is for (benchmarks/linear-f32-h200.csv and linear-f16-forms-h200.csv)."""
    if not _has_forms(spec):
        return []
    if spec.dtype == "f32":
        return [(_most_f32(spec), _low_f32(spec, arch))]

    def most(tiles: LinearConfig) -> int:
        return max(1, MULTIPROCESSORS // -(-spec.N // tiles.BN)) * tiles.BM

    narrow, square, wide = _HALVES
    found = [(most(narrow), narrow)] * (most(narrow) > narrow.BM) + [(most(square), square)]
    if _most_halves(spec, arch) == _TALL:
        found.append((most(_TALL), wide))
    return found if arch >= 90 else [(rows, replace(tiles, stages=3)) for rows, tiles in found]


def _most_halves(spec: LinearSpec, arch: int) -> LinearConfig:
    """The tiles of halves for the most rows. Tall ones have no registers left for what follows a sum, but a bias."""
    if arch < 90:
        return replace(_HALVES[-1], stages=3)
    is_plain = all(t.shape == (spec.N,) for t in spec.tensors) and len(list(parts(spec.then))) <= 3
    return _TALL if is_plain and _widest(spec) >= _TALL.BN <= spec.N else _HALVES[-1]


def _most_f32(spec: LinearSpec) -> int:
    """The most rows of f32 that are for low tiles."""
    return LOW_TILES * 32 // -(-spec.N // 64)


def _low_f32(spec: LinearSpec, arch: int) -> LinearConfig:
    if 0 < spec.N % 64 <= 32:
        return LinearConfig(64, 32, 32, 4, 4 if arch >= 90 else 3)
    return LinearConfig(32, 64, 64 if arch >= 90 and spec.K > 64 else 32, 4, 3)


def _smaller(spec: LinearSpec, config: LinearConfig, arch: int) -> list[tuple[int, LinearConfig]]:
    """The tiles for fewer rows that code has beside its own, where only a run knows how many there are."""
    if spec.rows is not None:
        return []
    least = _rows_at_least(spec)
    few, low = _few_tiles(spec), _low_forms(spec, arch)
    if low and spec.dtype == "f32":
        # All forms have the registers of the one that takes most: with deeper steps 207, of which a multiprocessor holds two
        # workgroups, in place of 163, of which it holds three.
        few = replace(few, BK=32, stages=8)
        low = [(most, replace(c, BK=32, stages=min(c.stages + (c.BK > 32), 4))) for most, c in low]
    # Halves are so fast that parts of K pay for a few rows alone: of 128 rows of 3,072 by 768 they take twice as long.
    few = replace(few, splits=_splits(spec))
    low = [(most, replace(c, splits=few.splits if spec.dtype == "f32" else 1)) for most, c in low]
    found = [(FEW, few), *low] if least <= FEW else low
    made = [(most, replace(c, BN=min(c.BN, _widest(spec)), warps=config.warps)) for most, c in found if least <= most]
    # Where columns of several results make tiles narrow, some are as the next ones.
    following = zip(made, [c for _, c in [*made, (0, config)][1:]], strict=True)
    return [form for form, after in following if (form[1].BM, form[1].BN) != (after.BM, after.BN)]


def _tiles(spec: LinearSpec, arch: int) -> list[LinearConfig | FewConfig]:
    """Tiles, the best first, for where they do not fit."""
    if spec.rows is not None and spec.rows <= MOST_ROWS:
        return [config_of(FusedLinear(spec))]
    rows, splits = _likely_rows(spec), 1
    if _are_few(spec):
        first = _few_tiles(spec)
    elif _follows_rows(spec):
        first = _most_halves(spec, arch)
    elif spec.dtype == "f32" and _has_forms(spec):
        # Code of several forms has as many threads in each. Of both architectures, which share the function's buffers, K is cut
        # alike.
        splits = _splits(spec)
        first = LinearConfig(64, 64, 32, 4, 2) if spec.rows is None else LinearConfig(128, 64, 32, 8, 3)
        if arch < 90:
            first = LinearConfig(64, 64, 32, 4, 3)
        if spec.rows is not None and spec.rows <= _most_f32(spec):
            first = _low_f32(spec, arch)
    else:
        measured = measured_tiles(spec, rows)
        splits = measured[0].splits if measured and rows * spec.N <= PROCESSORS * _TILE else 1
        splits = _splits(spec) if spec.rows is None else splits
        if measured and arch >= 90:
            return [replace(tiles, splits=splits) for tiles in measured]
        fills = -(-rows // 128) * -(-spec.N // 128) >= PROCESSORS
        deep = 32 if spec.dtype == "f32" else 64
        first = LinearConfig(128, 128, deep, 8, 3) if fills else LinearConfig(64, 64, deep, 4, 4)
        if arch < 90:
            first = LinearConfig(first.BM, 64, 32, 4, 3)
    first = replace(first, splits=splits)
    smaller = [replace(first, stages=2), replace(first, stages=1, BM=min(first.BM, 64), BN=min(first.BN, 64), warps=4)]
    return [first, *smaller]


class LinearEntry(KernelEntry):
    """The function of a site, whose kernel is the executable `symbol`."""

    def __init__(self, spec: LinearSpec, name: str, symbol: str, codes: list[FormedCode]) -> None:
        super().__init__(spec, name)
        self.spec, self.symbol, self.codes = spec, symbol, codes
        split = [c.config for c in codes if c.most_splits > 1]
        tiles = [MOST_TILES if spec.rows is None else self._down(c) * -(-spec.N // c.BN) for c in split]
        self.tiles = max(tiles, default=0)
        self.counters = Counters(name, self.tiles) if split else None
        """A number for each tile of the result, where K is split."""

    def text_lines(self) -> list[str]:
        t, spec = self.t, self.spec
        rows = self.count_rows(spec.lead)
        lead = (ROWS,) if spec.rows is None else (spec.rows,)
        elements = [element_type(d) for d in spec.operand_dtypes]
        wanted = [(*lead, spec.K), *spec.operand_shapes[1:]]
        values = self.pass_operands(spec.operand_shapes, wanted, elements)
        types = [self.typed(shape, element) for shape, element in zip(wanted, elements, strict=True)]
        count = t.let(f"arith.index_cast {rows} : index to i32")
        widths = spec.parts or (spec.N,)
        results = [self.typed((*lead, columns), spec.dtype) for columns in widths]
        made = self._dispatch(values, types, count, results, rows)
        return self.lines(
            [
                self.reshape(y, (*lead, columns), (*spec.lead, columns), spec.dtype)
                for y, columns in zip(made, widths, strict=True)
            ]
        )

    def _down(self, config: LinearConfig | FewConfig) -> int:
        """Tiles below each other, of known rows."""
        assert self.spec.rows is not None
        return -(-self.spec.rows // config.BM)

    def _numbers_left(self, code: FormedCode) -> int:
        """What workgroups with parts of K leave each other: sums of rows, or of whole tiles."""
        config = code.config
        if self.spec.rows is None:
            return BUSY * code.largest_part
        if isinstance(config, FewConfig):
            return config.splits * self.spec.rows * self.spec.N
        return config.splits * self._down(config) * config.BM * -(-self.spec.N // config.BN) * config.BN

    def _dispatch(
        self, values: Sequence[str], types: Sequence[str], count: str, results: Sequence[str], rows: str
    ) -> list[str]:
        t, codes = self.t, self.codes
        free = self.spec.rows is None
        counts = [
            number
            for code in codes
            for number in workload_of(t, code, rows, lambda tiles: -(-self.spec.N // tiles.BN), free=free)
        ]
        numbers = max(self._numbers_left(c) for c in codes)
        dispatched = Dispatched(self.symbol, tuple(c.arch for c in codes), self.counters, numbers)
        return dispatched.run(t, counts, values, types, [count], results)

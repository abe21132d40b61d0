"""Convolutions by Triton: which of them a kernel takes, tiles, and the function that a program calls."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache

from onnx_fa.errors import UnsupportedError
from onnx_fa.kernels.cpu.window_body import operands_of, y_of
from onnx_fa.kernels.mlir.called import function_text
from onnx_fa.kernels.mlir.operand import Operand
from onnx_fa.kernels.mlir.text import Text
from onnx_fa.kernels.triton.config import ARCHITECTURES, MULTIPROCESSORS, power_of_two
from onnx_fa.kernels.triton.entry import Counters, Dispatched
from onnx_fa.kernels.triton.executable import executable_text
from onnx_fa.kernels.triton.few_source import FewConfig
from onnx_fa.kernels.triton.forms import (
    Formed,
    FormedCode,
    Smaller,
    compile_first,
    for_all_architectures,
    workload_of,
)
from onnx_fa.kernels.triton.linear_source import LinearConfig, products_of, program_of_forms
from onnx_fa.kernels.triton.program import Program
from onnx_fa.kernels.triton.shared_sums import BUSY, LOW_TILES, MOST_TILES, most_parts
from onnx_fa.kernels.triton.window_source import WindowSource, numbers_along
from onnx_fa.spec.windows import WindowSpec

_LEAST = 16
"""Columns of a tile, and numbers of a step, which tensor cores take."""
_WIDE = 128
"""Columns of wide tiles."""
_DEPTHWISE = LinearConfig(16, 64, 1, 4, 1)


def takes(spec: WindowSpec) -> bool:
    """Whether there is a kernel: of two axes, with channels last on both sides."""
    return spec.x_last and spec.last and len(spec.sizes) == 2 and spec.blocks == 1 and spec.panel == spec.N


def _tiles(spec: WindowSpec, arch: int) -> list[LinearConfig]:
    """Tiles for any number of images, the best first, for where they do not fit."""
    if spec.depthwise:
        return [replace(_DEPTHWISE, BN=min(64, power_of_two(spec.N)))]
    rows = spec.rows * (spec.images or 1)
    low = _low_tiles(spec, arch)
    are_few = rows <= _most_low(spec, low)
    if are_few and spec.images is not None:
        first = low
    else:
        first = replace(low, BM=64, BN=max(_LEAST, min(64, power_of_two(spec.N))), stages=3)
        if arch >= 90 and not are_few:  # code of several forms has as many threads in each
            first = replace(first, BM=128, warps=8)
        wide = -(-spec.N // _WIDE)
        if 2 * wide == -(-spec.N // 64) and (are_few or -(-rows // 64) * wide * spec.groups >= MULTIPROCESSORS):
            # Of f16, 512 channels of 64 x 64, they take 0.64 of the time of tiles of 128 x 64 (benchmarks/conv-h200.csv).
            stages = 3 if spec.dtype == "f32" or arch < 90 else 4
            first = replace(first, BM=64, BN=_WIDE, warps=4, stages=stages)
    fewest = -(-rows // 64) * -(-spec.N // 64) * spec.groups
    # The same for both architectures, which share the function's buffers.
    splits = 1 if fewest > MOST_TILES else most_parts(numbers_along(spec, 32))
    first = replace(first, splits=splits)
    return [
        first,
        replace(first, stages=2),
        replace(first, stages=1, BM=min(first.BM, 64), BN=min(first.BN, 64), warps=4),
    ]


def _low_tiles(spec: WindowSpec, arch: int) -> LinearConfig:
    """Tiles for so few places that taller ones would leave multiprocessors without work (benchmarks/linear-f32-h200.csv)."""
    deep = 32 if spec.dtype == "f32" else 64
    deep = max(_LEAST, min(deep, power_of_two(spec.channels if spec.channels >= _LEAST else spec.K)))
    tall, wide = (64, 32) if 0 < spec.N % 64 <= 32 else (32, 64)
    return LinearConfig(tall, max(_LEAST, min(wide, power_of_two(spec.N))), deep, 4, 4 if arch >= 90 else 3)


def _most_low(spec: WindowSpec, low: LinearConfig) -> int:
    """The most places of all images that are for those."""
    return LOW_TILES * low.BM // (-(-spec.N // low.BN) * spec.groups)


def _smaller(spec: WindowSpec, config: LinearConfig, arch: int) -> Smaller:
    """The tiles for fewer places that code has beside its own, where only a run knows how many there are."""
    low = _low_tiles(spec, arch)
    if spec.images is not None or spec.depthwise or spec.rows > (most := _most_low(spec, low)):
        return []
    return [(most, replace(low, warps=config.warps, splits=config.splits))]


def _compiled(spec: WindowSpec, symbol: str, arch: int, free: bool) -> Formed:
    def source(config: LinearConfig, name: str) -> WindowSource:
        return WindowSource(spec, config, name, products_of(config, arch), free=free)

    def write(config: LinearConfig, smaller: Smaller) -> Program:
        if not smaller:
            return source(config, symbol).program()
        forms = [(most, source(tiles, f"{symbol}_of_{most}")) for most, tiles in [*smaller, (0, config)]]
        return program_of_forms(forms, symbol)

    return compile_first(arch, _tiles(spec, arch), lambda config: _smaller(spec, config, arch), write, "convolution")


@dataclass(frozen=True)
class WindowCode:
    """A convolution's `texts` by their symbols: the executable `symbol`, of these codes, and its counters where it has some."""

    spec: WindowSpec
    symbol: str
    texts: dict[str, list[str]]
    codes: list[FormedCode]
    counters: Counters | None

    def call(
        self, t: Text, values: Sequence[str], kinds: Sequence[str], rows: str, y: Operand, sizes: Sequence[str] = ()
    ) -> str:
        """Dispatches it for operands of these types and places of all images, an index; `sizes` are the parameters behind these.
        Returns y."""

        def across(tiles: LinearConfig | FewConfig) -> int:
            return -(-self.spec.N // tiles.BN) * self.spec.groups

        counts = [n for code in self.codes for n in workload_of(t, code, rows, across, free=True)]
        numbers = BUSY * max(code.largest_part for code in self.codes)
        given = [t.let(f"arith.index_cast {size} : index to i32") for size in (rows, *sizes)]
        dispatched = Dispatched(self.symbol, ARCHITECTURES, self.counters, numbers)
        return dispatched.run(t, counts, values, kinds, given, [y.sized_type])[0]


def compile_window(spec: WindowSpec, name: str, *, free: bool = False) -> WindowCode:
    """The code of a convolution. `free`: of images that are lines, whose length and places only a run knows."""
    symbol = f"{name}_tiles"
    program, codes = for_all_architectures(lambda arch: _compiled(spec, symbol, arch, free))
    texts = {symbol: executable_text(symbol, program, codes, None)}
    counters = Counters(name, MOST_TILES) if any(code.most_splits > 1 for code in codes) else None
    if counters:
        texts[counters.symbol] = [counters.declaration]
    return WindowCode(spec, symbol, texts, codes, counters)


@cache
def emit_window(spec: WindowSpec) -> dict[str, str]:
    """The executable and the function of the spec's name, which takes x, the weight and what else the spec has and returns y, by
    their symbols. Raises UnsupportedError for a spec that `takes` does not, and where Triton refuses all tiles."""
    if not takes(spec):
        raise UnsupportedError(f"a convolution of {spec} on CUDA")
    code, t, operands = compile_window(spec, spec.name), Text(), operands_of(spec)
    y, images = y_of(spec), "%rows" if spec.parts is None else t.index(spec.parts)
    rows = t.arith("muli", images, t.index(spec.rows))
    made = code.call(t, [x.name for x in operands], [x.sized_type for x in operands], rows, y)
    texts = code.texts | {spec.name: function_text(spec.name, operands, [y], t, [made])}
    return {key: "\n".join(lines) + "\n" for key, lines in texts.items()}

"""Convolutions by Triton: which of them a kernel takes, tiles, and the function that a program calls."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

from onnx_fa.errors import UnsupportedError
from onnx_fa.kernels.mlir.called import function_text
from onnx_fa.kernels.mlir.operand import ROWS, Operand
from onnx_fa.kernels.mlir.text import Text
from onnx_fa.kernels.triton.config import ARCHITECTURES, power_of_two
from onnx_fa.kernels.triton.entry import Counters, dispatch
from onnx_fa.kernels.triton.executable import executable_text
from onnx_fa.kernels.triton.few_source import FewConfig
from onnx_fa.kernels.triton.forms import (
    Formed,
    FormedCode,
    Smaller,
    compile_first,
    count_workgroups,
    for_all_architectures,
)
from onnx_fa.kernels.triton.linear_source import LinearConfig, products_of, program_of_forms
from onnx_fa.kernels.triton.program import Program
from onnx_fa.kernels.triton.shared_sums import BUSY, LOW_TILES, MOST_TILES, most_parts
from onnx_fa.kernels.triton.window_source import WindowSource, numbers_along
from onnx_fa.spec.windows import WindowSpec

_LEAST = 16
"""Columns of a tile, and numbers of a step, which tensor cores take."""
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
    """The tiles for fewer places that code has beside its own, where only a run knows how many images there are."""
    low = _low_tiles(spec, arch)
    if spec.images is not None or spec.depthwise or spec.rows > (most := _most_low(spec, low)):
        return []
    return [(most, replace(low, warps=config.warps, splits=config.splits))]


def _compiled(spec: WindowSpec, symbol: str, arch: int) -> Formed:
    def source(config: LinearConfig, name: str) -> WindowSource:
        return WindowSource(spec, config, name, products_of(config, arch))

    def write(config: LinearConfig, smaller: Smaller) -> Program:
        if not smaller:
            return source(config, symbol).program()
        forms = [(most, source(tiles, f"{symbol}_of_{most}")) for most, tiles in [*smaller, (0, config)]]
        return program_of_forms(forms, symbol)

    return compile_first(arch, _tiles(spec, arch), lambda config: _smaller(spec, config, arch), write, "convolution")


@cache
def emit_window(spec: WindowSpec) -> dict[str, str]:
    """The executable and the function of the spec's name, which takes x, the weight and what else the spec has and returns y, by
    their symbols. Raises UnsupportedError for a spec that `takes` does not, and where Triton refuses all tiles."""
    if not takes(spec):
        raise UnsupportedError(f"a convolution of {spec} on CUDA")
    symbol = f"{spec.name}_tiles"
    program, codes = for_all_architectures(lambda arch: _compiled(spec, symbol, arch))
    splits = [code.config.splits for code in codes]
    texts = {symbol: executable_text(symbol, program, codes, splits, BUSY)}
    counters = Counters(spec.name, MOST_TILES) if max(splits) > 1 else None
    if counters:
        texts[counters.symbol] = [counters.declaration]
    texts[spec.name] = _function(spec, symbol, codes, counters)
    return {key: "\n".join(lines) + "\n" for key, lines in texts.items()}


def _operands(spec: WindowSpec) -> list[Operand]:
    parts = ROWS if spec.parts is None else spec.parts
    found = [Operand("%x", (parts, spec.numbers), "f32"), Operand("%w", (spec.groups, spec.K, spec.N), spec.dtype)]
    found += [Operand("%b", (spec.groups, spec.N), spec.dtype)] * spec.bias
    for i, tensor in enumerate(spec.tensors):
        shape = tensor.shape if len(tensor.shape) == 1 else (parts, *spec.y_shape)
        found.append(Operand(f"%t{i}", shape, tensor.dtype))
    return found


def _function(spec: WindowSpec, symbol: str, codes: list[FormedCode], counters: Counters | None) -> list[str]:
    t, operands = Text(), _operands(spec)
    y = Operand("%y", (ROWS if spec.parts is None else spec.parts, *spec.y_shape), spec.dtype)
    images = "%rows" if spec.parts is None else t.index(spec.parts)
    rows = t.arith("muli", images, t.index(spec.rows))

    def across(tiles: LinearConfig | FewConfig) -> int:
        return -(-spec.N // tiles.BN) * spec.groups

    counts = [count_workgroups(t, code, rows, across, free=True) for code in codes]
    given, kinds = [x.name for x in operands], [f"{x.type}{x.sizes}" for x in operands]
    results, shared = [f"{y.type}{y.sizes}"], list[str]()
    if counters:
        shared = [counters.load(t)]
        given, kinds = [*given, *shared], [*kinds, counters.type]
        part = f"tensor<{BUSY * max(_largest(c) for c in codes)}xf32>"
        results = [*shared, part, *results]
    count = t.let(f"arith.index_cast {rows} : index to i32")
    made = dispatch(t, symbol, list(ARCHITECTURES), counts, [*given, count], [*kinds, "i32"], results)
    if counters:
        counters.store(t, made[0])
    return function_text(spec.name, operands, [y], t, made[-1:])


def _largest(code: FormedCode) -> int:
    """Numbers of a tile of any form."""
    return max(tiles.BM * tiles.BN for tiles in (code.config, *(tiles for _, tiles in code.smaller)))

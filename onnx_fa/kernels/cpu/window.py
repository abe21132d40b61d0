"""Convolutions for llvm-cpu: which of them a kernel takes, with what tiles, and the function of one."""

from __future__ import annotations

import math

from onnx_fa.kernels.cpu.homes import ranges_of
from onnx_fa.kernels.cpu.row_dispatch import call_changing, joined, tile_height
from onnx_fa.kernels.cpu.window_body import WindowBody, WindowTiles, operands_of, y_of
from onnx_fa.kernels.cpu.window_pads import PaddedBody
from onnx_fa.kernels.cpu.window_product import emit_product, product_of
from onnx_fa.kernels.cpu.winograd import WinogradBody, WinogradTiles
from onnx_fa.kernels.cpu.winograd_turns import MADE
from onnx_fa.kernels.mlir.text import Text
from onnx_fa.spec.target import Target
from onnx_fa.spec.windows import WindowSpec

_LEAST_PLACES = 4
"""Fewer leave the multipliers without work."""
_LEAST_COLUMNS = 2
"""Of groups that share a vector."""
_DOWN, _ACROSS = 4, 4
"""Register tiles of a workgroup, and panels."""
_TALL = {32: {1: 16, 2: 8, 3: 8}, 16: {1: 12, 2: 6, 3: 4}}
"""Rows of a register tile at most, by the processor's registers and the tile's vectors: their sums, the weights and an element of x
fit."""

_SLIM_TALL, _SLIM_ACROSS = 7, 12
"""Rows of a register tile at most and panels of a workgroup, of depthwise windows with panels of one vector: besides seven sums the
numbers of x that taps share have registers, and lines of images are most often multiples of seven."""
_LEAST_TILES = 16
"""Of two by two places: of fewer, turning the weight takes as long as their products save (7 x 7 places have 16)."""
_BLOCK, _CHUNK = 48, 128
"""Tiles of a block, about, for which a panel of the weight is turned once, and channels that are multiplied at a time: with panels
of 16 columns the second cache (512 KiB) holds what is turned of both."""
_WORKGROUPS, _ENOUGH_ITEMS = 16, 12
"""Workgroups at most, each with memory of its own, and parts of a convolution that are to be had for these."""


def panel_of(columns: int, target: Target) -> int:
    """The columns of a panel for a group of so many; 0 where no kernel takes them: where they do not fill a vector."""
    w = target.lanes
    if target.is_gpu or target.kernels != "auto" or not target.has_avx2 or columns < w:
        return 0
    # Two vectors would compute columns twice. Of 16 registers, a tile of four rows by three vectors has more sums.
    if columns % (3 * w) == 0 and (columns % (2 * w) or target.registers == 16):
        return 3 * w
    return w * min(2, columns // w)


def blocks_of(groups: int, columns: int, target: Target) -> int:
    """So many groups of so few columns share a vector, 1 where they do not: each lane reads the number of its own group, which is
    loaded once for all its lanes."""
    w = target.lanes
    if not panel_of(w, target) or columns < _LEAST_COLUMNS or columns >= w or w % columns or groups % (w // columns):
        return 1
    return w // columns


def is_slim(spec: WindowSpec, target: Target) -> bool:
    """Whether a depthwise convolution has panels of one vector: where 16 registers are to hold what neighbouring windows share
    too. With the sums of three vectors the compiler would put these on the stack and back for every tap."""
    overlaps = spec.strides[-1] == 1 and spec.kernel[-1] > 1 and spec.places[-1] > 1
    return spec.depthwise and target.registers == 16 and overlaps and target.lanes <= spec.N


def takes(spec: WindowSpec) -> bool:
    """Whether the kernel is to stand for a convolution."""
    return spec.x_last or spec.rows >= _LEAST_PLACES


def tiles_for(spec: WindowSpec, target: Target) -> WindowTiles:
    """Tiles that leave few places over."""
    if spec.rows < _LEAST_PLACES:
        return WindowTiles(target.lanes, spec.rows, 1, _ACROSS)
    slim = is_slim(spec, target) and spec.panel == target.lanes
    most = _SLIM_TALL if slim else _TALL[target.registers][spec.panel // target.lanes]
    rows = spec.places[-1] if spec.pads else spec.rows  # of a line
    # What channels first are written from is turned by fours.
    heights = range(min(most, rows), min(3, rows - 1), -1) if spec.last else range(min(most, rows) // 4 * 4, 3, -4)
    tall = tile_height(rows, (n for n in heights if 2 * n > most or rows <= most), most)
    return WindowTiles(target.lanes, tall, _DOWN, _SLIM_ACROSS if slim else _ACROSS)


def tiles_along(spec: WindowSpec, target: Target) -> WindowTiles:
    """Tiles along an axis of any length, of a convolution of one place of it."""
    slim = target.registers == 16 and spec.depthwise and spec.panel == target.lanes
    most = _SLIM_TALL if slim else _TALL[target.registers][spec.panel // target.lanes]
    return WindowTiles(target.lanes, most, _DOWN, _SLIM_ACROSS if slim else _ACROSS)


def winograd_tiles(spec: WindowSpec, target: Target) -> WinogradTiles | None:
    """Tiles by which a convolution takes 16 products for four places; None where it takes 36."""
    plain = (spec.kernel, spec.strides, spec.dilations) == ((3, 3), (1, 1), (1, 1))
    rows_of_f32 = spec.x_last and spec.last and spec.blocks == 1 and spec.dtype == "f32" and not spec.depthwise
    if not plain or not rows_of_f32 or not target.has_avx2 or spec.channels % target.lanes:
        return None
    count = math.prod(-(-n // MADE) for n in spec.places)
    if count < _LEAST_TILES:
        return None
    tall = _TALL[target.registers][spec.panel // target.lanes]
    block = -(-count // max(1, round(count / _BLOCK)))
    block = -(-block // tall) * tall
    images = spec.groups * (1 if spec.parts is None else spec.parts)
    across = spec.panels
    while across > 1 and -(-count // block) * -(-spec.panels // across) * images < _ENOUGH_ITEMS:
        across -= 1
    chunk = min(_CHUNK // target.lanes * target.lanes, spec.channels)
    return WinogradTiles(target.lanes, tall, block, across, chunk, _WORKGROUPS)


def emit_window(spec: WindowSpec, target: Target) -> dict[str, str]:
    """The executable and the function of the spec's name, which takes x and the weight and returns y, by their symbols."""
    symbol, operands, y, t = f"{spec.name}_tiles", operands_of(spec), y_of(spec), Text()
    if product := product_of(spec, target):
        return emit_product(spec, product, target, symbol)
    if spec.parts is None:
        t.do(f"%rows = tensor.dim %x, {t.index(0)} : {operands[0].type}")
    windows: WinogradBody | WindowBody
    if tiles := winograd_tiles(spec, target):
        windows = winograd = WinogradBody(spec, tiles, symbol, ranges_of(target))
        body, made = winograd.executable(), [y, *winograd.scratch]
    else:
        windows = (PaddedBody if spec.pads else WindowBody)(spec, tiles_for(spec, target), ranges_of(target))
        body, made = windows.executable(symbol), [y]
    result, *_ = call_changing(t, symbol, operands, [x.name for x in operands], made, windows.changed)
    arguments = ", ".join(f"{x.name}: {x.type}" for x in operands)
    function = [
        f"util.func private @{spec.name}({arguments}) -> {y.type} {{",
        *t.render(),
        f"util.return {result} : {y.type}",
        "}",
    ]
    return {symbol: joined(body), spec.name: joined(function)}

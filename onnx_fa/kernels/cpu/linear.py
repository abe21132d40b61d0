"""Linear sites for llvm-cpu: which of them a kernel takes, with what tiles, and the function of a site."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from onnx_fa.errors import UnsupportedError
from onnx_fa.kernels.cpu.amx import PAIRS
from onnx_fa.kernels.cpu.linear_ahead import AheadBody
from onnx_fa.kernels.cpu.linear_body import FEW, LinearBody, LinearTiles, operands_of, outputs_of, steps_of
from onnx_fa.kernels.cpu.linear_measured import FASTER, find_tiles, is_compilers, pick_fastest, tiles_of
from onnx_fa.kernels.cpu.linear_pairs import ByteBody, PairBody
from onnx_fa.kernels.cpu.linear_share import can_split, share_of
from onnx_fa.kernels.cpu.linear_split import SplitBody
from onnx_fa.kernels.cpu.linear_staged import StagedBody
from onnx_fa.kernels.cpu.linear_tiles import ByteTiles, PairTiles
from onnx_fa.kernels.cpu.linear_words import WidenedBytes, WidenedPairs
from onnx_fa.kernels.cpu.row_dispatch import RowEntry, joined, tile_height
from onnx_fa.kernels.cpu.worker_memory import TEXT_NAME, Kept, WorkerMemory
from onnx_fa.kernels.cpu.workgroups import workers_of
from onnx_fa.kernels.mlir.operand import Operand
from onnx_fa.kernels.tiles.database import queries_computed
from onnx_fa.kernels.tiles.origin import UNKNOWN, Origin, built_in, measured
from onnx_fa.spec.linear import LinearSpec, in_a_word, linear_name
from onnx_fa.spec.target import Target

_VECTORS = 2
"""Of a register tile, if nothing was measured. With two of them each load of an element of x serves two multiplications, which two
ports for loads keep up with."""
MOST_RESULTS = 4
"""Of one dispatch, which has the code of a tile for each."""
_HEIGHTS = range(7, 11)
"""Rows of a tile by two vectors that 32 registers hold, and that keep the multipliers busy."""
_WORTHWHILE = 0.96
"""Another height must leave so much of the rows: a tile of another than was measured takes a little longer for each."""
_COPY = 1 / 16
"""What cutting a result into several costs, in products of 768 steps."""
_DOWN, _ACROSS = 4, 4
"""Register tiles of a workgroup, and panels."""
_TILED_DOWN = 8
"""Register tiles of a workgroup whose products AMX makes, which is faster."""
_REGISTERS_UP_TO = 16
"""Rows by which a weight is widened in registers, with AVX2, in tiles of a few rows."""
_STAGED_DOWN, _STAGED_ACROSS = 8, 2
"""Of a workgroup that widens the weight, once for all its rows."""


def panel_of(spec: LinearSpec, target: Target) -> int:
    """The columns of a panel."""
    return tiles_for(spec, target).vectors * target.lanes


def kept_why(spec: LinearSpec, target: Target) -> str:
    """Why the compiler's packed product is to stand for a site on a target's processor, in a few words; "" where the kernel is
    faster, or as fast. What was measured on the nearest case says which it is. Where none was, the kernel is: with vectors of 16
    lanes, of bf16 or bytes where the processor multiplies them, of f32 with more rows than a few, whose time is that of reading the
    weight; and with AVX2 wherever numbers are widened (docs/developer/linear-sites.md)."""
    if target.kernels != "auto":
        return f"--kernels {target.kernels}"
    compilers = None if (why := missing(spec, target)) else is_compilers(spec, target, body_name(spec, target))
    if compilers is None:
        why = _kept_by_rule(spec, target, why)
    else:
        why = FASTER if compilers else ""
    return why or _divided(spec, target)


def _divided(spec: LinearSpec, target: Target) -> str:
    """Why one result is to be cut, rather than several made, where panels would compute more columns twice than a copy costs."""
    panel = panel_of(spec, target)
    several, one = (sum(-(-n // panel) for n in widths) for widths in (spec.widths, (spec.N,)))
    return f"results that panels of {panel} columns do not divide" if several > (1 + _COPY) * one else ""


def _kept_by_rule(spec: LinearSpec, target: Target, why: str) -> str:
    """The same where nothing was measured; `why` there is no kernel."""
    if not (target.has_avx512 or (target.widens and _is_staged(spec, target))):
        return "no AVX-512"
    if why:
        return why
    if spec.dtype == "f32" and not spec.stored and spec.rows is not None and spec.rows <= FEW:
        return "few rows"
    least = _VECTORS * target.lanes
    return f"fewer than {least} columns" if least > min(spec.widths) else ""


def missing(spec: LinearSpec, target: Target) -> str:
    """Why no kernel can stand for a site, in a few words; "" where one can."""
    if len(spec.parts) > MOST_RESULTS:
        return f"more than {MOST_RESULTS} results"
    of_one_type = spec.bits is None and all(t.dtype == spec.result_dtype for t in spec.tensors)
    if not of_one_type:
        return next(t for t in (spec.dtype, *(t.dtype for t in spec.tensors), "integer") if t != "f32") + " on a CPU"
    if not target.has_products(spec.dtype):
        return "no AVX512_VNNI" if spec.is_of_bytes else "no AVX512_BF16"
    # Numbers of 8 and 16 bits are multiplied as words of 32.
    if spec.K % in_a_word(spec.dtype):
        return "K that 4 does not divide" if spec.is_of_bytes else "odd K"
    return ""


def body_name(spec: LinearSpec, target: Target) -> str:
    """What families of the tuning database call the kernel of a site."""
    if _is_split(spec, target):
        return "linear_split"
    if _is_staged(spec, target):
        return "linear_staged"
    return "linear_amx" if _is_tiled(spec, target) else "linear"


def tiles_for(spec: LinearSpec, target: Target) -> LinearTiles:
    """The fastest tiles that were measured on the nearest case, or, where none was, such as leave few rows over."""
    found = find_tiles(spec, target, body_name(spec, target))
    tiles = _tiles_by_rule(spec, target) if found is None else LinearTiles(**found.choice.tiles)
    return replace(tiles, rows=_height_for_one(spec, target, tiles))


def _height_for_one(spec: LinearSpec, target: Target, tiles: LinearTiles) -> int:
    """The rows of a tile: others than `tiles` has where only a run knows how many images there are, most often one, and fewer rows
    of one are computed twice then (benchmarks/linear-heights-xeon.csv)."""
    one = spec.rows_of_one
    is_fixed = spec.dtype != "f32" or body_name(spec, target) != "linear" or tiles.vectors > _VECTORS
    is_batch = len(spec.symbols) == 1 and isinstance(spec.lead[0], str) and spec.lead.count(spec.lead[0]) == 1
    if is_fixed or not is_batch or one <= FEW:
        return tiles.rows
    if one <= tiles.rows:
        return one
    if not target.has_many_registers:
        return tiles.rows
    best = min((h for h in _HEIGHTS if h <= one), key=lambda h: (queries_computed(one, h), abs(h - tiles.rows)))
    saved = queries_computed(one, best) <= _WORTHWHILE * queries_computed(one, tiles.rows)
    return best if saved else tiles.rows


def origin_of(spec: LinearSpec, target: Target, kept: str) -> Origin:
    """The tiles and where they are from; of a product that the compiler keeps, the entry in which it is faster."""
    body = body_name(spec, target)
    if kept:
        found = pick_fastest(spec, target, body) if kept == FASTER else None
        return UNKNOWN if found is None else Origin((), found.near)
    found, tiles = find_tiles(spec, target, body), tiles_of(tiles_for(spec, target))
    if found is None:
        return built_in(tiles, f"nothing was measured of {_types(spec)} by {body}")
    if tiles["rows"] == found.choice.tiles["rows"]:
        return measured(found)
    return replace(
        measured(found), tiles=tuple(tiles.items()), tuning=f"{found.near}; the height is that for one image"
    )


def _types(spec: LinearSpec) -> str:
    return spec.dtype if spec.weight_dtype == spec.dtype else f"{spec.dtype} by {spec.weight_dtype}"


def _tiles_by_rule(spec: LinearSpec, target: Target) -> LinearTiles:
    # Twelve rows would need fewer loads, but as many rows of x as far apart as powers of two do not fit into eight ways of a cache.
    most = 8 if target.has_many_registers else 6
    rows = spec.rows
    if _is_split(spec, target):
        share = share_of(spec, workers_of(target))
        return LinearTiles(target.lanes, most, 4, share.rows // most, share.panels)
    if _is_tiled(spec, target):
        tall = most if rows is None else min(most, rows)
    elif rows is None:
        tall = most
    elif rows <= most:
        tall = rows
    else:  # of the heights that keep the multipliers busy
        # Tiles of a few rows widen the weight in registers, which many tiles would each do again.
        least = FEW if _is_staged(spec, target) and rows > _REGISTERS_UP_TO else most // 2
        tall = tile_height(rows, range(most, least, -1), most)
    unroll = 4 if tall > FEW else 8
    if _is_staged(spec, target):
        # The compiler adds up whole numbers of several steps first, for which 16 registers are too few.
        unroll = 2 if spec.is_of_bytes and tall > FEW else unroll
        return LinearTiles(target.lanes, tall, unroll, _STAGED_DOWN, _STAGED_ACROSS)
    return LinearTiles(target.lanes, tall, unroll, _TILED_DOWN if _is_tiled(spec, target) else _DOWN, _ACROSS)


def _is_tiled(spec: LinearSpec, target: Target) -> bool:
    """Whether AMX makes the products, where it is granted."""
    words = in_a_word(spec.dtype)
    return target.amx and words > 1 and spec.K % (words * PAIRS) == 0


def _is_split(spec: LinearSpec, target: Target) -> bool:
    """Whether AMX makes the products of f32, where it is granted, of numbers that are split into three of bf16."""
    return target.amx and can_split(spec, workers_of(target))


def _is_staged(spec: LinearSpec, target: Target) -> bool:
    """Whether numbers are widened before they are multiplied: f16, weights in a shorter type than x, with AVX2 bf16 and bytes."""
    return spec.dtype == "f16" or bool(spec.stored) or (target.widens and in_a_word(spec.dtype) > 1)


def emit_linear(spec: LinearSpec, target: Target) -> dict[str, str]:
    """The executable and the function of the site's name, which takes its operands and returns y, by their symbols. Raises
    UnsupportedError for what no kernel takes."""
    if why := missing(spec, target):
        raise UnsupportedError(f"vector kernel, linear site: {why}")
    tiles = tiles_for(spec, target)
    if spec.dtype == "i8" and not spec.zero:
        raise UnsupportedError("vector kernel, linear site: i8 without a zero point")
    return emit_with(spec, target, tiles)


def emit_with(spec: LinearSpec, target: Target, tiles: LinearTiles) -> dict[str, str]:
    """The same with the tiles that are given. Raises UnsupportedError for a weight in other panels than theirs."""
    if spec.panel != tiles.vectors * tiles.lanes:
        raise UnsupportedError(f"vector kernel, linear site: {spec.dtype}, panels of {spec.panel}")
    name = linear_name(spec)
    made = _dispatch_of(spec, target, tiles, f"{name}_tiles")
    flat = made.operands
    own = [(*spec.lead, steps_of(spec)), flat[1].shape, *spec.operand_shapes[2:]]
    function = RowEntry(spec, name).text_lines(made.symbol, spec.lead, own, flat, made.outputs, kept=made.kept)
    return {**made.texts, name: joined(function)}


@dataclass(frozen=True)
class Dispatch:
    """The executable `symbol` of a site's kernel, and what it is called with; its `memory` behind the operands, if it has some."""

    symbol: str
    executable: str
    operands: Sequence[Operand]
    outputs: Sequence[Operand]
    memory: WorkerMemory | None

    @property
    def kept(self) -> Sequence[Kept]:
        """What it changes, behind the operands."""
        return self.memory.all if self.memory else ()

    @property
    def texts(self) -> dict[str, str]:
        """What a program needs to call it, by names that say what is the same."""
        return {self.symbol: self.executable, **({TEXT_NAME: self.memory.text} if self.memory else {})}


def emit_dispatch(spec: LinearSpec, target: Target, symbol: str) -> Dispatch:
    """The kernel of a site by that name, with a function of another's making."""
    return _dispatch_of(spec, target, tiles_for(spec, target), symbol)


def _dispatch_of(spec: LinearSpec, target: Target, tiles: LinearTiles, symbol: str) -> Dispatch:
    body = _body_of(spec, target)(spec, tiles, workers_of(target))
    executable = joined(body.executable(symbol))
    return Dispatch(symbol, executable, operands_of(spec), outputs_of(spec), body.memory)


def _body_of(spec: LinearSpec, target: Target) -> type[LinearBody]:
    widened, with_amx, plain = _bodies(spec)
    if _is_split(spec, target):
        return SplitBody
    if _is_staged(spec, target):
        return widened
    # Of f32 AMX has no tiles, but processors with it have two multipliers of 512 bits to a core.
    is_wide = target.amx if spec.dtype == "f32" else _is_tiled(spec, target)
    return with_amx if is_wide else plain


def _bodies(spec: LinearSpec) -> tuple[type[LinearBody], type[LinearBody], type[LinearBody]]:
    """That which widens numbers first, that of processors with AMX, and that of others."""
    if spec.is_of_bytes:
        return WidenedBytes, ByteTiles, ByteBody
    if spec.dtype == "bf16":
        return WidenedPairs, PairTiles, PairBody
    return StagedBody, AheadBody, LinearBody

"""What there is to try for linear sites on CPUs: tiles of the kernel, and the compiler's own product."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy.typing as npt

from onnx_fa.errors import UnsupportedError
from onnx_fa.forms.plain_linear import GRAPH
from onnx_fa.forms.plain_site import plain_site_model, site_inputs
from onnx_fa.iree.compile import MODEL_FLAGS, compile_model
from onnx_fa.kernels.cpu.bits_many import BODY, has_many, product_of
from onnx_fa.kernels.cpu.bits_many import tiles_of as tiles_of_bits
from onnx_fa.kernels.cpu.bits_product import can_multiply, product_texts
from onnx_fa.kernels.cpu.linear import body_name, emit_with, kept_why, missing, tiles_for
from onnx_fa.kernels.cpu.linear_body import FEW, LinearTiles
from onnx_fa.kernels.cpu.linear_measured import COMPILER, fitting, rows_computed, tiles_of
from onnx_fa.kernels.cpu.linear_staged import MOST_STACK, staged_bytes
from onnx_fa.kernels.tiles.database import Tiles
from onnx_fa.processes import Limits
from onnx_fa.spec.expr import SCORE
from onnx_fa.spec.linear import LinearSpec, linear_name
from onnx_fa.spec.linear_cases import draw_linear, packed
from onnx_fa.spec.target import Target
from onnx_fa.tuning.program import Program, Space, program_of


@dataclass(frozen=True)
class LinearKernel:
    """The kernel of a site, as a module of its own is made of it."""

    name: str
    text: str
    flags: tuple[str, ...]
    spec: LinearSpec


def linear_body(spec: LinearSpec, target: Target, body: str = "auto") -> str:
    """The body of a site's kernel. Raises UnsupportedError where there is none, or another than `body` names."""
    if target.is_gpu:
        raise UnsupportedError("tiles of linear sites are tuned on CPUs")
    if spec.bits is not None:
        return _bits_body(spec, target, body)
    if why := missing(spec, target):
        raise UnsupportedError(f"no kernel: {why}")
    own = body_name(spec, target)
    if body not in ("auto", own):
        raise UnsupportedError(f"the kernel is {own}, not {body}")
    if own not in LINEAR_SPACES:
        raise UnsupportedError(f"the kernel {own} has no tiles to tune")
    return own


def _bits_body(spec: LinearSpec, target: Target, body: str) -> str:
    product = product_of(spec)
    if spec.then != SCORE or spec.dtype != "f32" or not can_multiply(product, target):
        raise UnsupportedError("no kernel for this weight of a few bits")
    if not has_many(product, target):
        raise UnsupportedError("the kernel of few rows by few bits has no tiles to tune")
    if body not in ("auto", BODY):
        raise UnsupportedError(f"the kernel is {BODY}, not {body}")
    return BODY


def _bits_default(spec: LinearSpec, target: Target) -> Tiles:
    return tiles_of(tiles_of_bits(product_of(spec), target))


def _bits_emit(spec: LinearSpec, target: Target, name: str, tiles: Tiles) -> Program:
    if tiles == COMPILER:
        return _compilers(spec, target)
    product = product_of(spec)
    text = "\n".join(product_texts(product, target, LinearTiles(**tiles)).values())
    return program_of(LinearKernel(product.name, text, MODEL_FLAGS[target.backend], spec), target)


def _default(spec: LinearSpec, target: Target) -> Tiles:
    return COMPILER if kept_why(spec, target) else tiles_of(tiles_for(spec, target))


def _first(spec: LinearSpec, target: Target) -> Iterator[Tiles]:
    """The compiler's, the tiles in use, and register tiles that leave few registers without a sum."""
    yield COMPILER
    yield tiles_of(tiles_for(spec, target))
    fits = fitting(spec, target)
    for rows, vectors in _SHAPES[target.registers]:
        tall = rows if spec.rows is None else min(rows, spec.rows)
        for down, across in ((4, 4), (8, 2)) if tall > FEW else ((4, 1), (4, 4)):
            tiles = tiles_of(LinearTiles(target.lanes, tall, 4 if tall > FEW else 8, down, across, vectors))
            if fits(tiles):
                yield tiles


_SHAPES = {32: ((8, 2), (12, 2), (8, 3), (7, 2), (6, 4)), 16: ((6, 2), (4, 3), (5, 2))}
"""Rows and vectors of register tiles, by registers."""


def _first_staged(spec: LinearSpec, target: Target) -> Iterator[Tiles]:
    """The compiler's, the tiles in use, and sizes of a workgroup, which widens a block of the weight once for all its rows."""
    yield COMPILER
    own = _bits_default(spec, target) if spec.bits is not None else tiles_of(tiles_for(spec, target))
    yield own
    fits = fitting(spec, target)
    tall = own["rows"]
    for rows, vectors, down, across in (
        *((tall, 2, down, across) for down, across in ((4, 2), (16, 2), (8, 4), (8, 1), (4, 4))),
        *((rows, 2, 8, 2) for rows in (8, 7, 6, 4)),
        (6, 3, 8, 2),
    ):
        tiles = {**own, "rows": rows, "vectors": vectors, "down": down, "across": across}
        if fits(tiles) and rows * vectors < target.registers and _fits_the_stack(spec, tiles):
            yield tiles


def _around_staged(spec: LinearSpec, best: Tiles) -> Iterator[Tiles]:
    return (tiles for tiles in _around(spec, best) if _fits_the_stack(spec, tiles))


def _fits_the_stack(spec: LinearSpec, tiles: Tiles) -> bool:
    return staged_bytes(LinearTiles(**tiles), stages_x=spec.dtype != "f32") <= MOST_STACK


def _first_amx(spec: LinearSpec, target: Target) -> Iterator[Tiles]:
    """The compiler's, and sizes of a workgroup: the tiles themselves are the unit's."""
    yield COMPILER
    own = tiles_of(tiles_for(spec, target))
    for down, across in ((8, 4), (16, 4), (4, 8), (16, 2), (8, 8), (4, 4)):
        yield {**own, "down": down, "across": across}


def _around(spec: LinearSpec, best: Tiles) -> Iterator[Tiles]:
    if best == COMPILER:
        return
    for unroll in (2, 8, 1):
        yield {**best, "unroll": unroll}
    for down, across in ((16, 2), (2, 8), (8, 4), (8, 1), (4, 2)):
        yield {**best, "down": down, "across": across}


def _around_amx(spec: LinearSpec, best: Tiles) -> Iterator[Tiles]:
    if best != COMPILER:
        yield {**best, "down": 2 * best["down"]}
        yield {**best, "across": 2 * best["across"]}


def _emit(spec: LinearSpec, target: Target, name: str, tiles: Tiles) -> Program:
    if tiles == COMPILER:
        return _compilers(spec, target)
    config = LinearTiles(**tiles)
    panel = config.vectors * config.lanes
    own = replace(spec, transposed=False, panel=panel)
    text = "\n".join(emit_with(own, target, config).values())
    kernel = LinearKernel(linear_name(own), text, MODEL_FLAGS[target.backend], own)
    return program_of(kernel, target, inputs=partial(packed, spec, panel=panel), layout=f"panels{panel}")


def _compilers(spec: LinearSpec, target: Target) -> Program:
    """The model of the site, whose weight is a constant, as the compiler makes a program of it without a kernel of ours. Raises
    UnsupportedError where it has no plain spelling, and for weights in a shorter type than x's: the compiler makes f32 of such
    constants in the program, so that what it is fast at has twice the bytes that the model keeps them in."""
    if spec.stored or spec.bits is not None:
        kept = spec.stored or f"{spec.bits.bits if spec.bits else 0} bits"
        raise UnsupportedError(f"the compiler's own product holds a weight of {kept} as {spec.dtype}")
    sizes = spec.bind(dict.fromkeys(spec.symbols, 1))
    model = plain_site_model(spec, draw_linear(sizes, 0))  # the weight does not depend on the rows
    alone = replace(target, kernels="iree")

    def compile_within(output: Path, flags: Sequence[str], limits: Limits) -> None:
        compile_model(
            model,
            output,
            alone,
            flags=flags,
            timeout_s=limits.timeout_s,
            memory_bytes=limits.memory_bytes,
            parameters="embed",
        )

    def inputs(operands: Sequence[npt.NDArray[Any]]) -> list[npt.NDArray[Any]]:
        return list(site_inputs(spec, operands).values())

    return Program(f"the compiler's {spec}", compile_within, inputs, "constant", GRAPH)


LINEAR_SPACES: dict[str, Space[LinearSpec]] = {
    "linear": Space(LinearSpec, _default, _first, _around, _emit, rows_computed),
    "linear_staged": Space(LinearSpec, _default, _first_staged, _around_staged, _emit, rows_computed),
    BODY: Space(LinearSpec, _bits_default, _first_staged, _around_staged, _bits_emit, rows_computed),
    "linear_amx": Space(LinearSpec, _default, _first_amx, _around_amx, _emit, rows_computed),
}
"""By body."""

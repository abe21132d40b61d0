"""Split keys: where heads and blocks of queries are too few to fill a machine, several workgroups share the keys of one, and a
second, small dispatch combines what they found (Flash-Decoding, Dao et al. 2023):

    m = max m_s;  O = sum_s 2^(m_s - m) O_s / sum_s 2^(m_s - m) l_s
"""

from __future__ import annotations

import math

from onnx_fa.derive.loop import MAXIMUM, OLD_MAXIMUM, Loop
from onnx_fa.derive.writer import write
from onnx_fa.kernels.cpu.language import VectorLanguage, inverse_of
from onnx_fa.kernels.cpu.tile_loops import guard_output
from onnx_fa.kernels.mlir.text import CPU_TRANSLATION, Text, executable, tensor_type
from onnx_fa.kernels.mlir.vectors import Lanes
from onnx_fa.spec.attention import AttentionSpec
from onnx_fa.spec.terms import Dim

ENOUGH = 8
"""Workgroups from which on nothing is split."""
FEWEST_KEYS = 1024
"""Keys that make a split worth its part of the second dispatch."""


def can_split(spec: AttentionSpec) -> bool:
    """Whether keys may be split: not for row statistics, for probabilities that are rounded, or where batch, heads or queries are
    known only at run time."""
    known = all(isinstance(d, int) for d in (*spec.batch, spec.Hq, spec.Sq))
    return known and not spec.stats and spec.rounding is None


def splits_of(spec: AttentionSpec, block: int) -> int:
    """Into how many parts the keys are split: so many that there are ENOUGH workgroups of `block` queries, each with FEWEST_KEYS
    keys; 1 where they cannot be. A dynamic Skv is taken to be long."""
    if not can_split(spec):
        return 1
    assert isinstance(spec.Sq, int)
    groups = math.prod(d for d in (*spec.batch, spec.Hq) if isinstance(d, int)) * -(-spec.Sq // block)
    wanted = ENOUGH // groups
    most = wanted if isinstance(spec.Skv, str) else spec.Skv // FEWEST_KEYS
    return max(1, min(wanted, most))


def combine_call(t: Text, spec: AttentionSpec, symbol: str, parts: list[str], types: list[str]) -> str:
    """The dispatch of `combine_executable`."""
    rows = t.index(math.prod(d for d in (*spec.batch, spec.Hq, spec.Sq) if isinstance(d, int)))
    return t.let(
        f"flow.dispatch @{symbol}::@{symbol}[{rows}]({', '.join(parts)}) : ({', '.join(types)}) -> "
        f"{tensor_type(spec.out_shape, spec.dtype)}"
    )


def combine_executable(
    spec: AttentionSpec, loop: Loop, splits: int, width: int, symbol: str, *, own_exp2: bool = True
) -> list[str]:
    """One workgroup per query: the parts' O (splits, *B, Hq, Sq, Dv), maxima and sums (splits, *B, Hq, Sq), f32, become the site's
    output. `own_exp2`: whether exp2 is not the compiler's."""
    rows: tuple[Dim, ...] = (splits, *spec.batch, spec.Hq, spec.Sq)
    shapes = [("%parts", (*rows, spec.Dv)), ("%best", rows), ("%total", rows)]
    args = [f"{n}: !iree_tensor_ext.dispatch.tensor<readonly:{tensor_type(s, 'f32')}>" for n, s in shapes]
    args.append(f"%out: !iree_tensor_ext.dispatch.tensor<writeonly:{tensor_type(spec.out_shape, spec.dtype)}>")
    counts = ["%y = arith.constant 1 : index", "%z = arith.constant 1 : index"]
    return executable(symbol, ["%x"], counts, args, _body(spec, loop, splits, width, own_exp2), CPU_TRANSLATION)


def _body(spec: AttentionSpec, loop: Loop, splits: int, width: int, own_exp2: bool) -> list[str]:
    while width > spec.Dv:
        width //= 2
    t = Lanes(width, exp2_by="polynomial" if own_exp2 else "compiler")
    rest = t.let("flow.dispatch.workgroup.id[0] : index")
    row: list[str] = []
    for d in reversed((*spec.batch, spec.Hq, spec.Sq)):
        assert isinstance(d, int)
        row.insert(0, t.arith("remui", rest, t.index(d)))
        rest = t.arith("divui", rest, t.index(d))
    rows: tuple[Dim, ...] = (splits, *spec.batch, spec.Hq, spec.Sq)

    def load(name: str, shape: tuple[Dim, ...], tail: tuple[int, ...]) -> tuple[str, str]:
        """All splits of this query."""
        offsets = ["0", *row, *["0"] * len(tail)]
        sizes = [splits, *[1] * len(row), *tail]
        type_ = tensor_type((splits, *tail), "f32")
        place = f"offsets = [{', '.join(offsets)}], sizes = {sizes}, strides = {[1] * len(sizes)}"
        binding = f"!iree_tensor_ext.dispatch.tensor<readonly:{tensor_type(shape, 'f32')}>"
        return t.let(f"iree_tensor_ext.dispatch.tensor.load {name}, {place} : {binding} -> {type_}"), type_

    parts, parts_type = load("%parts", (*rows, spec.Dv), (spec.Dv,))
    bests, totals = load("%best", rows, ()), load("%total", rows, ())

    def numbers(slab: tuple[str, str]) -> list[str]:
        return [t.broadcast(t.let(f"tensor.extract {slab[0]}[{t.index(s)}] : {slab[1]}")) for s in range(splits)]

    best, total = numbers(bests), numbers(totals)
    most = best[0]
    for b in best[1:]:
        most = t.maximum(b, most)
    language, correction = VectorLanguage(t, spec), loop.one_walk.correction
    # A part is corrected to the maximum of all as a block corrects what was before it.
    weights = [
        t.splat(1.0) if correction is None else write(correction, language, {OLD_MAXIMUM: b, MAXIMUM: most})
        for b in best
    ]
    zero = t.splat(0.0)
    sums = zero
    for w, x in zip(weights, total, strict=True):
        sums = t.vop("vector.fma", w, x, sums)
    inverse = inverse_of(loop, language, sums)
    places = {axis: x for axis, x in enumerate(row)}
    offsets = [places.get(axis, "0") for axis in spec.o_layout]
    sizes = [1 if axis in places else spec.Dv for axis in spec.o_layout]
    place = f"offsets = [{', '.join(offsets)}], sizes = {sizes}, strides = {[1] * len(sizes)}"
    out_type, binding = tensor_type((spec.Dv,), spec.dtype), tensor_type(spec.out_shape, spec.dtype)
    writes = f"!iree_tensor_ext.dispatch.tensor<writeonly:{binding}>"
    out = t.let(f"iree_tensor_ext.dispatch.tensor.load %out, {place} : {writes} -> {out_type}")
    for d in (*range(0, spec.Dv - width, width), spec.Dv - width):  # the last two may overlap
        x = zero
        for s, w in enumerate(weights):
            x = t.vop("vector.fma", w, t.read(parts, parts_type, t.index(s), t.index(d)), x)
        x = t.vop("arith.mulf", x, inverse)
        if spec.empty_row == "guarded":  # a row of NaN probabilities is zero as well
            x = guard_output(t, x, sums)
        if spec.dtype != "f32":
            x = t.let(f"arith.truncf {x} : {t.vec} to {t.type(spec.dtype)}")
        out = t.write(x, out, out_type, t.index(d), element=spec.dtype)
    t.do(f"iree_tensor_ext.dispatch.tensor.store {out}, %out, {place} : {out_type} -> {writes}")
    return t.render()

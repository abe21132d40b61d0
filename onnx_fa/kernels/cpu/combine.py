"""Split keys: where heads and blocks of queries are too few to fill a machine, several workgroups share the keys of one, and a
second, small dispatch combines what they found (Flash-Decoding, Dao et al. 2023):

    m = max m_s;  O = sum_s 2^(m_s - m) O_s / sum_s 2^(m_s - m) l_s

The program finds how many parts there are, from the keys that it is given and the cores that it runs on. On another number of
cores, sums are added in another order.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from onnx_fa.derive.loop import MAXIMUM, OLD_MAXIMUM, Loop
from onnx_fa.derive.writer import write
from onnx_fa.kernels.cpu.language import VectorLanguage, inverse_of
from onnx_fa.kernels.cpu.tile_loops import guard_output
from onnx_fa.kernels.cpu.tiles import MOST_QUERIES
from onnx_fa.kernels.mlir.entry import bound_argument, tied_dims
from onnx_fa.kernels.mlir.text import CPU_TRANSLATION, INDEX, Text, executable, tensor_type
from onnx_fa.kernels.mlir.vectors import Lanes
from onnx_fa.spec.attention import AttentionSpec
from onnx_fa.spec.switches import Switch
from onnx_fa.spec.target import Target
from onnx_fa.spec.terms import Dim

PARTS = "<parts of the keys>"
"""The symbol of the number of parts, where the program finds it when it runs."""
EACH = 4
"""Workgroups per core that are wanted: cores that have fallen behind then leave theirs to others."""
MOST_GROUPS = 256
"""Workgroups of a few queries from which on nothing is split, on however many cores."""
MOST_BLOCKS = 32
"""The same of blocks of many queries: each is long, and what parts leave to the second dispatch grows with the queries."""
FEWEST_KEYS = 1024
"""Keys that make a part worth its share of the second dispatch."""
FEWEST_KEYS_OF_ROWS = 64
"""The same where a workgroup takes the heads of a key together: without parts, cores would have nothing to do."""
_ACCUMULATORS = 8


def can_split(spec: AttentionSpec) -> bool:
    """Whether keys may be split: not for row statistics, for probabilities that are rounded, or where batch, heads or queries are
    known only at run time."""
    known = all(isinstance(d, int) for d in (*spec.batch, spec.Hq, spec.Sq))
    return known and not spec.stats and spec.rounding is None


def workgroups(spec: AttentionSpec, block: int) -> int:
    """How many workgroups of `block` queries there are, of a spec that can be split."""
    assert isinstance(spec.Sq, int)
    return math.prod(d for d in (*spec.batch, spec.Hq) if isinstance(d, int)) * -(-spec.Sq // block)


def fewest_keys(heads: int) -> int:
    """How many keys make a part worth it, where a workgroup takes so many key/value heads."""
    return FEWEST_KEYS_OF_ROWS if heads > 1 else FEWEST_KEYS


def splits_of(spec: AttentionSpec, block: int, target: Target, heads: int = 1) -> Dim:
    """Into how many parts the keys are split: PARTS, which `count_parts` finds, or 1 where the target has them whole, where they
    cannot be split or are fewer than two parts have, and where `block` queries each make workgroups for any machine, or for this
    one if the program is for it: it would run the second dispatch for one part. `heads`: as in fewest_keys."""
    most = MOST_GROUPS if block <= MOST_QUERIES else MOST_BLOCKS
    if target.cores is not None:
        most = min(most, EACH * target.cores)
    if not target.has(Switch.SPLITTING) or not can_split(spec) or workgroups(spec, block) >= most:
        return 1
    return 1 if isinstance(spec.Skv, int) and spec.Skv < 2 * fewest_keys(heads) else PARTS


def count_parts(t: Text, spec: AttentionSpec, block: int, keys: str, heads: int = 1) -> str:
    """The number of parts on this machine: so many that each core has EACH workgroups, of fewest_keys or more. `keys` is the value
    of Skv, `heads` as in fewest_keys. The compiler asks the device for its cores once, when the program is loaded; one that does
    not know has one."""
    device = t.let(f"hal.devices.get {t.index(0)} : !hal.device")
    asked = f'hal.device.query<{device} : !hal.device> key("hal.dispatch" :: "concurrency") : i1, i64 = 1 : i64'
    workers = t.let(f"arith.index_cast {t.several(asked, 2)[1]} : i64 to index")
    wanted = t.arith("ceildivui", t.arith("muli", workers, t.index(EACH)), t.index(workgroups(spec, block)))
    most = t.arith("divui", keys, t.index(fewest_keys(heads)))
    return t.arith("maxui", t.arith("minui", wanted, most), t.index(1))


def combine_call(
    t: Text, spec: AttentionSpec, symbol: str, parts: list[str], types: list[str], count: str | None = None
) -> str:
    """The dispatch of `combine_executable`; `count` is the number of parts, where that is known only at run time."""
    rows = t.index(math.prod(d for d in (*spec.batch, spec.Hq, spec.Sq) if isinstance(d, int)))
    values, types = ([*parts, count], [*types, INDEX]) if count else (parts, types)
    return t.let(
        f"flow.dispatch @{symbol}::@{symbol}[{rows}]({', '.join(values)}) : ({', '.join(types)}) -> "
        f"{tensor_type(spec.out_shape, spec.dtype)}"
    )


def combine_executable(
    spec: AttentionSpec, loop: Loop, splits: Dim, width: int, symbol: str, *, own_exp2: bool = True
) -> list[str]:
    """One workgroup per query: the parts' O (splits, *B, Hq, Sq, Dv), maxima and sums (splits, *B, Hq, Sq), f32, become the site's
    output. `own_exp2`: whether exp2 is not the compiler's."""
    rows: tuple[Dim, ...] = (splits, *spec.batch, spec.Hq, spec.Sq)
    args, ties = list[str](), list[str]()
    for name, shape in (("%parts", (*rows, spec.Dv)), ("%best", rows), ("%total", rows)):
        type_ = f"!iree_tensor_ext.dispatch.tensor<readonly:{tensor_type(shape, 'f32')}>"
        arg, tie = bound_argument(name, type_, tied_dims(shape, _DIMS))
        args.append(arg)
        ties += tie
    args += [f"{_DIMS[PARTS]}: index"] * bool(ties)
    args.append(f"%out: !iree_tensor_ext.dispatch.tensor<writeonly:{tensor_type(spec.out_shape, spec.dtype)}>")
    counts = ["%y = arith.constant 1 : index", "%z = arith.constant 1 : index"]
    body = _body(spec, loop, splits, width, own_exp2)
    return executable(symbol, ["%x"], counts, args, [*ties, *body], CPU_TRANSLATION)


_DIMS = {PARTS: "%count"}


def _body(spec: AttentionSpec, loop: Loop, splits: Dim, width: int, own_exp2: bool) -> list[str]:
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
    count = t.index(splits) if isinstance(splits, int) else _DIMS[splits]

    def load(name: str, shape: tuple[Dim, ...], tail: tuple[int, ...]) -> tuple[str, str]:
        """All parts of this query."""
        offsets = ["0", *row, *["0"] * len(tail)]
        sizes = [count if isinstance(splits, str) else str(splits), *["1"] * len(row), *map(str, tail)]
        type_ = tensor_type((splits, *tail), "f32")
        place = f"offsets = [{', '.join(offsets)}], sizes = [{', '.join(sizes)}], strides = {[1] * len(sizes)}"
        binding = f"!iree_tensor_ext.dispatch.tensor<readonly:{tensor_type(shape, 'f32')}>{tied_dims(shape, _DIMS)}"
        return t.let(f"iree_tensor_ext.dispatch.tensor.load {name}, {place} : {binding} -> {type_}"), type_

    parts, parts_type = load("%parts", (*rows, spec.Dv), (spec.Dv,))
    bests, totals = load("%best", rows, ()), load("%total", rows, ())
    language, correction = VectorLanguage(t, spec), loop.one_walk.correction
    zero, first, one = t.splat(0.0), t.index(0), t.index(1)

    def number(slab: tuple[str, str], s: str) -> str:
        return t.broadcast(t.let(f"tensor.extract {slab[0]}[{s}] : {slab[1]}"))

    (most,) = t.loop(
        (one, count, one), [(number(bests, first), t.vec)], lambda s, m: [t.maximum(number(bests, s), m[0])]
    )

    def weigh(numbers: Callable[[str], list[str]], width: int) -> list[str]:
        """The sums over the parts of so many vectors of each, weighted."""

        def add(s: str, sums: list[str]) -> list[str]:
            # A part is corrected to the maximum of all as a block corrects what was before it.
            old = {OLD_MAXIMUM: number(bests, s), MAXIMUM: most}
            weight = t.splat(1.0) if correction is None else write(correction, language, old)
            return [t.vop("vector.fma", weight, x, total) for x, total in zip(numbers(s), sums, strict=True)]

        return t.loop((first, count, one), [(zero, t.vec)] * width, add)

    (sums,) = weigh(lambda s: [number(totals, s)], 1)
    inverse = inverse_of(loop, language, sums)
    places = {axis: x for axis, x in enumerate(row)}
    offsets = [places.get(axis, "0") for axis in spec.o_layout]
    sizes = [1 if axis in places else spec.Dv for axis in spec.o_layout]
    place = f"offsets = [{', '.join(offsets)}], sizes = {sizes}, strides = {[1] * len(sizes)}"
    out_type, binding = tensor_type((spec.Dv,), spec.dtype), tensor_type(spec.out_shape, spec.dtype)
    writes = f"!iree_tensor_ext.dispatch.tensor<writeonly:{binding}>"
    out = t.let(f"iree_tensor_ext.dispatch.tensor.load %out, {place} : {writes} -> {out_type}")
    starts = [*range(0, spec.Dv - width, width), spec.Dv - width]  # the last two may overlap
    for i in range(0, len(starts), _ACCUMULATORS):
        ds = [t.index(d) for d in starts[i : i + _ACCUMULATORS]]
        found = weigh(lambda s, ds=ds: [t.read(parts, parts_type, s, d) for d in ds], len(ds))  # type: ignore[misc]
        for d, x in zip(ds, found, strict=True):
            x = t.vop("arith.mulf", x, inverse)
            if spec.empty_row == "guarded":  # a row of NaN probabilities is zero as well
                x = guard_output(t, x, sums)
            if spec.dtype != "f32":
                x = t.let(f"arith.truncf {x} : {t.vec} to {t.type(spec.dtype)}")
            out = t.write(x, out, out_type, d, element=spec.dtype)
    t.do(f"iree_tensor_ext.dispatch.tensor.store {out}, %out, {place} : {out_type} -> {writes}")
    return t.render()

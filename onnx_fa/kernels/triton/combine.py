"""Split keys: several workgroups share the keys of the same queries, and their parts are combined by the last of them, or by a
second dispatch (Flash-Decoding, Dao et al. 2023)."""

from __future__ import annotations

from collections.abc import Sequence

from onnx_fa.derive.loop import MASS, MAXIMUM, Loop
from onnx_fa.kernels.triton.config import TritonConfig
from onnx_fa.kernels.triton.language import correction_of, output_of, statistic_of
from onnx_fa.kernels.triton.places import Places
from onnx_fa.kernels.triton.program import Program, begin_last, result_pointers, times
from onnx_fa.spec.attention import AttentionSpec

_MOST_UNROLLED = 8
"""Up to so many queries are combined without a loop."""
_MOST_LOADED = 128
"""So many numbers per thread are loaded side by side."""


def combine_last(places: Places, lead: list[str], loop: Loop) -> None:
    """Of the workgroups that share queries the last to come here combines the parts."""
    t, spec, config = places.t, places.spec, places.config
    assert isinstance(spec.Sq, int)
    begin_last(t, config.splits)
    t.do(f"across = tl.arange(0, {places.dvp})")
    if spec.Sq <= min(_MOST_UNROLLED, config.BM):
        together = max(1, _MOST_LOADED * 32 * config.warps // (config.splits * places.dvp))
        for r in range(0, spec.Sq, together):
            combine_rows(places, loop, lead, [str(x) for x in range(r, min(r + together, spec.Sq))])
    else:
        t.do(f"for r in range({places.m0}, tl.minimum({places.m0} + {config.BM}, {spec.Sq})):")
        t.indent += 1
        combine_rows(places, loop, lead, ["r"])
        t.indent -= 1
    t.indent -= 1


def weigh_parts(places: Places, loop: Loop, m: str, axis: str = "", column: str = "") -> tuple[str, str]:
    """The maximum of all parts by theirs, `m`, and what each part is multiplied by: a part is corrected to that maximum as a block
    corrects what was before it. "" where nothing is. `axis`: what says along which axis of `m` parts are; `column`: what gives the
    maximum that axis again."""
    correction = loop.one_walk.correction
    if correction is None:
        return m, ""
    most = places.t.let(f"tl.max({m}{axis})")
    return most, places.t.let(correction_of(places, correction, f"{most}{column}", m))


def combine_rows(places: Places, loop: Loop, lead: list[str], rows: Sequence[str]) -> None:
    """The parts of some queries, weighed by their maxima. All loads come first, so that they go side by side."""
    t, spec, parts = places.t, places.spec, places.config.splits
    narrow = places.narrow(spec.Dv, places.dvp, "across")
    mask = f", mask=across < {spec.Dv}" if narrow else ""
    loaded = []
    for row in rows:
        at = t.let(f"tl.arange(0, {parts}).to(tl.int64) * {places.total_rows()} + {places.head} * {places.sq} + {row}")
        m, total = (t.let(f"tl.load(stat + {first}{at})") for first in ("", f"{places.total_rows()} * {parts} + "))
        loaded.append((m, total, places.load(f"part + {at}[:, None] * {spec.Dv} + across[None, :]", narrow)))
    out = places.operand("out", spec.canonical_shapes[3], spec.o_layout, lead)
    for row, (m, total, acc) in zip(rows, loaded, strict=True):
        most, weight = weigh_parts(places, loop, m)
        if weight:
            total, acc = f"{weight} * {total}", f"{acc} * {weight}[:, None]"
        total, acc = t.let(f"tl.sum({total})"), t.let(f"tl.sum({acc}, 0)")
        result = output_of(places, loop, acc, total)
        start = t.let(places.moved(out, row, spec.Sq))
        t.do(f"tl.store({start} + {times('across', out.column)}, {result}.to(out.dtype.element_ty){mask})")
        for which in spec.stats:
            value = statistic_of(places, which, loop.one_walk.results[which], {MAXIMUM: most, MASS: total})
            t.do(f"tl.store(row_{which} + {places.head}.to(tl.int64) * {places.sq} + {row}, {value})")


def combine_program(spec: AttentionSpec, config: TritonConfig, name: str, loop: Loop) -> Program:
    """The second dispatch of split keys, where there is one: a workgroup per query."""
    places = Places(spec, config, name)
    t = places.t
    t.do("pid = tl.program_id(0)")
    t.do(f"across = tl.arange(0, {places.dvp})")
    places.head, row = t.let(f"pid // {places.sq}"), t.let(f"pid % {places.sq}")
    combine_rows(places, loop, places.lead(places.head), [row])
    pointers = (("part", "f32"), ("stat", "f32"), *result_pointers(spec))
    return places.written(pointers)

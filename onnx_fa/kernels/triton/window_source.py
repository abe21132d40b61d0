"""The source of a convolution in Triton, of images and results whose channels come last: a workgroup has BM places of all images
and BN columns of a group, and walks along taps and channels, whose numbers it reads where they lie in the image. Nobody writes out
what windows see, and pads are not read."""

from __future__ import annotations

import math
from dataclasses import replace

from onnx_fa.kernels.mlir.text import element_type
from onnx_fa.kernels.triton.expressions import Block
from onnx_fa.kernels.triton.linear_source import ROWS, LinearConfig, linear_program, write_then
from onnx_fa.kernels.triton.program import TYPES, Program
from onnx_fa.kernels.triton.shared_sums import SHARED, add_parts, begin_part
from onnx_fa.spec.windows import WindowSpec

_NARROW = 16
"""Fewer channels than that are walked along with their taps, so that the numbers of a step are not mostly left empty."""
_UNROLLED = 25
"""Taps of a depthwise convolution that are written out."""


def numbers_along(spec: WindowSpec, BK: int) -> int:
    """Of the loop: all of K, or the channels of each tap, filled up to whole steps."""
    return spec.K if spec.channels < _NARROW else math.prod(spec.kernel) * -(-spec.channels // BK) * BK


class WindowSource:
    """Writes the kernel of a spec. `products`: how f32 is multiplied, see `f32_products`. `free`: images are lines, whose length
    and whose places, one at the least, only a run knows."""

    def __init__(self, spec: WindowSpec, config: LinearConfig, name: str, products: str, *, free: bool = False) -> None:
        self.spec, self.config, self.name, self.free, self.t = spec, config, name, free, Block()
        self.width, self.places = ("s1", "s2") if free else (str(spec.sizes[1]), str(spec.rows))
        self.numbers = f"s1.to(tl.int64) * {spec.sizes[0]}" if free else str(math.prod(spec.sizes))
        self.precision = f', input_precision="{products}"' if spec.dtype == "f32" else ""
        self.whole = spec.channels * (1 if spec.depthwise else spec.groups)
        """Channels of an image."""

    def program(self) -> Program:
        t, spec, config = self.t, self.spec, self.config
        self.place()
        t.do(f"acc = tl.zeros([{config.BM}, {config.BN}], tl.float32)")
        if spec.depthwise:
            self.walk_taps()
        else:
            end = numbers_along(spec, config.BK)
            if config.splits > 1:
                begin_part(t, end, config.BK, config.stages)
            else:
                t.do(f"for k in tl.range(0, {end}, {config.BK}, num_stages={config.stages}):")
                t.indent += 1
            self.step()
            t.indent -= 1
            if config.splits > 1:
                add_parts(t, config.BM, config.BN)
        inside = f"(row[:, None] < {ROWS})" + (f" & (n[None, :] < {spec.N})" if spec.N % config.BN else "")
        t.do(f"at = row.to(tl.int64)[:, None] * {spec.columns} + column[None, :]")
        y = write_then(t, spec.product, "acc", "at", f", mask={inside}, other=0.0")
        t.do(f"tl.store(out + at, ({y}).to({TYPES[spec.dtype]}), mask={inside})")
        sizes = ("length", "places") if self.free else ()
        program = linear_program(spec.product, self.name, t, SHARED if config.splits > 1 else (), sizes)
        (x, _), *others = program.pointers
        return replace(program, pointers=((x, element_type(spec.x_dtype)), *others))

    def place(self) -> None:
        """Which places and columns the workgroup has, and where in its image the window of each begins: `top` and `left` are before
        the image where pads are."""
        t, spec, config = self.t, self.spec, self.config
        blocks = -(-spec.N // config.BN)
        across = blocks * spec.groups
        t.do("pid = tl.program_id(0)")
        t.do(f"row = pid // {across} * {config.BM} + tl.arange(0, {config.BM})")
        t.do(f"n = pid % {across} % {blocks} * {config.BN} + tl.arange(0, {config.BN})")
        t.do(f"group = pid % {across} // {blocks}")
        t.do(f"own = tl.minimum(n, {spec.N - 1})" if spec.N % config.BN else "own = n")
        t.do(f"column = group * {spec.N} + own")
        t.do(f"place = row % {self.places}")
        if self.free:
            t.do("top = 0")
            t.do(f"left = place.to(tl.int64) * {spec.strides[1]} - {spec.before[1]}")
        else:
            t.do(f"top = place // {spec.places[1]} * {spec.strides[0]} - {spec.before[0]}")
            t.do(f"left = place % {spec.places[1]} * {spec.strides[1]} - {spec.before[1]}")
        first = f"(row // {self.places}).to(tl.int64) * ({self.numbers} * {self.whole})"
        t.do(
            f"image = x + {first} + (top * {self.width} + left) * {self.whole} + group * {0 if spec.depthwise else spec.channels}"
        )

    def step(self) -> None:
        """BK numbers of K: of one tap's channels, or, of few channels, of several taps."""
        t, spec, config = self.t, self.spec, self.config
        taps_across, (down, across) = spec.kernel[1], spec.dilations
        if spec.channels < _NARROW:
            t.do(f"here = k + tl.arange(0, {config.BK})")
            t.do(f"tap = here // {spec.channels}")
            t.do(f"c = here % {spec.channels}")
            t.do("weight = here")
            known = "" if spec.K % config.BK == 0 else f"(here < {spec.K})"
        else:
            each = -(-spec.channels // config.BK) * config.BK
            t.do(f"tap = k // {each}")
            t.do(f"c = k % {each} + tl.arange(0, {config.BK})")
            t.do(f"weight = tap * {spec.channels} + c")
            known = "" if spec.channels % config.BK == 0 else f"(c < {spec.channels})"
        t.do(f"down = tap // {taps_across} * {down}")
        t.do(f"across = tap % {taps_across} * {across}")
        several = spec.channels < _NARROW
        t.do(f"far = (down * {self.width} + across) * {self.whole} + c")
        seen = self.seen("[:, None]", "[None, :]" if several else "")
        if several:
            seen = f"({seen})"
        else:
            seen = f"({seen})[:, None]"
        mask = f"{seen} & {known}[None, :]" if known else seen
        t.do(f"a = tl.load(image[:, None] + far[None, :], mask={mask}, other=0.0)")
        kept = f", mask={known}[:, None], other=0.0" if known else ""
        t.do(f"b = tl.load(w + (group * {spec.K} + weight)[:, None] * {spec.N} + own[None, :]{kept})")
        t.do(f"acc = tl.dot(a, b, acc{self.precision})")

    def seen(self, rows: str, taps: str) -> str:
        """Whether a tap of a place's window lies in the image, and the place is one. `rows` and `taps` follow what has one number
        for each place, and for each tap, where there are several."""
        spec, at = self.spec, rows if taps else ""
        tests = [f"(row{at} < {ROWS})"]
        for first, tap, size, low, high in (
            ("top", "down", spec.sizes[0], spec.before[0], self.behind(0)),
            ("left", "across", self.width, spec.before[1], self.behind(1)),
        ):
            if low:
                tests.append(f"({first}{at} + {tap}{taps} >= 0)")
            if high:
                tests.append(f"({first}{at} + {tap}{taps} < {size})")
        return " & ".join(tests)

    def behind(self, axis: int) -> bool:
        """Whether windows reach past the end of an axis."""
        spec = self.spec
        if axis and self.free:
            return spec.pads[3] > 0
        last = (spec.places[axis] - 1) * spec.strides[axis] + (spec.kernel[axis] - 1) * spec.dilations[axis]
        return last - spec.before[axis] >= spec.sizes[axis]

    def walk_taps(self) -> None:
        """The sums of a depthwise convolution, tap by tap."""
        t, spec = self.t, self.spec
        count = math.prod(spec.kernel)
        t.do(f"for tap in {'tl.static_range' if count <= _UNROLLED else 'range'}(0, {count}):")
        t.indent += 1
        t.do(f"down = tap // {spec.kernel[1]} * {spec.dilations[0]}")
        t.do(f"across = tap % {spec.kernel[1]} * {spec.dilations[1]}")
        t.do(f"far = (down * {self.width} + across) * {self.whole} + own")
        t.do(f"a = tl.load(image[:, None] + far[None, :], mask=({self.seen('', '')})[:, None], other=0.0)")
        t.do(f"b = tl.load(w + tap * {spec.N} + own)")
        t.do("acc += a.to(tl.float32) * b.to(tl.float32)[None, :]")
        t.indent -= 1

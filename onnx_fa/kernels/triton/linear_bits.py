"""A few rows by a weight of a few bits: what takes the time is reading the weight, and making numbers of it. A thread has up to 16
bytes of a column of the weight, which lie in one block: their numbers, less the zero point, are multiplied by x and added up, and
the sum alone is multiplied by the block's scale. A workgroup has all of K of its columns, so that nothing is left to others, and
each workgroup takes the norm of a row in front for itself."""

from __future__ import annotations

from onnx_fa.kernels.triton.config import power_of_two
from onnx_fa.kernels.triton.few_source import FewConfig, FewSource, Weight
from onnx_fa.kernels.triton.linear_source import Weights
from onnx_fa.kernels.triton.program import TYPES, Program
from onnx_fa.spec.fused_linear import FusedLinear
from onnx_fa.spec.linear import Bits, LinearSpec

_LOAD = 16
"""Bytes of the longest load."""
_UNROLLED = 8
"""So many steps are written out, so that all of them are on their way from memory."""
_WORDS = {2: "tl.int16", 4: "tl.int32", 8: "tl.int64"}


def bytes_of_chunk(bits: Bits) -> int:
    """Neighbours in a row of the weight that have one scale, a power of two, and that one load brings."""
    within = bits.block // bits.places
    return min(_LOAD, within & -within)


def few_bits_config(spec: LinearSpec, weights: int = 1) -> FewConfig:
    """Tiles of so many weights, as they were fastest on an H200 (benchmarks/linear-few-bits-h200.csv)."""
    bits = spec.bits
    assert bits is not None
    columns, row = weights * spec.N, spec.K // bits.places
    along = 256
    if columns < 3072 or spec.K >= 8192:
        along = 1024
    elif spec.K >= 4096:
        along = 512
    along = max(bytes_of_chunk(bits), min(along, power_of_two(row)))
    BN = 4 if columns >= 1056 else 2
    warps = max(1, min(8, BN * along // (32 * _LOAD)))
    return FewConfig(BN, along * bits.places, 1, warps)


class FewBitsSource(FewSource):
    """Writes the kernel of a spec whose weights are of a few bits, of known rows. BK of the configuration is how many numbers of K
    a step takes."""

    def __init__(self, spec: FusedLinear, config: FewConfig, name: str) -> None:
        super().__init__(spec, config, name)
        assert spec.product.bits is not None
        self.bits = spec.product.bits
        self.bytes = bytes_of_chunk(self.bits)
        self.chunks = config.BK // self.bits.places // self.bytes
        self.all_chunks = spec.product.K // self.bits.places // self.bytes
        self.steps = -(-self.all_chunks // self.chunks)
        self.room = float(self.bytes * self.bits.places << self.bits.bits)
        """What the sum of a chunk may be larger than x by, before its scale: x is made smaller by as much, and the scale larger, so
        that no sum overflows where the numbers that it is the sum of do not."""

    def program(self) -> Program:
        t, config = self.t, self.config
        self.place()
        t.do(f"chunk = tl.arange(0, {self.chunks})")
        t.do(f"byte = tl.arange(0, {self.bytes})")
        self.take_norms()
        for w in self.weights:
            for r in self.rows:
                t.do(f"{w.tensors}_acc{r} = tl.zeros([{config.BN}, {self.chunks}], tl.float32)")
        unrolled = "tl.static_range" if self.steps <= _UNROLLED else "range"
        t.do(f"for i in {unrolled}(0, {self.steps}):")
        t.indent += 1
        self.step()
        t.indent -= 1
        for r in self.rows:
            self.finish(r, [t.let(f"tl.sum({w.tensors}_acc{r}, 1)[None, :]") for w in self.weights])
        return self.write()

    def step(self) -> None:
        """The numbers of K of one step."""
        t = self.t
        t.do(f"at = i * {self.chunks} + chunk")
        inside = f"at < {self.all_chunks}" if self.all_chunks % self.chunks else ""
        t.do(f"here = at[:, None] * {self.bytes} + byte[None, :]")
        per = self.bits.block // self.bits.places // self.bytes
        t.do(f"block = {f'at // {per}' if per > 1 else 'at'}")
        if inside:
            t.do(f"block = tl.minimum(block, {self.product.blocks - 1})")
        mask = f", mask=({inside})[:, None], other=0" if inside else ""
        gain = self.read("gain", 0, self.gain_type, mask) if self.gain_type else []
        rows = []
        for r in self.rows:
            x = self.scaled(r, self.read("x", r * self.product.K, self.x_type, mask), gain)
            rows.append([t.let(f"{value} * {1 / self.room!r}") for value in x])
        for w in self.weights:
            numbers, scale = self.numbers(w, f", mask=({inside})[None, :, None], other=0" if inside else "")
            for r, x in zip(self.rows, rows, strict=True):
                total = " + ".join(f"{number} * {value}[None]" for number, value in zip(numbers, x, strict=True))
                t.do(f"{w.tensors}_acc{r} += tl.sum({total}, 2) * {scale}")

    def read(self, name: str, first: int, dtype: str, mask: str) -> list[str]:
        """The numbers of x, or of what it is multiplied by, that stand beside each place of a byte (chunks, bytes). Those of a byte
        are neighbours: they come as one word."""
        t, places, size = self.t, self.bits.places, 4 if dtype == "f32" else 2
        start = f"{name} + {first}" if first else name
        if places == 1 or places * size not in _WORDS:
            each = f" * {places}" if places > 1 else ""
            return [t.let(f"tl.load({start} + here{each} + {p}{mask}).to(tl.float32)") for p in range(places)]
        word = t.let(f"tl.load(({start}).to(tl.pointer_type({_WORDS[places * size]})) + here{mask})")
        parts = [f"({word} >> {8 * size * p})" if p else word for p in range(places)]
        return [t.let(f"{part}.to({_WORDS[size]}).to({TYPES[dtype]}, bitcast=True).to(tl.float32)") for part in parts]

    def numbers(self, weight: Weight, mask: str) -> tuple[list[str], str]:
        """The weight's numbers at each place of a byte (columns, chunks, bytes), and the scales of chunks (columns, chunks)."""
        t, bits, spec = self.t, self.bits, weight.spec
        depth = spec.K // bits.places
        far = ".to(tl.int64)" if depth * spec.N >= 1 << 31 else ""
        read = t.let(f"tl.load({weight.prefix}w + column{far}[:, None, None] * {depth} + here[None]{mask})")
        packed = t.let(f"{read}.to(tl.int32) & 255")
        scale = t.let(
            f"tl.load({weight.prefix}scale + column[:, None] * {spec.blocks} + block[None, :]).to(tl.float32) * {self.room!r}"
        )
        zero = Weights(t, spec, weight.prefix).zero_point("block")
        zero = f"{zero}[:, :, None]" if bits.zeros else zero
        found = []
        for place in range(bits.places):
            number = f"({packed} >> {bits.bits * place})" if place else packed
            if bits.bits * (place + 1) < 8:
                number = f"({number} & {(1 << bits.bits) - 1})"
            found.append(t.let(f"({number}).to(tl.float32) - {zero}"))
        return found, scale

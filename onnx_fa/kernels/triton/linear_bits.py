"""A few rows by a weight of a few bits: what takes the time is reading the weight, and making numbers of it. A thread has up to 16
bytes of a column of the weight, which lie in one block: their numbers, less the zero point, are multiplied by x and added up, and
the sum alone is multiplied by the block's scale. A workgroup has all of K of its columns, so that nothing is left to others, and
each workgroup takes the norm of a row in front for itself."""

from __future__ import annotations

from dataclasses import dataclass

from onnx_fa.kernels.mlir.text import element_type
from onnx_fa.kernels.triton.config import power_of_two
from onnx_fa.kernels.triton.expressions import Block
from onnx_fa.kernels.triton.linear_few import FewConfig
from onnx_fa.kernels.triton.linear_source import Weights, store_result, write_then
from onnx_fa.kernels.triton.norm_source import write_reciprocal
from onnx_fa.kernels.triton.program import TYPES, Program, write_program
from onnx_fa.spec.fused_linear import FusedLinear
from onnx_fa.spec.linear import Bits, LinearSpec

MOST_NORMED = 1 << 14
"""Numbers of a row whose norm a workgroup takes for itself."""
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
    along = 1024 if columns < 3072 or spec.K >= 8192 else 512 if spec.K >= 4096 else 256
    along = max(bytes_of_chunk(bits), min(along, power_of_two(row)))
    BN = 4 if columns >= 1056 else 2
    warps = max(1, min(8, BN * along // (32 * _LOAD)))
    return FewConfig(BN, along * bits.places, 1, warps)


@dataclass(frozen=True)
class _Weight:
    """One of the products, the letters that the names of its operands begin with, and those of its tensors."""

    spec: LinearSpec
    prefix: str
    tensors: str


class FewBitsSource:
    """Writes the kernel of a spec whose weights are of a few bits, of known rows. BK of the configuration is how many numbers of K
    a step takes."""

    def __init__(self, spec: FusedLinear, config: FewConfig, name: str) -> None:
        assert spec.product.rows is not None and spec.product.bits is not None
        self.spec, self.config, self.name, self.t = spec, config, name, Block()
        self.product, self.bits, self.rows = spec.product, spec.product.bits, range(spec.product.rows)
        self.weights = [_Weight(spec.gate, "g", "u")] if spec.gate else []
        self.weights.append(_Weight(spec.product, "", "t"))
        self.bytes = bytes_of_chunk(self.bits)
        self.chunks = config.BK // self.bits.places // self.bytes
        self.all_chunks = spec.product.K // self.bits.places // self.bytes
        self.steps = -(-self.all_chunks // self.chunks)

    def program(self) -> Program:
        t, product, config = self.t, self.product, self.config
        t.do(f"left = tl.program_id(0) * {config.BN}")
        t.do(f"n = left + tl.arange(0, {config.BN})")
        t.do(f"column = tl.minimum(n, {product.N - 1})" if product.N % config.BN else "column = n")
        t.do(f"chunk = tl.arange(0, {self.chunks})")
        t.do(f"byte = tl.arange(0, {self.bytes})")
        if self.spec.norm is not None:
            for r in self.rows:
                self.take_norm(r)
        for w in self.weights:
            for r in self.rows:
                t.do(f"{w.tensors}_acc{r} = tl.zeros([{config.BN}, {self.chunks}], tl.float32)")
        unrolled = "tl.static_range" if self.steps <= _UNROLLED else "range"
        t.do(f"for i in {unrolled}(0, {self.steps}):")
        t.indent += 1
        self.step()
        t.indent -= 1
        for r in self.rows:
            self.finish(r)
        operands = [(name, element_type(dtype)) for name, _, dtype in self.spec.operands]
        outs = [(f"out{i}", product.dtype) for i in range(len(product.parts))] or [("out", product.dtype)]
        return write_program(self.name, [*operands, *outs], {"rows": "s0"}, t.lines)

    def take_norm(self, r: int) -> None:
        """What the numbers of a row are multiplied by: a power of two first, so that their squares are finite, and what brings
        these to a mean of one, which sums of products are multiplied by."""
        t, norm = self.t, self.spec.norm
        assert norm is not None
        t.do(f"k = tl.arange(0, {power_of_two(norm.N)})")
        mask = "" if power_of_two(norm.N) == norm.N else f", mask=k < {norm.N}, other=0.0"
        t.do(f"v = tl.load(x + {r * norm.N} + k{mask}).to(tl.float32)")
        small, by = write_reciprocal(t, norm, "v", 0)
        t.do(f"small{r} = {small}")
        t.do(f"norm{r} = {by}")

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
        gain = self.read("gain", 0, self.gain_type, mask) if self.spec.norm and self.spec.norm.scale else None
        rows = []
        for r in self.rows:
            x = self.read("x", r * self.product.K, self.x_type, mask)
            if self.spec.norm is not None:
                x = [t.let(f"{value} * small{r}") for value in x]
            rows.append([t.let(f"{a} * {b}") for a, b in zip(x, gain, strict=True)] if gain else x)
        for w in self.weights:
            numbers, scale = self.numbers(w, f", mask=({inside})[None, :, None], other=0" if inside else "")
            for r, x in zip(self.rows, rows, strict=True):
                total = " + ".join(f"{number} * {value}[None]" for number, value in zip(numbers, x, strict=True))
                t.do(f"{w.tensors}_acc{r} += tl.sum({total}, 2) * {scale}")

    @property
    def x_type(self) -> str:
        return self.spec.operands[0][2]

    @property
    def gain_type(self) -> str:
        return self.spec.operands[1][2]

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

    def numbers(self, weight: _Weight, mask: str) -> tuple[list[str], str]:
        """The weight's numbers at each place of a byte (columns, chunks, bytes), and the scales of chunks (columns, chunks)."""
        t, bits, spec = self.t, self.bits, weight.spec
        depth = spec.K // bits.places
        far = ".to(tl.int64)" if depth * spec.N >= 1 << 31 else ""
        read = t.let(f"tl.load({weight.prefix}w + column{far}[:, None, None] * {depth} + here[None]{mask})")
        packed = t.let(f"{read}.to(tl.int32) & 255")
        scale = t.let(
            f"tl.load({weight.prefix}scale + column[:, None] * {spec.blocks} + block[None, :]).to(tl.float32)"
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

    def finish(self, r: int) -> None:
        """Adds up what a row found and writes what becomes of it."""
        t, product, config = self.t, self.product, self.config
        edge = f"(n < {product.N})[None, :]" if product.N % config.BN else ""
        at = t.let(f"{r * product.N} + n[None, :]")
        mask = f", mask={edge}, other=0.0" if edge else ""
        made = ""
        for w in self.weights:
            by = f" * norm{r}" if self.spec.norm else ""
            total = t.let(f"tl.sum({w.tensors}_acc{r}, 1)[None, :]{by}")
            given = {self.spec.gated: made} if made else {}
            made = write_then(t, w.spec, total, at, mask, tensors=w.tensors, given=given)
        store_result(t, product, config.BN, made, str(r), edge)

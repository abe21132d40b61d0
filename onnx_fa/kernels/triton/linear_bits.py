"""A few rows by a weight of a few bits: what takes the time is reading the weight, and making numbers of it. A thread has words of
8 bytes of columns of the weight, each in one block: their numbers, less the zero point, are multiplied by x and added up, and the
sum alone is multiplied by the block's scale. A workgroup has all of K of its columns, so that nothing is left to others, and each
workgroup takes the norm of a row in front for itself."""

from __future__ import annotations

from onnx_fa.kernels.triton.config import power_of_two
from onnx_fa.kernels.triton.few_source import FewConfig, FewSource, Weight
from onnx_fa.kernels.triton.linear_source import Weights
from onnx_fa.kernels.triton.program import Program
from onnx_fa.spec.fused_linear import FusedLinear
from onnx_fa.spec.linear import Bits, LinearSpec

_LOAD = 8
"""Bytes of a word. With more, neighbouring threads would read x from lines of memory of their own; with less, the loads of scales,
one for each word, take as long as those of the words."""
_AHEAD = 16
"""Words of the weight that a thread has on their way from memory: steps of so many are written out. With more the compiler keeps
numbers in memory for want of registers."""
_WORDS = {1: "tl.uint8", 2: "tl.uint16", 4: "tl.uint32", 8: "tl.uint64"}
_HALF = 16
"""Bits of a word that numbers are made of before the next are moved to their place."""
_EXPONENT, _BASE = 0x4B000000, 2.0**23
"""The bits of a float whose last bit is worth 1, and that float."""
_AND_OR = 0xEA
"""The function (a & b) | c, as lop3 numbers them."""


def bytes_of_word(bits: Bits) -> int:
    """Neighbours in a row of the weight that have one scale, a power of two, and that one load brings."""
    within = bits.block // bits.places
    return min(_LOAD, within & -within)


def few_bits_config(spec: LinearSpec) -> FewConfig:
    """Tiles as they were fastest on an H200 (benchmarks/linear-few-bits-h200.csv)."""
    bits = spec.bits
    assert bits is not None
    word, row = bytes_of_word(bits), spec.K // bits.places
    BN, warps = 8, 4
    if spec.K >= 8192:
        warps = 2
    elif spec.K >= 2048:
        BN = 4 if spec.N < 2048 else 8
    elif spec.N >= 16384:
        warps = 1
    along = max(word, min(32 * warps * _LOAD, power_of_two(row)))
    return FewConfig(BN, along * bits.places, 1, max(1, min(warps, along // (32 * word))))


def join_exponent(half: str, mask: int) -> str:
    """Source of the floats whose exponent is that of 2^23 and whose last bits are those of `half`, 32-bit integers, that `mask`
    has. It is one instruction; as two operations of the source the compiler spends more, and the kernel takes up to 15% longer."""
    asm = f"{{ .reg .b32 e; mov.b32 e, 0x{_EXPONENT:X}; lop3.b32 $0, $1, 0x{mask:X}, e, 0x{_AND_OR:X}; }}"
    return f"tl.inline_asm_elementwise('{asm}', '=r,r', [{half}], tl.int32, True, 1).to(tl.float32, bitcast=True)"


class FewBitsSource(FewSource):
    """Writes the kernel of a spec whose weights are of a few bits, of known rows. BK of the configuration is how many numbers of K
    a step takes."""

    def __init__(self, spec: FusedLinear, config: FewConfig, name: str) -> None:
        super().__init__(spec, config, name)
        assert spec.product.bits is not None
        self.bits = spec.product.bits
        self.bytes = bytes_of_word(self.bits)
        self.together = self.bytes * self.bits.places
        """Numbers in a word."""
        self.words, self.all_words = config.BK // self.together, spec.product.K // self.together
        self.steps = -(-self.all_words // self.words)
        self.room = float(self.together << self.bits.bits)
        """What the sum of a word may be larger than x by, before its scale: x is made smaller by as much, and the result larger, so
        that no sum overflows where the numbers that it is the sum of do not."""

    def program(self) -> Program:
        t, config = self.t, self.config
        self.place()
        t.do(f"word = tl.arange(0, {self.words})")
        # No number of rows is negative. The compiler does not know this, and so does not read several words by one load, which
        # would take other threads than those that have their x.
        t.do("nothing = s0 >> 31")
        self.take_norms()
        for w in self.weights:
            for r in self.rows:
                t.do(f"{w.tensors}_acc{r} = tl.zeros([{config.BN}, {self.words}], tl.float32)")
        each = config.BN * len(self.weights) * max(1, self.words // (32 * config.warps))
        if each * self.steps <= _AHEAD:
            t.do(f"for i in tl.static_range(0, {self.steps}):")
        else:
            t.do(f"for i in tl.range(0, {self.steps}, loop_unroll_factor={max(1, _AHEAD // each)}):")
        t.indent += 1
        self.step()
        t.indent -= 1
        for r in self.rows:
            sums = [t.let(f"tl.sum({w.tensors}_acc{r}, 1)[None, :] * {self.room!r}") for w in self.weights]
            self.finish(r, sums)
        return self.write()

    def step(self) -> None:
        """The numbers of K of one step."""
        t = self.t
        t.do(f"at = i * {self.words} + word")
        inside = f"at < {self.all_words}" if self.all_words % self.words else ""
        per = self.bits.block // self.together
        t.do(f"block = {f'at // {per}' if per > 1 else 'at'}")
        if inside:
            t.do(f"block = tl.minimum(block, {self.product.blocks - 1})")
        mask = f", mask=({inside})[:, None], other=0" if inside else ""
        gain = self.read("gain", 0, self.gain_type, mask) if self.gain_type else []
        rows = []
        for r in self.rows:
            x = self.scaled(r, self.read("x", r * self.product.K, self.x_type, mask), gain)
            rows.append([t.let(f"{value} * {self.share(place)!r}") for place, value in enumerate(x)])
        for w in self.weights:
            numbers, scale = self.numbers(w, f", mask=({inside})[None, :], other=0" if inside else "")
            for r, x in zip(self.rows, rows, strict=True):
                total = " + ".join(f"{number} * {value}[None]" for number, value in zip(numbers, x, strict=True))
                t.do(f"{w.tensors}_acc{r} += ({total}) * {scale}")

    def bit(self, place: int) -> tuple[int, int]:
        """Which half of 16 bits of a word has the number at a place, and from which of its bits on."""
        return divmod(place * self.bits.bits, _HALF)

    def share(self, place: int) -> float:
        """What x at a place is multiplied by: the weight's numbers there are larger by where they stand in their half."""
        return 0.5 ** self.bit(place)[1] / self.room

    def read(self, name: str, first: int, dtype: str, mask: str) -> list[str]:
        """The numbers of x, or of what it is multiplied by, that stand beside each place of a word (words). As many neighbours as
        one load brings come together."""
        t, found = self.t, []
        loaded = min(self.together, 4 if dtype == "f32" else 8)
        for start in range(first, first + self.together, loaded):
            at = f"at[:, None] * {self.together} + {start} + tl.arange(0, {loaded})[None, :]"
            parts, left = [t.let(f"tl.load({name} + {at}{mask}).to(tl.float32)")], loaded
            while left > 1:  # the even ones, then the odd ones, of each part: all are in order in the end
                left //= 2
                shape = ", ".join(map(str, [self.words, left, 2] if left > 1 else [self.words, 2]))
                pairs = [t.let(f"tl.split(tl.reshape({part}, [{shape}]))") for part in parts]
                parts = [f"{pair}[{side}]" for side in range(2) for pair in pairs]
            found += parts
        return found

    def numbers(self, weight: Weight, mask: str) -> tuple[list[str], str]:
        """The weight's numbers at each place of a word (columns, words), times what `share` takes from x, and the words' scales.
        Behind the exponent of 2^23 a number's bits are worth what they are where they stand: one subtraction takes 2^23 and the
        zero point away, exactly."""
        t, bits, spec = self.t, self.bits, weight.spec
        far = ".to(tl.int64)" if self.all_words * spec.N >= 1 << 31 else ""
        start = f"({weight.prefix}w).to(tl.pointer_type({_WORDS[self.bytes]}))"
        read = t.let(f"tl.load({start} + (column{far} * {self.all_words} + nothing)[:, None] + at[None, :]{mask})")
        scale = t.let(
            f"tl.load({weight.prefix}scale + column[:, None] * {spec.blocks} + block[None, :]).to(tl.float32)"
        )
        zero = Weights(t, spec, weight.prefix).zero_point("block")
        places = range(self.together)
        above = {
            bit: t.let(f"{zero} * {float(1 << bit)!r} + {_BASE!r}")
            if bits.zeros
            else repr(bits.middle * (1 << bit) + _BASE)
            for bit in dict.fromkeys(self.bit(place)[1] for place in places)
        }
        wholes = [t.let(f"({read} >> {shift}).to(tl.uint32)") for shift in range(0, 8 * self.bytes, 2 * _HALF)]
        halves = [half for whole in wholes for half in (whole, t.let(f"{whole} >> {_HALF}"))]
        found = []
        for half, bit in map(self.bit, places):
            number = t.let(join_exponent(halves[half], (1 << bits.bits) - 1 << bit))
            found.append(t.let(f"{number} - {above[bit]}"))
        return found, scale

"""Small integers as floats, exactly, in registers.

For f16 by pairs: with 0x64 above it, a byte n is the f16 number 1024 + n, and 1024 is taken away from two of them at once. A
conversion of each takes a unit that has a quarter of the speed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from onnx_fa.kernels.mlir.stored import is_packed
from onnx_fa.kernels.triton.program import TYPES

TOGETHER = 4
"""How many integers make what `widened` calls a word: 32 bits of bytes, 16 of 4-bit integers."""
_SIGNS = {"i8": 0x80, "i4": 0x08}
"""What is added to an integer that has a sign, without a carry, so that it has none."""
_BASE = 0x6400
"""1024 as f16, above which numbers lie 1 apart."""


def word_type(dtype: str) -> str:
    return "tl.int16" if is_packed(dtype) else "tl.int32"


def widened(let: Callable[[str], str], x: str, dtype: str, to: str, together: int) -> list[str]:
    """A tile of integers as floats of the type `to`, in as many tiles as there are integers `together` in each element of `x`: 1,
    two in a byte, or TOGETHER in a word. `let` names values."""
    return (halves_of if to == "f16" else converted)(let, x, dtype, to, together)


def converted(let: Callable[[str], str], x: str, dtype: str, to: str, together: int) -> list[str]:
    """The same by conversions."""
    if together == 1:
        wholes = [x if dtype[0] == "i" else f"{x}.to(tl.uint8, bitcast=True)"]
    else:
        bits = 4 if is_packed(dtype) else 8
        wide, last = (8 if together == 2 else 4 * bits), (1 << bits) - 1
        if dtype[0] == "u":
            wholes = [f"(({x} >> {bits * i}) & {last})" for i in range(together)]
        else:
            wholes = [f"(({x} << {wide - bits * (i + 1)}) >> {wide - bits})" for i in range(together)]
    return [let(f"{n}.to({TYPES[to]})") for n in wholes]


def halves_of(let: Callable[[str], str], x: str, dtype: str, to: str, together: int) -> list[str]:
    """The same as f16, by instructions for pairs."""
    sign = _SIGNS.get(dtype, 0)
    base = (_BASE + sign) * 0x00010001
    if together == TOGETHER:
        pack, sources = 2, 1 if is_packed(dtype) else 2
        lines = _nibbles_of_words(base) if is_packed(dtype) else _bytes_of_words(sign)
    else:
        pack, sources = 4, 1
        lines = _bytes(sign, together)
    pairs = together * pack // 2
    lines += [f"sub.f16x2 ${i}, ${i}, b;" for i in range(pairs)]
    text = f"{{ .reg .b32 b, n, m, x, y; mov.b32 b, 0x{base:08X}; {' '.join(lines)} }}"
    registers = ",".join(["=&r"] * pairs + ["r"] * sources)
    types = TYPES["f16"] if together == 1 else f"({', '.join([TYPES['f16']] * together)})"
    made = let(f'tl.inline_asm_elementwise("{text}", "{registers}", [{x}], dtype={types}, is_pure=True, pack={pack})')
    return [made] if together == 1 else [let(f"{made}[{i}]") for i in range(together)]


def _bytes(sign: int, together: int) -> list[str]:
    """Of four bytes, of which each holds one integer or two, pairs above 1024."""
    lines = []
    for i in range(together):
        source = f"${2 * together}"
        if together == 2:
            lines += [f"shr.u32 n, {source}, {4 * i};", "and.b32 n, n, 0x0F0F0F0F;"]
            source = "n"
        lines += _without_signs("n", source, sign)
        lines += _above_base("n", 2 * i, 2 * i + 1)
    return lines


def _bytes_of_words(sign: int) -> list[str]:
    """The same of two words of four bytes, each byte with its neighbour in the other word."""
    lines = [*_without_signs("x", "$4", sign), *_without_signs("y", "$5", sign)]
    lines += ["prmt.b32 n, x, y, 0x5140;", "prmt.b32 m, x, y, 0x7362;"]
    return [*lines, *_above_base("n", 0, 1), *_above_base("m", 2, 3)]


def _nibbles_of_words(base: int) -> list[str]:
    """The same of two words of four 4-bit integers, in one register."""
    lines = []
    for i in range(TOGETHER):
        lines += [f"shr.u32 n, ${TOGETHER}, {4 * i};", "and.b32 n, n, 0x000F000F;", f"xor.b32 ${i}, n, 0x{base:08X};"]
    return lines


def _without_signs(to: str, source: str, sign: int) -> Sequence[str]:
    return [f"xor.b32 {to}, {source}, 0x{sign * 0x01010101:08X};"] if sign else [f"mov.b32 {to}, {source};"]


def _above_base(source: str, low: int, high: int) -> Sequence[str]:
    """The lower two bytes of a register, and the upper two, each below 0x64."""
    return [f"prmt.b32 ${r}, {source}, 0x64646464, 0x{order};" for r, order in ((low, "4140"), (high, "4342"))]


def whole_number(x: str, dtype: str, to: str) -> str:
    """A zero point, which is a byte whatever the integers of `dtype` are, as a float."""
    return f"{f'{x}.to(tl.uint8, bitcast=True)' if dtype[0] == 'u' else x}.to({TYPES[to]})"

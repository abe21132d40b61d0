"""AMX as operations of a vector kernel: tiles of 16 rows of 64 bytes, multiplied 16 x 32 x 16 numbers of bf16 at a time, or 16 x 64
x 16 bytes.

MLIR has no operations for them that the compiler takes, so they are written as inline assembly over memory of the stack. The
processor's eight tiles are used as two by two sums (0 to 3), two tiles of the left factor (4, 5) and two of the right (6, 7);
nothing else in a dispatch uses them.

Linux gives a process its tiles only when it asks (arch_prctl, ARCH_REQ_XCOMP_PERM, since 5.16): the dispatch does that itself, so
that it runs in any program. Where it is refused, or the processor has no tiles, `granted` is false, and other code has to multiply.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from onnx_fa.kernels.mlir.text import Text, inline_asm, memref_type

ROWS = 16
"""Of a tile."""
PAIRS = 16
"""Of bf16 in a row of a tile, as many as fours of bytes."""
Product = Literal["tdpbf16ps", "tdpbusd", "tdpbssd"]
"""Of bf16; of bytes without a sign, or with one, by such with one."""
_ROW_BYTES = 64
_ARCH_PRCTL, _ARCH_REQ_XCOMP_PERM, _XTILEDATA = 158, 0x1023, 18
LEFT, RIGHT, _FIRST_ROWS = 4, 6, 48
"""The first tiles of the factors, and where the configuration has the rows of the first tile."""
_CONFIG = [1] + [0] * 15 + [_ROW_BYTES, 0] * 8 + [0] * 16 + [ROWS] * 8 + [0] * 8
"""What ldtilecfg reads: palette 1, and bytes per row and rows of eight tiles."""


@dataclass(frozen=True)
class Tile:
    """A factor or a sum in memory: where it begins, as i64, and the bytes from a row to the next. `offset` is added, in bytes."""

    pointer: str
    row_bytes: int
    offset: int = 0

    def at(self, row: int, byte: int) -> int:
        return self.offset + row * self.row_bytes + byte

    def below(self, count: int) -> list[Tile]:
        """So many tiles, below each other."""
        return [replace(self, offset=self.at(ROWS * i, 0)) for i in range(count)]


class TileUnit:
    """The tiles of a workgroup, configured where the processor grants them. `height`: the rows, an index, of sums and left factors,
    where they are not 16. `product` is the instruction that multiplies: of bf16, or of bytes, whose sums are i32."""

    def __init__(self, t: Text, height: str | None = None, product: Product = "tdpbf16ps") -> None:
        self.t, self.product = t, product
        numbers = [t.constant(str(x), "i64") for x in (_ARCH_PRCTL, _ARCH_REQ_XCOMP_PERM, _XTILEDATA)]
        constraints = "={ax},{ax},{di},{si},~{rcx},~{r11},~{memory}"
        answer = t.let(f"{inline_asm('syscall', constraints)} {', '.join(numbers)} : (i64, i64, i64) -> i64")
        self.granted = t.let(f"arith.cmpi eq, {answer}, {t.constant('0', 'i64')} : i64")
        config_type = memref_type((64,), "i8")
        config = t.empty(config_type)
        bytes_ = t.constant(f"dense<{_CONFIG}>", "vector<64xi8>")
        t.do(f"vector.store {bytes_}, {config}[{t.index(0)}] : {config_type}, vector<64xi8>")
        if height is not None:
            rows = t.let(f"arith.index_cast {height} : index to i8")
            for tile in range(RIGHT):
                t.insert(rows, config, config_type, t.index(_FIRST_ROWS + tile))
        pointer = self.pointer(config, config_type)
        self.if_granted(lambda: t.do(f"{inline_asm('ldtilecfg ($0)', 'r,~{memory}')} {pointer} : (i64) -> ()"))

    def if_granted(self, body: Callable[[], None], otherwise: Callable[[], None] | None = None) -> None:
        """Operations for a processor that grants tiles, and others for one that does not."""
        t = self.t
        t.do(f"scf.if {self.granted} {{")
        body()
        if otherwise is not None:
            t.do("} else {")
            otherwise()
        t.do("}")

    def release(self) -> None:
        """Gives the tiles back, so that a change of threads need not save them."""
        self.if_granted(lambda: self.t.do(f"{inline_asm('tilerelease', '~{memory}')} : () -> ()"))

    def pointer(self, memory: str, type_: str) -> str:
        """Where a memref lies, as i64."""
        index = self.t.let(f"memref.extract_aligned_pointer_as_index {memory} : {type_} -> index")
        return self.t.let(f"arith.index_cast {index} : index to i64")

    def clear(self, down: int, across: int) -> None:
        """Sets down x across sums to 0."""
        code = "; ".join(f"tilezero %tmm{sum_tile(i, j)}" for i in range(down) for j in range(across))
        self.t.do(f"{inline_asm(code, '~{memory}')} : () -> ()")

    def add_product(self, lefts: Sequence[Tile], right: Tile, across: int) -> None:
        """Adds to the sums the product of one or two tiles of the left factor (16 rows of 32 bf16 or 64 bytes), each from where it
        lies, with `across` tiles of the right (16 rows of pairs, or fours: two or four rows of the factor, 16 columns), beside each
        other."""
        n = len(lefts)
        code = [f"tileloadd {x.at(0, 0)}(${i},${n + 1},1), %tmm{LEFT + i}" for i, x in enumerate(lefts)]
        code += [f"tileloadd {right.at(0, _ROW_BYTES * j)}(${n},${n + 2},1), %tmm{RIGHT + j}" for j in range(across)]
        code += [
            f"{self.product} %tmm{RIGHT + j}, %tmm{LEFT + i}, %tmm{sum_tile(i, j)}"
            for j in range(across)
            for i in range(n)
        ]
        strides = [self.t.constant(str(x.row_bytes), "i64") for x in (lefts[0], right)]
        run_instructions(self.t, code, [*(x.pointer for x in lefts), right.pointer, *strides])

    def load(self, from_: Tile, down: int, across: int) -> None:
        """Reads the sums."""
        self._move(lambda tile, place: f"tileloadd {place}, %tmm{tile}", from_, down, across)

    def store(self, to: Tile, down: int, across: int) -> None:
        """Writes the sums."""
        self._move(lambda tile, place: f"tilestored %tmm{tile}, {place}", to, down, across)

    def _move(self, move: Callable[[int, str], str], memory: Tile, down: int, across: int) -> None:
        places = [(i, j) for i in range(down) for j in range(across)]
        code = [move(sum_tile(i, j), f"{memory.at(ROWS * i, _ROW_BYTES * j)}($0,$1,1)") for i, j in places]
        run_instructions(self.t, code, [memory.pointer, self.t.constant(str(memory.row_bytes), "i64")])


def sum_tile(i: int, j: int) -> int:
    """The number of the tile with the sums of row i and column j of tiles."""
    return 2 * i + j


def run_instructions(t: Text, code: Sequence[str], given: Sequence[str]) -> None:
    """Runs instructions, one after the other, whose operands $0, $1, ... are these i64."""
    asm = inline_asm("; ".join(code), ",".join([*["r"] * len(given), "~{memory}"]))
    t.do(f"{asm} {', '.join(given)} : ({', '.join(['i64'] * len(given))}) -> ()")

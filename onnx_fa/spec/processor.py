"""What the processor of a target has that kernels for CPUs choose by: its vectors, and what it multiplies besides f32."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from onnx_fa.machine import cpu_features, is_arm

if TYPE_CHECKING:
    from onnx_fa.spec.terms import DType

AVX512_LANES, AVX2_LANES, NEON_LANES = 16, 8, 4
WIDTHS = (AVX512_LANES, AVX2_LANES, NEON_LANES)
"""The f32 lanes that vectors may have, longest first. Processors with long ones have the shorter ones too."""
_SHORTEST = WIDTHS[-1]


@dataclass(frozen=True, kw_only=True)
class Processor:
    """`lanes` is the number of f32 in a vector register, `registers` the number of these; both 0 for GPUs. `byte_dots`: with
    AVX512_VNNI, `pair_dots`: with AVX512_BF16, `amx`: with AMX's tiles of bf16 and bytes, too."""

    lanes: int = 0
    registers: int = 0
    byte_dots: bool = False
    pair_dots: bool = False
    amx: bool = False

    @property
    def has_avx512(self) -> bool:
        return self.lanes == AVX512_LANES

    @property
    def has_avx2(self) -> bool:
        """AVX2, or AVX-512, which has its instructions too."""
        return self.lanes >= AVX2_LANES

    @property
    def widens(self) -> bool:
        """Whether kernels multiply bf16 and bytes as what they become when they are widened: with AVX2 alone. What AVX-512 has no
        products of is the compiler's."""
        return self.lanes == AVX2_LANES

    @property
    def multiplies_bytes(self) -> bool:
        """Whether instructions multiply bytes, and add them up in 32 or 16 bits (kernels/cpu/bits_sums.py)."""
        return self.byte_dots or self.has_avx2

    @property
    def gains_by_pairs(self) -> bool:
        """Whether products of pairs of bf16 take less time than those of f32: with AMX beside them they take as long, without it
        (Zen 4) 0.55 to 0.7 of it."""
        return self.pair_dots and not self.amx

    @property
    def has_many_registers(self) -> bool:
        """As AVX-512 and NEON have: register tiles have more rows."""
        return self.registers >= 32

    def has_products(self, dtype: DType | Literal["u8", "i8"]) -> bool:
        """Whether there are instructions for products with a weight of that type, or for what it is widened to."""
        if dtype in ("u8", "i8"):
            return self.byte_dots or self.widens
        return dtype != "bf16" or self.pair_dots or self.widens

    def lanes_within(self, *sizes: int) -> int:
        """Of the longest vector that none of the sizes leaves partly empty; the shortest vectors may be."""
        return next((w for w in WIDTHS if w <= min(self.lanes, *sizes)), _SHORTEST)

    def lanes_dividing(self, size: int) -> int:
        """Of the longest vector that a whole number of make up a size; 0 where there is none."""
        return next((w for w in WIDTHS if w <= self.lanes and size % w == 0), 0)


AMX = Processor(lanes=AVX512_LANES, registers=32, byte_dots=True, pair_dots=True, amx=True)
AVX512 = Processor(lanes=AVX512_LANES, registers=32)
AVX2 = Processor(lanes=AVX2_LANES, registers=16)
NEON = Processor(lanes=NEON_LANES, registers=32)
_SSE = Processor(lanes=NEON_LANES, registers=16)

_TILES = {"amx_tile", "amx_bf16", "amx_int8", "avx512f", "avx512_bf16", "avx512_vnni"}
"""What Linux calls the features that kernels with tiles need."""


def host_processor() -> Processor:
    """This machine's."""
    has = cpu_features()
    if is_arm():
        return NEON
    if has >= _TILES:
        return AMX
    if "avx512f" in has:
        return Processor(
            lanes=AVX512_LANES, registers=32, byte_dots="avx512_vnni" in has, pair_dots="avx512_bf16" in has
        )
    return AVX2 if "avx2" in has else _SSE

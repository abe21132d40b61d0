"""Numbers of four bits looked up: a vector of AVX-512 holds all sixteen, and one instruction (vpermps) takes one of them into each
lane, by the lowest four bits of the lane's integer. That is a mask, a conversion and more in one."""

from __future__ import annotations

from onnx_fa.kernels.mlir.text import Text
from onnx_fa.spec.processor import AVX512_LANES

_BITS = 4


def has_table(bits: int, lanes: int) -> bool:
    """Whether a vector of so many lanes, which AVX-512 alone has 16 of, holds every number of so many bits."""
    return bits == _BITS and lanes == AVX512_LANES


def all_numbers(t: Text, vector: str, least: int) -> str:
    """All numbers from `least` on, of this type of vector."""
    return t.constant(f"dense<[{', '.join(f'{least + n}.0' for n in range(1 << _BITS))}]>", vector)


def looked_up(t: Text, table: str, integers: str) -> str:
    """The numbers of a table at the lowest four bits of integers."""
    vector, ints = f"vector<{AVX512_LANES}xf32>", f"vector<{AVX512_LANES}xi32>"
    op = f'llvm.call_intrinsic "llvm.x86.avx512.permvar.sf.512"({table}, {integers})'
    return t.let(f"{op} : ({vector}, {ints}) -> {vector}")

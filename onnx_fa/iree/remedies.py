"""The flags that a model is compiled with once more: where a part of the compiler fails that flags leave out, and where what it
made is wrong although it took the model (docs/developer/iree-bugs.md)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from onnx_fa.errors import CompileError
from onnx_fa.iree.passed_numbers import LESS_JOINED, WHY_LESS_JOINED, crowded
from onnx_fa.iree.unordered import IN_ORDER, WHY_IN_ORDER, find_unordered
from onnx_fa.spec.target import Target

TILING = "--iree-opt-data-tiling"
_REDUCTIONS = "--iree-codegen-llvmgpu-use-reduction-vector-distribution"
_PACKING_FAILS = (
    "expected padding_value has 'i8' but got: 'i1'",
    "'iree_codegen.load_from_buffer' op buffer and tensor shapes must be compatible",
    "'affine.delinearize_index' op no basis element may be statically non-positive",
)
"""Errors of the compiler that come of matmuls in packed layout alone."""
_REDUCTION_FAILS = "'func.func' op failed to distribute"
"""What it says, for a GPU, of a sum or maximum of 64 bits along the last axis of numbers that have fewer."""


@dataclass(frozen=True)
class Remedy:
    """`flags`, and why they are needed. `is_sure`: nothing else is to be looked for first."""

    flags: tuple[str, ...]
    why: str
    is_sure: bool = True


def remedy_for(error: CompileError, target: Target, flags: Sequence[str]) -> Remedy | None:
    """Of a model that did not compile for a target; None where there is none. `flags` are the caller's, which are not overruled."""
    said = str(error).partition("; command and messages")[0]
    if " was stopped " in said:
        return None
    if target.is_gpu:
        fails = _REDUCTION_FAILS in said and not _are_given(_REDUCTIONS, flags)
        why = f"with reductions by another form of IREE's, which may be slower: by the usual one {said}"
        return Remedy((f"{_REDUCTIONS}=false",), why) if fails else None
    why = f"without packed matrix products, which may be slower: with them {said}"
    is_sure = any(message in said for message in _PACKING_FAILS)
    return None if _are_given(TILING, flags) else Remedy((f"{TILING}=false",), why, is_sure)


def _are_given(option: str, flags: Sequence[str]) -> bool:
    return any(f.startswith(option) for f in flags)


def remedies_of(phases: Path, regions: Path) -> Iterator[Remedy]:
    """Of a module that was compiled, one after the other: each is told by what is in the folders then."""
    if crowded(phases):
        yield Remedy(LESS_JOINED, WHY_LESS_JOINED)
    if find_unordered(regions):
        yield Remedy(IN_ORDER, WHY_IN_ORDER)

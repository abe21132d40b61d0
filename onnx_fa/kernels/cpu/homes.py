"""Which of a dispatch's workgroups a worker takes: those whose part of the tensors its own caches are likely to hold.

The runtime gives the next workgroup to whoever asks first, so that a worker reads what another has just written: on two cores of a
virtual machine a network's depthwise convolutions took longer than on one of them. Here the workgroups are divided into as many
ranges as there are cores, or up to twice as many, and those of each range lie together in the tensors. Whoever runs a workgroup
takes the next of the range of its own processor, in every dispatch, and of others' once that is used up, so that nobody waits.

There may be fewer workers than cores. Ranges lie in the order of the processors' numbers read from their last bit on, and whose own
is used up looks into those whose places differ in the last bits first: the ranges of 16 that four workers then have are four times
four that lie side by side, the same in every dispatch.

Each takes one, and every one is taken once: what is left of a range is a number that counts up, at once for all threads.
"""

from __future__ import annotations

from dataclasses import dataclass

from onnx_fa.kernels.cpu.row_dispatch import Zeros, load, store
from onnx_fa.kernels.cpu.slots import own_processor
from onnx_fa.kernels.mlir.operand import Operand
from onnx_fa.kernels.mlir.text import Text
from onnx_fa.spec.target import Target

_CELL = "tensor<1xi64>"
_APART = 16
"""Numbers of 32 bits between two counts, which lie in different lines of the caches."""
_MOST = 64
"""Ranges: of more each has few workgroups, and their workers look for the last of them in many."""


def ranges_of(target: Target) -> int:
    """The ranges of a dispatch's workgroups, a power of two, 0 where each worker takes what comes: where the cores are not known,
    or one."""
    cores = target.cores or 0
    return 1 << (cores - 1).bit_length() if 1 < cores <= _MOST and target.has_avx2 else 0


@dataclass(frozen=True)
class Homes(Zeros):
    """So many ranges, a power of two, of the workgroups of the dispatch `symbol`. Raises ValueError for another number."""

    symbol: str
    count: int

    def __post_init__(self) -> None:
        if self.count < 2 or self.count & (self.count - 1):
            raise ValueError(f"{self.count} ranges of workgroups")

    @property
    def operand(self) -> Operand:
        """How many of each range have been taken."""
        return Operand("%homes", (self.count * _APART,), "i32")

    @property
    def helper(self) -> list[str]:
        """The function that the dispatch's module has to hold. It reads the number of workgroups from a cell, and leaves there
        which one the caller takes."""
        return [
            f"func.func private @{self.symbol}_home(%base: memref<i32>, %offset: index, %cell: memref<i64>, %first: index) "
            "attributes {llvm.bareptr = true} {",
            "%pointer = memref.extract_aligned_pointer_as_index %base : memref<i32> -> index",
            "%size = arith.constant 4 : index",
            "%one = arith.constant 1 : i32",
            "%c1 = arith.constant 1 : index",
            f"%count = arith.constant {self.count} : index",
            f"%apart = arith.constant {4 * _APART} : index",
            "%bytes = arith.muli %offset, %size : index",
            "%start = arith.addi %pointer, %bytes : index",
            "%given = memref.load %cell[] : memref<i64>",
            "%groups = arith.index_cast %given : i64 to index",
            *own_processor(),
            '%reversed = "llvm.intr.bitreverse"(%of_node) : (i32) -> i32',
            f"%above = arith.constant {33 - self.count.bit_length()} : i32",
            "%home_number = arith.shrui %reversed, %above : i32",
            "%home = arith.index_cast %home_number : i32 to index",
            "%c0 = arith.constant 0 : index",
            "%tries, %taken = scf.while (%away = %c0) : (index) -> (index, index) {",
            "%try = arith.xori %home, %away : index",
            "%next = arith.addi %try, %c1 : index",
            "%further = arith.addi %away, %c1 : index",
            "%before = arith.muli %try, %groups : index",
            "%begin = arith.divui %before, %count : index",
            "%behind = arith.muli %next, %groups : index",
            "%end = arith.divui %behind, %count : index",
            "%far = arith.muli %try, %apart : index",
            "%sum = arith.addi %start, %far : index",
            "%number = arith.index_cast %sum : index to i64",
            "%address = llvm.inttoptr %number : i64 to !llvm.ptr",
            "%old = llvm.atomicrmw add %address, %one acq_rel : !llvm.ptr, i32",
            "%index = arith.index_cast %old : i32 to index",
            "%place = arith.addi %begin, %index : index",
            "%is_over = arith.cmpi sge, %place, %end : index",
            "scf.condition(%is_over) %further, %place : index, index",
            "} do {",
            "^bb0(%after: index, %unused: index):",
            "scf.yield %after : index",
            "}",
            "%found = arith.index_cast %taken : index to i64",
            "memref.store %found, %cell[] : memref<i64>",
            "return",
            "}",
        ]

    @property
    def keep(self) -> str:
        """The attribute of the dispatch's function by which the compiler knows, before it is called, that the other is used."""
        return f"onnx_fa.home = @{self.symbol}_home"

    def workgroup(self, t: Text, groups: str) -> str:
        """Which workgroup of so many the caller is to compute, an index."""
        x = self.operand
        counts, _ = load(t, x, "readwrite", ["0"], x.shape)
        many = t.let(f"arith.index_cast {groups} : index to i64")
        cell = t.let(f"tensor.from_elements {many} : {_CELL}")
        counts, cell = t.several(
            f'iree_codegen.ukernel.generic "{self.symbol}_home" outs({counts}, {cell} : {x.type}, {_CELL}) '
            f"strided_dims([[], []]) -> {x.type}, {_CELL}",
            2,
        )
        store(t, counts, x.type, x, ["0"], x.shape, access="readwrite")
        return t.let(f"arith.index_cast {t.extract(cell, _CELL, t.index(0))} : i64 to index")

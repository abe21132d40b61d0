"""Memory of a dispatch that its workgroups use one after the other.

A workgroup's own memory is cold when it begins, and pages that the system has not given out before have to be waited for. Here
there are as many slots as workgroups, or more than workers, and each takes the first that nobody has, from that of its processor
on, and gives it back: no more of them are touched than workers run at once, whose number only a run knows, and what a worker
touches stays in its caches. One is free then, and nobody waits; more workers than slots wait for one of the others.
"""

from __future__ import annotations

from dataclasses import dataclass

from onnx_fa.kernels.cpu.row_dispatch import Zeros, load, store
from onnx_fa.kernels.mlir.operand import Operand
from onnx_fa.kernels.mlir.text import Text, inline_asm

_CELL = "tensor<1xi64>"
_ADDRESS = (
    "%pointer = memref.extract_aligned_pointer_as_index %base : memref<i32> -> index",
    "%size = arith.constant 4 : index",
    "%free = arith.constant 0 : i32",
    "%taken = arith.constant 1 : i32",
)
_TAKEN = "%base: memref<i32>, %offset: index, %cell: memref<i64>, %first: index"
"""How a function is given the operand of `Slots` and a cell, below their tensors."""


@dataclass(frozen=True)
class Claim:
    """A slot that a workgroup has, an index, and the tensors by which it is given back."""

    slot: str
    taken: str
    cell: str


@dataclass(frozen=True)
class Slots(Zeros):
    """So many slots of the dispatch `symbol`, which has as many workgroups at most."""

    symbol: str
    count: int

    @property
    def operand(self) -> Operand:
        """A number for each slot that all workgroups change, 1 where one of them has it. All are 0 before a call and behind it."""
        return Operand("%taken", (self.count,), "i32")

    @property
    def helper(self) -> list[str]:
        """The functions that the dispatch's module has to hold. They swap numbers at once for all threads, and what is read and
        written before and behind stays there (`acq_rel`): whoever gets a slot sees it as the one before left it."""
        return [
            f"func.func private @{self.symbol}_claim({_TAKEN}) attributes {{llvm.bareptr = true}} {{",
            *_ADDRESS,
            "%c1 = arith.constant 1 : index",
            f"%count = arith.constant {self.count} : index",
            *own_processor(),
            "%first_slot = arith.remui %processor, %count : index",
            "%slot = scf.while (%try = %first_slot) : (index) -> index {",
            *_swap("%try", "%taken"),
            "%was_taken = arith.cmpi ne, %old, %free : i32",
            "scf.condition(%was_taken) %try : index",
            "} do {",
            "^bb0(%tried: index):",
            "%next = arith.addi %tried, %c1 : index",
            "%again = arith.remui %next, %count : index",
            "scf.yield %again : index",
            "}",
            "%found = arith.index_cast %slot : index to i64",
            "memref.store %found, %cell[] : memref<i64>",
            "return",
            "}",
            f"func.func private @{self.symbol}_free(%last: memref<f32>, %of_last: index, {_TAKEN}) "
            "attributes {llvm.bareptr = true} {",
            *_ADDRESS,
            "%number = memref.load %cell[] : memref<i64>",
            "%slot = arith.index_cast %number : i64 to index",
            *_swap("%slot", "%free"),
            "return",
            "}",
        ]

    @property
    def keep(self) -> str:
        """The attributes of the dispatch's function by which the compiler knows, before they are called, that the others are
        used."""
        return f"onnx_fa.claim = @{self.symbol}_claim, onnx_fa.free = @{self.symbol}_free"

    def claim(self, t: Text) -> Claim:
        """Takes a slot."""
        x = self.operand
        taken, _ = load(t, x, "readwrite", ["0"], x.shape)
        cell = t.let(f"tensor.empty() : {_CELL}")
        taken, cell = t.several(
            f'iree_codegen.ukernel.generic "{self.symbol}_claim" outs({taken}, {cell} : {x.type}, {_CELL}) '
            f"strided_dims([[], []]) -> {x.type}, {_CELL}",
            2,
        )
        slot = t.let(f"arith.index_cast {t.extract(cell, _CELL, t.index(0))} : i64 to index")
        return Claim(slot, taken, cell)

    def free(self, t: Text, claim: Claim, last: str, last_type: str) -> None:
        """Gives a slot back behind everything that made `last`, a tensor of f32."""
        x = self.operand
        taken, _ = t.several(
            f'iree_codegen.ukernel.generic "{self.symbol}_free" ins({last} : {last_type}) '
            f"outs({claim.taken}, {claim.cell} : {x.type}, {_CELL}) strided_dims([[], [], []]) -> {x.type}, {_CELL}",
            2,
        )
        store(t, taken, x.type, x, ["0"], x.shape, access="readwrite")


@dataclass(frozen=True)
class OwnSlot:
    """A workgroup's slot of the memory that workers keep: the `value` of the memory's part that it is, and its `type`."""

    slots: Slots
    memory: Operand
    claim: Claim
    value: str
    type: str

    @property
    def place(self) -> tuple[list[str], tuple[int, ...]]:
        """Where it is in the memory, and how much of it."""
        return _place(self.claim, self.memory)

    def leave(self, t: Text, last: str, last_type: str) -> None:
        """Gives it back behind everything that made `last`, a tensor of f32."""
        # What is only read and stored would pass for a copy.
        left = t.insert(t.f32(0.0), self.value, self.type, t.index(0), t.index(0))
        store(t, left, self.type, self.memory, *self.place, access="readwrite")
        self.slots.free(t, self.claim, last, last_type)


def take_slot(t: Text, slots: Slots, memory: Operand) -> OwnSlot:
    """Takes a slot of the memory, which has as many."""
    claim = slots.claim(t)
    return OwnSlot(slots, memory, claim, *load(t, memory, "readwrite", *_place(claim, memory)))


def _place(claim: Claim, memory: Operand) -> tuple[list[str], tuple[int, ...]]:
    _, numbers = memory.shape
    assert isinstance(numbers, int)
    return [claim.slot, "0"], (1, numbers)


def own_processor() -> list[str]:
    """The number of the processor that runs this, which Linux leaves where `rdtscp` reads it, in its lower 12 bits. A worker that
    stays on one gets the slot again that it had in the dispatch before, where nothing else has it: what it wrote there is still in
    its caches, and in no other's."""
    return [
        f"%number_of_processor = {inline_asm('rdtscp', '={cx},~{ax},~{dx}')} : () -> i32",
        "%lower = arith.constant 4095 : i32",
        "%of_node = arith.andi %number_of_processor, %lower : i32",
        "%processor = arith.index_cast %of_node : i32 to index",
    ]


def _swap(slot: str, value: str) -> list[str]:
    return [
        f"%place = arith.addi %offset, {slot} : index",
        "%bytes = arith.muli %place, %size : index",
        "%index = arith.addi %pointer, %bytes : index",
        "%address = arith.index_cast %index : index to i64",
        "%number_of_slot = llvm.inttoptr %address : i64 to !llvm.ptr",
        f"%old = llvm.atomicrmw xchg %number_of_slot, {value} acq_rel : !llvm.ptr, i32",
    ]

"""Memory that a program keeps from call to call, in which the dispatches that need more than a worker's stack work.

What a call allocates the runtime clears, all of it on one thread (10 ms for slots of 60 MB), or the system hands out page by page.
These are globals: they are there once, for all dispatches of the program, which is why all have slots of one size. A dispatch
changes them in place, and leaves nothing that another would read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from onnx_fa.kernels.mlir.operand import Operand
from onnx_fa.kernels.mlir.text import Text

SLOT_BYTES = 2 << 20
"""As large as the second cache of the processors that have tiles."""
SLOTS_OF_A_WORKER = 2
"""For a run with some more workers than a program is made for."""
TEXT_NAME = "worker_memory"
"""By which kernels hand out the text of the globals: a program has it once."""


@dataclass(frozen=True)
class Kept:
    """A global that a dispatch reads and writes, and the operand that it is there."""

    operand: Operand
    symbol: str

    def take(self, t: Text) -> str:
        """Its value, in the function that calls the dispatch."""
        return t.let(f"util.global.load @{self.symbol} : {self.operand.type}")

    def give_back(self, t: Text, value: str) -> None:
        """Makes what the dispatch left its value."""
        t.do(f"util.global.store {value}, @{self.symbol} : {self.operand.type}")


@dataclass(frozen=True)
class WorkerMemory:
    """So many slots, and who has them (slots.py); `owner` begins the names of its globals, the dispatch's where it is not that of
    all."""

    count: int
    slot_bytes: int = SLOT_BYTES
    owner: str = "worker"

    @property
    def taken(self) -> Kept:
        return Kept(Operand("%taken", (self.count,), "i32"), f"{self.owner}_slots")

    @property
    def memory(self) -> Kept:
        return Kept(Operand("%memory", (self.count, self.slot_bytes // 4), "f32"), f"{self.owner}_memory")

    @property
    def all(self) -> Sequence[Kept]:
        return [self.taken, self.memory]

    @property
    def text(self) -> str:
        """The globals. Nobody has a slot when a program begins; what slots hold does not matter."""
        memory = self.memory
        return "\n".join(
            [
                f"util.global private mutable @{self.taken.symbol} = dense<0> : {self.taken.operand.type}",
                f"util.global private mutable @{memory.symbol} : {memory.operand.type}",
                "util.initializer {",
                f"%memory = flow.tensor.empty : {memory.operand.type}",
                f"util.global.store %memory, @{memory.symbol} : {memory.operand.type}",
                "util.return",
                "}",
                "",
            ]
        )

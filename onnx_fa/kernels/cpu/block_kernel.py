"""What a body does with one block of keys, whichever way its queries lie."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from onnx_fa.kernels.cpu.state import Block, SoftmaxState, StateTypes
from onnx_fa.kernels.cpu.sweep import Sweep
from onnx_fa.kernels.mlir.vectors import Lanes


class BlockKernel(Protocol):
    """The queries of a workgroup, and the scores, probabilities and products of a block of keys with them. `clear_apart`: see
    KeyWalk."""

    @property
    def t(self) -> Lanes: ...

    @property
    def types(self) -> StateTypes: ...

    @property
    def clear_apart(self) -> bool: ...

    @property
    def parts(self) -> Sequence[slice]:
        """The vectors of queries that meet a block of keys together, before the next ones do."""

    def needs(self, part: slice) -> str:
        """Whether a workgroup has queries of that part, i1, where only a run knows; "" where it has."""

    def load_queries(self) -> None:
        """Reads Q, times the scale where it can be, into a tile: before any block."""

    def prepare(self, state: SoftmaxState, block: Block) -> tuple[SoftmaxState, Block]:
        """Copies what the scores are made of into the state's scratch tiles; the block then names those of mask terms."""

    def visit_parts(self, sweep: Sweep, state: SoftmaxState, block: Block) -> SoftmaxState:
        """The state after a block that was prepared has met all parts of the queries: one after the other (`visit_in_turn`), where
        that is not better done at once."""

    def scores(self, state: SoftmaxState, block: Block, part: slice) -> tuple[str, list[str]]:
        """S of the block and a part's queries, masked, as a tile; and the part's maxima, those of the state included, if it has
        any."""

    def probabilities(self, sweep: Sweep, state: SoftmaxState, block: Block, part: slice) -> tuple[str, list[str]]:
        """What the sweep makes of a part's scores, in their place, as the product with V takes it, and the block's own sums."""

    def add_values(self, state: SoftmaxState, decay: Sequence[str], block: Block, part: slice) -> SoftmaxState:
        """O = O decay + P V of a part, with P in the place of the scores; O + P V where a decay is ""."""

    def finish_output(self, state: SoftmaxState, inverse: Callable[[str], str]) -> str:
        """The result: O times inverse(sum), of "" where nothing is summed."""

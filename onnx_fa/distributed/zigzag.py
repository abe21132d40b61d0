"""Who holds what of a causal sequence, so that all processes have the same work (Striped or zigzag rings; Brandon et al. 2023).

The sequence is cut into 2 N chunks; process r of N has the chunks r and 2 N - 1 - r, one from each end: it sees few keys with the
first, many with the second.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    import torch

Visit = Literal["causal", "early", "late"]
"""What a process computes with the keys of another: its own with its own, in their order ("causal"); all its queries with the first
of the two chunks ("early"); the second chunk of its queries with both ("late")."""


def chunks_of(rank: int, ranks: int) -> tuple[int, int]:
    """The two chunks of a process, of 2 * `ranks`."""
    return rank, 2 * ranks - 1 - rank


def visit(rank: int, source: int) -> Visit:
    """What process `rank` computes with the keys of `source`: everything that a causal mask leaves of it."""
    if rank == source:
        return "causal"
    return "early" if source < rank else "late"


def length_of_share(length: int, ranks: int) -> int:
    """How much of a sequence each process has. Raises ValueError for a length that 2 * `ranks` does not divide."""
    if length % (2 * ranks):
        raise ValueError(f"a sequence of {length} is not {2 * ranks} equal chunks, two for each of {ranks} processes")
    return length // ranks


def share(x: torch.Tensor, rank: int, ranks: int, axis: int = 1) -> torch.Tensor:
    """A process's two chunks of a sequence along `axis`, side by side. Raises ValueError for a length that 2 * `ranks` does not
    divide."""
    import torch

    length_of_share(x.shape[axis], ranks)
    pieces = x.chunk(2 * ranks, axis)
    return torch.cat([pieces[c] for c in chunks_of(rank, ranks)], axis)


def whole(shares: list[torch.Tensor], axis: int = 1) -> torch.Tensor:
    """The sequence of all processes' shares, in the order of their ranks."""
    import torch

    ranks = len(shares)
    pieces: list[torch.Tensor | None] = [None] * (2 * ranks)
    for rank, x in enumerate(shares):
        for chunk, piece in zip(chunks_of(rank, ranks), x.chunk(2, axis), strict=True):
            pieces[chunk] = piece
    return torch.cat([p for p in pieces if p is not None], axis)

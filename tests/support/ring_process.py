"""One process of tests/distributed: `python -m tests.support.ring_process RANK RANKS FOLDER` with gloo, which meets at a file."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import torch
import torch.distributed as dist

from onnx_fa.distributed.decode import SplitDecode
from onnx_fa.distributed.module import TorchModule
from onnx_fa.distributed.ring import RingPrefill
from onnx_fa.distributed.zigzag import share

EDGES = (17,)
"""Where the keys of the second process begin."""


def _decode(decode: SplitDecode, one: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Iterator[torch.Tensor]:
    """By a call, and by a bound one."""
    yield decode(one, k, v)
    # A loop has its tensors in place: their numbers change between two calls.
    q = -one
    bound = decode.bind(q, k, v)
    bound()
    q.copy_(one)
    yield bound().clone()


def main(rank: int, ranks: int, folder: Path) -> None:
    """Writes <rank>.pt: this process's share of the prefill, and the whole result of decoding, by a call and by a bound one; over
    all keys, and where the first process has none and the others' are not seen."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=ranks)
    q, k, v, one = torch.load(folder / "operands.pt")
    cpu = torch.device("cpu")
    sites = {kind: TorchModule(folder / f"{kind}.vmfb", cpu) for kind in ("causal", "early", "late")}
    out = RingPrefill(sites)(*(share(x, rank, ranks) for x in (q, k, v)))  # type: ignore[arg-type]
    edges = [0, *EDGES, k.shape[1]]
    own = [x[:, edges[rank] : edges[rank + 1]].contiguous() for x in (k, v)]
    site = TorchModule(folder / f"decode-{own[0].shape[1]}.vmfb", cpu)
    steps = [*_decode(SplitDecode(site), one, *own)]
    if rank == 0:
        site, own = None, [x[:, :0] for x in own]
    torch.save((out, steps, [*_decode(SplitDecode(site), one, *own)]), folder / f"{rank}.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))

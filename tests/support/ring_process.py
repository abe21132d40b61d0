"""One process of tests/distributed: `python -m tests.support.ring_process RANK RANKS FOLDER` with gloo, which meets at a file."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
import torch.distributed as dist

from onnx_fa.distributed.decode import SplitDecode
from onnx_fa.distributed.module import TorchModule
from onnx_fa.distributed.ring import RingPrefill
from onnx_fa.distributed.zigzag import share


def main(rank: int, ranks: int, folder: Path) -> None:
    """Writes <rank>.pt: this process's share of the prefill, and the whole result of decoding, by a call and by a bound one."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=ranks)
    q, k, v, one = torch.load(folder / "operands.pt")
    cpu = torch.device("cpu")
    sites = {kind: TorchModule(folder / f"{kind}.vmfb", cpu) for kind in ("causal", "early", "late")}
    out = RingPrefill(sites)(*(share(x, rank, ranks) for x in (q, k, v)))  # type: ignore[arg-type]
    keys = slice(rank * k.shape[1] // ranks, (rank + 1) * k.shape[1] // ranks)
    decode = SplitDecode(TorchModule(folder / "decode.vmfb", cpu))
    own = k[:, keys].contiguous(), v[:, keys].contiguous()
    step = decode(one, *own)
    # A loop has its tensors in place: their numbers change between two calls.
    q = -one
    bound = decode.bind(q, *own)
    bound()
    q.copy_(one)
    torch.save((out, step, bound().clone()), folder / f"{rank}.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))

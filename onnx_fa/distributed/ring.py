"""Causal attention of a long sequence over several processes: queries stay, keys and values go round in a ring (Ring Attention, Liu
et al. 2023), while what is there is computed. The shares are those of `zigzag`."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
import torch.distributed as dist

from onnx_fa.distributed.merge import Partial, add
from onnx_fa.distributed.zigzag import Visit, visit

Site = Callable[..., list[torch.Tensor]]
"""q, k, v -> the results of a part: output, maxima, sums."""


class RingPrefill:
    """`sites` are the modules that `modules.prefill_specs` names, for this process's share of the sequence. A call takes the share
    of q (B, S / N, Hq, D), k (B, S / N, Hkv, D) and v (B, S / N, Hkv, Dv), and returns that of the output. Every process of the
    group has to make the same calls."""

    def __init__(self, sites: Mapping[Visit, Site], group: dist.ProcessGroup | None = None) -> None:
        self.sites, self.group = sites, group
        self.rank, self.ranks = dist.get_rank(group), dist.get_world_size(group)

    def __call__(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        half, found = q.shape[1] // 2, None
        for step in range(self.ranks):
            source = (self.rank - step) % self.ranks
            coming = self._exchange(k, v) if step + 1 < self.ranks else None
            kind = visit(self.rank, source)
            if kind == "causal":
                out, top, total = self.sites[kind](q, k, v)
                # Merged more than once, results would be rounded each time.
                found = Partial(out.float() if self.ranks > 2 else out, top, total)
            elif kind == "early":
                keys = k.shape[1] // 2
                part, rows = self.sites[kind](q, k[:, :keys], v[:, :keys]), slice(None)
            else:
                part, rows = self.sites[kind](q[:, half:], k, v), slice(half, None)
            if kind != "causal":
                assert found is not None  # a process begins with its own keys
                add(found, Partial(*part), rows)
            if coming is not None:
                k, v = coming()
        assert found is not None
        return found.out.to(q.dtype)

    def _exchange(self, k: torch.Tensor, v: torch.Tensor) -> Callable[[], tuple[torch.Tensor, torch.Tensor]]:
        """Sends keys and values on and takes those of the process before; the result waits for them."""
        behind, before = ((self.rank + by) % self.ranks for by in (1, -1))
        if self.group is not None:
            behind, before = (dist.get_global_rank(self.group, r) for r in (behind, before))
        new = torch.empty_like(k), torch.empty_like(v)
        ops = [dist.P2POp(dist.isend, x.contiguous(), behind, self.group) for x in (k, v)]
        ops += [dist.P2POp(dist.irecv, x, before, self.group) for x in new]
        work = dist.batch_isend_irecv(ops)

        def wait() -> tuple[torch.Tensor, torch.Tensor]:
            for w in work:
                w.wait()
            return new

        return wait

"""Decoding over a cache that lies in parts on several processes: each computes with its range of keys, and all get all partial
results, which are small."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist


class SplitDecode:
    """`site` is the module of `modules.decode_spec`. A call takes q (B, Sq, Hq, D), the same in every process, and this process's
    range of the cache, k (B, Skv / N, Hkv, D) and v (B, Skv / N, Hkv, Dv); it returns the output (B, Sq, Hq, Dv) in all of them."""

    def __init__(self, site: Callable[..., list[torch.Tensor]], group: dist.ProcessGroup | None = None) -> None:
        self.site, self.group, self.ranks = site, group, dist.get_world_size(group)

    def __call__(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        out, top, total = self.site(q, k, v)
        own = torch.cat([out.float(), *(x.transpose(1, 2).unsqueeze(-1) for x in (top, total))], -1)
        gathered = own.new_empty((self.ranks * own.shape[0], *own.shape[1:]))
        dist.all_gather_into_tensor(gathered, own.contiguous(), group=self.group)
        parts = gathered.view(self.ranks, *own.shape)
        # Few operations, each of which takes longer to start than to run.
        each, top, total = parts[..., :-2], parts[..., -2:-1], parts[..., -1:]
        counts = total * torch.exp(top - top.amax(0).clamp(min=torch.finfo(top.dtype).min))
        merged: torch.Tensor = (each * counts).sum(0) / counts.sum(0).clamp(min=torch.finfo(top.dtype).tiny)
        return merged.to(out.dtype)

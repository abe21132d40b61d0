"""Decoding over a cache that lies in parts on several processes: each computes with its range of keys, and all get all partial
results, which are small."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from math import prod

import torch
import torch.distributed as dist

from onnx_fa.distributed.merge import merge
from onnx_fa.distributed.module import TorchModule

_ALIGNED = 256
"""Bytes that each result of a part begins at a multiple of: kernels read and write 16 at a time, and CUDA gives no buffer less."""


class SplitDecode:
    """`site` is the module of `modules.decode_spec` for this process's range of the cache; None where that is empty. A call takes
    q (B, Sq, Hq, D), the same in every process, and the range, k (B, S, Hkv, D) and v (B, S, Hkv, Dv), S of its own in each; it
    returns the output (B, Sq, Hq, Dv) in all of them. It raises ValueError for keys without a module."""

    def __init__(self, site: TorchModule | None, group: dist.ProcessGroup | None = None) -> None:
        self.site, self.group = site, group

    def __call__(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        parts = _Parts(q, v, self.group)
        if self.site is None:
            parts.see_no_keys(k)
        else:
            for own, made in zip(parts.own, self.site(q, k, v), strict=True):
                own.copy_(made)
        return parts.exchange()

    def bind(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Callable[[], torch.Tensor]:
        """A call for a loop whose q, k and v stay where they are while their numbers change, at less than what `__call__` costs
        beside the kernel. All processes have to bind, and call, in the same order. It returns the same tensor each time, on CUDA
        in the order of torch's current stream, where all of it is a graph (of a module that IREE's runtime runs, the exchange and
        the merge alone). Raises ValueError for tensors that
        are not contiguous, and for keys without a module."""
        parts = _Parts(q, v, self.group)
        if self.site is None:
            parts.see_no_keys(k)
        compute = self.site.bind((q, k, v), parts.own) if self.site else None
        if q.device.type == "cuda" and compute is not None and self.site and self.site.launched:
            return Graph(lambda: parts.exchange_after(compute))
        finish = Graph(parts.exchange) if q.device.type == "cuda" else parts.exchange

        def step() -> torch.Tensor:
            if compute is not None:
                compute()
            return finish()

        return step


class _Parts:
    """The partial results of all processes, each of them bytes in a row: one exchange moves them. `own` are this one's, an output
    (B, Sq, Hq, Dv) and the maxima and sums (B, Hq, Sq)."""

    def __init__(self, q: torch.Tensor, v: torch.Tensor, group: dist.ProcessGroup | None) -> None:
        self.group = group
        B, Sq, Hq, _ = q.shape
        stat = (B, Hq, Sq), torch.float32
        self.kinds = [((B, Sq, Hq, v.shape[-1]), q.dtype), stat, stat]
        size, ranks = sum(map(_bytes_of, self.kinds)), dist.get_world_size(group)
        self.bytes = torch.empty(size, dtype=torch.uint8, device=q.device)
        self.gathered = torch.empty(ranks * size, dtype=torch.uint8, device=q.device)
        self.own = [x.squeeze(0) for x in self._views(self.bytes, 1)]
        self.all = self._views(self.gathered, ranks)
        self._merge = _merge_on(q.device)

    def _views(self, data: torch.Tensor, ranks: int) -> list[torch.Tensor]:
        """The results that lie in the bytes of so many processes."""
        columns = torch.split(data.view(ranks, -1), [_bytes_of(kind) for kind in self.kinds], 1)
        return [
            x[:, : prod(shape) * dtype.itemsize].view(dtype).view(ranks, *shape)
            for x, (shape, dtype) in zip(columns, self.kinds, strict=True)
        ]

    def see_no_keys(self, k: torch.Tensor) -> None:
        """The results of a process whose keys are none. Raises ValueError where there are some."""
        if k.shape[1]:
            raise ValueError(f"{k.shape[1]} keys, and no module that attends to them")
        for x, value in zip(self.own, (0.0, -torch.inf, 0.0), strict=True):
            x.fill_(value)

    def exchange_after(self, compute: Callable[[], None]) -> torch.Tensor:
        """The same, of own results that `compute` makes first."""
        compute()
        return self.exchange()

    def exchange(self) -> torch.Tensor:
        """The merged output of all processes."""
        dist.all_gather_into_tensor(self.gathered, self.bytes, group=self.group)
        return self._merge(*self.all)


def _merge_on(device: torch.device) -> Callable[..., torch.Tensor]:
    """On CUDA as one kernel, where Triton is, which PyTorch for CUDA brings."""
    if device.type != "cuda" or find_spec("triton") is None:
        return merge
    from onnx_fa.distributed.merge_kernel import merge_at_once

    return merge_at_once


def _bytes_of(kind: tuple[tuple[int, ...], torch.dtype]) -> int:
    """What a result takes, of this shape and type, up to where the next one begins."""
    shape, dtype = kind
    return -(-prod(shape) * dtype.itemsize // _ALIGNED) * _ALIGNED


class Graph:
    """A CUDA graph of `work`, whose kernels take longer to start one by one than to run. A call returns the same tensor each time.

    It keeps `work`: what that writes to besides its result is memory outside the graph, which torch would give to others.
    """

    def __init__(self, work: Callable[[], torch.Tensor]) -> None:
        self.work = work
        side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            work()  # what libraries set up the first time must not be captured
        torch.cuda.current_stream().wait_stream(side)
        torch.cuda.synchronize()
        self._graph = torch.cuda.CUDAGraph()
        # Other threads, such as NCCL's watch, go on calling CUDA.
        with torch.cuda.graph(self._graph, capture_error_mode="thread_local"):
            self._made = work()

    def __call__(self) -> torch.Tensor:
        self._graph.replay()
        return self._made

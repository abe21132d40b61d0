"""How much is measured of a site, how long that takes, and what came out."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from onnx_fa.benchmark.models import (
    EAGER,
    ORT,
    STOCK_FLAGS,
    TORCH,
    Contestant,
)
from onnx_fa.benchmark.plot import COPY
from onnx_fa.spec.dtypes import NUMPY
from onnx_fa.spec.linear import LinearSpec
from onnx_fa.spec.site_case import SiteCase

COPY_BYTES = 256 << 20
"""What the copy beside every decode case copies: more than any cache holds."""
CHECKED_SCORES = 1 << 25
"""Bound on the float64 scores that the check of a case computes: longer attentions are checked on some of their rows."""


@dataclass(frozen=True)
class Plan:
    """How much is measured: in each round as many calls as fit in `budget_ms`, from 1 to `most_calls`; what takes more than
    `slow_ms` a call has `slow_rounds`."""

    rounds: int = 4
    threads: int = 2
    budget_ms: float = 200
    most_calls: int = 15
    most_gpu_calls: int = 60
    slow_ms: float = 600
    slow_rounds: int = 2
    keep_processes: bool = False
    """Whether onnxruntime and PyTorch run in one process each for all cases, which then does not tell their memory."""
    timeout_s: float = 600
    memory_bytes: int = 16 << 30

    def calls(self, ms: float, gpu: bool = False) -> int:
        most = self.most_gpu_calls if gpu else self.most_calls
        return max(1, min(most, int(self.budget_ms / max(ms, 1e-3))))


OF_DRAWN = Plan(rounds=3, budget_ms=100, keep_processes=True)
"""For many cases."""
QUICK = Plan(rounds=2, budget_ms=40, most_calls=3, slow_rounds=1)


@dataclass(frozen=True)
class CaseResult:
    """What was measured of a case. `read_bytes` are those of K and V, or of the weight."""

    name: str
    title: str
    decode: bool
    read_bytes: int
    contestants: tuple[Contestant, ...]
    seconds: float

    def median(self, what: str) -> float | None:
        """Of the contestant of that name, in ms."""
        times = [c.median_ms for c in self.contestants if c.what == what and not c.problem]
        return next((t for t in times if t is not None), None)

    @property
    def torch(self) -> str:
        """What the usual call in PyTorch is called: SDPA, and of what is no attention the plain one."""
        return TORCH if any(c.what == TORCH for c in self.contestants) else EAGER

    @property
    def best_other(self) -> float | None:
        """The faster of onnxruntime and torch."""
        return min((t for t in (self.median(ORT), self.median(self.torch)) if t is not None), default=None)

    def of_bandwidth(self, what: str) -> float | None:
        """For decode: bytes of K and V per time, over the bytes per time of a copy, which reads and writes."""
        ms, copy = self.median(what), self.median(COPY)
        if not self.decode or ms is None or copy is None:
            return None
        return (self.read_bytes / ms) / (2 * COPY_BYTES / copy)

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "contestants": [vars(c) for c in self.contestants]}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> CaseResult:
        listed = [
            Contestant(**{**c, "samples": [(int(r), float(ms)) for r, ms in c["samples"]]}) for c in data["contestants"]
        ]
        return cls(**{**data, "contestants": tuple(listed)})


def expected_seconds(case: SiteCase, plan: Plan) -> float:
    """How long a case may take, from the machine of docs/results/performance.md: 150 GFLOP/s, stock IREE a third of it, 2 s to
    start torch."""
    spec = case.bound()[0]
    if isinstance(spec, LinearSpec):
        gflop, scores = 1e-9 * spec.flops, 0
    else:
        sizes = [d for d in (*spec.batch, spec.Hq, spec.Sq, spec.Skv) if isinstance(d, int)]
        scores = math.prod(sizes)
        gflop = 2e-9 * scores * (spec.D + spec.Dv)
    data_gb = sum(bytes_of(s, d) for s, d in zip(spec.operand_shapes, spec.operand_dtypes, strict=True)) / 1e9
    fast, slow = gflop / 150 + data_gb / 20, gflop / 50 + data_gb / 10
    fixed = 9 + 12 * data_gb + 60e-9 * min(scores, CHECKED_SCORES)
    calls = plan.calls(slow * 1e3)
    tried = len(STOCK_FLAGS) * (2 + (calls > 1) * (1 + min(3, calls))) * slow
    rounds = plan.slow_rounds if slow * 1e3 > plan.slow_ms else plan.rounds
    each = sum(0.6 + data_gb + (1 + plan.calls(t * 1e3)) * t for t in (fast, fast, fast, slow))
    return fixed + tried + rounds * each


def bytes_of(shape: Sequence[int | str], dtype: str) -> int:
    return math.prod(d for d in shape if isinstance(d, int)) * int(np.dtype(NUMPY[dtype]).itemsize)

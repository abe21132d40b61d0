"""What a run of the zoo is asked for: which steps, how often what is timed, how long a step may take."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from onnx_fa.zoo.entries import Entry
from onnx_fa.zoo.stages import ALL_STEPS, ALWAYS, NEEDS, steps_of

Json = dict[str, Any]
TIMEOUTS = {
    "export": 240,
    "explain": 120,
    "rewrite": 120,
    "compile": 300,
    "stock": 300,
    "iree-import": 300,
    "iree-compile": 300,
    "iree-run": 120,
    "check": 120,
    "verify": 300,
    "bench": 240,
}
"""Seconds per step."""


@dataclass(frozen=True)
class Settings:
    """`steps`: those to run, with those they need and those that always follow.
    Times: `rounds` of `calls` on `threads`. `factor` stretches all time limits."""

    steps: tuple[str, ...] = ALL_STEPS
    rounds: int = 5
    calls: int = 5
    threads: int = 2
    jobs: int = 1
    factor: float = 1.0

    @property
    def wanted(self) -> tuple[str, ...]:
        found = set(self.steps)
        for step in reversed(ALL_STEPS):
            if step in found:
                found |= set(NEEDS[step])
        found |= {behind for step, behind in ALWAYS.items() if step in found}
        return tuple(s for s in ALL_STEPS if s in found)

    def wanted_of(self, entry: Entry) -> tuple[str, ...]:
        return tuple(s for s in self.wanted if s in steps_of(entry))

    def to_dict(self) -> Json:
        """What results depend on: all but how many entries run at a time."""
        times = {"rounds": self.rounds, "calls": self.calls, "threads": self.threads, "stretch": self.factor}
        return {"steps": list(self.wanted), **times}

    def for_step(self, step: str) -> Json:
        """What a step may know, and what its result depends on."""
        data: Json = {"timeout_s": TIMEOUTS[step] * self.factor}
        if step == "bench":
            data |= {"rounds": self.rounds, "calls": self.calls, "threads": self.threads}
        return data


DEFAULT = Settings()

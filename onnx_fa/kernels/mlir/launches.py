"""A kernel's dispatches as CUDA starts them, for a caller that has a stream of its own and needs no runtime for a few launches."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path

Tensor = tuple[tuple[int, ...], str]
"""Shape, as stored, and the name of the element type."""


@dataclass(frozen=True)
class Code:
    """PTX for sm_`arch`, and its grid: `workgroups` (x, y) of `threads`, each with `shared` bytes of shared memory."""

    arch: int
    text: str = field(repr=False)
    workgroups: tuple[int, int]
    threads: int
    shared: int


@dataclass(frozen=True)
class Launch:
    """One dispatch. Its `arguments` are buffers, by their places among the plan's operands, results, counters (one buffer) and
    workspaces, one after the other; `codes` are of several architectures, of which the last is for devices that are none of the
    others."""

    entry: str
    arguments: tuple[int, ...]
    codes: tuple[Code, ...]

    def code_of(self, major: int) -> Code:
        """The code for a device of this major compute capability, as IREE chooses it when a module is loaded."""
        return next((code for code in self.codes if code.arch // 10 == major), self.codes[-1])


@dataclass(frozen=True)
class Plan:
    """All that a call of a kernel does: `launches` in a row. `counters` are bytes that are zero before it and after it, and
    `workspace` bytes of memory that a call has for itself."""

    operands: tuple[Tensor, ...]
    results: tuple[Tensor, ...]
    counters: int
    workspace: tuple[int, ...]
    launches: tuple[Launch, ...]

    def to_json(self) -> str:
        return json.dumps(asdict(self)) + "\n"


def plan_of_json(text: str) -> Plan:
    """What `to_json` wrote. Raises ValueError, KeyError or TypeError for other text."""
    data = json.loads(text)
    launches = [
        Launch(
            x["entry"],
            tuple(x["arguments"]),
            tuple(Code(**{**code, "workgroups": tuple(code["workgroups"])}) for code in x["codes"]),
        )
        for x in data["launches"]
    ]
    operands, results = (tuple((tuple(shape), dtype) for shape, dtype in data[n]) for n in ("operands", "results"))
    return Plan(operands, results, data["counters"], tuple(data["workspace"]), tuple(launches))


def plan_file(vmfb: Path) -> Path:
    """Where the plan of a module lies."""
    return vmfb.with_suffix(".launches.json")

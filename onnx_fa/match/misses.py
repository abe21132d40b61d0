"""What was not matched, and why."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Miss:
    """A softmax (or attention-like op) that was left alone, and why."""

    node: str
    op: str
    reason: str

    def to_dict(self) -> dict[str, Any]:
        return {"node": self.node, "op": self.op, "reason": self.reason}

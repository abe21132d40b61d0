"""What was not matched, and why."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import onnx_ir as ir


@dataclass(frozen=True)
class Miss:
    """A softmax (or attention-like op) that was left alone, and why."""

    node: str
    op: str
    reason: str

    def to_dict(self) -> dict[str, Any]:
        return {"node": self.node, "op": self.op, "reason": self.reason}


class NoMatch(Exception):
    """Raised while parsing one site; carries the reason and the node that stands in the way."""

    def __init__(self, reason: str, node: ir.Node | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.node = node

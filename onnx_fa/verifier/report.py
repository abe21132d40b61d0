"""What verify found: all comparisons of one model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from onnx_fa.errors import MismatchError
from onnx_fa.forms.report import SiteReport
from onnx_fa.tables import text_table
from onnx_fa.verifier.comparisons import Check
from onnx_fa.verifier.output_checks import AT_FAULT


@dataclass(frozen=True)
class VerifyReport:
    """All comparisons of one model. `notes` say what stood in for what, and which sites were left alone."""

    model: str
    target: str
    sites: tuple[SiteReport, ...]
    checks: tuple[Check, ...]
    notes: tuple[str, ...] = field(default=())

    def __repr__(self) -> str:
        agree = sum(c.ok is not False for c in self.checks)
        return f"VerifyReport({self.model!r}, {self.target}, {agree} of {len(self.checks)} comparisons agree)"

    @property
    def ok(self) -> bool:
        return all(c.ok is not False for c in self.checks)

    def check(self) -> None:
        """Raises MismatchError, naming the worst comparison, unless all agree."""
        bad = [c for c in self.checks if c.ok is False]
        if bad:
            worst = max(bad, key=lambda c: np.inf if c.error is None else c.error / (c.allowed or 1.0))
            raise MismatchError(
                f"{self.model}: {len(bad)} of {len(self.checks)} comparisons disagree; the worst: {worst.what} against "
                f"{worst.against} on {worst.inputs}: error {worst.error:.2e}, allowed {worst.allowed:.2e} {worst.note}"
            )

    def table(self) -> str:
        """The worst of each kind of comparison, over all inputs; mismatches one by one."""
        groups: dict[tuple[str, str], list[Check]] = {}
        for c in self.checks:
            groups.setdefault((c.what, c.against), []).append(c)
        rows = []
        for (what, against), checks in groups.items():
            made = [c for c in checks if c.error is not None and c.allowed is not None]
            verdict = _verdict(checks)
            worst = max(made, key=lambda c: (c.ok is False, c.error or 0.0), default=checks[0])
            shown = ("-", "-") if worst.error is None else (f"{worst.error:.2e}", f"{worst.allowed:.2e}")
            notes = "; ".join(dict.fromkeys(c.note for c in checks if c.note))
            rows.append((what, against, len(made), *shown, worst.inputs, verdict, notes))
        head = ("what", "against", "runs", "worst error", "allowed", "on inputs", "verdict", "note")
        return "\n".join([text_table(head, rows), *(f"note: {n}" for n in self.notes)])

    def to_dict(self) -> dict[str, Any]:
        return {
            "model": self.model,
            "target": self.target,
            "ok": self.ok,
            "sites": [s.to_dict() for s in self.sites],
            "checks": [c.to_dict() for c in self.checks],
            "notes": list(self.notes),
        }


def _verdict(checks: Sequence[Check]) -> str:
    judged = [c.ok for c in checks if c.ok is not None]
    if not all(judged):
        return "MISMATCH"
    if any(c.ok is None and AT_FAULT in c.note for c in checks):
        return "onnxruntime"
    return "ok" if judged else "-"

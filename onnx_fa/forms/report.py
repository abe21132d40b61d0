"""What a rewrite found and did: the content of `--report` JSON (schema: docs/reference/report.schema.json)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from onnx_fa.match.misses import Miss
from onnx_fa.spec.attention import AttentionSpec

if TYPE_CHECKING:
    from onnx_fa.forms.site_passes import SitePasses


@dataclass(frozen=True)
class SiteReport:
    """One attention. `op` is the spelling it was found in; the five fields from `fused` on are None before an artifact was
    inspected, `passes` unless they were counted (explain)."""

    name: str
    op: str
    form: str
    spec: AttentionSpec
    fused: bool | None = None
    dispatches: int | None = None
    largest_buffer_bytes: int | None = None
    tiles: dict[str, Any] | None = None
    tuning: str | None = None
    passes: SitePasses | None = None
    lossy: str = ""
    """What was asked for that changes results, such as "int8 QK", "tf32" or "bf16 dot"."""

    beside: str = ""
    """What standard ops compute beside the site, in words: probabilities or scores that are an output of the model."""

    parts: int = 1
    """How many partial sites its keys are split into; of a part of a site that is cut for several devices, how many there are."""

    device: str | None = None
    """Of a program of several devices: the one that the kernel was found on; "" where it is on another than it was placed on."""

    def __repr__(self) -> str:
        return f"SiteReport({self.name!r}, {self.variant}, {self.form}, fused={self.fused})"

    @property
    def variant(self) -> str:
        return self.spec.variant

    def to_dict(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "op": self.op,
            "form": self.form,
            "variant": self.variant,
            "spec": self.spec.to_dict(),
            "fused": self.fused,
            "dispatches": self.dispatches,
            "largest_buffer_bytes": self.largest_buffer_bytes,
            "tiles": self.tiles,
            "tuning": self.tuning,
            "passes": self.passes and self.passes.to_dict(),
            "lossy": self.lossy,
            "beside": self.beside,
            "parts": self.parts,
            "device": self.device,
        }


@dataclass(frozen=True)
class RewriteReport:
    sites: tuple[SiteReport, ...] = field(default=())
    misses: tuple[Miss, ...] = field(default=())
    linear_attentions: tuple[str, ...] = ()
    """The names of nodes that keep a state in place of scores: a rewrite leaves them as they are, compiled they have kernels. Only
    of `explain`."""

    def __repr__(self) -> str:
        return f"RewriteReport(sites={len(self.sites)}, misses={len(self.misses)})"

    def to_dict(self) -> dict[str, Any]:
        told = {"linear_attentions": list(self.linear_attentions)} if self.linear_attentions else {}
        return {"sites": [s.to_dict() for s in self.sites], "misses": [m.to_dict() for m in self.misses], **told}

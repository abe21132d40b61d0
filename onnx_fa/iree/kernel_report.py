"""What is said of products with weights, norms and linear attentions: who makes the kernel of each, or why there is none."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from onnx_fa.kernels.tiles.origin import UNKNOWN, Origin
from onnx_fa.spec.linear import LinearSpec
from onnx_fa.spec.linear_attention import LinearAttentionSpec, linear_attention_facts
from onnx_fa.spec.linear_words import linear_facts
from onnx_fa.spec.norm import NormSpec
from onnx_fa.spec.norm_words import norm_facts

S = TypeVar("S", LinearSpec, NormSpec, LinearAttentionSpec)


@dataclass(frozen=True)
class KernelReport(Generic[S]):
    """One site. `kernel` is the name of the function that stands for it, "" where the compiler keeps it, and `kept` then says
    why. `origin` has the tiles, and says where they are from, or which entry says that the compiler's are faster."""

    name: str
    spec: S
    kernel: str = ""
    kept: str = ""
    origin: Origin = UNKNOWN


LinearReport = KernelReport[LinearSpec]
NormReport = KernelReport[NormSpec]
LinearAttentionReport = KernelReport[LinearAttentionSpec]


@dataclass(frozen=True)
class Group(Generic[S]):
    """Sites that are alike, by the `names` of their nodes."""

    names: tuple[str, ...]
    spec: S
    kernel: str
    kept: str
    origin: Origin

    @property
    def size(self) -> str:
        """Rows x K x N, of a norm rows x N, of linear attention states x D x Dv; a ? for rows that are known at run time only."""
        facts = self._facts
        return "x".join(
            "?" if facts[name] is None else str(facts[name])
            for name in ("rows", "K", "N", "H", "D", "Dv")
            if name in facts
        )

    @property
    def maker(self) -> str:
        """The kernel, or why there is none."""
        return self.kernel or f"the compiler's: {self.kept}"

    @property
    def _facts(self) -> dict[str, Any]:
        if isinstance(self.spec, LinearAttentionSpec):
            return linear_attention_facts(self.spec)
        return linear_facts(self.spec) if isinstance(self.spec, LinearSpec) else norm_facts(self.spec)

    def to_dict(self) -> dict[str, Any]:
        tiles = dict(self.origin.tiles)
        made = {"kernel": self.kernel or None, "kept": self.kept, "tiles": tiles or None}
        made["tuning"] = self.origin.tuning or None
        return {"count": len(self.names), **self._facts, **made, "names": list(self.names)}


def grouped(sites: Iterable[KernelReport[S]]) -> list[Group[S]]:
    """The sites, those with one spec and one maker together, in the order in which they come."""
    names: dict[tuple[S, str, str, Origin], list[str]] = {}
    for s in sites:
        names.setdefault((s.spec, s.kernel, s.kept, s.origin), []).append(s.name)
    return [Group(tuple(found), *key) for key, found in names.items()]


def summary(sites: Sequence[LinearReport | NormReport | LinearAttentionReport], kind: str = "linear site") -> str:
    """How many sites of a kind there are, how many have a kernel, and why the compiler keeps the others, in one line."""
    if not sites:
        return f"no {kind}s"
    kept = Counter(s.kept for s in sites if s.kept)
    made = len(sites) - kept.total()
    why = ", ".join(f"{count} of {reason}" if len(kept) > 1 else reason for reason, count in kept.items())
    left = f", {kept.total()} left to the compiler ({why})" if kept else ""
    return f"{len(sites)} {kind}{'s' * (len(sites) > 1)}, {made} with a kernel{left}"

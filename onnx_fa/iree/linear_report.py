"""What is said of linear sites: for each who makes its kernel, or why the compiler keeps the product."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from onnx_fa.iree.norm_report import NormReport
from onnx_fa.spec.linear import LinearSpec
from onnx_fa.spec.linear_words import follows


@dataclass(frozen=True)
class LinearReport:
    """One product with what follows it. `kernel` is the name of the function that stands for it, "" where the compiler keeps the
    product, and `kept` then says why."""

    name: str
    spec: LinearSpec
    kernel: str = ""
    kept: str = ""


@dataclass(frozen=True)
class LinearGroup:
    """Sites that are alike, by the `names` of their nodes."""

    names: tuple[str, ...]
    spec: LinearSpec
    kernel: str
    kept: str

    @property
    def size(self) -> str:
        """Rows x K x N; a ? for rows that are known at run time only."""
        rows = "?" if self.spec.rows is None else self.spec.rows
        return f"{rows}x{self.spec.K}x{self.spec.N}"

    @property
    def weight(self) -> str:
        """How the weight is kept: its type, or its bits and the size of a block."""
        bits = self.spec.bits
        return self.spec.weight_dtype if bits is None else f"{bits.bits} bits, blocks of {bits.block}"

    @property
    def maker(self) -> str:
        """The kernel, or why there is none."""
        return self.kernel or f"the compiler's: {self.kept}"

    @property
    def then(self) -> str:
        """What follows the product, in words; "" for nothing."""
        return ", ".join(follows(self.spec))

    def to_dict(self) -> dict[str, Any]:
        spec = self.spec
        return {
            "count": len(self.names),
            "rows": spec.rows,
            "K": spec.K,
            "N": spec.N,
            "dtype": spec.dtype,
            "weight": self.weight,
            "follows": follows(spec),
            "kernel": self.kernel or None,
            "kept": self.kept,
            "names": list(self.names),
        }


def grouped(sites: Iterable[LinearReport]) -> list[LinearGroup]:
    """The sites, those with one spec and one maker together, in the order in which they come."""
    names: dict[tuple[LinearSpec, str, str], list[str]] = {}
    for s in sites:
        names.setdefault((s.spec, s.kernel, s.kept), []).append(s.name)
    return [LinearGroup(tuple(found), *key) for key, found in names.items()]


def summary(sites: Sequence[LinearReport | NormReport], kind: str = "linear site") -> str:
    """How many sites of a kind there are, how many have a kernel, and why the compiler keeps the others, in one line."""
    if not sites:
        return f"no {kind}s"
    kept = Counter(s.kept for s in sites if s.kept)
    made = len(sites) - kept.total()
    why = ", ".join(f"{count} of {reason}" if len(kept) > 1 else reason for reason, count in kept.items())
    left = f", {kept.total()} left to the compiler ({why})" if kept else ""
    return f"{len(sites)} {kind}{'s' * (len(sites) > 1)}, {made} with a kernel{left}"

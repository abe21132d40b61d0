"""What is said of norm sites: for each who makes its kernel, or why the compiler keeps the norm."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from onnx_fa.spec.norm import NormSpec


@dataclass(frozen=True)
class NormReport:
    """One norm of rows. `kernel` is the name of the function that stands for it, "" where the compiler keeps the norm, and `kept`
    then says why."""

    name: str
    spec: NormSpec
    kernel: str = ""
    kept: str = ""


@dataclass(frozen=True)
class NormGroup:
    """Norms that are alike, by the `names` of their nodes."""

    names: tuple[str, ...]
    spec: NormSpec
    kernel: str
    kept: str

    @property
    def size(self) -> str:
        """Rows x N; a ? for rows that are known at run time only."""
        return f"{'?' if self.spec.rows is None else self.spec.rows}x{self.spec.N}"

    @property
    def kind(self) -> str:
        """Which norm it is, and what stands with it: "sum, layer norm, scale, bias"."""
        spec = self.spec
        parts = [("sum", spec.skip), ("layer norm" if spec.centred else "RMS norm", True)]
        return ", ".join(word for word, there in (*parts, ("scale", spec.scale), ("bias", spec.bias)) if there)

    @property
    def maker(self) -> str:
        """The kernel, or why there is none."""
        return self.kernel or f"the compiler's: {self.kept}"

    def to_dict(self) -> dict[str, Any]:
        spec = self.spec
        return {
            "count": len(self.names),
            "rows": spec.rows,
            "N": spec.N,
            "dtype": spec.dtype,
            "result": spec.result,
            "kind": self.kind,
            "gives_sum": spec.gives_sum,
            "kernel": self.kernel or None,
            "kept": self.kept,
            "names": list(self.names),
        }


def grouped_norms(sites: Iterable[NormReport]) -> list[NormGroup]:
    """The norms, those with one spec and one maker together, in the order in which they come."""
    names: dict[tuple[NormSpec, str, str], list[str]] = {}
    for s in sites:
        names.setdefault((s.spec, s.kernel, s.kept), []).append(s.name)
    return [NormGroup(tuple(found), *key) for key, found in names.items()]

"""A norm in the words that people have for it."""

from __future__ import annotations

from typing import Any

from onnx_fa.spec.norm import NormSpec


def norm_kind(spec: NormSpec) -> str:
    """Which norm it is, and what stands with it: "sum, layer norm, scale, bias"."""
    parts = [("sum", spec.skip), ("layer norm" if spec.centred else "RMS norm", True)]
    return ", ".join(word for word, there in (*parts, ("scale", spec.scale), ("bias", spec.bias)) if there)


def norm_facts(spec: NormSpec) -> dict[str, Any]:
    """What a report says of it, JSON-ready."""
    return {
        "rows": spec.rows,
        "N": spec.N,
        "dtype": spec.dtype,
        "result": spec.result,
        "kind": norm_kind(spec),
        "gives_sum": spec.gives_sum,
    }

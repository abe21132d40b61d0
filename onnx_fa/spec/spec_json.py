"""Specs as JSON: each field by its name, terms with their `kind`, score expressions as nested lists."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Mapping
from typing import Any

from onnx_fa.spec.expr import ScoreExpr
from onnx_fa.spec.expr_json import from_json, number_to_json, to_json


def fields_to_json(spec: Any) -> dict[str, Any]:
    """The fields of a dataclass, JSON-ready; infinities are written as strings."""
    return {f.name: _encoded(getattr(spec, f.name)) for f in dataclasses.fields(spec)}


def _encoded(x: Any) -> Any:
    if isinstance(x, ScoreExpr):
        return to_json(x)
    if dataclasses.is_dataclass(x) and not isinstance(x, type):
        return {"kind": type(x).__name__, **fields_to_json(x)}
    return [_encoded(y) for y in x] if isinstance(x, tuple) else number_to_json(x)


def fields_from_json(
    data: Mapping[str, Any], terms: Mapping[str, Callable[..., Any]], expressions: Collection[str]
) -> dict[str, Any]:
    """The inverse of `fields_to_json`: what a spec is made of. `terms` are what may stand in it, by kind; `expressions` names the
    fields that are score expressions. Raises ValueError on unknown terms and on what is no score expression."""

    def decoded(x: Any) -> Any:
        if isinstance(x, dict):
            if x.get("kind") not in terms:
                raise ValueError(f"unknown term {x.get('kind')!r} in a spec")
            return terms[x["kind"]](**fields({k: v for k, v in x.items() if k != "kind"}))
        if isinstance(x, list):
            return tuple(decoded(y) for y in x)
        return float(x) if x in ("inf", "-inf") else x

    def fields(of: Mapping[str, Any]) -> dict[str, Any]:
        return {k: from_json(v) if k in expressions and v is not None else decoded(v) for k, v in of.items()}

    return fields(data)

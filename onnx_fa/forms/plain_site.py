"""A site of any kind as a model of its own, and what of its operands that model is given. For benchmarks and `verify --case`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy.typing as npt
import onnx_ir as ir

from onnx_fa.forms.plain import input_names, plain_model
from onnx_fa.forms.plain_linear import plain_linear_model
from onnx_fa.spec.attention import AttentionSpec
from onnx_fa.spec.linear import LinearSpec

Spec = AttentionSpec | LinearSpec
"""Of a site, of whatever kind."""
Array = npt.NDArray[Any]
WEIGHT = 1
"""The operand of a linear site that is a constant of its model."""


def plain_site_model(spec: Spec, operands: Sequence[Array]) -> ir.Model:
    """The model, whose inputs are named as by `site_inputs`, its output `out`. Raises UnsupportedError where there is no plain
    spelling."""
    if isinstance(spec, AttentionSpec):
        return plain_model(spec)
    return plain_linear_model(spec, operands[WEIGHT])


def site_inputs(spec: Spec, operands: Sequence[Array]) -> dict[str, Array]:
    """The operands that the model takes, in its order, by name."""
    names = input_names(spec) if isinstance(spec, AttentionSpec) else spec.operand_names()
    kept = isinstance(spec, LinearSpec)
    pairs = enumerate(zip(names, operands, strict=True))
    return {name: x for i, (name, x) in pairs if not (kept and i == WEIGHT)}


def held_operands(spec: Spec, operands: Sequence[Array]) -> list[Array]:
    """What a call reads whole, however few rows it has: K and V, or the weight."""
    return list(operands[1:3]) if isinstance(spec, AttentionSpec) else [operands[WEIGHT]]

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
"""The operand of a linear site that is the first constant of its model."""


def plain_site_model(spec: Spec, operands: Sequence[Array]) -> ir.Model:
    """The model, whose inputs are named as by `site_inputs`, its output `out`. Raises UnsupportedError where there is no plain
    spelling."""
    if isinstance(spec, AttentionSpec):
        return plain_model(spec)
    return plain_linear_model(spec, held_operands(spec, operands))


def site_inputs(spec: Spec, operands: Sequence[Array]) -> dict[str, Array]:
    """The operands that the model takes, in its order, by name."""
    names = input_names(spec) if isinstance(spec, AttentionSpec) else spec.operand_names()
    linear = isinstance(spec, LinearSpec)
    constants = range(WEIGHT, WEIGHT + len(held_operands(spec, operands))) if linear else ()
    return {
        # MatMulInteger takes the zero point in the type of x.
        name: x.astype(operands[0].dtype) if linear and name == "zero" else x
        for i, (name, x) in enumerate(zip(names, operands, strict=True))
        if i not in constants
    }


def held_operands(spec: Spec, operands: Sequence[Array]) -> list[Array]:
    """What a call reads whole, however few rows it has: K and V, or the weight, of few bits with its scales and zero points."""
    if isinstance(spec, AttentionSpec):
        return list(operands[1:3])
    parts = 1 if spec.bits is None else 2 + bool(spec.bits.zeros)
    return list(operands[WEIGHT : WEIGHT + parts])

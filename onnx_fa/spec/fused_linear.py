"""A linear site of a few rows with what stands around it: the norm of its rows, and another product of the same rows, whose result
is one of its tensors, as the gate of a gated layer is (Shazeer 2020, "GLU Variants Improve Transformer", arXiv:2002.05202)."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from onnx_fa.spec.expr import SCORE
from onnx_fa.spec.linear import Bits, LinearSpec, multiply
from onnx_fa.spec.named_operands import NamedOperands
from onnx_fa.spec.norm import NormSpec, normalise
from onnx_fa.spec.spec_json import fields_from_json, fields_to_json
from onnx_fa.spec.terms import Dim, TensorArg


@dataclass(frozen=True)
class FusedLinear(NamedOperands):
    """`product` of x, or of its `norm`. With `gate`, a product of the same rows, tensor `gated` of `product` is what that gives.

    Raises ValueError where the parts do not fit together."""

    product: LinearSpec
    norm: NormSpec | None = None
    gate: LinearSpec | None = None
    gated: int = 0

    def __post_init__(self) -> None:
        product, norm, gate = self.product, self.norm, self.gate
        if norm is not None:
            plain = not (norm.centred or norm.bias or norm.skip)
            if not plain or (norm.lead, norm.N, norm.result) != (product.lead, product.K, product.dtype):
                raise ValueError(f"{norm} in front of {product}")
        if gate is not None:
            bare, other = (replace(p, then=SCORE, tensors=()) for p in (product, gate))
            if bare != other or product.parts:
                raise ValueError(f"{gate} beside {product}")
            whole = [(*product.lead, product.N), *[(product.N,)] * (product.rows == 1)]
            if product.tensors[self.gated].shape not in whole:
                raise ValueError(f"tensor {self.gated} of {product} is no result of a product")

    @property
    def operands(self) -> tuple[tuple[str, tuple[Dim, ...], str], ...]:
        """Name, shape and type of each operand, in order: x, the norm's scale (`gain`), the gate's weight (whose names begin with
        "g") and tensors ("u0"...), the product's weight and tensors, without that which the gate makes."""
        product, norm = self.product, self.norm
        found: list[tuple[str, tuple[Dim, ...], str]] = [
            ("x", product.operand_shapes[0], norm.dtype if norm else product.dtype)
        ]
        if norm is not None and norm.scale:
            found.append(("gain", (norm.N,), norm.scale))
        if self.gate is not None:
            found += _named(self.gate, "g", "u")
        own = _named(product, "", "t")
        return (*found, *(o for o in own if self.gate is None or o[0] != f"t{self.gated}"))

    @property
    def results(self) -> tuple[tuple[tuple[Dim, ...], str], ...]:
        return self.product.results

    def to_dict(self) -> dict[str, Any]:
        """A JSON-ready dict."""
        return fields_to_json(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> FusedLinear:
        """The inverse of `to_dict`. Raises ValueError as the classes do."""
        kinds = {"Bits": Bits, "LinearSpec": LinearSpec, "NormSpec": NormSpec, "TensorArg": TensorArg}
        return cls(**fields_from_json(data, kinds, ("then",)))


def _named(spec: LinearSpec, weight: str, tensor: str) -> list[tuple[str, tuple[Dim, ...], str]]:
    """The operands of a product behind x."""
    names = spec.operand_names(tensor)[1:]
    many = len(names) - len(spec.tensors)
    given = [*(f"{weight}{name}" for name in names[:many]), *names[many:]]
    return list(zip(given, spec.operand_shapes[1:], spec.operand_dtypes[1:], strict=True))


def fused_name(spec: FusedLinear) -> str:
    """The name of its function: equal for equal specs."""
    return f"linear_{hashlib.sha256(repr(spec).encode()).hexdigest()[:10]}"


def multiply_fused(spec: FusedLinear, operands: Sequence[npt.NDArray[Any]]) -> npt.NDArray[np.float64]:
    """The meaning in float64: y (*lead, N)."""
    given = dict(zip(spec.operand_names(), operands, strict=True))
    x: npt.NDArray[Any] = given["x"]
    if spec.norm is not None:
        (x,) = normalise(spec.norm, [x, *([given["gain"]] if spec.norm.scale else [])])
    if spec.gate is not None:
        gate = [given[name] for name, _, _ in _named(spec.gate, "g", "u")]
        given[f"t{spec.gated}"] = multiply(spec.gate, [x, *gate])
    return multiply(spec.product, [x, *(given[name] for name, _, _ in _named(spec.product, "", "t"))])

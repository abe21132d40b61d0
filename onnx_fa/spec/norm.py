"""A norm site: each row of x brought to a mean square of one, and what belongs to that.

s = x, or x + skip, rounded to the type of x
y[m, n] = (s[m, n] - mean of s[m]) / sqrt(mean of the squares of that + epsilon) * scale[n] + bias[n]

Without `centred` nothing is taken away (RMSNorm), and a scale or a bias may be missing.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from onnx_fa.spec.dtypes import NUMPY
from onnx_fa.spec.named_operands import NamedOperands
from onnx_fa.spec.terms import Dim, FloatType


@dataclass(frozen=True)
class NormSpec(NamedOperands):
    """`lead` are the dims of x (*lead, N) before the last, symbols for those that are known at run time only; `dtype` is the type
    of x, `result` that of y. `scale` and `bias` are the types of those tensors (N,), "" where there is none. With `skip` a second
    tensor of x's shape and type is added to x first, and with `gives_sum` the sum is the second result.

    Raises ValueError for rows of no numbers, an epsilon that is negative or no number, and a sum that nothing is added to."""

    lead: tuple[Dim, ...]
    N: int
    dtype: FloatType
    result: FloatType
    epsilon: float
    centred: bool = True
    scale: FloatType | Literal[""] = ""
    bias: FloatType | Literal[""] = ""
    skip: bool = False
    gives_sum: bool = False

    def __post_init__(self) -> None:
        if self.N < 1:
            raise ValueError(f"rows of {self.N} numbers")
        if not 0 <= self.epsilon < math.inf:
            raise ValueError(f"an epsilon of {self.epsilon}")
        if self.gives_sum and not self.skip:
            raise ValueError("a sum as a result where nothing is added")

    @property
    def rows(self) -> int | None:
        """The rows of x; None where they are known at run time only."""
        known = [d for d in self.lead if isinstance(d, int)]
        return math.prod(known) if len(known) == len(self.lead) else None

    @property
    def operands(self) -> tuple[tuple[str, tuple[Dim, ...], str], ...]:
        """Name, shape and type of each operand, in order."""
        whole = (*self.lead, self.N)
        found: list[tuple[str, tuple[Dim, ...], str]] = [("x", whole, self.dtype)]
        found += [("skip", whole, self.dtype)] * self.skip
        found += [(name, (self.N,), t) for name, t in (("scale", self.scale), ("bias", self.bias)) if t]
        return tuple(found)

    @property
    def results(self) -> tuple[tuple[tuple[Dim, ...], FloatType], ...]:
        whole = (*self.lead, self.N)
        return ((whole, self.result), *[(whole, self.dtype)] * self.gives_sum)


def norm_name(spec: NormSpec) -> str:
    """The name of a site's function: equal for equal specs."""
    return f"norm_{hashlib.sha256(repr(spec).encode()).hexdigest()[:10]}"


def normalise(spec: NormSpec, operands: Sequence[npt.NDArray[Any]]) -> tuple[npt.NDArray[np.float64], ...]:
    """The meaning of a spec in float64: y (*lead, N), and the sum where that is a result."""
    given = {name: np.asarray(x, np.float64) for (name, _, _), x in zip(spec.operands, operands, strict=True)}
    total = given["x"]
    if spec.skip:  # the graph's own Add rounds, and others read what it gives
        total = (total + given["skip"]).astype(NUMPY[spec.dtype]).astype(np.float64)
    with np.errstate(invalid="ignore", divide="ignore"):  # rows of infinities, and of zeros without an epsilon, are NaN
        d = total - total.mean(-1, keepdims=True) if spec.centred else total
        y = d / np.sqrt((d * d).mean(-1, keepdims=True) + spec.epsilon)
    y = y * given.get("scale", np.float64(1)) + given.get("bias", np.float64(0))
    return (y, total) if spec.gives_sum else (y,)

"""Linear attention: each head keeps a state, a matrix, that every token decays, corrects and reads, in place of scores of all keys.

S = a[t] * S + k[t] beta[t] (v[t] - (a[t] * S)^T k[t])^T, and o[t] = scale * S^T q[t], with S (D, Dv) and a the decay as a factor.
Without a decay a is 1; without the delta rule k[t] v[t]^T is added (Yang et al. 2024, "Gated Delta Networks", arXiv:2412.06464).
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from onnx_fa.spec.terms import Dim, FloatType

Decay = Literal["", "head", "key"]
"""Whose the decay is: nobody's, one of each head, or one of each key dim of a head."""
Beta = Literal["", "head", "token"]
"""Whose the rate of the delta rule is, "" where v itself is added."""


@dataclass(frozen=True)
class LinearAttentionSpec:
    """B sequences of T tokens, symbols where a run says how many; H states of D by Dv numbers, each of which G queries read. Where
    `Hq` or `Hk` are fewer than H, states beside each other have their queries, or their key, in common. All in f32.

    Raises ValueError for sizes below one, and heads that do not divide H."""

    B: Dim
    T: Dim
    Hq: int
    Hk: int
    H: int
    G: int
    D: int
    Dv: int
    scale: float
    decay: Decay = ""
    beta: Beta = ""

    def __post_init__(self) -> None:
        if min(self.Hq, self.Hk, self.G, self.D, self.Dv) < 1 or self.H % self.Hq or self.H % self.Hk:
            raise ValueError(f"linear attention of {self.H} states by {self.Hq} queries and {self.Hk} keys")

    @property
    def operands(self) -> tuple[tuple[str, tuple[Dim, ...]], ...]:
        """Name and shape of each operand, in order."""
        tokens = (self.B, self.T)
        found: list[tuple[str, tuple[Dim, ...]]] = [
            ("q", (*tokens, self.Hq, self.G, self.D)),
            ("k", (*tokens, self.Hk, self.D)),
            ("v", (*tokens, self.H, self.Dv)),
            ("state", (self.B, self.H, self.D, self.Dv)),
        ]
        found += [("decay", (*tokens, self.H, self.D if self.decay == "key" else 1))] * bool(self.decay)
        found += [("beta", (*tokens, self.H if self.beta == "head" else 1))] * bool(self.beta)
        return tuple(found)

    @property
    def operand_shapes(self) -> tuple[tuple[Dim, ...], ...]:
        return tuple(shape for _, shape in self.operands)

    @property
    def operand_dtypes(self) -> tuple[str, ...]:
        return ("f32",) * len(self.operands)

    def operand_names(self, tensor: str = "t") -> list[str]:
        return [name for name, _ in self.operands]

    @property
    def results(self) -> tuple[tuple[tuple[Dim, ...], FloatType], ...]:
        """What the queries read, (B, T, H, G, Dv), and the state behind the last token, (B, H, D, Dv)."""
        read = (self.B, self.T, self.H, self.G, self.Dv)
        return ((read, "f32"), ((self.B, self.H, self.D, self.Dv), "f32"))


def linear_attention_name(spec: LinearAttentionSpec) -> str:
    """The name of a site's function: equal for equal specs."""
    return f"linear_attention_{hashlib.sha256(repr(spec).encode()).hexdigest()[:10]}"


def rule_words(spec: LinearAttentionSpec) -> str:
    """What happens to the state, in the words that people have for it."""
    decay = {"": "no decay", "head": "decay of each head", "key": "decay of each key dim"}[spec.decay]
    return f"{decay}, {'delta rule' if spec.beta else 'sum'}"


def linear_attention_facts(spec: LinearAttentionSpec) -> dict[str, Any]:
    """What a report says of it, JSON-ready."""
    names = ("B", "T", "Hq", "Hk", "H", "G", "D", "Dv", "scale")
    return {**{name: getattr(spec, name) for name in names}, "rule": rule_words(spec)}


def attend_linearly(
    spec: LinearAttentionSpec, operands: Sequence[npt.NDArray[Any]]
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """The meaning of a spec in float64, a token after another: its results, of operands in the spec's order."""
    given = {name: np.asarray(x, np.float64) for (name, _), x in zip(spec.operands, operands, strict=True)}
    state = given["state"].copy()
    given["q"], given["k"] = (np.repeat(given[x], spec.H // given[x].shape[2], axis=2) for x in "qk")
    rows = []
    for t in range(given["q"].shape[1]):
        k, added = given["k"][:, t, :, :, None], given["v"][:, t, :, None]
        if spec.decay:
            state = state * given["decay"][:, t, :, :, None]
        if spec.beta:
            added = (added - (state * k).sum(2, keepdims=True)) * given["beta"][:, t, :, None, None]
        state = state + k * added
        rows.append(spec.scale * given["q"][:, t] @ state)
    empty = np.zeros((len(state), 0, spec.H, spec.G, spec.Dv))
    return np.stack(rows, 1) if rows else empty, state

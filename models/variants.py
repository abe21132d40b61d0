"""Attention variants as plain PyTorch, one attention each: what FlexAttention, Flashlight and their papers are measured on.

Entries have the shape of `families`, but stand in a table of their own; `family_build` builds them like those.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from onnx_fa.models.families import HEADS, HIDDEN, KV_HEADS, B, Family, Input, S

try:
    import torch
    from torch import nn
except ImportError as error:
    from onnx_fa.errors import MissingDependencyError

    raise MissingDependencyError("the attention variants need PyTorch: pip install 'onnx-fa[torch]'") from error

Tensor = torch.Tensor
WINDOW, PREFIX, CAP, STRIDE, GRID = 6, 9, 2.0, 3, (4, 5)
ROWS, COLUMNS = 5, 13
"""Evoformer: sequences of an alignment, and their length."""


def _positions(length: int) -> tuple[Tensor, Tensor]:
    at = torch.arange(length)
    return at[:, None], at[None, :]


def _masked(score: Tensor, keep: Tensor) -> Tensor:
    return score.masked_fill(~keep, float("-inf"))


def _plain(score: Tensor, _: Tensor | None) -> Tensor:
    return score


def _causal(score: Tensor, _: Tensor | None) -> Tensor:
    q, k = _positions(score.shape[-1])
    return _masked(score, k <= q)


def _sliding(score: Tensor, _: Tensor | None) -> Tensor:
    q, k = _positions(score.shape[-1])
    return _masked(score, (k <= q) & (q - k < WINDOW))


def _prefix(score: Tensor, _: Tensor | None) -> Tensor:
    q, k = _positions(score.shape[-1])
    return _masked(score, (k <= q) | (k < PREFIX))


def _document(score: Tensor, documents: Tensor | None) -> Tensor:
    assert documents is not None
    q, k = _positions(score.shape[-1])
    return _masked(score, (documents[:, None, :, None] == documents[:, None, None, :]) & (k <= q))


def _alibi(score: Tensor, _: Tensor | None) -> Tensor:
    q, k = _positions(score.shape[-1])
    slopes = torch.tensor([2.0 ** (-8 * (h + 1) / score.shape[1]) for h in range(score.shape[1])])
    return _masked(score + slopes[:, None, None] * (k - q), k <= q)


def _softcap(score: Tensor, _: Tensor | None) -> Tensor:
    return CAP * torch.tanh(score / CAP)


def _dilated(score: Tensor, _: Tensor | None) -> Tensor:
    q, k = _positions(score.shape[-1])
    return _masked(score, (k <= q) & ((q - k) % STRIDE == 0))


def _natten(score: Tensor, ids: Tensor | None) -> Tensor:
    """Neighbourhood attention: keys within one row and one column of the query on a grid."""
    width = GRID[1]
    q, k = _positions(score.shape[-1])
    near = ((q // width - k // width).abs() <= 1) & ((q % width - k % width).abs() <= 1)
    return _masked(score, near)


class Scored(nn.Module):
    """Projections around softmax(change(scores)) @ V; grouped heads are repeated by expand and reshape."""

    def __init__(self, change: Callable[[Tensor, Tensor | None], Tensor], kv_heads: int = HEADS) -> None:
        super().__init__()
        self.change, self.kv_heads = change, kv_heads
        self.q = nn.Linear(HIDDEN, HIDDEN)
        self.kv = nn.Linear(HIDDEN, 2 * kv_heads * HIDDEN // HEADS)
        self.o = nn.Linear(HIDDEN, HIDDEN)

    def heads(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        batch, length, _ = x.shape
        q = self.q(x).view(batch, length, HEADS, -1).transpose(1, 2)
        k, v = self.kv(x).view(batch, length, 2 * self.kv_heads, -1).transpose(1, 2).chunk(2, 1)
        if self.kv_heads < HEADS:
            group = HEADS // self.kv_heads
            k, v = (
                y[:, :, None].expand(batch, self.kv_heads, group, length, y.shape[-1]).reshape(q.shape) for y in (k, v)
            )
        return q, k, v

    def forward(self, *args: Tensor) -> Tensor:
        x, *ids = args
        q, k, v = self.heads(x)
        score = self.change(q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1]), ids[0] if ids else None)
        out: Tensor = self.o((torch.softmax(score, -1) @ v).transpose(1, 2).reshape(x.shape))
        return out


class Sinks(Scored):
    """A learnt logit per head takes its part in the softmax and has no value (gpt-oss)."""

    def __init__(self) -> None:
        super().__init__(_causal)
        self.sink = nn.Parameter(torch.randn(HEADS))

    def forward(self, *args: Tensor) -> Tensor:
        (x,) = args
        q, k, v = self.heads(x)
        score = self.change(q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1]), None)
        sink = self.sink[None, :, None, None].expand(*score.shape[:3], 1)
        p = torch.softmax(torch.cat([score, sink], -1), -1)[..., :-1]
        out: Tensor = self.o((p @ v).transpose(1, 2).reshape(x.shape))
        return out


class Differential(nn.Module):
    """(softmax(Q1 K1^T) - lambda * softmax(Q2 K2^T)) V (Ye et al., 2024)."""

    def __init__(self) -> None:
        super().__init__()
        self.qk = nn.Linear(HIDDEN, 4 * HIDDEN // 2)
        self.v = nn.Linear(HIDDEN, HIDDEN)
        self.o = nn.Linear(HIDDEN, HIDDEN)
        self.weight = nn.Parameter(torch.tensor(0.4))

    def forward(self, *args: Tensor) -> Tensor:
        (x,) = args
        batch, length, _ = x.shape
        parts = self.qk(x).view(batch, length, HEADS, -1).transpose(1, 2).chunk(4, -1)
        q1, q2, k1, k2 = parts
        v = self.v(x).view(batch, length, HEADS, -1).transpose(1, 2)
        scale = 1 / math.sqrt(q1.shape[-1])
        first, second = (_causal(q @ k.transpose(-1, -2) * scale, None).softmax(-1) for q, k in ((q1, k1), (q2, k2)))
        out: Tensor = self.o(((first - self.weight * second) @ v).transpose(1, 2).reshape(x.shape))
        return out


class Evoformer(nn.Module):
    """Row attention of an alignment with a bias from pairs and a gate (AlphaFold 2)."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(HIDDEN, 3 * HIDDEN, bias=False)
        self.bias = nn.Linear(12, HEADS, bias=False)
        self.gate, self.o = nn.Linear(HIDDEN, HIDDEN), nn.Linear(HIDDEN, HIDDEN)

    def forward(self, *args: Tensor) -> Tensor:
        x, pair, keep = args
        batch, rows, length, _ = x.shape
        q, k, v = (y.view(batch, rows, length, HEADS, -1).transpose(2, 3) for y in self.qkv(x).chunk(3, -1))
        score = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
        score = score + self.bias(pair).permute(0, 3, 1, 2)[:, None] + (keep - 1.0)[:, :, None, None, :] * 1e9
        o = (torch.softmax(score, -1) @ v).transpose(2, 3).reshape(x.shape)
        out: Tensor = self.o(o * torch.sigmoid(self.gate(x)))
        return out


class InvariantPoint(nn.Module):
    """Scores from features, from pairs, and from distances of points; the scalar part of the output (AlphaFold 2)."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(HIDDEN, 3 * HIDDEN)
        self.points = nn.Linear(HIDDEN, 2 * HEADS * 4 * 3)
        self.bias, self.o = nn.Linear(12, HEADS), nn.Linear(HIDDEN, HIDDEN)
        self.weight = nn.Parameter(torch.rand(HEADS))

    def forward(self, *args: Tensor) -> Tensor:
        x, pair = args
        batch, length, _ = x.shape
        q, k, v = (y.view(batch, length, HEADS, -1).transpose(1, 2) for y in self.qkv(x).chunk(3, -1))
        a, b = self.points(x).view(batch, length, HEADS, 4, 6).permute(0, 2, 1, 3, 4).chunk(2, -1)
        distance = ((a[:, :, :, None] - b[:, :, None]) ** 2).sum((-1, -2))
        weight = nn.functional.softplus(self.weight)[:, None, None]
        score = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1]) + self.bias(pair).permute(0, 3, 1, 2)
        score = math.sqrt(1 / 3) * (score - 0.5 * math.sqrt(2 / 36) * weight * distance)
        out: Tensor = self.o((torch.softmax(score, -1) @ v).transpose(1, 2).reshape(x.shape))
        return out


MODULES: dict[str, Callable[[], nn.Module]] = {
    "mha": lambda: Scored(_plain),
    "gqa": lambda: Scored(_causal, KV_HEADS),
    "mqa": lambda: Scored(_causal, 1),
    "causal": lambda: Scored(_causal),
    "sliding": lambda: Scored(_sliding),
    "prefix": lambda: Scored(_prefix),
    "document": lambda: Scored(_document),
    "alibi": lambda: Scored(_alibi),
    "softcap": lambda: Scored(_softcap),
    "dilated": lambda: Scored(_dilated),
    "natten": lambda: Scored(_natten),
    "sinks": Sinks,
    "differential": Differential,
    "evoformer": Evoformer,
    "ipa": InvariantPoint,
}
_X = Input("x", (B, S, HIDDEN), "normal")
_INPUTS: dict[str, tuple[Input, ...]] = {
    "document": (_X, Input("documents", (B, S), "documents")),
    "natten": (Input("x", (B, GRID[0] * GRID[1], HIDDEN), "normal"),),
    "evoformer": (
        Input("x", (1, ROWS, COLUMNS, HIDDEN), "normal"),
        Input("pair", (1, COLUMNS, COLUMNS, 12), "normal"),
        Input("mask", (1, ROWS, COLUMNS), "ones"),
    ),
    "ipa": (_X, Input("pair", (B, S, S, 12), "normal")),
}
VARIANTS: dict[str, Family] = {
    name: Family(f"variant_{name}", "torch", f"variant.{name}", "", {}, _INPUTS.get(name, (_X,)), sites, ("eager",))
    for name, sites in {n: 2 if n == "differential" else 1 for n in MODULES}.items()
}

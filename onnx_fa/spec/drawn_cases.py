"""Attentions drawn at random, which no tuner has seen: how far the kernels carry beyond the table of cases.py.

`draw_cases` gives the same cases for the same seed everywhere. REPORTED_SEED is what benchmarks report; tiles are searched on
others.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from onnx_fa.spec.attention import AttentionSpec
from onnx_fa.spec.cases import CASES, Case
from onnx_fa.spec.terms import Causal

REPORTED_SEED = {"cpu": 0, "gpu": 67}
"""Of the cases that benchmarks report, by device. A search for tiles that took it would know the answers."""
HEAD_DIMS = ((32, 32), (40, 40), (48, 48), (64, 64), (72, 72), (80, 80), (96, 96), (112, 112), (128, 128))
WIDE_HEAD_DIMS = ((160, 160), (192, 192), (192, 128), (256, 256))
"""(D, Dv): those of models in use, from Segformer's 32 to Gemma's 256; 192 with 128 are DeepSeek's."""
_SHORTEST, _LONGEST = 64, 1 << 15
_TRIES = 10000

Kind = Literal["self", "cross", "decode"]


@dataclass(frozen=True)
class Budget:
    """What a case may take: `gflop` of both products, and `elements` of Q, K, V and the output."""

    batches: tuple[int, ...]
    heads: tuple[int, ...]
    dtypes: tuple[Literal["f32", "f16", "bf16"], ...]
    gflop: float
    elements: int


BUDGETS = {
    "cpu": Budget((1, 1, 1, 2, 4), (4, 6, 8, 12, 16, 32), ("f32",), 6, 1 << 26),
    "gpu": Budget((1, 1, 2, 4, 8, 16, 32), (4, 8, 12, 16, 20, 24, 32, 40, 64), ("f16", "f16", "bf16"), 1000, 1 << 29),
}
"""By device: some 40 ms on two cores, and 2 ms on a large GPU."""


def draw_cases(device: str, seed: int, count: int) -> tuple[Case, ...]:
    """`count` different attentions for "cpu" or "gpu", none of them in the table: as many queries as keys, other numbers of both,
    or one query, lengths 64 to 32768 drawn evenly by their logarithm, half of them multiples of 64, causal or not, heads that share
    K and V or not."""
    rng, known, found = random.Random(f"{device} {seed}"), {c.spec for c in CASES}, list[Case]()
    for spec in _specs(rng, BUDGETS[device]):
        if len(found) == count:
            break
        if spec not in known:
            known.add(spec)
            tags = {"bench", "drawn", *(["decode"] if spec.Sq == 1 else [])}
            found.append(Case(f"drawn_{device}_{seed}_{len(found):03d}", spec, frozenset(tags), title=title_of(spec)))
    return tuple(found)


def title_of(spec: AttentionSpec) -> str:
    """The kind, then the sizes: "causal B2 H32:8 S1000 D80 bf16"."""
    many = "causal" if spec.masks else "plain"
    kind = "decode" if spec.Sq == 1 else many
    heads = f"H{spec.Hq}" if spec.group == 1 else f"H{spec.Hq}:{spec.Hkv}"
    lengths = f"S{spec.Sq}" if spec.Sq == spec.Skv else f"Skv{spec.Skv}"
    if spec.Sq not in (1, spec.Skv):
        lengths = f"Sq{spec.Sq} {lengths}"
    dims = f"D{spec.D}" if spec.Dv == spec.D else f"D{spec.D} Dv{spec.Dv}"
    dtype = "" if spec.dtype in ("f16", "f32") else f" {spec.dtype}"
    return f"{kind} B{spec.batch[0]} {heads} {lengths} {dims}{dtype}"


def _specs(rng: random.Random, budget: Budget) -> Iterator[AttentionSpec]:
    for _ in range(_TRIES):
        kind: Kind = rng.choices(("self", "cross", "decode"), (5, 1, 3))[0]
        D, Dv = rng.choice(HEAD_DIMS if rng.random() < 0.75 else WIDE_HEAD_DIMS)
        Hq = rng.choice(budget.heads)
        group = rng.choice([g for g in (1, 1, 1, 2, 4, 8) if Hq % g == 0])
        Skv = _length(rng)
        Sq = {"self": Skv, "cross": _length(rng), "decode": 1}[kind]
        causal = kind == "self" and rng.random() < 0.5
        B, dtype = rng.choice(budget.batches), rng.choice(budget.dtypes)
        gflop = 2e-9 * B * Hq * Sq * Skv * (D + Dv) * (0.5 if causal else 1.0)
        elements = B * (Hq * Sq + Hq // group * Skv) * (D + Dv)
        if gflop > budget.gflop or elements > budget.elements:
            continue
        yield AttentionSpec(
            dtype=dtype,
            Hq=Hq,
            Hkv=Hq // group,
            Sq=Sq,
            Skv=Skv,
            D=D,
            Dv=Dv,
            batch=(B,),
            scale=D**-0.5,
            masks=(Causal(),) if causal else (),
        )


def _length(rng: random.Random) -> int:
    """Drawn evenly by its logarithm; every other one a multiple of 64."""
    length = int(_SHORTEST * (_LONGEST / _SHORTEST) ** rng.random())
    return max(64, length // 64 * 64) if rng.random() < 0.5 else length

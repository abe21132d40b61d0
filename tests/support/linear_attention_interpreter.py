"""Runs the Triton source of linear attentions in Triton's interpreter: `python -m tests.support.linear_attention_interpreter NAME`
prints, as JSON, how far each case is from float64. A process of its own, since Triton decides when it is imported."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeAlias

os.environ["TRITON_INTERPRET"] = "1"

import numpy as np
import torch

from onnx_fa.kernels.triton.linear_attention import program_of
from onnx_fa.kernels.triton.ptx import load_function
from onnx_fa.kernels.triton.token_chunks import (
    LEAST_TOKENS,
    Chunks,
    chunks_of,
    chunks_program,
    facts_of,
    facts_program,
    of_chunks,
    of_facts,
)
from onnx_fa.spec.linear_attention import LinearAttentionSpec, attend_linearly
from tests.support.linear_attention_cases import CASES, Array, distance, draw
from tests.support.quick_interpreter import quicken

quicken()
Given: TypeAlias = dict[str, torch.Tensor]
Attend: TypeAlias = Callable[[LinearAttentionSpec, Given, list[torch.Tensor], int, int, Path], None]
Change: TypeAlias = Callable[[LinearAttentionSpec, Sequence[Array]], list[Array]]
COLUMNS = 8
CHUNKS = Chunks(columns=16)


def adverse(spec: LinearAttentionSpec, operands: Sequence[Array]) -> list[Array]:
    """The same keys at all tokens, rates of 1, and decays of 0 and 1: sums whose terms grow where they are not added in order."""
    made = []
    for (name, _), x in zip(spec.operands, operands, strict=True):
        zero = np.arange(x.shape[1]) % 7 == 3
        of = {
            "k": x[:, :1] + 0 * x,
            "beta": 0 * x + 1,
            "decay": 0 * x + np.where(zero, 0, 1).reshape(-1, *[1] * (x.ndim - 2)),
        }
        made.append(of.get(name, x).astype(np.float32))
    return made


def error(
    spec: LinearAttentionSpec, sizes: dict[str, int], attend: Attend, change: Change = lambda spec, x: list(x)
) -> float:
    """The largest distance of a result; of a batch without sequences one workgroup runs, which changes nothing."""
    operands = change(spec, draw(spec, sizes))
    B, T = (d if isinstance(d, int) else sizes[d] for d in (spec.B, spec.T))
    wanted = attend_linearly(spec, operands)
    outs = [torch.from_numpy(np.full(x.shape, np.nan, np.float32)) for x in wanted]
    given = {name: torch.from_numpy(x) for (name, _), x in zip(spec.operands, operands, strict=True)}
    with tempfile.TemporaryDirectory() as folder:
        attend(spec, given, outs, B, T, Path(folder))
    return max(distance(want, have.numpy()) for want, have in zip(wanted, outs, strict=True))


def by_tokens(spec: LinearAttentionSpec, given: Given, outs: list[torch.Tensor], B: int, T: int, folder: Path) -> None:
    function = load_function(program_of(spec, "tokens", COLUMNS), folder)
    groups = max(1, B * spec.H * -(-spec.Dv // COLUMNS))
    function[(groups,)](*given.values(), *outs, B, T)


def by_chunks(spec: LinearAttentionSpec, given: Given, outs: list[torch.Tensor], B: int, T: int, folder: Path) -> None:
    many = -(-T // CHUNKS.tokens)
    facts = [torch.full((B, many, spec.H, *shape), torch.nan) for shape in facts_of(spec, CHUNKS).values()]
    function = load_function(facts_program(spec, "facts", CHUNKS), folder)
    function[(B * many * spec.H,)](*(given[n] for n in of_facts(spec)), *facts, B, T)
    function = load_function(chunks_program(spec, "chunks", CHUNKS), folder)
    groups = B * spec.H * -(-spec.Dv // CHUNKS.columns)
    function[(groups,)](*(given[n] for n in of_chunks(spec)), *facts, *outs, B, T)


def errors(spec: LinearAttentionSpec) -> list[float]:
    """Of all that a spec may do."""
    sizes = ({"B": 2, "T": 3}, {"B": 0, "T": 3}, {"B": 1, "T": 0})
    found = [error(spec, s, by_tokens) for s in sizes]
    if chunks_of(replace(spec, T=LEAST_TOKENS)):
        one, several = {"B": 2, "T": 16}, {"B": 1, "T": 21}
        found += [error(spec, one, by_chunks), error(spec, several, by_chunks, adverse)]
    return found


if __name__ == "__main__":
    print(json.dumps({n: errors(CASES[n]) for n in sys.argv[1:]}))

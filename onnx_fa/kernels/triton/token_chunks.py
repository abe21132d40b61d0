"""Linear attention by Triton, some tokens at a time: what they do to the state is products of matrices.

Within a chunk, S[t] = g[t] S[0] + sum over i <= t of r[t, i] k[i] u[i]^T, where g[t] is the product of all decays up to t and
r[t, i] of those behind i; u is v without the delta rule, and with it the rows of U = (I + A)^-1 diag(beta) (V - diag(g) K S[0]),
where A holds beta[t] r[t, i] k[t].k[i] below its diagonal (Yang et al. 2024, "Parallelizing Linear Transformers with the Delta Rule
over Sequence Length", arXiv:2406.06484, and "Gated Delta Networks", arXiv:2412.06464). Most of that needs no state: a dispatch of
its own makes it for all chunks first, so that little waits for the state. Ratios of decays are products, not differences of
logarithms, which lose digits and know no zero.
"""

from __future__ import annotations

from dataclasses import dataclass

from onnx_fa.kernels.triton.config import power_of_two
from onnx_fa.kernels.triton.expressions import Block
from onnx_fa.kernels.triton.program import Program, write_program
from onnx_fa.spec.linear_attention import LinearAttentionSpec
from onnx_fa.spec.terms import Dim

BATCH, TOKENS = "s0", "s1"
"""The parameters with the numbers of sequences and of tokens."""
_PRECISE = "input_precision='tf32x3'"
"""Three products of the tensor cores for one of f32: to 22 bits of 24."""
_WIDEST = 256
"""Numbers of a key."""


@dataclass(frozen=True)
class Chunks:
    """So many tokens at a time, and columns of a state, a workgroup's; threads by 32, of the dispatch of facts first; and how many
    chunks' operands are on their way at a time."""

    tokens: int = 16
    columns: int = 32
    warps: tuple[int, int] = (2, 4)
    stages: int = 3


LEAST_TOKENS = 512
"""From here on a call goes through them in chunks."""


def chunks_of(spec: LinearAttentionSpec) -> Chunks | None:
    """How prompts are cut; None where all calls go from token to token: those of few tokens, with decays of each key dim, and with
    keys that leave no registers for a chunk."""
    few = isinstance(spec.T, int) and spec.T < LEAST_TOKENS
    return None if few or spec.decay == "key" or spec.D > _WIDEST else Chunks()


def of_facts(spec: LinearAttentionSpec) -> list[str]:
    """The names of the operands that need no state."""
    return [name for name, _ in spec.operands if name != "state"]


def facts_of(spec: LinearAttentionSpec, chunks: Chunks) -> dict[str, tuple[Dim, ...]]:
    """What is known of every chunk before its state is, by name, and its shape behind (B, chunks, H): scores of queries by keys,
    times r; g, and r of the last token; and for the delta rule what u is without a state, and what times the state is taken
    off."""
    C = chunks.tokens
    found: dict[str, tuple[Dim, ...]] = {"scores": (spec.G, C, C)}
    if spec.decay:
        found |= {"gone": (C,), "left": (C,)}
    if spec.beta:
        found |= {"added": (C, spec.Dv), "taken": (C, spec.D)}
    return found


def facts_program(spec: LinearAttentionSpec, name: str, chunks: Chunks) -> Program:
    """`facts_of` a chunk, a workgroup's. The inverse is made row by row: squaring A instead adds up numbers that cancel."""
    t, H, C = Block(), spec.H, chunks.tokens
    t.do("pid = tl.program_id(0)")
    t.do(f"many = tl.cdiv({TOKENS}, {C})")
    t.do(f"h = pid % {H}")
    t.do(f"chunk = (pid // {H}) % many")
    t.do(f"b = (pid // {H} // many).to(tl.int64)")
    _begin_chunk(t, spec, chunks)
    _load_keys(t, spec)
    outs = {fact: f"out{i}" for i, fact in enumerate(facts_of(spec, chunks))}
    t.do("ratio = tl.where(c[:, None] >= c[None, :], 1.0, 0.0)")
    if spec.decay:
        t.do(f"factor = tl.load(decay + token * {H} + h, mask=live, other=1.0)")
        t.do("ratio *= tl.cumprod(tl.where(c[:, None] > c[None, :], factor[:, None], 1.0), 0)")
        t.do("gone = tl.cumprod(factor, 0)")
        t.do(f"tl.store({outs['gone']} + first * {C} + c, gone)")
        t.do(f"left = tl.sum(tl.where(c[:, None] == {C - 1}, ratio, 0.0), 0)")
        t.do(f"tl.store({outs['left']} + first * {C} + c, left)")
    for g in range(spec.G):
        _load_query(t, spec, g)
        t.do(f"score = tl.dot(query, tl.trans(keys), {_PRECISE}) * ratio")
        t.do(f"tl.store({outs['scores']} + {_scores_at(spec, C, g)}, score)")
    if spec.beta:
        rates = f"token * {H} + h" if spec.beta == "head" else "token"
        t.do(f"rate = tl.load(beta + {rates}, mask=live, other=0.0)")
        t.do(f"a = tl.dot(keys, tl.trans(keys), {_PRECISE}) * ratio * rate[:, None]")
        t.do("a = tl.where(c[:, None] > c[None, :], a, 0.0)")
        t.do("inverse = tl.where(c[:, None] == c[None, :], 1.0, 0.0)")
        t.do(f"for i in range(1, {C}):")
        t.indent += 1
        t.do("row = tl.sum(tl.where(c[:, None] == i, a, 0.0), 0)")
        t.do("less = tl.sum(row[:, None] * inverse, 0)")
        t.do("inverse = tl.where(c[:, None] == i, inverse - less[None, :], inverse)")
        t.indent -= 1
        t.do("inverse *= rate[None, :]")
        seen = "keys * gone[:, None]" if spec.decay else "keys"
        t.do(f"taken = tl.dot(inverse, {seen}, {_PRECISE})")
        row, known = f"(first * {C} + c[:, None])", f"d[None, :] < {spec.D}"
        t.do(f"tl.store({outs['taken']} + {row} * {spec.D} + d[None, :], taken, mask={known})")
        t.do(f"n = tl.arange(0, {max(16, power_of_two(spec.Dv))})")
        t.do(f"inside = n[None, :] < {spec.Dv}")
        values = f"v + (token[:, None] * {H} + h) * {spec.Dv} + n[None, :]"
        t.do(f"value = tl.load({values}, mask=live[:, None] & inside, other=0.0)")
        t.do(f"added = tl.dot(inverse, value, {_PRECISE})")
        t.do(f"tl.store({outs['added']} + {row} * {spec.Dv} + n[None, :], added, mask=inside)")
    pointers = [(operand, "f32") for operand in (*of_facts(spec), *outs.values())]
    return write_program(name, pointers, {"batch": BATCH, "tokens": TOKENS}, t.lines)


def of_chunks(spec: LinearAttentionSpec) -> list[str]:
    """The names of the operands that chunks read beside facts."""
    return ["q", "k", *(["v"] if not spec.beta else []), "state"]


def chunks_program(spec: LinearAttentionSpec, name: str, chunks: Chunks) -> Program:
    """What the queries read, and the states: a workgroup goes through the chunks of a head, for columns of its state."""
    t, D, Dv, H, C = Block(), spec.D, spec.Dv, spec.H, chunks.tokens
    blocks = -(-Dv // chunks.columns)
    t.do("pid = tl.program_id(0)")
    t.do(f"n = (pid % {blocks}) * {chunks.columns} + tl.arange(0, {chunks.columns})")
    t.do(f"h = (pid // {blocks}) % {H}")
    t.do(f"b = (pid // {blocks * H}).to(tl.int64)")
    t.do(f"rows = tl.arange(0, {_width(spec)})")
    t.do(f"at = ((b * {H} + h) * {D} + rows[:, None]) * {Dv} + n[None, :]")
    t.do(f"inside = (rows[:, None] < {D}) & (n[None, :] < {Dv})")
    t.do("s = tl.load(state + at, mask=inside, other=0.0)")
    t.do(f"many = tl.cdiv({TOKENS}, {C})")
    t.do("for chunk in range(many):")
    t.indent += 1
    _begin_chunk(t, spec, chunks)
    t.do(f"values = (token[:, None] * {H} + h) * {Dv} + n[None, :]")
    t.do(f"there = live[:, None] & (n[None, :] < {Dv})")
    if spec.decay:
        t.do(f"passed = tl.load(gone + first * {C} + c)")
    if spec.beta:
        row = f"(first * {C} + c[:, None])"
        t.do(f"u = tl.load(added + {row} * {Dv} + n[None, :], mask=n[None, :] < {Dv}, other=0.0)")
        t.do(f"off = tl.load(taken + {row} * {D} + d[None, :], mask=d[None, :] < {D}, other=0.0)")
        t.do(f"u -= tl.dot(off, s, {_PRECISE})")
    else:
        t.do("u = tl.load(v + values, mask=there, other=0.0)")
    for g in range(spec.G):
        _load_query(t, spec, g)
        t.do(f"y = tl.dot(query, s, {_PRECISE})" + " * passed[:, None]" * bool(spec.decay))
        t.do(f"score = tl.load(scores + {_scores_at(spec, C, g)})")
        t.do(f"y += tl.dot(score, u, {_PRECISE})")
        written = f"((token[:, None] * {H} + h) * {spec.G} + {g}) * {Dv} + n[None, :]"
        t.do(f"tl.store(out0 + {written}, y * {float(spec.scale)!r}, mask=there)")
    _load_keys(t, spec)
    if spec.decay:
        t.do(f"keys *= tl.load(left + first * {C} + c)[:, None]")
        t.do(f"s *= tl.load(gone + first * {C} + {C - 1})")
    t.do(f"s += tl.dot(tl.trans(keys), u, {_PRECISE})")
    t.indent -= 1
    t.do("tl.store(out1 + at, s, mask=inside)")
    pointers = [(operand, "f32") for operand in (*of_chunks(spec), *facts_of(spec, chunks), "out0", "out1")]
    return write_program(name, pointers, {"batch": BATCH, "tokens": TOKENS}, t.lines)


def _width(spec: LinearAttentionSpec) -> int:
    """Of keys as blocks hold them: a product of blocks has at least 16 terms."""
    return max(16, power_of_two(spec.D))


def _begin_chunk(t: Block, spec: LinearAttentionSpec, chunks: Chunks) -> None:
    """The chunk's place, and those of its tokens. Behind the last one keys are 0 and decays 1, which leaves the state as it is."""
    t.do(f"c = tl.arange(0, {chunks.tokens})")
    t.do(f"d = tl.arange(0, {_width(spec)})")
    t.do(f"live = chunk * {chunks.tokens} + c < {TOKENS}")
    t.do(f"token = b * {TOKENS} + chunk * {chunks.tokens} + c")
    t.do(f"first = (b * many + chunk) * {spec.H} + h")


def _load_keys(t: Block, spec: LinearAttentionSpec) -> None:
    head = f"(h // {spec.H // spec.Hk})" if spec.Hk < spec.H else "h"
    t.do(f"places = (token[:, None] * {spec.Hk} + {head}) * {spec.D} + d[None, :]")
    t.do(f"keys = tl.load(k + places, mask=live[:, None] & (d[None, :] < {spec.D}), other=0.0)")


def _load_query(t: Block, spec: LinearAttentionSpec, g: int) -> None:
    head = f"(h // {spec.H // spec.Hq})" if spec.Hq < spec.H else "h"
    t.do(f"places = ((token[:, None] * {spec.Hq} + {head}) * {spec.G} + {g}) * {spec.D} + d[None, :]")
    t.do(f"query = tl.load(q + places, mask=live[:, None] & (d[None, :] < {spec.D}), other=0.0)")


def _scores_at(spec: LinearAttentionSpec, tokens: int, g: int) -> str:
    return f"(first * {spec.G} + {g}) * {tokens * tokens} + c[:, None] * {tokens} + c[None, :]"

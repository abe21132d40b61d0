"""Names the dims of Q, K and V, proves them equal where they must be, and picks how far up the graph each operand is read."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from onnx_fa.graph_view import GraphView
from onnx_fa.match.types import Call, Const, NoMatch, OperandChoice, Operands, Patterns
from onnx_fa.spec import Dim


def matmul_operands(view: GraphView, qk: ir.Node, pv: ir.Node, patterns: Patterns) -> Operands:
    q, kt, v = qk.inputs[0], qk.inputs[1], pv.inputs[1]
    if q is None or kt is None or v is None:
        raise NoMatch("a matmul lacks an operand", qk)
    shapes = [view.shape(x) for x in (q, kt, v)]
    if any(s is None for s in shapes):
        raise NoMatch("the rank of Q, K or V is unknown", qk)
    qs, ks, vs = (s for s in shapes if s is not None)
    if not len(qs) == len(ks) == len(vs):
        raise NoMatch(f"Q, K and V have different ranks ({len(qs)}, {len(ks)}, {len(vs)})", qk)
    if len(qs) < 2:
        raise NoMatch("a matmul operand is a vector", qk)
    return plan_operands(view, patterns, q, kt, v, qk)


def plan_operands(view: GraphView, patterns: Patterns, q: ir.Value, kt: ir.Value, v: ir.Value, at: ir.Node) -> Operands:
    """Names the dims of Q (…, Sq, D), K^T (…, D, Skv) and V (…, Skv, Dv), and peels transposes, head repeats and scales off them.

    Raises NoMatch where a dim cannot be proved equal to the one it must equal.
    """

    def dims(value: ir.Value, letter: str) -> list[Dim]:
        shape = view.shape(value) or ()
        return [d if d is not None else f"{at.name}_{letter}{i}" for i, d in enumerate(shape)]

    qs, ks, vs = dims(q, "q"), dims(kt, "k"), dims(v, "v")
    rank2 = len(qs) == 2
    D = qs[-1] if isinstance(qs[-1], int) else ks[-2]
    Dv = vs[-1]
    if not isinstance(D, int) or not isinstance(Dv, int):
        raise NoMatch("the head dim is not static", at)
    Skv = ks[-1] if isinstance(ks[-1], int) else vs[-2]  # the matmul with V makes them equal
    Sq = qs[-2]
    lead_q, lead_k, lead_v = qs[:-2], ks[:-2], vs[:-2]
    if rank2:
        lead_q, lead_k, lead_v = [1], [1], [1]
    batch = tuple(lead_q[:-1])
    for name, lead in (("K", lead_k), ("V", lead_v)):
        if tuple(lead[:-1]) != batch:
            raise NoMatch(f"the batch dims of Q {list(batch)} and {name} {list(lead[:-1])} are not provably equal", at)
    Hq = lead_q[-1]
    b = tuple(f"b{i}" for i in range(len(batch)))

    def choices(
        value: ir.Value, names: tuple[str, ...], sizes: tuple[Dim, ...], unswapped: tuple[int, ...]
    ) -> list[OperandChoice]:
        if rank2:
            raised = Call("Unsqueeze", (value, Const(np.asarray([0], np.int64))))
            return [OperandChoice(raised, unswapped, 1.0, sizes[len(batch)])]
        return patterns.operand(view, value, names, sizes)

    rank = len(batch) + 3
    straight, swapped = tuple(range(rank)), (*range(rank - 2), rank - 1, rank - 2)
    q_all = choices(q, (*b, "h", "s", "d"), (*batch, Hq, Sq, D), straight)
    k_all = choices(kt, (*b, "h", "d", "s"), (*batch, lead_k[-1], Skv, D), swapped)
    v_all = choices(v, (*b, "h", "s", "d"), (*batch, lead_v[-1], Skv, Dv), straight)
    chosen = common_reading(q_all, k_all, v_all, Hq, at)
    return Operands(*chosen, batch, Hq, chosen[1].heads, Sq, Skv, D, Dv, rank2)


def common_reading(
    q_all: Sequence[OperandChoice],
    k_all: Sequence[OperandChoice],
    v_all: Sequence[OperandChoice],
    Hq: Dim,
    at: ir.Node,
) -> tuple[OperandChoice, OperandChoice, OperandChoice]:
    """The readings furthest up the graph in which K and V have equal heads that group those of Q. Raises NoMatch."""
    q = [c for c in q_all if c.heads == Hq][-1]
    for k in reversed(k_all):
        for v in reversed(v_all):
            if k.heads == v.heads and _groups(Hq, k.heads):
                return q, k, v
    raise NoMatch(f"the heads of Q ({Hq}), K ({k_all[0].heads}) and V ({v_all[0].heads}) do not form groups", at)


def _groups(hq: Dim, hkv: Dim) -> bool:
    return hq == hkv or (isinstance(hq, int) and isinstance(hkv, int) and hkv > 0 and hq % hkv == 0)

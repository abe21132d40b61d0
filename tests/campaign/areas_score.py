"""Random products of Q and K, and what stands between them and the softmax."""

from __future__ import annotations

import numpy as np
from onnx import TensorProto as T

from .areas_mask import masked
from .sketch import Sketch

FACTORS = (1.0, 0.5, 0.4, 0.25, -1.0, 2.0, 0.1)


def times(g: Sketch, x: str, factor: float) -> str:
    """x by a constant, in one of the ways to write that."""
    way = g.r.randrange(4)
    if way == 0:
        return g.op("Mul", x, g.floats(factor))
    if way == 1:
        return g.op("Mul", g.floats([factor]), x)
    if way == 2 and factor:
        return g.op("Div", x, g.floats(1 / factor))
    return g.op("Neg", g.op("Mul", x, g.floats(-factor)))


def product(g: Sketch, q: str, k: str) -> str:
    """q (.., S, D) times k (.., L, D) transposed."""
    r = g.r
    ways = ["plain", "plain", "plain", "einsum", "swapped", "fused", "fused_plain"]
    if g.rank == 2:
        ways += ["gemm"] * 4
    if g.kind == "products":
        ways += ["fused"] * 3
    way = r.choice(ways)
    if way in ("fused", "fused_plain") and g.float_type not in (T.FLOAT, T.DOUBLE):
        way = "plain"
    if way == "einsum":
        letters = "bh"[: g.rank - 2]
        return g.op("Einsum", q, k, equation=f"{letters}id,{letters}jd->{letters}ij")
    if way == "swapped":
        return g.swapped(g.op("MatMul", k, g.swapped(q)))
    if way == "fused":
        return g.op("FusedMatMul", q, k, transB=1, alpha=r.choice(FACTORS), domain="com.microsoft")
    if way == "fused_plain":
        q = g.swapped(q)
        return g.op("FusedMatMul", q, g.swapped(k), transA=1, alpha=r.choice(FACTORS), domain="com.microsoft")
    if way == "gemm":
        return gemm(g, q, k, g.S, g.L, transposed=True)
    return g.op("MatMul", q, g.swapped(k))


def gemm(g: Sketch, a: str, b: str, rows: int, columns: int, *, transposed: bool) -> str:
    """A product of two matrices with factors, and sometimes something added."""
    r = g.r
    operands, right = [a, b], transposed
    left = r.random() < 0.3
    if left:
        operands[0] = g.swapped(a)
    if r.random() < 0.3:
        operands[1], right = g.swapped(b), not right
    if r.random() < 0.4:
        shape = r.choice(([rows, columns], [columns], [rows, 1], [1]))
        operands.append(g.given("bias", shape))
    return g.op(
        "Gemm",
        *operands,
        transA=int(left),
        transB=int(right),
        alpha=r.choice(FACTORS),
        beta=r.choice((1.0, 0.5, 0.0, -2.0)),
    )


def scores(g: Sketch, q: str, k: str) -> str:
    """The raw scores (.., S, L): one product, or several with factors of their own."""
    r = g.r
    score = g.edge(product(g, q, k), "s")
    while g.likes("products", 0.6, 0.06) and len(g.nodes) < 60:
        if r.random() < 0.4:
            score = times(g, score, r.choice(FACTORS))
        width = r.choice((1, 2, 3))
        lead = g.lead if r.random() < 0.7 else [*g.lead[:-1], *([1] if g.lead else [])]
        other_k = g.given("k", [*lead, g.L, width])
        if lead != g.lead:
            other_k = g.op("Expand", other_k, g.ints([*g.lead, g.L, width]))
        more = product(g, g.given("q", [*g.lead, g.S, width]), other_k)
        if r.random() < 0.4:
            more = times(g, more, r.choice(FACTORS))
        score = g.op(r.choice(("Add", "Add", "Add", "Sub")), *r.sample([score, more], 2))
    return score


def layered(g: Sketch, score: str) -> str:
    """Scores (.., S, L) behind layers, in any order."""
    r = g.r
    usual = ("scale", "scale", "scale", "mask", "mask", "mask", "mask", "cap", "neg", "vector", "runtime", "shape")
    for _ in range(r.choice((0, 1, 1, 1, 2, 2, 3))):
        way = r.choice((*usual, "odd") if r.random() < 0.9 else ("odd", "cast"))
        if way == "scale":
            score = times(g, score, r.choice((*FACTORS, g.D**-0.5)))
        elif way == "mask":
            score = masked(g, score)
            if g.kind == "behind" and r.random() < 0.3:  # the probabilities will be masked once more
                score = r.choice((lambda x: g.op("Neg", x), lambda x: times(g, x, r.choice(FACTORS))))(score)
        elif way == "cap":
            cap = r.choice((3.0, 20.0))
            score = g.op("Mul", g.op("Tanh", g.op("Div", score, g.floats(cap))), g.floats(cap))
        elif way == "neg":
            score = g.op("Neg", score)
        elif way == "vector":
            shape = r.choice(([g.S, 1], [1, g.L], [g.L], [*g.lead[-1:], 1, 1]))
            score = g.op(
                r.choice(("Mul", "Add", "Sub", "Div")),
                score,
                g.floats(np.linspace(0.3, 1.5, int(np.prod(shape))).reshape(shape)),
            )
        elif way == "runtime":
            score = g.op("Mul", score, g.given("factor", r.choice(([], [1]))))
        elif way == "odd":
            score = _odd(g, score)
        elif way == "cast":
            other = r.choice((T.FLOAT, T.DOUBLE, T.FLOAT16))
            score = g.op("Cast", g.op("Cast", score, to=other), to=g.float_type)
        elif g.rank == 4 and 0 not in g.score_shape:
            flat = g.op("Reshape", score, g.ints([g.B * g.H, g.S, g.L]))
            score = g.op("Reshape", flat, g.ints(g.score_shape))
    return score


def _odd(g: Sketch, score: str) -> str:
    """A function of the score that no attention has, or seldom."""
    r = g.r
    kind = r.choice(("Clip", "Abs", "Max", "Sigmoid", "Min", "shift", "Mul", "Softplus"))
    if kind == "Clip":
        return g.op("Clip", score, g.floats(-2.0), g.floats(3.0))
    if kind in ("Max", "Min"):
        return g.op(kind, score, g.floats(r.choice((0.0, -5.0, 1.0))))
    if kind == "shift":
        return g.op("Sub", score, g.reduced("ReduceMax", score)) if g.L else score
    if kind == "Mul":
        return g.op("Mul", score, score)
    return g.op(kind, score)

"""A product with a weight, and what follows it, in the words that people have for it: bias, gelu, residual, gate."""

from __future__ import annotations

from typing import Any

from onnx_fa.spec.expr import SCORE, Apply, Float, ScoreExpr, Tensor, leaves, parts
from onnx_fa.spec.linear import LinearSpec

_SUMS = ("Add", "Sub")
_PRODUCTS = ("Mul", "Div")
_SOFTCAP = ["scale", "tanh", "scale"]


def follows(spec: LinearSpec) -> list[str]:
    """What is done to the sums of a site, in order, and at last into how many results they are split."""
    found = _follows(spec.then, spec)
    if found[-3:] == _SOFTCAP:
        found[-3:] = ["softcap"]
    return [*found, f"split in {len(spec.parts)}"] if spec.parts else found


def weight_words(spec: LinearSpec) -> str:
    """How the weight is kept: its type, or its bits and the size of a block."""
    bits = spec.bits
    return spec.weight_dtype if bits is None else f"{bits.bits} bits, blocks of {bits.block}"


def linear_facts(spec: LinearSpec) -> dict[str, Any]:
    """What a report says of it, JSON-ready."""
    return {
        "rows": spec.rows,
        "K": spec.K,
        "N": spec.N,
        "dtype": spec.dtype,
        "weight": weight_words(spec),
        "follows": follows(spec),
    }


def _follows(e: ScoreExpr, spec: LinearSpec) -> list[str]:
    if not isinstance(e, Apply):
        return []  # the sum itself
    inner = [a for a in e.args if SCORE in leaves(a)]
    if len(inner) != 1:
        x = _core(e)
        return [*_follows(x, spec), _activation(_without(e, x))]
    before = _follows(inner[0], spec)
    others = [a for a in e.args if a is not inner[0]]
    if before[-1:] == ["gelu"] and e.op == "Mul" and others == [Float(0.5)]:
        return before  # half of it is a part of GELU, wherever the graph multiplies by it
    word = _word(e.op, others, spec)
    return before if before[-1:] == [word] == ["clip"] else [*before, word]


def _word(op: str, others: list[ScoreExpr], spec: LinearSpec) -> str:
    """What an op does to one number, beside which it reads `others`."""
    read = [spec.tensors[e.index] for other in others for e in leaves(other) if isinstance(e, Tensor)]
    rank = min(2, max((len(t.shape) for t in read), default=0))
    if op in _SUMS:
        return ("shift", "bias", "residual")[rank]
    if op in _PRODUCTS:
        return ("scale", "scale of each column", "gate")[rank]
    if op == "Relu" or (op == "Max" and others == [Float(0.0)]):
        return "relu"
    return "clip" if op in ("Min", "Max") and not read else op.lower()


def _core(e: Apply) -> ScoreExpr:
    """The largest part of which all of e is a function."""
    candidates = sorted(
        {p for p in parts(e) if p != e and SCORE in leaves(p)}, key=lambda p: sum(1 for _ in parts(p)), reverse=True
    )
    return next(p for p in candidates if SCORE not in leaves(_without(e, p)))


def _without(e: ScoreExpr, x: ScoreExpr) -> ScoreExpr:
    """`e` with a tensor that no site has in the place of x."""
    if e == x:
        return Tensor(-1)
    return Apply(e.op, *(_without(a, x) for a in e.args)) if isinstance(e, Apply) else e


def _activation(e: ScoreExpr) -> str:
    """The name of a function that uses its argument more than once, by the ops that it has."""
    ops = {p.op for p in parts(e) if isinstance(p, Apply)}
    for marks, name in (
        ({"Erf"}, "gelu"),
        ({"Tanh", "Softplus"}, "mish"),
        ({"Tanh"}, "gelu"),
        ({"Sigmoid"}, "silu"),
        ({"Min", "Max"}, "hardswish"),
    ):
        if marks <= ops and "Mul" in ops:
            return name
    return "function of " + ", ".join(sorted(op.lower() for op in ops))

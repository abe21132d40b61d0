"""The float64 reference against plain loops, torch's SDPA and the ONNX reference of the Attention op."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator

from onnx_fa.spec.attention import AttentionSpec
from onnx_fa.spec.expr import SCORE, SKV, SQ, Apply, Bool, Float, Int, K, Q, Tensor
from onnx_fa.spec.reference import attention
from onnx_fa.spec.terms import (
    GRIDS,
    NEG_INF,
    AddMask,
    BoolMask,
    Causal,
    Elementwise,
    Rounding,
    SlidingWindow,
    Softcap,
    with_shapes,
)
from tests.support.cases import CASES, Case, draw_operands

_SMALL = [c for c in CASES if not c.tags & {"bench", "head_dim"} and not c.spec.quantized and c.spec.gathered is None]


def _at(mask: Any, index: tuple[int, ...]) -> Any:
    """The element of a right-aligned broadcast tensor."""
    own = index[len(index) - mask.ndim :]
    return mask[tuple(0 if n == 1 else i for i, n in zip(own, mask.shape, strict=True))]


def _scalar(expr: Any, s: float, i: int, j: int, spec: AttentionSpec, read: list[Any]) -> Any:
    """A score expression in Python numbers, for one query and one key."""
    match expr:
        case Apply(op, args):
            return _scalar_op(op, *(_scalar(e, s, i, j, spec, read) for e in args))
        case Tensor(index):
            return read[index].item()
        case Float(value) | Int(value) | Bool(value):
            return value
    return {SCORE: s, Q: i, K: j, SQ: spec.Sq, SKV: spec.Skv}[expr]


def _scalar_op(op: str, a: Any, *rest: Any) -> Any:
    b = rest[0] if rest else None
    match op:
        case "Where":
            return rest[0] if a else rest[1]
        case "Add":
            return a + b
        case "Sub":
            return a - b
        case "Mul":
            return a * b
        case "Div":
            if isinstance(a, int) and isinstance(b, int):
                return math.trunc(a / b) if b else 0
            return a / b
        case "Mod":
            return a % b if b else 0
        case "Min":
            return min(a, b)
        case "Max":
            return max(a, b)
        case "Less":
            return a < b
        case "LessOrEqual":
            return a <= b
        case "Greater":
            return a > b
        case "GreaterOrEqual":
            return a >= b
        case "Equal":
            return a == b
        case "And":
            return a and b
        case "Or":
            return a or b
        case "Xor":
            return a != b
        case "Not":
            return not a
        case "IsNaN":
            return math.isnan(a)
        case "Neg":
            return -a
        case "Abs":
            return abs(a)
        case "Relu":
            return max(a, 0.0)
        case "Tanh":
            return math.tanh(a)
        case "Sigmoid":
            return 1 / (1 + math.exp(-a)) if a > -700 else 0.0
        case "Softplus":
            return max(a, 0.0) + math.log1p(math.exp(-abs(a)))
        case "Exp":
            return math.exp(a) if a < 700 else math.inf
        case "Log":
            return math.log(a) if a > 0 else -math.inf
        case "Sqrt":
            return math.sqrt(a)
        case "Erf":
            return math.erf(a)
        case "Sin":
            return math.sin(a)
        case "Cos":
            return math.cos(a)
        case "Floor":
            return float(math.floor(a))
        case "Ceil":
            return float(math.ceil(a))
        case "Round":
            return float(round(a))
        case "Pow":
            return a**b
        case "Sign":
            return float(a > 0) - float(a < 0)
        case "Reciprocal":
            return 1 / a
        case "ToFloat":
            return float(a)
        case "ToInt":
            return int(a)
        case "ToBool":
            return a != 0
    raise NotImplementedError(op)


def _loops(spec: AttentionSpec, operands: list[Any]) -> Any:
    """One row at a time, in Python floats."""
    assert isinstance(spec.Sq, int) and isinstance(spec.Skv, int)
    q, k, v = (
        np.transpose(x, np.argsort(p)).astype(float)
        for x, p in zip(operands, (spec.q_layout, spec.k_layout, spec.v_layout), strict=False)
    )
    out = np.zeros([int(n) for n in spec.canonical_shapes[3]])
    for index in itertools.product(*(range(int(n)) for n in spec.score_shape[:-1])):
        *batch, head, i = index
        kv = (*batch, head // spec.group)
        row = []
        for j in range(spec.Skv):
            s = spec.scale * sum(a * b for a, b in zip(q[index], k[(*kv, j)], strict=True))
            for mod in spec.mods:
                s = mod.cap * math.tanh(s / mod.cap)
            tensors = iter(operands[3:])
            for mask in spec.masks:
                if isinstance(mask, AddMask):
                    s += mask.factor * float(_at(next(tensors), (*index, j)))
                    continue
                if isinstance(mask, Elementwise):
                    read = [_at(next(tensors), (*index, j)) for _ in mask.tensors]
                    s = _scalar(mask.expr, s, i, j, spec, read)
                    continue
                if isinstance(mask, BoolMask):
                    keep = bool(_at(next(tensors), (*index, j)))
                else:
                    here = i + (spec.Skv - spec.Sq if mask.offset == "end" else mask.offset)
                    if isinstance(mask, Causal):
                        keep = j <= here
                    else:
                        keep = mask.left is None or j >= here - mask.left
                        keep = keep and (mask.right is None or j <= here + mask.right)
                s = s if keep else mask.fill
            row.append(s)
        if spec.weighting is not None:
            last = operands[2 + len(spec.tensors)] if spec.weights is not None else np.ones(1)
            out[index] = _weighed(spec, row, v[kv], [float(_at(last, (*index, j))) for j in range(spec.Skv)])
            continue
        if spec.sink is not None:
            row.append(float(_at(operands[-1], (*index, 0))))
        top = max(row)
        if top == NEG_INF:
            out[index] = 0.0 if spec.empty_row in ("zero", "guarded") or spec.rounding is not None else math.nan
            continue
        p = [math.exp(s - top) for s in row]
        p = [w / sum(p) for w in p]
        if spec.rounding is not None:
            p = [_rounded(spec.rounding, w) for w in p]
        out[index] = sum(w * x for w, x in zip(p, v[kv], strict=spec.sink is None))
    return np.transpose(out, spec.o_layout)


def _rounded(r: Rounding, p: float) -> float:
    low, high = GRIDS[r.dtype]
    if r.before is None:
        steps = p / r.scale
    else:
        earlier = round(_rounded(r.before, p) / r.before.scale)
        steps = float(np.float32(earlier) * np.float32(r.before.scale) / np.float32(r.scale))
    return (min(max(round(steps) + r.zero_point, low), high) - r.zero_point) * r.scale


def _weighed(spec: AttentionSpec, row: list[float], v: Any, weights: list[float]) -> Any:
    """A row without a softmax. `weights` are the last operand's numbers, where the spec has such."""
    w = spec.weighting
    p = [_scalar(w.weight, s, 0, 0, spec, []) for s in row]
    if w.total is not None:
        total = max(sum(_scalar(w.total, s, 0, 0, spec, []) for s in row) + w.plus, w.least)
        if total == 0.0:
            return 0.0 if spec.empty_row == "guarded" else math.nan
        p = [x / total for x in p]
    if spec.weights is not None:
        p = [x * y for x, y in zip(p, weights, strict=True)]
    return sum(x * y for x, y in zip(p, v, strict=True))


@pytest.mark.parametrize("case", _SMALL, ids=lambda c: c.name)
def test_loops(case: Case) -> None:
    spec = case.bound()[-1]
    spec = _shrink(spec)
    operands = draw_operands(spec, 1, adversarial=True)
    with np.errstate(all="ignore"):
        got = attention(spec, *operands)
    np.testing.assert_allclose(got, _loops(spec, operands), rtol=1e-9, atol=1e-12)


def _shrink(spec: AttentionSpec) -> AttentionSpec:
    """The spec with lengths of at most 6 and 5, tensors along with them."""
    assert isinstance(spec.Sq, int) and isinstance(spec.Skv, int)
    sq = min(spec.Sq, 6)
    skv = sq if spec.Skv == spec.Sq else min(spec.Skv, 5)

    def lengths(shape: tuple[Any, ...]) -> tuple[Any, ...]:
        ends = [n if d != 1 else 1 for d, n in zip(shape[-2:], (sq, skv)[-len(shape[-2:]) :], strict=True)]
        return (*shape[:-2], *ends)

    sink = spec.sink and replace(spec.sink, shape=lengths(spec.sink.shape))
    masks = tuple(with_shapes(m, lengths) for m in spec.masks)
    return replace(spec, Sq=sq, Skv=skv, masks=masks, sink=sink)


@pytest.mark.parametrize(("causal", "masked"), [(False, None), (True, None), (False, "bool"), (False, "float")])
def test_torch(causal: bool, masked: str | None) -> None:
    torch = pytest.importorskip("torch")
    masks: tuple[Any, ...] = (Causal(),) if causal else ()
    if masked:
        masks = (BoolMask((2, 1, 7, 9)) if masked == "bool" else AddMask((2, 1, 7, 9)),)
    # A row with no key left: torch's SDPA gives zero.
    spec = AttentionSpec("f32", 4, 2, 7, 9, 16, 8, (2,), scale=0.3, masks=masks, empty_row="zero")
    operands = draw_operands(spec, 0, adversarial=masked == "bool")
    q, k, v, *mask = (torch.from_numpy(x) for x in operands)
    want = torch.nn.functional.scaled_dot_product_attention(
        q.double(),
        k.double(),
        v.double(),
        attn_mask=(mask[0] if masked == "bool" else mask[0].double()) if mask else None,
        is_causal=causal,
        scale=0.3,
        enable_gqa=True,
    )
    np.testing.assert_allclose(attention(spec, *operands), want.numpy(), rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("causal", [0, 1])
@pytest.mark.parametrize("softcap", [0.0, 2.0])
@pytest.mark.parametrize("heads", [(4, 4), (4, 2)])
def test_onnx_attention(causal: int, softcap: float, heads: tuple[int, int]) -> None:
    spec = AttentionSpec(
        "f32",
        *heads,
        6,
        6,
        16,
        8,
        (2,),
        scale=0.25,
        mods=(Softcap(softcap),) if softcap else (),
        masks=(Causal(),) if causal else (),
        empty_row="zero",
    )
    value = onnx.helper.make_tensor_value_info
    f32 = onnx.TensorProto.FLOAT
    node = onnx.helper.make_node("Attention", ["q", "k", "v"], ["o"], scale=0.25, is_causal=causal, softcap=softcap)
    names = zip("qkv", spec.operand_shapes, strict=True)
    graph = onnx.helper.make_graph([node], "g", [value(n, f32, s) for n, s in names], [value("o", f32, None)])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 24)], ir_version=10)
    operands = draw_operands(spec, 2)
    (want,) = ReferenceEvaluator(model).run(None, dict(zip("qkv", operands, strict=True)))
    np.testing.assert_allclose(attention(spec, *operands), want, rtol=1e-4, atol=1e-5)


def test_offsets_and_windows() -> None:
    """Which keys a query sees, spelled out."""

    def seen(mask: Any) -> list[list[int]]:
        spec = AttentionSpec("f32", 1, 1, 3, 5, 8, 5, masks=(mask,), empty_row="zero")
        v = np.eye(5)[None]
        out = attention(spec, np.zeros((1, 3, 8)), np.zeros((1, 5, 8)), v)
        return [list(np.flatnonzero(row)) for row in out[0]]

    assert seen(Causal()) == [[0], [0, 1], [0, 1, 2]]
    assert seen(Causal("end")) == [[0, 1, 2], [0, 1, 2, 3], [0, 1, 2, 3, 4]]
    assert seen(Causal(-1)) == [[], [0], [0, 1]]
    assert seen(SlidingWindow(1, 0)) == [[0], [0, 1], [1, 2]]
    assert seen(SlidingWindow(1, 1, 2)) == [[1, 2, 3], [2, 3, 4], [3, 4]]

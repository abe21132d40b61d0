"""The ONNX Attention op, opsets 23 to 25 (https://onnx.ai/onnx/operators/onnx__Attention.html)."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import onnx_ir as ir

from onnx_fa.graph.ops import attr_float, attr_int, op_of
from onnx_fa.graph.view import DTYPES, GraphView
from onnx_fa.match import (
    AddTerm,
    Cap,
    Const,
    Expr,
    Found,
    Match,
    NoMatch,
    OperandChoice,
    Operands,
    Scale,
    ScoreStage,
    Select,
    Step,
    Term,
    build_match,
    choose_readings,
)
from onnx_fa.patterns.masks.layers import read_terms
from onnx_fa.patterns.operands.operand import read_operand
from onnx_fa.patterns.ops.exprs import (
    HEADS_BEHIND,
    append_rows,
    canonical,
    cast,
    concat,
    dim_of,
    ints,
    inverse_root,
    is_read,
    keep_where,
    op,
    output,
    per_row,
    present,
    reshape,
    same,
    window,
)
from onnx_fa.spec.expr import SQ, Apply, Int, K, ScoreExpr, Tensor
from onnx_fa.spec.terms import AddMask, BoolMask, Causal, Dim, Offset, TensorArg

_STAGES: tuple[ScoreStage, ...] = ("scaled", "capped", "masked", "probabilities")
"""What qk_matmul_output_mode 0 to 3 asks for."""

_PRECISION = {1: "f32", 10: "f16", 11: "f64", 16: "bf16"}


@dataclass(frozen=True)
class Past:
    """How many keys stand before query 0: `fixed`, or an expression of a tensor that is read."""

    fixed: Offset = 0
    expr: ScoreExpr | None = None
    read: tuple[Expr, TensorArg] | None = None


def match_attention(view: GraphView, node: ir.Node, label: str) -> Match | None:
    """The site of an Attention node; None for other nodes. Raises NoMatch for what cannot be expressed."""
    if op_of(node) != "Attention":
        return None
    q, k, v, mask, past_k, past_v, lengths = (present(node, i) for i in range(7))
    if q is None or k is None or v is None:
        raise NoMatch("Attention without Q, K or V")
    if (past_k is None) != (past_v is None):
        raise NoMatch("past_key and past_value must come together")
    if lengths is not None and past_k is not None:
        raise NoMatch("nonpad_kv_seqlen together with a past, which the op does not define")
    dtype = DTYPES.get(node.outputs[0].dtype or q.dtype or ir.DataType.UNDEFINED)
    if any(x is not None and x.dtype != q.dtype for x in (k, v, past_k, past_v)):
        raise NoMatch("Q, K, V and the past have different element types")
    _check_precision(node, dtype)
    operands = _heads(view, node, (q, k, v), label, past_k is not None)
    past = Past()
    if past_k is not None and past_v is not None:
        operands, past = _append_past(view, node, operands, past_k, past_v, label)
    row: tuple[Expr, TensorArg] | None = None
    if lengths is not None:
        row = per_row(lengths, operands.batch[0])
        # With an outside cache the last query stands on the last key of its row.
        past = Past(0, *_minus_queries(row, operands.Sq))
    presents = [
        (out, canonical(choice)) for i, choice in ((1, operands.k), (2, operands.v)) if (out := output(node, i))
    ]
    scores = _asked_scores(node)
    steps: list[Step] = [Scale(attr_float(node, "scale", inverse_root(operands.D)))]
    if (cap := attr_float(node, "softcap", 0.0)) > 0:
        steps.append(Cap(cap))
    extra: list[Term] = []
    if mask is not None:
        step = _mask_step(view, mask, operands, dtype)
        if isinstance(step, Term):
            extra.append(step)
        else:
            steps.append(step)
    extra += _bound_keys(node, past)
    if row is not None:
        extra.append(keep_where(Apply("Less", K, Tensor(0)), (row,), "lengths"))
    match = build_match(
        view,
        read_terms,
        Found(
            name=label,
            op="Attention",
            dtype=dtype,
            operands=operands,
            steps=steps,
            extra_terms=extra,
            guard="zero",  # the op defines the output of a fully masked row as zero
            output=node.outputs[0],
            anchor=node,
            presents=tuple(presents),
            form="attention",
        ),
    )
    return match if scores is None else replace(match, scores=scores)


def _asked_scores(node: ir.Node) -> tuple[ir.Value, ScoreStage] | None:
    """The output that holds the scores, and at which stage; None where nobody reads it."""
    mode, scores = attr_int(node, "qk_matmul_output_mode", 0), output(node, 3)
    if scores is None:
        return None
    if not 0 <= mode < len(_STAGES):
        raise NoMatch(f"qk_matmul_output_mode {mode}")
    return scores, _STAGES[mode]


def _append_past(
    view: GraphView, node: ir.Node, operands: Operands, past_k: ir.Value, past_v: ir.Value, label: str
) -> tuple[Operands, Past]:
    """K and V behind the past (B, Hkv, P, D or Dv), and how many keys that puts before query 0."""
    shapes = [view.shape(x) or (None,) * 4 for x in (past_k, past_v)]
    if any(len(s) != 4 for s in shapes):
        raise NoMatch("past_key and past_value must have four dims")
    length = same("the lengths of past_key and past_value", shapes[0][2], shapes[1][2])
    made = [view.shape(x) for x in node.outputs[1:3] if is_read(x)]
    total = same("the lengths of the present outputs", *(s[2] for s in made if s is not None and len(s) == 4))
    return append(operands, past_k, past_v, length, total, label)


def _bound_keys(node: ir.Node, past: Past) -> list[Term]:
    """The keys that a query sees by its position: is_causal and the window. Raises NoMatch for values that are not defined."""
    terms: list[Term] = []
    causal = attr_int(node, "is_causal", 0)
    if causal not in (0, 1):
        raise NoMatch(f"is_causal {causal}")
    if causal:
        if past.expr is None:
            terms.append(Term(Causal(past.fixed)))
        else:
            terms.append(window(None, 0, 0, past.expr, past.read))
    left, right = attr_int(node, "left_window_size", -1), attr_int(node, "right_window_size", -1)
    if min(left, right) < -1:
        raise NoMatch("a window size below -1")
    if left >= 0 or right >= 0:
        bounds = (left if left >= 0 else None, right if right >= 0 else None)
        terms.append(window(*bounds, past.fixed, past.expr, past.read))
    return terms


def _check_precision(node: ir.Node, dtype: str | None) -> None:
    """The softmax of a site is computed in f32 (f64 for f64), whatever finer the node asks for; nothing coarser is imitated."""
    asked = attr_int(node, "softmax_precision", 0)
    if not asked:
        return
    name = _PRECISION.get(asked)
    if name is None:
        raise NoMatch(f"softmax_precision {asked}")
    if (dtype in ("f32", "f64") and name in ("f16", "bf16")) or (dtype, name) == ("f64", "f32"):
        raise NoMatch(f"softmax_precision {name} rounds the scores of {dtype} operands")


def _minus_queries(row: tuple[Expr, TensorArg], Sq: Dim) -> tuple[ScoreExpr, tuple[Expr, TensorArg]]:
    return Apply("Sub", Tensor(0), Int(Sq) if isinstance(Sq, int) else SQ), row


def _mask_step(view: GraphView, mask: ir.Value, operands: Operands, dtype: str | None) -> Step | Term:
    """attn_mask as a step, or as a term where its last dim has to be padded with "masked" up to the keys' length."""
    dims, boolean = view.shape(mask), mask.dtype == ir.DataType.BOOL
    if dims is None:
        raise NoMatch("the rank of attn_mask is unknown")
    if not dims:
        raise NoMatch("attn_mask is a scalar")
    if dims[-1] == operands.Skv:
        return Select(mask, False, -math.inf) if boolean else AddTerm(mask)
    return padded_mask(view, mask, operands, -math.inf)


def padded_mask(view: GraphView, mask: ir.Value, operands: Operands, beyond: float) -> Term:
    """A mask whose last dim is not provably that of the keys: what it lacks is false, or `beyond` where it is added."""
    dims, boolean = view.shape(mask), mask.dtype == ir.DataType.BOOL
    shape = (*operands.batch, operands.Hq, operands.Sq, operands.Skv)
    if dims is None or not 1 <= len(dims) <= len(shape):
        raise NoMatch("a mask whose rank is unknown, or not one to four")
    fitted: list[Dim] = []
    for have, want in zip(dims[:-1], shape[len(shape) - len(dims) : -1], strict=True):
        if have is None or have not in (1, want):
            raise NoMatch(f"a mask of shape {list(dims)} does not provably broadcast to the score's {list(shape)}")
        fitted.append(have)
    if isinstance(dims[-1], int) and isinstance(operands.Skv, int):
        if dims[-1] > operands.Skv:
            raise NoMatch(f"a mask of {dims[-1]} keys for scores of {operands.Skv}")
        missing: Expr = ints(operands.Skv - dims[-1])
    else:
        missing = op("Sub", dim_of(canonical(operands.k), 2), dim_of(mask, len(dims) - 1))
    pads = concat(0, ints(*[0] * (2 * len(dims) - 1)), missing)
    if boolean:
        return Term(BoolMask((*fitted, operands.Skv)), (op("Pad", mask, pads, Const(np.asarray(False))),))
    element = DTYPES.get(mask.dtype or ir.DataType.UNDEFINED)
    if element is None or element == "f64":
        raise NoMatch("a short mask that is neither boolean nor f32, f16 or bf16")
    # Runtimes pad f32, but not every half type.
    wide: Expr = mask if element == "f32" else cast(mask, ir.DataType.FLOAT)
    return Term(AddMask((*fitted, operands.Skv)), (op("Pad", wide, pads, Const(np.asarray(beyond, np.float32))),))


def _heads(view: GraphView, node: ir.Node, values: tuple[ir.Value, ...], label: str, past: bool) -> Operands:
    """q, k, v with heads named: 4-D inputs are (B, H, S, D); 3-D ones (B, S, H * D) get their heads
    split off. Dims that the op's definition makes equal are taken as equal."""
    shapes = [view.shape(x) for x in values]
    if any(s is None for s in shapes):
        raise NoMatch("the rank of Q, K or V is unknown")
    q_shape, k_shape, v_shape = (s for s in shapes if s is not None)
    if not len(q_shape) == len(k_shape) == len(v_shape) or len(q_shape) not in (3, 4):
        raise NoMatch("Q, K and V are not all of rank 3 or all of rank 4")
    flat = len(q_shape) == 3
    length = 1 if flat else 2
    b = same("the batch dims", q_shape[0], k_shape[0], v_shape[0]) or f"{label}_b"
    Sq = q_shape[length] if q_shape[length] is not None else f"{label}_sq"
    Skv = same("the lengths of K and V", k_shape[length], v_shape[length]) or f"{label}_skv"
    assert Sq is not None
    if not flat:
        Hq, Hkv = q_shape[1], same("the heads of K and V", k_shape[1], v_shape[1])
        d, Dv = same("the head dims of Q and K", q_shape[3], k_shape[3]), v_shape[3]
        if not isinstance(d, int) or not isinstance(Dv, int):
            raise NoMatch("the head dim is not static")
        if Hq is None or Hkv is None:
            raise NoMatch("the number of heads is unknown")
        if past:
            plain = [OperandChoice(x, (0, 1, 2, 3), 1.0, h) for x, h in zip(values, (Hq, Hkv, Hkv), strict=True)]
            return Operands(plain[0], plain[1], plain[2], (b,), Hq, Hkv, Sq, Skv, d, Dv)
        names = ("b0", "h", "s", "d")
        sizes = ((b, Hq, Sq, d), (b, Hkv, Skv, d), (b, Hkv, Skv, Dv))
        read = [read_operand(view, x, names, s) for x, s in zip(values, sizes, strict=True)]
        chosen = choose_readings(read[0], read[1], read[2], Hq, node)
        return Operands(*chosen, (b,), Hq, chosen[1].heads, Sq, Skv, d, Dv)
    Hq, Hkv = attr_int(node, "q_num_heads", 0), attr_int(node, "kv_num_heads", 0)
    if Hq < 1 or Hkv < 1:
        raise NoMatch("3-D inputs without q_num_heads and kv_num_heads")
    wq, wk, wv = q_shape[2], k_shape[2], v_shape[2]
    D: int | None = None
    if isinstance(wq, int):
        D = wq // Hq
    elif isinstance(wk, int):
        D = wk // Hkv
    if D is None or not isinstance(wv, int):
        raise NoMatch("the widths of 3-D inputs are not static")
    Dv = wv // Hkv
    q, k, v = [
        OperandChoice(reshape(x, 0, 0, h, w), HEADS_BEHIND, 1.0, h)
        for x, h, w in zip(values, (Hq, Hkv, Hkv), (D, D, Dv), strict=True)
    ]
    width = Hq * Dv
    return Operands(
        q, k, v, (b,), Hq, Hkv, Sq, Skv, D, Dv, o_layout=HEADS_BEHIND, wrap=(lambda e: reshape(e, 0, 0, width),)
    )


def append(
    operands: Operands, past_k: Expr, past_v: Expr, length: Dim | None, total: Dim | None, label: str
) -> tuple[Operands, Past]:
    """K and V behind a past of `length`, which become the site's operands and the node's present outputs, of length `total`."""
    k, v = (
        append_rows(p, canonical(c), c.scale, c.heads)
        for p, c in zip((past_k, past_v), (operands.k, operands.v), strict=True)
    )
    if isinstance(length, int) and isinstance(operands.Skv, int):
        total = length + operands.Skv
    grown = replace(operands, k=k, v=v, Skv=total if total is not None else f"{label}_total")
    if isinstance(length, int):
        return grown, Past(length)
    if operands.Sq == operands.Skv:  # as many new keys as queries: the last query stands on the last key
        return grown, Past("end")
    return grown, Past(0, Tensor(0), (dim_of(past_k, 2), TensorArg((1,), "i64")))

"""The ONNX Attention op, opsets 23 to 25 (https://onnx.ai/onnx/operators/onnx__Attention.html)."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import onnx_ir as ir

from onnx_fa.graph_view import DTYPES, GraphView, attr_float, attr_int
from onnx_fa.match import (
    AddTerm,
    Call,
    Cap,
    Const,
    Expr,
    Match,
    NoMatch,
    OperandChoice,
    Operands,
    Scale,
    Select,
    Step,
    Term,
    build_match,
    common_reading,
)
from onnx_fa.patterns.mask import terms as mask_terms
from onnx_fa.patterns.operand import read_operand
from onnx_fa.spec import Causal, Dim, SlidingWindow, inverse


def attention(view: GraphView, node: ir.Node, label: str) -> Match | None:
    """The site of an Attention node; None for other nodes. Raises NoMatch for what is not expressed yet."""
    if node.op_type != "Attention" or node.domain not in ("", "ai.onnx"):
        return None
    inputs = [*node.inputs, *[None] * (7 - len(node.inputs))]
    q, k, v, mask, past_k, past_v, nonpad = inputs[:7]
    outputs = [*node.outputs, *[None] * (4 - len(node.outputs))]
    if q is None or k is None or v is None:
        raise NoMatch("Attention without Q, K or V")
    if nonpad is not None:
        raise NoMatch("nonpad_kv_seqlen (lengths per batch row) is not expressed yet")
    if outputs[3] is not None and (outputs[3].uses() or outputs[3].is_graph_output()):
        raise NoMatch("qk_matmul_output is used")
    if (past_k is None) != (past_v is None):
        raise NoMatch("past_key and past_value must come together")
    shapes = [view.shape(x) for x in (q, k, v)]
    if any(s is None or any(d is None for d in s) for s in shapes):
        raise NoMatch("a shape of Q, K or V is unknown")
    qs, ks, vs = (tuple(d for d in s if d is not None) for s in shapes if s is not None)
    operands, wrap = _heads(view, node, (q, k, v), (qs, ks, vs), past_k is not None)
    offset = 0
    presents: list[tuple[ir.Value, Expr]] = []
    if past_k is not None and past_v is not None:
        past, dims = view.shape(past_k), (past_k, past_v)
        if past is None or not isinstance(past[2], int) or not isinstance(operands.Skv, int):
            raise NoMatch("past_key of symbolic length")
        offset = past[2]
        operands = _append(operands, dims, offset)
    for out, choice in ((outputs[1], operands.k), (outputs[2], operands.v)):
        if out is not None and (out.uses() or out.is_graph_output()):
            presents.append((out, _canonical(choice)))
    scale = attr_float(node, "scale", 1.0 / math.sqrt(operands.D))
    cap = attr_float(node, "softcap", 0.0)
    shape = (*operands.batch, operands.Hq, operands.Sq, operands.Skv)
    steps: list[Step] = [Scale(scale)]
    if cap:
        steps.append(Cap(cap))
    if mask is not None:
        steps.append(_mask_step(view, mask, shape))
    extra: list[Term] = []
    if attr_int(node, "is_causal", 0):
        extra.append(Term(Causal(offset)))
    left, right = attr_int(node, "left_window_size", -1), attr_int(node, "right_window_size", -1)
    if left >= 0 or right >= 0:
        extra.append(Term(SlidingWindow(left if left >= 0 else None, right if right >= 0 else None, offset)))
    return build_match(
        view,
        mask_terms,
        name=label,
        op="Attention",
        dtype=DTYPES.get(node.outputs[0].dtype or q.dtype or ir.DataType.UNDEFINED),
        operands=operands,
        steps=steps,
        extra_terms=extra,
        guard="zero",  # the op defines the output of a fully masked row as zero
        output=node.outputs[0],
        anchor=node,
        wrap=wrap,
        presents=tuple(presents),
        form="attention",
    )


def _mask_step(view: GraphView, mask: ir.Value, shape: tuple[Dim, ...]) -> Step:
    dims = view.shape(mask)
    if dims is None or (dims and dims[-1] not in (shape[-1],) and not (dims[-1] == 1 and shape[-1] == 1)):
        # A shorter mask is padded with "masked", not broadcast.
        raise NoMatch(f"attn_mask's last dim is not provably the key length {shape[-1]}")
    return Select(mask, False, -math.inf) if mask.dtype == ir.DataType.BOOL else AddTerm(mask)


Wrap = tuple[Callable[[Expr], Expr], ...]


def _heads(
    view: GraphView, node: ir.Node, values: tuple[ir.Value, ...], shapes: tuple[tuple[Dim, ...], ...], past: bool
) -> tuple[Operands, Wrap]:
    """q, k, v with heads named: 4-D inputs are (B, H, S, D); 3-D ones (B, S, H * D) get their heads split off."""
    qs, ks, vs = shapes
    if len(qs) == 4:
        if ks[0] != qs[0] or vs[0] != qs[0]:
            raise NoMatch("the batch dims of Q, K and V are not provably equal")
        (b, hq, sq, d), hkv, skv, dv = qs, ks[1], ks[2], vs[3]
        if not isinstance(d, int) or not isinstance(dv, int):
            raise NoMatch("the head dim is not static")
        if past:
            plain = [OperandChoice(x, (0, 1, 2, 3), 1.0, h) for x, h in zip(values, (hq, hkv, hkv), strict=True)]
            return Operands(plain[0], plain[1], plain[2], (b,), hq, hkv, sq, skv, d, dv), ()
        names = ("b0", "h", "s", "d")
        sizes = ((b, hq, sq, d), (b, hkv, skv, d), (b, hkv, skv, dv))
        read = [read_operand(view, x, names, s) for x, s in zip(values, sizes, strict=True)]
        chosen = common_reading(read[0], read[1], read[2], hq, node)
        return Operands(*chosen, (b,), hq, chosen[1].heads, sq, skv, d, dv), ()
    hq, hkv = attr_int(node, "q_num_heads", 0), attr_int(node, "kv_num_heads", 0)
    (b, sq, wq), (_, skv, wk), (_, _, wv) = qs, ks, vs
    if not all(isinstance(w, int) for w in (wq, wk, wv)) or hq < 1 or hkv < 1:
        raise NoMatch("3-D inputs need q_num_heads, kv_num_heads and static widths")
    if ks[0] != b or vs[0] != b:
        raise NoMatch("the batch dims of Q, K and V are not provably equal")
    d, dv = int(wq) // hq, int(wv) // hkv
    layout = (0, 2, 1, 3)
    split = [
        OperandChoice(_reshape(x, (0, 0, h, w)), layout, 1.0, h)
        for x, h, w in zip(values, (hq, hkv, hkv), (d, d, dv), strict=True)
    ]
    merge: Wrap = (
        lambda e: Call("Transpose", (e,), (("perm", layout),)),
        lambda e: _reshape(e, (0, 0, hq * dv)),
    )
    return Operands(split[0], split[1], split[2], (b,), hq, hkv, sq, skv, d, dv), merge


def _reshape(value: Expr, shape: tuple[int, ...]) -> Call:
    return Call("Reshape", (value, Const(np.asarray(shape, np.int64))))


def _canonical(choice: OperandChoice) -> Expr:
    """(B, H, S, D) whatever the operand's layout."""
    perm = inverse(choice.layout)
    return choice.value if perm == (0, 1, 2, 3) else Call("Transpose", (choice.value,), (("perm", perm),))


def _append(o: Operands, past: tuple[ir.Value, ir.Value], length: int) -> Operands:
    """K and V behind their past, which becomes the site's operand and the node's present outputs."""
    k, v = (
        OperandChoice(Call("Concat", (p, _canonical(c)), (("axis", 2),)), (0, 1, 2, 3), c.scale, c.heads)
        for p, c in zip(past, (o.k, o.v), strict=True)
    )
    assert isinstance(o.Skv, int)
    return Operands(o.q, k, v, o.batch, o.Hq, o.Hkv, o.Sq, o.Skv + length, o.D, o.Dv)

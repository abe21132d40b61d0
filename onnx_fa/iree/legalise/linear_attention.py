"""LinearAttention of ONNX (opset 27) and of onnxruntime: a state of each head that every token decays, corrects and reads.

S = exp(g[t]) * S + k[t] (beta[t] * (v[t] - (exp(g[t]) * S)^T k[t]))^T, and o[t] = scale * S^T q[t]; without a decay, or without
the delta, that factor or that difference is missing (Operators.md of ONNX, ContribOperators.md of onnxruntime). The state is f32,
as onnxruntime's is, whatever the type of the tokens.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import onnx
from onnx import TensorProto, helper

from onnx_fa.errors import ModelError
from onnx_fa.graph.site_op import DOMAIN
from onnx_fa.iree.legalise.writer import GraphWriter, attr_of
from onnx_fa.spec.linear_attention import Beta, Decay, LinearAttentionSpec
from onnx_fa.spec.terms import Dim

F32 = TensorProto.FLOAT
Size = int | str | None
LINEAR_ATTENTION_SITE = f"{DOMAIN}.LinearAttentionSite"
"""Inputs and outputs as the operands and results of a LinearAttentionSpec; attributes as its fields."""


@dataclass(frozen=True)
class LinearAttention:
    """A node: its tokens (B, T, heads times width), the rule, and its sizes. `query_heads` and `key_heads` may be fewer than the
    heads that have a state, or `query_heads` a multiple of them."""

    hint: str
    B: Size
    T: Size
    query_heads: int
    key_heads: int
    heads: int
    D: int
    Dv: int
    rule: str
    scale: float
    decay: Decay

    @property
    def corrects(self) -> bool:
        return self.rule.endswith("delta")

    @property
    def group(self) -> int:
        """The queries of each state."""
        return max(1, self.query_heads // self.heads)


def read_linear_attention(g: GraphWriter, node: onnx.NodeProto) -> LinearAttention:
    """What a node computes. Raises ModelError for sizes that are unknown or do not go together, and states of several tokens."""
    hint = node.name or "LinearAttention"
    query, key, value = (g.shape(name) for name in node.input[:3])
    decay, beta = ([*node.input, "", "", ""][n] for n in (4, 5))
    Hq, H = attr_of(node, "q_num_heads", 0), attr_of(node, "kv_num_heads", 0)
    rule = attr_of(node, "update_rule", b"gated_delta").decode()
    widths = [shape[2] if shape and len(shape) == 3 else None for shape in (query, key, value)]
    if attr_of(node, "state_window", 0):
        raise ModelError(f"node {hint!r}: LinearAttention with a state_window is not supported; export it without")
    if rule not in ("linear", "gated", "delta", "gated_delta"):
        raise ModelError(f"node {hint!r}: LinearAttention with the update_rule {rule!r}, which there is not")
    if not all(isinstance(w, int) for w in widths) or query is None or min(Hq, H) < 1:
        raise ModelError(
            f"node {hint!r}: LinearAttention of unknown widths; run onnx.shape_inference before, or name its shapes"
        )
    wq, wk, wv = (int(w) for w in widths if isinstance(w, int))
    D = wq // Hq
    if wq % Hq or not D or wk % D or wv % H or (wk // D and H % (wk // D)) or (Hq % H and H % Hq):
        raise ModelError(
            f"node {hint!r}: LinearAttention with {Hq} and {H} heads, which do not divide its {wq}, {wk} and {wv} columns"
        )
    if (rule.startswith("gated") and not decay) or (rule.endswith("delta") and not beta):
        raise ModelError(f"node {hint!r}: LinearAttention with the update_rule {rule!r} lacks its decay or its beta")
    whose: Decay = ""
    if rule.startswith("gated"):
        whose = "key" if (g.shape(decay) or [H])[-1] == H * D != H else "head"
    scale = attr_of(node, "scale", 0.0) or D**-0.5
    return LinearAttention(hint, query[0], query[1], Hq, wk // D, H, D, wv // H, rule, scale, whose)


def linear_attention(g: GraphWriter, node: onnx.NodeProto) -> bool:
    """A node for which the importer calls a function (kernels/linear_attention.py), of f32 and with an axis of heads. Raises
    ModelError where its sizes are unknown."""
    site = read_linear_attention(g, node)
    hint, H = site.hint, site.heads
    inputs = [*node.input, "", "", ""]

    def laid(name: str, dims: list[int]) -> str:
        """A tensor of tokens in f32 with these dims behind them."""
        return g.reshape(g.cast(name, g.kind(name), F32, hint), [0, 0, *dims], hint)

    operands = [
        laid(inputs[0], [min(site.query_heads, H), site.group, site.D]),
        laid(inputs[1], [site.key_heads, site.D]),
        laid(inputs[2], [H, site.Dv]),
        _first_state(g, site, node),
    ]
    beta: Beta = ""
    if site.decay:
        operands.append(g.add("Exp", [laid(inputs[4], [H, site.D if site.decay == "key" else 1])], hint))
    if site.corrects:
        shape = g.shape(inputs[5])
        beta = "head" if shape and shape[-1] == H else "token"
        operands.append(g.cast(inputs[5], g.kind(inputs[5]), F32, hint))
    read = g.typed(g.fresh(hint), F32, [site.B, site.T, H, site.group, site.Dv])
    state = g.typed(g.fresh(hint), F32, [site.B, H, site.D, site.Dv])
    g.nodes.append(
        helper.make_node(
            "LinearAttentionSite",
            operands,
            [read, state],
            hint,
            domain=DOMAIN,
            scale=site.scale,
            decay=site.decay,
            beta=beta,
        )
    )
    kind = g.kind(node.input[0])
    flat = g.reshape(read, [0, 0, H * site.group * site.Dv], hint)
    g.cast(flat, F32, kind, hint, out=node.output[0])
    if len(node.output) > 1 and node.output[1]:
        g.cast(state, F32, g.kind(node.output[1]) or g.kind(inputs[3]) or kind, hint, out=node.output[1])
    return True


def linear_attention_spec_of(shapes: Sequence[tuple[Dim, ...]], attributes: Mapping[str, Any]) -> LinearAttentionSpec:
    """The spec of a LinearAttentionSite whose operands have these shapes."""
    (B, T, *queries), Hk, states = shapes[0], shapes[1][2], shapes[3][1:]
    Hq, G, D, H, _, Dv = (d for d in (*queries, *states) if isinstance(d, int))
    assert isinstance(Hk, int)
    decay, beta = (attributes[name].decode() for name in ("decay", "beta"))
    return LinearAttentionSpec(B, T, Hq, Hk, H, G, D, Dv, attributes["scale"], decay, beta)


def _first_state(g: GraphWriter, site: LinearAttention, node: onnx.NodeProto) -> str:
    """The state before the first token, (B, H, D, Dv)."""
    hint = site.hint
    past = node.input[3] if len(node.input) > 3 else ""
    if past:
        return g.cast(past, g.kind(past), F32, hint)
    batch = g.add("Shape", [node.input[0]], hint, start=0, end=1)
    sizes = g.add("Concat", [batch, g.ints([site.heads, site.D, site.Dv], hint)], hint, axis=0)
    return g.add("ConstantOfShape", [sizes], hint)

"""Ops that are a whole attention: the spec of each, the nodes that a rule passes over, and the options that it refuses."""

from __future__ import annotations

import json

import onnx_ir as ir
import pytest

from onnx_fa.match.misses import NoMatch
from onnx_fa.match.types import Match, Term
from onnx_fa.patterns.ops import blocked, contrib, flex, standard
from onnx_fa.spec.attention import AttentionSpec
from onnx_fa.spec.terms import term_tensors
from tests.support.text_graphs import Constant, TextGraph, describe_term

QKV = "float[2,6,5,4] q, float[2,3,7,4] k, float[2,3,7,8] v, float[5,7] bias, bool[5,7] keep, float[2,3,2,4] pk, float[2,3,2,8] pv"
FLAT = "float[2,5,24] q, float[2,5,24] k, float[2,5,24] v, int32[2] lengths, float[6,5,5] bias, int32[1] total, float[72] added"


def match(
    rule: object, inputs: str, body: str, node: str = "y", opset: int = 24, **constants: Constant
) -> Match | None:
    graph = TextGraph(inputs, body, outputs=node, opset=opset, **constants)
    assert callable(rule)
    found: Match | None = rule(graph.view, graph.node(node), "site")
    return found


def describe(found: Match | None) -> str:
    """Heads, lengths, dims, scale, modifications and terms."""
    if found is None:
        return "none"
    spec = found.spec
    dims = f"Hq{spec.Hq} Hkv{spec.Hkv} Sq{spec.Sq} Skv{spec.Skv} D{spec.D} Dv{spec.Dv} scale {spec.scale:.3g}"
    said = [dims, *(f"cap {m.cap:g}" for m in spec.mods)]
    operands = iter(found.operands[3:])
    said += [describe_term(Term(m, tuple(next(operands) for _ in term_tensors(m)))) for m in spec.masks]
    said += ["sink"] if spec.sink is not None else []
    return ", ".join([*said, spec.empty_row])


@pytest.mark.parametrize(
    ("inputs", "body", "said"),
    [
        (QKV, "y = Attention(q, k, v)", "Hq6 Hkv3 Sq5 Skv7 D4 Dv8 scale 0.5, zero"),
        (
            QKV,
            "y = Attention <scale = 0.25, softcap = 3.0> (q, k, v)",
            "Hq6 Hkv3 Sq5 Skv7 D4 Dv8 scale 0.25, cap 3, zero",
        ),
        (
            QKV,
            "y = Attention <is_causal = 1> (q, k, v)",
            "Hq6 Hkv3 Sq5 Skv7 D4 Dv8 scale 0.5, causal 0 else -inf, zero",
        ),
        (QKV, "y = Attention(q, k, v, bias)", "Hq6 Hkv3 Sq5 Skv7 D4 Dv8 scale 0.5, add[5, 7] f32 * 1, bias, zero"),
        (QKV, "y = Attention(q, k, v, keep)", "Hq6 Hkv3 Sq5 Skv7 D4 Dv8 scale 0.5, keep[5, 7] else -inf, keep, zero"),
        (
            QKV,
            "y = Attention <is_causal = 1> (q, k, v, , pk, pv)",
            "Hq6 Hkv3 Sq5 Skv9 D4 Dv8 scale 0.5, causal 2 else -inf, zero",
        ),
        (
            FLAT,
            "y = Attention <q_num_heads = 6, kv_num_heads = 6> (q, k, v)",
            "Hq6 Hkv6 Sq5 Skv5 D4 Dv4 scale 0.5, zero",
        ),
        (QKV, "s = MatMul(q, bias) y = Softmax(s)", "none"),
        (QKV, "y = my.Attention(q, k, v)", "none"),
    ],
)
def test_the_standard_op(inputs: str, body: str, said: str) -> None:
    assert describe(match(standard.match_attention, inputs, body)) == said


@pytest.mark.parametrize(
    ("inputs", "body", "why"),
    [
        (QKV, "y = Attention(q, k, v, , pk)", "must come together"),
        (QKV, "y = Attention <is_causal = 2> (q, k, v)", "is_causal 2"),
        (QKV, "y = Attention <softmax_precision = 10> (q, k, v)", "softmax_precision f16 rounds"),
        (FLAT, "y = Attention(q, k, v)", "without q_num_heads"),
        (FLAT, "y = Attention <q_num_heads = 6, kv_num_heads = 6> (q, k, v, bias)", None),
    ],
)
def test_options_of_the_standard_op(inputs: str, body: str, why: str | None) -> None:
    if why is None:
        assert "add[6, 5, 5]" in describe(match(standard.match_attention, inputs, body))
        return
    with pytest.raises(NoMatch, match=why):
        match(standard.match_attention, inputs, body)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("MultiHeadAttention <num_heads = 6> (q, k, v)", "Hq6 Hkv6 Sq5 Skv5 D4 Dv4 scale 0.5, nan"),
        (
            "MultiHeadAttention <num_heads = 6, unidirectional = 1> (q, k, v)",
            "Hq6 Hkv6 Sq5 Skv5 D4 Dv4 scale 0.5, causal 0 else -inf, nan",
        ),
        ("MultiHeadAttention <num_heads = 6> (q, k, v, added)", "Hq6 Hkv6 Sq5 Skv5 D4 Dv4 scale 0.5, nan"),
        (
            "MultiHeadAttention <num_heads = 6> (q, k, v, , , bias)",
            "Hq6 Hkv6 Sq5 Skv5 D4 Dv4 scale 0.5, add[6, 5, 5] f32 * 1, bias, nan",
        ),
        (
            "GroupQueryAttention <num_heads = 6, kv_num_heads = 6> (q, k, v, , , lengths, total)",
            "Hq6 Hkv6 Sq5 Skv5 D4 Dv4 scale 0.5, causal 0 else -inf, lengths",
        ),
        ("FusedMatMul(q, k)", "none"),
    ],
)
def test_ops_of_onnxruntime(body: str, said: str) -> None:
    found = describe(match(contrib.match_contrib, FLAT, f"y = com.microsoft.{body}", opset=18))
    assert found.startswith(said)


@pytest.mark.parametrize(
    ("body", "why", "opset"),
    [
        ("MultiHeadAttention <num_heads = 6> (q)", "packed QKV", 18),
        ("MultiHeadAttention <num_heads = 6> (q, k, v, lengths)", "one vector of 72 numbers", 18),
        ("MultiHeadAttention <num_heads = 6> (q, k, v)", "12 is needed", 11),
        ("SparseAttention(q)", "block-sparse", 18),
        ("GroupQueryAttention <num_heads = 6, kv_num_heads = 6> (q, k, v)", "without its query or lengths", 18),
        (
            "GroupQueryAttention <num_heads = 6, kv_num_heads = 6, do_rotary = 1> (q, k, v, , , lengths, total)",
            "rotary embedding without its tables",
            18,
        ),
    ],
)
def test_options_of_onnxruntimes_ops(body: str, why: str, opset: int) -> None:
    with pytest.raises(NoMatch, match=why):
        match(contrib.match_contrib, FLAT, f"y = com.microsoft.{body}", opset=opset)


MOD = "float[2,6,5,7] score"


@pytest.mark.parametrize(
    ("score_mod", "said"),
    [
        (None, "Hq6 Hkv3 Sq5 Skv7 D4 Dv8 scale 0.5, nan"),
        ("c = Constant <value_float = 2.0> () out = Mul(score, c)", "Hq6 Hkv3 Sq5 Skv7 D4 Dv8 scale 1, nan"),
        ("out = Tanh(score)", "Hq6 Hkv3 Sq5 Skv7 D4 Dv8 scale 0.5, score_mod: tanh(score), nan"),
        ("out = Softmax(score)", "is not an op of score expressions"),
    ],
)
def test_flex_attention(score_mod: str | None, said: str) -> None:
    attribute = (
        "" if score_mod is None else f"<score_mod: graph = mod ({MOD}) => (float[2,6,5,7] out) {{ {score_mod} }}>"
    )
    body = f"y = ai.onnx.preview.FlexAttention {attribute} (q, k, v)"
    if said.startswith("Hq"):
        assert describe(match(flex.match_flex_attention, QKV, body)) == said
        return
    with pytest.raises(NoMatch, match=said):
        match(flex.match_flex_attention, QKV, body)


def test_flex_attention_alone() -> None:
    assert match(flex.match_flex_attention, QKV, "y = Attention(q, k, v)") is None


def test_a_loop_that_the_rewriter_wrote() -> None:
    graph = TextGraph("int64 n, bool c", "y = Identity(n)")
    loop = ir.Node("", "Loop", [graph.value("n"), graph.value("c")], name="loop")
    assert blocked.match_blocked(graph.view, loop, "site") is None
    spec = AttentionSpec("f32", Hq=2, Hkv=1, Sq=3, Skv=4, D=8, Dv=8)
    loop.metadata_props[blocked.SPEC_KEY] = json.dumps(spec.to_dict())
    found = blocked.match_blocked(graph.view, loop, "site")
    assert found is not None and found.spec == spec and found.keep
    loop.metadata_props[blocked.SPEC_KEY] = "{"
    with pytest.raises(NoMatch, match="cannot be read"):
        blocked.match_blocked(graph.view, loop, "site")

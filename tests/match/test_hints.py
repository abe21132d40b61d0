"""Reasons of misses say what stands in the way, and what they advise helps."""

from __future__ import annotations

import onnx
import pytest
from onnx import TensorProto as T
from onnx import helper

from onnx_fa import explain
from onnx_fa.graph.fixed_inputs import fix_inputs
from onnx_fa.graph.free_dims import fix_dims
from onnx_fa.match.hints import say_sizes
from onnx_fa.spec.terms import Dim
from tests.support.text_graphs import Constant, TextGraph

OF = " (of compile, import and verify) "


def reason(inputs: str, body: str, **constants: Constant) -> str:
    (miss,) = explain(TextGraph(inputs, body, "o", **constants).proto).misses
    return miss.reason


@pytest.mark.parametrize(
    ("dims", "hint"),
    [
        (("b", "c"), f"; --dim 'b=N' --dim 'c=N'{OF}settles it"),
        (("2*c - 1", 4), f"; --dim 'c=N'{OF}settles it"),
        ((None, "b"), f"; --dim 'b=N' --dim 'c=N' --dim 'past=N' --dim 's=N' ...{OF}may settle it"),
        ((3, 4), ""),
    ],
)
def test_the_sizes_that_turn_dims_into_numbers(dims: tuple[Dim | None, ...], hint: str) -> None:
    view = TextGraph("float[b,c] x, float[past,s,t] y", "o = Identity(x)").view
    assert say_sizes(view, dims) == hint


def test_the_inputs_leave_no_dim_free() -> None:
    assert say_sizes(TextGraph("float[2,3] x", "o = Identity(x)").view, (None, "n")) == ""


def test_sizes_that_are_advised_settle_it() -> None:
    dims = [["a", 4, 8, 8], [None, 4, 8, 8], ["a", 4, 8, 8]]
    inputs = [helper.make_tensor_value_info(n, T.FLOAT, d) for n, d in zip("qkv", dims, strict=True)]
    nodes = [
        helper.make_node("MatMul", ["q", "k"], ["s"]),
        helper.make_node("Softmax", ["s"], ["p"], axis=-1),
        helper.make_node("MatMul", ["p", "v"], ["o"]),
    ]
    out = helper.make_tensor_value_info("o", T.FLOAT, [None, 4, 8, 8])
    opset = [helper.make_opsetid("", 18)]
    model = helper.make_model(helper.make_graph(nodes, "g", inputs, [out]), opset_imports=opset, ir_version=10)
    (miss,) = explain(model).misses
    assert f"are not provably equal; --dim 'a=N' --dim 'k.0=N'{OF}may settle it" in miss.reason
    assert len(explain(fix_dims(model, {"a": 2, "k.0": 2})).sites) == 1


BRANCHES = """bias = If (c) <then_branch = g () => (a) { a = Identity(wide) }, else_branch = h () => (e) { e = Identity(flat) }>
    qk = MatMul(q, k) s = Add(qk, bias) p = Softmax <axis = -1> (s) o = MatMul(p, v)"""
QKV = "float[2,4,8,8] q, float[2,4,8,8] k, float[2,4,8,8] v"


def test_an_if_that_hides_a_rank() -> None:
    inputs = f"bool c, float[2,4,8,8] wide, float[8] flat, {QKV}"
    graph = TextGraph(inputs, BRANCHES, "o")
    (miss,) = explain(graph.proto).misses
    assert "the rank of" in miss.reason and "If:bias chooses at run time between branches" in miss.reason
    assert "--set c=1 (or 0) takes one of its branches" in miss.reason
    for choice in (0, 1):
        assert len(explain(fix_inputs(graph.proto, {"c": choice})).sites) == 1


def test_an_if_whose_condition_is_computed() -> None:
    inputs = f"int64[n] m, float[2,4,8,8] wide, float[8] flat, {QKV}"
    graph = TextGraph(inputs, "t = Size(m) c = Equal(t, one) " + BRANCHES, "o", one=1)
    (miss,) = explain(graph.proto).misses
    assert "If:bias" in miss.reason and "--set" not in miss.reason
    assert "a shape for 'bias' in the file's value_info tells it" in miss.reason
    told = onnx.ModelProto.FromString(graph.proto.SerializeToString())
    told.graph.value_info.append(helper.make_tensor_value_info("bias", T.FLOAT, [2, 4, 8, 8]))
    assert len(explain(told).sites) == 1


SCORES = "qk = MatMul(q, k) p = Softmax <axis = -1> (qk) "


@pytest.mark.parametrize(
    ("inputs", "body", "said"),
    [
        (
            "float[2,4,8,8] q, float[2,4,8,8] k, float[8] v",
            "o = MatMul(p, v)",
            "are multiplied by a vector [8], not by V",
        ),
        ("float[6,8] q, float[8,9] k, float[9,5] v, float[5] c", "o = Gemm(p, v, c)", "a Gemm that adds its C"),
        (
            "float[2,4,8,8] q, float[2,4,8,m] k, float[2,4,n,8] v",
            'o = Einsum <equation = "bhqk,bhkd->bhqd"> (p, v)',
            f"over keys provably as many; --dim 'm=N' --dim 'n=N'{OF}settles it",
        ),
        (QKV, "o = Sigmoid(p)", "the softmax result feeds Sigmoid, not a matmul with V"),
    ],
)
def test_what_reads_the_probabilities_is_no_product_with_v(inputs: str, body: str, said: str) -> None:
    assert said in reason(inputs, SCORES + body)


def test_operands_that_are_made_of_the_scores() -> None:
    body = """s = MatMul(q, k) top, at = TopK <axis = -1> (s, three) least = ReduceMin(top, last)
        below = Less(s, least) m = Where(below, low, s) p = Softmax <axis = -1> (m) o = MatMul(p, v)"""
    said = reason(QKV, body, three=[3], last=[-1], low=-1e9)
    made = "by TopK, ReduceMin, Less (a top-k threshold)"
    assert said.startswith(f"a Where before the softmax reads what is itself computed from the scores, {made}")
    body = """s = MatMul(q, k) mean = ReduceMean(s, last) c = Sub(s, mean) e = Mul(c, c) p = Softmax <axis = -1> (e)
        o = MatMul(p, v)"""
    said = reason(QKV, body, last=[-1])
    assert "computed from the scores, by " in said and "top-k" not in said


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (
            "e = Mul(qu, ku) s = ReduceSum <keepdims = 0> (e, last)",
            "a MatMul or an Einsum in its place would be read as",
        ),
        (
            "a = Add(qu, ku) t = Tanh(a) c = Cast <to = 1> (t) e = Mul(c, w) s = ReduceSum <keepdims = 0> (e, last)",
            "sums of Tanh (additive attention)",
        ),
        (
            "e = Add(qu, ku) s = ReduceSum <keepdims = 0> (e, last)",
            "ReduceSum between the softmax and a matmul of Q and K",
        ),
    ],
)
def test_scores_that_are_a_sum(body: str, said: str) -> None:
    made = f"qu = Unsqueeze(q, three) ku = Unsqueeze(k, two) {body} p = Softmax <axis = -1> (s) o = MatMul(p, v)"
    assert said in reason(f"{QKV}, float[8] w", made, two=[2], three=[3], last=[-1])


TWO = "s = MatMul(q, k) p1 = Softmax <axis = -1> (s) p2 = Softmax <axis = -1> (t) both = Add(p1, p2) "


@pytest.mark.parametrize(
    ("inputs", "body", "said"),
    [
        (
            "float[2,4,8,8] k2",
            f"t = MatMul(q, k2) {TWO} total = ReduceSum(both, last) p = Div(both, total) o = MatMul(p, v)",
            "the sum of two softmaxes is read by ReduceSum, Div, not by one product with V",
        ),
        (
            "float[2,4,8,8] t",
            TWO + "o = MatMul(both, v)",
            "V is multiplied by the sum of two softmaxes, of which Softmax:p2 is no attention by itself: the score comes",
        ),
    ],
)
def test_a_sum_of_softmaxes_that_cannot_be_parted(inputs: str, body: str, said: str) -> None:
    """It is no differential attention, and what stands in the way is named."""
    misses = explain(TextGraph(f"{QKV}, {inputs}", body, "o", last=[-1]).proto).misses
    assert len(misses) == 2 and all(said in miss.reason for miss in misses), misses

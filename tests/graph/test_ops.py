"""What a node is follows from its operator and its domain together: a model's own `my.Identity` is no Identity."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import helper as h

import onnx_fa
from onnx_fa.errors import ModelError
from onnx_fa.forms.rewrite import explain, rewrite
from onnx_fa.graph.ops import op_of
from onnx_fa.patterns import __file__ as patterns
from tests.match.test_soundness import Site
from tests.support.ort_run import assert_same, run

SOURCES = sorted(p for f in (onnx_fa.__file__, patterns) for p in Path(str(f)).parent.rglob("*.py"))
HELPER = Path(str(onnx_fa.__file__)).parent / "graph" / "ops.py"


def test_a_foreign_op_is_not_the_standard_one_of_that_name() -> None:
    kinds = [("", "MatMul"), ("ai.onnx", "MatMul"), ("my", "MatMul"), ("com.microsoft", "FusedMatMul")]
    want = ["MatMul", "MatMul", "my.MatMul", "com.microsoft.FusedMatMul"]
    assert [op_of(h.make_node(name, [], [], domain=domain)) for domain, name in kinds] == want
    assert [op_of(ir.Node(domain, name, [])) for domain, name in kinds] == want
    assert op_of(ir.Node("my", "Relu", [], overload="2")) == "my.Relu:2"


def _bare(tree: ast.AST) -> Iterator[int]:
    """Lines that read `op_type` for more than a text, without the domain in the same call or tuple."""
    parents = {child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}
    for node in ast.walk(tree):
        if not isinstance(node, ast.Attribute) or node.attr != "op_type" or isinstance(node.ctx, ast.Store):
            continue
        above: ast.AST = parents[node]
        names = isinstance(above, ast.FormattedValue)
        names |= isinstance(above, ast.BoolOp) and "name" in ast.unparse(above.values[0])
        if isinstance(above, ast.keyword):
            above = parents[above]
        whole = isinstance(above, ast.Tuple | ast.Call) and any(
            isinstance(x, ast.Attribute) and x.attr == "domain" for x in ast.walk(above)
        )
        if not names and not whole:
            yield node.lineno


def test_nothing_but_the_helper_asks_for_an_op_without_its_domain() -> None:
    assert len(SOURCES) > 100
    texts = {p: text for p in SOURCES if p != HELPER and "op_type" in (text := p.read_text())}
    found = {p: list(_bare(ast.parse(text))) for p, text in texts.items()}
    assert [f"{p.name}:{line}" for p, lines in found.items() for line in lines] == []


@pytest.mark.parametrize(
    "text", ["n.op_type == 'Add'", "n.op_type in x", "table.get(n.op_type)", "k = n.op_type", "f(n.op_type, 'domain')"]
)
def test_the_search_finds_what_it_is_for(text: str) -> None:
    assert list(_bare(ast.parse(text))) == [1]


def _deferred() -> onnx.ModelProto:
    """((e * mask) @ V + 0) / sum(e * mask), with a clamp on the sum: a node of many kinds, each read by name somewhere."""
    g = Site()
    s = g.op("Mul", g.score(), g.const(0.5))
    s = g.op("Where", g.input("m", [1, 1, 6, 8], onnx.TensorProto.BOOL), s, g.const(-1e9))
    e = g.op("Exp", g.op("Sub", s, g.op("ReduceMax", s, g.i([-1]), keepdims=1)))
    total = g.op("ReduceSum", e, g.i([-1]), keepdims=1)
    total = g.op("Identity", g.op("Max", total, g.const(1e-30)))
    g.nodes.append(h.make_node("Div", [g.op("Identity", g.op("MatMul", e, g.v)), total], ["o"]))
    return g.model({"o": ([2, 3, 6, 4], onnx.TensorProto.FLOAT)})


def _softmax() -> onnx.ModelProto:
    """A causal mask counted out, a cap, a softmax with a guard against NaN, all as nodes of their own."""
    g = Site()
    keep = g.op("LessOrEqual", g.positions(8, 0), g.op("Add", g.positions(6, 1), g.i(1)))
    s = g.op("Mul", g.op("Tanh", g.op("Div", g.score(), g.const(3.0))), g.const(3.0))
    p = g.op("Softmax", g.op("Cast", g.keep(keep, g.op("Neg", s)), to=1), axis=-1)
    return g.finish(g.op("Where", g.op("IsNaN", p), g.const(0.0), p))


def _foreign(model: onnx.ModelProto, at: int) -> onnx.ModelProto | None:
    """The model with a function `my.X` in place of node `at`, an X, that gives something else."""
    made = onnx.ModelProto()
    made.CopyFrom(model)
    node = made.graph.node[at]
    types = {v.name: v.type.tensor_type.elem_type for v in onnx.shape_inference.infer_shapes(made).graph.value_info}
    other = {1: ("Mul", ["x", "x"]), 7: ("Neg", ["x"]), 9: ("Not", ["x"])}.get(types.get(node.output[0], 1))
    if other is None:
        return None
    inputs = [f"i{i}" for i in range(len(node.input))]
    same = onnx.NodeProto()
    same.CopyFrom(node)
    same.input[:], same.output[:] = inputs, ["x"]
    body = [same, h.make_node(*other, ["y"])]
    made.functions.append(h.make_function("my", node.op_type, inputs, ["y"], body, made.opset_import))
    call = h.make_node(node.op_type, list(node.input), list(node.output), domain="my")
    node.CopyFrom(call)
    made.opset_import.append(h.make_opsetid("my", 1))
    return made


@pytest.mark.parametrize("build", [_deferred, _softmax])
def test_functions_named_like_standard_ops_keep_their_meaning(build: object) -> None:
    assert callable(build)
    model: onnx.ModelProto = build()
    assert explain(model).sites
    rng = np.random.default_rng(0)
    shapes = {i.name: [d.dim_value for d in i.type.tensor_type.shape.dim] for i in model.graph.input}
    feeds = {name: np.asarray(rng.standard_normal(shape), np.float32) for name, shape in shapes.items()}
    if "m" in feeds:
        feeds["m"] = feeds["m"] > 0
    changed = [made for at in range(len(model.graph.node)) if (made := _foreign(model, at)) is not None]
    assert len(changed) >= 10
    for made in changed:
        new, _ = rewrite(made)
        assert_same(run(made, feeds), run(new, feeds), 2e-5)


def test_a_function_that_redefines_a_standard_op_is_refused() -> None:
    """onnxruntime ignores such a function, other runtimes call it."""
    model = _softmax()
    body = [h.make_node("Mul", ["x", "x"], ["y"])]
    model.functions.append(h.make_function("", "Tanh", ["x"], ["y"], body, model.opset_import))
    with pytest.raises(ModelError, match=r"function 'Tanh' .* rename"):
        rewrite(model)

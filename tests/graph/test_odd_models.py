"""Models that are valid but unusual: old opsets, inputs with defaults, calls with outputs that nobody reads."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto as T
from onnx import helper as h

from onnx_fa.errors import ModelError
from onnx_fa.forms.replace import Form
from onnx_fa.forms.rewrite import FORMS, explain, rewrite
from tests.support.ort_run import assert_same, run
from tests.support.spellings import Graph, Spelling, build, feeds

B, H, S, D = 2, 4, 5, 8
HIDDEN = H * D


def random(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


def attention(g: Graph, q: str, k: str, v: str, mask: str | None = None) -> str:
    score = g.op("MatMul", q, g.op("Transpose", k, perm=[0, 1, 3, 2]))
    return g.op("MatMul", g.op("Softmax", g.op("Add", score, mask) if mask else score, axis=3), v)


def with_heads(g: Graph, x: str, shape: str) -> str:
    return g.op("Transpose", g.op("Reshape", x, shape), perm=[0, 2, 1, 3])


@pytest.mark.parametrize("opset", [7, 9, 10])
@pytest.mark.parametrize("form", FORMS)
def test_a_shape_cut_into_its_sizes_in_an_old_opset(opset: int, form: Form) -> None:
    g = Graph(opset)
    x = g.input("x", ["B", "S", HIDDEN])

    def size(shape: str, i: int) -> str:
        if opset < 10:
            return g.op("Slice", shape, starts=[i], ends=[i + 1])
        return g.op("Slice", shape, g.const([i], np.int64), g.const([i + 1], np.int64))

    def heads() -> str:
        y = g.op("MatMul", x, g.const(random(HIDDEN, HIDDEN)))
        shape = g.op("Shape", y)
        rest = g.const([H, D], np.int64)
        return with_heads(g, y, g.op("Concat", size(shape, 0), size(shape, 1), rest, axis=0))

    model = g.model({attention(g, heads(), heads(), heads()): (["B", H, "S", D], T.FLOAT)})
    new, report = rewrite(model, form)
    onnx.checker.check_model(new, full_check=True)
    inputs = {"x": random(B, S, HIDDEN)}
    assert_same(run(model, inputs), run(new, inputs))
    if form == "decomposed":
        assert len(report.sites) == 1 and not report.misses
    else:
        assert not report.sites and report.misses[0].reason.startswith(f"form {form}: ")


def test_a_mask_of_positions_that_the_opset_cannot_write_is_refused() -> None:
    g = Graph(10)
    q, k, v = (g.input(n, [B, H, S, D]) for n in "qkv")
    causal = g.const(np.triu(np.full((S, S), -np.inf), 1))
    model = g.model({attention(g, q, k, v, causal): ([B, H, S, D], T.FLOAT)})
    assert len(explain(model).sites) == 1
    new, report = rewrite(model)
    assert not report.sites and "opset 10 has no" in report.misses[0].reason
    onnx.checker.check_model(new, full_check=True)
    inputs = {n: random(B, H, S, D) for n in "qkv"}
    assert_same(run(model, inputs), run(new, inputs))


@pytest.mark.parametrize(("ir_version", "sites"), [(8, 0), (3, 1)])
def test_a_default_of_an_input_says_nothing_about_shapes(ir_version: int, sites: int) -> None:
    # Before IR version 4 every initializer is an input too, and runtimes do not let it be replaced.
    g = Graph(8)
    x = g.input("x", ["B", "S", HIDDEN])
    shape = g.const([B, S, H, D], np.int64)
    heads = [with_heads(g, x, shape) for _ in range(3)]
    g.inputs.append(h.make_tensor_value_info(shape, T.INT64, [4]))
    model = g.model({attention(g, *heads): (["a", "b", "c", "d"], T.FLOAT)})
    model.ir_version = ir_version
    for form in ("decomposed", "blocked"):
        new, report = rewrite(model, form)
        assert len(report.sites) == sites * (form == "decomposed")
        feeds = [{"x": random(B, S, HIDDEN)}]
        if not sites:
            feeds.append({"x": random(1, 7, HIDDEN), shape: np.array([1, 7, H, D])})
        for inputs in feeds:
            assert_same(run(model, inputs), run(new, inputs))


@pytest.mark.parametrize("outputs", [["o", ""], ["", "o"]])
def test_a_call_with_an_output_that_nobody_reads(outputs: list[str]) -> None:
    names = [o or "present" for o in outputs]
    nodes = [
        h.make_node("Neg", ["k"], ["present"]),
        h.make_node("Transpose", ["present"], ["kt"], perm=[0, 1, 3, 2]),
        h.make_node("MatMul", ["q", "kt"], ["s"]),
        h.make_node("Softmax", ["s"], ["p"], axis=-1),
        h.make_node("MatMul", ["p", "v"], ["o"]),
    ]
    plain = [h.make_node("Neg", ["x"], ["y"]), h.make_node("Abs", ["y"], ["z"])]
    imports = [h.make_opsetid("", 18)]
    functions = [
        h.make_function("my", "Attend", ["q", "k", "v"], names, nodes, imports),
        h.make_function("my", "Plain", ["x"], ["z", "y"], plain, imports),
    ]
    calls = [
        h.make_node("Attend", ["q", "k", "v"], outputs, domain="my"),
        h.make_node("Plain", ["o"], ["r", ""], domain="my"),
    ]
    infos = [h.make_tensor_value_info(n, T.FLOAT, [B, H, S, D]) for n in "qkvr"]
    graph = h.make_graph(calls, "g", infos[:3], infos[3:])
    opsets = [*imports, h.make_opsetid("my", 1)]
    model = h.make_model(graph, opset_imports=opsets, functions=functions, ir_version=10)
    inputs = {n: random(B, H, S, D) for n in "qkv"}
    for form in ("decomposed", "blocked"):
        new, report = rewrite(model, form)
        assert len(report.sites) == 1 and not report.misses
        onnx.checker.check_model(new, full_check=True)
        assert_same(run(model, inputs), run(new, inputs))


@pytest.mark.parametrize("defect", ["perm", "inputs"])
def test_a_node_that_breaks_the_rules_of_onnx_is_one_clear_error(defect: str) -> None:
    g = Graph(18)
    q, k, v = (g.input(n, ["B", H, "S", D]) for n in "qkv")
    model = g.model({attention(g, q, k, v): (["B", H, "S", D], T.FLOAT)})
    node = next(n for n in model.graph.node if n.op_type == ("Transpose" if defect == "perm" else "Softmax"))
    if defect == "perm":
        node.attribute[0].ints[:] = [0, 1, 3, 7]
    else:
        del node.input[:]
    words = "does not name every axis once" if defect == "perm" else "has 0 inputs, but Softmax has 1"
    with pytest.raises(ModelError, match=words) as e:
        explain(model)
    assert node.name in str(e.value)


@pytest.mark.parametrize("form", FORMS)
def test_a_model_of_an_old_ir_version_loads_in_every_form(form: Form) -> None:
    """Up to version 3, onnxruntime does not find an initializer that only the Loop's body reads."""
    model = build(Spelling(mask="range_causal"))
    model.ir_version = 3
    read = {i for n in model.graph.node for i in n.input}
    kept = [t for t in model.graph.initializer if t.name in read]  # it does not find those that nobody reads either
    del model.graph.initializer[:]
    model.graph.initializer.extend(kept)
    new, report = rewrite(model, form)
    assert isinstance(new, onnx.ModelProto) and len(report.sites) + len(report.misses) == 1
    assert_same(run(model, feeds(model)), run(new, feeds(model)))


def _parsed(inputs: str, nodes: str, constants: str) -> onnx.ModelProto:
    text = f"g ({inputs}) => (float[a, b, c, d] o) <{constants}> {{ {nodes} }}"
    return onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["": 13]> {text}')


def test_a_range_that_begins_at_a_vector_of_one() -> None:
    """onnxruntime refuses it of a constant, even one that its optimiser finds, and takes it of what the model computes."""
    model = _parsed(
        "float[1,2,3,4] q, float[1,2,4,3] k, float[1,2,3,4] v, int64[3,1] last",
        "s = MatMul (q, k) first = Range (zero, one, one) at = Range (first, three, one) keep = LessOrEqual (at, last)"
        " m = Where (keep, s, low) p = Softmax <axis = -1> (m) o = MatMul (p, v)",
        "int64 zero = {0}, int64 one = {1}, int64 three = {3}, float low = {-1e9}",
    )
    inputs = {"q": random(1, 2, 3, 4), "k": random(1, 2, 4, 3), "v": random(1, 2, 3, 4)}
    inputs["last"] = np.array([[0], [1], [2]], np.int64)
    for form in ("decomposed", "blocked"):
        new, report = rewrite(model, form)
        assert len(report.sites) == 1
        assert_same(run(model, inputs, optimise=False), run(new, inputs))


def test_one_head_that_a_tile_repeats_before_the_rank_is_that_of_the_site() -> None:
    """Each of two heads has one key: what is tiled may as well be Q, which is never read with fewer heads than it has."""
    model = _parsed(
        "float[1,1,3] k, float[1,2,1,1] v",
        "r = Reshape (k, split) t = Tile (r, heads) kt = Transpose <perm = [0, 1, 3, 2]> (t) s = MatMul (k, kt)"
        " p = Softmax <axis = 3> (s) o = MatMul (p, v)",
        "int64[4] split = {0, 0, 1, 3}, int64[4] heads = {1, 2, 1, 1}",
    )
    inputs = {"k": random(1, 1, 3), "v": random(1, 2, 1, 1)}
    for form in ("decomposed", "blocked"):
        new, report = rewrite(model, form)
        assert len(report.sites) == 1
        assert_same(run(model, inputs), run(new, inputs))

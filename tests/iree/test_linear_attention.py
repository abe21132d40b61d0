"""LinearAttention and what stands around it in models of Qwen and LFM, compiled, against onnxruntime; and what is refused of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

import onnx_fa
from onnx_fa.errors import ModelError
from onnx_fa.graph.ops import CONTRIB
from onnx_fa.iree.importer import import_mlir
from tests.support.ort_run import run

F32, B, T = TensorProto.FLOAT, "batch", "tokens"
Shape = list[int | str]


class Graph:
    """Nodes, each with inputs of its own, whose results are all outputs."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.inputs: dict[str, Shape] = {}
        self.outputs: list[str] = []
        self.constants: list[onnx.TensorProto] = []

    def input(self, name: str, *dims: int | str) -> str:
        self.inputs[f"{name}{len(self.nodes)}"] = list(dims)
        return f"{name}{len(self.nodes)}"

    def constant(self, array: Any) -> str:
        name = f"c{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.asarray(array), name))
        return name

    def node(self, op: str, inputs: list[str], results: int, **attributes: Any) -> None:
        names = [f"y{len(self.nodes)}_{i}" for i in range(results)]
        self.nodes.append(helper.make_node(op, inputs, names, f"n{len(self.nodes)}", domain=CONTRIB, **attributes))
        self.outputs += names

    def linear_attention(self, Hq: int, Hk: int, H: int, D: int, Dv: int, rule: str, **options: Any) -> None:
        tokens = (B, T)
        past, keys = options.pop("past", True), options.pop("key_decay", False)
        rates = options.pop("rates", H)
        inputs = [
            self.input("q", *tokens, Hq * D),
            self.input("k", *tokens, Hk * D),
            self.input("v", *tokens, H * Dv),
            self.input("s", B, H, D, Dv) if past else "",
            self.input("decay", *tokens, H * D if keys else H) if "gated" in rule else "",
            self.input("beta", *tokens, rates) if "delta" in rule else "",
        ]
        self.node("LinearAttention", inputs, 2, q_num_heads=Hq, kv_num_heads=H, update_rule=rule, **options)

    def model(self) -> onnx.ModelProto:
        values = [helper.make_tensor_value_info(n, F32, dims) for n, dims in self.inputs.items()]
        results = [helper.make_tensor_value_info(n, F32, None) for n in self.outputs]
        graph = helper.make_graph(self.nodes, "g", values, results, self.constants)
        opsets = [helper.make_opsetid("", 21), helper.make_opsetid(CONTRIB, 1)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=10)

    def feeds(self, sizes: dict[str, int], seed: int = 0) -> dict[str, Any]:
        rng, made = np.random.default_rng(seed), dict[str, Any]()
        for name, dims in self.inputs.items():
            x = rng.standard_normal([d if isinstance(d, int) else sizes[d] for d in dims])
            if name.startswith("k"):
                x /= np.linalg.norm(x, axis=-1, keepdims=True)
            if name.startswith("decay"):
                x = -np.abs(x)
            made[name] = (1 / (1 + np.exp(-x)) if name.startswith("beta") else x).astype(np.float32)
        return made


def check(graph: Graph, folder: Path, sizes: list[dict[str, int]], more: dict[str, Any] | None = None) -> None:
    """The graph compiled gives what onnxruntime gives, with its optimiser and without."""
    model = graph.model()
    onnx_fa.compile(model, folder / "m.vmfb")
    for each in sizes:
        feeds = graph.feeds(each) | (more or {})
        got = onnx_fa.run(folder / "m.vmfb", *feeds.values())
        for optimise in (True, False):
            for name, found, want in zip(graph.outputs, got, run(model, feeds, optimise=optimise), strict=True):
                assert found.shape == want.shape, (name, each)
                assert np.linalg.norm(found - want) <= 5e-6 * np.linalg.norm(want) + 1e-30, (name, each)


def test_rules_heads_and_states(tmp_path: Path) -> None:
    """Queries that share a state, states that share a query or a key, decays of heads and of key dims, one rate for all heads."""
    graph = Graph()
    graph.linear_attention(4, 4, 4, 8, 16, "linear")
    graph.linear_attention(4, 2, 2, 16, 8, "gated", scale=0.5)
    graph.linear_attention(2, 2, 4, 16, 16, "gated_delta", past=False)
    graph.linear_attention(2, 2, 2, 8, 7, "gated_delta", key_decay=True)
    graph.linear_attention(3, 3, 3, 4, 8, "delta", rates=1)
    check(graph, tmp_path, [{B: 1, T: 1}, {B: 2, T: 9}])


def test_convolutions_gates_and_norms(tmp_path: Path) -> None:
    graph = Graph()
    rng = np.random.default_rng(1)
    taps = [graph.constant(rng.standard_normal((6, 1, n)).astype(np.float32)) for n in (4, 3, 1)]
    bias = graph.constant(rng.standard_normal(6).astype(np.float32))
    graph.node("CausalConvWithState", [graph.input("x", B, 6, T), taps[0], bias, graph.input("p", B, 6, 3)], 2)
    graph.node("CausalConvWithState", [graph.input("x", B, 6, T), taps[1]], 2, activation="silu")
    graph.node("CausalConvWithState", [graph.input("x", B, 6, T), taps[2], bias], 2)
    last = [graph.input("x", B, T, 2, 3), taps[1], "", graph.input("p", B, 4, 2, 3)]
    graph.node("CausalConvWithState", last, 2, channels_last=1, dilation=2)
    rows = [graph.constant(rng.standard_normal(5).astype(np.float32)) for _ in range(2)]
    graph.node("LinearAttentionGate", [graph.input("a", B, T, 5), *rows, graph.input("b", B, T, 5)], 2)
    scale = graph.constant(rng.standard_normal(8).astype(np.float32))
    for activation in ("silu", "sigmoid"):
        inputs = [graph.input("x", B, T, 24), scale, graph.input("g", B, T, 24)]
        graph.node("GatedRMSNorm", inputs, 1, activation=activation, epsilon=1e-3)
    check(graph, tmp_path, [{B: 1, T: 1}, {B: 2, T: 5}])


@pytest.mark.parametrize(("layout", "width"), [(0, 12), (1, 20)])
def test_rotation_by_three_streams(layout: int, width: int, tmp_path: Path) -> None:
    """Sections one behind the other, and by turns; of whole heads, and of the first numbers of each."""
    graph = Graph()
    angles = np.outer(np.arange(16), np.arange(1, 7) / 6).astype(np.float32)
    tables = [graph.constant(f(angles)) for f in (np.cos, np.sin)]
    x = graph.input("x", B, T, 3 * width)
    more = {"num_heads": 3, "rotary_embedding_dim": 0 if width == 12 else 12}
    sections = [2, 3, 1] if layout == 0 else [3, 2, 1]
    graph.node("MRotaryEmbedding", [x, "ids", *tables], 1, mrope_section=sections, mrope_layout=layout, **more)
    model = graph.model()
    model.graph.input.append(helper.make_tensor_value_info("ids", TensorProto.INT64, [3, B, T]))
    ids = np.random.default_rng(0).integers(0, 16, (3, 2, 5))
    feeds = {**graph.feeds({B: 2, T: 5}), "ids": ids}
    onnx_fa.compile(model, tmp_path / "m.vmfb")
    (got,) = onnx_fa.run(tmp_path / "m.vmfb", *feeds.values())
    (want,) = run(model, feeds)
    assert np.abs(got - want).max() < 2e-6


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"state_window": 2}, "state_window is not supported"),
        ({"update_rule": "sum"}, "'sum', which there is not"),
        ({"kv_num_heads": 3}, "which do not divide"),
        ({"q_num_heads": 0}, "of unknown widths"),
        ({"update_rule": "gated"}, "lacks its decay or its beta"),
    ],
)
def test_what_is_refused(changes: dict[str, Any], said: str) -> None:
    graph = Graph()
    graph.linear_attention(4, 2, 2, 16, 8, "linear")
    node = graph.nodes[0]
    kept = [a for a in node.attribute if a.name not in changes]
    del node.attribute[:]
    node.attribute.extend([*kept, *(helper.make_attribute(k, v) for k, v in changes.items())])
    with pytest.raises(ModelError, match=said):
        import_mlir(graph.model(), {})


@pytest.mark.parametrize(
    ("op", "changes", "said"),
    [
        ("CausalConvWithState", {"ndim": 2}, "ndim of more than 1"),
        ("CausalConvWithState", {"activation": "relu"}, "'relu', which there is not"),
    ],
)
def test_convolutions_that_are_refused(op: str, changes: dict[str, Any], said: str) -> None:
    graph = Graph()
    graph.node(op, [graph.input("x", 1, 6, 4), graph.constant(np.ones((6, 1, 2), np.float32))], 2, **changes)
    with pytest.raises(ModelError, match=said):
        import_mlir(graph.model(), {})


@given(st.data())
@settings(max_examples=25, deadline=None)
def test_drawn_heads_are_read_as_they_are(data: st.DataObject) -> None:
    """The spec that the importer makes of a node has the node's heads and widths, whatever they are; nothing is compiled."""
    H = data.draw(st.integers(1, 4))
    fewer = data.draw(st.sampled_from([n for n in range(1, H + 1) if H % n == 0]))
    Hq = data.draw(st.sampled_from([fewer, H, H * data.draw(st.integers(1, 3))]))
    D, Dv = data.draw(st.integers(1, 9)), data.draw(st.integers(1, 9))
    rule = data.draw(st.sampled_from(["linear", "gated", "delta", "gated_delta"]))
    graph = Graph()
    graph.linear_attention(Hq, fewer, H, D, Dv, rule)
    (made,) = import_mlir(graph.model(), {}).linear_attention
    spec = made.spec
    assert (spec.Hq * spec.G, spec.Hk, spec.H, spec.D, spec.Dv) == (Hq, fewer, H, D, Dv)
    assert (bool(spec.decay), bool(spec.beta)) == ("gated" in rule, "delta" in rule)


def test_explain_and_inspect_name_them(tmp_path: Path) -> None:
    graph = Graph()
    graph.linear_attention(2, 2, 2, 8, 8, "gated")
    assert onnx_fa.explain(graph.model()).linear_attentions == ("n0",)
    done = onnx_fa.compile(graph.model(), tmp_path / "m.vmfb")
    (site,) = done.linear_attention
    assert site.spec.decay == "head" and (site.kernel or site.kept)
    assert done.to_dict()["linear_attention"][0]["rule"] == "decay of each head, sum"
    schema = json.loads((Path(__file__).parents[2] / "docs" / "reference" / "report.schema.json").read_text())
    for report in (done.to_dict(), onnx_fa.explain(graph.model()).to_dict()):
        jsonschema.validate(json.loads(json.dumps(report)), schema)

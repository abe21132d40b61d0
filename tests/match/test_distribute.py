"""Differences of softmaxes: one product with V for each, where all of them are attentions."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto as T
from onnx import helper as h

from onnx_fa.forms.rewrite import rewrite
from onnx_fa.iree.compile import compile_model
from onnx_fa.iree.run import load_module
from tests.support.ort_run import TOLERANCE, assert_same, run
from tests.support.spellings import Graph
from tests.support.spellings_score import DV, MATCH, REFUSE, B, H, Site, feeds


class Differential(torch.nn.Module):
    """Multi-head differential attention, with one softmax for both halves or with two."""

    def __init__(self, heads: int, dim: int, *, paired: bool) -> None:
        super().__init__()
        self.heads, self.dim, self.paired = heads, dim, paired
        width = 2 * heads * dim
        self.q, self.k, self.v, self.o = (torch.nn.Linear(width, width, bias=False) for _ in range(4))
        self.factor = torch.nn.Parameter(torch.rand(heads, 1, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, s, _ = x.shape
        q = self.q(x).view(b, s, 2 * self.heads, self.dim).transpose(1, 2)
        k = self.k(x).view(b, s, 2 * self.heads, self.dim).transpose(1, 2)
        v = self.v(x).view(b, s, self.heads, 2 * self.dim).transpose(1, 2)
        mask = torch.triu(torch.full((s, s), float("-inf")), 1)
        if self.paired:
            p = torch.softmax(q @ k.transpose(-1, -2) * self.dim**-0.5 + mask, -1)
            p = p.view(b, self.heads, 2, s, s)
            p1, p2 = p[:, :, 0], p[:, :, 1]
        else:
            (q1, q2), (k1, k2) = q.chunk(2, 1), k.chunk(2, 1)
            p1 = torch.softmax(q1 @ k1.transpose(-1, -2) * self.dim**-0.5 + mask, -1)
            p2 = torch.softmax(q2 @ k2.transpose(-1, -2) * self.dim**-0.5 + mask, -1)
        out: torch.Tensor = self.o(((p1 - self.factor * p2) @ v).transpose(1, 2).reshape(b, s, -1))
        return out


@pytest.mark.parametrize("paired", [True, False])
@pytest.mark.parametrize("exporter", ["dynamo", "torchscript"])
def test_exported(exporter: str, paired: bool, tmp_path: Path) -> None:
    torch.manual_seed(0)
    module = Differential(2, 8, paired=paired).eval()
    x = torch.randn(2, 6, 32)
    path = tmp_path / "m.onnx"
    torch.onnx.export(
        module, (x,), path, dynamo=exporter == "dynamo", opset_version=18, input_names=["x"], verbose=False
    )
    model = onnx.load(path)
    new, report = rewrite(model)
    assert len(report.sites) == (1 if paired else 2) and not report.misses, report.misses
    assert all(site.spec.variant.endswith("causal") for site in report.sites)
    inputs = {"x": x.numpy()}
    assert_same(run(model, inputs), run(new, inputs), TOLERANCE)


def test_each_softmax_is_a_fused_site_of_its_own(tmp_path: Path) -> None:
    model = MATCH["difference/factor per head"]()
    report = compile_model(model, tmp_path / "m.vmfb")
    assert [(site.fused, site.dispatches) for site in report.sites] == [(True, 1)] * 2
    inputs = feeds(model)
    results = load_module(tmp_path / "m.vmfb")(*(inputs[i.name] for i in model.graph.input))
    assert_same(run(model, inputs), list(results), TOLERANCE)


def test_a_graph_that_stays_is_not_changed() -> None:
    model = REFUSE["difference of which one is no attention"]()
    new, _ = rewrite(model)
    assert [n.op_type for n in new.graph.node] == [n.op_type for n in model.graph.node]


def test_only_the_product_whose_softmaxes_all_match_is_parted() -> None:
    g = Site()
    other = g.softmax(g.op("MatMul", g.input("q2", [B, H, 5, 4]), g.input("k2", [B, H, 4, 7])))
    good = g.times_v(g.op("Sub", g.softmax(g.score()), other))
    bad = g.times_v(g.op("Sub", g.softmax(g.input("logits", [B, H, 5, 7])), g.softmax(g.input("more", [B, H, 5, 7]))))
    model = g.done(g.op("Add", good, bad))
    new, report = rewrite(model)
    assert len(report.sites) == 2 and len(report.misses) == 2
    assert sum(n.op_type == "MatMul" for n in new.graph.node) == 5
    inputs = feeds(model)
    assert_same(run(model, inputs), run(new, inputs), TOLERANCE)


def test_two_products_of_one_difference() -> None:
    g = Site()
    other = g.softmax(g.op("MatMul", g.input("q2", [B, H, 5, 4]), g.input("k2", [B, H, 4, 7])))
    p = g.op("Sub", g.softmax(g.score()), other)
    w = g.op("MatMul", p, g.input("w", [B, H, 7, 6]))
    model = g.done(g.op("Add", g.times_v(p), w))
    new, report = rewrite(model)
    assert len(report.sites) == 2 and not report.misses  # one of each softmax, with both values side by side
    inputs = feeds(model)
    assert_same(run(model, inputs), run(new, inputs), TOLERANCE)


def test_inside_a_branch() -> None:
    source = MATCH["difference/plain"]()
    shape = [B, H, 5, DV]
    inner = h.make_graph(source.graph.node, "then", [], source.graph.output, source.graph.initializer)
    other = h.make_graph(
        [h.make_node("Identity", ["zeros"], ["o2"])], "else", [], [h.make_tensor_value_info("o2", T.FLOAT, shape)]
    )
    graph = h.make_graph(
        [h.make_node("If", ["c"], ["out"], then_branch=inner, else_branch=other)],
        "g",
        [
            *source.graph.input,
            h.make_tensor_value_info("c", T.BOOL, []),
            h.make_tensor_value_info("zeros", T.FLOAT, shape),
        ],
        [h.make_tensor_value_info("out", T.FLOAT, shape)],
    )
    model = h.make_model(graph, opset_imports=source.opset_import, ir_version=source.ir_version)
    new, report = rewrite(model)
    assert len(report.sites) == 2
    inputs = {**feeds(source), "c": np.asarray(True), "zeros": np.zeros(shape, np.float32)}
    assert_same(run(model, inputs), run(new, inputs), TOLERANCE)


@pytest.mark.parametrize(
    "bounds", [(-10, 2), (2, 1 << 62), (-2, 100), (-4, 2), (0, -2), (1, 3), (-(1 << 63), 2), (2, (1 << 63) - 1)]
)
def test_heads_cut_by_a_slice_that_is_clamped(bounds: tuple[int, int]) -> None:
    """The last two heads of a softmax less two of them: Slice takes a start or an end far beyond the axis for its end.
    Heads 1 and 2 read other heads of V than in a V that is repeated for all four."""
    g = Graph(18)
    q, k = g.input("q", [1, 4, 5, 6]), g.input("k", [1, 4, 7, 6])
    v = g.input("v", [1, 2, 7, DV])
    p = g.op("Softmax", g.op("MatMul", q, g.op("Transpose", k, perm=[0, 1, 3, 2])), axis=-1)

    def heads(start: int, end: int) -> str:
        return g.op("Slice", p, *(g.const([x], np.int64) for x in (start, end, 1)))

    g.nodes.append(h.make_node("MatMul", [g.op("Sub", heads(2, 4), heads(*bounds)), v], ["o"]))
    model = g.model({"o": ([1, 2, 5, DV], T.FLOAT)})
    new, report = rewrite(model)
    assert len(report.sites) + len(report.misses) >= 1
    inputs = feeds(model)
    assert_same(run(model, inputs), run(new, inputs), TOLERANCE)


def test_no_heads_at_all() -> None:
    g = Graph(18)
    q, k = g.input("q", [1, 4, 5, 6]), g.input("k", [1, 4, 7, 6])
    p = g.op("Softmax", g.op("MatMul", q, g.op("Transpose", k, perm=[0, 1, 3, 2])), axis=-1)
    none = [g.op("Slice", p, *(g.const([x], np.int64) for x in (n, 0, 1))) for n in (2, 3)]
    g.nodes.append(h.make_node("MatMul", [g.op("Sub", *none), g.input("v", [1, 1, 7, DV])], ["o"]))
    report = rewrite(g.model({"o": ([1, 0, 5, DV], T.FLOAT)}))[1]
    assert len(report.sites) + len(report.misses) == 1

"""Layouts that fit no axis: each equals the original in onnxruntime, or is refused and stays as it is."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto

from onnx_fa.forms.rewrite import explain, rewrite
from onnx_fa.iree.compile import compile_model
from onnx_fa.iree.run import load_module
from onnx_fa.spec.target import parse_target
from tests.match.test_match import check
from tests.support.ort_run import assert_same, run
from tests.support.spellings import Graph
from tests.support.spellings_layout import MATCH, REFUSE, REPEATS, TILED, B, H, feeds


@pytest.mark.parametrize("name", MATCH)
def test_each_layout_is_matched_and_keeps_its_result(name: str) -> None:
    check(MATCH[name](), inputs=feeds)


@pytest.mark.parametrize("heads", [1, 3])  # of none onnxruntime makes other sums than ONNX: docs/reference/forms.md
def test_parts_that_heads_share_are_repeated_as_often_as_there_are_heads(heads: int) -> None:
    model = MATCH["parts_of_keys_that_some_heads_share"]()
    rng = np.random.default_rng(0)
    inputs = {
        i.name: rng.standard_normal([d.dim_value or heads for d in i.type.tensor_type.shape.dim]).astype(np.float32)
        for i in model.graph.input
    }
    assert_same(run(model, inputs), run(rewrite(model)[0], inputs))


def viewed(*, asked: bool = False, turned: bool = False) -> onnx.ModelProto:
    """Attention whose result is viewed in the shape that it has, by its own sizes, in front of its Transpose, as PyTorch's exporter
    writes it. `asked`: something else reads a size of the result too; `turned`: it is viewed in another shape."""
    g = Graph(17)
    q, k, v = (g.input(n, ["B", 3, "S", 8]) for n in "qkv")
    out = g.op("MatMul", g.op("Softmax", g.op("MatMul", q, g.op("Transpose", k, perm=[0, 1, 3, 2])), axis=-1), v)
    shape, of_q = g.op("Shape", out), g.op("Shape", q)
    batch, length = (g.op("Gather", s, g.const([i], np.int64)) for s, i in ((shape, 0), (of_q, 2)))
    sizes = [batch, g.const([3], np.int64), length, g.const([8], np.int64)]
    target = g.op("Concat", *(sizes[i] for i in ((0, 2, 1, 3) if turned else range(4))), axis=0)
    joined = g.op("Transpose", g.op("Reshape", out, target), perm=[0, 2, 1, 3])
    results = {joined: (["B", "T", "H", 8], TensorProto.FLOAT)}
    if asked:
        results[g.op("Add", batch, g.const([1], np.int64))] = ([1], TensorProto.INT64)
    return g.model(results)


@pytest.mark.parametrize("how", ["plain", "asked", "turned"])
def test_a_view_in_the_same_shape_is_none(how: str) -> None:
    """The site writes its result as the Transpose behind the view leaves it, unless something else asks for sizes in between."""
    model = viewed(asked=how == "asked", turned=how == "turned")
    new, report = rewrite(model)
    (site,) = report.sites
    assert site.spec.o_layout == ((0, 2, 1, 3) if how == "plain" else (0, 1, 2, 3))
    rng = np.random.default_rng(0)
    given = {n: rng.standard_normal((2, 3, 5, 8)).astype(np.float32) for n in "qkv"}
    assert_same(run(model, given), run(new, given))


@pytest.mark.parametrize("name", REFUSE)
def test_what_is_no_attention_is_left_alone(name: str) -> None:
    model = REFUSE[name]()
    report = explain(model)
    assert not report.sites and report.misses
    new, _ = rewrite(model)
    assert [n.op_type for n in new.graph.node] == [n.op_type for n in model.graph.node]


@pytest.mark.parametrize("how", REPEATS)
def test_repeats_are_groups_of_heads(how: str) -> None:
    (site,) = explain(MATCH[f"repeat_{how}"]()).sites
    assert (site.spec.batch, site.spec.Hq, site.spec.Hkv) == ((B,), H, 1 if how.endswith("mqa") else 2)


@pytest.mark.parametrize("how", TILED)
def test_repeats_in_another_order_are_not(how: str) -> None:
    (site,) = explain(MATCH[f"repeat_{how}"]()).sites
    assert (site.spec.Hq, site.spec.Hkv) == (H, H)


@pytest.mark.slow
def test_transposed_scores_cut_along_the_keys_are_compiled_to_one_dispatch(tmp_path: Path) -> None:
    model = MATCH["cut_in_three_upright"]()
    report = compile_model(model, tmp_path / "m.vmfb", parse_target("cpu-host"))
    (site,) = report.sites
    assert (site.fused, site.dispatches, report.misses, report.inspection.buffers) == (True, 1, (), ())
    given = feeds(model, empty_rows=True)
    have = load_module(tmp_path / "m.vmfb")(*(given[i.name] for i in model.graph.input))
    assert_same(run(model, given), [np.asarray(x) for x in have], 2e-5)

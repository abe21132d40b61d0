"""What follows a convolution whose channels come last becomes part of its kernel, and gives onnxruntime's numbers."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from onnx_fa.graph.ops import op_of
from onnx_fa.iree.compile import compile_model, import_model
from onnx_fa.iree.inference import infer_types
from onnx_fa.iree.legalise.conv_epilogues import fuse_epilogues
from onnx_fa.iree.legalise.conv_shapes import conv_shape, pad_image
from onnx_fa.iree.legalise.convolutions import CONV_SITE, spec_of_shape, write_site
from onnx_fa.iree.legalise.linear_sites import find_linear_sites
from onnx_fa.iree.legalise.rules import legalize
from onnx_fa.iree.legalise.writer import FLOATS, GraphWriter, declare_own_nodes
from onnx_fa.iree.run import load_module
from onnx_fa.spec.expr import SCORE, Apply, Q, Tensor, words
from onnx_fa.spec.expr_json import from_json
from onnx_fa.spec.target import parse_target
from onnx_fa.spec.terms import TensorArg
from onnx_fa.spec.windows import WindowSpec
from tests.iree.test_convolutions import ConvSite
from tests.support.joined_models import join_models
from tests.support.kernel_harness import cases_asked_for
from tests.support.ort_run import run

NARROW, WIDE, HOST = parse_target("cpu-avx2"), parse_target("cpu-avx512"), parse_target("cpu-host")
CHANNELS, COLUMNS, SIZES = 6, 33, (7, 9)
BOUNDS = {"low": np.float64(-0.5), "high": np.float64(0.75)}


def graph_of(
    body: str, *, batch: str = "2", kind: str = "float", outputs: str = "y", opset: int = 17
) -> onnx.ModelProto:
    """A graph of an image x and residuals r and q, of which `Conv` makes values of their shape, with channels first. `row` and
    `scale` have a number for each channel, `low` and `high` are single ones."""
    given = [f"{kind}[{batch},{CHANNELS},7,9] x"]
    given += [f"{kind}[{batch},{COLUMNS},7,9] {name}" for name in "rq" if f" {name})" in body or f"({name}," in body]
    made = ", ".join(f"{kind}[{batch},{COLUMNS},7,9] {name}" for name in outputs.split())
    body = body.replace("Conv(", "Conv <pads = [1, 1, 1, 1]> (")
    model = onnx.parser.parse_model(
        f'<ir_version: 9, opset_import: ["" : {opset}]> g ({", ".join(given)}) => ({made}) {{ {body} }}'
    )
    rng, dtype = (
        np.random.default_rng(3),
        helper.tensor_dtype_to_np_dtype(model.graph.input[0].type.tensor_type.elem_type),
    )
    for name in ("w", "v"):
        weight = rng.standard_normal((COLUMNS, CHANNELS, 3, 3)) / 7
        model.graph.initializer.append(numpy_helper.from_array(weight.astype(np.float16).astype(dtype), name))
    for name, shape in (("b", (COLUMNS,)), ("row", (COLUMNS, 1, 1)), ("scale", (1, COLUMNS, 1, 1))):
        numbers = rng.standard_normal(shape).astype(np.float16)
        model.graph.initializer.append(numpy_helper.from_array(numbers.astype(dtype), name))
    for name, number in BOUNDS.items():
        model.graph.initializer.append(numpy_helper.from_array(number.astype(dtype), name))
    return model


def with_channels_last(model: onnx.ModelProto, target: Any = NARROW) -> onnx.ModelProto:
    """The graph with a site for each Conv, and (batch, places, channels) between turns at its ends."""
    made = onnx.ModelProto.FromString(model.SerializeToString())
    infer_types(made, {})
    g, places = GraphWriter(made, target=target), SIZES[0] * SIZES[1]
    kind, last = g.kind("x"), dict[str, str]()
    x = g.add("Transpose", [g.cast("x", kind, TensorProto.FLOAT, "x")], "turned", perm=[0, 2, 3, 1])
    for value in made.graph.input[1:]:
        turned = g.add("Transpose", [value.name], "turned", perm=[0, 2, 3, 1])
        last[value.name] = g.reshape(turned, [0, places, COLUMNS], f"{value.name}_last")
    for name, shape in (("row", (COLUMNS,)), ("scale", (1, 1, COLUMNS))):
        array = g.array(name)
        assert array is not None
        last[name] = g.const(array.reshape(shape), f"{name}_last")
    for node in made.graph.node:
        if op_of(node) == "Conv":
            last[node.output[0]] = _site(g, node, x)
            continue
        g.nodes.append(onnx.NodeProto.FromString(node.SerializeToString()))
        for names in (g.nodes[-1].input, g.nodes[-1].output):
            renamed = [last.get(name, name) for name in names]
            del names[:]
            names.extend(renamed)
        for i, name in enumerate(node.output):
            last[name] = g.nodes[-1].output[i] = g.fresh(f"{name}_last")
    for value in made.graph.output:
        back = g.add("Transpose", [last[value.name]], "back", perm=[0, 2, 1])
        g.reshape(back, [0, COLUMNS, *SIZES], "back", out=value.name)
    g.replace_nodes(g.nodes)
    declare_own_nodes(made)
    return made


def _site(g: GraphWriter, node: onnx.NodeProto, x: str) -> str:
    shape = conv_shape(g, node)
    assert shape is not None
    bias = node.input[2] if len(node.input) > 2 else ""
    spec = spec_of_shape(g, shape, FLOATS[g.kind("x")], bool(bias), last=True, x_last=True)
    assert spec is not None
    image = pad_image(g, x, shape, "padded", last=True)
    g.typed(image, TensorProto.FLOAT, [(g.shape("x") or [])[0], *shape.padded, CHANNELS])
    return write_site(g, spec, image, node.input[1], bias, "site")


def fused(model: onnx.ModelProto, target: Any = NARROW) -> onnx.ModelProto:
    """The graph as the importer gets it."""
    made = with_channels_last(model, target)
    infer_types(made, {})
    made = legalize(made, target=target)
    infer_types(made, {})
    find_linear_sites(made, target=target)
    fuse_epilogues(made, target=target)
    return made


def sites_of(model: onnx.ModelProto) -> list[str]:
    """What becomes of the sums of each site."""
    found = []
    for node in fused(model).graph.node:
        if op_of(node) == CONV_SITE:
            then = next((helper.get_attribute_value(a) for a in node.attribute if a.name == "then"), None)
            found.append(words(from_json(json.loads(then))) if then else "score")
    return found


SILU = "c = Conv(x, w, b) s = Sigmoid(c) y = Mul(c, s)"
FUSED = {
    "relu": ("c = Conv(x, w, b) y = Relu(c)", "relu(score)"),
    "silu": (SILU, "(score * sigmoid(score))"),
    "hard swish": ("c = Conv(x, w) y = HardSwish(c)", "(score * max(0, min(1, ((0.166667 * score) + 0.5))))"),
    "clip": ("c = Conv(x, w, b) y = Clip(c, low, high)", "min(max(score, -0.5), 0.75)"),
    "residual": ("c = Conv(x, w, b) a = Add(c, r) y = Relu(a)", "relu((score + t0))"),
    "residual first": ("c = Conv(x, w) y = Add(r, c)", "(t0 + score)"),
    "scale and bias": ("c = Conv(x, w) m = Mul(c, scale) a = Add(m, row) y = Relu(a)", "relu(((score * t0) + t1))"),
    "all": (
        "c = Conv(x, w, b) m = Mul(c, scale) s = Tanh(m) a = Add(s, r) y = Mul(a, q)",
        "((tanh((score * t0)) + t1) * t2)",
    ),
}


@pytest.mark.parametrize("batch", ["2", "B"])
@pytest.mark.parametrize("name", FUSED)
def test_fused(name: str, batch: str) -> None:
    body, wanted = FUSED[name]
    model = graph_of(body, batch=batch)
    assert sites_of(model) == [wanted]
    left = {op_of(n) for n in fused(model).graph.node}
    assert left <= {CONV_SITE, "Transpose", "Reshape", "Pad", "Slice", "Concat", "Constant"}


@pytest.mark.parametrize(
    ("body", "outputs", "wanted"),
    [
        ("c = Conv(x, w) a = Relu(c) s = Softmax(c) y = Add(a, s)", "y", ["score"]),  # two readers
        ("c = Conv(x, w) a = Relu(c) s = Softmax(a) y = Add(a, s)", "y", ["relu(score)"]),
        ("c = Conv(x, w) y = Softmax(c)", "y", ["score"]),
        ("c = Conv(x, w) y = Relu(c)", "c y", ["score"]),  # the sums are given out, turned
        ("c = Conv(x, w) p = Softmax(x) y = Relu(c)", "y", ["relu(score)"]),
        # The first of two takes what they become, the other what comes before.
        (
            "c = Conv(x, w) d = Conv(x, v) s = Tanh(d) a = Add(c, s) y = Relu(a)",
            "y",
            ["tanh(score)", "relu((score + t0))"],
        ),
        ("c = Conv(x, w) d = Conv(x, v) y = Add(d, c)", "y", ["score", "(t0 + score)"]),
        ("c = Conv(x, w) s = Softmax(c) y = Add(c, s)", "y", ["score"]),  # a residual of itself
    ],
)
def test_what_else_reads(body: str, outputs: str, wanted: list[str]) -> None:
    assert sites_of(graph_of(body, outputs=outputs)) == wanted


def test_a_value_in_between_that_is_given_out() -> None:
    """As it lies there, without a node that reads it."""
    for between, left in (("site", ["Add", "Relu"]), ("a_last", ["Relu"])):
        made = with_channels_last(graph_of("c = Conv(x, w) a = Add(c, r) y = Relu(a)"))
        infer_types(made, {})
        (given,) = [v for v in made.graph.value_info if v.name == between]
        made.graph.output.append(given)
        fuse_epilogues(made, target=NARROW)
        assert [op_of(n) for n in made.graph.node if op_of(n) in ("Add", "Relu")] == left


def test_residuals_of_another_batch_stay_apart() -> None:
    """Batches of two names may differ, one of one image among them; those of no name, too."""
    body = FUSED["residual"][0]
    for other in ("M", "1"):
        model = graph_of(body, batch="B")
        model.graph.input[1].type.tensor_type.shape.dim[0].Clear()
        if other == "1":
            model.graph.input[1].type.tensor_type.shape.dim[0].dim_value = 1
        else:
            model.graph.input[1].type.tensor_type.shape.dim[0].dim_param = other
        assert sites_of(model) == ["score"]
    model = graph_of(body, batch="B")
    for value in model.graph.input:
        value.type.tensor_type.shape.dim[0].Clear()
    assert sites_of(model) == ["score"]


def test_channels_first_and_other_targets_stay() -> None:
    """What stands behind a site with channels first is no matter of this pass."""
    made = fused(graph_of(FUSED["relu"][0]))
    (site,) = [n for n in made.graph.node if op_of(n) == CONV_SITE]
    before = len(made.graph.node)
    fuse_epilogues(made, target=NARROW)
    assert len(made.graph.node) == before and len(site.input) == 3
    (first,) = [
        n for n in legalize(typed(graph_of(FUSED["relu"][0])), target=NARROW).graph.node if op_of(n) == CONV_SITE
    ]
    model = legalize(typed(graph_of(FUSED["relu"][0])), target=NARROW)
    infer_types(model, {})
    fuse_epilogues(model, target=NARROW)
    assert "Relu" in [op_of(n) for n in model.graph.node] and not any(a.name == "then" for a in first.attribute)


def typed(model: onnx.ModelProto) -> onnx.ModelProto:
    infer_types(model, {})
    return model


def inputs_of(model: onnx.ModelProto) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(1)
    found = {}
    for value in model.graph.input:
        t = value.type.tensor_type
        shape = [d.dim_value or 2 for d in t.shape.dim]
        found[value.name] = rng.standard_normal(shape).astype(helper.tensor_dtype_to_np_dtype(t.elem_type))
    found["x"][0, 0, 0, 0], found["x"][1, 2, 3, 4] = np.inf, np.nan
    return found


def in_f64(body: str, inputs: dict[str, np.ndarray]) -> np.ndarray:
    """The graph's result by the reference in float64, of numbers that f16 has."""
    model = graph_of(body, kind="double")
    (found,) = ReferenceEvaluator(model).run(None, {k: v.astype(np.float64) for k, v in inputs.items()})
    return np.asarray(found)


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning", "ignore:overflow:RuntimeWarning")
@pytest.mark.parametrize("name", FUSED)
def test_the_node_means_what_the_graph_does(name: str) -> None:
    model = graph_of(FUSED[name][0])
    inputs = inputs_of(model)
    (got,), (want,) = ReferenceEvaluator(fused(model), new_ops=[ConvSite]).run(None, inputs), run(model, inputs)
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


CASES = [(name, batch, kind) for name in FUSED for batch, kind in (("2", "float"), ("B", "float"), ("2", "float16"))]


@pytest.fixture(scope="module")
def compiled(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> dict[tuple[str, str, str], np.ndarray]:
    tried = cases_asked_for(request, "name", "batch", "kind")
    cases = [case for case in CASES if case in tried]
    models = [graph_of(FUSED[name][0], batch=batch, kind=kind) for name, batch, kind in cases]
    path = tmp_path_factory.mktemp("epilogues") / "m.vmfb"
    sites = [with_channels_last(model, HOST) for model in models]
    compile_model(join_models(sites, own_dims=True), path, HOST, parameters="embed")
    inputs = [value for model in models for value in inputs_of(model).values()]
    return dict(zip(cases, map(np.asarray, load_module(path)(*inputs)), strict=True))


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning", "ignore:overflow:RuntimeWarning")
@pytest.mark.parametrize(("name", "batch", "kind"), CASES)
def test_compiled(name: str, batch: str, kind: str, compiled: dict[tuple[str, str, str], np.ndarray]) -> None:
    """Sums of f16 are rounded once, behind all that becomes of them: to neighbours of the reference's numbers at most."""
    got, model = compiled[name, batch, kind], graph_of(FUSED[name][0], batch=batch, kind=kind)
    inputs = inputs_of(model)
    (by_runtime,) = run(model, inputs)
    assert got.shape == by_runtime.shape and got.dtype == by_runtime.dtype
    np.testing.assert_array_equal(np.isnan(got), np.isnan(by_runtime))
    if kind == "float":
        np.testing.assert_allclose(got, by_runtime, rtol=1e-5, atol=1e-5)
        return
    want, wide = in_f64(FUSED[name][0], inputs), by_runtime.astype(np.float64)
    np.testing.assert_allclose(got.astype(np.float64), want, rtol=2.0**-10, atol=1e-5)
    most = np.abs(wide[np.isfinite(wide)]).max()
    np.testing.assert_allclose(
        got.astype(np.float64), wide, rtol=2.0**-10, atol=2.0**-10 * len(model.graph.node) * most
    )


def test_nothing_of_what_follows_is_left_to_the_compiler() -> None:
    for target in (NARROW, WIDE):
        text = import_model(with_channels_last(graph_of(SILU), target), target).text
        assert text.count("util.call @conv_") == 1 and "onnx.Sigmoid" not in text and "onnx.Mul" not in text


def test_compiled_for_sixteen_lanes(tmp_path: Any) -> None:
    model = with_channels_last(graph_of(FUSED["all"][0], batch="B"), WIDE)
    compile_model(model, tmp_path / "m.vmfb", WIDE, parameters="embed")


def test_specs_that_are_none() -> None:
    window: Any = (1, 1, 3, 32, (9,), (3,), (1,), (1,), 32)
    row, whole = TensorArg((32,)), TensorArg((1, 7, 32))
    added = Apply("Add", SCORE, Tensor(0))
    for tensor in (row, whole):
        spec = WindowSpec(*window, bias=True, last=True, then=added, tensors=(tensor,))
        assert spec.product.then == Apply("Add", Apply("Add", SCORE, Tensor(0)), Tensor(1))
    with pytest.raises(ValueError, match="channels first"):
        WindowSpec(*window, then=added, tensors=(row,))
    with pytest.raises(ValueError, match="neither of the columns"):
        WindowSpec(*window, last=True, then=added, tensors=(TensorArg((7, 32)),))
    with pytest.raises(ValueError, match="no function of a sum"):
        WindowSpec(*window, last=True, then=Apply("Add", SCORE, Apply("ToFloat", Q)))

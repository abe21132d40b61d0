"""Products with weights of a network that become linear sites on CUDA, and those that do not."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import helper, numpy_helper

from onnx_fa.iree.compile import import_model
from onnx_fa.iree.inference import infer_types
from onnx_fa.iree.legalise.linear_sites import LINEAR_SITE, find_linear_sites
from onnx_fa.iree.legalise.rules import legalize
from onnx_fa.kernels import triton
from onnx_fa.kernels.triton import ptx
from onnx_fa.spec.expr import words
from onnx_fa.spec.expr_json import from_json
from onnx_fa.spec.target import parse_target
from tests.iree.test_bits_product import model as bits_model
from tests.support.triton_sources import triton_sources

CUDA = parse_target("cuda")
WEIGHTS = {
    "w": (64, 48),
    "wt": (48, 64),
    "b": (48,),
    "wide": (64, 96),
    "wide_b": (96,),
    "row": (1, 48),
    "each": (2, 1, 48),
    "small": (64, 8),
    "three": (2, 64, 48),
}


@pytest.fixture(scope="module", autouse=True)
def sources() -> Iterator[None]:
    """What becomes a site does not depend on what Triton makes of its source, which tests/kernels/test_linear.py tries."""
    with triton_sources():
        yield


def graph_of(
    body: str, *, x: str = "float[2,n,64] x", outputs: str = "float[2,n,48] y", opset: int = 17
) -> onnx.ModelProto:
    model = onnx.parser.parse_model(
        f'<ir_version: 9, opset_import: ["" : {opset}]> g ({x}) => ({outputs}) {{ {body} }}'
    )
    rng = np.random.default_rng(0)
    kind = {"float16": np.float16, "bfloat16": ml_dtypes.bfloat16}.get(x.split("[")[0], np.float32)
    for name, shape in WEIGHTS.items():
        if f"{name}" in body.replace("=", " ").replace("(", " ").replace(",", " ").replace(")", " ").split():
            model.graph.initializer.append(numpy_helper.from_array(rng.standard_normal(shape).astype(kind), name))
    return model


def nodes_of(model: onnx.ModelProto, target: object = CUDA) -> list[onnx.NodeProto]:
    """The model's nodes as the importer gets them."""
    infer_types(model, {})
    made = legalize(model, target=target)  # type: ignore[arg-type]
    infer_types(made, {})
    find_linear_sites(made, target=target)  # type: ignore[arg-type]
    return list(made.graph.node)


def sites_of(model: onnx.ModelProto, target: object = CUDA) -> list[tuple[int, str]]:
    """The number of inputs of every linear site, and what becomes of its sums."""
    found = []
    for node in nodes_of(model, target):
        if f"{node.domain}.{node.op_type}" == LINEAR_SITE:
            then = next(helper.get_attribute_value(a) for a in node.attribute if a.name == "then")
            found.append((len(node.input), words(from_json(json.loads(then)))))
    return found


PLAIN, BIASED = (2, "score"), (3, "(score + t0)")
GATED = (3, "((score * sigmoid(score)) * t0)")


@pytest.mark.parametrize(
    ("body", "wanted"),
    [
        ("y = MatMul(x, w)", [PLAIN]),
        ("a = MatMul(x, w) y = Add(a, b)", [BIASED]),
        ("a = MatMul(x, w) y = Add(b, a)", [(3, "(t0 + score)")]),
        ("a = MatMul(x, w) c = Add(a, b) y = Relu(c)", [(3, "relu((score + t0))")]),
        ("a = MatMul(x, w) c = Add(a, b) y = Mul(a, c)", [(3, "(score * (score + t0))")]),
        ("a = MatMul(x, w) y = Add(a, a)", [(2, "(score + score)")]),
        ("a = MatMul(x, w) y = Add(a, row)", [BIASED]),
        ("a = MatMul(x, w) c = Mul(a, row) y = Add(row, c)", [(3, "(t0 + (score * t0))")]),
        ("a = MatMul(x, w) y = Add(a, each)", [PLAIN]),  # a row for each batch
        ("a = MatMul(x, w) h = Constant <value = float {0.5}> () y = Mul(a, h)", [(2, "(score * 0.5)")]),
        ("a = MatMul(x, w) y = Softmax(a)", [PLAIN]),
        ("a = MatMul(x, w) s = Softmax(a) y = Add(a, s)", [PLAIN]),  # the product is read twice
        ("a = MatMul(x, w) c = Tanh(a) s = Softmax(c) y = Add(c, s)", [(2, "tanh(score)")]),
        ("a = MatMul(x, w) s = Sigmoid(a) g = Mul(a, s) u = MatMul(x, w) y = Mul(g, u)", [PLAIN, GATED]),
        ("a = MatMul(x, w) t = MatMul(x, w) c = Add(t, b) y = Add(a, c)", [BIASED, (3, "(score + t0)")]),
        ("a = MatMul(x, w) y = Sum(a, a, b)", [PLAIN]),
        ("a = MatMul(x, w) y = LeakyRelu <alpha = 0.5> (a)", [(2, "where((score < 0), (0.5 * score), score)")]),
        ("a = MatMul(x, w) y = Elu <alpha = 2.0> (a)", [(2, "where((score < 0), (2 * (exp(score) - 1)), score)")]),
    ],
)
def test_found(body: str, wanted: list[tuple[int, str]]) -> None:
    """Of a known number of rows, for which a site has one form; most tests below have two, for any number."""
    assert sites_of(graph_of(body, x="float[2,4,64] x", outputs="float[2,4,48] y")) == wanted


@pytest.mark.parametrize(
    ("body", "wanted"),
    [
        ("y = Gelu(a)", "((0.5 * score) * (1 + erf((score * 0.707107))))"),
        ('y = Gelu <approximate = "tanh"> (a)', "tanh("),
        ("y = HardSwish(a)", "(score * max(0, min(1, ((0.166667 * score) + 0.5))))"),
        ("y = HardSigmoid(a)", "max(0, min(1, ((0.2 * score) + 0.5)))"),
        (
            "l = Constant <value = float {-1}> () h = Constant <value = float {2}> () y = Clip(a, l, h)",
            "min(max(score, -1), 2)",
        ),
        ("y = Clip(a, , b0)", "score"),
        ("p = Constant <value = float {3}> () y = Pow(a, p)", "pow(score, 3)"),
    ],
)
def test_activations(body: str, wanted: str) -> None:
    x = "float[2,4,64] x" + (", float b0" if "b0" in body else "")
    ((_, then),) = sites_of(graph_of(f"a = MatMul(x, w) {body}", x=x, outputs="float[2,4,48] y", opset=20))
    assert wanted in then


def _split(body: str, widths: tuple[int, ...], outputs: str, **options: Any) -> onnx.ModelProto:
    model = graph_of(body, outputs=outputs, **options)
    model.graph.initializer.append(numpy_helper.from_array(np.array(widths), "s"))
    return model


def test_several_results() -> None:
    """A product that is only cut into parts of its columns has as many results, where tiles can begin with them."""
    body, parts = "a = MatMul(x, w) c = Add(a, b) p, q = Split <axis = AXIS> (c, s)", "float[2,n,16] p, float[2,n,32] q"
    last = _split(body.replace("AXIS", "-1"), (16, 32), parts)
    (site,) = nodes_of(last)
    assert list(site.output) == ["p", "q"] and sites_of(last) == [BIASED]
    assert "-> (tensor<2x?x16xf32>, tensor<2x?x32xf32>)" in import_model(last, "cuda").text
    assert [n.op_type for n in nodes_of(_split(body.replace("AXIS", "2"), (16, 32), parts))] == ["LinearSite"]
    odd = _split(body.replace("AXIS", "-1"), (20, 28), "float[2,n,20] p, float[2,n,28] q")
    rows = _split(body.replace("AXIS", "0"), (1, 1), "float[1,n,48] p, float[1,n,48] q")
    read = _split(body.replace("AXIS", "-1") + " y = Tanh(c)", (16, 32), f"{parts}, float[2,n,48] y")
    given = _split(body.replace("AXIS", "-1"), (16, 32), f"{parts}, float[2,n,48] c")
    for model in (odd, rows, read, given):
        assert "Split" in [n.op_type for n in nodes_of(model)] and sites_of(model) == [BIASED]


@pytest.mark.parametrize("target", ["cpu-avx2", "cpu-avx512"])
@pytest.mark.parametrize(
    ("columns", "more", "several"),
    [
        ((48, 48), "", True),
        ((32, 64), "", True),
        ((20, 76), "", False),  # of which panels would compute too many twice
        ((16, 16, 16, 16, 32), "", False),  # too many results
        ((48, 48), "y = Tanh(c)", False),
    ],
)
def test_several_results_on_a_cpu(columns: tuple[int, ...], more: str, several: bool, target: str) -> None:
    names = [f"p{i}" for i in range(len(columns))]
    outputs = [f"float[2,n,{n}] {name}" for n, name in zip(columns, names, strict=True)]
    body = f"a = MatMul(x, wide) c = Add(a, wide_b) {', '.join(names)} = Split <axis = -1> (c, s) {more}"
    model = _split(body, columns, ", ".join([*outputs, *["float[2,n,96] y"] * bool(more)]))
    nodes = nodes_of(model, parse_target(target))
    (site,) = [n for n in nodes if n.op_type == "LinearSite"]
    assert list(site.output) == (names if several else ["c"])
    assert ("Split" in [n.op_type for n in nodes]) != several


def _kinds(body: str, outputs: str, target: object = CUDA, **options: Any) -> list[tuple[str, int, int]]:
    """Operators, and the numbers of their inputs and outputs."""
    nodes = nodes_of(graph_of(body, outputs=outputs, **options), target)
    return [(n.op_type, len(n.input), len(n.output)) for n in nodes]


def test_products_of_the_same_rows() -> None:
    """They are one with as many results, where all weights are constants that are there before, and what follows is alike."""
    two, weights = "float[2,n,48] p, float[2,n,48] q", [("Concat", 2, 1)]
    assert _kinds("p = MatMul(x, w) q = MatMul(x, w)", two) == [*weights, ("LinearSite", 2, 2)]
    biased_ = "c = MatMul(x, w) p = Add(c, b) d = MatMul(x, w) q = Add(d, b)"
    assert _kinds(biased_, two) == [*weights * 2, ("LinearSite", 3, 2)]
    flat = {"x": "float[5,64] x"}
    turned = _kinds(
        "p = Gemm <transB = 1> (x, wt, b) q = Gemm <transB = 1> (x, wt, b)", "float[5,48] p, float[5,48] q", **flat
    )
    assert turned == [*weights * 2, ("LinearSite", 3, 2)]
    apart = [("LinearSite", 2, 1), ("LinearSite", 2, 1)]
    assert _kinds("p = MatMul(x, w) z = Relu(x) q = MatMul(z, w)", two) == [apart[0], ("Relu", 1, 1), apart[1]]
    assert _kinds("p = MatMul(x, w) c = MatMul(x, w) q = Relu(c)", two) == apart
    assert _kinds("p = MatMul(x, w) c = MatMul(x, w) q = Add(c, b)", two) == [
        ("LinearSite", 2, 1),
        ("LinearSite", 3, 1),
    ]
    gated = "a = MatMul(x, w) u = MatMul(x, w) p = Mul(a, u)"
    assert [n for n, *_ in _kinds(gated, "float[2,n,48] p")] == ["LinearSite", "LinearSite"]
    on_cpu = _kinds("p = MatMul(x, w) q = MatMul(x, w)", two, parse_target("cpu-avx512"))
    assert [kind for kind in on_cpu if kind[0] == "LinearSite"] == apart


def test_products_of_the_same_rows_stand_in_order() -> None:
    """The node stands where the first product ends: what reads the first may be in front of the second. Weights that a node makes
    stay apart; the columns of the program's weight are those of the graph's, side by side."""
    body = "c = MatMul(x, w) p = Tanh(c) s = Softmax(p) d = MatMul(x, w) e = Softmax(d) q = Add(s, e)"
    two = "float[2,n,48] q"
    assert [n for n, *_ in _kinds(body.replace("p = Tanh(c)", "p = Softmax(c)"), two)] == [
        *("Concat", "LinearSite", "Softmax", "Softmax", "Softmax", "Add"),
    ]
    late = "p = MatMul(x, w) i = Identity(w) q = MatMul(x, i)"
    assert [n for n, *_ in _kinds(late, "float[2,n,48] p, float[2,n,48] q")] == ["LinearSite", "Identity", "LinearSite"]
    (concat, site) = nodes_of(graph_of("p = MatMul(x, w) q = MatMul(x, w)", outputs="float[2,n,48] p, float[2,n,48] q"))
    assert helper.get_attribute_value(concat.attribute[0]) == 1 and list(site.output) == ["p", "q"]
    text = import_model(
        graph_of("p = MatMul(x, w) q = MatMul(x, w)", outputs="float[2,n,48] p, float[2,n,48] q"), "cuda"
    ).text
    assert text.count("util.call @linear_") == 1


def test_residuals() -> None:
    """A tensor of as many numbers joins a site; one of other dims does not, nor one that comes of the product itself."""
    rest, more = "float[2,n,64] x, float[2,n,48] r", "float[2,n,64] x, float[2,m,48] r"
    assert sites_of(graph_of("a = MatMul(x, w) y = Add(r, a)", x=rest)) == [(3, "(t0 + score)")]
    assert sites_of(graph_of("a = MatMul(x, w) y = Add(r, a)", x=more)) == [PLAIN]


def test_rows_made_flat() -> None:
    """Reshapes around a Gemm are not in its way where the second undoes the first."""
    flat = "i = Constant <value = int64[2] {-1, 64}> () f = Reshape(x, i) a = Gemm(f, w, b) "
    back = flat + "o = Constant <value = int64[3] {2, 5, 48}> () q = Reshape(a, o) "
    shape = {"x": "float[2,5,64] x", "outputs": "float[2,5,48] y"}
    assert sites_of(graph_of(back + "y = Relu(q)", **shape)) == [(3, "relu((score + t0))")]
    other = back.replace("2, 5, 48", "5, 2, 48")
    turned = {"x": "float[2,5,64] x", "outputs": "float[5,2,48] y"}
    assert sites_of(graph_of(other + "y = Relu(q)", **turned)) == [BIASED]


def test_gemm() -> None:
    rows = {"x": "float[n,64] x", "outputs": "float[n,48] y"}
    assert sites_of(graph_of("y = Gemm <transB = 1> (x, wt, b)", **rows)) == [BIASED]
    assert sites_of(graph_of("y = Gemm (x, w)", **rows)) == [PLAIN]
    assert sites_of(graph_of("y = Gemm (x, w, row)", **rows)) == [BIASED]
    for body in ("y = Gemm <alpha = 0.5> (x, w)", "y = Gemm <beta = 0.5> (x, w, b)"):
        assert sites_of(graph_of(body, **rows)) == []
    whole = {"x": "float[5,64] x, float[5,48] c, float[5,1] d", "outputs": "float[5,48] y"}
    for bias in "cd":  # a number for each place, or for each row
        assert sites_of(graph_of(f"y = Gemm (x, w, {bias})", **whole)) == []


def test_left_alone() -> None:
    """Weights of the run, of three dims, or so small that nothing is won; other targets, and a target without Triton."""
    run = "float[2,n,64] x, float[64,48] r"
    assert sites_of(graph_of("y = MatMul(x, r)", x=run)) == []
    assert sites_of(graph_of("y = MatMul(x, three)")) == []
    assert sites_of(graph_of("y = MatMul(x, small)", outputs="float[2,n,8] y")) == []
    model = graph_of("y = MatMul(x, w)")
    for other in (None, parse_target("cpu-avx512", "iree"), parse_target("vulkan"), parse_target("cuda", "iree")):
        assert sites_of(model, other) == []


def test_without_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ptx, "available", lambda: False)
    assert triton.missing(CUDA) and sites_of(graph_of("y = MatMul(x, w)")) == []


def test_an_output_is_no_bias_to_come() -> None:
    """A product that the model gives out stays one."""
    model = graph_of("a = MatMul(x, w) y = Add(a, b)", outputs="float[2,n,48] a, float[2,n,48] y")
    assert sites_of(model) == [PLAIN]


def test_a_bias_that_is_made_behind_the_product() -> None:
    """The site stands where its last operand is there."""
    model = graph_of(
        "a = MatMul(x, w) c = Constant <value = float[48] {BIAS}> () y = Add(a, c)".replace(
            "BIAS", ", ".join(["1"] * 48)
        )
    )
    assert sites_of(model) == [BIASED]
    assert import_model(model, "cuda").text.count("util.call @linear_") == 1


def test_a_few_bits() -> None:
    text = import_model(bits_model("n", 4), "cuda").text
    assert text.count("util.call @linear_") == 2 and "accuracy" not in text


def test_calls() -> None:
    """A call with the operands as they are, rows free or known."""
    for x, shape in (("float16[2,n,64] x", "2x?x64xf16"), ("float[3,64] x", "3x64xf32")):
        out = x.replace("64] x", "48] y")
        text = import_model(graph_of("a = MatMul(x, w) y = Add(a, b)", x=x, outputs=out), "cuda").text
        assert f"(tensor<{shape}>, tensor<64x48x{shape[-3:]}>, tensor<48x{shape[-3:]}>)" in text
        assert "scf.if" not in text

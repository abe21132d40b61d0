"""Norms of rows that become norm sites on CUDA and CPUs, those that do not, and what their nodes mean."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnx.parser
import onnxruntime
import pytest
from onnx import numpy_helper

from onnx_fa.iree.importer import import_mlir
from onnx_fa.iree.inference import infer_types
from onnx_fa.iree.kernel_report import NormReport, grouped, summary
from onnx_fa.iree.legalise.norm_sites import NORM_SITE, find_norm_sites, norm_spec_of
from onnx_fa.iree.legalise.rules import legalize
from onnx_fa.iree.legalise.writer import FLOATS, GraphWriter, attributes_of
from onnx_fa.spec.norm import NormSpec, normalise
from onnx_fa.spec.norm_words import norm_kind
from onnx_fa.spec.target import parse_target
from tests.support.triton_sources import triton_sources

CUDA = parse_target("cuda")
NUMPY = {"float": np.float32, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16}
MEAN = "m = ReduceMean <axes = [-1], keepdims = 1> (x) d = Sub(x, m) "
SQUARE = "two = Constant <value = float {2}> () q = Pow(d, two) v = ReduceMean <axes = [-1]> (q) "
ROOT = "e = Constant <value = float {1e-5}> () w = Add(v, e) r = Sqrt(w) "
SPELLED = MEAN + SQUARE + ROOT + "n = Div(d, r) "
RMS = "q = Mul(x, x) v = ReduceMean <axes = [2]> (q) " + ROOT + "i = Reciprocal(r) n = Mul(x, i) "


@pytest.fixture(scope="module", autouse=True)
def sources() -> Iterator[None]:
    """What becomes a site does not depend on what Triton makes of its source, which tests/kernels/test_norm.py tries."""
    with triton_sources():
        yield


def graph_of(body: str, *, x: str = "float[2,n,48] x", y: str = "float[2,n,48] y", opset: int = 17) -> onnx.ModelProto:
    imports = f'["" : {opset}, "com.microsoft" : 1]'
    model = onnx.parser.parse_model(f"<ir_version: 9, opset_import: {imports}> g ({x}) => ({y}) {{ {body} }}")
    rng, kind = np.random.default_rng(0), NUMPY[x.split("[")[0]]
    read = {name for node in model.graph.node for name in node.input}
    for name, shape in {"s": (48,), "b": (48,), "row": (1, 1, 48), "one": (1,)}.items():
        if name in read:
            model.graph.initializer.append(numpy_helper.from_array(rng.standard_normal(shape).astype(kind), name))
    if "tiny" in read:
        model.graph.initializer.append(numpy_helper.from_array(np.array(1e-3, kind), "tiny"))
    return model


def found_in(model: onnx.ModelProto, target: Any = CUDA) -> tuple[onnx.ModelProto, list[NormReport]]:
    """The model as the importer gets it, and what is said of its norms."""
    infer_types(model, {})
    made = legalize(model, target=target)
    infer_types(made, {})
    return made, find_norm_sites(made, target=target)


def kinds_of(model: onnx.ModelProto) -> list[str]:
    made, told = found_in(model)
    sites = [n for n in made.graph.node if f"{n.domain}.{n.op_type}" == NORM_SITE]
    assert len(sites) == len(told) and all(r.kernel and not r.kept for r in told)
    return [norm_kind(r.spec) for r in told]


LAYER, LAYER_ALL = "layer norm", "layer norm, scale, bias"


@pytest.mark.parametrize(
    ("body", "wanted"),
    [
        ("y = LayerNormalization <axis = -1> (x, s, b)", [LAYER_ALL]),
        ("y = LayerNormalization <axis = 2> (x, s)", ["layer norm, scale"]),
        ("y = LayerNormalization <axis = 1> (x, s, b)", []),
        (SPELLED + "y = Identity(n)", [LAYER]),
        (SPELLED + "p = Mul(n, s) y = Add(p, b)", [LAYER_ALL]),
        (SPELLED + "p = Mul(s, n) y = Add(b, p)", [LAYER_ALL]),
        (SPELLED + "p = Add(n, b) y = Mul(p, s)", ["layer norm, bias"]),
        (SPELLED + "p = Mul(n, row) y = Add(p, b)", [LAYER]),
        (SPELLED + "p = Mul(n, s) y = Mul(p, s)", ["layer norm, scale"]),
        (SPELLED + "p = Mul(n, s) a = Add(p, b) y = Add(a, n)", [LAYER]),  # n is read twice
        (SPELLED + "y = Add(n, d)", []),  # what lies within the norm is read
        (SPELLED + "y = Add(n, v)", []),
        (MEAN + SQUARE + ROOT + "n = Div(r, d) y = Identity(n)", []),
        (MEAN + SQUARE + ROOT + "n = Div(x, r) y = Identity(n)", []),
        (MEAN + SQUARE.replace("{2}", "{3}") + ROOT + "y = Div(d, r)", []),
        (MEAN + SQUARE.replace("-1", "1") + ROOT + "y = Div(d, r)", []),
        (MEAN.replace("-1", "1") + SQUARE + ROOT + "y = Div(d, r)", ["RMS norm"]),  # of d, whatever that is
        (SPELLED.replace("1e-5", "-1e-5") + "y = Identity(n)", []),
        (RMS + "y = Mul(n, s)", ["RMS norm, scale"]),
        (RMS + "y = Add(n, i)", []),
        ("y = SimplifiedLayerNormalization <axis = -1> (x, s)", ["RMS norm, scale"]),
        ("y = com.microsoft.SkipLayerNormalization (x, x, s, b)", [LAYER_ALL]),  # x twice is no sum of two
        ("a = Relu(x) y = com.microsoft.SkipLayerNormalization (x, a, s, b)", [f"sum, {LAYER_ALL}"]),
        ("a = Relu(x) y = com.microsoft.SkipSimplifiedLayerNormalization (x, a, s)", ["sum, RMS norm, scale"]),
    ],
)
def test_found(body: str, wanted: list[str]) -> None:
    shapes = "float[2,3,48]"
    assert kinds_of(graph_of(body, x=f"{shapes} x", y=f"{shapes} y")) == wanted


WIDE = "c = Cast <to = 1> (x) " + RMS.replace("(x, x)", "(c, c)").replace("Mul(x, i)", "Mul(c, i)")


@pytest.mark.parametrize(
    ("body", "wanted"),
    [
        ("y = LayerNormalization (x, s, b)", ("f16", "f16", "f16", "f16")),
        (WIDE + "h = Cast <to = 10> (n) y = Mul(h, s)", ("f16", "f16", "f16", "")),
        (WIDE + "f = Cast <to = 1> (s) p = Mul(n, f) y = Cast <to = 10> (p)", ("f16", "f16", "f32", "")),
        (WIDE + "h = Cast <to = 10> (n) z = Cast <to = 1> (h) y = Cast <to = 10> (z)", ("f16", "f16", "", "")),
        ("y = SimplifiedLayerNormalization (x, s)", ("f16", "f16", "f16", "")),
        ("y = LayerNormalization <stash_type = 16> (x, s, b)", None),
        (MEAN + "q = Mul(d, d) v = ReduceMean <axes = [-1]> (q) w = Add(v, tiny) r = Sqrt(w) y = Div(d, r)", None),
    ],
)
def test_halves(body: str, wanted: tuple[str, ...] | None) -> None:
    """Statistics in f32 alone; what rounds in between is the site's too, but for a second time."""
    _, told = found_in(graph_of(body, x="float16[2,3,48] x", y="float16[2,3,48] y"))
    found = [(r.spec.dtype, r.spec.result, r.spec.scale, r.spec.bias) for r in told]
    assert found == ([wanted] if wanted else [])


def test_the_sum_in_front() -> None:
    """It joins the norm where those that read it come later, and is a result then."""
    x, end = "float[2,3,48] x, float[2,3,48] z", "n = LayerNormalization (t, s, b) "
    for body, wanted in (
        (f"t = Add(x, z) {end} y = Add(n, t)", (True, True)),
        (f"t = Add(x, z) {end} y = Relu(n)", (True, False)),
        (f"t = Add(x, z) u = Relu(t) {end} y = Add(n, u)", (False, False)),
        (f"t = Add(x, b) {end} y = Relu(n)", (False, False)),
        (f"t = Sub(x, z) {end} y = Relu(n)", (False, False)),
    ):
        _, (told,) = found_in(graph_of(body, x=x, y="float[2,3,48] y"))
        assert (told.spec.skip, told.spec.gives_sum) == wanted, body
    _, (told,) = found_in(graph_of(f"t = Add(x, z) {end}", x=x, y="float[2,3,48] n, float[2,3,48] t"))
    assert told.spec.gives_sum  # the model gives it out
    free = x.replace("[2,3,", "[2,k,")
    _, (told,) = found_in(graph_of(f"t = Add(x, z) {end} y = Add(n, t)", x=free, y="float[2,k,48] y"))
    assert told.spec.gives_sum and told.spec.lead == (2, "d1")


def test_others_keep_theirs() -> None:
    """Only CUDA and CPUs have such kernels; where they have none the report says why; unknown lengths and statistics are no
    sites."""
    norm = "y = LayerNormalization (x, s, b)"
    assert found_in(graph_of(norm), parse_target("vulkan"))[1] == found_in(graph_of(norm), None)[1] == []
    assert [norm_kind(r.spec) for r in found_in(graph_of(norm), parse_target("cpu-avx512"))[1] if r.kernel] == [
        LAYER_ALL
    ]
    made, told = found_in(graph_of(norm), parse_target("cpu-neon"))
    assert [r.kept for r in told] == ["vectors of four lanes"] and made.graph.node[0].op_type == "LayerNormalization"
    made, told = found_in(graph_of(norm), parse_target("cuda", "iree"))
    assert [r.kept for r in told] == ["--kernels iree"] and made.graph.node[0].op_type == "LayerNormalization"
    assert summary(told, "norm") == "1 norm, 0 with a kernel, 1 left to the compiler (--kernels iree)"
    assert found_in(graph_of(norm, x="float[2,3,n] x", y="float[2,3,n] y"))[1] == []
    assert found_in(graph_of("y, m, v = LayerNormalization (x, s, b)", y="float[2,n,48] y, float[2,n,1] m"))[1] == []


@pytest.mark.parametrize(
    ("body", "x"),
    [
        ("t = Add(x, z) n = LayerNormalization <epsilon = 0.1> (t, s, b) y = Add(n, t)", "float[2,3,48]"),
        (SPELLED + "p = Mul(n, s) q2 = Add(p, b) y = Add(q2, z)", "float[2,3,48]"),
        ("t = Add(x, z) n = LayerNormalization <epsilon = 0.1> (t, s, b) y = Add(n, t)", "float16[2,3,48]"),
        (WIDE + "h = Cast <to = 10> (n) m = Mul(h, s) y = Add(m, z)", "float16[2,3,48]"),
        ("n = SimplifiedLayerNormalization <epsilon = 0.1> (x, s) y = Add(n, z)", "float[2,3,48]"),
    ],
)
def test_nodes_mean_what_they_replace(body: str, x: str) -> None:
    """The model with its norm sites in float64 against the original in onnxruntime, for plain numbers and for large ones."""
    model = graph_of(body, x=f"{x} x, {x} z", y=f"{x} y")
    kind = NUMPY[x.split("[")[0]]
    options = onnxruntime.SessionOptions()
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    made, told = found_in(graph_of(body, x=f"{x} x, {x} z", y=f"{x} y"))
    assert len(told) == 1
    for size in (1.0, 1e3):
        rng = np.random.default_rng(1)
        given = {name: (rng.standard_normal((2, 3, 48)) * size).astype(kind) for name in "xz"}
        (want,) = session.run(None, given)
        got = _evaluated(made, given)["y"]
        assert np.allclose(
            got, want.astype(np.float64), rtol=0, atol=np.abs(got).max() * (2e-3 if kind is np.float16 else 1e-6)
        )


def _evaluated(model: onnx.ModelProto, given: dict[str, Any]) -> dict[str, Any]:
    """All values of a graph of norm sites, sums and constants, in float64."""
    g = GraphWriter(model)
    values = {**{t.name: numpy_helper.to_array(t) for t in model.graph.initializer}, **given}
    for node in model.graph.node:
        if f"{node.domain}.{node.op_type}" == NORM_SITE:
            types = [(tuple(g.shape(name) or ()), FLOATS[g.kind(name)]) for name in node.input]
            spec = norm_spec_of(types, attributes_of(node), len(node.output))  # type: ignore[arg-type]
            values.update(zip(node.output, normalise(spec, [values[name] for name in node.input]), strict=True))
        elif node.op_type == "Add":
            values[node.output[0]] = np.asarray(values[node.input[0]], np.float64) + values[node.input[1]]
        else:
            assert node.op_type in ("Constant", "Cast"), node.op_type
    return values


def test_the_import_calls_it() -> None:
    """The program calls the function of the spec, whose text is in it, once for equal norms."""
    body = "t = Add(x, z) n = LayerNormalization (t, s, b) u = Add(n, t) y = LayerNormalization (u, s, b)"
    x = "float16[2,3,48]"
    done = import_mlir(graph_of(body, x=f"{x} x, {x} z", y=f"{x} y"), {}, target=CUDA)
    assert [r.spec.gives_sum for r in done.norms] == [True, False]
    for report in done.norms:
        assert done.text.count(f"util.func private @{report.kernel}(") == 1
        assert done.text.count(f"call @{report.kernel}(") == 1
    plain = NormSpec((2, 3), 48, "f16", "f16", 1e-5, True, "f16", "f16")
    assert grouped([NormReport("a", plain, "k"), NormReport("b", plain, "k")])[0].to_dict() == {
        "count": 2,
        "rows": 6,
        "N": 48,
        "dtype": "f16",
        "result": "f16",
        "kind": LAYER_ALL,
        "gives_sum": False,
        "kernel": "k",
        "kept": "",
        "tiles": None,
        "tuning": None,
        "names": ["a", "b"],
    }


def test_a_cast_between_two_norms_is_part_of_one() -> None:
    """FunASR casts in front of every norm: where the norm before it has taken that, the next reads nothing in front of it."""
    second = SPELLED
    for name in "m d two q v e w r n".split():
        second = re.sub(rf"\b{name}\b", f"{name}2", second)
    second = re.sub(r"\bx\b", "c", second)
    body = f"{SPELLED} p = Mul(n, s) a = Add(p, b) c = Cast <to = 1> (a) {second} o = Mul(n2, s) f = Add(o, b) y = Add(f, c)"
    made, told = found_in(graph_of(body))
    assert told
    have = {i.name for i in (*made.graph.input, *made.graph.initializer)}
    for node in made.graph.node:
        assert have.issuperset(node.input), node
        have.update(node.output)

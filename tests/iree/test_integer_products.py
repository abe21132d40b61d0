"""Products of bytes that become linear sites, those that do not, and their numbers beside onnxruntime's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import TensorProto as T
from onnx import helper as h
from onnx import numpy_helper

from onnx_fa.iree.compile import compile_model, import_model
from onnx_fa.iree.kernel_report import grouped
from onnx_fa.iree.run import load_module
from onnx_fa.spec.linear_words import weight_words
from onnx_fa.spec.target import Target, foreign_cpu, parse_target
from tests.iree.test_linear_sites import nodes_of
from tests.support.joined_models import join_models
from tests.support.kernel_harness import asked_for
from tests.support.ort_run import run as run_ort
from tests.support.triton_sources import triton_sources

AMX, AVX2 = parse_target("cpu-amx"), parse_target("cpu-avx2")
HOST = parse_target("cpu-host")
TYPES = {np.uint8: T.UINT8, np.int8: T.INT8}


@dataclass(frozen=True)
class Product:
    """x (*lead, K) less `x_zero` times w (K, N) less `w_zero`, which becomes f32; a scale for all columns or for each, a bias.
    None: no zero point. `form`: by MatMulInteger, by DequantizeLinear around a MatMul, or DynamicQuantizeLinear before a
    MatMulInteger."""

    lead: tuple[int, ...] = (2, 5)
    K: int = 64
    N: int = 48
    x: type = np.uint8
    w: type = np.int8
    x_zero: int | None = 117
    w_zero: int | None = None
    columns: bool = False
    bias: bool = True
    form: str = "integers"
    turned: bool | None = None
    """Of dequantised products, by a Gemm: whether the weight is (N, K)."""
    small: int = 0
    """The numbers of the weight leave out so many of its type at both ends."""

    def model(self, reads: str = "") -> onnx.ModelProto:
        """`reads`: another op that reads the sums."""
        rng = np.random.default_rng(0)
        bounds = np.iinfo(self.w)
        w = rng.integers(bounds.min + self.small, bounds.max - self.small + 1, (self.K, self.N)).astype(self.w)
        scale = rng.uniform(0.01, 0.02, self.N if self.columns else ()).astype(np.float32)
        constants = {"w": w, "s": scale, "b": rng.standard_normal(self.N).astype(np.float32), "xs": np.float32(0.03)}
        zeros = []
        for name, zero, type_ in (("xz", self.x_zero, self.x), ("wz", self.w_zero, self.w)):
            if zero is not None:
                constants[name] = np.array(zero, type_)
                zeros.append(name)
        if zeros == ["wz"]:
            constants["xz"] = np.array(0, self.x)
            zeros = ["xz", "wz"]
        nodes, kind, given = [], TYPES[self.x], "x"
        if self.form == "dequantized":
            axis = 0 if self.turned else 1
            if self.turned:
                constants["w"] = np.ascontiguousarray(w.T)
            nodes += [
                h.make_node("DequantizeLinear", ["x", "xs", *(["xz"] if "xz" in zeros else [])], ["xf"]),
                h.make_node("DequantizeLinear", ["w", "s", *(["wz"] if "wz" in zeros else [])], ["wf"], axis=axis),
                h.make_node("MatMul", ["xf", "wf"], ["f"], name="product")
                if self.turned is None
                else h.make_node("Gemm", ["xf", "wf", "b"], ["f"], name="product", transB=int(self.turned)),
            ]
            if "wz" in zeros and self.columns:
                constants["wz"] = np.full(self.N, self.w_zero, self.w)
        else:
            if self.form == "dynamic":
                constants.pop("xz", None)
                kind, given = T.FLOAT, "q"
                nodes.append(h.make_node("DynamicQuantizeLinear", ["x"], ["q", "qs", "xz"]))
                nodes.append(h.make_node("Mul", ["qs", "s"], ["all"]))
                zeros = ["xz", *(["wz"] if "wz" in zeros else [])]
            nodes += [
                h.make_node("MatMulInteger", [given, "w", *zeros], ["i"], name="product"),
                h.make_node("Cast", ["i"], ["c"], to=T.FLOAT),
                h.make_node("Mul", ["c", "all" if self.form == "dynamic" else "s"], ["f"]),
            ]
        nodes.append(h.make_node("Add", ["f", "b"], ["y"]) if self.bias else h.make_node("Relu", ["f"], ["y"]))
        outputs = [h.make_tensor_value_info("y", T.FLOAT, [*self.lead, self.N])]
        if reads:
            nodes.append(h.make_node(reads, ["i"], ["other"]))
            outputs.append(h.make_tensor_value_info("other", T.INT32, [*self.lead, self.N]))
        used = {name for node in nodes for name in node.input}
        graph = h.make_graph(
            nodes,
            "g",
            [h.make_tensor_value_info("x", kind, [*self.lead, self.K])],
            outputs,
            [numpy_helper.from_array(np.asarray(a), name) for name, a in constants.items() if name in used],
        )
        return h.make_model(graph, opset_imports=[h.make_opsetid("", 17)], ir_version=9)

    def draw(self) -> np.ndarray[Any, Any]:
        rng = np.random.default_rng(1)
        if self.form == "dynamic":
            return rng.standard_normal((*self.lead, self.K)).astype(np.float32)
        return rng.integers(np.iinfo(self.x).min, np.iinfo(self.x).max + 1, (*self.lead, self.K)).astype(self.x)


Array = np.ndarray[Any, Any]


def run_all(given: Mapping[str, Product], target: Target, folder: Path) -> dict[str, Array]:
    """What the products give in IREE, compiled as one model."""
    compile_model(join_models([p.model() for p in given.values()]), folder / "m.vmfb", target, parameters="embed")
    results = load_module(folder / "m.vmfb")(*(p.draw() for p in given.values()))
    return dict(zip(given, map(np.asarray, results), strict=True))


def compare(product: Product, x: Array, got: Array) -> None:
    """With onnxruntime, its optimiser off and, where that makes nothing else of DequantizeLinear
    (docs/developer/onnxruntime-bugs.md), on."""
    for optimise in (False, *[True] * (product.form != "dequantized")):
        (want,) = run_ort(product.model(), {"x": x}, optimise=optimise)
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5 * max(1.0, float(np.abs(want).max())))


def calls(product: Product, target: Target) -> int:
    return import_model(product.model(), target).text.count("util.call @linear_")


PRODUCTS = {
    "plain": Product(),
    "without zeros": Product(x_zero=None),
    "signed": Product(x=np.int8, x_zero=-3),
    "signed, without zeros": Product(x=np.int8, x_zero=None),
    "weight without sign": Product(w=np.uint8, w_zero=128),
    "weight near its middle": Product(w=np.uint8, w_zero=121, small=10),
    "weight with a zero point": Product(w_zero=4, small=10),
    "columns": Product(columns=True),
    "function": Product(bias=False),
    "odd": Product((1, 7), 76, 53, x_zero=255),
    "one row": Product((1, 1), 128, 64),
    "many": Product((3, 40), 128, 96),
    "dequantized": Product(form="dequantized"),
    "dequantized, columns": Product(form="dequantized", columns=True, x=np.int8, x_zero=7),
    "dequantized, weight without sign": Product(form="dequantized", w=np.uint8, w_zero=128),
    "Gemm": Product((9,), form="dequantized", turned=False, bias=False),
    "Gemm, turned": Product((9,), form="dequantized", turned=True, columns=True, bias=False),
    "dynamic": Product(form="dynamic"),
    "dynamic, columns": Product(form="dynamic", columns=True, w=np.uint8, w_zero=128),
}
KEPT = {
    "weight far from its middle": Product(w=np.uint8, w_zero=90),
    "weight without sign or zero": Product(w=np.uint8),
    "K": Product(K=62),
    "narrow": Product(N=24),
    "dequantized, far from its middle": Product(form="dequantized", w=np.uint8, w_zero=3),
}


@pytest.mark.parametrize("name", PRODUCTS)
def test_found(name: str) -> None:
    """One site, whatever the spelling; on processors without such products none, and no integers are multiplied."""
    assert calls(PRODUCTS[name], AMX) == 1
    (site,) = grouped(import_model(PRODUCTS[name].model(), AMX).linear)
    assert weight_words(site.spec) == "i8" and site.kernel and not site.kept
    assert calls(PRODUCTS[name], replace(AMX, byte_dots=False)) == 0
    text = import_model(PRODUCTS[name].model(), AVX2).text
    assert text.count("util.call @linear_") == 1 and 'onnx.MatMulInteger"' not in text


@pytest.mark.parametrize("name", ["plain", "dequantized", "dynamic", "signed"])
def test_on_cuda(name: str) -> None:
    """Floats are multiplied, which hold the weight's numbers."""
    with triton_sources():
        text = import_model(PRODUCTS[name].model(), parse_target("cuda")).text
    assert text.count("util.call @linear_") == 1 and "MatMulInteger" not in text


@pytest.mark.parametrize("name", KEPT)
def test_kept(name: str) -> None:
    text = import_model(KEPT[name].model(), AMX).text
    assert "util.call @linear_" not in text and "MatMulInteger" not in text


@pytest.mark.parametrize("reads", ["Abs", "Identity"])
def test_sums_that_something_else_reads(reads: str) -> None:
    assert "LinearSite" not in {n.op_type for n in nodes_of(Product().model(reads), AMX)}
    assert "MatMulInteger" in {n.op_type for n in nodes_of(Product().model(reads), AVX2)}


def test_sums_that_are_cast_to_another_type() -> None:
    model = Product(bias=False).model()
    for node in model.graph.node:
        if node.op_type == "Cast":
            node.attribute[0].i = T.DOUBLE
    scale = next(t for t in model.graph.initializer if t.name == "s")
    scale.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(scale).astype(np.float64), "s"))
    model.graph.output[0].type.tensor_type.elem_type = T.DOUBLE
    assert "LinearSite" not in {n.op_type for n in nodes_of(model, AMX)}


@pytest.mark.parametrize("change", ["weight", "rows", "zeros"])
def test_what_is_no_site(change: str) -> None:
    """A weight of the run, a zero point for each row of x, zero points of the weight that differ."""
    model = Product(x_zero=3, w_zero=0).model()
    constants = {t.name: t for t in model.graph.initializer}
    if change == "weight":
        model.graph.input.append(h.make_tensor_value_info("w", T.INT8, [64, 48]))
        model.graph.initializer.remove(constants["w"])
    elif change == "rows":
        constants["xz"].CopyFrom(numpy_helper.from_array(np.arange(5, dtype=np.uint8), "xz"))
    else:
        constants["wz"].CopyFrom(numpy_helper.from_array(np.arange(48, dtype=np.int8), "wz"))
    assert "LinearSite" not in {n.op_type for n in nodes_of(model, AMX)}


ALL = {**PRODUCTS, **KEPT}
BY_AVX2 = ("plain", "signed", "weight without sign or zero", "dequantized, columns", "dynamic")


@pytest.fixture(scope="module")
def numbers(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Array]:
    names = asked_for(request, "name") or ALL
    return run_all({name: ALL[name] for name in names}, HOST, tmp_path_factory.mktemp("products"))


@pytest.fixture(scope="module")
def numbers_of_avx2(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Array]:
    if why := foreign_cpu(AVX2):
        pytest.skip(why)
    names = asked_for(request, "name") or BY_AVX2
    return run_all({name: ALL[name] for name in names}, AVX2, tmp_path_factory.mktemp("products"))


@pytest.mark.parametrize("name", ALL)
def test_numbers(name: str, numbers: dict[str, Array]) -> None:
    compare(ALL[name], ALL[name].draw(), numbers[name])


@pytest.mark.parametrize("name", BY_AVX2)
def test_numbers_for_avx2(name: str, numbers_of_avx2: dict[str, Array]) -> None:
    compare(ALL[name], ALL[name].draw(), numbers_of_avx2[name])


def test_casts_to_bytes(tmp_path: Path) -> None:
    """Numbers above 127, too."""
    kinds = (T.FLOAT, T.FLOAT16, T.DOUBLE)
    inputs = [h.make_tensor_value_info(f"x{kind}", kind, [256]) for kind in kinds]
    outputs = [h.make_tensor_value_info(f"y{kind}", T.UINT8, [256]) for kind in kinds]
    nodes = [h.make_node("Cast", [f"x{kind}"], [f"y{kind}"], to=T.UINT8) for kind in kinds]
    graph = h.make_graph(nodes, "g", inputs, outputs)
    model = h.make_model(graph, opset_imports=[h.make_opsetid("", 17)], ir_version=9)
    given = [np.arange(256).astype(h.tensor_dtype_to_np_dtype(kind)) for kind in kinds]
    for target in (HOST, *[AVX2] * (not foreign_cpu(AVX2))):
        compile_model(model, tmp_path / "m.vmfb", target, parameters="embed")
        results = load_module(tmp_path / "m.vmfb")(*given)
        assert [np.asarray(got).view(np.uint8).tolist() for got in results] == [list(range(256))] * len(kinds)


def test_equal_numbers(tmp_path: Path) -> None:
    """The range of zeros alone is nothing, and a scale of nothing would divide by zero."""
    product = Product(form="dynamic")
    compile_model(product.model(), tmp_path / "m.vmfb", HOST, parameters="embed")
    run = load_module(tmp_path / "m.vmfb")
    for value in (0.0, 2.5, -1.0):
        x = np.full((2, 5, 64), value, np.float32)
        compare(product, x, np.asarray(run(x)[0]))


@st.composite
def products(draw: st.DrawFn) -> Product:
    x, w = draw(st.sampled_from([np.uint8, np.int8])), draw(st.sampled_from([np.uint8, np.int8]))

    def zero(type_: type) -> st.SearchStrategy[int | None]:
        return st.one_of(st.none(), st.integers(int(np.iinfo(type_).min), int(np.iinfo(type_).max)))

    form = draw(st.sampled_from(["integers", "dequantized", "dynamic"]))
    turned = draw(st.sampled_from([None, False, True])) if form == "dequantized" else None
    return Product(
        draw(st.sampled_from([(1,), (3,), (40,)] if turned is not None else [(1,), (3,), (2, 9), (1, 33), (2, 1, 5)])),
        draw(st.sampled_from([16, 36, 64, 76, 128, 250])),
        draw(st.sampled_from([16, 32, 48, 77])),
        np.uint8 if form == "dynamic" else x,
        w,
        draw(zero(x)) if form != "dynamic" else 0,
        draw(st.sampled_from([None, 0, 128 if w is np.uint8 else 1, draw(zero(w))])),
        draw(st.booleans()),
        draw(st.booleans()),
        form,
        turned,
        small=draw(st.sampled_from([0, 20])),
    )


@given(st.lists(products(), min_size=4, max_size=4))
@settings(max_examples=2, deadline=None, suppress_health_check=list(HealthCheck))
def test_random_products(tmp_path: Path, drawn: list[Product]) -> None:
    """Side by side; those that Hypothesis draws first are all small, and one."""
    given_ = {str(i): product for i, product in enumerate(dict.fromkeys(drawn))}
    for name, got in run_all(given_, HOST, tmp_path).items():
        compare(given_[name], given_[name].draw(), got)

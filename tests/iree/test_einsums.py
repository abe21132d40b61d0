"""Einsum of rows and a weight: right with free lengths, which IREE takes for 1, and a product that kernels are made for."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import TensorProto
from onnx import helper as h
from onnx import numpy_helper as nh

import onnx_fa
from onnx_fa.iree.inference import infer_types
from onnx_fa.iree.legalise.rules import legalize
from tests.support.ort_run import run

SIZES = {"a": 3, "b": 5, "m": 6, "n": 7, "u": 2, "h": 3}


def einsum(equation: str, weight: int = 1, free: str = "ab", constant: bool = True) -> onnx.ModelProto:
    """Axes a and b are free lengths; `weight` says which operand is one."""
    given, result = equation.split("->") if "->" in equation else (equation, "")
    parts = given.split(",")
    rng = np.random.default_rng(0)
    names, inits, infos = ["p0", "p1"], [], []
    for i, part in enumerate(parts):
        if constant and i == weight:
            values = rng.standard_normal([SIZES[c] for c in part]).astype(np.float32)
            inits.append(nh.from_array(values, names[i]))
        else:
            dims = [c.upper() if c in free else SIZES[c] for c in part]
            infos.append(h.make_tensor_value_info(names[i], TensorProto.FLOAT, dims))
    node = h.make_node("Einsum", names, ["y"], "node", equation=equation)
    out = h.make_tensor_value_info("y", TensorProto.FLOAT, [None] * len(result) if result else None)
    graph = h.make_graph([node], "g", infos, [out], inits)
    return h.make_model(graph, opset_imports=[h.make_opsetid("", 18)], ir_version=9)


def ops(model: onnx.ModelProto) -> list[str]:
    infer_types(model, {})
    return [n.op_type for n in legalize(model).graph.node]


PRODUCTS = {
    "abm,muh->abuh": 1,  # heads out of rows
    "abuh,uhm->abm": 1,  # and back
    "abm,nm->abn": 1,
    "muh,abm->abuh": 0,
    "abm,muh->aubh": 1,
    "mab,mn->nab": 1,
    "am,mn": 1,
    "abuh,hn->abun": 1,
    "ahub,uhn->abn": 1,
}


@pytest.mark.parametrize("equation", PRODUCTS)
def test_rows_by_a_weight_are_a_product(equation: str, tmp_path: Path) -> None:
    model = einsum(equation, PRODUCTS[equation])
    assert "Einsum" not in ops(model) and "MatMul" in ops(model)
    onnx_fa.compile(model, tmp_path / "m.vmfb")
    (name,) = (i.name for i in model.graph.input)
    part = equation.split("->")[0].split(",")[1 - PRODUCTS[equation]]
    for sizes in (SIZES, SIZES | {"a": 1}, SIZES | {"b": 1}):
        x = np.random.default_rng(1).standard_normal([sizes[c] for c in part]).astype(np.float32)
        (want,), (got,) = run(model, {name: x}), onnx_fa.run(tmp_path / "m.vmfb", x)
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)
        assert got.shape == want.shape


SUMS = ("ab,ab->a", "ab,ba->b", "abm,abm->ab", "abm,mba->ma", "abm,bam->b")


@pytest.mark.parametrize("equation", SUMS)
@pytest.mark.parametrize("opset", [12, 18])
def test_sums_of_products(equation: str, opset: int, tmp_path: Path) -> None:
    """Of free sizes, and of a half of an axis that the run computes."""
    given, result = equation.split("->")
    left, right = given.split(",")
    perm = [left.index(c) for c in right]
    kinds = {c: c if c in "ab" else str(SIZES[c]) for c in left}
    text = f"""<ir_version: 9, opset_import: ["" : {opset}]> g (float[{",".join(kinds[c] for c in left)}] x) => (float y) {{
        zero = Constant<value_ints = [0]>() one = Constant<value_ints = [1]>() two = Constant<value_ints = [2]>()
        sizes = Shape(x) size = Slice(sizes, zero, one, zero) half = Div(size, two) part = Slice(x, zero, half, zero)
        turned = Transpose<perm = {perm}>(part) y = Einsum<equation = "{equation}">(part, turned) }}"""
    model = onnx.parser.parse_model(text)
    model.graph.output[0].CopyFrom(h.make_tensor_value_info("y", TensorProto.FLOAT, [f"r{c}" for c in result]))
    assert "Einsum" not in ops(model)
    onnx_fa.compile(model, tmp_path / "m.vmfb")
    for sizes in ({"a": 6, "b": 5}, {"a": 4, "b": 9}):
        x = np.random.default_rng(1).standard_normal([(SIZES | sizes)[c] for c in left]).astype(np.float32)
        (want,), (got,) = run(model, {"x": x}), onnx_fa.run(tmp_path / "m.vmfb", x)
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)
        assert got.shape == want.shape


@pytest.mark.parametrize(
    ("equation", "constant"),
    [
        ("abm,bmn->abn", True),  # a batch
        ("abm,mn->ab", True),  # a sum of the weight's own axis
        ("abm,mn->an", True),  # and of the rows'
        ("ab,mn->abmn", True),  # nothing is summed
        ("am,m->a", True),  # a column
        ("m,mn->n", True),
        ("aam,mn->an", True),  # a diagonal
        ("abm,mn->abn", False),  # no weight
    ],
)
def test_others_stay(equation: str, constant: bool) -> None:
    assert ops(einsum(equation, constant=constant, free="")) == ["Einsum"]


REPEATED = {
    "a column of numbers for each query": ("ijb,jbd->ibd", ("I", "J", 1), ("J", "B", 6)),
    "one row of heads": ("bhij,bhjd->bhid", ("B", 1, "I", "J"), ("B", 3, "J", 6)),
    "one batch": ("bhij,bhjd->bhid", (1, 3, "I", "J"), ("B", 3, "J", 6)),
    "behind dots": ("...ij,...jd->...id", ("B", 1, "I", 4), ("B", 3, 4, 6)),
    "nothing summed": ("ab,ab->ab", (1, "B"), ("A", "B")),
    "known sizes": ("bij,bjd->bid", (1, 4, 5), (2, 5, 6)),
    "summed": ("ij,jk->ik", ("I", 1), ("J", 5)),
}


@pytest.mark.parametrize("name", REPEATED)
def test_axes_that_one_operand_has_once_are_repeated(name: str, tmp_path: Path) -> None:
    """Of the first operand, by which ONNX's inference and IREE take the result to have one, too. What follows reads the whole."""
    equation, *dims = REPEATED[name]
    infos = [h.make_tensor_value_info(f"p{i}", TensorProto.FLOAT, shape) for i, shape in enumerate(dims)]
    nodes = [h.make_node("Einsum", ["p0", "p1"], ["e"], "node", equation=equation), h.make_node("Neg", ["e"], ["y"])]
    rank = 4 if "..." in equation else len(equation.split("->")[1])
    out = h.make_tensor_value_info("y", TensorProto.FLOAT, [None] * rank)
    model = h.make_model(h.make_graph(nodes, "g", infos, [out]), opset_imports=[h.make_opsetid("", 18)], ir_version=9)
    onnx_fa.compile(model, tmp_path / "m.vmfb")
    sizes = {"A": 3, "B": 2, "I": 4, "J": 5}
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal([sizes.get(d, d) for d in shape]).astype(np.float32) for shape in dims]  # type: ignore[call-overload,misc]
    (want,), (got,) = run(model, {"p0": arrays[0], "p1": arrays[1]}), onnx_fa.run(tmp_path / "m.vmfb", *arrays)
    assert got.shape == want.shape
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)

"""Fused projections: each part of the columns is a result of its own, whatever their order in the weight."""

from __future__ import annotations

import random
from itertools import pairwise
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import pytest
from onnx import helper as h
from onnx import numpy_helper as nh

import onnx_fa
from onnx_fa.iree.compile import compile_model
from onnx_fa.iree.kernels import plan_kernels
from onnx_fa.iree.projections import part_projections
from onnx_fa.spec.target import parse_target
from tests.support.ort_run import TOLERANCE, run

H, D, S, WIDTH = 2, 16, 7, 24
N = 3 * H * D
PARTS = {
    "timm's ViT": (
        N,
        f"[0, 0, 3, {H}, {D}]",
        "t = Transpose<perm = [2, 0, 3, 1, 4]>(r)\n q = Gather<axis = 0>(t, zero)\n k = Gather<axis = 0>(t, one)\n"
        "v = Gather<axis = 0>(t, last)",
    ),
    "MaxViT": (
        N,
        f"[0, 0, 3, {H}, {D}]",
        "t = Transpose<perm = [0, 3, 2, 1, 4]>(r)\n qs, ks, vs = Split<axis = 2>(t, ones)\n q = Squeeze(qs, two)\n"
        "k = Squeeze(ks, two)\n v = Squeeze(vs, two)",
    ),
    "GPT-NeoX": (
        N,
        f"[0, 0, {H}, {3 * D}]",
        "t = Transpose<perm = [0, 2, 1, 3]>(r)\n q, k, v = Split<axis = -1>(t, widths)",
    ),
    "GPT-NeoX, by Slices": (
        N,
        f"[0, 0, {H}, {3 * D}]",
        "t = Transpose<perm = [0, 2, 1, 3]>(r)\n q = Slice(t, a0, a1, three)\n k = Slice(t, a1, a2, three)\n"
        "v = Slice(t, a2, end, three)",
    ),
    "BLOOM": (
        N,
        f"[0, 0, {H}, 3, {D}]",
        "qh = Gather<axis = 3>(r, zero)\n kh = Gather<axis = 3>(r, one)\n vh = Gather<axis = -2>(r, last)\n"
        "q = Transpose<perm = [0, 2, 1, 3]>(qh)\n k = Transpose<perm = [0, 2, 1, 3]>(kh)\n"
        "v = Transpose<perm = [0, 2, 1, 3]>(vh)",
    ),
    "InternLM2": (
        2 * N,
        f"[0, 0, {H}, 6, {D}]",
        "qg = Slice(r, zeros, four, three)\n qh = Reshape(qg, heads)\n kh = Gather<axis = 3>(r, four0)\n"
        "vh = Gather<axis = 3>(r, last)\n q = Transpose<perm = [0, 2, 1, 3]>(qh)\n kt = Transpose<perm = [0, 2, 1, 3]>(kh)\n"
        "vt = Transpose<perm = [0, 2, 1, 3]>(vh)\n ku = Unsqueeze(kt, two)\n vu = Unsqueeze(vt, two)\n"
        "ke = Expand(ku, groups)\n ve = Expand(vu, groups)\n k = Reshape(ke, joined)\n v = Reshape(ve, joined)",
    ),
}
NUMBERS = f"""
int64 zero = {{0}}, int64 one = {{1}}, int64 last = {{-1}}, int64 four0 = {{4}}, int64[1] two = {{2}}, int64[1] three = {{3}},
int64[1] zeros = {{0}}, int64[1] four = {{4}}, int64[3] ones = {{1, 1, 1}}, int64[3] widths = {{{D}, {D}, {D}}},
int64[2] halves = {{{D}, {2 * D}}},
int64[1] a0 = {{0}}, int64[1] a1 = {{{D}}}, int64[1] a2 = {{{2 * D}}}, int64[1] end = {{9223372036854775807}},
int64[4] heads = {{0, 0, {4 * H}, {D}}}, int64[5] groups = {{1, 1, 4, 1, 1}}, int64[4] joined = {{0, {4 * H}, -1, {D}}},
float scale = {{0.25}}"""


def attention(name: str, *, product: str = "MatMul", batch: str = "B", whole: bool = False) -> onnx.ModelProto:
    """A projection, the cutting of it, and attention; `whole` numbers in the weights, so that sums are exact in any order."""
    columns, shape, cut = PARTS[name]
    made = {"MatMul": "m = MatMul(x, w)\n b = Add(m, bias)", "no bias": "b = MatMul(x, w)"}.get(product)
    rank = shape.count(",") + 1
    if made is None:  # rows made flat, and a weight that is turned where the name says so
        made = f"f = Reshape(x, flat)\n b = Gemm<transB = {int('turned' in product)}>(f, w, bias)"
        shape = shape.replace("0, 0", f"-1, {S}")
    text = f"""<ir_version: 9, opset_import: ["": 18]>
    g (float[{batch}, {S}, {WIDTH}] x) => (float[{batch}, heads_of_all, {S}, {D}] o)
    <int64[{rank}] shape = {{{shape[1:-1]}}}, int64[2] flat = {{-1, {WIDTH}}}, {NUMBERS}> {{
      {made}
      r = Reshape(b, shape)
      {cut}
      kc = Transpose<perm = [0, 1, 3, 2]>(k)
      s = MatMul(q, kc)
      c = Mul(s, scale)
      p = Softmax<axis = -1>(c)
      o = MatMul(p, v)
    }}"""
    model = onnx.parser.parse_model(text)
    rng = np.random.default_rng(len(name))
    numbers = rng.integers(-2, 3, (WIDTH, columns)) if whole else rng.standard_normal((WIDTH, columns)) / 5
    weight = numbers.T if "turned" in product else numbers
    model.graph.initializer.append(nh.from_array(np.ascontiguousarray(weight.astype(np.float32)), "w"))
    bias = rng.integers(-3, 4, columns) if whole else rng.standard_normal(columns)
    model.graph.initializer.append(nh.from_array(bias.astype(np.float32), "bias"))
    return model


def parted(model: onnx.ModelProto) -> onnx.ModelProto:
    made = ir.from_proto(model)
    part_projections(made)
    return ir.to_proto(made)


def cut(model: onnx.ModelProto) -> bool:
    """Whether the product's own result is cut."""
    made = {o: n for n in model.graph.node for o in n.output}
    return any(n.op_type == "Split" and made[n.input[0]].op_type in ("MatMul", "Gemm", "Add") for n in model.graph.node)


@pytest.mark.parametrize("product", ["MatMul", "no bias", "Gemm", "Gemm turned"])
@pytest.mark.parametrize("name", PARTS)
def test_each_part_is_the_models(name: str, product: str) -> None:
    """Of whole numbers, whose sums are the same in any order; q, k and v as results."""
    model = attention(name, product=product, whole=True)
    for value in "qkv":
        model.graph.output.append(h.make_tensor_value_info(value + "_", onnx.TensorProto.FLOAT, None))
        model.graph.node.append(h.make_node("Identity", [value], [value + "_"]))
    made = parted(model)
    assert cut(made) and not cut(model)
    x = np.random.default_rng(1).integers(-3, 4, (2, S, WIDTH)).astype(np.float32)
    for mine, theirs in zip(run(made, {"x": x}), run(model, {"x": x}), strict=True):
        np.testing.assert_array_equal(mine, theirs)


@pytest.mark.parametrize("name", PARTS)
def test_attention_reads_the_product(name: str, tmp_path: Path) -> None:
    """Two dispatches: nothing is copied between them, and the weight's columns were moved when it was compiled."""
    model = attention(name, batch="2" if name == "BLOOM" else "B")
    done = compile_model(model, tmp_path / "a.vmfb", target="cpu-avx2")
    assert [(s.dispatches, s.fused) for s in done.sites] == [(1, True)]
    assert len(done.inspection.dispatches) == 2
    x = np.random.default_rng(2).standard_normal((2, S, WIDTH)).astype(np.float32)
    [mine], [theirs] = onnx_fa.run(tmp_path / "a.vmfb", x), run(model, {"x": x})
    assert np.linalg.norm(mine - theirs) <= TOLERANCE * np.linalg.norm(theirs)


def edited(name: str, old: str, new: str) -> onnx.ModelProto:
    """The model of that name with one line in place of another."""
    columns, shape, lines = PARTS[name]
    assert old in lines
    PARTS["edited"] = columns, shape, lines.replace(old, new)
    try:
        return attention("edited", whole=True)
    finally:
        del PARTS["edited"]


STAYS = {
    "parts overlap": (
        "GPT-NeoX, by Slices",
        "v = Slice(t, a2, end, three)",
        "v = Slice(t, a1, a2, three)\n u = Slice(t, zeros, four, three)",
    ),
    "all is read as well": ("timm's ViT", "v =", "all = Abs(t)\n v ="),
    "a shape is asked for": ("timm's ViT", "v =", "dims = Shape(r)\n v ="),
    "parts of two axes": ("BLOOM", "v = ", "u = Gather<axis = 2>(r, one)\n v ="),
    "rows are taken": ("timm's ViT", "v =", "u = Gather<axis = 3>(t, one)\n v ="),
    "two parts of a head": (
        "GPT-NeoX",
        "q, k, v = Split<axis = -1>(t, widths)",
        "q, k = Split<axis = -1>(t, halves)\n v = Neg(k)",
    ),
    "by steps": ("GPT-NeoX, by Slices", "v = Slice(t, a2, end, three)", "v = Slice(t, a2, end, three, two)"),
    "a place of the run": (
        "timm's ViT",
        "v = Gather<axis = 0>(t, last)",
        "n = Size(x)\n i = Min(n, one)\n v = Gather<axis = 0>(t, i)",
    ),
}


@pytest.mark.parametrize("why", STAYS)
def test_other_readers(why: str) -> None:
    """A product of which something else is read stays whole."""
    model = edited(*STAYS[why])
    made = parted(model)
    assert [n.op_type for n in made.graph.node] == [n.op_type for n in model.graph.node]


@pytest.mark.parametrize("why", ["weight of the run", "output", "gpu"])
def test_other_products(why: str) -> None:
    model = attention("BLOOM")
    if why == "weight of the run":
        [w] = [i for i in model.graph.initializer if i.name == "w"]
        model.graph.initializer.remove(w)
        model.graph.input.append(h.make_tensor_value_info("w", onnx.TensorProto.FLOAT, [WIDTH, N]))
    if why == "output":
        model.graph.output.append(h.make_tensor_value_info("b", onnx.TensorProto.FLOAT, ["B", S, N]))
    planned = plan_kernels(model, parse_target("cuda-sm_80" if why == "gpu" else "cpu-avx2"))
    assert not [n for n in planned.model.graph if n.op_type == "Split"]


def drawn(seed: int) -> tuple[onnx.ModelProto, bool]:
    """A product whose columns are dims in a random order of axes, of one of which nodes of random kinds take parts; and whether
    they take more than one, and of the last one three of a width."""
    r = random.Random(seed)
    columns = [r.choice([1, 2, 3, 4, 6]) for _ in range(r.randint(2, 4))]
    rank, n = 2 + len(columns), int(np.prod(columns))
    perm = r.sample(range(rank), rank)
    part = r.choice([i for i, c in enumerate(columns) if c > 1] or [0])
    axis, size = perm.index(2 + part), columns[part]
    numbers = np.random.default_rng(seed)
    inits = [nh.from_array(numbers.integers(-3, 4, s).astype(np.float32), n) for n, s in (("w", (5, n)), ("c", (n,)))]
    inits.append(nh.from_array(np.asarray([0, r.choice([0, -1]), *columns]), "shape"))
    nodes = [h.make_node("MatMul", ["x", "w"], ["m"]), h.make_node("Add", r.sample(["m", "c"], 2), ["y"])]
    nodes += [h.make_node("Reshape", ["y", "shape"], ["r"]), h.make_node("Transpose", ["r"], ["t"], perm=perm)]
    ends = sorted({0, size, *(r.randint(0, size) for _ in range(2))})
    made = list[str]()
    if r.random() < 0.4:
        made = [f"s{i}" for i in range(len(ends) - 1)]
        inits.append(nh.from_array(np.diff(ends), "widths"))
        nodes.append(h.make_node("Split", ["t", "widths"], made, axis=r.choice([axis, axis - rank])))
    else:
        for start, end in r.sample(list(pairwise(ends)), r.randint(1, len(ends) - 1)):
            made.append(f"s{start}")
            if end == start + 1 and r.random() < 0.6:
                inits.append(nh.from_array(np.asarray(r.choice([start, start - size])), f"at{start}"))
                nodes.append(h.make_node("Gather", ["t", f"at{start}"], [made[-1]], axis=axis))
            else:
                bounds = start, r.choice([end, end - size or 99]), axis
                names = [f"{bound}{start}" for bound in ("from", "to", "along")]
                inits += [nh.from_array(np.asarray([number]), name) for name, number in zip(names, bounds, strict=True)]
                nodes.append(h.make_node("Slice", ["t", *names], [made[-1]]))
    outputs = [h.make_tensor_value_info(f"{v}_", onnx.TensorProto.FLOAT, None) for v in made]
    nodes += [h.make_node("Neg", [v], [f"{v}_"]) for v in made]
    x = h.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["B", "S" if r.random() < 0.5 else 4, 5])
    graph = h.make_graph(nodes, "g", [x], outputs, inits)
    heads = part < len(columns) - 1 or (len(made) > 2 and len(set(np.diff(ends))) == 1)
    return h.make_model(graph, opset_imports=[h.make_opsetid("", 18)], ir_version=9), len(made) > 1 and heads


@pytest.mark.parametrize("seed", range(120))
def test_drawn(seed: int) -> None:
    model, several = drawn(seed)
    made = parted(model)
    assert cut(made) == several
    x = np.random.default_rng(seed).integers(-3, 4, (2, 4, 5)).astype(np.float32)
    for mine, theirs in zip(run(made, {"x": x}), run(model, {"x": x}), strict=True):
        np.testing.assert_array_equal(mine, theirs)

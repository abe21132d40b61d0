"""Rotary embeddings of heads that lie side by side: which are a kernel's, and its numbers."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest

from onnx_fa.iree.compile import compile_model
from onnx_fa.iree.inference import infer_types
from onnx_fa.iree.legalise.rotations import find_rotations
from onnx_fa.iree.run import load_module
from onnx_fa.iree.vmfb_facts import inspect_vmfb
from onnx_fa.kernels.cpu.rotate import RotatedHeads
from onnx_fa.spec.target import parse_target
from tests.support.check_text import check_text
from tests.support.joined_models import join_models
from tests.support.ort_run import run

HOST, AVX512 = parse_target("cpu-host"), parse_target("cpu-avx512")
H, D = 3, 16
HEADS = "z = Constant <value = int64[1] {0}> () h = Constant <value = int64[1] {8}> () d = Constant <value = int64[1] {16}> () "
HEADS += "l = Constant <value = int64[1] {-1}> () s = Constant <value = int64[4] {0, 0, 3, 16}> () "
COLUMNS = "f = Constant <value = int64[1] {16}> () e = Constant <value = int64[1] {64}> () q = Slice(x, f, e, l) "
ROTATED = (
    "a = Slice(t, z, h, l) b = Slice(t, h, d, l) ac = Mul(a, c) bs = Mul(b, n) r = Sub(ac, bs) as = Mul(a, n) bc = Mul(b, c) "
    "i = Add(as, bc) y = Concat <axis = -1> (r, i)"
)
WHOLE = HEADS + "t = Reshape(w, s) " + ROTATED
TAKEN = {
    "columns": HEADS + COLUMNS + "t = Reshape(q, s) " + ROTATED,
    "whole": WHOLE,
    "read_elsewhere": HEADS + COLUMNS + "t = Reshape(q, s) " + ROTATED.replace("y =", "o =") + " y = Add(o, t)",
    "turned": WHOLE.replace("Mul(a, c)", "Mul(c, a)").replace("Mul(b, n)", "Mul(n, b)"),
}
LEFT = {
    "backwards": WHOLE.replace("Sub(ac, bs)", "Sub(bs, ac)"),
    "added": WHOLE.replace("Sub(ac, bs)", "Add(ac, bs)"),
    "other_halves": WHOLE.replace("b = Slice(t, h, d, l)", "b = Slice(t, z, h, l)"),
    "other_factor": WHOLE.replace("bc = Mul(b, c)", "bc = Mul(b, n)"),
    "halves_swapped": WHOLE.replace("(r, i)", "(i, r)"),
    "half_read": WHOLE.replace("y =", "o =") + " y = Concat <axis = -1> (o, a)",
    "other_axis": WHOLE.replace("axis = -1", "axis = 2"),
}


def model(body: str, lead: str = "1, n", table: str = "") -> onnx.ModelProto:
    """The graph of a body: x is longer rows, w rows of heads, c and n are cosines and sines, of rows as `table` says."""
    rows = f"float[{table or lead}, 1, {D // 2}]"
    values = f"float[{lead}, 80] x, float[{lead}, {H * D}] w, {rows} c, {rows} n"
    made = onnx.parser.parse_model(
        f'<ir_version: 9, opset_import: ["" : 17]> main_graph ({values}) => (float[{lead}, N, M] y) {{ {body} }}'
    )
    read = {name for node in made.graph.node for name in node.input}
    kept = [v for v in made.graph.input if v.name in read]
    del made.graph.input[:]
    made.graph.input.extend(kept)
    return made


def count(proto: onnx.ModelProto, target: object = AVX512) -> int:
    infer_types(proto, {})
    find_rotations(proto, target=target)  # type: ignore[arg-type]
    return Counter(n.op_type for n in proto.graph.node)["RotatedHeads"]


@pytest.mark.parametrize("name", TAKEN)
def test_taken(name: str) -> None:
    assert [count(model(TAKEN[name], lead)) for lead in ("1, n", "1, 1", "2, 3")] == [1, 1, 1]


def test_columns_are_read_where_they_lie() -> None:
    """Unless something else reads them as well."""
    for name, ops in (("columns", 0), ("read_elsewhere", 1)):
        proto = model(TAKEN[name])
        assert count(proto) == 1 and Counter(n.op_type for n in proto.graph.node)["Slice"] == ops
        (node,) = [n for n in proto.graph.node if n.op_type == "RotatedHeads"]
        first = {a.name: a.i for a in node.attribute}["first"]
        assert first == (D if name == "columns" else 0)


@pytest.mark.parametrize("name", LEFT)
def test_left(name: str) -> None:
    assert count(model(LEFT[name])) == 0


def test_left_by_dims_and_targets() -> None:
    """Rows of two free dims, a table for all rows, IREE's own kernels, GPUs."""
    body = TAKEN["whole"]
    assert count(model(body, "b, n")) == count(model(body, "1, n", "1, 1")) == 0
    assert count(model(body), replace(AVX512, kernels="iree")) == count(model(body), parse_target("cuda")) == 0


def test_numbers(tmp_path: Path) -> None:
    """Infinities too: what rotates an infinity with a sine of zero is not a number."""
    models = [model(body, lead) for body in TAKEN.values() for lead in ("1, n", "1, 1")]
    path, rng = tmp_path / "m.vmfb", np.random.default_rng(2)
    compile_model(join_models(models), path, HOST, parameters="embed")
    inputs, wanted = list[np.ndarray](), list[np.ndarray]()
    for proto in models:
        given = {}
        for value in proto.graph.input:
            shape = [d.dim_value or 5 for d in value.type.tensor_type.shape.dim]
            given[value.name] = rng.standard_normal(shape).astype(np.float32)
        if "w" in given:
            given["w"][0, 0, 3], given["n"][0, 0, 0, 3] = np.inf, 0
        inputs += given.values()
        wanted += run(proto, given, optimise=False)
    for got, want in zip(load_module(path)(*inputs), wanted, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-6)
    assert any("rotate_1x80_16_3x16_rows" in name for name in inspect_vmfb(path).exports) or HOST.lanes < 4


def test_text() -> None:
    check_text("rotated_heads.mlir", "".join(RotatedHeads(None, 80, 16, 3, 64).texts(AVX512).values()))

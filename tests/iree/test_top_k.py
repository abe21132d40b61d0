"""TopK: which are a kernel's, and its numbers; in any order, by which experts of DeepSeek-V3 and others are chosen, and for the
places alone, as of lengths that are sorted: IREE refuses both."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx.parser
import pytest
from onnx import helper

import onnx_fa
from onnx_fa.iree.compile import compile_model
from onnx_fa.iree.inference import infer_types
from onnx_fa.iree.legalise.rules import legalize
from onnx_fa.iree.legalise.writer import all_nodes
from onnx_fa.iree.run import load_module
from onnx_fa.iree.vmfb_facts import inspect_vmfb
from onnx_fa.kernels.cpu.top_k import TopK
from onnx_fa.spec.target import Target, parse_target
from tests.support.check_text import check_text
from tests.support.joined_models import join_models
from tests.support.ort_run import run

HOST, AVX2, AVX512 = parse_target("cpu-host"), parse_target("cpu-avx2"), parse_target("cpu-avx512")
Array = np.ndarray[Any, Any]


def chosen(attributes: str) -> onnx.ModelProto:
    return onnx.parser.parse_model(
        f"""<ir_version: 9, opset_import: ["" : 18]>
        g (float[4, 7] x) => (float[4, 3] v, int64[4, 3] i) <int64[1] k = {{3}}> {{ v, i = TopK<{attributes}>(x, k) }}"""
    )


def test_any_order_is_compiled_as_the_sorted_one(tmp_path: Path) -> None:
    """Equal numbers too: the first of them in the row comes first."""
    x = np.random.default_rng(0).integers(-2, 3, (4, 7)).astype(np.float32)
    out = tmp_path / "model.vmfb"
    onnx_fa.compile(join_models([chosen(f"axis = -1, sorted = 0, largest = {n}") for n in (0, 1)]), out)
    results = onnx_fa.run(out, x, x)
    for largest in (0, 1):
        values, places = results[2 * largest : 2 * largest + 2]
        want = np.argsort(-x if largest else x, axis=-1, kind="stable")[:, :3]
        np.testing.assert_array_equal(places, want)
        np.testing.assert_array_equal(values, np.take_along_axis(x, want, -1))


@pytest.mark.parametrize("attributes", ["axis = 1", "axis = 1, sorted = 1, largest = 0"])
def test_a_sorted_one_stays(attributes: str) -> None:
    model = chosen(attributes)
    assert legalize(model).graph.node[0] == model.graph.node[0]


PLACES = [
    ("float[N]", [2.0, 9.0, -1.0, 7.0, 2.0]),
    ("int64[N]", [3, 9, 3, -1, 0]),
    ("uint8[N]", [3, 200, 3, 0, 1]),
    ("float16[B, N]", [[1, 1, 0, 2, 9], [0, -4, 5, 5, 1]]),
]


def all_places(dims: str) -> onnx.ModelProto:
    return onnx.parser.parse_model(
        f"""<ir_version: 9, opset_import: ["" : 18]>
        g ({dims} x) => (int64{dims[dims.index("[") :]} i)
        {{ n = Shape <start = -1> (x)  v, i = TopK <axis = -1> (x, n) }}"""
    )


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Array, Array]]:
    """x and what a module makes of it, by the type of x."""
    models = [all_places(dims) for dims, _ in PLACES]
    dtypes = [helper.tensor_dtype_to_np_dtype(m.graph.input[0].type.tensor_type.elem_type) for m in models]
    given = [np.array(x, dtype) for dtype, (_, x) in zip(dtypes, PLACES, strict=True)]
    out = tmp_path_factory.mktemp("places") / "model.vmfb"
    onnx_fa.compile(join_models(models, own_dims=True), out)
    made = map(np.asarray, onnx_fa.run(out, *given))
    return {dims: (x, y) for (dims, _), x, y in zip(PLACES, given, made, strict=True)}


@pytest.mark.parametrize("dims", [dims for dims, _ in PLACES])
def test_places_alone(dims: str, places: dict[str, tuple[Array, Array]]) -> None:
    """Of all elements, whatever their number is: an argsort."""
    x, made = places[dims]
    np.testing.assert_array_equal(made, np.argsort(-x.astype(np.float64), axis=-1, kind="stable"))


def top_k(x: str, k: int, attributes: str = "axis = -1", opset: int = 18) -> onnx.ModelProto:
    """The k largest, or smallest, of x, a type of ONNX's text."""
    kind = x.partition("[")[0]
    free = ", ".join("abcd"[: x.count(",") + 1])
    return onnx.parser.parse_model(
        f'<ir_version: 9, opset_import: ["" : {opset}]> g ({x} x) => ({kind}[{free}] v, int64[{free}] i) '
        f"<int64[1] k = {{{k}}}> {{ v, i = TopK<{attributes}>(x, k) }}"
    )


def ops(model: onnx.ModelProto, target: Target | None = AVX2) -> list[str]:
    infer_types(model, {})
    return [n.op_type for n in all_nodes(legalize(model, target=target).graph)]


def test_taken() -> None:
    for x, k in (("float[B, 300]", 20), ("int8[5, 8]", 8), ("float16[4]", 1), ("uint16[2, 3]", 1)):
        found = ops(top_k(x, k))
        assert "TopKSite" in found and "TopK" not in found
    turned = ops(top_k("float[2, N, 30, C]", 4, "axis = 2"))
    assert turned[0] == "Transpose" and turned.count("TopKSite") == 1


def test_left() -> None:
    """To the compiler: other types and free lengths, nothing at all, other targets."""
    for x, k in (
        ("double[2, 30]", 3),
        ("int64[2, 30]", 3),
        ("float[2, N]", 3),
        ("float[2, 30]", 0),
        ("float[0, 30]", 3),
    ):
        assert "TopKSite" not in ops(top_k(x, k))
    for target in (None, parse_target("cuda"), parse_target("cpu-neon"), replace(AVX2, kernels="iree")):
        assert ops(top_k("float[2, 30]", 3), target) == ["TopK"]


def test_left_where_k_is_not_known_and_in_bodies() -> None:
    given = onnx.parser.parse_model(
        """<ir_version: 9, opset_import: ["" : 18]> g (float[2, 30] x, int64[1] k) => (float[2, K] v) { v, i = TopK(x, k) }"""
    )
    inside = onnx.parser.parse_model(
        """<ir_version: 9, opset_import: ["" : 18]> g (bool c, float[2, 30] x) => (float[2, 3] y) <int64[1] k = {3}> { y = If (c) <
        then_branch = t () => (float[2, 3] a) { a, i = TopK(x, k) },
        else_branch = e () => (float[2, 3] b) { b, j = TopK(x, k) }> }"""
    )
    assert "TopKSite" not in ops(given) + ops(inside)


CASES = [
    ("float[B, 300]", (5, 300), 40, -1, 1),
    ("float[B, 300]", (0, 300), 3, -1, 0),
    ("float[B, 40]", (1, 40), 40, -1, 1),
    ("float[6, 1000]", (6, 1000), 1, -1, 1),
    ("float[6, 1023]", (6, 1023), 1023, 1, 0),
    ("float[B, 1100]", (6, 1100), 1100, 1, 1),
    ("float[20, 2000]", (20, 2000), 600, 1, 0),
    ("float[7]", (7,), 3, 0, 1),
    ("float[2, 50, 3]", (2, 50, 3), 7, 1, 1),
    ("float[A, B, 33, 4]", (2, 3, 33, 4), 5, 2, 0),
    ("float[2, A, 33]", (2, 3, 33), 5, -1, 1),
    ("float[65, 8]", (65, 8), 2, 1, 1),
    ("float[3, 1]", (3, 1), 1, 1, 1),
    ("float16[6, 200]", (6, 200), 9, 1, 1),
    ("bfloat16[6, 200]", (6, 200), 9, 1, 0),
    ("int32[6, 200]", (6, 200), 150, 1, 1),
    ("int32[6, 200]", (6, 200), 9, 1, 0),
    ("int16[6, 200]", (6, 200), 9, 1, 1),
    ("int8[6, 700]", (6, 700), 90, 1, 0),
    ("uint8[6, 700]", (6, 700), 90, 1, 1),
]
"""Types, shapes, k, the axis, and whether it is the largest."""


def draw(dtype: np.dtype[Any], shape: tuple[int, ...], *, nan: bool) -> Array:
    """Rows of numbers, of few that are equal often, the least and the most, all alike, in order and in the other order."""
    rng, flat = np.random.default_rng(3), np.zeros((int(np.prod(shape[:-1])), shape[-1]))
    whole = dtype.kind in "iu"
    least, most = (np.iinfo(dtype).min, np.iinfo(dtype).max) if whole else (-np.inf, np.inf)
    for n, row in enumerate(flat):
        row[:] = rng.integers(0, 100, row.size) if whole else rng.standard_normal(row.size)
        match n % 6:
            case 1:
                row[:] = rng.integers(0, 4, row.size)
                if not whole:
                    row[:] = np.where(row == 0, -0.0, row - 1)
            case 2:
                row[:] = rng.choice([least, 0, 1, most], row.size)
                if nan and not whole:
                    row[rng.integers(0, row.size, 3)] = np.array([np.nan, -np.nan, np.nan])
            case 3:
                row[:] = np.nan if nan and not whole else most
            case 4:
                row[:] = least
            case 5:
                row.sort()
                row[:] = row[:: rng.choice([-1, 1])]
    return flat.reshape(shape).astype(dtype)


def best(x: Array, k: int, axis: int, largest: int) -> list[Array]:
    """As the kernel says: NaN is more than infinity, and the first of equal numbers comes first."""
    x = np.moveaxis(x, axis, -1)
    wide = x.astype(np.float64)
    nan = np.isnan(wide)
    sign = -1 if largest else 1
    places = np.lexsort((np.where(nan, 0, sign * wide), sign * nan.astype(int)), axis=-1)[..., :k]
    return [np.moveaxis(y, -1, axis) for y in (np.take_along_axis(x, places, -1), places)]


@pytest.mark.parametrize("first", range(4))
def test_numbers(first: int, tmp_path: Path) -> None:
    cases = CASES[first::4]
    models = [top_k(x, k, f"axis = {axis}, largest = {largest}") for x, _, k, axis, largest in cases]
    path = tmp_path / "m.vmfb"
    compile_model(join_models(models, own_dims=True), path, HOST, parameters="embed")
    module = load_module(path)
    dtypes = [helper.tensor_dtype_to_np_dtype(m.graph.input[0].type.tensor_type.elem_type) for m in models]
    for nan in (False, True):
        given = [draw(dtype, shape, nan=nan) for dtype, (_, shape, *_) in zip(dtypes, cases, strict=True)]
        results = [np.asarray(y) for y in module(*given)]
        for n, (x, model, (_, _, k, axis, largest)) in enumerate(zip(given, models, cases, strict=True)):
            got, want = results[2 * n : 2 * n + 2], best(x, k, axis, largest)
            if x.dtype == np.uint8:
                got[0] = got[0].view(np.uint8)  # a module's integers have no sign of their own
            for have, wanted in zip(got, want, strict=True):
                assert have.shape == wanted.shape and have.dtype == wanted.dtype
                np.testing.assert_array_equal(have.astype(np.float64), wanted.astype(np.float64))
                np.testing.assert_array_equal(np.signbit(have), np.signbit(wanted))
            if x.dtype in (np.float32, np.int32) and not nan:
                for have, wanted in zip(got, run(model, {"x": x}, optimise=False), strict=True):
                    np.testing.assert_array_equal(have, wanted)
    assert not HOST.has_avx2 or sum("top_k_" in name for name in inspect_vmfb(path).exports) == len(cases)


@pytest.mark.parametrize("opset", [10, 11, 24])
def test_opsets(opset: int, tmp_path: Path) -> None:
    model, x = top_k("float[B, 90]", 4, "axis = 1", opset), draw(np.dtype(np.float32), (3, 90), nan=False)
    compile_model(model, tmp_path / "m.vmfb", HOST)
    for have, want in zip(load_module(tmp_path / "m.vmfb")(x), run(model, {"x": x}), strict=True):
        np.testing.assert_array_equal(have, want)
    assert not HOST.has_avx2 or any("top_k_nx90_4" in name for name in inspect_vmfb(tmp_path / "m.vmfb").exports)


@pytest.mark.parametrize("lanes", [8, 16])
def test_rows_drawn_at_random(lanes: int, tmp_path: Path) -> None:
    """Lengths around those at which the buffer is full, and a vector ends; the compiler halves vectors that a processor lacks."""
    rng = np.random.default_rng(11)
    sizes = [(n, int(rng.integers(1, n + 1))) for n in rng.integers(1, 400, 6)]
    sizes += [(k * 2 + 32 + more, k) for k, more in ((16, -1), (16, 0), (16, 1), (3, 27), (112, 17))]
    models = [top_k(f"float[B, {n}]", k, f"axis = 1, largest = {k % 2}") for n, k in sizes]
    target = replace(HOST, lanes=lanes)
    compile_model(join_models(models, own_dims=True), tmp_path / "m.vmfb", target, parameters="embed")
    module = load_module(tmp_path / "m.vmfb")
    for levels in (3, 10_000):
        given = [rng.integers(0, levels, (int(rng.integers(1, 40)), n)).astype(np.float32) for n, _ in sizes]
        results = [np.asarray(y) for y in module(*given)]
        wanted = [y for x, (_, k) in zip(given, sizes, strict=True) for y in best(x, k, 1, k % 2)]
        for have, want in zip(results, wanted, strict=True):
            np.testing.assert_array_equal(have, want)


def test_text() -> None:
    check_text("top_k.mlir", "".join(TopK(None, 24000, 300, "f32", True).texts(AVX2).values()))


def test_long_buffers_are_memory_of_the_program() -> None:
    """A dispatch may have 32 KiB on its stack."""
    short, long = (TopK(3, 9000, k, "f32", True).texts(AVX512) for k in (496, 497))
    assert "memref.alloca" in "".join(short.values()) and "memref<1x1024xi64>" in "".join(short.values())
    assert "memref" not in "".join(long.values()) and "tensor<3x2048xi64>" in "".join(long.values())

"""Casts between all types that IREE imports give onnxruntime's numbers, on processors without AVX512_BF16 too."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import onnx
import pytest
from onnx import TensorProto, helper

from onnx_fa.iree.compile import compile_model
from onnx_fa.iree.run import load_module
from onnx_fa.spec.target import foreign_cpu, parse_target
from tests.support.joined_models import join_models
from tests.support.node_cases import run_ort

AVX2 = parse_target("cpu-avx2")
TYPES: dict[str, Any] = {
    **{
        name: np.dtype(name.lower())
        for name in ("INT8", "UINT8", "INT16", "UINT16", "INT32", "UINT32", "INT64", "UINT64")
    },
    **{
        "BOOL": np.bool_,
        "FLOAT16": np.float16,
        "BFLOAT16": ml_dtypes.bfloat16,
        "FLOAT": np.float32,
        "DOUBLE": np.float64,
    },
}
REFUSED = {"INT16", "UINT16", "UINT32", "UINT64"}
"""IREE's importer casts to none of these."""
HARD = [
    0.0,
    -0.0,
    0.4,
    0.5,
    0.9,
    1.0,
    1.5,
    2.5,
    -0.9,
    -1.5,
    3.0e-5,
    6.0e-8,
    1.00390625,
    1.01171875,
    127.9,
    -128.5,
    255.0,
    300.2,
    65504.0,
    65520.0,
]
EDGES = [
    2**24 + 1,
    2**24 + 3,
    2**25 + 2**17 + 1,
    2**33 + 2**25 + 1,
    -(2**24) - 1,
    257,
    259,
    511,
    513,
    -129,
    65664,
    65665,
]

TURNING: dict[str, dict[str, Any]] = {"Transpose": {"perm": [1, 0]}, "Flatten": {"axis": 0}}
"""What makes a row of a column."""


def _numbers(kind: str) -> npt.NDArray[Any]:
    """Numbers of a type that are hard to round."""
    dtype = TYPES[kind]
    if kind == "BOOL":
        return np.array([False, True])
    if "INT" not in kind:
        return np.array([*HARD, np.inf, -np.inf, np.nan]).astype(dtype)
    ends = np.iinfo(dtype)
    within = [
        n
        for n in [ends.min, ends.max, ends.max // 2, ends.max // 2 + 1, *range(8), 100, *EDGES]
        if ends.min <= n <= ends.max
    ]
    return np.array(within, dtype)


def _fitting(x: npt.NDArray[Any], to: str) -> npt.NDArray[Any]:
    """Floats without those that an integer of the type cannot be, of which ONNX leaves open what becomes."""
    if "INT" not in to or x.dtype.kind in "iub":
        return x
    ends, wide = np.iinfo(TYPES[to]), x.astype(np.float64)
    return np.where(np.isfinite(wide) & (wide > ends.min) & (wide < ends.max), x, np.ones_like(x))


def _model(kind: str, kinds: Iterable[str], moved: str = "") -> onnx.ModelProto:
    """A graph that casts its inputs, one for each of the types; `moved`: to f32 first, turned by that op, and then on."""
    nodes, inputs, outputs = [], [], []
    n = len(_numbers(kind))
    for i, to in enumerate(kinds):
        inputs.append(helper.make_tensor_value_info(f"x{i}", TensorProto.DataType.Value(kind), [n, 1]))
        outputs.append(
            helper.make_tensor_value_info(f"y{i}", TensorProto.DataType.Value(to), [1, n] if moved else [n, 1])
        )
        if moved:
            nodes.append(helper.make_node("Cast", [f"x{i}"], [f"f{i}"], to=TensorProto.FLOAT))
            nodes.append(helper.make_node(moved, [f"f{i}"], [f"t{i}"], **TURNING[moved]))
        nodes.append(
            helper.make_node("Cast", [f"t{i}" if moved else f"x{i}"], [f"y{i}"], to=TensorProto.DataType.Value(to))
        )
    graph = helper.make_graph(nodes, "casts", inputs, outputs)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


Casts = tuple[str, list[str], str]
"""A type, those that it is cast to, and the op that moves it between two casts."""


def _check(casts: Sequence[Casts], folder: Path) -> None:
    """All in one module."""
    models = [_model(*cast) for cast in casts]
    compile_model(join_models(models), folder / "m.vmfb", AVX2)
    given = [[_fitting(_numbers(kind), to)[:, None] for to in kinds] for kind, kinds, _ in casts]
    found = iter(load_module(folder / "m.vmfb")(*(x for inputs in given for x in inputs)))
    for (kind, kinds, moved), model, inputs in zip(casts, models, given, strict=True):
        wanted = run_ort(model, {f"x{i}": x for i, x in enumerate(inputs)})
        for to, want in zip(kinds, wanted, strict=True):
            # A module says of an integer how many bits it has, not whether one of them is a sign.
            exact = want.dtype if want.dtype.kind in "iub" else np.float64  # which all floats are
            got = np.asarray(next(found))
            got = got.view(want.dtype) if want.dtype.kind in "iu" else got
            np.testing.assert_array_equal(
                got.astype(exact), want.astype(exact), err_msg=f"{kind} to {to}, moved by {moved or 'nothing'}"
            )
    assert next(found, None) is None


@pytest.mark.skipif(bool(foreign_cpu(AVX2)), reason="no x86-64 with AVX2")
def test_every_cast(tmp_path: Path) -> None:
    _check([(kind, [to for to in TYPES if to != kind and to not in REFUSED], "") for kind in TYPES], tmp_path)


@pytest.mark.skipif(bool(foreign_cpu(AVX2)), reason="no x86-64 with AVX2")
def test_integers_that_are_moved_between_two_casts(tmp_path: Path) -> None:
    kinds = ("BOOL", "INT8", "INT32", "INT64")
    _check([(kind, ["BFLOAT16", "FLOAT16"], moved) for kind in kinds for moved in TURNING], tmp_path)


@pytest.mark.skipif(bool(foreign_cpu(AVX2)), reason="no x86-64 with AVX2")
def test_a_cast_by_example(tmp_path: Path) -> None:
    """CastLike, which has the type of another value."""
    x = _numbers("INT64")[:, None]
    like = onnx.numpy_helper.from_array(np.ones(1, ml_dtypes.bfloat16), "like")
    shown = [
        helper.make_tensor_value_info(name, kind, list(x.shape))
        for name, kind in (("x", TensorProto.INT64), ("y", TensorProto.BFLOAT16))
    ]
    nodes = [helper.make_node("CastLike", ["x", "like"], ["y"])]
    model = _checked(helper.make_graph(nodes, "cast", shown[:1], shown[1:], [like]))
    compile_model(model, tmp_path / "m.vmfb", AVX2)
    (found,) = load_module(tmp_path / "m.vmfb")(x)
    np.testing.assert_array_equal(np.asarray(found), x.astype(np.float32).astype(ml_dtypes.bfloat16))


@pytest.mark.skipif(bool(foreign_cpu(AVX2)), reason="no x86-64 with AVX2")
def test_bytes_dequantized_as_bf16(tmp_path: Path) -> None:
    """Every byte with a zero point, of which differences are exact: only the product with the scale rounds."""
    cases = [(kind, along) for kind in ("INT8", "UINT8") for along in (False, True)]
    models, given, wanted, width = [], [], [], 8
    for kind, along in cases:
        ends = np.iinfo(TYPES[kind])
        x = np.arange(ends.min, ends.max + 1).astype(TYPES[kind]).reshape(-1, width)
        scale = (np.arange(1, 1 + width) / 7).astype(ml_dtypes.bfloat16)[: width if along else 1]
        zero = np.linspace(ends.min, ends.max, width).astype(TYPES[kind])[: len(scale)]
        if not along:
            scale, zero = scale[0], zero[0]
        tensors = [onnx.numpy_helper.from_array(np.asarray(a), n) for a, n in ((scale, "scale"), (zero, "zero"))]
        shown = [
            helper.make_tensor_value_info(name, k, list(x.shape))
            for name, k in (("x", TensorProto.DataType.Value(kind)), ("y", TensorProto.BFLOAT16))
        ]
        nodes = [helper.make_node("DequantizeLinear", ["x", "scale", "zero"], ["y"], axis=1)]
        models.append(_checked(helper.make_graph(nodes, "bytes", shown[:1], shown[1:], tensors)))
        given.append(x)
        difference = x.astype(np.float32) - np.asarray(zero, np.float32)
        wanted.append((difference * np.asarray(scale, np.float32)).astype(ml_dtypes.bfloat16))
    compile_model(join_models(models), tmp_path / "m.vmfb", AVX2)
    for case, got, want in zip(cases, load_module(tmp_path / "m.vmfb")(*given), wanted, strict=True):
        np.testing.assert_array_equal(np.asarray(got), want, err_msg=str(case))


def _checked(graph: onnx.GraphProto) -> onnx.ModelProto:
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    onnx.checker.check_model(model, full_check=True)
    return model

"""Resize of images and sequences that is a kernel of CPUs: which are, and its numbers, those of infinities too."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto
from onnx import helper as h

from onnx_fa.errors import ModelError
from onnx_fa.iree.compile import compile_model
from onnx_fa.iree.inference import infer_types
from onnx_fa.iree.legalise.resize_planes import RESAMPLED_PLANES
from onnx_fa.iree.legalise.rules import legalize
from onnx_fa.iree.run import load_module
from onnx_fa.iree.vmfb_facts import inspect_vmfb
from onnx_fa.kernels.cpu.resample import ResampledPlanes
from onnx_fa.spec.target import Target, parse_target
from tests.iree.test_resize_known import Dims, declared, model_of
from tests.support.check_text import check_text
from tests.support.joined_models import join_models
from tests.support.ort_run import Array, run

HOST, AVX512 = parse_target("cpu-host"), parse_target("cpu-avx512")
SIZES = [
    ((4, 4), (8, 8)),
    ((3, 5), (12, 40)),  # by 4 and by 8
    ((7, 5), (13, 9)),
    ((8, 8), (4, 4)),
    ((9, 5), (3, 10)),
    ((5, 7), (5, 3)),
    ((1, 4), (3, 4)),
    ((6, 6), (1, 1)),
    ((40, 24), (300, 120)),  # by several workgroups for a plane
]
HOWS = ("half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric")


def written(model: onnx.ModelProto, target: Target | None = AVX512) -> list[str]:
    """The operators that a Resize becomes."""
    typed = onnx.ModelProto.FromString(model.SerializeToString())
    infer_types(typed, {})
    nodes = legalize(typed, target=target).graph.node
    return [f"{node.domain}.{node.op_type}" if node.domain else node.op_type for node in nodes]


def image(shape: tuple[int, ...], dtype: Any, seed: int) -> Array:
    """Random numbers with infinities of both signs in the middle and in corners, and a NaN."""
    x = np.random.default_rng(seed).standard_normal(shape)
    for planes in (p for p in x.reshape(-1, *shape[-2:])[:3] if p.size > 1):
        planes[shape[-2] // 2, shape[-1] // 2] = np.inf
    if x.size > 1:
        x[..., 0, 0], x[..., -1, -1] = -np.inf, np.inf
        x.reshape(-1)[min(x.size - 1, 3)] = np.nan
    return x.astype(dtype)


def compiled(models: list[onnx.ModelProto], path: Path) -> tuple[onnx.ModelProto, Any]:
    joined = join_models(models, own_dims=True)
    compile_model(joined, path, HOST, parameters="embed")
    return joined, load_module(path)


def assert_equal(got: Array, want: Array, name: str) -> None:
    """NaN and infinities at the same places, else equal within the type's tolerance."""
    assert got.shape == want.shape and got.dtype == want.dtype, name
    rough = want.dtype == np.float16
    np.testing.assert_allclose(
        got, want, rtol=2e-3 if rough else 1e-5, atol=2e-3 if rough else 2e-6, equal_nan=True, err_msg=name
    )


def test_linear(tmp_path: Path) -> None:
    """Of a free batch, of none too: up, down, by whole factors and others, to and from one row."""
    cases = [(size, made, how) for how in HOWS for size, made in SIZES]
    models = [
        model_of(["B", 2, *size], sizes=[*made], axes=[2, 3], mode="linear", coordinate_transformation_mode=how)
        for size, made, how in cases
    ]
    assert all(RESAMPLED_PLANES in written(model) for model in models)
    joined, module = compiled(models, tmp_path / "m.vmfb")
    for batch in (0, 1, 5):
        feeds = {
            given.name: image((batch, 2, *size), np.float32, seed)
            for seed, (given, (size, _, _)) in enumerate(zip(joined.graph.input, cases, strict=True))
        }
        found = module(*feeds.values())
        for optimise in (False, True):
            wanted = run(joined, feeds, optimise=optimise)
            for got, want, case in zip(found, wanted, cases, strict=True):
                assert_equal(got, want, str(case))
    assert sum("resample_" in name for name in inspect_vmfb(tmp_path / "m.vmfb").exports) >= len(SIZES)


def test_nearest(tmp_path: Path) -> None:
    """Whole factors as in UNets and VAEs, and any other, by all roundings."""
    asymmetric = {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    more: list[tuple[tuple[int, int], dict[str, Any]]] = [
        ((6, 10), {"scales": [1, 1, 2, 2], **asymmetric}),
        ((6, 10), {"scales": [1, 1, 4, 8]}),
        ((3, 5), {"sizes": [2, 9], "axes": [2, 3], "nearest_mode": "ceil"}),
        ((7, 5), {"sizes": [13, 3], "axes": [2, 3], "nearest_mode": "round_prefer_ceil"}),
        ((5, 6), {"sizes": [9, 4], "axes": [3, 2], "coordinate_transformation_mode": "align_corners"}),
        ((130, 70), {"scales": [1, 1, 2, 3], **asymmetric}),
    ]
    models = [model_of(["B", 3, *size], **given) for size, given in more]
    assert all(RESAMPLED_PLANES in written(model) for model in models)
    joined, module = compiled(models, tmp_path / "m.vmfb")
    for batch in (0, 2):
        feeds = {
            given.name: image((batch, 3, *size), np.float32, seed)
            for seed, (given, (size, _)) in enumerate(zip(joined.graph.input, more, strict=True))
        }
        for got, want in zip(module(*feeds.values()), run(joined, feeds, optimise=False), strict=True):
            np.testing.assert_array_equal(got, want)


def test_other_types_and_ranks(tmp_path: Path) -> None:
    """f16 by way of f32, planes whose number is known or is that of free channels, sequences, and whatever stays as it is."""
    half = TensorProto.FLOAT16
    cases: list[tuple[tuple[int, ...], onnx.ModelProto]] = [
        ((3, 2, 7, 5), model_of(["B", 2, 7, 5], sizes=[13, 9], axes=[2, 3], mode="linear", kind=half)),
        ((2, 2, 7, 5), model_of([2, 2, 7, 5], sizes=[2, 2, 13, 20], mode="linear")),
        ((1, 4, 6, 6), model_of([1, "C", 6, 6], sizes=[9, 12], axes=[2, 3], mode="linear")),
        ((2, 3, 7), model_of(["B", 3, 7], sizes=[11], axes=[2], mode="linear")),
        ((2, 3, 7), model_of([2, 3, 7], scales=[1, 1, 2])),
        ((2, 3, 4, 4), model_of(["B", 3, 4, 4], sizes=[4, 4], axes=[2, 3], mode="cubic")),
        ((2, 3, 4, 4), model_of(["B", 3, 4, 4], sizes=[4, 4], axes=[2, 3], mode="linear", kind=half)),
    ]
    for _, model in cases[:-2]:
        assert RESAMPLED_PLANES in written(model)
    for _, model in cases[-2:]:
        assert written(model) == written(model, None) == ["Identity"]
    joined, module = compiled([model for _, model in cases], tmp_path / "m.vmfb")
    rng = np.random.default_rng(3)
    feeds = {
        given.name: rng.standard_normal(shape).astype(h.tensor_dtype_to_np_dtype(given.type.tensor_type.elem_type))
        for given, (shape, _) in zip(joined.graph.input, cases, strict=True)
    }
    for i, (got, want) in enumerate(zip(module(*feeds.values()), run(joined, feeds, optimise=False), strict=True)):
        assert_equal(got, want, str(i))


@pytest.mark.parametrize(
    ("shape", "given"),
    [
        ([1, 2, 4, 4], {"sizes": [7, 9], "mode": "cubic"}),
        ([1, 2, 4, 4], {"sizes": [3, 3], "mode": "linear", "antialias": 1}),
        ([1, 2, 4, 4], {"sizes": [7, 9], "mode": "linear", "kind": TensorProto.DOUBLE}),
        ([1, 2, 4, 4], {"sizes": [7, 9], "kind": TensorProto.FLOAT16}),
        (["B", "C", 4, 4], {"sizes": [7, 9], "mode": "linear"}),
        ([1, 2, "H", 4], {"sizes": [7, 9], "mode": "linear"}),
        ([1, 2, 4, 4], {"sizes": [7, 9000], "mode": "linear"}),
        ([0, 2, 4, 4], {"sizes": [7, 9], "mode": "linear"}),
        ([1, 2, 4, 4], {"sizes": [4, 7], "axes": [1, 2]}),
    ],
)
def test_left_to_the_compiler(shape: Dims, given: dict[str, Any]) -> None:
    assert RESAMPLED_PLANES not in written(model_of(shape, **{"axes": [2, 3], **given}))


def test_left_by_targets() -> None:
    model = model_of(["B", 2, 4, 4], sizes=[7, 9], axes=[2, 3], mode="linear")
    for target in (None, parse_target("cuda"), replace(AVX512, kernels="iree")):
        assert "Resize" in written(model, target)


def test_another_size_than_a_file_says() -> None:
    with pytest.raises(ModelError, match="axis 3 the file says becomes 6 long, and onnxruntime 7"):
        written(declared(model_of([1, 2, 3, 6], scales=[1, 1, 2, 7 / 6], mode="linear"), [1, 2, 6, 6]))


def test_scales_that_are_quotients_of_sizes(tmp_path: Path) -> None:
    """As tf2onnx writes them: 11 * (17 / 11) is 17 in f32, and less in f64. By the kernel, and by the compiler alone."""
    by = [1.0, 1.0, float(np.float32(9) / np.float32(5)), float(np.float32(17) / np.float32(11))]
    hows = [("linear", "half_pixel"), ("linear", "align_corners"), ("nearest", "half_pixel"), ("cubic", "half_pixel")]
    models = [model_of(["B", 2, 5, 11], scales=by, mode=mode, coordinate_transformation_mode=how) for mode, how in hows]
    models.append(model_of(["B", 2, "H", 11], scales=[1.0, 1.0, 2.0, by[3]], mode="linear"))
    joined = join_models(models, own_dims=True)
    x = np.random.default_rng(0).standard_normal((3, 2, 5, 11)).astype(np.float32)
    feeds = {given.name: x for given in joined.graph.input}
    for kernels in ("auto", "iree"):
        compile_model(joined, tmp_path / "m.vmfb", target=replace(HOST, kernels=kernels))
        got = load_module(tmp_path / "m.vmfb")(*feeds.values())
        for found, want in zip(got, run(joined, feeds, optimise=False), strict=True):
            assert found.shape == want.shape and want.shape[3] == 17
            np.testing.assert_allclose(found, want, rtol=1e-4, atol=2e-5)


def test_text() -> None:
    low = [max(0, (j - 1) // 2) for j in range(128)]
    spec = ResampledPlanes(None, 64, 64, 128, (tuple(low), tuple(min(i + 1, 63) for i in low)), 64, 1)
    check_text("resampled_planes.mlir", "".join(spec.texts(AVX512).values()))

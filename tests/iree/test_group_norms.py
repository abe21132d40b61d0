"""GroupNormalization and InstanceNormalization as norms of rows: which have kernels, and their numbers."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper as h
from onnx import numpy_helper

import onnx_fa
from onnx_fa.graph.ops import op_of
from onnx_fa.iree.inference import infer_types
from onnx_fa.iree.legalise.norm_sites import find_norm_sites
from onnx_fa.iree.legalise.rules import legalize
from onnx_fa.iree.run import load_module
from onnx_fa.spec.target import parse_target
from tests.support.joined_models import join_models
from tests.support.ort_run import run

HOST = parse_target("cpu-host")
TOLERANCE = {np.float32: 4e-6, np.float16: 5e-4, np.float64: 4e-6}
"""Of numbers that are computed in f32 and rounded once."""


def model_of(
    shape: tuple[int | str, ...],
    groups: int = 0,
    *,
    opset: int = 21,
    dtype: Any = np.float32,
    plain: bool = False,
    **attributes: Any,
) -> onnx.ModelProto:
    """A GroupNormalization of so many groups, or an InstanceNormalization; `plain`: by a scale of 1 and a bias of 0, as PyTorch's
    exports have it."""
    op = "GroupNormalization" if groups else "InstanceNormalization"
    columns = groups if groups and opset < 21 else int(shape[1])
    rng, kind = np.random.default_rng(0), h.np_dtype_to_tensor_dtype(np.dtype(dtype))
    weights = (
        {"s": np.ones(columns), "b": np.zeros(columns)}
        if plain
        else {name: rng.standard_normal(columns) for name in "sb"}
    )
    node = h.make_node(op, ["x", *weights], ["y"], "norm", **({"num_groups": groups} if groups else {}), **attributes)
    graph = h.make_graph(
        [node],
        "g",
        [h.make_tensor_value_info("x", kind, shape)],
        [h.make_tensor_value_info("y", kind, shape)],
        [numpy_helper.from_array(v.astype(dtype), name) for name, v in weights.items()],
    )
    return h.make_model(graph, opset_imports=[h.make_opsetid("", opset)], ir_version=10)


MODELS = {
    "groups": model_of(("N", 12, 8, 8), 3),
    "groups_before_21": model_of(("N", 12, 8, 8), 3, opset=18),
    "groups_of_half": model_of(("N", 8, 4, 16), 2, dtype=np.float16),
    "one_group": model_of((2, 8, 6, 4, 2), 1, epsilon=0.25),
    "groups_of_channels": model_of(("N", 6, 32), 6),
    "no_sizes_behind": model_of(("N", 64), 4),
    "instance": model_of(("N", 5, 16, 8)),
    "instance_of_half": model_of((3, 4, 32), dtype=np.float16),
    "as_exported": model_of(("N", 4, 96), plain=True),
    "odd": model_of(("N", 6, 7, 7), 2),
    "odd_instance": model_of(("N", 6, 7, 7)),
    "free_sizes": model_of(("N", 5, "H", "W")),
    "groups_of_free_sizes": model_of(("N", 6, "H", "W"), 3),
    "groups_of_f64": model_of(("N", 6, 8, 8), 3, dtype=np.float64),
}
WITHOUT_KERNEL = {"odd", "odd_instance", "free_sizes", "groups_of_free_sizes", "groups_of_f64"}


def sites_of(model: onnx.ModelProto) -> tuple[onnx.ModelProto, int]:
    """The model as the importer gets it, and the number of its norms that have kernels."""
    model = onnx.shape_inference.infer_shapes(model)
    infer_types(model, {})
    made = legalize(model, target=HOST)
    infer_types(made, {})
    told = find_norm_sites(made, target=HOST)
    return made, sum(bool(r.kernel) for r in told)


@pytest.mark.skipif(not HOST.has_avx2, reason="norms have kernels with AVX2 or AVX-512")
@pytest.mark.parametrize("name", MODELS)
def test_which_have_kernels(name: str) -> None:
    made, found = sites_of(MODELS[name])
    assert found == (name not in WITHOUT_KERNEL)
    ops = [op_of(node) for node in made.graph.node]
    assert "GroupNormalization" not in ops  # IREE knows none
    assert not found or not {"ReduceMean", "InstanceNormalization"} & set(ops)
    assert not {"Mul", "Add"} & set(ops) or name != "as_exported"


@pytest.mark.skipif(not HOST.has_avx2, reason="norms have kernels with AVX2 or AVX-512")
def test_one_behind_another() -> None:
    """onnx infers no type of a GroupNormalization; what reads it has one nevertheless."""
    model = model_of(("N", 12, 8, 8), 3)
    model.graph.node[0].output[0] = "a"
    model.graph.node.append(h.make_node("InstanceNormalization", ["a", "s", "b"], ["y"]))
    assert sites_of(model)[1] == 2


def test_other_targets_keep_them() -> None:
    for target in ("cpu-neon", "vulkan"):
        model = onnx.shape_inference.infer_shapes(MODELS["instance"])
        infer_types(model, {})
        made = legalize(model, target=parse_target(target))
        assert "InstanceNormalization" in [op_of(node) for node in made.graph.node], target


@pytest.fixture(scope="module", params=[18, 21])
def compiled(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Those of an opset and of known sizes, by name, and the module of all of them."""
    some = {n: m for n, m in MODELS.items() if m.opset_import[0].version == request.param and n != "free_sizes"}
    vmfb = tmp_path_factory.mktemp("group_norms") / "m.vmfb"
    onnx_fa.compile(join_models(list(some.values())), vmfb)
    return some, load_module(vmfb)


def normalised(model: onnx.ModelProto, x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """In float64, as ONNX defines both operators."""
    (node,), weights = model.graph.node, [numpy_helper.to_array(t).astype(np.float64) for t in model.graph.initializer]
    given = {a.name: h.get_attribute_value(a) for a in node.attribute}
    groups = given.get("num_groups", x.shape[1])
    rows = x.astype(np.float64).reshape(x.shape[0], groups, math.prod(x.shape[1:]) // groups)
    with np.errstate(invalid="ignore"):
        centred = rows - rows.mean(-1, keepdims=True)
        rows = centred / np.sqrt((centred * centred).mean(-1, keepdims=True) + given.get("epsilon", 1e-5))
    of_groups = len(weights[0]) == groups
    value = rows if of_groups else rows.reshape(x.shape)
    column = (-1, *[1] * (value.ndim - 2))
    return (value * weights[0].reshape(column) + weights[1].reshape(column)).reshape(x.shape)


@pytest.mark.parametrize(("batch", "mean"), [(1, 0.0), (3, 30.0)])
def test_numbers(compiled: Any, batch: int, mean: float) -> None:
    """Those of float64, also where the mean is far from 0, which onnxruntime's GroupNormalization loses digits to; a row with an
    infinity is NaN, and only that row."""
    models, call = compiled
    inputs = {name: drawn(model, batch, 2, mean) for name, model in models.items()}
    for special in (0.5, np.inf):
        for x in inputs.values():
            x.reshape(len(x), -1)[-1, 0] = special
        for (name, model), got in zip(models.items(), call(*inputs.values()), strict=True):
            want = normalised(model, inputs[name])
            assert (np.isnan(got) == np.isnan(want)).all(), name
            off = np.nanmax(np.abs(got.astype(np.float64) - want)) / np.nanmax(np.abs(want))
            assert off <= TOLERANCE[got.dtype.type], (name, off)


def drawn(model: onnx.ModelProto, free: int, size: float = 1, mean: float = 0) -> np.ndarray[Any, Any]:
    """An input of a model, whose free sizes are `free`."""
    tensor = model.graph.input[0].type.tensor_type
    dims = [d.dim_value or free for d in tensor.shape.dim]
    numbers = np.random.default_rng(free).standard_normal(dims) * size + mean
    return numbers.astype(h.tensor_dtype_to_np_dtype(tensor.elem_type))


def test_onnxruntime_agrees() -> None:
    """The meaning above is onnxruntime's."""
    for name, model in MODELS.items():
        x = drawn(model, 2)
        (got,) = run(model, {"x": x})
        np.testing.assert_allclose(
            got, normalised(model, x), atol=5e-3 if x.dtype == np.float16 else 2e-5, err_msg=name
        )

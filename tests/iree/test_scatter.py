"""ScatterElements and ScatterND with a reduction give onnxruntime's numbers, also where several updates go to one place."""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import TensorProto
from onnx import helper as h

import onnx_fa
from onnx_fa.errors import ModelError
from onnx_fa.iree.inference import infer_types
from onnx_fa.iree.legalise.rules import legalize
from tests.support.joined_models import join_models
from tests.support.ort_run import run
from tests.support.sampled import sampled

COUNT = int(os.environ.get("ONNX_FA_SCATTERS", "0"))
"""So many are compiled; 0: of 14 one of each kind, and all with `--whole`."""
KINDS = (np.float32, np.int64, np.int32, np.int8, np.uint8)
Feeds = dict[str, np.ndarray[Any, Any]]


def model_of(op: str, feeds: Feeds, shapes: dict[str, list[Any]] | None = None, **attributes: Any) -> onnx.ModelProto:
    """Of x, indices and updates as in `feeds`, with other dims where `shapes` has them."""
    inputs = [
        h.make_tensor_value_info(name, h.np_dtype_to_tensor_dtype(x.dtype), (shapes or {}).get(name, list(x.shape)))
        for name, x in feeds.items()
    ]
    made = h.make_tensor_value_info("y", inputs[0].type.tensor_type.elem_type, None)
    graph = h.make_graph([h.make_node(op, list(feeds), ["y"], "scatter", **attributes)], "g", inputs, [made])
    return h.make_model(graph, opset_imports=[h.make_opsetid("", 18)], ir_version=9)


def drawn(seed: int) -> tuple[onnx.ModelProto, Feeds]:
    """Indices from the front and the end, most of them twice; each second model of free sizes."""
    r, rng = random.Random(seed), np.random.default_rng(seed)
    kind, op = np.dtype(r.choice(KINDS)), r.choice(("ScatterElements", "ScatterElements", "ScatterND"))
    attributes: dict[str, Any] = {"reduction": r.choice(("max", "min", "max", "min", "add", "mul"))}
    shape = [r.randint(1, 5) for _ in range(r.randint(1, 3))]

    def numbers(dims: Any) -> np.ndarray[Any, Any]:
        if kind.kind == "f":
            return rng.standard_normal(dims).astype(kind)
        return rng.integers(0, 255, dims).astype(kind) if kind.kind == "u" else rng.integers(-5, 6, dims).astype(kind)

    if op == "ScatterElements":
        axis = r.randrange(len(shape))
        dims = [r.randint(1, size) for size in shape]
        dims[axis] = 2 * shape[axis] + 1
        indices = rng.integers(-shape[axis], shape[axis], dims)
        attributes["axis"] = axis - len(shape) * r.randint(0, 1)
        updates = numbers(dims)
    else:
        own = r.randint(1, len(shape))
        indices = np.stack([rng.integers(-size, size, 7) for size in shape[:own]], axis=-1)
        updates = numbers([7, *shape[own:]])
    feeds = {"x": numbers(shape), "indices": indices.astype(np.int64), "updates": updates}
    free = {
        name: [f"{name}{i}" for i in range(x.ndim - (op == "ScatterND" and name == "indices"))]
        for name, x in feeds.items()
    }
    if op == "ScatterND":
        free["indices"].append(indices.shape[-1])
        free["updates"] = [free["indices"][0], *free["x"][indices.shape[-1] :]]
    else:
        free["updates"] = free["indices"]
    return model_of(op, feeds, free if seed % 2 else None, **attributes), feeds


def kinds_of(model: onnx.ModelProto, feeds: Feeds) -> set[str]:
    (node,), updates = model.graph.node, model.graph.input[2].type.tensor_type.shape
    reduction = h.get_node_attr_value(node, "reduction").decode()
    free = any(dim.dim_param for dim in updates.dim)
    return {str(feeds["x"].dtype), f"{node.op_type} {reduction}", f"{node.op_type} {free}"}


def test_reductions(tmp_path: Path, pytestconfig: pytest.Config) -> None:
    cases = [drawn(seed) for seed in range(COUNT or 14)]
    if not COUNT and not pytestconfig.getoption("whole"):
        cases = [cases[i] for i in sampled([kinds_of(*case) for case in cases], None)]
    joined = join_models([model for model, _ in cases], own_dims=True)
    feeds = {f"m{i}_{name}": x for i, (_, own) in enumerate(cases) for name, x in own.items()}
    onnx_fa.compile(joined, tmp_path / "m.vmfb")
    got = onnx_fa.run(tmp_path / "m.vmfb", *feeds.values())
    for i, (found, want) in enumerate(zip(got, run(joined, feeds, optimise=False), strict=True)):
        assert found.shape == want.shape
        np.testing.assert_allclose(found.view(want.dtype), want, rtol=1e-5, atol=1e-6, err_msg=str(i))


def test_many_updates_of_a_few_rows_and_none(tmp_path: Path) -> None:
    """As a softmax over the edges of a graph begins; a graph without edges has no updates."""
    rng = np.random.default_rng(0)
    feeds: Feeds = {"x": np.full((7, 16), -3, np.float32), "indices": rng.integers(0, 7, (1000, 16))}
    feeds["updates"] = rng.standard_normal((1000, 16)).astype(np.float32)
    shapes = {"indices": ["E", 16], "updates": ["E", 16]}
    empty = {name: x if name == "x" else x[:0] for name, x in feeds.items()}
    for known, calls in ((shapes, (feeds, empty)), (None, (empty,))):
        model = model_of("ScatterElements", calls[0], known, axis=0, reduction="max")
        onnx_fa.compile(model, tmp_path / "m.vmfb")
        for call in calls:
            (got,) = onnx_fa.run(tmp_path / "m.vmfb", *call.values())
            np.testing.assert_array_equal(got, run(model, call)[0])


@pytest.mark.parametrize("op", ["ScatterND", "ScatterElements"])
@pytest.mark.parametrize("reduction", ["none", "add", "max"])
@pytest.mark.parametrize("kind", ["float", "int64"])
def test_one_number_that_is_a_constant(op: str, reduction: str, kind: str, tmp_path: Path) -> None:
    """IREE writes bits of the place."""
    model = onnx.parser.parse_model(
        f"""<ir_version: 9, opset_import: ["" : 18]> g ({kind}[4, 3] x) => ({kind}[4, 3] y) {{
        i = Constant<value = int64[1, {2 if op == "ScatterND" else 1}] {{1{", 1" * (op == "ScatterND")}}}>()
        u = Constant<value = {kind}[1{", 1" * (op == "ScatterElements")}] {{5}}>()
        y = {op}<reduction = "{reduction}">(x, i, u) }}"""
    )
    x = np.arange(12, dtype=np.float32 if kind == "float" else np.int64).reshape(4, 3)
    onnx_fa.compile(model, tmp_path / "m.vmfb")
    np.testing.assert_array_equal(onnx_fa.run(tmp_path / "m.vmfb", x)[0], run(model, {"x": x})[0])


def written(model: onnx.ModelProto) -> list[str]:
    infer_types(model, {})
    return [node.op_type for node in legalize(model).graph.node]


def test_what_stays_and_what_is_refused() -> None:
    feeds: Feeds = {"x": np.zeros((3, 2)), "indices": np.zeros((1, 2), np.int64), "updates": np.zeros((1, 2))}
    for reduction in ("none", "add", "mul"):
        assert written(model_of("ScatterElements", feeds, reduction=reduction)) == ["ScatterElements"]
    assert written(model_of("ScatterND", feeds | {"updates": np.zeros(1)}, reduction="max")) == ["ScatterND"]
    unsigned = {name: x if name == "indices" else x.astype(np.uint64) for name, x in feeds.items()}
    with pytest.raises(ModelError, match="node 'scatter': IREE computes ScatterElements of uint64 as of int64"):
        written(model_of("ScatterElements", unsigned, reduction="min"))
    ranked = model_of("ScatterElements", feeds, reduction="min")
    ranked.graph.input[1].CopyFrom(h.make_tensor_value_info("indices", TensorProto.INT64, None))
    ranked.graph.input[2].CopyFrom(h.make_tensor_value_info("updates", TensorProto.DOUBLE, None))
    with pytest.raises(ModelError, match="node 'scatter': ScatterElements of indices whose rank is not known"):
        legalize(ranked)

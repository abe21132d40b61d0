"""TensorScatter written out: the same rows as in onnxruntime, for every mode, axis and way of saying where."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto as T
from onnx import helper as h

from onnx_fa.errors import ModelError
from onnx_fa.iree.compile import import_model
from onnx_fa.iree.compiler import iree_compile
from onnx_fa.iree.inference import infer_types
from onnx_fa.iree.legalise.rules import legalize
from onnx_fa.iree.run import load_module
from onnx_fa.spec.target import parse_target
from tests.support.ort_run import run

RNG = np.random.default_rng(0)


def scatter(
    new: int, axis: int, mode: str, places: list[int] | None, dtype: Any, free: bool
) -> tuple[Any, dict[str, Any]]:
    shape = [2, 3, 7, 4] if axis in (-2, 2) else [2, 7, 3, 4]
    cut = [new if i == axis % 4 else d for i, d in enumerate(shape)]
    given = {n: RNG.standard_normal(s).astype(dtype) for n, s in (("past", shape), ("update", cut))}
    if places is not None:
        given["places"] = np.array(places)
    kind = h.np_dtype_to_tensor_dtype(np.dtype(dtype))
    names = {axis % 4: "S", 0: "B"} if free else {}
    declared = {
        "past": [names.get(i, d) for i, d in enumerate(shape)],
        "update": ["B" if i == 0 and free else "T" if i == axis % 4 and free else d for i, d in enumerate(cut)],
        "places": ["B" if free else 2],
    }
    inputs = [h.make_tensor_value_info(n, T.INT64 if n == "places" else kind, declared[n]) for n in given]
    node = h.make_node("TensorScatter", list(given), ["y"], "node", axis=axis, mode=mode)
    out = h.make_tensor_value_info("y", kind, declared["past"])
    graph = h.make_graph([node], "main_graph", inputs, [out])
    return h.make_model(graph, opset_imports=[h.make_opsetid("", 24)], ir_version=11), given


def written(model: onnx.ModelProto) -> onnx.ModelProto:
    typed = onnx.ModelProto()
    typed.CopyFrom(model)
    infer_types(typed, {})
    return legalize(typed)


@pytest.mark.parametrize("free", [False, True], ids=["static", "free"])
@pytest.mark.parametrize(
    ("new", "axis", "mode", "places", "dtype"),
    [
        (1, -2, "linear", [0, 6], np.float32),
        (3, -2, "linear", [4, 1], np.float32),
        (7, -2, "linear", [0, 0], np.float16),
        (3, 1, "linear", [2, 4], np.float32),
        (2, -2, "linear", None, np.float32),
        (1, -2, "circular", [6, 3], np.float16),
        (3, -2, "circular", [6, 5], np.float32),
        (3, 1, "circular", [0, 6], np.float32),
    ],
)
def test_written_out(new: int, axis: int, mode: str, places: list[int] | None, dtype: Any, free: bool) -> None:
    model, given = scatter(new, axis, mode, places, dtype, free)
    out = written(model)
    assert not any(n.op_type == "TensorScatter" for n in out.graph.node)
    np.testing.assert_array_equal(run(out, given)[0], run(model, given)[0])


def test_compiled(tmp_path: Path) -> None:
    model, given = scatter(3, -2, "circular", [6, 2], np.float32, True)
    done, module = import_model(model), tmp_path / "m.vmfb"
    iree_compile(done.text, module, parse_target("cpu-host"), flags=done.flags, timeout_s=60)
    np.testing.assert_array_equal(load_module(module)(*given.values())[0], run(model, given)[0])


def test_of_no_known_rank_is_refused() -> None:
    model, _ = scatter(3, -2, "linear", [0, 0], np.float32, False)
    for info in model.graph.input[:2]:
        info.type.tensor_type.ClearField("shape")
    model.graph.output[0].type.tensor_type.ClearField("shape")
    with pytest.raises(ModelError, match="'node': TensorScatter is unknown to IREE"):
        import_model(model)

"""DequantizeLinear of 4-bit integers, compiled with weights in the module and beside it, against onnxruntime."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto as T
from onnx import helper as h
from onnx import numpy_helper

from onnx_fa.cli import main

BLOCK = 16


def model(rows: int, columns: int, kind: int, scales: tuple[int, ...], zero: bool, **attrs: int) -> onnx.ModelProto:
    """x (3, rows) by dequantized weights (rows, columns)."""
    rng = np.random.default_rng(rows)
    low, high = (-8, 8) if kind == T.INT4 else (0, 16)

    def weights(name: str, shape: tuple[int, ...]) -> onnx.TensorProto:
        return h.make_tensor(name, kind, shape, rng.integers(low, high, shape).flatten().tolist())

    tensors = [
        weights("w", (rows, columns)),
        numpy_helper.from_array(rng.standard_normal(scales).astype(np.float32), "s"),
        *([weights("z", scales)] if zero else []),
    ]
    nodes = [
        h.make_node("DequantizeLinear", [t.name for t in tensors], ["d"], **attrs),
        h.make_node("MatMul", ["x", "d"], ["y"]),
    ]
    x, y = (h.make_tensor_value_info(n, T.FLOAT, [3, size]) for n, size in (("x", rows), ("y", columns)))
    return h.make_model(
        h.make_graph(nodes, "main_graph", [x], [y], tensors), opset_imports=[h.make_opsetid("", 21)], ir_version=10
    )


@pytest.mark.parametrize(
    ("size", "kind", "scales", "zero", "attrs"),
    [
        (16, T.INT4, (1, 16), True, {"axis": 0, "block_size": BLOCK}),
        (64, T.INT4, (4, 64), True, {"axis": 0, "block_size": BLOCK}),
        (64, T.UINT4, (64, 4), False, {"axis": 1, "block_size": BLOCK}),
        (64, T.UINT4, (64,), True, {"axis": 0}),
        (64, T.INT4, (), True, {}),
    ],
)
@pytest.mark.parametrize("parameters", ["embed", "archive"])
def test_compiled(
    size: int, kind: int, scales: tuple[int, ...], zero: bool, attrs: dict[str, int], parameters: str, tmp_path: Path
) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(model(size, size, kind, scales, zero, **attrs), path)
    made = str(tmp_path / "m.vmfb")
    assert main(["compile", str(path), "-o", made, "--target", "cpu-host", "--parameters", parameters, "--check"]) == 0

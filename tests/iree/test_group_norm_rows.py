"""Norms of groups of channels where an image has its channels last: found however they are spelled, and onnxruntime's numbers."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper as h

import onnx_fa
from onnx_fa.graph.ops import op_of
from onnx_fa.iree.inference import infer_types
from onnx_fa.iree.legalise.channel_norm import CHANNEL_STATISTICS
from onnx_fa.iree.legalise.channels_last import put_channels_last
from onnx_fa.iree.legalise.group_norm import GROUP_NORM
from onnx_fa.iree.run import load_module
from onnx_fa.spec.target import parse_target
from tests.support.image_nets import Net
from tests.support.ort_run import assert_same, run

SPELLINGS = ("reshapes", "groups", "channels")


def norm(n: Net, x: str, channels: int, groups: int, spelling: str, *, epsilon: float = 1e-5) -> str:
    """A norm of groups, as PyTorch exports it before opset 21, or as GroupNormalization is before that and from then on."""
    attributes: dict[str, Any] = {"num_groups": groups, "epsilon": epsilon}
    if spelling == "groups":
        return str(n.add("GroupNormalization", x, n.weight(groups), n.weight(groups), **attributes))
    if spelling == "channels":
        return str(n.add("GroupNormalization", x, n.weight(channels), n.weight(channels), **attributes))
    rows = n.add("Reshape", x, n.ints(0, groups, -1))
    of_groups = n.const(np.linspace(0.5, 2, groups, dtype=np.float32)), n.weight(groups)
    made = n.add("InstanceNormalization", rows, *of_groups, epsilon=epsilon)
    made = n.add("Reshape", made, n.add("Shape", x))
    return str(n.add("Add", n.add("Mul", made, n.weight(channels, 1, 1)), n.weight(channels, 1, 1)))


def network(
    spelling: str, *, channels: int = 32, groups: int = 8, sizes: tuple[int, int] = (16, 13), batch: int | str = "N"
) -> onnx.ModelProto:
    """A block of a decoder of images as diffusers has them."""
    opset = {"reshapes": 17, "groups": 18, "channels": 21}[spelling]
    n = Net(16, *sizes, batch=batch, opset=opset, seed=groups)
    x = n.conv("x", 16, channels, 3)
    y = n.conv(n.silu(norm(n, x, channels, groups, spelling)), channels, channels, 3)
    y = n.conv(n.silu(norm(n, y, channels, groups, spelling, epsilon=1e-6)), channels, channels, 3)
    y = n.conv(n.silu(norm(n, n.add("Add", x, y), channels, groups, spelling)), channels, 16, 3)
    graph = h.make_graph(n.nodes, "g", n.inputs, [h.make_tensor_value_info(y, 1, None)], n.weights)
    return h.make_model(graph, opset_imports=[h.make_opsetid("", opset)], ir_version=10)


def ops_of(model: onnx.ModelProto) -> Counter[str]:
    """What a model has once its channels come last where that pays."""
    made = onnx.ModelProto.FromString(model.SerializeToString())
    infer_types(made, {})
    put_channels_last(made, target=parse_target("cpu-avx2"))
    return Counter(op_of(node) for node in made.graph.node)


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_no_image_is_turned_around_a_norm(spelling: str) -> None:
    ops = ops_of(network(spelling))
    assert ops[CHANNEL_STATISTICS] == 3
    assert ops["Transpose"] == 4 + 2  # of weights, and of the model's image and result
    assert not {"InstanceNormalization", "GroupNormalization", GROUP_NORM, "Shape"} & {op for op in ops if ops[op]}


def broken(case: str) -> onnx.ModelProto:
    """Like a norm of groups, but for one thing."""
    n = Net(32, 8, 8, seed=1)
    x = n.conv("x", 32, 32, 3)
    rows = n.add("Reshape", x, n.ints(0, 4, -1) if case == "other groups" else n.ints(0, 8, -1))
    scale = n.weight(4 if case == "other groups" else 8)
    made = n.add("InstanceNormalization", rows, scale, n.weight(4 if case == "other groups" else 8))
    shown = {"read": [made], "rows are read": [rows]}.get(case, [])
    sizes = (0, 16, 16, 8) if case == "another shape" else (0, 32, 8, 8)
    y = n.add("Reshape", made, n.ints(*sizes))
    last = n.conv(y, sizes[1], 32, 3)
    return n.model(last, *shown)


@pytest.mark.parametrize(
    ("case", "joined"),
    [("other groups", True), ("read", False), ("rows are read", False), ("another shape", False)],
)
def test_which_are_joined(case: str, joined: bool) -> None:
    ops = ops_of(broken(case))
    assert ("InstanceNormalization" not in ops) == joined


@pytest.mark.parametrize(
    "model",
    [
        pytest.param(network("reshapes"), id="reshapes"),
        pytest.param(network("channels", channels=48, groups=3, sizes=(8, 20), batch=2), id="channels"),
    ],
)
def test_numbers(model: onnx.ModelProto, tmp_path: Path) -> None:
    """With a mean far from zero, a channel of one number in all places, and an image with an infinity."""
    batch = model.graph.input[0].type.tensor_type.shape.dim[0].dim_value or 3
    sizes = [d.dim_value for d in model.graph.input[0].type.tensor_type.shape.dim[1:]]
    x = (np.random.default_rng(3).standard_normal((batch, *sizes)) * 3 + 40).astype(np.float32)
    x[0, 2] = 7
    x[-1, 1, 2, 3] = np.inf
    onnx_fa.compile(model, tmp_path / "m.vmfb")
    have = load_module(tmp_path / "m.vmfb")(x)
    for optimise in (True, False):
        assert_same(run(model, {"x": x}, optimise=optimise), have, 2e-5)


def test_norms_that_stay_are_kernels_of_rows(tmp_path: Path) -> None:
    """Where channels come first, a joined norm is what its spelling was."""
    n = Net(16, 6, 6)
    made = n.add("Reshape", "x", n.ints(0, 4, -1))
    made = n.add("InstanceNormalization", made, n.weight(4), n.weight(4))
    made = n.add("Reshape", made, n.add("Shape", "x"))
    model = n.model(n.add("MatMul", made, n.weight(6, 6)), n.conv("x", 16, 2, 3))
    assert ops_of(model)[GROUP_NORM] == 1
    x = np.random.default_rng(4).standard_normal((2, 16, 6, 6)).astype(np.float32)
    onnx_fa.compile(model, tmp_path / "m.vmfb")
    assert_same(run(model, {"x": x}), load_module(tmp_path / "m.vmfb")(x), 2e-6)


def test_a_row_of_numbers_has_no_groups() -> None:
    n = Net(16, 8, 8, batch=3)
    row = n.add("ReduceMean", n.conv("x", 16, 32, 3), axes=[1, 2, 3], keepdims=0)
    made = n.add("InstanceNormalization", n.add("Reshape", row, n.ints(3, 1, 1)), n.weight(1), n.weight(1))
    assert ops_of(n.model(n.add("Reshape", made, n.ints(3))))["InstanceNormalization"] == 1

"""Convs along an axis of free size: of sequences by their kernel, of images those of blocks by the kernel for known sizes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto as T
from onnx import helper as h
from onnx import numpy_helper

from onnx_fa.graph.ops import op_of
from onnx_fa.iree.compile import compile_model
from onnx_fa.iree.inference import infer_types
from onnx_fa.iree.legalise.convolutions import CONV_SITE
from onnx_fa.iree.legalise.rules import legalize
from onnx_fa.iree.legalise.sequence_sites import SEQUENCE_SITE
from onnx_fa.iree.run import load_module
from onnx_fa.spec.target import parse_target
from tests.support.ort_run import assert_same, run

Dims = list[int | str]
AVX2 = parse_target("cpu-avx2")


def conv(dims: Dims, columns: int, kernel: list[int], *, bias: bool = True, **options: Any) -> onnx.ModelProto:
    """y = Relu(Conv(x)) of f32, with a weight of the network."""
    rng = np.random.default_rng(0)
    own = int(dims[1]) // options.get("group", 1)
    weight = (rng.standard_normal((columns, own, *kernel)) * 0.1).astype(np.float32)
    held = [numpy_helper.from_array(weight, "w")]
    if bias:
        held.append(numpy_helper.from_array(rng.standard_normal(columns).astype(np.float32), "b"))
    nodes = [
        h.make_node("Conv", ["x", *(t.name for t in held)], ["c"], "conv", **options),
        h.make_node("Relu", ["c"], ["y"]),
    ]
    x = h.make_tensor_value_info("x", T.FLOAT, dims)
    y = h.make_tensor_value_info("y", T.FLOAT, [None] * len(dims))
    graph = h.make_graph(nodes, "g", [x], [y], held)
    return h.make_model(graph, opset_imports=[h.make_opsetid("", 17)], ir_version=9)


CASES = {
    "features of a sound": conv(["B", 16, "L"], 32, [3], strides=[2], bias=False),
    "groups, windows longer than a block": conv(["B", 32, "L"], 32, [100], group=2, pads=[50, 49]),
    "dilation, steps longer than windows": conv(["B", 8, "L"], 16, [2], strides=[5], dilations=[2], pads=[1, 0]),
    "time first, of a spectrogram": conv(["B", 2, "L", 10], 16, [3, 3], strides=[2, 1], pads=[1, 0, 1, 2]),
    "time last": conv([1, 2, 10, "L"], 16, [3, 3], strides=[1, 2], pads=[0, 1, 2, 1]),
    "one tap": conv(["B", 16, "L"], 32, [1]),
    "one column": conv(["B", 16, "L"], 1, [7], pads=[3, 3]),
    "of each channel for itself": conv(["B", 24, "L"], 24, [31], group=24, pads=[15, 15]),
    "groups that share a vector": conv([1, 32, "L"], 32, [5], group=8, auto_pad="SAME_LOWER"),
}


def kinds(model: onnx.ModelProto) -> list[str]:
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    infer_types(copy, {})
    return [op_of(node) for node in legalize(copy, target=AVX2).graph.node]


@pytest.mark.parametrize("name", CASES)
def test_results_are_those_of_the_conv(name: str, tmp_path: Path) -> None:
    """For lengths of less than a block, of one and more, and that leave rows which no window reads; an infinity stays where windows
    see it; a batch of none."""
    model = CASES[name]
    dims = [d.dim_value or d.dim_param for d in model.graph.input[0].type.tensor_type.shape.dim]
    compile_model(model, tmp_path / "m.vmfb")
    call = load_module(tmp_path / "m.vmfb")
    for batch, length in ((2, 5), (1, 48), (2, 97), (1, 195), (0, 60)):
        if batch != 1 and dims[0] == 1:
            continue
        sizes = {"B": batch, "L": length}
        x = np.random.default_rng(1).standard_normal([sizes.get(str(d), d) for d in dims]).astype(np.float32)
        if x.size and length > 90:
            x[0, 0].flat[-3] = np.inf
        assert_same(run(model, {"x": x}), call(x))


def test_residuals_of_images(tmp_path: Path) -> None:
    """Of spectrograms: what two convolutions make is added to what they read, which the next block pads. With a free batch IREE
    cannot tell how many workgroups a dispatch of all that has."""
    rng = np.random.default_rng(0)
    nodes, held, x = list[onnx.NodeProto](), list[onnx.TensorProto](), "x"
    for block in range(2):
        y = x
        for i, wide in ((f"{block}_0", 1), (f"{block}_1", 3)):
            held.append(numpy_helper.from_array((rng.standard_normal((16, 16, 3, 3)) / 12).astype(np.float32), f"w{i}"))
            nodes.append(h.make_node("LeakyRelu", [y], [f"a{i}"]))
            along = {"dilations": [1, wide], "pads": [1, wide, 1, wide]}
            nodes.append(h.make_node("Conv", [f"a{i}", f"w{i}"], [f"c{i}"], **along))
            y = f"c{i}"
        nodes.append(h.make_node("Add", [y, x], [f"x{block}"]))
        x = f"x{block}"
    infos = [h.make_tensor_value_info(name, T.FLOAT, ["B", 16, 4, "L"]) for name in ("x", x)]
    model = h.make_model(
        h.make_graph(nodes, "g", infos[:1], infos[1:], held), opset_imports=[h.make_opsetid("", 17)], ir_version=9
    )
    compile_model(model, tmp_path / "m.vmfb")
    call = load_module(tmp_path / "m.vmfb")
    for batch, length in ((2, 7), (1, 97)):
        sound = rng.standard_normal((batch, 16, 4, length)).astype(np.float32)
        assert_same(run(model, {"x": sound}), call(sound))


def test_one_behind_another(tmp_path: Path) -> None:
    """With a function of single numbers between them, as features of a sound have: what makes blocks is a dispatch of its own."""
    first, second = (conv(["B", channels, "L"], 32, [3], strides=[2]) for channels in (16, 32))
    between = [h.make_node("Erf", ["y"], ["e"]), h.make_node("Mul", ["y", "e"], ["z"])]
    again = [
        h.make_node("Conv", ["z", "w2", "b"], ["c2"], "conv2", strides=[2]),
        h.make_node("Neg", ["c2"], ["y2"]),
    ]
    first.graph.node.extend([*between, *again])
    (weight,) = [t for t in second.graph.initializer if t.name == "w"]
    first.graph.initializer.append(numpy_helper.from_array(numpy_helper.to_array(weight), "w2"))
    first.graph.output[0].name = "y2"
    compile_model(first, tmp_path / "m.vmfb")
    call = load_module(tmp_path / "m.vmfb")
    for batch, length in ((2, 400), (1, 30), (0, 60)):
        x = np.random.default_rng(1).standard_normal((batch, 16, length)).astype(np.float32)
        assert_same(run(first, {"x": x}), call(x))


@pytest.mark.parametrize("name", CASES)
def test_a_kernel_takes_them(name: str) -> None:
    site = CONV_SITE if len(CASES[name].graph.input[0].type.tensor_type.shape.dim) > 3 else SEQUENCE_SITE
    assert site in kinds(CASES[name]) and "Conv" not in kinds(CASES[name])


@pytest.mark.parametrize(
    "model",
    [
        conv(["B", 16, "L", "W"], 32, [3, 3]),  # two free axes
        conv(["B", 6, "L"], 9, [3], group=3),  # three columns fill no vector and share none
        conv(["B", 16, "L"], 32, [3], strides=[2], auto_pad="SAME_UPPER"),  # pads that only a run knows
    ],
)
def test_others_stay(model: onnx.ModelProto) -> None:
    assert "Conv" in kinds(model) and "Slice" not in kinds(model)

"""Upsampling ConvTransposes of images, which CPUs have as Conv and DepthToSpace."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import onnx_fa
from onnx_fa.graph.ops import op_of
from onnx_fa.iree.inference import infer_types
from onnx_fa.iree.legalise import row_parts
from onnx_fa.iree.legalise.channels_last import put_channels_last
from onnx_fa.iree.legalise.conv_transpose import write_shuffled
from onnx_fa.spec.target import parse_target
from tests.iree.test_channels_last import evaluate
from tests.iree.test_conv_transpose import model_of
from tests.support.image_nets import Net
from tests.support.joined_models import join_models
from tests.support.ort_run import assert_same, run

CPU = parse_target("cpu-avx2")


def shuffled(model: onnx.ModelProto, target: Any = CPU) -> onnx.ModelProto:
    made = onnx.ModelProto.FromString(model.SerializeToString())
    infer_types(made, {})
    write_shuffled(made, target=target)
    return made


def ops(model: onnx.ModelProto) -> Counter[str]:
    return Counter(op_of(node) for node in model.graph.node)


def drawn(seed: int) -> onnx.ModelProto:
    r = random.Random(seed)
    block = r.choice((2, 2, 2, 3, 4))
    taps = [block * r.choice((1, 1, 2, 3)) for _ in range(2)]
    attributes: dict[str, Any] = {"strides": [block, block]}
    if r.random() < 0.6:
        pads = [r.randint(0, min(3, t - 1)) for t in taps]
        attributes["pads"] = pads * 2
    if r.random() < 0.3:
        attributes["output_padding"] = [r.randint(0, block - 1) for _ in taps]
    size = [r.randint(4, 6) for _ in taps]
    channels, columns = r.randint(1, 9), r.randint(1, 9)
    return model_of(["B", channels, *size], (channels, columns, *taps), bias=r.random() < 0.7, **attributes)


def images(model: onnx.ModelProto, finite: bool = True, shape: Sequence[int] | None = None) -> np.ndarray:
    dims = [d.dim_value for d in model.graph.input[0].type.tensor_type.shape.dim]
    x = np.random.default_rng(0).standard_normal(shape or [2, *dims[1:]]).astype(np.float32)
    if not finite:
        x[0, :, ..., 0], x[1, 0, ..., -1] = np.inf, np.nan
    return x


@pytest.mark.parametrize("finite", [True, False])
@pytest.mark.parametrize("seed", range(40))
def test_drawn(seed: int, finite: bool) -> None:
    model = drawn(seed)
    made = shuffled(model)
    assert ops(made)["Conv"] == 1 == ops(made)["DepthToSpace"] and not ops(made)["ConvTranspose"]
    feeds = {"x": images(model, finite)}
    assert_same(run(model, feeds, optimise=False), run(made, feeds, optimise=False), 1e-5)


def decoder(taps: int = 2, pads: int = 0, cut: int = 0) -> onnx.ModelProto:
    """As a mask's decoder: convolutions around an upsampling."""
    n = Net(16, 6, 5)
    x = n.add("Relu", n.conv("x", 16, 16, 3))
    attributes: dict[str, Any] = {"strides": [2, 2], "pads": [pads] * 4, "output_padding": [cut] * 2}
    y = n.add("ConvTranspose", x, n.weight(16, 24, taps, taps), n.weight(24), **attributes)
    return n.model(n.conv(n.add("Sigmoid", y), 24, 8))


@pytest.mark.parametrize("changes", [{}, {"taps": 4, "pads": 1}, {"taps": 4, "pads": 1, "cut": 1}], ids=str)
def test_rows_stay_rows(changes: dict[str, int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_parts, "_saved", lambda *_: 1)
    model = decoder(**changes)
    made = shuffled(model)
    put_channels_last(made, target=CPU)
    assert not ops(made)["DepthToSpace"] and not ops(made)["Conv"]
    feeds = {"x": images(model)}
    assert_same(run(model, feeds), evaluate(made, feeds), 1e-5)


def test_compiled(tmp_path: Path) -> None:
    """With what is not finite; a decoder as rows, and upsamplings alone, also along free sizes."""
    sounds = [model_of(["B", 16, size], (16, 16, 8), strides=[4], pads=[2, 2]) for size in ("L",)]
    free = model_of(["B", 4, "H", "W"], (4, 3, 2, 3), strides=[2, 3])
    models = [decoder(4, 1), drawn(5), *sounds, free]
    joined = join_models([onnx.version_converter.convert_version(m, 21) for m in models], own_dims=True)
    sizes = {2: (2, 16, 51), 3: (2, 4, 5, 3)}
    feeds = {f"m{i}_x": images(m, i < 1, sizes.get(i)) for i, m in enumerate(models)}
    onnx_fa.compile(joined, tmp_path / "m.vmfb")
    assert_same(run(joined, feeds), onnx_fa.run(tmp_path / "m.vmfb", *feeds.values()), 1e-5)


def test_cuda() -> None:
    model = model_of(["B", 4, 3, 2], (4, 3, 2, 2), strides=[2, 2])
    made = shuffled(model, parse_target("cuda-sm_80"))
    assert ops(made) == {"Conv": 1, "DepthToSpace": 1}


STAYS: dict[str, tuple[onnx.ModelProto, str]] = {
    "several taps on CUDA": (model_of(["B", 4, 3, 2], (4, 3, 4, 4), strides=[2, 2], pads=[1] * 4), "cuda-sm_80"),
    "vulkan": (model_of(["B", 4, 3, 2], (4, 3, 2, 2), strides=[2, 2]), "vulkan"),
    "windows that are no multiple": (model_of(["B", 4, 3, 2], (4, 3, 3, 3), strides=[2, 2], pads=[1] * 4), "cpu-avx2"),
    "two strides": (model_of(["B", 4, 3, 2], (4, 3, 2, 3), strides=[2, 3]), "cpu-avx2"),
    "dilated": (model_of(["B", 4, 3, 2], (4, 3, 2, 2), strides=[2, 2], dilations=[2, 2]), "cpu-avx2"),
    "groups": (model_of(["B", 4, 3, 2], (4, 3, 2, 2), strides=[2, 2], group=2), "cpu-avx2"),
    "free size": (model_of(["B", 4, "H", 2], (4, 3, 2, 2), strides=[2, 2]), "cpu-avx2"),
    "weight of the run": (model_of(["B", 4, 3, 2], (4, 3, 2, 2), constant=False, strides=[2, 2]), "cpu-avx2"),
    "uneven pads": (model_of(["B", 4, 3, 2], (4, 3, 2, 2), strides=[2, 2], pads=[0, 0, 1, 1]), "cpu-avx2"),
}


@pytest.mark.parametrize("why", STAYS)
def test_what_stays(why: str) -> None:
    model, target = STAYS[why]
    assert ops(shuffled(model, parse_target(target))) == {"ConvTranspose": 1}

"""Norms of each channel of sequences whose channels come last: where they are so, and that they mean the same."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

import onnx_fa
from onnx_fa.iree.legalise.channel_norm import CHANNEL_STATISTICS
from onnx_fa.iree.run import load_module
from onnx_fa.spec.channel_norm import ChannelSpec, measure_channels
from tests.iree.test_sequences_last import evaluate, ops, turned
from tests.support.joined_models import join_models
from tests.support.ort_run import assert_same, run
from tests.support.random_sounds import sound, sound_net


def features(channels: int, groups: int = 0, length: int | str = "L") -> onnx.ModelProto:
    """wav2vec 2.0's first ones: a convolution, a GroupNorm as TorchScript writes it, an activation, and a convolution."""
    n = sound_net(3, length=length)
    groups = groups or channels
    x = n.add("Conv", "x", n.weight(channels, 3, 3), pads=[1, 1])
    scale, bias = n.const(np.ones(groups, np.float32)), n.const(np.zeros(groups, np.float32))
    rows = n.add("Reshape", x, n.ints(0, groups, -1))
    rows = n.add("InstanceNormalization", rows, scale, bias, epsilon=1e-3)
    y = n.add("Reshape", rows, n.add("Shape", x))
    y = n.add("Add", n.add("Mul", y, n.weight(channels, 1)), n.weight(channels, 1))
    return n.model(n.add("Conv", n.add("Relu", y), n.weight(16, channels, 3)))


def test_stays_with_channels_last() -> None:
    model = features(24)
    left = ops(turned(model))
    # x is turned, and what the model gives, and what of its norm's x is asked for its shape; and the weights of two convolutions.
    assert left[CHANNEL_STATISTICS] == 1 and "InstanceNormalization" not in left and left["Transpose"] == 5
    for length in (3, 40):
        feeds = sound(model, length)
        assert_same(run(model, feeds), evaluate(turned(model), feeds), 1e-5)


@pytest.mark.parametrize("why", ["groups", "few channels", "scale of the run"])
def test_stays(why: str) -> None:
    """Groups of channels, fewer channels than a vector has lanes, and a scale that only a run knows."""
    model = features(4 if why == "few channels" else 24, 8 if why == "groups" else 0)
    if why == "scale of the run":
        (norm,) = (node for node in model.graph.node if node.op_type == "InstanceNormalization")
        model.graph.input.append(onnx.helper.make_tensor_value_info("scale", onnx.TensorProto.FLOAT, [24]))
        norm.input[1] = "scale"
    assert CHANNEL_STATISTICS not in ops(turned(model))


def test_compiled(tmp_path: Path) -> None:
    """Channels that fill no vector, and more than a workgroup has; one place, parts of 128 and what is left of them."""
    models = [features(20), features(600), features(24, length=300)]
    joined = join_models(models, own_dims=True)
    onnx_fa.compile(joined, tmp_path / "m.vmfb")
    call = load_module(tmp_path / "m.vmfb")
    for batch, length in ((2, 3), (1, 128), (3, 129), (1, 700)):
        feeds = {f"m{i}_x": sound(m, 300 if i == 2 else length, batch)["x"] for i, m in enumerate(models)}
        assert_same(run(joined, feeds), call(*feeds.values()), 2e-5)


def alone(channels: int, epsilon: float) -> onnx.ModelProto:
    """A norm behind a convolution that changes nothing, so that what it reads is known."""
    n = sound_net(channels)
    x = n.add("Conv", "x", n.const(np.ones((channels, 1, 1), np.float32)), group=channels)
    scale, bias = (n.const(np.full(channels, v, np.float32)) for v in (2, -1))
    return n.model(n.add("InstanceNormalization", x, scale, bias, epsilon=epsilon))


def test_numbers(tmp_path: Path) -> None:
    """Small beside their mean, very many of them, of one place, infinite, equal ones, and none."""
    model = alone(16, 1e-5)
    onnx_fa.compile(model, tmp_path / "m.vmfb")
    assert ops(turned(model))[CHANNEL_STATISTICS] == 1
    call, rng = load_module(tmp_path / "m.vmfb"), np.random.default_rng(0)
    for length, mean in ((50, 1000.0), (40000, 30.0), (1, 5.0)):
        x = (rng.standard_normal((2, 16, length)) + mean).astype(np.float32)
        rows = x.transpose(0, 2, 1)
        middle, factor = measure_channels(ChannelSpec(2, length, 16, 1e-5), rows, np.full(16, 2.0))
        want = ((rows.astype(np.float64) - middle) * factor - 1).transpose(0, 2, 1)
        assert np.abs(call(x)[0] - want).max() < 2e-7 * mean + 2e-6
    x = rng.standard_normal((1, 16, 300)).astype(np.float32)
    x[0, 2, 7], x[0, 3, 290], x[0, 4] = np.inf, -np.inf, 3
    (have,), (want,) = call(x), run(model, {"x": x})
    assert np.isnan(have[0, 2:4]).all() and np.isnan(want[0, 2:4]).all() and np.array_equal(have[0, 4], want[0, 4])
    assert_same([np.delete(want, [2, 3], 1)], [np.delete(have, [2, 3], 1)], 1e-5)
    for batch, length in ((0, 7), (2, 0)):
        assert call(np.empty((batch, 16, length), np.float32))[0].shape == (batch, 16, length)

"""Networks along an axis of free length with channels last: which parts of them are so, and that they mean the same."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun

import onnx_fa
from onnx_fa.graph.ops import op_of
from onnx_fa.graph.site_op import DOMAIN
from onnx_fa.iree.compile import import_model, iree_compile
from onnx_fa.iree.inference import infer_types
from onnx_fa.iree.legalise import row_parts
from onnx_fa.iree.legalise.channel_norm import channel_statistics_of
from onnx_fa.iree.legalise.conv_epilogues import fuse_epilogues
from onnx_fa.iree.legalise.sequence_sites import SEQUENCE_SITE, sequence_conv_of
from onnx_fa.iree.legalise.sequences_last import put_sequences_last
from onnx_fa.iree.legalise.writer import attr_of
from onnx_fa.iree.run import load_module
from onnx_fa.spec.channel_norm import measure_channels
from onnx_fa.spec.sequences import slide_along
from onnx_fa.spec.target import parse_target
from tests.support.ort_run import assert_same, run
from tests.support.random_sounds import LENGTHS, sound, sound_net, sound_nets
from tests.support.triton_sources import triton_sources

NARROW, CUDA = parse_target("cpu-avx2"), parse_target("cuda")
_DTYPES: dict[str, Any] = {"float32": "f32", "float16": "f16"}


class SequenceSite(OpRun):
    """What the node means."""

    op_domain = DOMAIN

    def _run(self, x: np.ndarray, w: np.ndarray, *more: np.ndarray, **attributes: Any) -> tuple[np.ndarray]:
        kernel = sequence_conv_of([v.shape for v in (x, w, *more)], attributes, _DTYPES[x.dtype.name])
        return (slide_along(kernel.spec, x, w, *more).astype(x.dtype),)


class ChannelStatistics(OpRun):
    """What the node means."""

    op_domain = DOMAIN

    def _run(self, x: np.ndarray, scale: np.ndarray, **attributes: Any) -> tuple[np.ndarray, ...]:
        types: Any = [(x.shape, _DTYPES[x.dtype.name]), (scale.shape, "f32")]
        spec = channel_statistics_of(types, attributes).spec
        return tuple(v.astype(np.float32) for v in measure_channels(spec, x, scale))


def evaluate(model: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> list[Any]:
    return list(ReferenceEvaluator(model, new_ops=[SequenceSite, ChannelStatistics]).run(None, feeds))


def turned(model: onnx.ModelProto, target: Any = NARROW) -> onnx.ModelProto:
    made = onnx.ModelProto.FromString(model.SerializeToString())
    infer_types(made, {})
    put_sequences_last(made, target=target)
    infer_types(made, {})
    fuse_epilogues(made, target=target)
    return made


def ops(model: onnx.ModelProto) -> Counter[str]:
    return Counter(op_of(node) for node in model.graph.node)


def vocoder(batch: int | str = "N", length: int | str = "L", steps: Sequence[int] = (4, 2)) -> onnx.ModelProto:
    """HiFi-GAN's generator: an upsampling between blocks of residuals, and a last convolution of one column."""
    n = sound_net(24, batch, length=length)
    x, channels = n.add("Conv", "x", n.weight(32, 24, 7), n.weight(32), pads=[3, 3]), 32
    for step in steps:
        x = n.add("LeakyRelu", x, alpha=0.1)
        weights = n.weight(channels, channels // 2, 2 * step), n.weight(channels // 2)
        x = n.add("ConvTranspose", x, *weights, strides=[step], pads=[step // 2] * 2)
        channels //= 2
        for wide in (1, 3):
            y = n.add("LeakyRelu", x, alpha=0.1)
            y = n.add("Conv", y, n.weight(channels, channels, 3), n.weight(channels), dilations=[wide], pads=[wide] * 2)
            y = n.add("LeakyRelu", y, alpha=0.1)
            y = n.add("Conv", y, n.weight(channels, channels, 3), n.weight(channels), pads=[1, 1])
            x = n.add("Add", y, x)
    return n.model(n.add("Tanh", n.add("Conv", x, n.weight(1, channels, 7), n.weight(1), pads=[3, 3])))


def features() -> onnx.ModelProto:
    """wav2vec 2.0's: strides, a GELU by its parts, and tokens behind."""
    n, x, channels = sound_net(1), "x", 1
    for taps, stride in ((10, 5), (3, 2), (2, 2)):
        x = n.add("Conv", x, n.weight(16, channels, taps), strides=[stride])
        half = n.add("Mul", x, n.const(np.float32(0.5)))
        x = n.add("Mul", half, n.add("Add", n.add("Erf", x), n.const(np.float32(1))))
        channels = 16
    return n.model(n.add("Softmax", n.add("Transpose", x, perm=[0, 2, 1]), axis=-1))


@settings(max_examples=80, deadline=None, suppress_health_check=list(HealthCheck))
@given(sound_nets(), st.booleans(), st.booleans())
def test_drawn(model: onnx.ModelProto, all_parts: bool, cuda: bool) -> None:
    """Whatever is drawn means the same, where channels last are worth it and where they are not."""
    with pytest.MonkeyPatch.context() as patch, triton_sources():
        if all_parts:
            patch.setattr(row_parts, "_saved", lambda *_: 1)
        made = turned(model, CUDA if cuda else NARROW)
    if ops(made) == ops(model):
        return
    onnx.checker.check_model(made)
    known = model.graph.input[0].type.tensor_type.shape.dim[2].dim_value
    for length in [known] if known else LENGTHS:
        feeds = sound(model, length)
        assert_same(run(model, feeds, optimise=False), evaluate(made, feeds), 2e-5)


@pytest.mark.parametrize(("batch", "length"), [("N", "L"), (1, "L"), ("N", 9), (1, 9)])
def test_a_vocoder_turns_its_ends_alone(batch: int | str, length: int | str) -> None:
    made = turned(vocoder(batch, length))
    assert ops(made)[SEQUENCE_SITE] == 12 and not {"Conv", "ConvTranspose", "Add"} & set(ops(made))
    reads = {name for v in made.graph.input for name in [v.name]}
    turns = [n for n in made.graph.node if op_of(n) == "Transpose" and n.input[0] in reads]
    assert len(turns) == 1 and [op_of(n) for n in made.graph.node].count("Tanh") == 1
    # Activations between two convolutions, and residuals, happen in registers.
    fused = [n for n in made.graph.node if op_of(n) == SEQUENCE_SITE and attr_of(n, "then", b"")]
    assert len(fused) == 9


def codec() -> onnx.ModelProto:
    """EnCodec's decoder: each convolution behind pads of reflected places, or of none, and Slices to what is as long as it was; an
    upsampling whose ends are cut by a number that the run computes."""
    n, two = sound_net(16), np.array([2])

    def ended(x: str) -> str:
        length = n.add("Gather", n.add("Shape", x), n.const(np.array(2)), axis=0)
        return n.add("Slice", x, n.ints(0), n.add("Unsqueeze", length, n.ints(0)), n.const(two), n.ints(1))

    def padded(x: str, low: int, high: int) -> str:
        return ended(n.add("Pad", x, n.ints(0, 0, low, 0, 0, high), mode="reflect"))

    def conv(x: str, to: int, of: int, taps: int) -> str:
        return n.add("Conv", padded(x, taps // 2, taps // 2), n.weight(to, of, taps), n.weight(to))

    x = n.add("ConvTranspose", n.add("Elu", conv("x", 16, 16, 7)), n.weight(16, 16, 4), n.weight(16), strides=[2])
    length = n.add("Sub", n.add("Gather", n.add("Shape", x), n.const(two), axis=0), n.const(two))
    x = n.add("Slice", x, n.ints(0), length, n.const(two), n.ints(1))
    y = conv(n.add("Elu", conv(n.add("Elu", x), 8, 16, 3)), 16, 8, 1)
    x = n.add("Elu", n.add("Add", conv(x, 16, 16, 1), y))
    return n.model(conv(x, 1, 16, 7))


def test_a_codec_turns_its_ends_alone(tmp_path: Path) -> None:
    made = turned(codec())
    left = ops(made)
    assert left[SEQUENCE_SITE] == 6 and left["Slice"] <= 2 and left["Elu"] == 1 and "Add" not in left
    for length in (5, 23, 40):
        feeds = sound(codec(), length)
        assert_same(run(codec(), feeds), evaluate(made, feeds), 1e-5)
    onnx_fa.compile(codec(), tmp_path / "m.vmfb")
    call = load_module(tmp_path / "m.vmfb")
    for length in (4, 23, 40):
        feeds = sound(codec(), length)
        assert_same(run(codec(), feeds), call(feeds["x"]), 1e-5)


def encoder(mode: str) -> onnx.ModelProto:
    """EnCodec's encoder: strides, behind pads that fill up the last window, so many as the length asks for."""
    n, x = sound_net(16), "x"
    for stride in (2, 3):
        length = n.add("Gather", n.add("Shape", x), n.const(np.array(2)), axis=0)
        wide = n.const(np.array(stride, np.int64))
        more = n.add("Mod", n.add("Sub", wide, n.add("Mod", length, wide)), wide)
        pads = n.add("Concat", n.ints(0, 0), n.ints(stride), n.ints(0, 0), n.add("Unsqueeze", more, n.ints(0)), axis=0)
        rows = n.add("Transpose", n.add("Reshape", pads, n.ints(2, -1)), perm=[0, 1])
        x = n.add("Pad", n.add("Elu", x), n.add("Reshape", rows, n.ints(-1)), mode=mode)
        x = n.add("Conv", x, n.weight(16, 16, 2 * stride), n.weight(16), strides=[stride])
    return n.model(x)


@pytest.mark.parametrize("mode", ["reflect", "constant", "edge"])
def test_an_encoder_pads_by_numbers_of_the_run(mode: str, tmp_path: Path) -> None:
    onnx_fa.compile(encoder(mode), tmp_path / "m.vmfb")
    call = load_module(tmp_path / "m.vmfb")
    for length in (10, 11, 12, 23):
        feeds = sound(encoder(mode), length)
        assert_same(run(encoder(mode), feeds), call(feeds["x"]), 1e-5)


def test_features_end_as_tokens() -> None:
    made = turned(features())
    left = ops(made)
    assert left[SEQUENCE_SITE] == 3 and "Erf" not in left
    assert not [n for n in made.graph.node if op_of(n) == "Transpose" and n.input[0] == "x"] or left["Transpose"] <= 4
    for length in (46, 95):
        feeds = sound(features(), length)
        assert_same(run(features(), feeds), evaluate(made, feeds), 1e-5)


def snakes() -> onnx.ModelProto:
    """DAC's blocks: an upsampling between activations that have a number of each channel, computed of weights, and views by sizes
    of the run."""
    n, x = sound_net(16), "x"
    n.opset = 17

    def snake(x: str, channels: int) -> str:
        alpha = n.const(np.full((1, channels, 1), 0.7, np.float32))
        shape = n.add("Shape", x)
        sizes = [n.add("Gather", shape, n.ints(i), axis=0) for i in (0, 1)]
        flat = n.add("Reshape", x, n.add("Concat", *sizes, n.ints(-1), axis=0))
        wave = n.add("Pow", n.add("Sin", n.add("Mul", alpha, flat)), n.const(np.float32(2)))
        whole = n.add(
            "Add", flat, n.add("Mul", n.add("Reciprocal", n.add("Add", alpha, n.const(np.float32(1e-9)))), wave)
        )
        return str(n.add("Reshape", whole, shape))

    x = n.add("ConvTranspose", snake(x, 16), n.weight(16, 8, 4), n.weight(8), strides=[2], pads=[1, 1])
    y = n.add("Conv", snake(x, 8), n.weight(8, 8, 3), n.weight(8), pads=[1, 1])
    x = n.add("Add", x, n.add("Conv", snake(y, 8), n.weight(8, 8, 1), n.weight(8)))
    return n.model(n.add("Tanh", n.add("Conv", snake(x, 8), n.weight(1, 8, 7), n.weight(1), pads=[3, 3])))


@pytest.mark.parametrize("target", ["cpu-avx2", "cuda"])
def test_a_decoder_of_snakes_turns_its_ends_alone(target: str, tmp_path: Path) -> None:
    with triton_sources():
        text = import_model(snakes(), target).text
    iree_compile(text, tmp_path / "m.stream", parse_target(target), phase="stream", timeout_s=200)
    program = (tmp_path / "m.stream").read_text()
    assert len(re.findall(r"util\.call @conv_", text)) == 4
    assert len(re.findall(r"stream\.cmd\.dispatch @\w+::@\w*transpose", program)) <= 1
    assert len(re.findall(r"stream\.cmd\.dispatch ", program)) <= 10


def test_a_decoder_of_snakes_compiled(tmp_path: Path) -> None:
    model = snakes()
    onnx_fa.compile(model, tmp_path / "m.vmfb")
    call = load_module(tmp_path / "m.vmfb")
    for length in (3, 40):
        feeds = sound(model, length)
        assert_same(run(model, feeds), call(feeds["x"]), 1e-5)


def test_compiled(tmp_path: Path) -> None:
    """Of fewer places than a tile has, of several tiles, and of a batch of none."""
    model = vocoder(steps=(4,))
    onnx_fa.compile(model, tmp_path / "m.vmfb")
    call = load_module(tmp_path / "m.vmfb")
    for batch, length in ((2, 1), (1, 33), (0, 5)):
        feeds = sound(model, length, batch)
        assert_same(run(model, feeds), call(feeds["x"]), 1e-5)


@pytest.mark.parametrize("why", ["gpu", "opset", "known", "weight of the run"])
def test_stays(why: str) -> None:
    n = sound_net(16)
    n.opset = 12 if why == "opset" else 17
    weight = n.weight(16, 16, 3)
    if why == "known":
        n.inputs[0].type.tensor_type.shape.dim[2].dim_value = 40
    if why == "weight of the run":
        weight = n.add("Relu", weight)
    model = n.model(n.add("Conv", "x", weight, pads=[1, 1]))
    made = turned(model, parse_target("vulkan") if why == "gpu" else NARROW)
    assert ops(made) == ops(model)


def test_what_has_no_convolution_stays() -> None:
    """Tokens that are turned for an operator of single numbers, beside a convolution that has nothing to do with them."""
    n = sound_net(16)
    tokens = n.add("Softmax", n.add("Transpose", n.add("Softmax", "x", axis=1), perm=[0, 2, 1]), axis=-1)
    back = n.add("Transpose", n.add("Relu", n.add("Transpose", tokens, perm=[0, 2, 1])), perm=[0, 2, 1])
    model = n.model(n.add("Conv", "x", n.weight(16, 16, 3), pads=[1, 1]), n.add("Softmax", back, axis=-1))
    made = turned(model)
    assert ops(made)[SEQUENCE_SITE] == 1 and ops(made)["Relu"] == 1
    turns = [node.input[0] for node in made.graph.node if op_of(node) == "Transpose"]
    assert tokens in turns

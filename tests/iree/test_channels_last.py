"""Networks of convolutions with channels last: which parts of them are so, and that they mean the same."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import TensorProto
from onnx import helper as h
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun

import onnx_fa
from onnx_fa.graph.ops import op_of
from onnx_fa.graph.site_op import DOMAIN
from onnx_fa.iree.compile import import_model, iree_compile
from onnx_fa.iree.inference import infer_types
from onnx_fa.iree.legalise import row_parts
from onnx_fa.iree.legalise.channels_last import put_channels_last
from onnx_fa.iree.legalise.convolutions import CONV_SITE
from onnx_fa.iree.legalise.writer import GraphWriter
from onnx_fa.iree.run import load_module
from onnx_fa.spec.target import parse_target
from tests.iree.test_convolutions import ConvSite, mean_site
from tests.support.halved import halved, rounded
from tests.support.image_nets import NETS, Net
from tests.support.joined_models import join_models
from tests.support.ort_run import assert_same, run
from tests.support.random_images import image_nets
from tests.support.triton_sources import triton_sources

NARROW, CUDA, VULKAN = parse_target("cpu-avx2"), parse_target("cuda"), parse_target("vulkan")


def turned(model: onnx.ModelProto, target: Any = NARROW) -> onnx.ModelProto:
    made = onnx.ModelProto.FromString(model.SerializeToString())
    infer_types(made, {})
    put_channels_last(made, target=target)
    return made


def ops(model: onnx.ModelProto) -> Counter[str]:
    return Counter(op_of(node) for node in model.graph.node)


def image(model: onnx.ModelProto, batch: int = 2, seed: int = 1) -> dict[str, np.ndarray]:
    dims = [d.dim_value for d in model.graph.input[0].type.tensor_type.shape.dim]
    return {"x": np.random.default_rng(seed).standard_normal([batch, *dims[1:]]).astype(np.float32)}


def evaluate(model: onnx.ModelProto, feeds: dict[str, np.ndarray], sites: Sequence[Any] = (ConvSite,)) -> list[Any]:
    return list(ReferenceEvaluator(model, new_ops=[*sites]).run(None, feeds))


class HalfSite(OpRun):
    """A ConvSite of any type, as GPUs have it."""

    op_domain = DOMAIN

    def _run(self, *operands: np.ndarray, **attributes: Any) -> tuple[np.ndarray]:
        return mean_site(*operands, **attributes)


HalfSite.__name__ = "ConvSite"


@pytest.mark.parametrize("target", [NARROW, CUDA], ids=str)
@pytest.mark.parametrize("name", NETS)
def test_means_the_same(name: str, target: Any) -> None:
    model = NETS[name]()
    made = turned(model, target)
    assert "Conv" not in ops(made) and "MatMul" in ops(made)
    onnx.checker.check_model(made)
    feeds = image(model)
    assert_same(run(model, feeds), evaluate(made, feeds), 1e-5)


COMPILED = (
    ("bottleneck",),
    ("stages",),
    ("with_tokens", "grouped"),
    ("dense_block", "read_elsewhere"),
    ("inverted_residual",),  # of another opset
)
"""Those of a group are one module: together they take a minute and more."""


@pytest.mark.parametrize("names", COMPILED, ids="-".join)
def test_compiled(names: Sequence[str], tmp_path: Path) -> None:
    group = [NETS[name]() for name in names]
    feeds = {f"m{i}_x": image(m, 2 if group[1:] else 3, seed=i)["x"] for i, m in enumerate(group)}
    joined = join_models(group)
    module = tmp_path / "m.vmfb"
    onnx_fa.compile(joined, module)
    assert_same(run(joined, feeds), load_module(module)(*feeds.values()), 1e-5)


def test_no_transpose_is_left_between_products() -> None:
    made = turned(NETS["bottleneck"]())
    g = GraphWriter(made)
    # The first convolution reads the image as it lies, and the last values are of one place each.
    assert not [n for n in made.graph.node if op_of(n) == "Transpose" and not g.comes_of_constants(n.input[0])]
    assert ops(made)["MatMul"] == 2 and ops(made)[CONV_SITE] == 5 and not ops(made)["MaxPool"]


def test_what_is_side_by_side_already_is_copied_as_one() -> None:
    made = turned(NETS["dense_block"]())
    assert [len(node.input) for node in made.graph.node if op_of(node) == "Concat" and node.name.startswith("n")] == [
        2
    ] * 3


def test_tokens_are_rows_already() -> None:
    made = turned(NETS["with_tokens"]())
    g = GraphWriter(made)
    assert not [n for n in made.graph.node if op_of(n) == "Transpose" and not g.comes_of_constants(n.input[0])]


@pytest.mark.parametrize("why", ["borders", "sizes", "opset", "gpu", "kernels", "no_product"])
def test_stays(why: str) -> None:
    n = Net(16, 8, 8, opset=12 if why == "opset" else 17)
    if why == "sizes":
        n.inputs = [h.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 16, "H", 8])]
    weights = [n.weight(16), n.weight(16)]
    x = n.add("InstanceNormalization", "x", *weights)
    y = n.conv(x, 16, 16, 3 if why == "no_product" else 1)
    model = n.model(n.add("InstanceNormalization", y, *weights) if why in ("borders", "no_product") else y)
    target = VULKAN if why == "gpu" else NARROW
    made = turned(model, replace(target, kernels="iree") if why == "kernels" else target)
    assert [n.op_type for n in made.graph.node] == [n.op_type for n in model.graph.node]


def test_gains_more_than_it_turns() -> None:
    n = Net(16, 8, 8)
    weights = [n.weight(64), n.weight(64)]
    model = n.model(n.add("InstanceNormalization", n.conv(n.conv("x", 16, 64), 64, 64), *weights))
    made = turned(model)
    assert ops(made)["MatMul"] == 2
    feeds = image(model)
    assert_same(run(model, feeds), evaluate(made, feeds), 1e-5)


@pytest.mark.parametrize("chain", [False, True])
def test_what_follows_is_worth_a_border(chain: bool) -> None:
    """A convolution of many taps by itself turns its result for a Relu that it could make; two do so once."""
    n = Net(3, 12, 10)
    y = n.add("Relu", n.conv("x", 3, 16, 3))
    if chain:
        y = n.add("Add", n.add("Relu", n.conv(y, 16, 16, 3)), y)
    model = n.model(n.add("InstanceNormalization", y, n.weight(16), n.weight(16)))
    made = turned(model)
    assert ops(made)["Conv"] == (0 if chain else 1)
    feeds = image(model)
    assert_same(run(model, feeds), evaluate(made, feeds), 1e-5)


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(image_nets(), st.booleans(), st.sampled_from([NARROW, CUDA]))
def test_drawn(model: onnx.ModelProto, all_parts: bool, target: Any) -> None:
    """Whatever is drawn means the same with channels last, where that is worth it and where it is not."""
    with pytest.MonkeyPatch.context() as patch:
        if all_parts:
            patch.setattr(row_parts, "_saved", lambda *_: 1)
        made = turned(model, target)
    if made.graph == model.graph:
        return
    onnx.checker.check_model(made)
    feeds = image(model)
    assert_same(run(model, feeds, optimise=False), evaluate(made, feeds), 2e-5)


@pytest.mark.parametrize("name", ["bottleneck", "inverted_residual", "dense_block", "grouped", "with_tokens"])
def test_halves_on_cuda(name: str) -> None:
    """In f16 a network is as far from its meaning as its own operators, each of which rounds once, are by their sums at most."""
    model = NETS[name]()
    half, feeds = halved(model), image(model)
    small = {key: x.astype(np.float16) for key, x in feeds.items()}
    wide = {key: x.astype(np.float32) for key, x in small.items()}
    made = turned(half, CUDA)
    assert ops(made)[CONV_SITE] > 0
    onnx.checker.check_model(made)
    for got, want in zip(evaluate(made, small, [HalfSite]), run(rounded(model), wide), strict=True):
        assert got.dtype == np.float16
        depth = sum(ops(half).values())
        assert np.linalg.norm(got - want) <= 2**-11 * np.sqrt(depth) * np.linalg.norm(want)
    assert not ops(turned(half, NARROW))[CONV_SITE]  # CPUs read f32


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("name", ["bottleneck", "inverted_residual", "grouped"])
def test_on_cuda(name: str, half: bool, tmp_path: Path) -> None:
    """Convolutions read pads where there are none and make what follows: between them nothing is turned, padded or computed."""
    model = halved(NETS[name]()) if half else NETS[name]()
    with triton_sources():
        module = import_model(model, "cuda").text
    iree_compile(module, tmp_path / "m.stream", CUDA, phase="stream", timeout_s=300)
    text = (tmp_path / "m.stream").read_text()
    assert "conv_" in text and "linalg.conv" not in text and "stream.cmd.copy" not in text


@pytest.mark.parametrize(("op", "sites"), [("GlobalAveragePool", 3), ("GlobalMaxPool", 1)])
def test_all_places_on_cuda(op: str, sites: int) -> None:
    """A mean is two convolutions as long as the image's sides; a maximum stays with the compiler, channels first."""
    n = Net(16, 12, 10)
    y = n.add("Mul", n.conv(n.add("Relu", n.conv("x", 16, 32)), 32, 48, 3), n.const(np.float32(0.5)))
    model = n.model(n.add(op, y))
    made = turned(model, CUDA)
    assert ops(made)[CONV_SITE] == sites and ops(made)["ReduceMean"] == ops(made)["ReduceMax"] == 0
    feeds = image(model)
    assert_same(run(model, feeds), evaluate(made, feeds), 1e-5)

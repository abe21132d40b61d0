"""Convolutions that read pads which nobody has written: whatever lies at the borders, they give onnxruntime's numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator

import onnx_fa
from onnx_fa.graph.ops import op_of
from onnx_fa.iree.inference import infer_types
from onnx_fa.iree.legalise import row_parts
from onnx_fa.iree.legalise.channels_last import put_channels_last
from onnx_fa.iree.legalise.convolutions import CONV_SITE
from onnx_fa.iree.legalise.writer import attr_of
from onnx_fa.iree.run import load_module
from onnx_fa.kernels.cpu.window import is_slim, panel_of, tiles_for
from onnx_fa.spec.target import parse_target
from onnx_fa.spec.windows import WindowSpec
from tests.iree.test_convolutions import ConvSite
from tests.support.image_nets import Net
from tests.support.joined_models import join_models
from tests.support.ort_run import assert_same, run

NARROW, WIDE = parse_target("cpu-avx2"), parse_target("cpu-avx512")
# (height, width), channels, columns, kernel, and what the Conv says
CASES = [
    ((5, 4), 16, 16, (3, 3), {}),
    ((7, 7), 24, 48, (3, 3), {}),
    ((6, 14), 16, 33, (3, 3), {"strides": [2, 2]}),
    ((9, 13), 13, 20, (5, 3), {"pads": [2, 0, 1, 1]}),
    ((8, 23), 16, 32, (3, 3), {"dilations": [2, 3], "pads": [2, 3, 2, 3]}),
    ((3, 6), 16, 24, (5, 7), {"pads": [2, 3, 2, 3]}),
    ((4, 5), 16, 16, (1, 1), {"pads": [2, 3, 1, 2], "strides": [1, 2]}),  # places that see nothing
    ((4, 9), 16, 16, (3, 3), {"pads": [0, 1, 3, 0], "strides": [2, 1]}),
    ((10, 11), 32, 64, (3, 3), {"group": 2}),
    ((9, 10), 32, 32, (3, 3), {"group": 8, "strides": [1, 2]}),
    ((9, 10), 24, 24, (3, 3), {"group": 24}),
    ((12, 6), 40, 40, (5, 5), {"group": 40, "strides": [2, 1], "pads": [2, 2, 2, 2]}),
    ((6, 9), 16, 16, (7, 7), {"group": 16, "pads": [3, 3, 3, 3]}),
    ((5, 15), 20, 20, (3, 3), {"group": 20, "dilations": [1, 2], "pads": [1, 2, 1, 2]}),
]
IDS = [f"{k[0]}x{k[1]}-{h}x{w}-{m}" + "".join(f"-{n}" for n in a) for (h, w), _, m, k, a in CASES]


def convolution(case: int, batch: int | str = "N") -> onnx.ModelProto:
    """A convolution between others of one tap, with what its kernel makes too."""
    (height, width), channels, columns, kernel, attributes = CASES[case]
    n = Net(16, height, width, batch=batch, seed=case)
    x = n.conv("x", 16, channels)
    w = n.weight(columns, channels // attributes.get("group", 1), *kernel)
    pads = [k // 2 for k in kernel] * 2
    y = n.add("Relu", n.add("Conv", x, w, *[n.weight(columns)] * (case % 2), **{"pads": pads, **attributes}))
    return n.model(n.conv(y, columns, 16))


def images(model: onnx.ModelProto, batch: int) -> dict[str, np.ndarray]:
    dims = [d.dim_value for d in model.graph.input[0].type.tensor_type.shape.dim]
    return {"x": np.random.default_rng(1).standard_normal([batch, *dims[1:]]).astype(np.float32)}


@pytest.fixture(autouse=True)
def all_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_parts, "_saved", lambda *_: 1)


@pytest.mark.parametrize("case", range(len(CASES)), ids=IDS)
def test_no_image_is_copied(case: int) -> None:
    model = convolution(case)
    made = onnx.ModelProto.FromString(model.SerializeToString())
    infer_types(made, {})
    put_channels_last(made, target=NARROW)
    ops = Counter(op_of(node) for node in made.graph.node)
    assert not ops["Pad"] and not ops["Conv"] and ops[CONV_SITE]
    feeds = images(model, 3)
    assert_same(run(model, feeds), list(ReferenceEvaluator(made, new_ops=[ConvSite]).run(None, feeds)), 1e-5)


EVERY_RUN = (3, 6, 9, 11, 13)
"""Uneven pads, places that see nothing, groups, and channels of their own in either panel, with dilations too."""


@pytest.mark.parametrize(
    "cases",
    [
        pytest.param(EVERY_RUN, id="every_run"),
        pytest.param([i for i in range(len(CASES)) if i not in EVERY_RUN], id="others", marks=pytest.mark.whole),
    ],
)
def test_compiled(cases: Sequence[int], tmp_path: Path) -> None:
    models = [convolution(i) for i in cases]
    feeds = {f"m{i}_x": images(m, 2)["x"] for i, m in enumerate(models)}
    for i, x in enumerate(feeds.values()):  # what is outside of an image is no number of it
        x[0, :, 0, 0], x[1, i % 16, -1, -1] = np.inf, np.nan
    joined = join_models(models)
    onnx_fa.compile(joined, tmp_path / "m.vmfb")
    call = load_module(tmp_path / "m.vmfb")
    assert_same(run(joined, feeds), call(*feeds.values()), 1e-5)


@pytest.mark.parametrize("target", [NARROW, WIDE], ids=["avx2", "avx512"])
@pytest.mark.parametrize("width", range(4, 30))
def test_tiles_lie_within_a_line(width: int, target: onnx_fa.spec.target.Target) -> None:
    spec = WindowSpec(
        1, 1, 8, 32, (6, width), (3, 3), (1, 1), (1, 1), panel_of(32, target), x_last=True, last=True, pads=(1,) * 4
    )
    assert 4 <= tiles_for(spec, target).rows <= width


def depthwise(width: int, stride: int, target: onnx_fa.spec.target.Target) -> WindowSpec:
    window = (6, width), (3, 3), (stride, stride), (1, 1)
    options = {"x_last": True, "last": True, "depthwise": True, "pads": (1,) * 4}
    return WindowSpec(1, 1, 24, 24, *window, panel_of(24, target), **options)  # type: ignore[arg-type]


def test_panels_of_one_vector() -> None:
    """Where neighbouring windows of a channel share numbers, and 16 registers hold them and a few sums."""
    assert is_slim(depthwise(14, 1, NARROW), NARROW)
    assert not is_slim(depthwise(14, 2, NARROW), NARROW)
    assert not is_slim(depthwise(14, 1, WIDE), WIDE)
    slim = replace(depthwise(14, 1, NARROW), panel=8)
    assert tiles_for(slim, NARROW).rows == 7
    assert tiles_for(slim, NARROW).across * 8 == tiles_for(depthwise(14, 2, NARROW), NARROW).across * 24
    model = convolution(IDS.index("3x3-9x10-24-group"))
    infer_types(model, {})
    put_channels_last(model, target=NARROW)
    panels = [attr_of(node, "panel", 0) for node in model.graph.node if op_of(node) == CONV_SITE]
    assert 8 in panels


def test_few_places_in_a_line_are_copied() -> None:
    """Tiles of several lines of three places are fuller than those of one."""
    n = Net(16, 8, 3)
    model = n.model(n.conv(n.conv(n.conv("x", 16, 16), 16, 16, 3), 16, 16))
    infer_types(model, {})
    put_channels_last(model, target=NARROW)
    assert [op_of(node) for node in model.graph.node].count("Pad") == 1


@pytest.mark.parametrize(
    "changed",
    [{"pads": (1, 1)}, {"pads": (1, 1, 1, -1)}, {"x_last": False}, {"last": False}, {"sizes": (9,), "kernel": (3,)}],
    ids=str,
)
def test_refused(changed: dict[str, object]) -> None:
    sizes = {"sizes": (5, 5), "kernel": (3, 3), "pads": (1,) * 4, "x_last": True, "last": True, **changed}
    axes = (1,) * len(sizes["kernel"])  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="pads"):
        WindowSpec(1, 1, 8, 16, strides=axes, dilations=axes, panel=16, **sizes)  # type: ignore[arg-type]

"""GridSample, also at places outside of the image, which IREE reads from other memory."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper as h

import onnx_fa
from onnx_fa.errors import ModelError
from onnx_fa.iree.inference import infer_types
from onnx_fa.iree.legalise.rules import legalize
from tests.support.ort_run import run

N, C, H, W, P, Q = 2, 3, 5, 8, 4, 6
MANY = 9
"""Channels that are read side by side."""
KINDS = [(m, p, c) for m in ("linear", "nearest") for p in ("zeros", "border") for c in (0, 1)]


def sampled(
    kinds: list[tuple[str, str, int]], free: bool = False, opset: int = 20, channels: int = C
) -> onnx.ModelProto:
    """A result for each kind: mode, padding and whether corners are aligned."""
    dims: list[list[int | str]] = [["n", channels, H, W], ["n", "p", "q", 2]]
    if not free:
        dims = [[N, channels, H, W], [N, P, Q, 2]]
    info = [h.make_tensor_value_info(name, 1, shape) for name, shape in zip(("x", "grid"), dims, strict=True)]
    nodes, outputs = [], []
    for at, (mode, padding, corners) in enumerate(kinds):
        how = f"bi{mode}" if opset < 20 and mode != "nearest" else mode
        attributes = {"mode": how, "padding_mode": padding, "align_corners": corners}
        nodes.append(h.make_node("GridSample", ["x", "grid"], [f"y{at}"], **attributes))
        outputs.append(h.make_tensor_value_info(f"y{at}", 1, [dims[0][0], channels, *dims[1][1:3]]))
    graph = h.make_graph(nodes, "main_graph", info, outputs)
    return h.make_model(graph, opset_imports=[h.make_opsetid("", opset)], ir_version=9)


def drawn(reach: float, channels: int = C) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    grid = rng.uniform(-reach, reach, (N, P, Q, 2)).astype(np.float32)
    grid[0, 0, :4] = [[-1, -1], [1, 1], [-1, 1], [1.5, 0]]
    return {"x": rng.standard_normal((N, channels, H, W)).astype(np.float32), "grid": grid}


@pytest.mark.parametrize(
    ("free", "opset", "channels"), [(False, 20, C), (True, 16, C), (False, 20, MANY), (True, 16, MANY)]
)
def test_places_outside_of_the_image(free: bool, opset: int, channels: int, tmp_path: Path) -> None:
    model = sampled(KINDS if not free else KINDS[:3], free, opset, channels)
    out = tmp_path / "model.vmfb"
    onnx_fa.compile(model, out)
    for reach in (0.9, 3.0):
        feeds = drawn(reach, channels)
        want = run(model, feeds)
        for kind, a, b in zip(KINDS, onnx_fa.run(out, *feeds.values()), want, strict=False):
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5, err_msg=str((kind, reach)))


@pytest.mark.parametrize("channels", [C, MANY])
def test_a_place_that_is_no_number_is_no_other_memory(channels: int, tmp_path: Path) -> None:
    model = sampled([("linear", "zeros", 0)], channels=channels)
    out = tmp_path / "model.vmfb"
    onnx_fa.compile(model, out)
    feeds = drawn(0.9, channels)
    for odd in (np.nan, np.inf, -np.inf, 1e30):
        feeds["grid"][1, 2] = odd
        (have,) = onnx_fa.run(out, *feeds.values())
        np.testing.assert_allclose(have[0], run(model, feeds)[0][0], rtol=1e-5, atol=1e-5)
        assert np.isnan(have[1, :, 2]).all() or not have[1, :, 2].any()


IMAGES = list[tuple[list[int], list[tuple[str, str, int]]]]
EVERY_RUN: IMAGES = [
    ([5, 8], [("cubic", "border", 0), ("nearest", "reflection", 0)]),
    ([1, 3], [("linear", "reflection", 1)]),
    ([2, 3, 4], [("linear", "zeros", 1)]),
]
OTHERS: IMAGES = [
    ([5, 8], [("linear", "reflection", 1)]),
    ([2, 3, 4], [("linear", "reflection", 0), ("nearest", "border", 0)]),
]


@pytest.mark.parametrize(
    "kinds",
    [pytest.param(EVERY_RUN, id="every_run"), pytest.param(OTHERS, id="others", marks=pytest.mark.whole)],
)
def test_cubics_reflections_and_volumes(kinds: IMAGES, tmp_path: Path) -> None:
    """Also of images of one row, at whose ends everything is turned round for ever."""
    rng = np.random.default_rng(2)
    nodes, infos, outputs, feeds = [], [], [], dict[str, np.ndarray]()
    for at, (sizes, drawn_kinds) in enumerate(kinds):
        feeds[f"x{at}"] = rng.standard_normal((N, MANY if len(sizes) == 3 else C, *sizes)).astype(np.float32)
        feeds[f"grid{at}"] = rng.uniform(-3, 3, (N, *range(2, 2 + len(sizes)), len(sizes))).astype(np.float32)
        for mode, padding, corners in drawn_kinds:
            name = f"{len(sizes)}_{sizes[0]}_{mode}_{padding}_{corners}"
            how = {"mode": mode, "padding_mode": padding, "align_corners": corners}
            nodes.append(h.make_node("GridSample", [f"x{at}", f"grid{at}"], [name], **how))
            outputs.append(h.make_tensor_value_info(name, 1, None))
    for name, x in feeds.items():
        infos.append(h.make_tensor_value_info(name, 1, ["n", *x.shape[1:]]))
    graph = h.make_graph(nodes, "main_graph", infos, outputs)
    model = h.make_model(graph, opset_imports=[h.make_opsetid("", 20)], ir_version=9)
    onnx_fa.compile(model, tmp_path / "m.vmfb")
    for output, a, b in zip(outputs, onnx_fa.run(tmp_path / "m.vmfb", *feeds.values()), run(model, feeds), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5, err_msg=output.name)


def test_numbers_of_a_pixel_are_read_side_by_side() -> None:
    """Of several channels rows are gathered, and nothing is written out for each channel."""
    for channels, ops in ((C, {"GatherElements"}), (MANY, {"Gather"})):
        model = sampled([("linear", "zeros", 0)], channels=channels)
        infer_types(model, {})
        gathers = [n for n in legalize(model).graph.node if n.op_type.startswith("Gather") and n.attribute[0].i != 3]
        assert {n.op_type for n in gathers} == ops and len(gathers) == 4


def test_an_image_of_free_size_is_refused() -> None:
    model = sampled([("linear", "zeros", 0)])
    model.graph.input[0].type.tensor_type.shape.dim[3].dim_param = "w"
    infer_types(model, {})
    with pytest.raises(ModelError, match="whose sizes only a run knows"):
        legalize(model)

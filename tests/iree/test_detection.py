"""What detectors and folds are made of, compiled, beside onnxruntime: NonMaxSuppression, RoiAlign, Col2Im and AffineGrid."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import onnx_fa
from onnx_fa.errors import ModelError
from onnx_fa.iree.legalise.rules import legalize
from tests.support.joined_models import join_models
from tests.support.ort_run import run

COUNT, FIRST = int(os.environ.get("ONNX_FA_DETECTION", "4")), int(os.environ.get("ONNX_FA_SEED", "0"))
Feeds = dict[str, np.ndarray]
Drawn = tuple[onnx.ModelProto, Feeds]


def model_of(
    op: str,
    inputs: Feeds,
    free: dict[str, list[int | str]],
    constants: dict[str, Any],
    kind: int = 1,
    **attributes: Any,
) -> Drawn:
    """A node of inputs, some of whose sizes are free, and of constants, None for one that is left out."""
    infos = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(x.dtype), free.get(name, list(x.shape)))
        for name, x in inputs.items()
    ]
    held = [numpy_helper.from_array(np.asarray(c), name) for name, c in constants.items() if c is not None]
    names = [*inputs, *("" if c is None else name for name, c in constants.items())]
    node = helper.make_node(op, names, ["y"], op, **attributes)
    graph = helper.make_graph([node], "g", infos, [helper.make_tensor_value_info("y", kind, None)], held)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10), inputs


def some_free(rng: np.random.Generator, shape: tuple[int, ...], kept: tuple[int, ...] = ()) -> list[int | str]:
    return [f"d{i}" if i not in kept and rng.random() < 0.4 else d for i, d in enumerate(shape)]


def suppression(rng: np.random.Generator, free: bool | None = None) -> Drawn:
    batch, classes, count = (int(n) for n in (rng.integers(1, 4), rng.integers(1, 4), rng.integers(1, 24)))
    places, sizes = rng.integers(0, 8, (batch, count, 2)), rng.integers(0, 4, (batch, count, 2))
    centred = int(rng.integers(2))
    corners = np.concatenate([places, sizes if centred else places + sizes * rng.choice([-1, 1])], 2)
    # Few numbers, so that scores are equal and overlaps are at the threshold.
    scores = (rng.integers(-2, 9, (batch, classes, count)) / 8).astype(np.float32)
    if rng.random() < 0.2:
        scores[0, 0, 0] = -np.inf
    inputs = {"boxes": corners.astype(np.float32), "scores": scores}
    dims: list[int | str] = list(scores.shape)
    if free or (free is None and rng.random() < 0.5):
        dims = ["b", "c", "n"] if rng.random() < 0.5 else ["b", classes, count]
    shapes = {"boxes": [dims[0], dims[2], 4], "scores": dims}
    most = np.array([rng.choice([0, 1, 3, 50])], np.int64)
    if rng.random() < 0.3:
        inputs["most"] = most
    constants = {
        "most": most,
        "overlap": None if rng.random() < 0.2 else np.array([rng.choice([0, 0.25, 0.5])], np.float32),
        "least": None if rng.random() < 0.4 else np.float32(rng.choice([-1, 0.25, 2])),
    }
    constants = {name: c for name, c in constants.items() if name not in inputs}
    return model_of("NonMaxSuppression", inputs, shapes, constants, 7, center_point_box=centred)


def regions(rng: np.random.Generator) -> Drawn:
    batch, channels, height, width, count = (int(n) for n in rng.integers(1, 7, 5))
    kind = rng.choice([np.float32, np.float64])
    x = rng.standard_normal((batch, channels, height, width)).astype(kind)
    corners = rng.uniform(-4, 14, (count, 2, 2))
    if rng.random() < 0.8:
        corners.sort(axis=1)
    inputs = {"x": x, "rois": corners.reshape(count, 4).astype(kind), "batch": rng.integers(0, batch, count)}
    shapes = {"x": some_free(rng, x.shape, (1,)), "rois": ["r", 4], "batch": ["r"]} if rng.random() < 0.5 else {}
    return model_of(
        "RoiAlign",
        inputs,
        shapes,
        {},
        1 if kind is np.float32 else 11,
        mode=str(rng.choice(["avg", "max"])),
        coordinate_transformation_mode=str(rng.choice(["half_pixel", "output_half_pixel"])),
        output_height=int(rng.integers(1, 4)),
        output_width=int(rng.integers(1, 4)),
        sampling_ratio=int(rng.integers(0, 4)),
        spatial_scale=float(rng.choice([0.5, 1.0])),
    )


def folded(rng: np.random.Generator) -> Drawn:
    rank = 3 if rng.random() < 0.2 else 2
    block, gaps, steps = ([int(n) for n in rng.integers(1, 4, rank)] for _ in range(3))
    if rank == 3:
        gaps = [1] * 3  # onnxruntime's of three axes leaves them out
    pads = [int(n) for n in rng.integers(0, 3, 2 * rank)]
    blocks = [int(n) for n in rng.integers(1, 4, rank)]
    image = [
        max(
            1,
            (blocks[i] - 1) * steps[i]
            + gaps[i] * (block[i] - 1)
            + 1
            - pads[i]
            - pads[i + rank]
            + int(rng.integers(steps[i])),
        )
        for i in range(rank)
    ]
    blocks = [(image[i] + pads[i] + pads[i + rank] - gaps[i] * (block[i] - 1) - 1) // steps[i] + 1 for i in range(rank)]
    batch, channels = (int(n) for n in rng.integers(1, 4, 2))
    x = rng.standard_normal((batch, channels * int(np.prod(block)), int(np.prod(blocks)))).astype(np.float32)
    constants = {"image": np.array(image), "block": np.array(block)}
    return model_of(
        "Col2Im", {"x": x}, {"x": some_free(rng, x.shape, (1,))}, constants, dilations=gaps, strides=steps, pads=pads
    )


def grids(rng: np.random.Generator) -> Drawn:
    rank, batch = int(rng.integers(2, 4)), int(rng.integers(1, 4))
    theta = rng.standard_normal((batch, rank, rank + 1)).astype(np.float32)
    shapes = {"theta": some_free(rng, theta.shape, (1, 2))}
    size = np.array([batch, 2, *rng.integers(2, 6, rank)])
    corners = int(rng.integers(2))
    if rng.random() < 0.5:
        return model_of("AffineGrid", {"theta": theta, "size": size}, shapes, {}, align_corners=corners)
    return model_of("AffineGrid", {"theta": theta}, shapes, {"size": size}, align_corners=corners)


def hold(models: list[Drawn], folder: Path) -> None:
    onnx_fa.compile(join_models([m for m, _ in models], own_dims=True), folder / "m.vmfb")
    got = onnx_fa.run(folder / "m.vmfb", *(x for _, feeds in models for x in feeds.values()))
    for (model, feeds), have in zip(models, got, strict=True):
        for optimise in (False, True):
            (want,) = run(model, feeds, optimise=optimise)
            assert have.shape == want.shape
            tolerance = 1e-12 if want.dtype == np.float64 else 2e-6
            np.testing.assert_allclose(
                have, want, rtol=tolerance, atol=4 * tolerance, err_msg=onnx.printer.to_text(model.graph)
            )


def test_drawn(tmp_path: Path) -> None:
    rng = np.random.default_rng(FIRST)
    kinds = (suppression, regions, folded, grids)
    hold([kinds[i % 4](rng) for i in range(COUNT)], tmp_path)


def test_what_is_refused() -> None:
    columns = np.zeros((1, 8, 4), np.float32)
    for (model, _), reason in [
        (
            model_of("Col2Im", {"x": columns, "i": np.array([3, 3])}, {}, {"block": np.array([2, 2])}),
            "an image whose size or channels only a run knows",
        ),
        (model_of("Col2Im", {"x": columns}, {}, {"i": np.array([5]), "block": np.array([2])}), "an image of one axis"),
    ]:
        with pytest.raises(ModelError, match=reason):
            legalize(model)


LOOP = """<ir_version: 8, opset_import: ["" : 17]> f (float[{x}] x, float[{z}] z) => (float[{x}] y, float[{z}] o)
    <int64 three = {{3}}, bool yes = {{1}}> {{
      y, o = Loop (three, yes, x, z) <body = b (int64 i, bool c, float[{x}] a, float[{z}] b) =>
        (bool more, float[{x}] twice, float[{z}] other) {{ more = Identity(c) twice = Add(a, a) other = Add(b, b) }}>
    }}"""


def test_a_loop_whose_values_iree_mixes_up_is_refused() -> None:
    """Two of free sizes that it carries, where nothing made one of them: one is read at another's place in memory, silently."""
    for x, z in (("n,m", "n,m"), ("n,m", "k"), ("k,5", "2,n,m"), ("n,5", "n,4")):
        with pytest.raises(ModelError, match=r"Loop that carries .* values of free sizes"):
            legalize(onnx.parser.parse_model(LOOP.format(x=x, z=z)))
    for x, z in (("n,m", "3,4"), ("4", "5")):
        assert legalize(onnx.parser.parse_model(LOOP.format(x=x, z=z))).graph.node[0].op_type == "Loop"

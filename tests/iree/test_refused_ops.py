"""Operators that IREE refuses for all or some of their operands, compiled, beside onnxruntime or numpy."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper
from onnx.reference import ReferenceEvaluator

import onnx_fa
from onnx_fa.errors import ModelError
from onnx_fa.iree.legalise.rules import legalize
from tests.support.joined_models import join_models
from tests.support.ort_run import run

COUNT, FIRST = int(os.environ.get("ONNX_FA_DEFORMED", "2")), int(os.environ.get("ONNX_FA_SEED", "0"))


def deformed(rng: np.random.Generator) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """A DeformConv with what it may leave out, whose batch may be free."""
    group, sets, batch, per, outputs = (int(n) for n in rng.integers(1, 3, 5))
    kernel, gaps, steps = (rng.integers(1, 3, 2) for _ in range(3))
    pads, image = rng.integers(0, 3, 4), rng.integers(4, 7, 2)
    made = [int((image[i] + pads[i] + pads[i + 2] - gaps[i] * (kernel[i] - 1) - 1) // steps[i] + 1) for i in range(2)]
    taps = int(np.prod(kernel))

    def drawn(*shape: int) -> np.ndarray:
        return rng.standard_normal(shape).astype(np.float32)

    feeds = {
        "x": drawn(batch, group * sets * per, *map(int, image)),
        "w": drawn(outputs * group, sets * per, *map(int, kernel)),
        "offset": drawn(batch, sets * taps * 2, *made) * 2,
    }
    names = [*feeds, "", ""]
    if rng.random() < 0.6:
        feeds["b"], names[3] = drawn(outputs * group), "b"
    if rng.random() < 0.6:
        feeds["mask"], names[4] = drawn(batch, sets * taps, *made), "mask"
    free = rng.random() < 0.5
    attributes: dict[str, Any] = {"group": group, "offset_group": sets}
    attributes |= {name: v.tolist() for name, v in (("strides", steps), ("dilations", gaps), ("pads", pads))}
    while not names[-1]:
        names.pop()
    infos = [
        helper.make_tensor_value_info(n, 1, ["n" if free and n not in ("w", "b") else x.shape[0], *x.shape[1:]])
        for n, x in feeds.items()
    ]
    node = helper.make_node("DeformConv", names, ["y"], **attributes)
    graph = helper.make_graph([node], "g", infos, [helper.make_tensor_value_info("y", 1, None)])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=9), feeds


def test_deformed_convolutions(tmp_path: Path) -> None:
    rng = np.random.default_rng(FIRST)
    models = [deformed(rng) for _ in range(COUNT)]
    onnx_fa.compile(join_models([m for m, _ in models], own_dims=True), tmp_path / "m.vmfb")
    got = onnx_fa.run(tmp_path / "m.vmfb", *(x for _, feeds in models for x in feeds.values()))
    for (model, feeds), have in zip(models, got, strict=True):
        (want,) = run(model, feeds)
        np.testing.assert_allclose(have, want, rtol=1e-5, atol=2e-5, err_msg=onnx.printer.to_text(model.graph))


SMALL = """<ir_version: 13, opset_import: ["" : 26]> f (float[n, 4] x, bool[n] some, float[4] row, int64[4] lengths, int8[n] bytes,
    float16 start, float16 end, float16 step, float[3, 0, 4] none) =>
    (float[k, 4] kept, float[n, 3] columns, float[m] flat, float[4] products, float[n, 4] backwards, float[n, 4] turned,
     uint8[n] same, float16[r] numbers, float[4, 3, 0] empty)
    <bool[4] three = {1, 0, 1, 1}, int64 zero = {0}, int64 last = {-1}, int64[3] dims = {4, 3, 0}> {
      kept = Compress <axis = 0> (x, some)
      columns = Compress <axis = -1> (x, three)
      flat = Compress (x, some)
      products = CumProd <exclusive = 1> (row, zero)
      backwards = CumProd <reverse = 1> (x, last)
      turned = ReverseSequence <time_axis = 0, batch_axis = 1> (x, lengths)
      same = BitCast <to = 2> (bytes)
      numbers = Range (start, end, step)
      empty = Reshape <allowzero = 1> (none, dims)
    }"""


def test_small_operators(tmp_path: Path) -> None:
    """Conditions of the run and constant ones, a product along an axis, a matrix turned around, bits, halves, and nothing."""
    model = onnx.parser.parse_model(SMALL)
    rng = np.random.default_rng(0)
    feeds = {
        "x": rng.standard_normal((5, 4)).astype(np.float32),
        "some": np.array([True, False, True, True, False]),
        "row": rng.standard_normal(4).astype(np.float32),
        "lengths": np.array([5, 1, 3, 2]),
        "bytes": np.array([-128, -1, 0, 1, 127], np.int8),
        "start": np.array(1, np.float16),
        "end": np.array(3.1, np.float16),
        "step": np.array(0.25, np.float16),
        "none": np.zeros((3, 0, 4), np.float32),
    }
    onnx_fa.compile(model, tmp_path / "m.vmfb")
    names = [o.name for o in model.graph.output]
    got = dict(zip(names, onnx_fa.run(tmp_path / "m.vmfb", *feeds.values()), strict=True))
    want = dict(zip(names, ReferenceEvaluator(model).run(None, feeds), strict=True))
    for name in names:
        have = got[name].view(np.uint8) if name == "same" else got[name]
        assert have.shape == want[name].shape, name
        np.testing.assert_allclose(have, want[name], rtol=1e-6, atol=1e-7, err_msg=name)


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("float[n] x) => (float[n] y) <int64 a = {0}> { y = CumProd (x, a) }", "CumProd over an axis of more than 128"),
        ("float[2] x) => (int32[2] y) { y = BitCast <to = 6> (x) }", "BitCast of a float"),
        (
            "float[n,4,c,5] x, float[4,4,3,3] w, float[n,18,a,b] o) => (float[n,4,e,f] y) { y = DeformConv (x, w, o) }",
            "needs static sizes, but for the batch",
        ),
        (
            "float[n,4] x, int64[0,1] i, float[0,4] u) => (float[n,4] y) { y = ScatterND (x, i, u) }",
            "ScatterND of no rows",
        ),
        ("float[n,1] x) => (y) { z = Squeeze (x) y = Neg (z) }", "Squeeze without axes of a value of free sizes"),
    ],
)
def test_what_is_refused(body: str, reason: str) -> None:
    with pytest.raises(ModelError, match=reason):
        legalize(onnx.parser.parse_model(f'<ir_version: 13, opset_import: ["" : 26]> f ({body}'))

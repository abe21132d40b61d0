"""Resize by any mode and coordinates, along axes whose sizes are known, gives onnxruntime's numbers, written out and compiled."""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, numpy_helper
from onnx import helper as h

import onnx_fa
from onnx_fa.errors import ModelError
from onnx_fa.iree.inference import infer_types
from onnx_fa.iree.legalise.rules import legalize
from tests.support.joined_models import join_models
from tests.support.ort_run import run

COUNT = int(os.environ.get("ONNX_FA_RESIZES", "150"))
"""So many are written out."""
Dims = list[int | str]


def model_of(
    x: Dims,
    *,
    sizes: list[int] | None = None,
    scales: list[float] | None = None,
    roi: list[float] | None = None,
    kind: int = TensorProto.FLOAT,
    **attributes: Any,
) -> onnx.ModelProto:
    given = {
        "roi": (roi, np.float32),
        "scales": (scales, np.float32),
        "sizes": (sizes, np.int64),
    }
    names = ["x", *(name if numbers else "" for name, (numbers, _) in given.items())]
    node = h.make_node("Resize", names if sizes else names[:-1], ["y"], "resize", **attributes)
    graph = h.make_graph(
        [node], "g", [h.make_tensor_value_info("x", kind, x)], [h.make_tensor_value_info("y", kind, None)]
    )
    for name, (numbers, dtype) in given.items():
        if numbers:
            graph.initializer.append(numpy_helper.from_array(np.array(numbers, dtype), name))
    return h.make_model(graph, opset_imports=[h.make_opsetid("", 19)], ir_version=9)


def declared(model: onnx.ModelProto, dims: Dims) -> onnx.ModelProto:
    """The model, whose file says this of its result."""
    model.graph.output[0].CopyFrom(h.make_tensor_value_info("y", TensorProto.FLOAT, dims))
    return model


def drawn(seed: int) -> tuple[list[int], dict[str, Any]]:
    """The input's shape, and what `model_of` takes."""
    r = random.Random(seed)
    mode = r.choice(("nearest", "linear", "linear", "cubic", "cubic"))
    how = r.choice(
        "half_pixel half_pixel_symmetric pytorch_half_pixel align_corners asymmetric tf_crop_and_resize".split()
    )
    n = 2 if mode == "cubic" else r.choice((1, 2, 2, 3))
    size, made = ([r.randint(1, most) for _ in range(n)] for most in (8, 12))
    lead = [r.randint(1, 2), r.choice((1, 3))]
    more: dict[str, Any] = {"mode": mode, "coordinate_transformation_mode": how}
    if mode == "nearest":
        more["nearest_mode"] = r.choice(("round_prefer_floor", "round_prefer_ceil", "floor", "ceil"))
    elif r.random() < 0.5:
        more["antialias"] = 1
    if mode == "cubic":
        more |= {"cubic_coeff_a": r.choice((-0.75, -0.5)), "exclude_outside": r.randint(0, 1)}
    named = r.random() < 0.6
    if named:
        more["axes"] = [2 + i - (2 + n) * r.randint(0, 1) for i in range(n)]
    if how == "tf_crop_and_resize":
        low = [r.uniform(0, 0.6) for _ in size]
        high = [start + r.uniform(0.1, 0.9) for start in low]
        more["roi"] = [*low, *high] if named else [0.0, 0.0, *low, 1.0, 1.0, *high]
        more["extrapolation_value"] = 10.0
    if r.random() < 0.5:
        more["sizes"] = made if named else lead + made
        if named and min(more["axes"]) > 0 and r.random() < 0.5:  # onnxruntime takes no axis counted from the end there
            more["keep_aspect_ratio_policy"] = r.choice(("not_larger", "not_smaller"))
    else:
        scales = [
            max(r.choice((m / s, m / s + r.uniform(0, 0.3), 2, 0.5)), 1.01 / s) for m, s in zip(made, size, strict=True)
        ]
        more["scales"] = scales if named else [1.0, 1.0, *scales]
    return lead + size, more


def legalized(model: onnx.ModelProto) -> onnx.ModelProto:
    typed = onnx.ModelProto.FromString(model.SerializeToString())
    infer_types(typed, {})
    return legalize(typed)


def test_any_mode() -> None:
    tried = 0
    for seed in range(COUNT):
        shape, more = drawn(seed)
        model = model_of([*shape], **more)
        feeds = {"x": np.random.default_rng(seed).standard_normal(shape).astype(np.float32)}
        (want,) = run(model, feeds, optimise=False)
        try:
            written = legalized(model)
        except ModelError as e:
            assert "as near as f32 can tell" in str(e) or not want.size, f"{seed}: {e}"
            continue
        if any(node.op_type == "Resize" for node in written.graph.node):
            continue  # IREE takes it
        (got,) = run(written, feeds)
        assert got.shape == want.shape, seed
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=2e-5, err_msg=str(seed))
        tried += 1
    assert tried > COUNT / 2


def test_compiled(tmp_path: Path) -> None:
    """Smaller with a filter, as position embeddings become (DINOv2); of a free batch; in f16; and what IREE keeps."""
    small = {"mode": "cubic", "antialias": 1, "cubic_coeff_a": -0.5, "axes": [2, 3]}
    cases: list[tuple[tuple[int, ...], onnx.ModelProto]] = [
        ((1, 4, 9, 7), model_of([1, 4, 9, 7], sizes=[4, 5], **small)),
        ((2, 3, 8, 6), model_of(["B", 3, 8, 6], sizes=[3, 11], mode="linear", antialias=1, axes=[2, 3])),
        (
            (2, 3, 8, 6),
            model_of(["B", 3, 8, 6], sizes=[3, 5], kind=TensorProto.FLOAT16, mode="linear", antialias=1, axes=[2, 3]),
        ),
        ((1, 2, 4, 4), model_of([1, 2, 4, 4], scales=[1, 1, 2.5, 0.5], mode="cubic", exclude_outside=1)),
        (
            (1, 2, 4, 4),
            model_of(
                [1, 2, 4, 4],
                sizes=[3, 3],
                roi=[0.2, 0.4, 1.2, 0.6],
                mode="linear",
                coordinate_transformation_mode="tf_crop_and_resize",
                extrapolation_value=10.0,
                axes=[2, 3],
            ),
        ),
        ((1, 2, 3, 5), model_of(["B", 2, 3, 5], sizes=[7, 8], axes=[2, 3], keep_aspect_ratio_policy="not_larger")),
        ((1, 2, 2, 3, 4), model_of([1, 2, 2, 3, 4], sizes=[1, 2, 4, 5, 6], mode="linear")),
        ((1, 2, 4, 4), model_of([1, 2, 4, 4], sizes=[1, 2, 7, 9], mode="cubic")),
    ]
    joined, rng = join_models([model for _, model in cases], own_dims=True), np.random.default_rng(0)
    feeds = {}
    for given, (shape, _) in zip(joined.graph.input, cases, strict=True):
        dtype = h.tensor_dtype_to_np_dtype(given.type.tensor_type.elem_type)
        feeds[given.name] = rng.standard_normal(shape).astype(dtype)
    onnx_fa.compile(joined, tmp_path / "m.vmfb")
    got = onnx_fa.run(tmp_path / "m.vmfb", *feeds.values())
    for i, (found, want) in enumerate(zip(got, run(joined, feeds, optimise=False), strict=True)):
        assert found.shape == want.shape and found.dtype == want.dtype
        rough = want.dtype == np.float16
        np.testing.assert_allclose(
            found, want, rtol=1e-3 if rough else 1e-4, atol=1e-3 if rough else 2e-5, err_msg=str(i)
        )


def test_sizes_that_are_computed_but_known(tmp_path: Path) -> None:
    """As exporters write a free batch: the sizes are a Concat of its Shape and of numbers."""
    model = model_of(["B", 3, 8, 8], sizes=[1, 3, 4, 4], mode="linear", antialias=1)
    model.graph.initializer[0].CopyFrom(numpy_helper.from_array(np.array([3, 4, 4]), "rest"))
    first = [
        h.make_node("Shape", ["x"], ["batch"], start=0, end=1),
        h.make_node("Concat", ["batch", "rest"], ["sizes"], axis=0),
    ]
    nodes = [*first, *model.graph.node]
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    feeds = {"x": np.random.default_rng(0).standard_normal((2, 3, 8, 8)).astype(np.float32)}
    onnx_fa.compile(model, tmp_path / "m.vmfb")
    (got,) = onnx_fa.run(tmp_path / "m.vmfb", *feeds.values())
    np.testing.assert_allclose(got, run(model, feeds)[0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (
            model_of([1, 2, "H", 4], scales=[1, 1, 0.5, 0.5], mode="linear", antialias=1),
            "node 'resize': Resize with antialias, which IREE does not know, over sizes that only a run knows",
        ),
        (
            model_of([1, 2, "H", 4], sizes=[3, 3], keep_aspect_ratio_policy="not_larger", axes=[2, 3]),
            "node 'resize': Resize with a keep_aspect_ratio_policy",
        ),
        (
            model_of([1, 2, 3, 6], sizes=[7, 1], axes=[2, -1], keep_aspect_ratio_policy="not_larger"),
            "node 'resize': Resize with a keep_aspect_ratio_policy and axes counted from the end",
        ),
        (
            model_of([1, 1, 5, 1], scales=[5 / 3], axes=[2], coordinate_transformation_mode="half_pixel_symmetric"),
            'node \'resize\': Resize of mode "nearest" by "half_pixel_symmetric", where two rows are as near',
        ),
        (
            declared(model_of([1, 2, 3, 6], scales=[1, 1, 2, 7 / 6], mode="linear"), [1, 2, 6, 6]),
            "node 'resize': Resize whose axis 3 the file says becomes 6 long, and onnxruntime 7",
        ),
    ],
)
def test_refused(model: onnx.ModelProto, reason: str) -> None:
    with pytest.raises(ModelError, match=reason):
        legalized(model)


def test_what_stays() -> None:
    """What IREE computes rightly as it is; integers, which onnxruntime rounds; and a long axis."""
    for model in (
        model_of([1, 2, 4, 4], sizes=[1, 2, 7, 9], mode="linear"),
        model_of([1, 2, 4, 4], scales=[1, 1, 2, 2], coordinate_transformation_mode="asymmetric", nearest_mode="floor"),
        model_of([1, 2, "H", "W"], scales=[1, 1, 2, 2], mode="linear"),
        model_of(
            [1, 2, "H", "W"], scales=[1, 1, 2, 2], mode="linear", coordinate_transformation_mode="half_pixel_symmetric"
        ),
        model_of([1, 2, 4, 4], sizes=[1, 2, 3, 3], mode="linear", antialias=1, kind=TensorProto.UINT8),
        model_of([1, 1, 9000, 2], sizes=[1, 1, 4000, 2], mode="linear", antialias=1),
    ):
        assert [node.op_type for node in legalized(model).graph.node] == ["Resize"]

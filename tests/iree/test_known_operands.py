"""Bounds that a graph computes although every run has the same, and weights under the names of Identities."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import onnx_fa
from onnx_fa.graph.ops import op_of
from onnx_fa.graph.view import GraphView
from onnx_fa.iree.compile import import_model
from onnx_fa.iree.legalise.known_operands import known_bounds, write_known_operands
from onnx_fa.spec.target import parse_target
from tests.support.image_nets import Net
from tests.support.joined_models import join_models
from tests.support.ort_run import assert_same, run


def halves(*, free: bool = False) -> onnx.ModelProto:
    """The second half of an image's channels, or of its rows, by a bound that is computed from its shape, as torch.chunk is
    exported."""
    n = Net(12, 6, 5)
    if free:
        n.inputs[0].type.tensor_type.shape.dim[2].dim_param = "H"
    axis = n.ints(2 if free else 1)
    size = n.add("Gather", n.add("Shape", n.add("Relu", "x")), axis, axis=0)
    half = n.add("Div", n.add("Add", size, n.ints(1)), n.ints(2))
    return n.model(n.add("Slice", "x", n.add("Mul", half, n.ints(1)), n.add("Mul", half, n.ints(2)), axis))


def written(model: onnx.ModelProto) -> onnx.ModelProto:
    made = onnx.ModelProto.FromString(model.SerializeToString())
    write_known_operands(made, known_bounds(GraphView(ir.from_proto(model))))
    return made


def test_bounds_of_known_sizes_are_constants() -> None:
    model = halves()
    made = written(model)
    (cut,) = [n for n in made.graph.node if op_of(n) == "Slice"]
    constants = {t.name: onnx.numpy_helper.to_array(t).tolist() for t in made.graph.initializer}
    assert [constants[name] for name in cut.input[1:3]] == [[6], [12]]
    x = {"x": np.random.default_rng(0).standard_normal((2, 12, 6, 5)).astype(np.float32)}
    assert_same(run(model, x), run(made, x))


def test_bounds_of_free_sizes_stay() -> None:
    assert not known_bounds(GraphView(ir.from_proto(halves(free=True))))


@pytest.mark.parametrize("op", ["Split", "Pad"])
def test_others_that_have_bounds(op: str) -> None:
    n = Net(12, 6, 5)
    size = n.add("Gather", n.add("Shape", "x"), n.ints(1), axis=0)
    third = n.add("Div", size, n.ints(3))
    if op == "Split":
        parts = n.add("Concat", third, n.add("Sub", size, third), axis=0)
        y = n.add("Split", "x", parts, outputs=2, axis=1)
        want = [4, 8]
    else:
        parts = n.add("Concat", n.ints(0, 0, 1, 0, 0, 0, 0), third, axis=0)
        y = [n.add("Pad", "x", parts)]
        want = [0, 0, 1, 0, 0, 0, 0, 4]
    model = n.model(*y)
    made = written(model)
    constants = {t.name: onnx.numpy_helper.to_array(t).tolist() for t in made.graph.initializer}
    assert [constants[node.input[1]] for node in made.graph.node if op_of(node) == op] == [want]
    x: dict[str, Any] = {"x": np.ones((2, 12, 6, 5), np.float32)}
    assert_same(run(model, x), run(made, x))


def symmetric(before: tuple[int, int], after: tuple[int, int], *image: int, seed: int = 0) -> onnx.ModelProto:
    """tf.pad of mode SYMMETRIC as tf2onnx writes it, for a batch that is free: a mirror around the edge, and a Compress that drops
    the second copy of it, whose condition is computed from the padded image's shape."""
    n = Net(*image, seed=seed)
    once = [int(size > 0) for size in (*before, *after)]
    x = n.add("Pad", n.add("Relu", "x"), n.ints(0, 0, *once[:2], 0, 0, *once[2:]), mode="edge")
    x = n.add("Pad", x, n.ints(0, 0, *before, 0, 0, *after), mode="reflect")
    sizes = n.add("Split", n.add("Shape", x), outputs=4)
    true = onnx.helper.make_tensor("true", onnx.TensorProto.BOOL, [1], [True])
    for axis in (2, 3):
        gone = [p for p, is_in in ((before[axis - 2], once[axis - 2]), (-after[axis - 2] - 1, once[axis])) if is_in]
        all_of = n.add("ConstantOfShape", sizes[axis], value=true)
        if gone:
            kept = n.add("ScatterElements", all_of, n.ints(*gone), n.const(np.zeros(len(gone), np.bool_)))
            x = n.add("Compress", x, kept, axis=axis)
    return n.model(n.add("Identity", x))


PADS = [((1, 2), (2, 1)), ((0, 1), (3, 0)), ((2, 0), (0, 2)), ((0, 0), (0, 0))]


@pytest.mark.parametrize("seed", range(len(PADS)))
def test_conditions_of_known_sizes_are_constants(seed: int) -> None:
    before, after = PADS[seed]
    model = symmetric(before, after, 3, 5 + seed, 4)
    made = written(model)
    constants = {t.name: onnx.numpy_helper.to_array(t) for t in made.graph.initializer}
    chosen = [constants[node.input[1]] for node in made.graph.node if op_of(node) == "Compress"]
    assert len(chosen) == sum(map(bool, np.add(before, after))) and all(each.dtype == np.bool_ for each in chosen)
    x = {"x": np.random.default_rng(seed).standard_normal((2, 3, 5 + seed, 4)).astype(np.float32)}
    assert_same(run(model, x), run(made, x))


def test_conditions_of_free_sizes_stay() -> None:
    model = symmetric((1, 1), (1, 1), 3, 5, 4)
    for axis, name in ((2, "H"), (3, "W")):
        model.graph.input[0].type.tensor_type.shape.dim[axis].dim_param = name
    del model.graph.value_info[:]
    assert not known_bounds(GraphView(ir.from_proto(model)))


def test_symmetric_pads_compile(tmp_path: Path) -> None:
    models = [symmetric(*pads, 3, 5 + i, 4, seed=i) for i, pads in enumerate(PADS[:1])]
    joined = join_models(models, own_dims=True)
    x = [np.random.default_rng(i).standard_normal((2, 3, 5 + i, 4)).astype(np.float32) for i in range(1)]
    feeds = {given.name: array for given, array in zip(joined.graph.input, x, strict=True)}
    onnx_fa.compile(joined, tmp_path / "m.vmfb")
    for found, want in zip(onnx_fa.run(tmp_path / "m.vmfb", *x), run(joined, feeds), strict=True):
        np.testing.assert_array_equal(found, want)


def shared_weight() -> onnx.ModelProto:
    """Two convolutions by one weight, of which the second has another name, as PyTorch's exporter writes equal weights."""
    n = Net(16, 6, 6)
    w = n.weight(16, 16, 3, 3)
    again = n.add("Identity", n.add("Identity", w))
    return n.model(n.add("Conv", n.add("Conv", "x", w, pads=[1] * 4), again, pads=[1] * 4))


def test_a_weight_has_one_name() -> None:
    model = shared_weight()
    made = written(model)
    assert len({n.input[1] for n in made.graph.node if op_of(n) == "Conv"}) == 1
    sites = import_model(model, parse_target("cpu-avx2")).linear
    assert len([site for site in sites if site.kernel]) == 2


def test_what_the_caller_may_replace_is_no_weight() -> None:
    model = shared_weight()
    weight = model.graph.initializer[0]
    model.graph.input.append(onnx.helper.make_tensor_value_info(weight.name, weight.data_type, weight.dims))
    assert len({n.input[1] for n in written(model).graph.node if op_of(n) == "Conv"}) == 2

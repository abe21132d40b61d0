"""Shapes that follow from a graph's own arithmetic: equal to what the ops yield, and unknown rather than wrong."""

from __future__ import annotations

import itertools

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto as T
from onnx import helper as h
from onnx import numpy_helper
from onnx.reference import ReferenceEvaluator

from onnx_fa.graph.dims import Shape
from onnx_fa.graph.io import load
from onnx_fa.graph.normalise import infer_shapes
from onnx_fa.graph.shape_rules import einsum_dims
from onnx_fa.graph.view import GraphView
from tests.support.ort_run import run


def view_of(
    nodes: list[onnx.NodeProto], dims: list[int | str], **constants: object
) -> tuple[GraphView, onnx.ModelProto]:
    """A graph of `x`, f32 of those dims, whose values have types and no recorded shapes."""
    tensors = [numpy_helper.from_array(np.asarray(a, np.int64), n) for n, a in constants.items()]
    outputs = [o for node in nodes for o in node.output]
    values = [h.make_tensor_value_info(o, T.UNDEFINED, None) for o in outputs[-1:]]
    graph = h.make_graph(nodes, "g", [h.make_tensor_value_info("x", T.FLOAT, dims)], values, tensors)
    model = h.make_model(graph, opset_imports=[h.make_opsetid("", 18)], ir_version=9)
    loaded = load(model)
    infer_shapes(loaded)
    for node in loaded.graph:
        for out in node.outputs:
            out.shape = None
    return GraphView(loaded), model


def shape(view: GraphView, name: str) -> tuple[int | str | None, ...] | None:
    return view.shape(next(o for n in view.model.graph for o in n.outputs if o.name == name))


def check(nodes: list[onnx.NodeProto], dims: tuple[int, ...], **constants: object) -> None:
    view, model = view_of(nodes, list(dims), **constants)
    last = nodes[-1].output
    del model.graph.output[:]
    model.graph.output.extend(h.make_tensor_value_info(o, T.FLOAT, None) for o in last)
    results = ReferenceEvaluator(model).run(None, {"x": np.zeros(dims, np.float32)})
    assert [shape(view, o) for o in last] == [r.shape for r in results]


@settings(max_examples=80, deadline=None, derandomize=True)
@given(
    size=st.integers(1, 9),
    start=st.integers(-12, 12),
    end=st.integers(-12, 12) | st.sampled_from([1 << 62, -(1 << 62)]),
    step=st.integers(-3, 3).filter(bool),
)
def test_slice_has_the_size_that_the_op_yields(size: int, start: int, end: int, step: int) -> None:
    slices = h.make_node("Slice", ["x", "a", "b", "axis", "step"], ["y"])
    check([slices], (2, size), a=[start], b=[end], axis=[-1], step=[step])


@pytest.mark.parametrize(
    ("start", "end", "step", "want"),
    [
        (-1, -(1 << 63) + 1, -1, "n"),
        (1 << 62, -(1 << 62), -1, "n"),
        (-1, -(1 << 62), -2, "((1 + n)//(2))"),
        (-2, -(1 << 62), -1, None),
        (-1, 0, -1, None),
        (-1, -5, -1, None),
    ],
)
def test_an_axis_of_free_length_turned_around(start: int, end: int, step: int, want: str | None) -> None:
    slices = h.make_node("Slice", ["x", "a", "b", "axis", "step"], ["y"])
    view, _ = view_of([slices], [2, "n"], a=[start], b=[end], axis=[-1], step=[step])
    assert shape(view, "y") == (2, want)


@pytest.mark.parametrize(("keepdims", "want"), [(0, (2,)), (1, (2, 1)), (-1, (2,)), (2, (2,))])
def test_only_one_keeps_a_reduced_axis(keepdims: int, want: tuple[int, ...]) -> None:
    """ONNX defines 0 and 1. Shape inference and onnxruntime's kernels keep an axis for 1 alone."""
    view, model = view_of([h.make_node("ReduceMax", ["x", "a"], ["y"], keepdims=keepdims)], [2, 3], a=[1])
    assert shape(view, "y") == want
    model.graph.output[0].CopyFrom(h.make_tensor_value_info("y", T.FLOAT, None))
    (have,) = run(model, {"x": np.zeros((2, 3), np.float32)}, optimise=False)
    assert have.shape == want


def test_slice_by_half_of_a_size() -> None:
    nodes = [
        h.make_node("Shape", ["x"], ["shape"]),
        h.make_node("Gather", ["shape", "last"], ["size"]),
        h.make_node("Div", ["size", "two"], ["half"]),
        h.make_node("Unsqueeze", ["half", "zero"], ["end"]),
        h.make_node("Slice", ["x", "zero", "end", "one"], ["y"]),
    ]
    check(nodes, (3, 7), last=1, two=2, zero=[0], one=[1])


@pytest.mark.parametrize(("size", "parts"), [(12, 3), (7, 3), (2, 2)])
def test_split_in_parts(size: int, parts: int) -> None:
    outs = [f"y{i}" for i in range(parts)]
    check([h.make_node("Split", ["x"], outs, axis=-1, num_outputs=parts)], (2, size))


def test_split_concat_pad_tile_and_constant_of_shape() -> None:
    check([h.make_node("Split", ["x", "sizes"], ["y0", "y1"], axis=1)], (2, 7), sizes=[5, 2])
    check([h.make_node("Concat", ["x", "x", "x"], ["y"], axis=-1)], (2, 7))
    check([h.make_node("Pad", ["x", "pads"], ["y"])], (2, 7), pads=[0, 3, 1, 2])
    check([h.make_node("Pad", ["x", "pads", "", "axes"], ["y"])], (2, 7), pads=[3, 2], axes=[-1])
    check([h.make_node("Tile", ["x", "n"], ["y"])], (2, 7), n=[3, 2])
    check([h.make_node("Shape", ["x"], ["s"]), h.make_node("ConstantOfShape", ["s"], ["y"])], (2, 7))


@pytest.mark.parametrize("sizes", [[1, 1, 1, 1], [2, 2], [1, 3], [0, 4], None])
@pytest.mark.parametrize("dims", [[2, 5, 1, 7], ["B", 5, "H", 7]])
def test_split_of_a_shape(sizes: list[int] | None, dims: list[int | str]) -> None:
    """As TensorFlow's tf.unstack of a tensor's shape is written."""
    outs = [f"o{i}" for i in range(len(sizes or dims[:2]))]
    split = h.make_node("Split", ["s", "sizes"] if sizes else ["s"], outs, **({} if sizes else {"num_outputs": 2}))
    view, _ = view_of([h.make_node("Shape", ["x"], ["s"]), split], dims, **({"sizes": sizes} if sizes else {}))
    made = [view.dims(o) for n in view.model.graph for o in n.outputs if o.name in outs]
    ends = np.cumsum([0, *(sizes or [2, 2])])
    assert made == [tuple(dims[a:b]) for a, b in itertools.pairwise(ends)]


@pytest.mark.parametrize("op", ["GlobalAveragePool", "GlobalMaxPool"])
def test_pooling_of_whole_images(op: str) -> None:
    check([h.make_node(op, ["x"], ["y"])], (2, 3, 5, 7))
    assert shape(view_of([h.make_node(op, ["x"], ["y"])], ["b", 3, "h", "w"])[0], "y") == ("b", 3, 1, 1)


@pytest.mark.parametrize(
    ("op", "options", "dims"),
    [
        ("AveragePool", {"kernel_shape": [4], "strides": [4], "ceil_mode": 1}, (2, 3, 14)),
        ("AveragePool", {"kernel_shape": [4], "strides": [4], "ceil_mode": 1}, (2, 3, 12)),
        ("MaxPool", {"kernel_shape": [3, 2], "strides": [2, 3], "pads": [1, 0, 1, 0], "ceil_mode": 1}, (1, 2, 8, 8)),
        ("MaxPool", {"kernel_shape": [2], "strides": [3], "dilations": [2], "ceil_mode": 1}, (1, 2, 8)),
    ],
)
def test_windows_that_reach_past_the_end(op: str, options: dict[str, object], dims: tuple[int, ...]) -> None:
    check([h.make_node(op, ["x"], ["y"], **options)], dims)


def test_of_windows_that_begin_behind_the_end_nobody_knows_whether_they_count() -> None:
    pool = h.make_node("AveragePool", ["x"], ["y"], kernel_shape=[1], strides=[3], pads=[0, 2], ceil_mode=1)
    assert shape(view_of([pool], [2, 3, 5])[0], "y") == (2, 3, None)
    named = h.make_node("AveragePool", ["x"], ["y"], kernel_shape=[4], strides=[4], ceil_mode=1)
    assert shape(view_of([named], ["b", 3, "n"])[0], "y") == ("b", 3, None)


@pytest.mark.parametrize(
    ("options", "dims", "weight"),
    [
        ({"strides": [4], "pads": [2, 2]}, (2, 3, 9), (3, 5, 8)),
        ({"strides": [2, 3], "output_padding": [1, 0], "pads": [0, 1, 1, 1]}, (1, 4, 5, 6), (4, 3, 3, 4)),
        ({"dilations": [3], "strides": [2]}, (1, 2, 7), (2, 2, 3)),
        ({"auto_pad": "VALID", "strides": [3]}, (1, 2, 7), (2, 2, 2)),
    ],
)
def test_convolutions_that_spread(options: dict[str, object], dims: tuple[int, ...], weight: tuple[int, ...]) -> None:
    node = h.make_node("ConvTranspose", ["x", "weights"], ["y"], **options)
    check([node], dims, weights=np.ones(weight, np.float32))


def test_a_convolution_that_spreads_a_free_length() -> None:
    node = h.make_node("ConvTranspose", ["x", "weights"], ["y"], strides=[4], pads=[2, 2])
    view, _ = view_of([node], ["b", 3, "n"], weights=np.ones((3, 5, 8), np.float32))
    assert shape(view, "y") == ("b", 5, "4*n")
    grouped = h.make_node("ConvTranspose", ["x", "weights"], ["y"], strides=[4], pads=[2, 2], group=3)
    view, _ = view_of([grouped], ["b", 3, "n"], weights=np.ones((3, 5, 8), np.float32))
    assert shape(view, "y") == ("b", 15, "4*n")
    for options in ({"auto_pad": "SAME_UPPER"}, {"output_shape": [20]}):
        other = h.make_node("ConvTranspose", ["x", "weights"], ["y"], strides=[4], **options)
        view, _ = view_of([other], ["b", 3, "n"], weights=np.ones((3, 5, 8), np.float32))
        assert shape(view, "y") in {("b", 5, None), ("b", 5, 20)}


def float_of(name: str, number: float, kind: int = T.FLOAT) -> onnx.NodeProto:
    return h.make_node("Constant", [], [name], value=h.make_tensor(name, kind, [], [number]))


def same_pads(kernel: int, stride: int) -> list[onnx.NodeProto]:
    """timm's Conv2dSame along the last axis, as the TorchScript exporter writes it."""
    return [
        *(float_of("stride", stride), float_of("kernel", kernel - 1), float_of("one", 1), float_of("two", 2)),
        float_of("zero", 0),
        h.make_node("Shape", ["x"], ["shape"]),
        h.make_node("Gather", ["shape", "last"], ["size"]),
        h.make_node("Cast", ["size"], ["exact"], to=T.FLOAT),
        h.make_node("Div", ["exact", "stride"], ["times"]),
        h.make_node("Ceil", ["times"], ["windows"]),
        h.make_node("Sub", ["windows", "one"], ["steps"]),
        h.make_node("Mul", ["steps", "stride"], ["begin"]),
        h.make_node("Add", ["begin", "kernel"], ["end"]),
        h.make_node("Add", ["end", "one"], ["wanted"]),
        h.make_node("Sub", ["wanted", "exact"], ["missing"]),
        h.make_node("Clip", ["missing", "zero"], ["pad"]),
        h.make_node("Div", ["pad", "two"], ["half"]),
        h.make_node("Cast", ["half"], ["cut"], to=T.INT64),
        h.make_node("Cast", ["cut"], ["before"], to=T.FLOAT),
        h.make_node("Sub", ["pad", "before"], ["behind"]),
        h.make_node("Unsqueeze", ["before", "axis"], ["first"]),
        h.make_node("Unsqueeze", ["behind", "axis"], ["second"]),
        h.make_node("Concat", ["first", "second"], ["both"], axis=0),
        h.make_node("Cast", ["both"], ["pads"], to=T.INT64),
        h.make_node("Pad", ["x", "pads", "", "places"], ["padded"]),
    ]


@pytest.mark.parametrize(("size", "kernel", "stride"), [(224, 3, 2), (7, 4, 2), (9, 2, 3), (10, 5, 4), (8, 2, 2)])
def test_pads_that_are_computed_as_floats(size: int, kernel: int, stride: int) -> None:
    """Twice: the second asks for what the first one made, of which onnx infers nothing."""
    once = same_pads(kernel, stride)
    again = [h.make_node(n.op_type, [*n.input], [*n.output]) for n in once]
    for node, old in zip(again, once, strict=True):
        node.attribute.extend(old.attribute)
        for names in (node.input, node.output):
            for i, name in enumerate(names):
                names[i] = "padded" if name == "x" else f"{name}_2" if name and name not in CONSTANTS else name
    check([*once, *again], (2, size), **CONSTANTS)


CONSTANTS = {"last": 1, "axis": [0], "places": [-1]}


def test_pads_of_a_free_size_are_not_known() -> None:
    view, _ = view_of(same_pads(3, 2), [2, "n"], **CONSTANTS)
    assert shape(view, "padded") == (2, None)


@settings(max_examples=150, deadline=None, derandomize=True)
@given(
    size=st.integers(1, 40),
    steps=st.lists(
        st.tuples(
            st.sampled_from(
                ["Add", "Sub", "Mul", "Div", "Max", "Min", "Ceil", "Floor", "Round", "Neg", "Clip", "Cast"]
            ),
            st.sampled_from([0.1, 0.5, 0.7, 1.5, 2.0, 3.0, 7.0, -0.3]),
        ),
        max_size=5,
    ),
    kind=st.sampled_from([T.FLOAT, T.DOUBLE]),
)
def test_numbers_computed_of_a_size(size: int, steps: list[tuple[str, float]], kind: int) -> None:
    """As a run computes them, with its roundings: 10 * 0.7 is 7 as a float of 32 bits. Cut to lengths by a Max."""
    nodes = [
        h.make_node("Shape", ["x"], ["shape"]),
        h.make_node("Gather", ["shape", "last"], ["size"]),
        h.make_node("Cast", ["size"], ["n0"], to=kind),
    ]
    for i, (op, number) in enumerate(steps):
        nodes.append(float_of(f"c{i}", number, kind))
        if op == "Cast":
            nodes += [h.make_node("Cast", [f"n{i}"], [f"i{i}"], to=T.INT64)]
            nodes += [h.make_node("Cast", [f"i{i}"], [f"n{i + 1}"], to=kind)]
        else:
            unary = op in ("Ceil", "Floor", "Round", "Neg")
            nodes.append(h.make_node(op, [f"n{i}"] if unary else [f"n{i}", f"c{i}"], [f"n{i + 1}"]))
    nodes += [
        h.make_node("Cast", [f"n{len(steps)}"], ["whole"], to=T.INT64),
        h.make_node("Clip", ["whole", "zero", "most"], ["length"]),
        h.make_node("Unsqueeze", ["length", "axis"], ["to"]),
        h.make_node("ConstantOfShape", ["to"], ["y"]),
    ]
    check(nodes, (2, size), last=1, zero=0, most=5000, axis=[0])


def test_lengths_as_floats_are_lengths() -> None:
    """Half of an even length is one, of another it is not known."""
    for dims, want in (("2*n", "n"), ("n", None)):
        nodes = [
            float_of("two", 2),
            h.make_node("Shape", ["x"], ["sizes"], start=1),
            h.make_node("Cast", ["sizes"], ["exact"], to=T.FLOAT),
            h.make_node("Div", ["exact", "two"], ["half"]),
            h.make_node("Ceil", ["half"], ["up"]),
            h.make_node("Cast", ["up"], ["to"], to=T.INT64),
            h.make_node("ConstantOfShape", ["to"], ["y"]),
        ]
        joined = [h.make_node("Concat", ["x", "x"], ["xx"], axis=1)] if want else []
        if joined:
            nodes[1] = h.make_node("Shape", ["xx"], ["sizes"], start=1)
        assert shape(view_of([*joined, *nodes], [2, "n"])[0], "y") == (want,), dims


def test_integers_keep_the_dims_of_what_they_were() -> None:
    quantise = h.make_node("DynamicQuantizeLinear", ["x"], ["i", "scale", "zero"])
    transpose = h.make_node("Transpose", ["i"], ["t"], perm=[0, 2, 1])
    view, _ = view_of([quantise, transpose, h.make_node("MatMulInteger", ["i", "t"], ["y"])], ["b", "n", 8])
    assert shape(view, "i") == ("b", "n", 8) and shape(view, "y") == ("b", "n", "n")
    convolve = h.make_node("ConvInteger", ["i", "weights"], ["y"], strides=[2], pads=[1, 1])
    view, _ = view_of([quantise, convolve], ["b", 8, "n"], weights=np.zeros((5, 8, 4), np.int64))
    assert shape(view, "y") == ("b", 5, "((n)//(2))")
    rounded = h.make_node("QLinearMatMul", ["i", "scale", "zero", "t", "scale", "zero", "scale", "zero"], ["y"])
    view, _ = view_of([quantise, transpose, rounded], ["b", "n", 8])
    assert shape(view, "y") == ("b", "n", "n")
    view, _ = view_of([h.make_node("EyeLike", ["x"], ["y"])], ["n", "m"])
    assert shape(view, "y") == ("n", "m")


def test_cast_like_has_the_shape_of_what_is_cast() -> None:
    view, _ = view_of([h.make_node("CastLike", ["x", "like"], ["y"])], ["b", 3], like=[1])
    assert shape(view, "y") == ("b", 3)


@pytest.mark.parametrize(
    ("batch", "indices"), [(0, [[[1, 0]]]), (1, [[[0]], [[1]]]), (0, [[1]]), (1, [[[1, 2]], [[0, 0]]])]
)
def test_what_gather_nd_picks(batch: int, indices: list[object]) -> None:
    check([h.make_node("GatherND", ["x", "i"], ["y"], batch_dims=batch)], (2, 3, 4), i=indices)


@pytest.mark.parametrize(
    ("equation", "second", "want"),
    [
        ("...ij,...jk->...ik", (1, 4, 5), ("a", "b", 3, 5)),
        ("...ij, jk -> ...ik", (4, 5), ("a", "b", 3, 5)),
        ("...ij,jk->ik...", (4, 5), (3, 5, "a", "b")),
        ("...ij,...jk", (4, 5), None),
        ("...ij,jkl->...ik", (4, 5), None),
    ],
)
def test_einsum_with_dots(equation: str, second: Shape, want: Shape | None) -> None:
    assert einsum_dims(equation, [("a", "b", 3, 4), second]) == want


def test_expand_to_a_shape_that_keeps_dims_by_minus_one() -> None:
    """What TorchScript writes for expand(3, -1)."""
    nodes = [
        h.make_node("Reshape", ["wanted", "all"], ["vector"]),
        h.make_node("Shape", ["vector"], ["rank"]),
        h.make_node("ConstantOfShape", ["rank"], ["ones"], value=h.make_tensor("v", T.INT64, [1], [1])),
        h.make_node("Mul", ["ones", "minus"], ["minuses"]),
        h.make_node("Equal", ["vector", "minuses"], ["kept"]),
        h.make_node("Where", ["kept", "ones", "vector"], ["to"]),
        h.make_node("Expand", ["x", "to"], ["y"]),
    ]
    check(nodes, (1, 7), wanted=[3, -1], all=[-1], minus=-1)


def test_dims_beside_one_that_a_run_decides() -> None:
    """A padding mask is as long as a length says that is given; its batch is known all the same."""
    nodes = [
        h.make_node("Shape", ["x"], ["batch"], end=1),
        h.make_node("Reshape", ["x", "flat"], ["lengths"]),
        h.make_node("Gather", ["lengths", "zero"], ["first"]),
        h.make_node("Cast", ["first"], ["length"], to=T.INT64),
        h.make_node("Concat", ["batch", "length"], ["to"], axis=0),
        h.make_node("Expand", ["x", "to"], ["y"]),
    ]
    view, _ = view_of(nodes, ["n", 1], zero=[0], flat=[-1])
    assert shape(view, "y") == ("n", None)


@pytest.mark.parametrize(
    ("from_lengths", "want"), [(True, ("b", 4, "((1 + n)//(2)) - 1")), (False, (None, None, None))]
)
def test_expand_keeps_no_dim_that_is_a_length(from_lengths: bool, want: Shape) -> None:
    """Each dim of the shape is compared with -1, which no length is: not those of what was pooled either, whose expression alone
    might be -1. One less than a length may be."""
    pool = h.make_node("AveragePool", ["x"], ["pooled"], kernel_shape=[3], strides=[2])
    asked = h.make_node("Shape", ["pooled" if from_lengths else "x"], ["sizes"])
    nodes = [
        *(pool, asked),
        h.make_node("Sub", ["sizes", "less"], ["wanted"]),
        h.make_node("Equal", ["wanted", "minus"], ["kept"]),
        h.make_node("Where", ["kept", "one", "wanted"], ["to"]),
        h.make_node("Slice", ["pooled", "zero", "one", "axis"], ["row"]),
        h.make_node("Expand", ["row", "to"], ["y"]),
    ]
    view, _ = view_of(nodes, ["b", 4, "n"], less=[0] if from_lengths else [1], minus=[-1], one=[1], zero=[0], axis=[1])
    found = shape(view, "y")
    assert found == want or (not from_lengths and found is not None and "b - 1" not in found)


@pytest.mark.parametrize(("start", "end", "want"), [(-1, 1 << 62, [7]), (1, 3, [5, 7]), (0, 2, None), (-2, -1, [5])])
def test_numbers_among_the_dims_of_a_shape_are_known(start: int, end: int, want: list[int] | None) -> None:
    nodes = [h.make_node("Shape", ["x"], ["sizes"]), h.make_node("Slice", ["sizes", "a", "b"], ["y"])]
    view, _ = view_of(nodes, ["n", 5, 7], a=[start], b=[end])
    known = view.const(next(o for n in view.model.graph for o in n.outputs if o.name == "y"))
    assert (None if known is None else known.tolist()) == want


def test_symbols_are_kept_and_sums_and_products_of_them_are_symbols() -> None:
    def of(node: onnx.NodeProto, **constants: object) -> object:
        return shape(view_of([node], ["b", 7], **constants)[0], "y")

    assert of(h.make_node("Slice", ["x", "a", "b", "axis"], ["y"]), a=[0], b=[1 << 62], axis=[0]) == ("b", 7)
    assert of(h.make_node("Slice", ["x", "a", "b", "axis"], ["y"]), a=[1], b=[1 << 62], axis=[0]) == (
        "b - min(1, b)",
        7,
    )
    assert of(h.make_node("Slice", ["x", "a", "b", "axis"], ["y"]), a=[0], b=[5], axis=[0]) == ("min(5, b)", 7)
    assert of(h.make_node("Concat", ["x", "x"], ["y"], axis=0)) == ("2*b", 7)
    assert of(h.make_node("Concat", ["x", "x"], ["y"], axis=1)) == ("b", 14)
    assert of(h.make_node("Pad", ["x", "pads"], ["y"]), pads=[0, 1, 0, 0]) == ("b", 8)
    assert of(h.make_node("Pad", ["x", "pads"], ["y"]), pads=[1, 0, 0, 0]) == ("1 + b", 7)
    assert of(h.make_node("Tile", ["x", "n"], ["y"]), n=[1, 2]) == ("b", 14)
    assert of(h.make_node("Tile", ["x", "n"], ["y"]), n=[2, 1]) == ("2*b", 7)

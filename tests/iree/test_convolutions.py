"""Convolutions that become calls of a kernel give onnxruntime's numbers, whatever their attributes; those that do not stay."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, assume, example, given, settings
from hypothesis import strategies as st
from onnx import helper as h
from onnx import numpy_helper
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun

from onnx_fa.graph.ops import op_of
from onnx_fa.graph.site_op import DOMAIN
from onnx_fa.iree.compile import compile_model, import_model
from onnx_fa.iree.inference import infer_types
from onnx_fa.iree.legalise.conv_shapes import conv_shape, pad_image
from onnx_fa.iree.legalise.convolutions import CONV_SITE, spec_of_shape, window_of, write_site
from onnx_fa.iree.legalise.rules import legalize
from onnx_fa.iree.legalise.writer import FLOATS, GraphWriter, declare_own_nodes
from onnx_fa.iree.run import function_of, load_module
from onnx_fa.iree.vmfb_facts import is_linear
from onnx_fa.kernels.cpu.window import blocks_of, panel_of, tiles_for
from onnx_fa.kernels.cpu.window_body import walk_of
from onnx_fa.spec.dtypes import NUMPY
from onnx_fa.spec.linear_accuracy import UNIT
from onnx_fa.spec.target import foreign_cpu, parse_target
from onnx_fa.spec.windows import WindowSpec, slide
from tests.support.joined_models import join_models
from tests.support.kernel_harness import asked_for, cases_asked_for
from tests.support.ort_run import run

WIDE, NARROW = parse_target("cpu-avx512"), parse_target("cpu-avx2")
HOST = parse_target("cpu-host")
SHORT: dict[Any, Any] = {np.dtype(NUMPY[name]): name for name in ("f32", "f16", "bf16")}


def conv(
    x: tuple[int | str, ...],
    w: tuple[int, ...],
    *,
    bias: bool = True,
    kind: Any = np.float32,
    opset: int = 17,
    turned: bool = False,
    **attributes: Any,
) -> onnx.ModelProto:
    """A Conv of x with a weight of that shape, which is a constant."""
    rng = np.random.default_rng(0)
    element = h.np_dtype_to_tensor_dtype(np.dtype(kind))
    constants = {
        "w": rng.standard_normal(w) / np.sqrt(np.prod(w[1:])),
        **({"b": rng.standard_normal(w[0])} if bias else {}),
    }
    node = h.make_node("Conv", ["x", *constants], ["y"], "conv", **attributes)
    outputs = [h.make_tensor_value_info("y", element, [None] * len(x))]
    nodes = [node]
    if turned:
        perm = [0, *range(2, len(x)), 1]
        nodes = [h.make_node("Conv", node.input, ["c"], "conv", **attributes), h.make_node("Relu", ["c"], ["r"])]
        nodes.append(h.make_node("Transpose", ["r"], ["y"], perm=perm))
    graph = h.make_graph(nodes, "g", [h.make_tensor_value_info("x", element, list(x))], outputs)
    graph.initializer.extend(numpy_helper.from_array(v.astype(kind), name) for name, v in constants.items())
    return h.make_model(graph, opset_imports=[h.make_opsetid("", opset)], ir_version=9)


def image(*shape: int, kind: Any = np.float32) -> dict[str, np.ndarray]:
    return {"x": np.random.default_rng(1).standard_normal(shape).astype(kind)}


def image_of(model: onnx.ModelProto, shape: tuple[int, ...]) -> dict[str, np.ndarray]:
    """One of the model's element type."""
    element = model.graph.input[0].type.tensor_type.elem_type
    return image(*shape, kind=h.tensor_dtype_to_np_dtype(element))


def legalized(model: onnx.ModelProto, target: Any = WIDE) -> onnx.ModelProto:
    typed = onnx.ModelProto.FromString(model.SerializeToString())
    infer_types(typed, {})
    return legalize(typed, target=target)


def ops(model: onnx.ModelProto, target: Any = WIDE) -> list[str]:
    return [op_of(n) for n in legalized(model, target).graph.node]


class ConvSite(OpRun):
    """What the node means."""

    op_domain = DOMAIN

    def _run(self, x: np.ndarray, w: np.ndarray, *more: np.ndarray, **attributes: Any) -> tuple[np.ndarray]:
        assert x.dtype == np.float32
        return mean_site(x, w, *more, **attributes)


def mean_site(x: np.ndarray, w: np.ndarray, *more: np.ndarray, **attributes: Any) -> tuple[np.ndarray]:
    """What a ConvSite makes of these operands."""
    spec = window_of([(v.shape, SHORT[v.dtype]) for v in (x, w, *more)], attributes)
    return (slide(spec, x, w, *more).astype(w.dtype),)


KINDS = st.sampled_from([np.float32, np.float16])


@st.composite
def convolutions(draw: st.DrawFn, opsets: tuple[int, ...] = (10, 12, 17)) -> tuple[onnx.ModelProto, tuple[int, ...]]:
    axes, small = draw(st.integers(1, 3)), st.integers(1, 3)
    own, columns = draw(small), draw(st.sampled_from([2, 4, 8, 16, 17, 24, 32, 33, 48, 64, 80]))
    groups = draw(small) * max(1, 16 // columns)
    auto = draw(st.sampled_from(["NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER"]))
    sizes, kernel, strides = (
        tuple(draw(n) for _ in range(axes)) for n in (st.integers(2, 9), st.integers(1, 4), small)
    )
    attributes: dict[str, Any] = {"strides": strides, "group": groups}
    if not auto.startswith("SAME"):  # onnxruntime has no dilations there
        attributes["dilations"] = [draw(st.integers(1, 2)) for _ in range(axes)]
    if auto != "NOTSET":
        attributes["auto_pad"] = auto
    elif draw(st.booleans()):
        attributes["pads"] = [draw(st.integers(0, 2)) for _ in range(2 * axes)]
    if draw(st.booleans()):
        attributes["kernel_shape"] = kernel
    pads = attributes.get("pads", [0] * 2 * axes)
    spread = attributes.get("dilations", [1] * axes)
    reach = [(k - 1) * d + 1 for k, d in zip(kernel, spread, strict=True)]
    assume(
        auto.startswith("SAME")
        or all(s + pads[i] + pads[axes + i] >= r for i, (s, r) in enumerate(zip(sizes, reach, strict=True)))
    )
    batch, free, bias = draw(small), draw(st.booleans()), draw(st.booleans())
    weight = (groups * columns, own, *kernel)
    opset = draw(st.sampled_from(opsets))
    return conv(
        ("N" if free else batch, groups * own, *sizes),
        weight,
        bias=bias,
        kind=draw(KINDS),
        opset=opset,
        turned=draw(st.booleans()),
        **attributes,
    ), (
        batch,
        groups * own,
        *sizes,
    )


@st.composite
def depthwise(draw: st.DrawFn) -> tuple[onnx.ModelProto, tuple[int, ...]]:
    axes, small = draw(st.integers(1, 3)), st.integers(1, 3)
    channels, batch = draw(st.integers(2, 20)), draw(small)
    sizes, kernel, strides, spread, pads = (
        tuple(draw(n) for _ in range(count))
        for n, count in (
            (st.integers(3, 9), axes),
            (st.integers(1, 4), axes),
            (small, axes),
            (st.integers(1, 2), axes),
            (st.integers(0, 2), 2 * axes),
        )
    )
    ends = [
        s + pads[i] + pads[axes + i] - (k - 1) * d
        for i, (s, k, d) in enumerate(zip(sizes, kernel, spread, strict=True))
    ]
    assume(min(ends) > 0 and np.prod(kernel) > 1)
    attributes = {"strides": strides, "dilations": spread, "pads": pads, "group": channels}
    kind = draw(KINDS) if max(strides) == 1 else np.float32
    lead = "N" if draw(st.booleans()) else batch
    model = conv(
        (lead, channels, *sizes),
        (channels, 1, *kernel),
        bias=draw(st.booleans()),
        kind=kind,
        turned=draw(st.booleans()),
        **attributes,
    )
    return model, (batch, channels, *sizes)


def compare(model: onnx.ModelProto, got: Any, inputs: dict[str, np.ndarray]) -> None:
    (want,) = run(model, inputs)
    assert got.shape == want.shape and got.dtype == want.dtype
    rtol = 1e-5 if got.dtype == np.float32 else 2.0**-10  # f16: neighbours
    np.testing.assert_allclose(got, want, rtol=rtol, atol=1e-5 * max(1.0, float(np.abs(want).max())))


@settings(max_examples=150, deadline=None)
@given(convolutions())
def test_random_convolutions_mean_the_same(drawn: tuple[onnx.ModelProto, tuple[int, ...]]) -> None:
    model, shape = drawn
    made, inputs = legalized(model), image_of(model, shape)
    # The evaluator rounds the sums of a Conv of f16 before it adds the bias.
    assume(inputs["x"].dtype == np.float32 or "Conv" not in {n.op_type for n in made.graph.node})
    (got,) = ReferenceEvaluator(made, new_ops=[ConvSite]).run(None, inputs)
    compare(model, got, inputs)


@settings(max_examples=100, deadline=None)
@given(depthwise())
def test_random_depthwise_convolutions_mean_the_same(drawn: tuple[onnx.ModelProto, tuple[int, ...]]) -> None:
    model, shape = drawn
    made, inputs = legalized(model, NARROW), image_of(model, shape)
    assert "Conv" not in {n.op_type for n in made.graph.node}
    (got,) = ReferenceEvaluator(made).run(None, inputs)
    compare(model, got, inputs)


Drawn = tuple[onnx.ModelProto, tuple[int, ...]]
EXAMPLES: list[Drawn] = [
    (conv(("N", 8, 30), (96, 2, 16), group=4, pads=[8, 8]), (3, 8, 30)),
    (conv((2, 3, 20, 20), (32, 3, 7, 7), strides=[4, 4], pads=[3] * 4), (2, 3, 20, 20)),
    (conv((3, 20, 58), (96, 20, 3), pads=[1, 1], strides=[2]), (3, 20, 58)),
    (conv(("N", 32, 9, 9), (32, 4, 3, 3), group=8, pads=[1] * 4), (2, 32, 9, 9)),
    (conv((2, 8, 20), (16, 1, 3), group=8, turned=True), (2, 8, 20)),
    (conv(("N", 24, 9, 9), (48, 24, 3, 3), pads=[1] * 4, bias=False), (2, 24, 9, 9)),
    (conv(("N", 6, 9, 9), (6, 1, 3, 3), group=6, pads=[1] * 4), (2, 6, 9, 9)),
    (conv((2, 6, 9, 9), (6, 1, 3, 3), group=6, strides=[2, 2], turned=True), (2, 6, 9, 9)),
    (conv((2, 6, 9, 9), (6, 1, 3, 3), group=6, strides=[2, 2], kind=np.float16), (2, 6, 9, 9)),
]


@settings(max_examples=1, deadline=None, suppress_health_check=list(HealthCheck))
@example(EXAMPLES)
@given(drawn=st.lists(st.one_of(convolutions((17,)), depthwise()), min_size=1, max_size=6))
def test_random_convolutions_compiled(tmp_path_factory: Any, drawn: list[Drawn]) -> None:
    """Those of a list are a module."""
    models = [model for model, _ in drawn]
    inputs, path = [image_of(*pair) for pair in drawn], tmp_path_factory.mktemp("conv") / "m.vmfb"
    compile_model(join_models(models, own_dims=True), path, HOST, parameters="embed")
    found = load_module(path)(*(x["x"] for x in inputs))
    for (model, _), got, images in zip(drawn, found, inputs, strict=True):
        compare(model, got, images)


@pytest.mark.parametrize(
    ("x", "w", "attributes"),
    [
        ((3, 20, 58), (96, 20, 3), {"pads": [1, 1]}),
        (("N", 20, 58), (96, 20, 3), {"pads": [1, 1], "strides": [2]}),
        ((3, 96, 30), (96, 24, 16), {"group": 4, "pads": [8, 8]}),
        ((1, 3, 40, 40), (32, 3, 7, 7), {"strides": [4, 4], "pads": [3] * 4}),
        ((1, 3, 40, 40), (32, 3, 3, 3), {"auto_pad": "SAME_UPPER", "strides": [2, 2]}),
        ((1, 8, 7, 7, 7), (16, 8, 3, 3, 3), {"dilations": [2, 2, 2]}),
        ((1, 16, 9, 9), (16, 16, 3, 3), {"pads": [1] * 4}),
        ((1, 64, 40), (64, 4, 3), {"group": 16}),
        ((1, 64, 40), (128, 1, 3), {"group": 64}),  # channels that have two columns each
        (("N", 32, 9, 9), (64, 4, 3, 3), {"group": 8, "pads": [1] * 4}),
        ((1, 16, 9, 9), (16, 16, 3, 3), {"pads": [1] * 4, "kind": np.float16}),
        ((1, 16, 9, 9), (16, 16, 3, 3), {"pads": [1] * 4, "kind": NUMPY["bf16"]}),
    ],
)
def test_a_kernel_takes(x: tuple[int | str, ...], w: tuple[int, ...], attributes: dict[str, Any]) -> None:
    for target in (WIDE, NARROW):
        found = ops(conv(x, w, **attributes), target)
        assert CONV_SITE in found and "Conv" not in found
    if min(attributes.get("dilations", [1])) == 1 and "N" not in x:
        text = import_model(conv(x, w, **attributes), WIDE).text
        assert "util.call @conv_" in text and "onnx.Conv" not in text


@pytest.mark.parametrize(
    ("x", "w", "options"),
    [
        ((1, 3, "H", "W"), (32, 3, 3, 3), {}),  # sizes that only a run knows
        ((1, 3, 40), (15, 3, 3), {}),  # columns that do not fill a vector
        ((1, 48, 40), (48, 4, 3), {"group": 16}),  # three columns do not divide a vector
        ((1, 24, 40), (24, 4, 3), {"group": 6}),  # nor four groups six
        ((1, 64, 99), (64, 1, 65), {"group": 64}),  # too many taps
        ((1, 64, 40), (64, 1, 1), {"group": 64}),
        ((1, 64, 40), (64, 1, 3), {"group": 64, "opset": 12}),
        ((1, 64, 40), (64, 1, 3), {"group": 64, "strides": [2], "kind": np.float16}),
        ((1, 3, 5), (32, 3, 3), {}),  # few places
        ((1, 3, 40), (32, 3, 3), {"kind": np.float64}),
        ((1, 64, 40), (64, 1, 3), {"group": 64, "kind": np.float64}),
    ],
)
def test_a_conv_stays(x: tuple[int | str, ...], w: tuple[int, ...], options: dict[str, Any]) -> None:
    found = ops(conv(x, w, **options))
    assert CONV_SITE not in found and "Conv" in found


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_sums_of_halves_are_rounded_once(dtype: str, tmp_path: Path) -> None:
    """The reference's sums are of float64 (of f32 where channels are each for themselves): theirs and ours, of f32, are rounded to
    neighbours at most, and nearly always to the same number."""
    import iree.runtime as rt

    cases: tuple[tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]], ...] = (
        ((1, 128, 9, 9), (64, 128, 3, 3), {"pads": [1] * 4}),
        ((2, 32, 9, 9), (32, 4, 3, 3), {"group": 8, "bias": False}),
        ((2, 128, 40), (48, 128, 3), {"turned": True}),
        ((1, 16, 9, 9), (16, 1, 7, 7), {"group": 16, "pads": [3] * 4}),
    )
    models, path = [conv(x, w, kind=NUMPY[dtype], **options) for x, w, options in cases], tmp_path / "m.vmfb"
    inputs = [image_of(model, x) for model, (x, _, _) in zip(models, cases, strict=True)]
    compile_model(join_models(models), path, HOST, parameters="embed")
    call = rt.load_vm_flatbuffer_file(str(path), driver="local-task")[function_of(path)]
    results = call(*(x["x"] for x in inputs))
    for model, images, result in zip(models, inputs, results, strict=True):
        got = result.to_host()
        (want,) = ReferenceEvaluator(legalized(model), new_ops=[ConvSite]).run(None, images)
        assert got.dtype == want.dtype == NUMPY[dtype] and np.mean(got == want) > 0.98
        wide = want.astype(np.float64)
        unit = 2.0 * UNIT[dtype]
        np.testing.assert_allclose(got.astype(np.float64), wide, rtol=unit, atol=1e-5 * np.abs(wide).max())


@pytest.mark.parametrize("target", [parse_target("cpu-neon"), parse_target("cuda"), parse_target("vulkan"), None])
def test_other_targets_keep_their_convolutions(target: Any) -> None:
    assert ops(conv((1, 3, 40, 40), (32, 3, 3, 3)), target) == ["Conv"]


EIGHT_LANES = {
    "channels first": (((3, 20, 58), (48, 20, 3)), {"pads": [1, 1]}),
    "panels of two vectors": (((2, 5, 9, 9), (32, 5, 3, 3)), {"strides": [2, 1]}),
    "panels that do not divide": (((1, 6, 40), (43, 6, 4)), {"dilations": [3]}),
    "one vector": (((2, 7, 9, 9), (8, 7, 3, 3)), {"pads": [1] * 4}),
    "groups": (((2, 48, 20), (48, 12, 5)), {"group": 4}),
    "groups of four columns": (((2, 32, 9, 9), (32, 4, 3, 3)), {"group": 8, "pads": [1] * 4}),
    "groups of two columns": (((1, 64, 40), (128, 1, 3)), {"group": 64}),
    "channels last": (((2, 9, 11), (24, 9, 3)), {"turned": True}),
    "f16": (((1, 16, 9, 9), (16, 16, 3, 3)), {"pads": [1] * 4, "kind": np.float16}),
}


@pytest.fixture(scope="module")
def with_eight_lanes(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, np.ndarray]:
    tried = asked_for(request, "name")
    models = {name: conv(*EIGHT_LANES[name][0], **EIGHT_LANES[name][1]) for name in tried or EIGHT_LANES}
    path = tmp_path_factory.mktemp("narrow") / "m.vmfb"
    compile_model(join_models(list(models.values())), path, NARROW, parameters="embed")
    inputs = [image_of(m, EIGHT_LANES[name][0][0])["x"] for name, m in models.items()]
    return dict(zip(models, map(np.asarray, load_module(path)(*inputs)), strict=True))


@pytest.mark.skipif(bool(foreign_cpu(NARROW)), reason=foreign_cpu(NARROW))
@pytest.mark.parametrize("name", EIGHT_LANES)
def test_vectors_of_eight_lanes(name: str, with_eight_lanes: dict[str, np.ndarray]) -> None:
    shapes, options = EIGHT_LANES[name]
    model = conv(*shapes, **options)
    assert ops(model, NARROW).count(CONV_SITE) == 1
    compare(model, with_eight_lanes[name], image_of(model, shapes[0]))


@pytest.mark.parametrize(
    ("groups", "columns", "panel", "blocks"),
    [
        (1, 7, 0, 1),
        (1, 8, 8, 1),
        (1, 15, 8, 1),
        (1, 24, 24, 1),
        (1, 48, 24, 1),
        (1, 64, 16, 1),
        (4, 2, 0, 4),
        (3, 4, 0, 1),
    ],
)
def test_panels_of_eight_lanes(groups: int, columns: int, panel: int, blocks: int) -> None:
    assert panel_of(columns, NARROW) == panel and blocks_of(groups, columns, NARROW) == blocks


def test_tiles_fit_sixteen_registers() -> None:
    """The sums, the weights of a step and an element of x."""
    for columns, last in itertools.product((8, 16, 24, 32, 64), (False, True)):
        spec = WindowSpec(1, 1, 3, columns, (40, 40), (3, 3), (1, 1), (1, 1), panel_of(columns, NARROW), last=last)
        tiles, vectors = tiles_for(spec, NARROW), spec.panel // 8
        assert tiles.rows * vectors + vectors + 1 <= 16 and (last or tiles.rows % 4 == 0)


LAST: dict[str, tuple[tuple[tuple[int | str, ...], tuple[int, ...]], dict[str, Any]]] = {
    "seven by seven of three channels": (((1, 3, 23, 20), (32, 3, 7, 7)), {"strides": [2, 2], "pads": [3] * 4}),
    "256 channels": (((1, 256, 6, 6), (24, 256, 3, 3)), {"pads": [1] * 4}),
    "five channels, panels that do not divide": (((2, 5, 9, 9), (43, 5, 3, 3)), {"strides": [2, 1], "pads": [1] * 4}),
    "thirteen channels, apart": (((2, 13, 9, 11), (17, 13, 3, 2)), {"dilations": [1, 2], "bias": False}),
    "one axis, a free batch": ((("N", 6, 20), (48, 6, 3)), {"strides": [3]}),
    "three axes": (((1, 4, 5, 6, 7), (16, 4, 2, 3, 2)), {"dilations": [2, 1, 1]}),
    "one tap": (((2, 20, 5, 7), (33, 20, 1, 1)), {"strides": [1, 2]}),
    "as wide as the image, a free batch": ((("N", 3, 12, 4), (16, 3, 2, 4)), {"bias": False}),
    "f16": (((1, 16, 9, 9), (16, 16, 3, 3)), {"pads": [1] * 4, "kind": np.float16}),
}
"""Convolutions of one group."""


def with_channels_last(model: onnx.ModelProto, target: Any, *, last: bool) -> onnx.ModelProto:
    """A Conv as a site whose image has its channels last, and with `last` its result, between turns that keep what the model
    means."""
    made = onnx.ModelProto.FromString(model.SerializeToString())
    infer_types(made, {})
    g = GraphWriter(made, target=target)
    (node,) = made.graph.node
    shape, kind = conv_shape(g, node), g.kind("x")
    assert shape is not None
    x = g.add("Transpose", [g.cast("x", kind, 1, "x")], "turned", perm=[0, *range(2, len(shape.sizes) + 2), 1])
    x = pad_image(g, x, shape, "padded", last=True)
    spec = spec_of_shape(g, shape, FLOATS[kind], len(node.input) > 2, last=last, x_last=True)
    assert spec is not None and spec.x_last and spec.last == last
    y = write_site(g, spec, x, "w", "b" if spec.bias else "", "site")
    if last:
        y = g.add("Transpose", [y], "back", perm=[0, 2, 1])
    g.reshape(y, [-1 if spec.images is None else spec.images, spec.N, *spec.places], "y", out="y")
    g.replace_nodes(g.nodes)
    declare_own_nodes(made)
    return made


def of_two(shape: tuple[int | str, ...]) -> tuple[int, ...]:
    """A shape with 2 in the place of a symbol."""
    return tuple(2 if isinstance(d, str) else d for d in shape)


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("name", LAST)
def test_channels_last_mean_the_same(name: str, *, last: bool) -> None:
    """In float64, as the reference's Conv is."""
    shapes, options = LAST[name]
    model = conv(*shapes, **options)
    made, inputs = with_channels_last(model, NARROW, last=last), image_of(model, of_two(shapes[0]))
    (got,) = ReferenceEvaluator(made, new_ops=[ConvSite]).run(None, inputs)
    wide = {t.name: numpy_helper.to_array(t).astype(np.float64) for t in model.graph.initializer}
    double = conv(*shapes, **{**options, "kind": np.float64})
    (want,) = ReferenceEvaluator(double).run(None, {"x": inputs["x"].astype(np.float64), **wide})
    assert got.shape == want.shape
    unit = UNIT["f16" if got.dtype == np.float16 else "f32"]
    np.testing.assert_allclose(got, want, rtol=unit, atol=unit * np.abs(want).max())


@pytest.fixture(scope="module")
def last_compiled(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> dict[tuple[str, bool], np.ndarray]:
    tried = cases_asked_for(request, "name", "last")
    cases = [case for case in itertools.product(LAST, (False, True)) if case in tried]
    models = [with_channels_last(conv(*LAST[name][0], **LAST[name][1]), HOST, last=last) for name, last in cases]
    path = tmp_path_factory.mktemp("last") / "m.vmfb"
    compile_model(join_models(models, own_dims=True), path, HOST, parameters="embed")
    inputs = [image_of(m, of_two(LAST[name][0][0]))["x"] for m, (name, _) in zip(models, cases, strict=True)]
    return dict(zip(cases, map(np.asarray, load_module(path)(*inputs)), strict=True))


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("name", LAST)
def test_channels_last_compiled(name: str, last_compiled: dict[tuple[str, bool], np.ndarray], *, last: bool) -> None:
    shapes, options = LAST[name]
    model = conv(*shapes, **options)
    compare(model, last_compiled[name, last], image_of(model, of_two(shapes[0])))


def test_channels_last_for_another_processor(tmp_path: Path) -> None:
    """What has 16 lanes is compiled, wherever the tests run."""
    models = [with_channels_last(conv(*LAST["256 channels"][0]), WIDE, last=last) for last in (False, True)]
    compile_model(join_models(models), tmp_path / "m.vmfb", WIDE, parameters="embed")


def test_steps_of_channels_last() -> None:
    """Taps side by side and their channels are one axis: it is written out up to twelve steps, and the rest are loops."""

    def walk(channels: int, kernel: tuple[int, int], dilation: int = 1) -> Any:
        window = (20, 20), kernel, (1, 1), (dilation, dilation)
        return walk_of(WindowSpec(1, 1, channels, 32, *window, 16, x_last=True))

    of_256 = walk(256, (3, 3))
    assert of_256.loops == ((3, 20 * 256, 3 * 256 * 1), (64, 12, 12)) and len(of_256.written) == 12
    of_three = walk(3, (7, 7))
    assert of_three.loops == ((7, 60, 21), (3, 7, 7)) and of_three.written == tuple((i, i) for i in range(7))
    apart = walk(24, (3, 3), 2)
    assert apart.loops == ((3, 2 * 20 * 24, 72), (3, 2 * 24, 24), (2, 12, 12))


def test_the_batch_of_channels_last_keeps_its_name() -> None:
    shapes, options = LAST["one axis, a free batch"]
    model = conv(*shapes, **options)
    infer_types(model, {})
    g = GraphWriter(model, target=WIDE)
    shape = conv_shape(g, model.graph.node[0])
    assert shape is not None
    spec = spec_of_shape(g, shape, "f32", bias=True, last=True, x_last=True)
    assert spec is not None and g.shape(write_site(g, spec, "x", "w", "b", "site")) == ["N", 6, 48]
    grouped = conv(("N", 32, 9), (64, 8, 3), group=4)
    infer_types(grouped, {})
    g = GraphWriter(grouped, target=WIDE)
    shape = conv_shape(g, grouped.graph.node[0])
    assert shape is not None and spec_of_shape(g, shape, "f32", bias=True, last=False, x_last=True) is None
    spec = spec_of_shape(g, shape, "f32", bias=True, last=True, x_last=True)
    assert spec is not None and g.shape(write_site(g, spec, "x", "w", "b", "site")) == ["N", 7, 64]


def test_a_weight_of_the_run_stays() -> None:
    model = conv((1, 3, 40), (32, 3, 3))
    model.graph.input.append(h.make_tensor_value_info("w", 1, [32, 3, 3]))
    del model.graph.initializer[0]
    assert ops(model) == ["Conv"]


def test_nothing_writes_out_what_windows_see() -> None:
    """The image with its pads is all that is read: a window of 49 taps takes no 49 times as much."""
    text = import_model(conv((1, 16, 64, 64), (64, 16, 7, 7), pads=[3] * 4), WIDE).text
    assert "tensor<1x78400xf32>" in text and "3211264" not in text  # 16 * 70 * 70, 4096 * 784


def test_names(tmp_path: Path) -> None:
    spec = WindowSpec(1, 1, 3, 32, (9,), (3,), (1,), (1,), 32)
    assert is_linear(f"{spec.name}_tiles") and spec.product.K == 9 and spec.product.rows == 7
    with pytest.raises(ValueError, match="windows of"):
        WindowSpec(1, 1, 3, 32, (2,), (3,), (1,), (1,), 32)
    with pytest.raises(ValueError, match="panels of"):
        WindowSpec(1, 1, 3, 16, (9,), (3,), (1,), (1,), 32)
    with pytest.raises(ValueError, match="blocks"):
        WindowSpec(1, 1, 3, 16, (9,), (3,), (1,), (1,), 16, blocks=2)
    with pytest.raises(ValueError, match="channels come last"):
        WindowSpec(1, 2, 3, 32, (9,), (3,), (1,), (1,), 32, x_last=True)
    with pytest.raises(ValueError, match="depthwise"):
        WindowSpec(1, 1, 4, 16, (9,), (3,), (1,), (1,), 16, x_last=True, depthwise=True)
    with pytest.raises(ValueError, match="below one"):
        WindowSpec(1, 1, 3, 16, (9,), (3,), (0,), (1,), 16)


def test_groups_of_a_vector_do_not_see_each_other(tmp_path: Path) -> None:
    """Infinities and NaN of one group stay in its own columns."""
    model, path = conv((2, 32, 9, 9), (32, 4, 3, 3), group=8, pads=[1] * 4), tmp_path / "m.vmfb"
    inputs = image(2, 32, 9, 9)
    inputs["x"][0, 5, 4, 4], inputs["x"][1, 18] = np.inf, np.nan
    compile_model(model, path, HOST, parameters="embed")
    (got,), (want,) = load_module(path)(*inputs.values()), run(model, inputs)
    np.testing.assert_array_equal(np.isnan(got), np.isnan(want))
    assert np.isnan(want[1, 16:20]).all() and not np.isnan(want[1, :16]).any() and np.isinf(want[0]).any()
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)

"""Convolutions of bytes give onnxruntime's integers, whatever form they take on their way to IREE."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from onnx import TensorProto as T
from onnx import helper as h
from onnx import numpy_helper
from onnx.reference import ReferenceEvaluator

from onnx_fa.iree.compile import compile_model, import_model
from onnx_fa.iree.run import load_module
from onnx_fa.spec.target import foreign_cpu, parse_target
from tests.iree.test_convolutions import ConvSite, legalized
from tests.support.joined_models import join_models
from tests.support.kernel_harness import asked_for
from tests.support.ort_run import run

WIDE, AVX2, NEON, AMX, HOST = (parse_target(f"cpu-{name}") for name in ("avx512", "avx2", "neon", "amx", "host"))
KINDS: dict[Any, int] = {np.uint8: T.UINT8, np.int8: T.INT8}


@dataclass(frozen=True)
class Conv:
    """x (batch, groups * own, *sizes) by w (groups * columns, own, *kernel). `op`: ConvInteger, of which a Cast reads the sums, or
    nothing but the output; QLinearConv; Conv, of DequantizeLinear. Zero points are numbers or, where None, left out; that of w is
    for each column where `by_column`, and so is its scale. `ends`: only the ends of its type's range are drawn."""

    op: str = "ConvInteger"
    sizes: tuple[int, ...] = (9, 9)
    own: int = 6
    columns: int = 32
    kernel: tuple[int, ...] = (3, 3)
    groups: int = 1
    batch: int | str = 2
    x: type = np.uint8
    w: type = np.int8
    x_zero: int | None = 117
    w_zero: int | None = 0
    by_column: bool = False
    bias: bool = True
    reads: str = "Cast"
    ends: bool = False
    opset: int = 17
    attributes: tuple[tuple[str, Any], ...] = ()

    @property
    def shape(self) -> tuple[int, ...]:
        return (2 if isinstance(self.batch, str) else self.batch, self.groups * self.own, *self.sizes)

    def draw(self, seed: int = 1) -> dict[str, np.ndarray]:
        return {"x": self._numbers(np.random.default_rng(seed), self.x, self.shape)}

    def _numbers(self, rng: np.random.Generator, kind: Any, shape: tuple[int, ...]) -> np.ndarray:
        low, high = np.iinfo(kind).min, np.iinfo(kind).max
        drawn = rng.choice([low, high], shape) if self.ends else rng.integers(low, high + 1, shape)
        return drawn.astype(kind)

    def model(self) -> onnx.ModelProto:
        rng, columns = np.random.default_rng(0), self.groups * self.columns
        each = (columns,) if self.by_column else ()
        constants: dict[str, Any] = {
            "w": self._numbers(rng, self.w, (columns, self.own, *self.kernel)),
            "ws": rng.uniform(0.01, 0.02, each).astype(np.float32),
            "xs": np.float32(0.03),
            "ys": np.float32(1.7),
            "yz": np.array(np.iinfo(self.x).min + 100, self.x),
        }
        if self.x_zero is not None:
            constants["xz"] = np.array(self.x_zero, self.x)
        if self.w_zero is not None:
            constants["wz"] = np.full(each, self.w_zero, self.w)
        attributes: dict[str, Any] = {"group": self.groups, **dict(self.attributes)}
        kind, out = T.FLOAT, "y"
        x_zero, w_zero = ("xz" if self.x_zero is not None else ""), ("wz" if self.w_zero is not None else "")
        if self.op == "ConvInteger":
            given = ["x", "w", x_zero, w_zero]
            while not given[-1]:
                given.pop()
            nodes = [h.make_node("ConvInteger", given, ["i"], "conv", **attributes)]
            if self.reads == "Cast":
                nodes.append(h.make_node("Cast", ["i"], ["c"], to=T.FLOAT))
                nodes.append(h.make_node("Mul", ["c", "xs"], ["y"]))
            else:
                kind, nodes[0].output[0] = T.INT32, "y"
        elif self.op == "QLinearConv":
            given = ["x", "xs", "xz", "w", "ws", "wz", "ys", "yz"]
            if self.bias:
                constants["b"] = rng.integers(-10000, 10000, columns).astype(np.int32)
                given.append("b")
            nodes, kind = [h.make_node("QLinearConv", given, ["y"], "conv", **attributes)], KINDS[self.x]
        else:
            given = ["xf", "wf"]
            nodes = [
                h.make_node("DequantizeLinear", [i for i in ("x", "xs", x_zero) if i], ["xf"]),
                h.make_node("DequantizeLinear", [i for i in ("w", "ws", w_zero) if i], ["wf"], axis=0),
            ]
            if self.bias:
                constants |= {"b": rng.integers(-10000, 10000, columns).astype(np.int32), "bs": np.float32(0.0005)}
                nodes.append(h.make_node("DequantizeLinear", ["b", "bs"], ["bf"]))
                given.append("bf")
            nodes.append(h.make_node("Conv", given, ["y"], "conv", **attributes))
        used = {name for node in nodes for name in node.input}
        shape = [self.batch, *self.shape[1:]]
        graph = h.make_graph(
            nodes,
            "g",
            [h.make_tensor_value_info("x", KINDS[self.x], shape)],
            [h.make_tensor_value_info(out, kind, [None] * len(shape))],
            [numpy_helper.from_array(np.asarray(a), name) for name, a in constants.items() if name in used],
        )
        return h.make_model(
            graph, opset_imports=[h.make_opsetid("", 19 if self.op == "Conv" else self.opset)], ir_version=9
        )

    def compare(self, got: np.ndarray, inputs: dict[str, np.ndarray]) -> None:
        for optimise in (False, True):
            (want,) = run(self.model(), inputs, optimise=optimise)
            assert got.shape == want.shape and got.dtype == want.dtype
            if self.op == "Conv":
                np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5 * max(1.0, float(np.abs(want).max())))
            else:
                np.testing.assert_array_equal(got, want)


def ops(conv: Conv, target: Any = AMX) -> set[str]:
    return {n.op_type for n in legalized(conv.model(), target).graph.node}


PATCHES = Conv(sizes=(12, 8), kernel=(4, 4), attributes=(("strides", [4, 4]),))
LARGE = Conv(own=130, columns=16, kernel=(3, 3), batch=1, sizes=(5, 5), ends=True)
STRIDED_GROUPS = Conv(groups=3, own=3, columns=1, kernel=(1,), sizes=(6,), batch="N", attributes=(("strides", [2]),))
CASES = {
    "patches": PATCHES,
    "patches, signed": replace(PATCHES, x=np.int8, x_zero=-3),
    "patches, no zeros": replace(PATCHES, x_zero=None, w_zero=None),
    "patches, weight without sign": replace(PATCHES, w=np.uint8, w_zero=128),
    "patches, any zero": replace(PATCHES, w=np.uint8, w_zero=77),
    "patches, integers": replace(PATCHES, reads=""),
    "patches, batch of the run": replace(PATCHES, batch="N"),
    "patches, many columns": replace(PATCHES, columns=80, ends=True),
    "overlapping": Conv(),
    "overlapping, integers": Conv(reads="", w=np.uint8, w_zero=3),
    "pads": Conv(attributes=(("pads", [1, 0, 2, 1]), ("strides", [2, 1])), x_zero=255),
    "auto_pad": Conv(attributes=(("auto_pad", "SAME_UPPER"), ("strides", [2, 2]))),
    "dilations": Conv(attributes=(("dilations", [2, 1]), ("kernel_shape", [3, 3]))),
    "one axis": Conv(sizes=(30,), kernel=(5,), batch="N"),
    "three axes": Conv(sizes=(5, 4, 6), kernel=(2, 2, 2), columns=16),
    "groups": Conv(groups=3, own=4, columns=16, attributes=(("pads", [1] * 4),)),
    "depthwise": Conv(groups=8, own=1, columns=1, attributes=(("pads", [1] * 4),)),
    "narrow": Conv(columns=5),
    "large": LARGE,
    "large, integers": replace(LARGE, reads="", x=np.int8, x_zero=127),
    "QLinear": Conv("QLinearConv"),
    "QLinear, signed": Conv("QLinearConv", x=np.int8, x_zero=5, w=np.int8, by_column=True),
    "QLinear, no bias": Conv("QLinearConv", bias=False, by_column=True),
    "QLinear patches": replace(PATCHES, op="QLinearConv", by_column=True),
    "QLinear large": replace(LARGE, op="QLinearConv"),
    "QLinear groups": Conv("QLinearConv", groups=8, own=1, columns=1, by_column=True),
    "dequantised": Conv("Conv", attributes=(("pads", [1] * 4),)),
    "dequantised by column": Conv("Conv", by_column=True, x=np.int8, x_zero=3),
    "dequantised, no zeros": Conv("Conv", x_zero=None, w_zero=None, bias=False),
    "dequantised patches": replace(PATCHES, op="Conv", by_column=True),
    "dequantised patches, no bias": replace(PATCHES, op="Conv", bias=False, w=np.uint8, w_zero=128),
    "dequantised depthwise": Conv("Conv", groups=8, own=1, columns=1, by_column=True),
}
BYTES = {name for name in CASES if "patches" in name} - {"patches, any zero"}


@pytest.mark.parametrize("name", CASES)
def test_form(name: str) -> None:
    """A product of bytes where windows lie side by side, floats elsewhere, and no convolution of integers."""
    found = ops(CASES[name])
    assert not found & {"ConvInteger", "QLinearConv"}
    assert ("MatMulInteger" in found) == (name in BYTES)
    on_avx2 = ops(CASES[name], AVX2)
    assert not on_avx2 & {"ConvInteger", "QLinearConv"} and ("MatMulInteger" in on_avx2) == (name in BYTES)
    assert not ops(CASES[name], NEON) & {"ConvInteger", "QLinearConv", "MatMulInteger"}
    if name in BYTES:
        assert import_model(CASES[name].model(), AMX).text.count("util.call @linear_") == 1


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("target", [AMX, AVX2, NEON], ids=["amx", "avx2", "neon"])
def test_numbers(name: str, target: Any) -> None:
    inputs = CASES[name].draw()
    (got,) = ReferenceEvaluator(legalized(CASES[name].model(), target), new_ops=[ConvSite]).run(None, inputs)
    CASES[name].compare(got, inputs)


COMPILED = [
    *("patches", "patches, signed", "pads", "groups", "large, integers", "QLinear, signed", "QLinear patches"),
    *("dequantised by column", "dequantised patches", "depthwise", "QLinear large"),
]
BY_AVX2 = ["patches", "pads", "large, integers", "QLinear, signed"]


def side_by_side(cases: Mapping[str, Conv], target: Any, folder: Path) -> dict[str, np.ndarray]:
    """What the cases give in IREE, compiled as one model for each opset."""
    results: dict[str, np.ndarray] = {}
    by_opset: dict[int, list[str]] = {}
    for name, case in cases.items():
        by_opset.setdefault(case.model().opset_import[0].version, []).append(name)
    for opset, of in by_opset.items():
        model = join_models([cases[name].model() for name in of])
        compile_model(model, folder / f"{opset}.vmfb", target, parameters="embed")
        got = load_module(folder / f"{opset}.vmfb")(*(x for name in of for x in cases[name].draw().values()))
        results |= dict(zip(of, got, strict=True))
    return results


@pytest.fixture(scope="module")
def compiled(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, np.ndarray]:
    names = asked_for(request, "name") or COMPILED
    return side_by_side({name: CASES[name] for name in names}, HOST, tmp_path_factory.mktemp("convolutions"))


@pytest.fixture(scope="module")
def compiled_by_avx2(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, np.ndarray]:
    if why := foreign_cpu(AVX2):
        pytest.skip(why)
    names = asked_for(request, "name") or BY_AVX2
    return side_by_side({name: CASES[name] for name in names}, AVX2, tmp_path_factory.mktemp("convolutions"))


@pytest.mark.parametrize("name", COMPILED)
def test_compiled(name: str, compiled: dict[str, np.ndarray]) -> None:
    judge(CASES[name], compiled[name])


@pytest.mark.parametrize("name", BY_AVX2)
def test_compiled_for_avx2(name: str, compiled_by_avx2: dict[str, np.ndarray]) -> None:
    judge(CASES[name], compiled_by_avx2[name])


def judge(conv: Conv, got: np.ndarray) -> None:
    # Types of a compiler have no sign.
    conv.compare(np.asarray(got).view(conv.x) if conv.op == "QLinearConv" else np.asarray(got), conv.draw())


@pytest.mark.parametrize(
    ("conv", "target"),
    [
        (Conv(), parse_target("cuda")),
        (Conv("QLinearConv"), parse_target("cuda")),
        (Conv("QLinearConv", opset=10), AMX),
        (replace(LARGE, opset=12), AMX),  # parts need a Slice
        (replace(LARGE, groups=2), AMX),
        (STRIDED_GROUPS, AMX),  # as floats, these have no bound on the stack
        (
            Conv(own=1, kernel=(24, 24), sizes=(30, 30), x_zero=0, ends=True),
            AMX,
        ),  # one channel's sums are larger than f32 holds
    ],
)
def test_what_stays(conv: Conv, target: Any) -> None:
    assert ops(conv, target) & {"ConvInteger", "QLinearConv"}


def test_a_weight_of_the_run_stays() -> None:
    model = Conv().model()
    model.graph.input.append(h.make_tensor_value_info("w", T.INT8, [32, 6, 3, 3]))
    model.graph.initializer.remove(next(t for t in model.graph.initializer if t.name == "w"))
    assert "ConvInteger" in {n.op_type for n in legalized(model, AMX).graph.node}


def test_sums_of_the_bound_are_whole() -> None:
    """255 times 16448 weights of 4 and 1 is 2^24 - 1, which one Conv may sum; 255 more need two."""
    for more, parts in ((1, 1), (2, 2)):
        weight = np.full((16, 257, 64), 4, np.int8)
        weight[:, -1, -1] = 4 + more
        model = Conv(own=257, columns=16, kernel=(64,), sizes=(70,), batch=1, x_zero=0).model()
        tensor = next(t for t in model.graph.initializer if t.name == "w")
        tensor.CopyFrom(numpy_helper.from_array(weight, "w"))
        made = legalized(model, AMX)
        assert sum(n.op_type in ("Conv", "ConvSite") for n in made.graph.node) == parts
        x = np.full((1, 257, 70), 255, np.uint8)
        (got,) = ReferenceEvaluator(made, new_ops=[ConvSite]).run(None, {"x": x})
        (want,) = run(model, {"x": x})
        np.testing.assert_array_equal(got, want)


@st.composite
def convolutions(draw: st.DrawFn) -> Conv:
    axes, small = draw(st.integers(1, 2)), st.integers(1, 3)
    sizes, kernel, strides = (
        tuple(draw(n) for _ in range(axes)) for n in (st.integers(2, 9), st.integers(1, 4), small)
    )
    pads = [draw(st.integers(0, 2)) for _ in range(2 * axes)] if draw(st.booleans()) else [0] * 2 * axes
    if draw(st.booleans()):
        strides, pads, sizes = kernel, [0] * 2 * axes, tuple(k * draw(small) for k in kernel)
    assume(all(s + pads[i] + pads[axes + i] >= kernel[i] for i, s in enumerate(sizes)))
    x, w = draw(st.sampled_from([np.uint8, np.int8])), draw(st.sampled_from([np.uint8, np.int8]))
    op = draw(st.sampled_from(["ConvInteger", "QLinearConv", "Conv"]))
    if x is np.int8 and op != "Conv":
        w = np.int8  # onnxruntime has no others

    def zero(kind: type) -> st.SearchStrategy[int | None]:
        some = st.integers(int(np.iinfo(kind).min), int(np.iinfo(kind).max))
        return some if op == "QLinearConv" else st.one_of(st.none(), some)

    return Conv(
        op,
        sizes,
        draw(small),
        draw(st.sampled_from([1, 2, 16, 33, 48])),
        kernel,
        draw(small),
        draw(st.sampled_from([1, 3, "N"])),
        x,
        w,
        draw(zero(x)),
        draw(zero(w)) if w is np.uint8 or op == "Conv" else 0,
        op != "ConvInteger" and draw(st.booleans()),
        draw(st.booleans()),
        draw(st.sampled_from(["Cast", ""])),
        draw(st.booleans()),
        attributes=(("strides", list(strides)), ("pads", pads)),
    )


@settings(max_examples=120, deadline=None)
@given(convolutions())
def test_random_convolutions(conv: Conv) -> None:
    inputs, made = conv.draw(), legalized(conv.model(), AMX)
    left = {n.op_type for n in made.graph.node} & {"ConvInteger", "QLinearConv"}
    apart = max(dict(conv.attributes).get("strides", [1])) > 1 and set(conv.kernel) == {1}
    if isinstance(conv.batch, str) and (conv.own == 1 or apart) and conv.groups > 1:  # IREE would not compile another
        assert left == {conv.op} - {"Conv"}
        return
    assert not left
    (got,) = ReferenceEvaluator(made, new_ops=[ConvSite]).run(None, inputs)
    conv.compare(got, inputs)


UNEVEN = ("pads", [0, 1, 0, 2])
SMALL_BATCHES = (
    Conv(own=1, columns=1, groups=3, kernel=(1, 1), batch="N", w=np.uint8, w_zero=5, attributes=(UNEVEN,)),
    Conv("QLinearConv", own=1, columns=1, groups=3, kernel=(2, 2), batch="N", attributes=(("auto_pad", "SAME_LOWER"),)),
    Conv(batch="N", attributes=(("pads", [1] * 4),)),
    Conv(batch="N", sizes=(4, 4), own=1, columns=1, groups=2, kernel=(1, 2), attributes=(("strides", [1, 2]),)),
    Conv("Conv", (4, 4), 1, 1, (1, 2), 2, "N", attributes=(("strides", [1, 2]),)),
)


def hold(convs: Iterable[Conv], folder: Path) -> None:
    """Side by side, as a compilation of each would take five times as long."""
    cases = {str(i): conv for i, conv in enumerate(convs)}
    for name, got in side_by_side(cases, HOST, folder).items():
        judge(cases[name], got)


def test_small_and_free_batches_compiled(tmp_path: Path) -> None:
    hold([*SMALL_BATCHES, STRIDED_GROUPS], tmp_path)


@settings(max_examples=2, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(convolutions(), min_size=8, max_size=8))
def test_random_convolutions_compiled(tmp_path_factory: Any, pytestconfig: pytest.Config, drawn: list[Conv]) -> None:
    """Four of them, and all with --whole. Those that Hypothesis draws first are all small, and one."""
    tried = drawn if pytestconfig.getoption("whole") else drawn[:4]
    hold({str(conv): conv for conv in tried}.values(), tmp_path_factory.mktemp("conv"))


ALONE = Conv(own=1, columns=1, groups=3, kernel=(2, 2), batch="N", reads="", opset=10, attributes=(UNEVEN,))
EARLIER = {
    "bytes": ALONE,
    "signed": replace(ALONE, x=np.int8, x_zero=-128, ends=True),
    "no zero": replace(ALONE, x_zero=None, w_zero=None),
    "one axis": replace(ALONE, sizes=(7,), kernel=(3,), attributes=(("pads", [2, 0]), ("strides", [2]))),
    "same": replace(ALONE, attributes=(("auto_pad", "SAME_UPPER"),)),
    "QLinear": Conv("QLinearConv", opset=10, attributes=(UNEVEN,), x_zero=255, ends=True),
}
"""Of an opset whose Pad takes floats alone; they stay convolutions of integers with other pads before an axis than behind it."""


@pytest.mark.parametrize("name", EARLIER)
def test_pads_before_integers_had_them(name: str) -> None:
    made = legalized(EARLIER[name].model(), HOST)
    (node,) = (n for n in made.graph.node if n.op_type in ("ConvInteger", "QLinearConv"))
    assert not any(next(a for a in node.attribute if a.name == "pads").ints)
    onnx.checker.check_model(made)
    (got,) = ReferenceEvaluator(made).run(None, EARLIER[name].draw())
    EARLIER[name].compare(got, EARLIER[name].draw())


def test_pads_before_integers_had_them_compiled(tmp_path: Path) -> None:
    for name, got in side_by_side(EARLIER, HOST, tmp_path).items():
        judge(EARLIER[name], got)

"""A model of bf16 in f32: the same numbers for every kind of operator, and no model where that cannot be."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import pytest
from onnx import TensorProto as T
from onnx import helper as h
from onnx import numpy_helper as nh
from onnx.reference import ReferenceEvaluator

from onnx_fa.errors import UnsupportedError
from onnx_fa.graph import io
from onnx_fa.verifier.runners import Runner
from onnx_fa.verifier.widened import holds_bf16, widened

BF16 = np.dtype(ml_dtypes.bfloat16)
LOWEST = np.array(ml_dtypes.finfo(ml_dtypes.bfloat16).min, BF16)
THIRDS = (np.arange(12).reshape(3, 4) / 3 - 1.7).astype(BF16)


def model(text: str, opset: int = 19, **tensors: Any) -> ir.Model:
    """Of the text behind `agraph`, with initializers; those that are no f32 already are made bf16."""
    proto = onnx.parser.parse_model(f'<ir_version: 9, opset_import: ["": {opset}, "my": 1]> agraph {text}')
    for name, value in tensors.items():
        array = np.asarray(value)
        proto.graph.initializer.append(nh.from_array(array if array.dtype == np.float32 else array.astype(BF16), name))
    return ir.from_proto(proto)


def in_f32(given: ir.Model, folder: Path, **feeds: Any) -> dict[str, Any]:
    """What the model makes in onnxruntime in f32; it does not refuse that."""
    runner = Runner(given, folder / "m.onnx")
    assert runner.in_f32 and not runner.evaluated, runner.refused
    return runner(feeds)


EXACT = {
    "an integer": ("(int64[3] i) => (bfloat16[3] y) { y = Cast<to = 16>(i) }", {}),
    "positions counted": (
        """(int64[3] i) => (bfloat16[3] y) {
        a = Cast<to = 16>(i)
        y = Add(a, one)
    }""",
        {"one": 1},
    ),
    "like another": ("(int64[3] i, bfloat16[1] n) => (bfloat16[3] y) { y = CastLike(i, n) }", {}),
    "f32's lowest": (
        """(bool[3] b) => (bfloat16[3] y) {
        m = Where(b, zero, low)
        y = Cast<to = 16>(m)
    }""",
        {"zero": np.float32(0), "low": np.finfo(np.float32).min},
    ),
    "its own lowest": ("(bool[3] b) => (bfloat16[3] y) { y = Where(b, zero, low) }", {"zero": 0, "low": LOWEST}),
    "the lowest twice": (
        """(bool[3] b) => (bfloat16[3] y) {
        m = Where(b, zero, low)
        y = Add(m, m)
    }""",
        {"zero": 0, "low": LOWEST},
    ),
    "f32 given": ("(float[3, 4] x) => (bfloat16[3, 4] y) { y = Cast<to = 16>(x) }", {}),
    "a rounding meant": (
        """(float[3, 4] x) => (float[3, 4] y, bfloat16[4, 3] a) {
        t = Transpose<perm = [1, 0]>(x)
        a = Cast<to = 16>(t)
        b = Transpose<perm = [1, 0]>(a)
        y = Cast<to = 1>(b)
    }""",
        {},
    ),
    "a scale of a size": (
        """(bfloat16[3, 4] x) => (bfloat16 y) {
        s = Shape(x)
        i = Constant<value_int = 0>()
        n = Gather(s, i)
        a = Cast<to = 16>(n)
        r = Sqrt(a)
        y = Div(one, r)
    }""",
        {"one": 1},
    ),
    "rotations": (
        """(int64[3] i) => (bfloat16[3, 4] y) {
        axis = Constant<value = int64[1] {1}>()
        p = Cast<to = 1>(i)
        c = Unsqueeze(p, axis)
        w = MatMul(c, steps)
        s = Cos(w)
        y = Cast<to = 16>(s)
    }""",
        {"steps": np.array([[1, 0.1, 0.01, 0.001]], np.float32)},
    ),
    "a filled shape": (
        """(int64[2] s) => (bfloat16[A, B] y) { y = ConstantOfShape<value = bfloat16[1] {3}>(s) }""",
        {},
    ),
    "an identity": ("(int64[3, 4] k) => (bfloat16[3, 4] y) { y = EyeLike<dtype = 16>(k) }", {}),
    "a tensor of a node": (
        """(bfloat16[2] n) => (bfloat16[2] y) {
        c = Constant<value = bfloat16[2] {7, -9}>()
        y = Max(n, c)
    }""",
        {},
    ),
    "masks": ("(bfloat16[3, 4] x) => (bool[3, 4] y) { y = Greater(x, edge) }", {"edge": 0.3}),
    "moved numbers": (
        """(bfloat16[3, 4] x) => (bfloat16[4, 6] y, bfloat16[3, 2] z) {
        t = Transpose<perm = [1, 0]>(x)
        y = Concat<axis = 1>(t, t)
        z, rest = Split<axis = 1, num_outputs = 2>(x)
    }""",
        {},
    ),
    "bytes": (
        """(bfloat16[3, 4] x) => (int8[3, 4] q, bfloat16[3, 4] y) {
        q = QuantizeLinear(x, step, none)
        y = DequantizeLinear(q, step, none)
    }""",
        {"step": 0.25},
    ),
    "a branch": (
        """(bool c, int64[3] i) => (bfloat16[3] y) {
        y = If<then_branch = one () => (bfloat16[3] a) { a = Cast<to = 16>(i) },
               else_branch = two () => (bfloat16[3] b) { b = Constant<value = bfloat16[3] {5, 6, 7}>() }>(c)
    }""",
        {},
    ),
    "a sequence": (
        """(bfloat16[3, 4] x) => (bfloat16[3, 4] y) {
        i = Constant<value_int = 1>()
        e = SequenceEmpty<dtype = 16>()
        s = SequenceInsert(e, x)
        t = SequenceInsert(s, x)
        y = SequenceAt(t, i)
    }""",
        {},
    ),
}


@pytest.mark.parametrize("kind", EXACT)
def test_no_number_changes(kind: str, tmp_path: Path) -> None:
    """What no sum precedes is what the model says, to the last bit, in the ops that onnx evaluates exactly."""
    text, tensors = EXACT[kind]
    given = model(text, **tensors)
    if kind == "bytes":
        zero = ir.Value(name="none", const_value=ir.tensor(np.int8(3), name="none"))
        node = next(n for n in given.graph if n.op_type == "QuantizeLinear")
        old = node.inputs[2]
        assert old is not None
        given.graph.register_initializer(zero)
        ir.convenience.replace_all_uses_with(old, zero)
    known: Mapping[str, Any] = {
        "i": np.array([3, 257, 12345]),
        "n": np.array([8, -8], BF16)[: 2 - (kind == "like another")],
        "b": np.array([True, False, True]),
        "x": THIRDS.astype(np.float32) / 3 if "float[3, 4] x" in text.replace("bfloat", "") else THIRDS,
        "s": np.array([2, 3]),
        "k": np.zeros((3, 4), np.int64),
        "c": np.array(True),
    }
    feeds = {str(v.name): known[str(v.name)] for v in given.graph.inputs}
    names = [str(o.name) for o in given.graph.outputs]
    with np.errstate(all="ignore"):
        want = dict(zip(names, ReferenceEvaluator(ir.to_proto(given)).run(None, feeds), strict=True))
    got = in_f32(given, tmp_path, **feeds)
    for name in names:
        wide = want[name].astype(np.float32) if want[name].dtype == BF16 else want[name]
        np.testing.assert_array_equal(got[name], wide)
        assert got[name].dtype == wide.dtype


def test_arithmetic_on_data_is_not_rounded(tmp_path: Path) -> None:
    """A product and what follows it, casts included, as in f32; a product of what is given in f32 has it rounded first."""
    text = """(float[3, 4] x) => (float[3, 5] y, bfloat16[3, 5] z) {
        a = Cast<to = 16>(x)
        p = MatMul(a, w)
        f = Cast<to = 1>(p)
        g = Mul(f, f)
        z = Cast<to = 16>(g)
        y = Cast<to = 1>(z)
    }"""
    rng = np.random.default_rng(0)
    x, w = rng.standard_normal((3, 4), np.float32), rng.standard_normal((4, 5)).astype(BF16)
    got = in_f32(model(text, w=w), tmp_path, x=x)
    want = (x.astype(BF16).astype(np.float64) @ w.astype(np.float64)) ** 2
    for name in ("y", "z"):
        np.testing.assert_allclose(got[name], want, rtol=1e-6)
    assert np.abs(want - want.astype(BF16).astype(np.float64)).max() > 1e-3


def test_rounded_after_every_operator(tmp_path: Path) -> None:
    text = "(bfloat16[3, 4] x) => (bfloat16[3, 5] y) { p = MatMul(x, w) y = Mul(p, p) }"
    w = np.random.default_rng(0).standard_normal((4, 5)).astype(BF16)
    product = (THIRDS.astype(np.float64) @ w.astype(np.float64)).astype(BF16)
    want = (product.astype(np.float64) ** 2).astype(BF16).astype(np.float32)
    given = model(text, w=w)
    got = Runner(given, tmp_path / "m.onnx", rounded=True)({"x": THIRDS})["y"]
    np.testing.assert_array_equal(got, want)
    assert not np.array_equal(in_f32(given, tmp_path, x=THIRDS)["y"], want)


def test_a_loop_carries_f32(tmp_path: Path) -> None:
    """1 + 1/256 is 1 in bf16: what a Loop carries is data, of which no sum is rounded. Its counter is an integer."""
    text = """(int64 n, bool go, bfloat16[1] x) => (bfloat16[1] y) {
        y = Loop<body = b (int64 i, bool c, bfloat16[1] v) => (bool d, bfloat16[1] w) {
            d = Identity(c)
            w = Add(v, part)
        }>(n, go, x)
    }"""
    got = in_f32(model(text, part=1 / 256), tmp_path, n=np.array(4), go=np.array(True), x=np.ones(1, BF16))
    assert got["y"] == np.float32(1 + 4 / 256)


def test_functions(tmp_path: Path) -> None:
    """They are inlined, with their attributes; the caller's model keeps its own."""
    proto = onnx.parser.parse_model("""<ir_version: 9, opset_import: ["": 19, "my": 1]>
    agraph (int64[3] i, bfloat16[3] x) => (bfloat16[3] y) {
        a = my.narrow<kind = 16>(i)
        y = my.sum(a, x)
    }
    <domain: "my", opset_import: ["": 19]> narrow <kind> (i) => (o) { o = Cast<to: int = @kind>(i) }
    <domain: "my", opset_import: ["": 19]> sum (a, x) => (o) { o = Add(a, x) }
    <domain: "my", opset_import: ["": 19]> unused (a) => (o) { o = Cast<to = 16>(a) }""")
    given = ir.from_proto(proto)
    before = ir.to_proto(given).SerializeToString()
    got = in_f32(given, tmp_path, i=np.array([257, 1, 2]), x=np.full(3, 1 / 256, BF16))
    np.testing.assert_array_equal(got["y"], np.float32([256 + 1 / 256, 1 + 1 / 256, 2 + 1 / 256]))
    assert ir.to_proto(given).SerializeToString() == before and len(given.functions) == 3


@pytest.mark.parametrize(
    "line",
    [
        "y = LayerNormalization<stash_type = 16>(x, g)",
        "y = RMSNormalization<stash_type = 16>(x, g)",
        "a = Unsqueeze(x, i) y = Attention<softmax_precision = 16, q_num_heads = 2, kv_num_heads = 2>(a, a, a)",
        "r = RandomNormal<dtype = 16, shape = [3, 4]>() n = Mul(r, none) y = Add(x, n)",
        "r = RandomUniformLike<dtype = 16>(x) n = Mul(r, none) y = Add(x, n)",
        "b = Bernoulli<dtype = 16>(x1) n = Mul(b, none) y = Add(x, n)",
        "q = QuantizeLinear<precision = 16, output_dtype = 3>(x, g1) d = DequantizeLinear<output_dtype = 16>(q, f1) y = Add(d, x)",
    ],
)
def test_types_that_attributes_name(line: str, tmp_path: Path) -> None:
    """onnxruntime takes the operator, and none of its types is bf16."""
    text = f"(bfloat16[3, 4] x, float[3, 4] x1) => (bfloat16 y) {{ i = Constant<value = int64[1] {{0}}>() {line} }}"
    given = model(text, 21 if "none" in line else 23, g=np.ones(4), none=0, g1=0.25, f1=np.float32(0.25))
    wide = widened(given)
    assert not any(
        a.type == ir.AttributeType.INT and a.as_int() == 16 for n in wide.graph for a in n.attributes.values()
    )
    given.graph.outputs[0].shape = None
    got = in_f32(given, tmp_path, x=THIRDS, x1=np.full((3, 4), 0.5, np.float32))["y"]
    assert np.isfinite(got).all() and got.dtype == np.float32


def test_another_operators_number_is_no_type() -> None:
    given = model("(bfloat16[3] x) => (bfloat16[3] y) { y = my.Op<to = 16, dtype = 16>(x) }")
    assert [a.as_int() for n in widened(given).graph for a in n.attributes.values()] == [16, 16]


def test_weights_on_disk(tmp_path: Path) -> None:
    weight = np.random.default_rng(0).standard_normal((4, 300)).astype(BF16)
    given = model("(bfloat16[3, 4] x) => (bfloat16[3, 300] y) { y = MatMul(x, w) }", w=weight)
    onnx.save(ir.to_proto(given), tmp_path / "w.onnx", save_as_external_data=True, location="w.bin", size_threshold=0)
    (tmp_path / "other").mkdir()
    loaded = io.load(tmp_path / "w.onnx")
    got = in_f32(loaded, tmp_path / "other", x=THIRDS)["y"]
    np.testing.assert_allclose(got, THIRDS.astype(np.float64) @ weight.astype(np.float64), rtol=1e-5, atol=1e-6)
    assert isinstance(loaded.graph.initializers["w"].const_value, ir.ExternalTensor)


def test_bits_are_not_widened(tmp_path: Path) -> None:
    """Bits of bf16 as integers: in f32 they are others. onnx evaluates the model as it is, and the note says so."""
    nodes = [h.make_node("BitCast", ["x"], ["b"], to=T.INT16), h.make_node("MatMul", ["x", "w"], ["y"])]
    inputs = [h.make_tensor_value_info("x", T.BFLOAT16, [3, 4])]
    outputs = [h.make_tensor_value_info("b", T.INT16, [3, 4]), h.make_tensor_value_info("y", T.BFLOAT16, [3, 3])]
    graph = h.make_graph(nodes, "g", inputs, outputs, [nh.from_array(np.ones((4, 3), BF16), "w")])
    given = ir.from_proto(h.make_model(graph, opset_imports=[h.make_opsetid("", 26)], ir_version=13))
    with pytest.raises(UnsupportedError, match="takes bits of bfloat16"):
        widened(given)
    runner = Runner(given, tmp_path / "m.onnx")
    assert runner.evaluated and not runner.in_f32
    assert "in onnx.reference" in runner.note("it") and "takes bits of bfloat16" in runner.note("it")
    got = runner({"x": THIRDS})
    np.testing.assert_array_equal(got["b"], THIRDS.view(np.int16))
    assert got["y"].dtype == BF16


def test_who_is_widened(tmp_path: Path) -> None:
    """Not a model that onnxruntime takes, nor one that it refuses for something else."""
    taken = model("(float[3] x) => (float[3] y) { a = Cast<to = 16>(x) y = Cast<to = 1>(a) }")
    runner = Runner(taken, tmp_path / "m.onnx")
    assert holds_bf16(taken) and not runner.refused and not runner.in_f32
    other = model("(float[3] x) => (float[3] y) { a = StringNormalizer(x) y = Identity(x) }")
    assert not holds_bf16(other)
    inside = model(
        "(float[3, 4] x) => (float[3, 5] y) { a = Cast<to = 16>(x) b = MatMul(a, w) y = Cast<to = 1>(b) }",
        w=np.ones((4, 5)),
    )
    runner = Runner(inside, tmp_path / "m.onnx")
    assert runner.in_f32 and "float32 (bfloat16 widened) in onnxruntime" in runner.note("original")

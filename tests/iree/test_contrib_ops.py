"""Operators of onnxruntime's own domain, written out for IREE: the same results in onnxruntime, with every attribute."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto as T
from onnx import helper as h
from onnx import numpy_helper as nh
from onnx.reference import ReferenceEvaluator

from onnx_fa.errors import ModelError
from onnx_fa.graph.ops import STANDARD
from onnx_fa.iree.inference import infer_types
from onnx_fa.iree.legalise.rules import legalize
from tests.support.ort_run import assert_same, run

TOLERANCE = {np.dtype(np.float32): 2e-6, np.dtype(np.float16): 2e-3}
Array = np.ndarray[Any, np.dtype[Any]]


def numbers(*shape: int, dtype: Any = np.float32) -> Array:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(dtype)


def one_node(
    op: str, arrays: Sequence[Array | None], outputs: Sequence[int], domain: str = "com.microsoft", **attrs: Any
) -> tuple[onnx.ModelProto, dict[str, Array]]:
    """A model of one node, and what it is fed. `outputs` are the ranks of its results, 0 for one that is left out."""
    given = {f"x{i}": a for i, a in enumerate(arrays) if a is not None}
    names = [f"x{i}" if a is not None else "" for i, a in enumerate(arrays)]
    first = next(a for a in arrays if a is not None and a.dtype.kind == "f")
    kind = h.np_dtype_to_tensor_dtype(first.dtype)
    made = [f"y{i}" if rank else "" for i, rank in enumerate(outputs)]
    node = h.make_node(op, names, made, name="node", domain=domain, **attrs)
    inputs = [h.make_tensor_value_info(n, h.np_dtype_to_tensor_dtype(a.dtype), a.shape) for n, a in given.items()]
    results = []
    for name, rank in zip(made, outputs, strict=True):
        counts = op == "EmbedLayerNormalization" and name == "y1"
        dims = [f"{name}_{i}" for i in range(rank)]
        results += [h.make_tensor_value_info(name, T.INT32 if counts else kind, dims)] if name else []
    opsets = [h.make_opsetid("", 17), h.make_opsetid("com.microsoft", 1)]
    return h.make_model(h.make_graph([node], "g", inputs, results), opset_imports=opsets, ir_version=10), given


def written(model: onnx.ModelProto) -> onnx.ModelProto:
    typed = onnx.ModelProto()
    typed.CopyFrom(model)
    infer_types(typed, {})
    return legalize(typed)


ROWS = (2, 3, 8)
IDS = np.array([[1, 4, 0], [2, 2, 6]], np.int32)
MASK = np.array([[1, 1, 0], [1, 0, 0]], np.int32)
W, V = numbers(8), numbers(9)[:8]
TABLES = [numbers(7, 8), numbers(5, 8), numbers(2, 8), W, V]
CASES: dict[str, tuple[Any, ...]] = {
    "SimplifiedLayerNormalization": ([numbers(*ROWS), W], [3], "", {"axis": -1, "epsilon": 1e-3}),
    "SimplifiedLayerNormalization, f16": ([numbers(*ROWS, dtype=np.float16), W.astype(np.float16)], [3], "", {}),
    "SkipLayerNormalization": ([numbers(*ROWS), numbers(3, 2, 8).reshape(ROWS), W, V], [3]),
    "SkipLayerNormalization, all": (
        [numbers(*ROWS), numbers(1, 3, 8), W, V, V * 2],
        [3, 0, 0, 3],
        None,
        {"epsilon": 0.1},
    ),
    "SkipLayerNormalization, no beta": ([numbers(*ROWS), numbers(*ROWS), W], [3, 0, 0, 3]),
    "SkipSimplifiedLayerNormalization": ([numbers(*ROWS), numbers(*ROWS), W], [3, 0, 0, 3], None, {"epsilon": 1e-5}),
    "SkipSimplifiedLayerNormalization, bias": ([numbers(*ROWS), numbers(*ROWS), W, V], [3, 0, 0, 3]),
    "EmbedLayerNormalization": ([IDS, MASK, *TABLES], [3, 1]),
    "EmbedLayerNormalization, mask": ([IDS, MASK, *TABLES, MASK], [3, 1, 3], None, {"epsilon": 0.5}),
    "EmbedLayerNormalization, positions": ([IDS, None, *TABLES[:2], None, W, V, None, IDS[:, ::-1].copy() % 5], [3, 1]),
    "Gelu": ([numbers(*ROWS)], [3]),
    "BiasGelu": ([numbers(*ROWS), W], [3]),
    "FastGelu": ([numbers(*ROWS)], [3]),
    "FastGelu, bias": ([numbers(*ROWS), W], [3]),
    "QuickGelu": ([numbers(*ROWS)], [3]),
    "QuickGelu, alpha": ([numbers(*ROWS)], [3], None, {"alpha": 0.5}),
    "FusedMatMul": ([numbers(2, 3, 8), numbers(2, 8, 5)], [3], None, {"alpha": 0.25}),
    "FusedMatMul, turned": ([numbers(2, 8, 3), numbers(2, 5, 8)], [3], None, {"transA": 1, "transB": 1}),
    "FusedMatMul, batch": ([numbers(3, 2, 4, 8), numbers(2, 4, 8, 5)], [4], None, {"transBatchA": 1}),
    "FusedMatMul, batch and turned": (
        [numbers(8, 2, 4, 3), numbers(5, 2, 4, 8)],
        [4],
        None,
        {"transA": 1, "transBatchA": 1, "transB": 1, "transBatchB": 1},
    ),
    "FusedGemm": (
        [numbers(3, 8), numbers(5, 8), numbers(5)],
        [2],
        None,
        {"transB": 1, "alpha": 0.5, "activation": "Relu"},
    ),
    "FusedGemm, slope": (
        [numbers(3, 8), numbers(8, 5)],
        [2],
        None,
        {"activation": "LeakyRelu", "activation_alpha": 0.3},
    ),
}


def in_bits(
    bits: int, width: int, size: int, zeros: str = "", bias: bool = False, rows: int = 6, dtype: Any = np.float32
) -> Any:
    """A case of MatMulNBits: a weight of (rows, width), its blocks of `size` packed, zero points as said."""
    random = np.random.default_rng(bits + width)
    blocks = -(-width // size)
    packed = random.integers(0, 256, (rows, blocks, size * bits // 8), np.uint8)
    scales = (random.random((rows, blocks)) + 0.1).astype(dtype)
    zero = {
        "": None,
        "bytes": random.integers(0, 256, (rows, -(-blocks * bits // 8)), np.uint8),
        "floats": (random.random((rows, blocks)) * 7).astype(dtype),
    }[zeros]
    arrays = [
        numbers(2, 3, width, dtype=dtype),
        packed,
        scales,
        zero,
        None,
        numbers(rows, dtype=dtype) if bias else None,
    ]
    return arrays, [3], None, {"bits": bits, "K": width, "N": rows, "block_size": size}


CASES |= {
    "MatMulNBits": in_bits(4, 64, 32),
    "MatMulNBits, zero points": in_bits(4, 96, 32, "bytes"),
    "MatMulNBits, floats": in_bits(4, 64, 16, "floats", bias=True),
    "MatMulNBits, part of a block": in_bits(4, 80, 32, "bytes"),
    "MatMulNBits, 8 bits": in_bits(8, 64, 32),
    "MatMulNBits, 8 bits, zero points": in_bits(8, 64, 32, "bytes", bias=True),
    "MatMulNBits, 2 bits": in_bits(2, 64, 32),
    "MatMulNBits, f16": in_bits(4, 64, 32, dtype=np.float16),
}


def integers(*shape: int, dtype: Any = np.int8) -> Array:
    ends = np.iinfo(dtype)
    return np.random.default_rng(sum(shape)).integers(ends.min, ends.max, shape, dtype, endpoint=True)


def table(bits: int, size: int, zeros: bool = False, dtype: Any = np.float32) -> Any:
    """A case of GatherBlockQuantized: nine rows of 64 numbers."""
    blocks = 64 // size
    packed = integers(9, 64 * bits // 8, dtype=np.uint8)
    zero = integers(9, -(-blocks * bits // 8), dtype=np.uint8) if zeros else None
    scales = (np.abs(numbers(9, blocks)) + 0.1).astype(dtype)
    attrs = {"bits": bits, "block_size": size, "gather_axis": 0, "quantize_axis": 1}
    return [packed, np.array([[1, 8, 0], [-1, 2, 2]], np.int64), scales, zero], [3], None, attrs


def four_bit_floats(kind: int, size: int, dtype: Any = np.float32) -> Any:
    """A case of MatMulBnb4: a weight of (6, 64)."""
    largest = (np.abs(numbers(6 * 64 // size)) + 0.1).astype(dtype)
    attrs = {"K": 64, "N": 6, "block_size": size, "quant_type": kind}
    return [numbers(2, 3, 64, dtype=dtype), integers(6 * 32, dtype=np.uint8), largest], [3], None, attrs


HALF = np.array(0.5, np.float32)
SCALES = np.abs(numbers(5)) + np.float32(0.1)
CASES |= {
    "FusedConv": (
        [numbers(1, 4, 6, 6), numbers(8, 4, 3, 3), numbers(8)],
        [4],
        None,
        {"activation": "Relu", "pads": [1, 1, 1, 1]},
    ),
    "FusedConv, sum": (
        [numbers(1, 4, 7, 7), numbers(8, 2, 3, 3), numbers(8), numbers(1, 8, 3, 3)],
        [4],
        None,
        {"activation": "Relu", "strides": [2, 2], "group": 2},
    ),
    "FusedConv, slope": (
        [numbers(1, 4, 6, 6), numbers(8, 4, 3, 3)],
        [4],
        None,
        {"activation": "LeakyRelu", "activation_params": [0.3], "dilations": [2, 2]},
    ),
    "FusedConv, clip": (
        [numbers(1, 4, 6, 6), numbers(8, 4, 1, 1), numbers(8)],
        [4],
        None,
        {"activation": "Clip", "activation_params": [-0.5, 1.5]},
    ),
    "FusedConv, hard sigmoid": (
        [numbers(1, 4, 6, 6), numbers(8, 4, 1, 1), numbers(8)],
        [4],
        None,
        {"activation": "HardSigmoid", "activation_params": [0.3, 0.4]},
    ),
    "DynamicQuantizeMatMul": ([numbers(2, 3, 8), integers(8, 5), HALF], [3]),
    "DynamicQuantizeMatMul, zeros": ([numbers(2, 3, 8) * np.float32(0), integers(8, 5), HALF, None, numbers(5)], [3]),
    "DynamicQuantizeMatMul, above zero": ([np.abs(numbers(2, 3, 8)), integers(8, 5), HALF], [3]),
    "DynamicQuantizeMatMul, columns": (
        [numbers(2, 3, 8), integers(8, 5, dtype=np.uint8), SCALES, integers(5, dtype=np.uint8), numbers(5)],
        [3],
    ),
    "MatMulIntegerToFloat": ([integers(3, 8, dtype=np.uint8), integers(8, 5), HALF, HALF], [2]),
    "MatMulIntegerToFloat, zero points": (
        [
            integers(3, 8, dtype=np.uint8),
            integers(8, 5, dtype=np.uint8),
            HALF,
            SCALES,
            np.array(130, np.uint8),
            integers(5, dtype=np.uint8),
            numbers(5),
        ],
        [2],
    ),
    "MatMulIntegerToFloat, signed": (
        [integers(3, 8), integers(8, 5), HALF, HALF, np.array(-7, np.int8), np.array(9, np.int8)],
        [2],
    ),
    "MatMulBnb4, FP4": four_bit_floats(0, 32),
    "MatMulBnb4, NF4": four_bit_floats(1, 16),
    "MatMulBnb4, a block for a row": four_bit_floats(1, 64),
    "GatherBlockQuantized": table(4, 16),
    "GatherBlockQuantized, zero points": table(4, 16, zeros=True),
    "GatherBlockQuantized, zero points, odd": table(4, 64, zeros=True),
    "GatherBlockQuantized, 8 bits": table(8, 32, zeros=True),
    "GatherBlockQuantized, f16": table(4, 32, dtype=np.float16),
}


@pytest.mark.parametrize("name", CASES)
def test_written_out(name: str) -> None:
    arrays, outputs, domain, attrs = (*CASES[name], None, {})[:4] if len(CASES[name]) < 4 else CASES[name]
    model, given = one_node(name.split(",")[0], arrays, outputs, "com.microsoft" if domain is None else domain, **attrs)
    new = written(model)
    assert {n.domain for n in new.graph.node} <= set(STANDARD), [n.op_type for n in new.graph.node]
    assert not any(n.op_type.startswith(("Simplified", "Skip")) for n in new.graph.node)
    want = run(model, given)
    assert_same(want, run(new, given), TOLERANCE[want[0].dtype])
    onnx.checker.check_model(new, full_check=True)


@pytest.mark.parametrize(("a", "b", "added"), [(np.uint8, np.int8, 1), (np.uint8, np.uint8, 1), (np.int8, np.int8, 0)])
def test_a_product_of_integers_gets_a_zero_point(a: Any, b: Any, added: int) -> None:
    given = {"x": integers(3, 8, dtype=a), "y": integers(8, 5, dtype=b)}
    info = [h.make_tensor_value_info(n, h.np_dtype_to_tensor_dtype(x.dtype), x.shape) for n, x in given.items()]
    result = h.make_tensor_value_info("z", T.INT32, [3, 5])
    graph = h.make_graph([h.make_node("MatMulInteger", ["x", "y"], ["z"], name="node")], "g", info, [result])
    new = written(h.make_model(graph, opset_imports=[h.make_opsetid("", 17)], ir_version=9))
    assert [len(n.input) for n in new.graph.node] == [2 + added]
    np.testing.assert_array_equal(run(new, given)[0], given["x"].astype(np.int32) @ given["y"].astype(np.int32))


@pytest.mark.parametrize(("op", "count", "opset"), [("Swish", 1, 24), ("SwiGLU", 2, 28)])
@pytest.mark.parametrize("attrs", [{}, {"alpha": 0.3}])
def test_gates_of_new_opsets(op: str, count: int, opset: int, attrs: dict[str, float]) -> None:
    """onnxruntime may not have them yet: against ONNX's own evaluator."""
    info = [h.make_tensor_value_info(f"x{i}", T.FLOAT, ROWS) for i in range(count + 1)]
    node = h.make_node(op, [i.name for i in info[:count]], [info[count].name], name="node", **attrs)
    graph = h.make_graph([node], "g", info[:count], info[count:])
    model = h.make_model(graph, opset_imports=[h.make_opsetid("", opset)], ir_version=12)
    given = {i.name: numbers(*ROWS) + np.float32(n) for n, i in enumerate(info[:count])}
    new = written(model)
    assert op not in {n.op_type for n in new.graph.node}
    new.opset_import[0].version = 21  # that every onnxruntime has; its nodes mean the same in both
    new.ir_version = 10
    assert_same(ReferenceEvaluator(model).run(None, given), run(new, given))


def test_bias_add() -> None:
    """onnxruntime has no kernel for CPUs."""
    arrays = [numbers(2, 6, 8), numbers(8), numbers(2, 6, 8) * 2]
    model, given = one_node("BiasAdd", arrays, [3])
    assert_same([arrays[0] + arrays[1] + arrays[2]], run(written(model), given))


@pytest.mark.parametrize(
    ("op", "arrays", "outputs", "attrs", "words"),
    [
        ("SkipLayerNormalization", [numbers(*ROWS), numbers(*ROWS), W, V], [3, 3], {}, "statistics"),
        ("FusedGemm", [numbers(3, 8), numbers(8, 5)], [2], {"activation": "Mish"}, "'Mish'"),
        ("MatMulNBits", in_bits(4, 64, 32)[0], [3], {"bits": 3, "K": 64, "N": 6, "block_size": 32}, "3 bits"),
        (
            "MatMulNBits",
            [*in_bits(4, 64, 32)[0][:4], np.arange(64, dtype=np.int32)],
            [3],
            {"bits": 4, "K": 64, "N": 6, "block_size": 32},
            "g_idx",
        ),
        ("FusedConv", [numbers(1, 4, 6, 6), numbers(8, 4, 1, 1)], [4], {"activation": "Mish"}, "'Mish'"),
        (
            "MatMulIntegerToFloat",
            [integers(3, 8), integers(8, 5), SCALES[:3], HALF],
            [2],
            {},
            "each row",
        ),
        (
            "MatMulBnb4",
            four_bit_floats(1, 32)[0],
            [3],
            {"K": 64, "N": 6, "block_size": 128, "quant_type": 1},
            "end of a row",
        ),
        ("GatherBlockQuantized", table(4, 16)[0], [3], {"block_size": 16, "gather_axis": 1}, "first axis"),
        (
            "GatherBlockQuantized",
            [integers(9, 64), *table(4, 16)[0][1:]],
            [3],
            {"block_size": 16},
            "bytes",
        ),
    ],
)
def test_refused(op: str, arrays: Any, outputs: Any, attrs: dict[str, Any], words: str) -> None:
    model, _ = one_node(op, arrays, outputs, **attrs)
    with pytest.raises(ModelError, match=f"'node'.*{words}"):
        written(model)


@pytest.mark.parametrize("op", ["Div", "Mod"])
@pytest.mark.parametrize(
    ("kind", "wide", "back"),
    [
        (T.UINT8, T.INT32, [T.UINT8]),
        # Looked up in a table, whose places are of int64.
        (T.UINT16, T.INT32, [T.INT64]),
        (T.UINT32, T.INT64, []),
        (T.INT8, None, []),
    ],
)
def test_unsigned_integers_are_divided_as_signed_ones(op: str, kind: int, wide: int | None, back: list[int]) -> None:
    info = [h.make_tensor_value_info(name, kind, [4]) for name in "xyz"]
    graph = h.make_graph([h.make_node(op, ["x", "y"], ["z"], name="node")], "g", info[:2], info[2:])
    model = h.make_model(graph, opset_imports=[h.make_opsetid("", 17)], ir_version=9)
    new, dtype = written(model), h.tensor_dtype_to_np_dtype(kind)
    assert [a.i for n in new.graph.node for a in n.attribute if a.name == "to"] == (
        [] if wide is None else [wide, wide, *back]
    )
    x, y = np.array([100, 37, 29, 125]).astype(dtype), np.array([10, 16, 7, 100]).astype(dtype)
    if wide is not None:
        x = x * dtype.type(2) + dtype.type(1)
    np.testing.assert_array_equal(run(new, {"x": x, "y": y})[0], x // y if op == "Div" else x % y)


def test_a_division_of_uint64_is_refused() -> None:
    info = [h.make_tensor_value_info(name, T.UINT64, [4]) for name in "xyz"]
    graph = h.make_graph([h.make_node("Div", ["x", "y"], ["z"], name="node")], "g", info[:2], info[2:])
    with pytest.raises(ModelError, match=r"'node'.*uint64"):
        written(h.make_model(graph, opset_imports=[h.make_opsetid("", 17)], ir_version=9))


def test_an_rms_norm_keeps_the_type_of_its_mean() -> None:
    """RMSNormalization of f64 takes its mean in f32, where ONNX says so (`stash_type`)."""
    node = h.make_node("RMSNormalization", ["x", "scale"], ["y"], name="node", axis=-1)
    info = [h.make_tensor_value_info("x", T.DOUBLE, [2, 8]), h.make_tensor_value_info("y", T.DOUBLE, [2, 8])]
    graph = h.make_graph([node], "g", info[:1], info[1:], [nh.from_array(np.ones(8), "scale")])
    model = h.make_model(graph, opset_imports=[h.make_opsetid("", 23)], ir_version=10)
    kinds = [a.i for n in written(model).graph.node for a in n.attribute if n.op_type == "Cast" and a.name == "to"]
    assert kinds == [T.FLOAT, T.DOUBLE]

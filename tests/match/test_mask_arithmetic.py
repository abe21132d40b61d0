"""Masks computed in whole numbers: sums that wrap around, casts that narrow, and choices between
booleans. What cannot be followed is read as a tensor, so the rewritten model equals the original either way."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto as T

from onnx_fa.forms.rewrite import explain, rewrite
from onnx_fa.forms.score import modify
from onnx_fa.graph.builder import OnnxBuilder
from onnx_fa.patterns.masks.algebra import Algebra
from onnx_fa.patterns.masks.apply import apply_op
from onnx_fa.patterns.masks.expressions import FALSE, INT64, TRUE, MaskTensor, TooComplex, integer
from onnx_fa.spec.attention import AttentionSpec
from onnx_fa.spec.expr import OPS, SCORE, Apply, Kind, Q, ScoreExpr, Tensor, evaluate, kind_of
from onnx_fa.spec.terms import ElementType, Elementwise, TensorArg
from tests.match.test_soundness import Site, assert_equal
from tests.random_masks import check
from tests.support.ort_run import run, session

S, L = 6, 8
NARROW = {"uint8": T.UINT8, "int8": T.INT8, "uint16": T.UINT16, "int16": T.INT16, "uint32": T.UINT32}


def _same_segment(cast: Callable[[Site, str], str], ids: list[int], kind: int = T.INT32) -> None:
    """Queries see the keys of their segment; `ids` are those of the keys, the first of them those of the queries."""
    g = Site()
    rows, columns = g.input("rows", [S, 1], kind), g.input("columns", [L], kind)
    model = g.softmax(g.keep(g.op("Equal", cast(g, rows), cast(g, columns)), g.score()))
    dtype = onnx.helper.tensor_dtype_to_np_dtype(kind)
    rng = np.random.default_rng(0)
    feeds = {n: rng.standard_normal((2, 3, S if n == "q" else L, 4)).astype(np.float32) for n in "qkv"}
    feeds |= {"rows": np.asarray(ids[:S], dtype)[:, None], "columns": np.asarray(ids, dtype)}
    assert explain(model).sites
    new, _ = rewrite(model)
    np.testing.assert_allclose(run(model, feeds)[0], run(new, feeds)[0], rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("to", NARROW)
@pytest.mark.parametrize("source", [T.INT32, T.INT64])
def test_segment_ids_in_a_narrow_type(to: str, source: int) -> None:
    ids = [0, 256, 65536, -1, 255, 1, 65535, 257]
    _same_segment(lambda g, x: g.op("Cast", g.op("Cast", x, to=NARROW[to]), to=T.INT32), ids, source)


def test_segment_ids_of_64_bits_in_32() -> None:
    _same_segment(
        lambda g, x: g.op("Cast", x, to=T.INT32), [0, 1 << 32, 1, (1 << 32) + 1, 2, -1, (1 << 32) - 1, 3], T.INT64
    )


def test_segment_ids_as_floats_lose_their_last_bits() -> None:
    big = 1 << 24
    _same_segment(lambda g, x: g.op("Cast", x, to=T.FLOAT), [big, big + 1, 1, 2, big + 2, big + 3, 1, 2])


@pytest.mark.parametrize("factor", [1 << 62, (1 << 61) + 1, (1 << 63) - 1, -(1 << 63)])
@pytest.mark.parametrize("dtype", [np.int64, np.int32])
def test_positions_times_a_number_wrap_around(factor: int, dtype: type) -> None:
    held = np.iinfo(dtype)
    g = Site()
    product = g.op("Mul", g.positions(S, 1, dtype), g.const(min(max(factor, held.min), held.max), dtype))
    shifted = g.op("Add", product, g.positions(L, 0, dtype))
    assert_equal(g.softmax(g.keep(g.op("GreaterOrEqual", shifted, g.const(0, dtype)), g.score())))


def test_a_window_without_an_end() -> None:
    """A limit at the end of int64, which a sum on its side of the comparison would pass."""
    g = Site()
    limit = g.input("limit", [1], T.INT64)
    model = g.softmax(g.keep(g.op("Less", g.op("Sub", g.positions(S, 1), g.positions(L, 0)), limit), g.score()))
    rng = np.random.default_rng(0)
    feeds = {n: rng.standard_normal((2, 3, S if n == "q" else L, 4)).astype(np.float32) for n in "qkv"}
    new, _ = rewrite(model)
    for value in (INT64[1], INT64[0], 2):
        feeds["limit"] = np.asarray([value])
        want, have = run(model, feeds)[0], run(new, feeds)[0]
        np.testing.assert_allclose(want, have, rtol=2e-5, atol=2e-6)


def test_a_choice_between_booleans_loads() -> None:
    g = Site()
    rows, columns = g.positions(S, 1), g.positions(L, 0)
    limit = g.op("Where", g.op("Less", columns, g.input("n", [2, 1, 1, 1], T.INT64)), g.op("Add", rows, g.i(2)), rows)
    model = g.softmax(g.keep(g.op("LessOrEqual", columns, limit), g.score()))
    assert explain(model).sites
    rng = np.random.default_rng(0)
    feeds = {n: rng.standard_normal((2, 3, S if n == "q" else L, 4)).astype(np.float32) for n in "qkv"}
    feeds["n"] = np.asarray([3, 0]).reshape(2, 1, 1, 1)
    for form in ("decomposed", "blocked"):
        new, _ = rewrite(model, form)
        np.testing.assert_allclose(run(model, feeds)[0], run(new, feeds)[0], rtol=2e-5, atol=2e-6)


def _calls() -> list[tuple[str, tuple[Kind, ...]]]:
    """Every op of score expressions at every kind that it takes."""
    kinds: tuple[Kind, ...] = ("float", "int", "bool")
    found: dict[tuple[str, tuple[Kind, ...]], None] = {}
    for name, op in OPS.items():
        for kind in kinds:
            given = tuple(k if k in kinds else kind for k in op.kinds)
            try:
                kind_of(Apply(name, *(Tensor(i) for i in range(len(given)))), given)  # type: ignore[arg-type]
            except ValueError:
                continue
            found[name, given] = None  # type: ignore[index]
    return list(found)


NO_KERNEL = {("Erf", "f64"), ("Softplus", "f64")}
"""What onnxruntime has in no spelling: a model that has it does not load to begin with."""


@pytest.mark.parametrize("opset", [11, 13, 23])
@pytest.mark.parametrize("compute", ["f32", "f64"])
def test_every_op_that_is_written_loads_and_means_the_same(opset: int, compute: str) -> None:
    types: dict[str, tuple[ir.DataType, ElementType]] = {
        "float": (ir.DataType.FLOAT, "f32") if compute == "f32" else (ir.DataType.DOUBLE, "f64"),
        "int": (ir.DataType.INT64, "i64"),
        "bool": (ir.DataType.BOOL, "bool"),
    }
    rng = np.random.default_rng(0)
    fill = {"float": rng.uniform(0.1, 2, (2, 3)), "int": rng.integers(1, 9, (2, 3)), "bool": rng.random((2, 3)) < 0.5}
    for name, kinds in _calls():
        expr = Apply(name, *(Tensor(i) for i in range(len(kinds))))
        result = kind_of(expr, kinds)
        number = expr if result == "float" else Apply("ToFloat", expr)
        values = [
            ir.Value(name=f"x{i}", shape=ir.Shape([2, 3]), type=ir.TensorType(types[k][0])) for i, k in enumerate(kinds)
        ]
        score = ir.Value(name="score", shape=ir.Shape([2, 3]), type=ir.TensorType(types["float"][0]))
        graph = ir.Graph([score, *values], [], nodes=[], opset_imports={"": opset}, name="op")
        builder = OnnxBuilder(graph, opset, "op", set(), {})
        args = tuple(TensorArg((2, 3), types[k][1]) for k in kinds)
        dims = {"batch": (1,), "Hq": 1, "Hkv": 1, "Sq": 2, "Skv": 3, "D": 1, "Dv": 1}
        spec = AttentionSpec(dtype=compute, masks=(Elementwise(Apply("Add", SCORE, number), args),), **dims)  # type: ignore[arg-type]
        out = modify(builder, spec, score, values, lambda: pytest.fail("no positions are asked for"))
        for node in builder.nodes:
            graph.append(node)
        out.type, out.shape = score.type, score.shape
        graph.outputs.append(out)
        dtype = np.float32 if compute == "f32" else np.float64
        held = {"float": dtype, "int": np.int64, "bool": np.bool_}
        feeds = {f"x{i}": np.roll(fill[k], i).astype(held[k]) for i, k in enumerate(kinds)}
        model = ir.to_proto(ir.Model(graph, ir_version=8))
        if (name, compute) in NO_KERNEL:
            with pytest.raises(Exception, match="NOT_IMPLEMENTED"):
                session(model, optimise=False)
            continue
        have = run(model, {"score": np.zeros((2, 3), dtype), **feeds}, optimise=False)[0]
        want = evaluate(number, np.zeros((2, 3)), list(feeds.values()))
        np.testing.assert_allclose(have, want.astype(np.float64), rtol=1e-5, err_msg=f"{name} of {kinds}")


@pytest.mark.parametrize("part", range(2))
def test_random_masks_keep_their_results(part: int) -> None:
    found = [check(seed) for seed in range(part * 20, part * 20 + 20)]
    assert sum(f not in ("invalid", "refused") for f in found) >= 15


def test_a_mask_is_compared_with_what_onnx_says() -> None:
    check(8047)  # onnxruntime takes 0 for greater than 2^31


def test_comparisons_are_decided_only_where_nothing_wraps() -> None:
    algebra = Algebra({Q: 8})
    row, some = Q, MaskTensor(0, "int")
    product = apply_op(algebra, "Mul", (row, integer(1 << 62)), "int", np.dtype(np.int64))
    assert product is not None and algebra.bounds(product) == INT64
    assert algebra.compare("LessOrEqual", integer(0), product) not in (TRUE, FALSE)
    assert algebra.compare("LessOrEqual", integer(0), algebra.multiply(row, 1 << 40)) == TRUE
    assert algebra.compare("Less", row, some) == Apply("Less", row, some)
    assert algebra.negate(algebra.compare("Less", row, some)) == Apply("LessOrEqual", some, row)
    algebra.ranges[some] = (-(1 << 31), (1 << 31) - 1)
    assert Algebra({}, {some: (0, 5)}).compare("LessOrEqual", some, integer(5)) == TRUE


def test_an_algebra_gives_up_on_what_grows() -> None:
    algebra = Algebra()
    a: ScoreExpr = MaskTensor(0, "bool")
    b: ScoreExpr = MaskTensor(1, "bool")
    with pytest.raises(TooComplex):
        for _ in range(100):
            made = apply_op(algebra, "Xor", (a, b), "bool", np.dtype(bool))
            assert made is not None
            a, b = made, algebra.either(a, algebra.negate(b))

"""Products of batches whose operands are computed along with more than elementwise ops: right in packed layout too, and left alone
elsewhere."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

import onnx_fa
from onnx_fa.graph.ops import op_of
from onnx_fa.iree.inference import infer_types
from onnx_fa.iree.legalise.packed_rows import APART, keep_rows_apart
from onnx_fa.spec.target import parse_target
from tests.support.ort_run import run

LAST = "axis = Constant<value_ints=[-1]>() "
DIVIDED = LAST + "s = ReduceSum(a, axis) d = Div(a, s) "
NORM = LAST + "m = ReduceMean(a, axis) c = Sub(a, m) q = Mul(c, c) w = ReduceMean(q, axis) r = Sqrt(w) d = Div(c, r) "
SOFTMAX = LAST + "m = ReduceMax(a, axis) c = Sub(a, m) e = Exp(c) s = ReduceSum(e, axis) d = Div(e, s) "
LEFT = "y = MatMul(d, v)"


def model(body: str, a: list[int | str], v: list[int | str]) -> onnx.ModelProto:
    inputs = {"a": a, "v": v}
    listed = ", ".join(f"float[{','.join(map(str, dims))}] {name}" for name, dims in inputs.items())
    text = (
        f'<ir_version: 9, opset_import: ["": 18]> g ({listed}) => (float[{",".join("rstu"[: len(a)])}] y) {{ {body} }}'
    )
    return onnx.parser.parse_model(text)


def error_by_batch(tested: onnx.ModelProto, path: Path, *shapes: tuple[int, ...]) -> float:
    """The largest relative error of any batch, beside onnxruntime."""
    rng = np.random.default_rng(0)
    values = [rng.random(shape, np.float32) + 0.1 for shape in shapes]
    onnx_fa.compile(tested, path)
    (got,) = onnx_fa.run(path, *values)
    (want,) = run(tested, {x.name: value for x, value in zip(tested.graph.input, values, strict=True)})
    difference, size = (np.linalg.norm(x.reshape(*x.shape[:-2], -1), axis=-1) for x in (got - want, want))
    return float(np.max(difference / size))


@pytest.mark.parametrize(
    ("body", "rows"),
    [(DIVIDED + LEFT, 7), (NORM + LEFT, 31), (SOFTMAX + LEFT, 12), (DIVIDED + "e = Exp(d) y = MatMul(e, v)", 5)],
)
def test_every_batch_is_right(body: str, rows: int, tmp_path: Path) -> None:
    a, v = (2, 2, rows, 64), (2, 2, 64, 48)
    assert error_by_batch(model(body, [*a], [*v]), tmp_path / "m.vmfb", a, v) < 1e-5


TURNS = {
    "k, batch, rows": ("d = Transpose<perm=[1, 2, 0]>(a) y = MatMul(d, v)", (7, 2, 5), (2, 7, 9)),
    "two batches": ("d = Transpose<perm=[1, 2, 3, 0]>(a) y = MatMul(d, v)", (7, 2, 3, 5), (2, 3, 7, 9)),
    "batches of one": ("d = Transpose<perm=[0, 2, 3, 1]>(a) y = MatMul(d, v)", (1, 7, 3, 5), (1, 3, 7, 9)),
    "by two": (
        "b = Transpose<perm=[1, 0, 2]>(a) e = Exp(b) d = Transpose<perm=[0, 2, 1]>(e) y = MatMul(d, v)",
        (7, 2, 5),
        (2, 7, 9),
    ),
    "merged": (
        "b = Transpose<perm=[2, 3, 0, 1]>(a) s = Constant<value_ints=[2, 5, 21]>() d = Reshape(b, s) y = MatMul(d, v)",
        (3, 7, 2, 5),
        (2, 21, 9),
    ),
    "by an Einsum": ('y = Einsum<equation="kbm,bkn->bmn">(a, v)', (7, 2, 5), (2, 7, 9)),
    "by an Einsum, of one operand": ('y = Einsum<equation="kbm,kbn->bmn">(a, a)', (7, 2, 5), (1,)),
}


@pytest.mark.parametrize("name", TURNS)
def test_turned_operands(name: str, tmp_path: Path) -> None:
    body, *shapes = TURNS[name]
    rank = 4 if len(shapes[1]) == 4 else 3
    text = f"""<ir_version: 9, opset_import: ["": 18]>
        g (float{[*shapes[0]]} a, float{[*shapes[1]]} v) => (float[{",".join("rstu"[:rank])}] y) {{ {body} }}"""
    assert error_by_batch(onnx.parser.parse_model(text), tmp_path / "m.vmfb", *shapes) < 1e-5


def test_turned_rows_by_a_matrix(tmp_path: Path) -> None:
    """Of a width that the compiler does not know: it takes the matrix for one of each batch."""
    body = "n = Neg(a) d = Transpose<perm=[1, 2, 3, 0]>(n) y = MatMul(d, v)", ["k", "n", 8, 8], [3, 8]
    tested = model(*body)
    infer_types(tested, {})
    keep_rows_apart(tested, target=parse_target("cpu-host"))
    assert [op_of(n) for n in tested.graph.node] == ["Neg", "Transpose", APART, "MatMul"]
    assert error_by_batch(model(*body), tmp_path / "m.vmfb", (3, 2, 8, 8), (3, 8)) < 1e-5


@pytest.mark.parametrize(
    ("perm", "is_left", "apart"),
    [((1, 2, 0), True, 1), ((1, 2, 0), False, 0), ((0, 2, 1), True, 0), ((1, 0, 2), True, 0)],
)
def test_others_are_read_as_they_lie(perm: tuple[int, ...], is_left: bool, apart: int) -> None:
    """What is copied first is copied for nothing where it is right together with the product."""
    operands = "d, v" if is_left else "v, d"
    tested = model(f"d = Transpose<perm={list(perm)}>(a) y = MatMul({operands})", [4, 4, 4], [4, 4, 4])
    infer_types(tested, {})
    keep_rows_apart(tested, target=parse_target("cpu-host"))
    assert [op_of(n) for n in tested.graph.node].count(APART) == apart


def test_free_sizes(tmp_path: Path) -> None:
    tested = model(DIVIDED + LEFT, ["b", "n", 64], ["b", 64, 48])
    assert error_by_batch(tested, tmp_path / "m.vmfb", (3, 7, 64), (3, 64, 48)) < 1e-5


def test_right_operands(tmp_path: Path) -> None:
    body = (
        DIVIDED + 't = Transpose<perm=[0, 2, 1]>(d) y = Einsum<equation="bij,bjk->bik">(v, t)',
        [2, 31, 64],
        [2, 48, 64],
    )
    assert error_by_batch(model(*body), tmp_path / "m.vmfb", (2, 31, 64), (2, 48, 64)) < 1e-5


def apart(body: str, a: list[int | str], v: list[int | str], target: str = "cpu-host") -> list[str]:
    """The operators that read an Apart."""
    tested = model(body, a, v)
    infer_types(tested, {})
    keep_rows_apart(tested, target=parse_target(target))
    made = {o for n in tested.graph.node if op_of(n) == APART for o in n.output}
    return [n.op_type for n in tested.graph.node if made & set(n.input)]


def test_what_is_kept_apart() -> None:
    batches: tuple[list[int | str], list[int | str]] = ([2, 7, 64], [2, 64, 48])
    assert apart(DIVIDED + LEFT, *batches) == ["MatMul"]
    assert apart(DIVIDED + "z = Relu(d) y = MatMul(z, z)", [2, 7, 7], [2, 1]) == ["MatMul"]
    assert not apart(DIVIDED + LEFT, *batches, target="cuda-sm_90")
    assert not apart("d = Exp(a) " + LEFT, *batches)
    assert not apart(DIVIDED + LEFT, [7, 64], [64, 48]), "no batches"
    assert not apart(DIVIDED + LEFT, [2, 7, 64], [64, 48]), "one product of all rows"
    assert not apart("z = MatMul(a, v) " + DIVIDED.replace("(a", "(z") + "y = Add(d, d)", *batches), (
        "nothing multiplies it"
    )
    assert apart("z = MatMul(a, v) y = MatMul(z, a)", [2, 7, 64], [2, 64, 2]) == ["MatMul"], "a product within another"
    assert not apart("z = Softmax(a) " + LEFT.replace("d", "z"), *batches), "what is right as it is"
    spread = "axis = Constant<value_ints=[-1]>() f = ReduceMax(a, axis) z = Mul(a, f) y = MatMul(z, v)"
    assert apart(spread, *batches) == ["MatMul"] and not apart(spread, [1, 7, 64], [1, 64, 48])


def test_products_by_what_has_no_batches() -> None:
    """One operand is repeated for all batches of the other."""
    spread = "axis = Constant<value_ints=[-1]>() f = ReduceMax(a, axis) z = Mul(a, f) y = MatMul(z, v)"
    assert apart(spread, [2, 7, 64], [1, 64, 48]) == ["MatMul"]
    assert apart(spread, [7, 64], [2, 64, 48]) == ["MatMul"]

"""What the campaign's comparison excuses (tests/campaign/check.py), and that no wrong result passes for it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import helper as h

from onnx_fa.forms.replace import Form
from onnx_fa.forms.rewrite import rewrite
from tests.campaign.check import Judge
from tests.campaign.draw import Drawn
from tests.campaign.inputs import Array, Engine, Inputs, feeds_of
from tests.campaign.test_readings import CASES, SQ, case_inputs, case_model

NAN = "nan in q"
"""The label of inputs of which some are not finite."""


Agrees = Callable[..., bool]


@pytest.fixture
def agrees() -> Agrees:
    """Whether a result is that of the original. What each original's readings make of its inputs is computed once in a test."""
    made: dict[tuple[bytes, ...], tuple[Judge, list[Array]]] = {}

    def agree(model: onnx.ModelProto, inputs: Inputs, have: list[Array], label: str, form: Form = "decomposed") -> bool:
        drawn = model.SerializeToString(), *(x.tobytes() for x in inputs.values()), label.encode(), form.encode()
        if drawn not in made:
            old = Engine(model)
            kept = {name: x.copy() for name, x in inputs.items()}
            judge = Judge(Drawn(model, model, feeds_of, "plain", (), "plain"), old, label, kept, form)
            made[drawn] = judge, old.run(kept)
        judge, want = made[drawn]
        return judge.agree(want, have)

    return agree


def _nan_in_another_row(x: Array) -> Array:
    moved = x.copy()
    moved[:, 0, 0] = np.nan
    return moved


WRONG: dict[str, Callable[[Array], Array]] = {
    "twice": lambda x: x * 2,
    "rows swapped": lambda x: np.where(np.arange(SQ)[:, None] == 1, x, x[:, ::-1]),
    "NaN in another row": _nan_in_another_row,
    "zeros": np.zeros_like,
    "NaN": lambda x: np.full_like(x, np.nan),
}


@pytest.mark.parametrize("case", CASES)
def test_a_reading_excuses_no_other_row(case: str, agrees: Agrees) -> None:
    """A row that differs from the original's as a reading does is excused, and a wrong result is not."""
    model, inputs = case_model(CASES[case]), case_inputs(case)
    new, report = rewrite(model, "decomposed")
    have = Engine(new).run(inputs)
    assert report.sites and agrees(model, inputs, have, NAN)
    for name, wrong in WRONG.items():
        assert not agrees(model, inputs, [wrong(x) for x in have], NAN), name


def test_a_dropped_mask_is_no_reading(agrees: Agrees) -> None:
    """Of a row with a NaN score the mask is the fill alone: the other rows keep theirs."""
    case = "a mask hides a NaN score"
    model, inputs = case_model(CASES[case]), case_inputs(case)
    inputs["keep"][0, 1] = False
    unmasked = case_model("p = Softmax (s) o = MatMul (p, v)")
    assert not agrees(model, inputs, Engine(unmasked).run(inputs), NAN)


@pytest.mark.parametrize("form", ["decomposed", "blocked"])
def test_a_boolean_is_that_of_a_reading(form: str, agrees: Agrees) -> None:
    """What IsNaN says of a result is excused where the result is."""
    case = "a mask hides a NaN score"
    model, inputs = case_model(CASES[case], asks=True), case_inputs(case)
    new, report = rewrite(model, form)  # type: ignore[call-overload]
    (asked,) = Engine(new).run(inputs)
    assert report.sites and not asked.any() and Engine(model).run(inputs)[0][:, 1].all()
    assert agrees(model, inputs, [asked], NAN)
    for wrong in (~asked, np.arange(SQ)[:, None] == 0 * asked):
        assert not agrees(model, inputs, [wrong], NAN)


def _model(text: str, constants: str) -> onnx.ModelProto:
    infos = "float[1,3,2] q, float[1,2,4] k, float[1,4,2] v"
    source = f'<ir_version: 10, opset_import: ["": 21]> g ({infos}) => (float[1,3,2] o) <{constants}> {{ {text} }}'
    return onnx.parser.parse_model(source)


def _inputs() -> Inputs:
    rng = np.random.default_rng(0)
    return {
        n: rng.standard_normal(s).astype(np.float32) for n, s in (("q", (1, 3, 2)), ("k", (1, 2, 4)), ("v", (1, 4, 2)))
    }


@pytest.mark.parametrize("scale", ["0.01", "100", "inf", "nan"])
def test_a_wide_step_excuses_nothing(scale: str, agrees: Agrees) -> None:
    """That of a QuantizeLinear which has no share in the result is as wide as it likes."""
    constants = f"float scale = {{{scale}}}, int8 zero = {{0}}"
    quantised = "i = QuantizeLinear (q, scale, zero) d = DequantizeLinear (i, scale, zero) e = IsNaN (d) f = Not (e)"
    model = _model(f"{quantised} s = MatMul (q, k) p = Softmax (s) o = MatMul (p, v)", constants)
    inputs = _inputs()
    (want,) = Engine(model).run(inputs)
    assert agrees(model, inputs, [want], "plain")
    for name, wrong in WRONG.items():
        assert not agrees(model, inputs, [wrong(want)], "plain"), name


def test_noise_excuses_what_jumps_alone(agrees: Agrees) -> None:
    """A row that noise makes NaN may be a number; another row may not be NaN for that."""
    model = _model(
        "s = MatMul (q, k) p = Softmax (s) t = ReduceSum (p, keys) z = Sub (t, one) r = Sqrt (z) m = MatMul (p, v) "
        "a = Where (first, r, nought) o = Add (m, a)",
        "int64[1] keys = {-1}, float one = {1}, float nought = {0}, bool[3,1] first = {1, 0, 0}",
    )
    inputs = _inputs()
    (want,) = Engine(model).run(inputs)
    wrong = _nan_in_another_row(want)[:, ::-1]
    assert not agrees(model, inputs, [np.ascontiguousarray(wrong)], "plain")
    assert not agrees(model, inputs, [np.full_like(want, np.nan)], "plain")


def test_an_overflow_excuses_its_own_row(agrees: Agrees) -> None:
    """One product overflows: what comes of it may be NaN, and other rows are as they are."""
    case = "a factor overflows"
    model, inputs = case_model(CASES[case]), case_inputs(case)
    have = Engine(rewrite(model, "decomposed")[0]).run(inputs)[0]
    have[:, 1] = np.nan
    assert agrees(model, inputs, [have], "plain")
    for name, wrong in WRONG.items():
        assert not agrees(model, inputs, [wrong(have)], "plain"), name


def test_exponentials_of_bf16_overflow(agrees: Agrees) -> None:
    """What they make in bf16 may be a number, as in f32."""
    model = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["": 21]> g (bfloat16[3,2] q, bfloat16[2,4] k, bfloat16[4,2] v) => (bfloat16[3,2] o) '
        "<int64[1] keys = {-1}> { s = MatMul (q, k) e = Exp (s) t = ReduceSum (e, keys) p = Div (e, t) o = MatMul (p, v) }"
    )
    inputs = {n: x[0].astype(h.tensor_dtype_to_np_dtype(onnx.TensorProto.BFLOAT16)) for n, x in _inputs().items()}
    inputs["q"][1] *= 1000
    have = Engine(rewrite(model, "decomposed")[0]).run(inputs)
    assert np.isnan(Engine(model).run(inputs)[0][1].astype(np.float32)).any() and agrees(model, inputs, have, "large")
    for wrong in (have[0] * 2, have[0][::-1], have[0] * np.nan):
        assert not agrees(model, inputs, [wrong.astype(have[0].dtype)], "large")


@pytest.mark.parametrize("label", ["plain", "large", NAN])
def test_exponentials_without_the_maximum_excuse_rows_that_overflow(label: str, agrees: Agrees) -> None:
    """A row whose exponentials overflow may be a number. One that is a number in the original is that number."""
    model = _model(
        "s = MatMul (q, k) e = Exp (s) t = ReduceSum (e, keys) p = Div (e, t) o = MatMul (p, v)", "int64[1] keys = {-1}"
    )
    inputs = _inputs()
    inputs["q"][0, 1] *= 1000
    new, report = rewrite(model, "decomposed")
    have = Engine(new).run(inputs)
    assert report.sites and np.isnan(Engine(model).run(inputs)[0][:, 1]).any() and np.isfinite(have[0]).all()
    assert agrees(model, inputs, have, label)
    for name, wrong in WRONG.items():
        assert not agrees(model, inputs, [wrong(x) for x in have], label), name


def test_a_nan_in_v_is_that_of_every_row_that_sees_it(agrees: Agrees) -> None:
    """A mask hides it; a row that sees its key is NaN."""
    model = _model(
        "s = MatMul (q, k) y = Where (keep, s, none) p = Softmax (y) o = MatMul (p, v)",
        "float none = {-inf}, bool[3,4] keep = {1,1,1,1,1,1,1,0,1,1,1,1}",
    )
    inputs = _inputs()
    inputs["v"][0, 3, 0] = np.nan
    (want,) = Engine(model).run(inputs)
    assert np.isnan(want[..., 0]).all()
    hidden = want.copy()
    finite = {**inputs, "v": np.nan_to_num(inputs["v"])}
    number = Engine(model).run(finite)[0]
    hidden[:, 1] = number[:, 1]
    assert agrees(model, inputs, [hidden], "nan in v")
    assert not agrees(model, inputs, [number], "nan in v")
    assert not agrees(model, inputs, [np.where(np.isnan(hidden), 7, hidden)], "nan in v")


def test_a_zero_that_is_no_probability_hides_no_value(agrees: Agrees) -> None:
    """A projection of V in front of the attention multiplies a NaN by zero, too."""
    model = _model(
        "w = MatMul (v, identity) s = MatMul (q, k) p = Softmax (s) o = MatMul (p, w)",
        "float[2,2] identity = {1,0,0,1}",
    )
    inputs = _inputs()
    inputs["v"][0, 3, 0] = np.nan
    (want,) = Engine(model).run(inputs)
    assert np.isnan(want).all() and agrees(model, inputs, [want], "nan in v")
    have = want.copy()
    have[..., 1] = Engine(model).run({**inputs, "v": np.nan_to_num(inputs["v"])})[0][..., 1]
    assert not agrees(model, inputs, [have], "nan in v")


@pytest.mark.parametrize("behind", ["Identity (c)", "Mul (half, c)", "Add (c, p)"])
@pytest.mark.parametrize("zero", [False, True])
@pytest.mark.parametrize("sign", ["Sub", "Add"])
def test_a_difference_of_softmaxes_is_a_difference_of_products(
    sign: str, zero: bool, behind: str, agrees: Agrees
) -> None:
    """An infinite value makes infinities, which may be NaN, and leaves the other columns alone. A guard sees that NaN."""
    parts = f"s = MatMul (q, k) p = Softmax (s) t = Neg (s) n = Softmax (t) f = Mul (n, factor) c = {sign} (p, f) d = {behind}"
    model = _model(
        f"{parts} r = MatMul (d, v) b = IsNaN (r) o = Where (b, zero, r)",
        f"float factor = {{{'0.9' if sign == 'Sub' else '-0.9'}}}, float zero = {{0}}, float half = {{0.5}}",
    )
    inputs = _inputs()
    inputs["v"][0, 3, 0] = np.inf
    if zero:  # of one softmax, and 1 of the other
        inputs["q"][0, 1], inputs["k"][0, :, 3] = 10, -10
    (want,) = Engine(model).run(inputs)
    new, report = rewrite(model, "decomposed")
    (have,) = Engine(new).run(inputs)
    assert len(report.sites) == 2 and np.isinf(want[..., 0]).all() and not have[..., 0].any()
    assert agrees(model, inputs, [have], "inf in v")
    for wrong in (have * 2, have[:, ::-1], np.full_like(have, np.nan), np.where(have == 0, -want, have), 1 - have):
        assert not agrees(model, inputs, [wrong], "inf in v")
    single = _model("s = MatMul (q, k) p = Softmax (s) o = MatMul (p, v)", "float one = {1}")
    (want,) = Engine(single).run(inputs)
    assert np.isinf(want).any() and not agrees(single, inputs, [np.where(np.isinf(want), np.nan, want)], "inf in v")


@pytest.mark.parametrize("alpha", [0.5, -2.0])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_mask_hides_a_value_of_a_gemm(alpha: float, value: float, agrees: Agrees) -> None:
    """A row without keys is zero, and not another one. The others' infinity has the sign of the product."""
    infos = "float[3,2] q, float[2,4] k, float[4,2] v, bool[3,1] row"
    nodes = f"s = MatMul (q, k) p = Softmax (s) d = Where (row, p, zero) o = Gemm <alpha = {alpha}> (d, v)"
    source = (
        f'<ir_version: 10, opset_import: ["": 21]> g ({infos}) => (float[3,2] o) <float zero = {{0}}> {{ {nodes} }}'
    )
    model = onnx.parser.parse_model(source)
    inputs = {n: x[0] for n, x in _inputs().items()}
    inputs["row"] = np.asarray([[True], [False], [True]])
    inputs["v"][3, 0] = value
    new, report = rewrite(model, "decomposed")
    (want,), (have,) = Engine(model).run(inputs), Engine(new).run(inputs)
    assert report.sites and np.isnan(want[1, 0]) and have[1, 0] == 0
    assert agrees(model, inputs, [have], "inf in v")
    wrong = (have[::-1][[1, 0, 2]], np.where(have == 0, 1, have), np.where(np.isfinite(have), have, 1), have * 2)
    for result in (*wrong, -have):
        assert not agrees(model, inputs, [result], "inf in v")


@pytest.mark.parametrize("softmax", ["p = Softmax (s)", "w = Cast <to = 1> (s) e = Softmax (w) p = Cast <to = 10> (e)"])
def test_a_probability_that_vanishes_shows_an_infinity(softmax: str, agrees: Agrees) -> None:
    """In f16 it is zero, and gives NaN; a rewritten model that computes in f32 gives an infinity. Other columns are numbers."""
    infos = "float16[3,2] q, float16[2,4] k, float16[4,2] v"
    nodes = f"s = MatMul (q, k) {softmax} t = Transpose (p) d = Transpose (t) r = MatMul (d, v) "
    nodes += "b = IsNaN (r) o = Where (b, zero, r)"
    source = (
        f'<ir_version: 10, opset_import: ["": 21]> g ({infos}) => (float16[3,2] o) <float16 zero = {{0}}> {{ {nodes} }}'
    )
    model = onnx.parser.parse_model(source)
    inputs = {n: x[0].astype(np.float16) for n, x in _inputs().items()}
    inputs["q"][1], inputs["k"][:, 3], inputs["v"][3, 0] = 1, -12, np.inf
    (want,) = Engine(model).run(inputs)
    have = want.copy()
    have[1, 0] = np.inf
    assert want[1, 0] == 0 and agrees(model, inputs, [have], "inf in v")
    for wrong in (-have, np.full_like(have, np.inf), np.where(np.isinf(have), 1, have).astype(np.float16)):
        assert not agrees(model, inputs, [wrong], "inf in v")
    inputs["k"][:, 3] = -1e4  # and one that is zero in f32 too takes no value
    assert not agrees(model, inputs, [have], "inf in v")


def test_the_attention_op_excuses_a_nan_in_its_row(agrees: Agrees) -> None:
    """Its mask is added to a NaN score, which a Where hides; in other forms that is no excuse."""
    constants = "float low = {-3.4028235e38}, bool[3,4] keep = {1,1,0,1,0,0,0,0,1,1,1,1}"
    model = _model("s = MatMul (q, k) y = Where (keep, s, low) p = Softmax (y) o = MatMul (p, v)", constants)
    inputs = _inputs()
    inputs["q"][0, 1] = np.nan
    (want,) = Engine(model).run(inputs)
    have = want.copy()
    have[:, 1] = np.nan
    assert np.isfinite(want).all() and agrees(model, inputs, [have], NAN, form="attention")
    assert not agrees(model, inputs, [have], NAN)
    for name, wrong in WRONG.items():
        assert not agrees(model, inputs, [wrong(have)], NAN, form="attention"), name

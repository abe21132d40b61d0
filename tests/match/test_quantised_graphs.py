"""Quantised attentions as their users run them: what is rewritten equals the original, with onnxruntime's optimiser and without."""

from __future__ import annotations

import numpy as np
import onnx.parser
import onnx_ir as ir
import pytest
from onnxruntime.capi.onnxruntime_pybind11_state import Fail  # type: ignore[import-untyped]

from onnx_fa.forms.replace import Form
from onnx_fa.forms.rewrite import FORMS, rewrite
from tests.support.ort_run import run
from tests.support.quantised_graphs import PLACES, Drawn, build, draw, feeds

GRAPHS = 24
CHOSEN = {
    "every place, signed": Drawn(PLACES, np.int8, 0, 18),
    "every place, no zero point": Drawn(PLACES, np.int8, None, 17),
    "every place, unsigned": Drawn(PLACES, np.uint8, 0, 18, layout="flat", mask="added"),
    "every place, opset 21": Drawn(PLACES, np.int8, -3, 21, layout="flat"),
    "integers given, by channel": Drawn(PLACES, np.int8, None, 20, stored=True, channels=True),
    "Q unmoved by the model": Drawn(("q", "k"), np.int8, None, 18, layout="tokens", einsum=True, scaled=False),
    "grouped": Drawn(("q", "k", "v"), np.int8, None, 18, group=2, scaled=False, dynamic=True),
    "for the op": Drawn(("q", "k", "v"), np.int8, None, 23, layout="quantised first"),
}


@pytest.mark.parametrize("drawn", CHOSEN.values(), ids=CHOSEN)
def test_chosen(drawn: Drawn) -> None:
    _same_in_all_forms(drawn, 0)


@pytest.mark.parametrize("block", range(0, GRAPHS, 12))
def test_drawn(block: int) -> None:
    for seed in range(block, block + 12):
        _same_in_all_forms(draw(seed), seed)


def _same_in_all_forms(drawn: Drawn, seed: int) -> None:
    model = build(drawn)
    inputs = feeds(model, seed)
    (want,) = run(model, inputs, optimise=False)
    for form in FORMS:
        new, report = rewrite(model, form)
        assert report.sites or form == "attention", (drawn, report.misses)
        assert rewrite(new, form)[0].SerializeToString() == new.SerializeToString(), (form, drawn)
        for optimise in (False, True) if report.sites else ():
            (have,) = run(new, inputs, optimise=optimise)
            np.testing.assert_allclose(have, want, atol=2e-6, err_msg=f"{form}, optimiser {optimise}, {drawn}")


@pytest.mark.parametrize(("kind", "opset", "zero"), [("int32", 13, ""), ("int32", 18, "0"), ("uint16", 21, "300")])
def test_wide_integers(kind: str, opset: int, zero: str) -> None:
    """Stored behind a scale, in f32 and (uint16) in f16, whose differences with a zero point are no numbers of f16."""
    half = kind == "uint16"
    text = f"""<ir_version: 8, opset_import: ["": {opset}]>
g ({"float16" if half else "float"}[2,5,4] q, {kind}[2,6,4] ki, {kind}[2,6,4] vi) => ({"float16" if half else "float"}[2,5,4] o)
<float step = {{{1.3 / (65535 if half else 2**31 - 1)}}} {f", {kind} zero = {{{zero}}}" if zero else ""}>
{{
  size = {"Cast<to = 10>" if half else "Identity"}(step)
  k = DequantizeLinear(ki, size {", zero" * bool(zero)})
  v = DequantizeLinear(vi, size {", zero" * bool(zero)})
  kt = Transpose<perm = [0, 2, 1]>(k)
  s = MatMul(q, kt)
  p = Softmax<axis = -1>(s)
  o = MatMul(p, v)
}}"""
    model = onnx.parser.parse_model(text)
    rng, ends = np.random.default_rng(0), np.iinfo(kind)
    inputs = {i: rng.integers(ends.min, ends.max, (2, 6, 4), endpoint=True, dtype=kind) for i in ("ki", "vi")}
    inputs["q"] = rng.standard_normal((2, 5, 4)).astype(np.float16 if half else np.float32)
    (want,) = run(model, inputs, optimise=False)
    for form in ("decomposed", "blocked"):
        new, report = rewrite(model, form)
        assert report.sites
        for optimise in (False, True):
            np.testing.assert_allclose(run(new, inputs, optimise=optimise)[0], want, atol=2e-3 if half else 2e-6)


def _rewritten_the_same(text: str, form: Form) -> onnx.ModelProto:
    """The graph with its site in that form, which makes the same with onnxruntime's optimiser and without."""
    model = onnx.parser.parse_model(text)
    inputs = feeds(model, 0)
    wanted = run(model, inputs, optimise=False)
    new, report = rewrite(model, form)
    assert report.sites
    for optimise in (False, True):
        for want, have in zip(wanted, run(new, inputs, optimise=optimise), strict=True):
            np.testing.assert_allclose(have, want, atol=2e-6)
    return new


@pytest.mark.parametrize("form", ["decomposed", "blocked"])
def test_nothing_that_was_written_out_is_left_without_readers(form: Form) -> None:
    """onnxruntime's optimiser moved the DequantizeLinear of K through such nodes, and then did not load the model."""
    text = """<ir_version: 10, opset_import: ["": 21]>
g (float[3,5,1] q, float[1,1,5] k, float[3,5,3] v) => (float[3,5,3] o)
<float step = {0.03}, int8 zero = {0}>
{
  kt = Transpose<perm = [0, 2, 1]>(k)
  ki = QuantizeLinear(kt, step, zero)
  kf = DequantizeLinear(ki, step, zero)
  kk = Transpose<perm = [0, 2, 1]>(kf)
  s = MatMul(q, kk)
  p = Softmax<axis = -1>(s)
  o = MatMul(p, v)
}"""
    nodes = ir.from_proto(_rewritten_the_same(text, form)).graph.all_nodes()
    assert all(any(o.uses() or o.is_graph_output() for o in n.outputs) for n in nodes)


@pytest.mark.parametrize("form", ["decomposed", "blocked"])
def test_moves_that_a_form_adds_inside_an_operand(form: Form) -> None:
    """Q is multiplied by the scale of the scores behind the axis that it is given: there, too, nothing is left to be moved."""
    text = """<ir_version: 10, opset_import: ["": 23]>
g (int8[5,3] qi, float[5,3] k, float[5,2] v, float[1] factor) => (float[5,2] o)
<float step = {0.02}, int8 zero = {-125}>
{
  q = DequantizeLinear(qi, step, zero)
  kt = Transpose<perm = [1, 0]>(k)
  s = MatMul(q, kt)
  t = Mul(s, factor)
  p = Softmax<axis = -1>(t)
  o = MatMul(p, v)
}"""
    _rewritten_the_same(text, form)


@pytest.mark.parametrize("form", ["decomposed", "blocked"])
def test_moves_of_the_model_that_the_site_reads_no_more(form: Form) -> None:
    """The optimiser did not move the DequantizeLinear through the Transpose while the product read it too."""
    text = """<ir_version: 10, opset_import: ["": 23]>
g (float[3,1] q, float[1,1] kt, int8[1,2] vi) => (float[3,2] o, float[2,1] read)
<float step = {0.02}, int8 zero = {-125}>
{
  v = DequantizeLinear(vi, step, zero)
  s = MatMul(q, kt)
  p = Softmax<axis = -1>(s)
  vt = Transpose<perm = [1, 0]>(v)
  pt = Transpose<perm = [1, 0]>(p)
  ot = MatMul(vt, pt)
  o = Transpose<perm = [1, 0]>(ot)
  read = Neg(vt)
}"""
    _rewritten_the_same(text, form)


@pytest.mark.parametrize("form", ["decomposed", "blocked"])
def test_moves_of_the_model_where_an_op_of_the_site_reads_the_numbers(form: Form) -> None:
    """Q times a factor: of the Transpose that the product read only the model's other reader is left."""
    text = """<ir_version: 10, opset_import: ["": 23]>
g (int8[4,3] qi, float[4,3] k, float[3,2] v, float factor) => (float[3,2] o, float[3,4] read)
<float step = {0.02}, int8 zero = {0}>
{
  q = DequantizeLinear(qi, step, zero)
  qt = Transpose<perm = [1, 0]>(q)
  s = MatMul(qt, k)
  t = Mul(s, factor)
  p = Softmax<axis = -1>(t)
  o = MatMul(p, v)
  read = Neg(qt)
}"""
    _rewritten_the_same(text, form)


@pytest.mark.parametrize(("form", "branch"), [("decomposed", False), ("blocked", False), ("blocked", True)])
def test_moves_of_the_model_where_the_site_reads_the_integers(form: Form, branch: bool) -> None:
    """The site's numbers are its own then, and a move of the model's, in a branch too, was left with the DequantizeLinear."""
    reads = "read = Transpose<perm = [0, 1, 3, 2]>(v)"
    if branch:
        no = "no () => (float[1,2,4,6] a) { a = Expand(step, shape) }"
        yes = "yes () => (float[1,2,4,6] b) { b = Transpose<perm = [0, 1, 3, 2]>(v) }"
        reads = f"read = If(some) <then_branch = {yes}, else_branch = {no}>"
    text = f"""<ir_version: 10, opset_import: ["": 23]>
g (float[1,2,3,2] q, float[1,2,2,6] kt, int8[1,2,6,4] vi) => (float[1,2,3,4] o, float[1,2,4,6] read)
<float step = {{0.02}}, int8 zero = {{0}}, int64[4] shape = {{1, 2, 4, 6}}, bool some = {{1}}>
{{
  v = DequantizeLinear(vi, step, zero)
  s = MatMul(q, kt)
  p = Softmax<axis = -1>(s)
  o = MatMul(p, v)
  {reads}
}}"""
    _rewritten_the_same(text, form)


BESIDE = {
    "a Dropout": ("d = Dropout(v)\n vt = Transpose<perm = [1, 0]>(d)", ""),
    "a cast": ("c = Cast<to = 1>(v)\n vt = Transpose<perm = [1, 0]>(c)", ""),
    "a function": ("vt = my.Turned(v)", "Turned (x) => (y) { y = Transpose<perm = [1, 0]>(x) }"),
}


@pytest.mark.parametrize("form", ["decomposed", "blocked"])
@pytest.mark.parametrize("beside", BESIDE)
def test_moves_behind_what_the_optimiser_looks_through(form: Form, beside: str) -> None:
    """Another reader of the DequantizeLinear, which has it for itself once the site reads the integers."""
    reads, function = BESIDE[beside]
    text = f"""<ir_version: 10, opset_import: ["": 24, "my": 1]>
g (float[3,1] q, float[1,1] kt, int8[1,2] vi) => (float[3,2] o, float[2,1] read)
<float step = {{0.02}}, int8 zero = {{0}}>
{{
  v = DequantizeLinear(vi, step, zero)
  s = MatMul(q, kt)
  p = Softmax<axis = -1>(s)
  o = MatMul(p, v)
  {reads}
  read = Neg(vt)
}}"""
    _same_as_before(text + (f'<domain: "my", opset_import: ["": 24]> {function}' if function else ""), form)


def test_a_product_beside_the_site_with_what_was_written_out() -> None:
    """onnxruntime takes the scale into the product beside the site, and the site then had none to scale anew."""
    _same_as_before(
        """<ir_version: 9, opset_import: ["": 18]>
g (int8[2,4,3] qi, float[2,3,5] kt, float[2,5,2] v, float[2,6,3] w) => (float[2,4,2] o, float[2,4,6] read)
<float step = {0.02}, int8 zero = {0}, float half = {0.5}>
{
  q = DequantizeLinear(qi, step, zero)
  qt = Transpose<perm = [0, 2, 1]>(q)
  turned = MatMul(w, qt)
  read = Transpose<perm = [0, 2, 1]>(turned)
  s = MatMul(q, kt)
  t = Mul(s, half)
  p = Softmax<axis = -1>(t)
  o = MatMul(p, v)
}""",
        "decomposed",
    )


@pytest.mark.parametrize("form", ["decomposed", "blocked"])
@pytest.mark.parametrize("at", "qkv")
def test_a_scale_that_is_not_finite(form: Form, at: str) -> None:
    """The optimiser takes it out of the product's terms, of which some are 0 times infinity and others are not."""
    for number in (np.inf, np.nan, 0.5):
        text = "\n".join(f"  {n} = DequantizeLinear({n}i, {'odd' if n == at else 'step'})" for n in "qkv")
        model = onnx.parser.parse_model(f"""<ir_version: 9, opset_import: ["": 18]>
g (int8[2,4,3] qi, int8[2,5,3] ki, int8[2,5,2] vi) => (float[2,4,2] o) <float step = {{0.02}}>
{{
{text}
  kt = Transpose<perm = [0, 2, 1]>(k)
  s = MatMul(q, kt)
  p = Softmax<axis = -1>(s)
  o = MatMul(p, v)
}}""")
        model.graph.initializer.append(onnx.numpy_helper.from_array(np.float32(number), "odd"))
        report = rewrite(model, form)[1]
        assert bool(report.sites) == np.isfinite(number)
        assert report.sites or "the scale odd of integers is infinite or NaN" in report.misses[0].reason


FUNCTIONS = {
    "Given": ("k = my.Given(ki, step, zero)", "Given (x, s, z) => (y) { y = DequantizeLinear(x, s, z) }"),
    "Idle": ("kd = DequantizeLinear(ki, step, zero)\n k = my.Idle(kd)", "Idle (x) => (y) { y = Identity(x) }"),
    "Turned": (
        "ku = Transpose<perm = [1, 0]>(ki)\n kd = DequantizeLinear(ku, step, zero)\n k = my.Turned(kd)",
        "Turned (x) => (y) { y = Transpose<perm = [1, 0]>(x) }",
    ),
}


@pytest.mark.parametrize("form", ["decomposed", "blocked"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_dequantizelinear_in_a_function(form: Form, name: str) -> None:
    """onnxruntime takes functions in before it optimises: what they hide is moved all the same. Others stay functions."""
    gives, function = FUNCTIONS[name]
    text = f"""<ir_version: 10, opset_import: ["": 24, "my": 1]>
g (float[4,3] q, int8[5,3] ki, float[5,2] v) => (float[4,2] o)
<float step = {{0.02}}, int8 zero = {{0}}>
{{
  {gives}
  kt = Transpose<perm = [1, 0]>(k)
  qt = my.Before(q)
  s = MatMul(qt, kt)
  p = Softmax<axis = -1>(s)
  o = MatMul(p, v)
}}
<domain: "my", opset_import: ["": 24]> {function}
<domain: "my", opset_import: ["": 24]> Before (x) => (y) {{ y = Tanh(x) }}"""
    assert [f.name for f in _same_as_before(text, form).functions] == ["Before"]


def _same_as_before(text: str, form: Form) -> onnx.ModelProto:
    model = onnx.parser.parse_model(text)
    inputs = feeds(model, 0)
    new, report = rewrite(model, form)
    assert report.sites
    for optimise in (False, True):
        for want, have in zip(run(model, inputs, optimise=False), run(new, inputs, optimise=optimise), strict=True):
            np.testing.assert_allclose(have, want, atol=2e-6)
    return new


def test_the_originals_are_changed_by_the_optimiser() -> None:
    """Else the tests above would show less than they say: some of the graphs have no such results before they are rewritten."""
    changed = 0
    for drawn in CHOSEN.values():
        model = build(drawn)
        inputs = feeds(model, 0)
        (want,) = run(model, inputs, optimise=False)
        try:
            (have,) = run(model, inputs)
        except Fail:
            changed += 1
            continue
        changed += not np.allclose(have, want, atol=2e-6)
    assert changed >= 3

"""No keys at run time, and infinities: whatever a body or a form does with blocks of keys, the result is the original's."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import numpy_helper, parser

from onnx_fa.errors import UnsupportedError
from onnx_fa.forms.plain import plain_model
from onnx_fa.forms.replace import Form
from onnx_fa.forms.rewrite import explain, rewrite
from onnx_fa.kernels.choose import emit_kernel
from onnx_fa.kernels.cpu.few import emit_few
from onnx_fa.kernels.cpu.tiles import FewConfig
from onnx_fa.kernels.cpu.vector import VectorConfig, emit_vector
from onnx_fa.kernels.mlir.kernel import Kernel
from onnx_fa.kernels.triton.config import TritonConfig
from onnx_fa.kernels.triton.source import AttentionSource
from onnx_fa.spec.attention import AttentionSpec
from onnx_fa.spec.expr import SCORE, Apply, Float, Int, Q
from onnx_fa.spec.reference import attention
from onnx_fa.spec.target import parse_target
from onnx_fa.spec.terms import AddMask, BoolMask, Causal, Elementwise, Rounding, TensorArg
from tests import fuzz
from tests.support.cases import FLOAT_MIN, draw_operands
from tests.support.kernel_harness import HOST, Kernels, mismatch
from tests.support.odd_operands import comparable
from tests.support.ort_run import session

SPECS_TRIED = int(os.environ.get("ONNX_FA_SPECS", "0"))
FIRST_CHUNK = 1_000_000
PARTS = [0, pytest.param(1, marks=pytest.mark.whole)]
BASE = AttentionSpec("f32", 2, 2, "s", "t", 8, 8, ("b",), scale=0.25)
SIZES = [{"b": 2, "s": 5, "t": 0}, {"b": 1, "s": 3, "t": 7}, {"b": 2, "s": 0, "t": 0}]


def _spec(**changes: Any) -> AttentionSpec:
    return dataclasses.replace(BASE, **changes)


# The forms.

SPECS = {
    "plain": _spec(),
    "grouped": _spec(Hq=4),
    "causal": _spec(masks=(Causal("end"),)),
    "finite mask": _spec(masks=(BoolMask(("b", 1, 1, "t"), FLOAT_MIN),), empty_row="mean"),
    "sink": _spec(sink=TensorArg((2, 1, 1))),
    "f16": _spec(dtype="f16"),
    "as many queries": _spec(Sq="t"),
    "decode": _spec(Sq=1, masks=(AddMask(("t",)),)),
    "rounded": _spec(rounding=Rounding(1 / 255)),
}
BEHIND = {
    "zero": "m = Where(keep, s, low)\n p = Softmax<axis=-1>(m)\n w = Where(keep, p, zero)",
    "guarded": "m = Where(keep, s, low)\n p = Softmax<axis=-1>(m)\n n = IsNaN(p)\n w = Where(n, zero, p)",
}


def _original(name: str) -> onnx.ModelProto:
    if name in SPECS:
        return ir.to_proto(plain_model(SPECS[name]))
    model = parser.parse_model(
        """<ir_version: 9, opset_import: ["": 18]>
        g (float[b,2,s,8] q, float[b,2,t,8] k, float[b,2,t,8] v, bool[s,t] keep) => (float[b,2,s,8] o)
        <float zero={0}> {
        kt = Transpose<perm=[0,1,3,2]>(k)
        s = MatMul(q, kt)
"""
        + BEHIND[name]
        + "\n o = MatMul(w, v) }"
    )
    model.graph.initializer.append(numpy_helper.from_array(np.asarray(-np.inf, np.float32), "low"))
    return model


@pytest.mark.parametrize("form", ["decomposed", "blocked"])
@pytest.mark.parametrize("name", [*SPECS, *BEHIND])
def test_forms(name: str, form: Form) -> None:
    """In onnxruntime, whose reductions of an empty axis are empty: a product with V must not be divided by one."""
    model = _original(name)
    new, report = rewrite(model, form)
    (site,) = report.sites
    assert name not in BEHIND or site.spec.empty_row == name
    again, _ = rewrite(new, form)
    assert again.SerializeToString() == new.SerializeToString(), "rewriting twice changed something"
    assert explain(new).sites and (form == "blocked" or not explain(new).misses)
    rng = np.random.default_rng(0)
    for sizes in SIZES[: 3 if form == "decomposed" else 2]:
        if name in SPECS:
            operands = draw_operands(SPECS[name].bind(sizes), 0, adversarial=True)
        else:
            shapes = [(sizes["b"], 2, sizes[n], 8) for n in "stt"]
            operands = [rng.standard_normal(s).astype(np.float32) for s in shapes]
            operands.append(rng.random((sizes["s"], sizes["t"])) < 0.4)
        inputs = dict(zip([i.name for i in model.graph.input], operands, strict=True))
        for optimise in (False, True):
            (want,) = session(model, optimise=optimise).run(None, inputs)
            (have,) = session(new, optimise=optimise).run(None, inputs)
            assert have.shape == want.shape
            assert sizes["t"] or (not have.any() and not np.isnan(have).any())
            np.testing.assert_allclose(have, want, rtol=2e-3, atol=2e-3 if have.dtype == np.float16 else 1e-5)


@pytest.mark.parametrize("form", ["decomposed", "blocked"])
@pytest.mark.parametrize("name", ["plain", "grouped", "rounded", "f16"])
def test_forms_beside_a_sink_that_is_not_finite(name: str, form: Form) -> None:
    """Without keys the product with V is zero, whatever the sink has made of its sum; with some, as the original."""
    spec = dataclasses.replace(SPECS[name], sink=TensorArg((SPECS[name].Hq, 1, 1)))
    model = ir.to_proto(plain_model(spec))
    new, report = rewrite(model, form)
    assert report.sites
    old, made = session(model, optimise=False), session(new, optimise=False)
    for sizes in SIZES[:2]:
        operands = draw_operands(spec.bind(sizes), 0)
        for sink in (np.inf, -np.inf, np.nan):
            operands[-1][0] = sink
            inputs = dict(zip([i.name for i in model.graph.input], operands, strict=True))
            (want,), (have,) = old.run(None, inputs), made.run(None, inputs)
            assert sizes["t"] or not have.any()
            np.testing.assert_allclose(have, want, rtol=2e-3, atol=2e-3 if have.dtype == np.float16 else 1e-5)


def test_no_keys_for_sure() -> None:
    """Nothing is computed, so that nothing is to be fused."""
    for changes in ({"Skv": 0}, {"Sq": 0}, {"batch": (0,)}):
        report = explain(ir.to_proto(plain_model(_spec(**changes))))
        assert not report.sites and "nothing is computed" in report.misses[0].reason
        with pytest.raises(UnsupportedError, match="nothing to compute"):
            emit_kernel(_spec(**changes), HOST)


# The bodies.

SMALL, FEW = VectorConfig(4, 4, 4, 2, 1, 1), FewConfig(4, 2, 8, 4, 1, 1)
_BEFORE_THE_FIRST = Elementwise(Apply("Where", Apply("Less", Q, Int(0)), SCORE, Float(FLOAT_MIN)))
NO_KEY = _spec(Hq=4, Sq=1, empty_row="mean", masks=(_BEFORE_THE_FIRST,))
"""Heads of one query become the queries of one head, whose position is a constant: before run time all keys are known as masked."""


@dataclasses.dataclass(frozen=True)
class Body:
    """A kernel that a fixture makes: what a module makes is made by every process that collects tests."""

    emit: Callable[..., Kernel]
    spec: AttentionSpec
    config: VectorConfig | FewConfig
    options: Mapping[str, int] = dataclasses.field(default_factory=dict)


BODIES = {
    "nan": Body(emit_vector, _spec(), SMALL),
    "zero": Body(emit_vector, _spec(empty_row="zero"), SMALL),
    "guarded": Body(emit_vector, _spec(empty_row="guarded", masks=(Causal("end"),)), SMALL),
    "mean": Body(emit_vector, _spec(empty_row="mean", masks=(Causal("end", FLOAT_MIN),)), SMALL),
    "statistics": Body(emit_vector, _spec(stats=("lse", "max"), masks=(AddMask(("t",)),)), SMALL),
    "sink": Body(emit_vector, _spec(sink=TensorArg((2, 1, 1))), SMALL),
    "in halves": Body(emit_vector, _spec(dtype="f16"), SMALL),
    "few": Body(emit_few, _spec(Sq=2, stats=("lse",)), FEW),
    "split": Body(emit_few, _spec(Sq=2, batch=(1,), sink=TensorArg((2, 1, 1))), FEW, {"splits": 3}),
    "two sweeps": Body(emit_vector, _spec(rounding=Rounding(1 / 255)), SMALL),
    "few in two sweeps": Body(emit_few, _spec(Sq=2, rounding=Rounding(1 / 255)), FEW),
    "known length": Body(emit_vector, _spec(Sq=6, Skv=7), SMALL),
    "bias behind a mask": Body(emit_vector, _spec(masks=(Causal("end"), AddMask(("t",)))), SMALL),
    "key in every row": Body(emit_vector, _spec(empty_row="mean", masks=(Causal(1, FLOAT_MIN),)), SMALL),
    "no key known": Body(emit_vector, NO_KEY, SMALL),
}


@pytest.fixture(scope="module")
def bodies(tmp_path_factory: pytest.TempPathFactory) -> Kernels:
    made = [b.emit(b.spec, HOST, f"body{i}", b.config, **b.options) for i, b in enumerate(BODIES.values())]
    return Kernels(made, tmp_path_factory.mktemp("bodies"))


@pytest.mark.parametrize("name", BODIES)
def test_bodies_without_keys(bodies: Kernels, name: str) -> None:
    for sizes in SIZES:
        spec = BODIES[name].spec.bind(sizes)
        operands = draw_operands(spec, 0)
        results = bodies.run(list(BODIES).index(name), operands)
        assert mismatch(spec, operands, results) is None
        if spec.Skv == 0:
            assert not np.asarray(results[0], np.float32).any()


@pytest.mark.parametrize("name", ["sink", "split"])
@pytest.mark.parametrize("bad", [np.inf, np.nan])
def test_no_keys_beside_an_infinite_sink(bodies: Kernels, name: str, bad: float) -> None:
    """A sum of nothing is zero whatever the sink takes, in one piece and combined of parts."""
    spec = BODIES[name].spec.bind({"b": 1, "s": 2, "t": 0})
    operands = draw_operands(spec, 0)
    operands[-1][...] = bad
    (result,) = bodies.run(list(BODIES).index(name), operands)
    np.testing.assert_array_equal(result, np.zeros_like(result))


@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan])
@pytest.mark.parametrize("name", BODIES)
def test_bodies_with_infinite_values(bodies: Kernels, name: str, bad: float) -> None:
    """In V of the last key, which rows of a tile that reach past it read too."""
    spec = BODIES[name].spec.bind({"b": 1, "s": 6, "t": 7})
    operands = draw_operands(spec, 0)
    operands[2][..., -1, 3] = bad
    results = bodies.run(list(BODIES).index(name), operands)
    assert mismatch(*comparable(spec, operands, results)) is None
    if spec.rounding is None and np.isinf(bad):
        assert np.isinf(np.asarray(results[0], np.float32)[..., -1, 3]).all()


@pytest.mark.parametrize("bad", [np.inf, np.nan])
def test_a_bias_behind_a_mask(bodies: Kernels, bad: float) -> None:
    """The documented difference: -inf and NaN, or +inf, is NaN in onnxruntime; a kernel that leaves a block out does not see it."""
    spec = BODIES["bias behind a mask"].spec.bind({"b": 1, "s": 8, "t": 9})
    operands = draw_operands(spec, 0)
    operands[3][-1] = bad  # which only the last query sees; the second tile of four queries visits it
    results = bodies.run(list(BODIES).index("bias behind a mask"), operands)
    assert (np.isnan(results[0]).all(-1) == ([False] * 4 + [True] * 4)).all()
    assert np.isnan(attention(spec, *operands)).all()
    assert mismatch(*comparable(spec, operands, results)) is None


def test_a_row_whose_keys_are_all_infinitely_low(bodies: Kernels) -> None:
    """The documented difference: all masked keys share the row in onnxruntime, those of the blocks that are read in a kernel."""
    spec = BODIES["key in every row"].spec.bind({"b": 1, "s": 8, "t": 9})
    operands = draw_operands(spec, 0)
    q, k, v = operands
    q[:, :, 0], k[:, :, :2, 0] = (
        [-np.inf, *[0] * 7],
        1.0,
    )  # it sees these two keys; the first four queries read keys 0 to 5
    results = bodies.run(list(BODIES).index("key in every row"), operands)
    np.testing.assert_allclose(results[0][:, :, 0], v[:, :, 2:6].mean(axis=2), rtol=1e-5)
    np.testing.assert_allclose(attention(spec, *operands)[:, :, 0], v[:, :, 2:].mean(axis=2), rtol=1e-5)
    assert mismatch(*comparable(spec, operands, results)) is None


def test_an_infinite_value_of_the_least_probability(bodies: Kernels) -> None:
    """The documented difference: below 2^-126 a probability is zero in a kernel, which makes NaN of an infinity."""
    spec = BODIES["known length"].spec.bind({"b": 1})
    q, k, v = (np.zeros_like(x) for x in draw_operands(spec, 0))
    q[..., 0], k[..., -1, 0], v[..., -1, 3] = 4.0, -95.0, np.inf
    for score, kernel in ((-95.0, np.nan), (-80.0, np.inf)):
        k[..., -1, 0] = score
        (result,) = results = bodies.run(list(BODIES).index("known length"), [q, k, v])
        np.testing.assert_array_equal(result[..., 3], np.full_like(result[..., 3], kernel))
        assert np.isposinf(attention(spec, q, k, v)[..., 3]).all()
        assert mismatch(*comparable(spec, [q, k, v], results)) is None


def test_gpu_texts_choose_by_the_length() -> None:
    spec = _spec(dtype="f16", D=64, Dv=64)
    target = parse_target("cuda-sm_80", kernels="iree")
    assert "arith.cmpi eq," in emit_kernel(spec, target).text
    assert "arith.cmpi eq," not in emit_kernel(dataclasses.replace(spec, Skv=64), target).text
    source = AttentionSource(spec, TritonConfig(64, 64, 4, 2), "main").program().text
    assert "tl.where(s2 == 0, 0.0," in source


# Random specs.


@pytest.mark.slow
@pytest.mark.parametrize("part", range(max(1, SPECS_TRIED // fuzz.CHUNK)) if SPECS_TRIED else PARTS)
def test_random_specs(part: int, pytestconfig: pytest.Config) -> None:
    """Dynamic sizes, no keys, infinities, masks of every extreme. More by hand: `python -m tests.fuzz`."""
    count = fuzz.CHUNK if SPECS_TRIED or pytestconfig.getoption("whole") else 6
    result = fuzz.run_chunk(FIRST_CHUNK + part, count)
    assert result["specs"] >= count - 1 and result["kernels"] > count * 0.8
    assert not result["wrong"]

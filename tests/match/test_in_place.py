"""Attention without a softmax: found in every spelling, written in the decomposed form, and never wrong."""

from __future__ import annotations

import io
import math

import numpy as np
import onnx
import pytest
import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from onnx_fa.forms.int8_qk import sees_differences_only
from onnx_fa.forms.rewrite import explain, rewrite
from onnx_fa.spec.expr import words
from onnx_fa.spec.terms import BoolMask, Causal
from tests.match.test_random_attention import GRAPHS, Case, check
from tests.support.graph_changes import CHANGES
from tests.support.ort_run import TOLERANCE, assert_same, run
from tests.support.spellings import KT, MASK, PV, SCALE, WEIGHT, Spelling
from tests.support.spellings_in_place import MATCH, REASONS, REFUSE, feeds


@pytest.mark.parametrize("name", MATCH)
def test_is_a_site(name: str) -> None:
    model = MATCH[name]()
    new, report = rewrite(model)
    (site,) = report.sites
    assert site.spec.weighting is not None and not report.misses, report.misses
    onnx.checker.check_model(new, full_check=True)
    for large, empty in ((False, False), (True, False), (False, True)):
        inputs = feeds(model, large=large, empty_rows=empty)
        for optimise in (True, False):
            want, have = run(model, inputs, optimise=optimise), run(new, inputs, optimise=optimise)
            assert_same(want, have, 2e-4 if large else TOLERANCE)
    again, _ = rewrite(new)
    assert again.SerializeToString() == new.SerializeToString(), "rewriting twice changed something"


@pytest.mark.parametrize("name", REFUSE)
def test_is_left_alone(name: str) -> None:
    model = REFUSE[name]()
    new, report = rewrite(model)
    assert not report.sites and [n.op_type for n in new.graph.node] == [n.op_type for n in model.graph.node]
    reasons = [miss.reason for miss in report.misses]
    assert len(reasons) == bool(REASONS[name]) and all(REASONS[name] in reason for reason in reasons), reasons


def test_recovers_the_meaning() -> None:
    def spec_of(name: str) -> tuple[str, str, tuple[object, ...]]:
        (site,) = explain(MATCH[name]()).sites
        found = site.spec.weighting
        assert found is not None
        return words(found.weight), words(found.total) if found.total is not None else "", site.spec.masks

    assert spec_of("squared_relu") == ("(relu(score) * relu(score))", "", ())
    assert spec_of("times a triangle") == ("sigmoid(score)", "", (Causal(0),))
    assert spec_of("squared_relu_normalised")[:2] == ("pow(relu(score), 2)", "abs(pow(relu(score), 2))")
    for name in ("leaky kept by where", "gelu kept by where", "causal swish over keys"):
        (site,) = explain(MATCH[name]()).sites  # what a score of -inf would weigh is no zero, but that of 0 is
        assert site.spec.weights is None and [m.fill for m in site.spec.masks if isinstance(m, Causal | BoolMask)] == [
            0.0
        ]
    (site,) = explain(MATCH["cosine kept by where"]()).sites
    assert site.spec.weights is not None and not site.spec.masks  # neither of them is


def test_keys_keep_their_mean_where_no_softmax_takes_it_out() -> None:
    """`--int8-qk` takes the mean of all keys off K, which moves all scores of a query alike: to a sigmoid that is not the same."""
    model = MATCH["sigmoid"]()
    new, report = rewrite(model, int8_qk=True)
    assert report.sites[0].lossy and not sees_differences_only(report.sites[0].spec)
    inputs = feeds(model)
    inputs["k"] += 1
    want, have = run(model, inputs)[0], run(new, inputs)[0]
    assert np.linalg.norm(want - have) < 0.02 * np.linalg.norm(want)


CASES = st.builds(
    Case,
    st.builds(
        Spelling,
        scale=st.sampled_from(SCALE),
        kt=st.sampled_from(KT),
        pv=st.sampled_from(PV),
        mask=st.sampled_from(MASK),
        softmax=st.sampled_from(WEIGHT),
        guard=st.sampled_from(["none", "none", "dropout", "identity", "row_factor", "key_factor", "isnan"]),
        softcap=st.sampled_from([False, False, False, True]),
        Sq=st.integers(1, 6),
        Skv=st.integers(1, 7),
        fill=st.sampled_from([float("-inf"), -3.4028235e38, -1e9, -1e4]),
    )
    | st.sampled_from([f"in_place-{name}" for name in (*MATCH, *REFUSE)]),
    st.just(())
    | st.just(())
    | st.lists(st.tuples(st.sampled_from(list(CHANGES)), st.integers(0, 255)), min_size=1, max_size=2).map(tuple),
    st.just(0) | st.just(0) | st.integers(1, (1 << 13) - 1),
    st.just("decomposed"),
    st.integers(0, 9),
)


def test_drawn_at_random() -> None:
    tally: dict[str, int] = {}

    @settings(
        max_examples=GRAPHS or 60,
        deadline=None,
        database=None,
        derandomize=True,
        phases=[Phase.generate, Phase.shrink],
        suppress_health_check=list(HealthCheck),
        print_blob=False,
    )
    @given(case=CASES)
    def one(case: Case) -> None:
        result = check(case)
        tally[result] = tally.get(result, 0) + 1

    one()
    assert tally["matched"] >= 0.4 * (tally["matched"] + tally["refused"]), tally


class _Attention(torch.nn.Module):
    """Sigmoid attention less the logarithm of the keys' number, or causal squared ReLU attention."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.qkv, self.kind = torch.nn.Linear(16, 48), kind

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows, length, _ = x.shape
        q, k, v = (t.view(rows, length, 2, 8).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
        score = q @ k.transpose(-1, -2) * 8**-0.5
        if self.kind == "sigmoid":
            p = torch.sigmoid(score - math.log(length))
        else:
            p = torch.relu(score).square() * torch.ones(length, length).tril()
        return (p @ v).transpose(1, 2).flatten(2)


@pytest.mark.parametrize(("kind", "dynamo"), [("sigmoid", False), ("squared_relu", True)])
def test_exported_from_torch(kind: str, dynamo: bool) -> None:
    x = torch.randn(2, 6, 16, generator=torch.Generator().manual_seed(0))
    file = io.BytesIO()
    torch.onnx.export(_Attention(kind).eval(), (x,), file, dynamo=dynamo, verbose=False)
    model = onnx.load_from_string(file.getvalue())
    new, report = rewrite(model)
    (site,) = report.sites
    assert site.spec.weighting is not None and site.spec.weighting.label == kind
    assert (Causal(0) in site.spec.masks) == (kind == "squared_relu")
    given = {model.graph.input[0].name: x.numpy()}
    for optimise in (True, False):
        assert_same(run(model, given, optimise=optimise), run(new, given, optimise=optimise), TOLERANCE)


def test_a_norm_of_rounded_numbers_is_no_miss() -> None:
    """It begins as a function of scores does, but no product stands above it."""
    text = """<ir_version: 9, opset_import: ["": 17]>
    norm (float[b,n,8] x) => (float[b,n,8] y)
    <float scale = {0.1}, uint8 zero = {3}, float two = {2.0}, float one = {1.0}, float small = {0.00001}> {
        q = QuantizeLinear(x, scale, zero)
        d = DequantizeLinear(q, scale, zero)
        squares = Pow(d, two)
        mean = ReduceMean <axes = [-1]> (squares)
        above = Add(mean, small)
        root = Sqrt(above)
        inverse = Div(one, root)
        y = Mul(d, inverse)
    }"""
    assert explain(onnx.parser.parse_model(text)).misses == ()

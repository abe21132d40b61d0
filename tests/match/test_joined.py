"""Masks whose dims have names of their own: the same result whatever these turn out to be."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
import pytest
from onnx import TensorProto as T

from onnx_fa.forms.rewrite import FORMS, rewrite
from tests.support.ort_run import TOLERANCE, assert_same, run
from tests.support.spellings_layout import D, E, H, Layout, qkv

B, S, N = 2, 5, 7


def model(
    mask: list[int | str],
    kind: int = T.FLOAT,
    causal: bool = False,
    guard: bool = False,
    kv: str = "b",
    keys: tuple[int | str, int | str] = ("t", "t"),
) -> onnx.ModelProto:
    g = Layout(18)
    q, k, v = qkv(g, ("b", H, "s", D), (kv, H, keys[0], D), (kv, H, keys[1], E))
    score = g.scaled(g.op("MatMul", q, g.transpose(k, 0, 1, 3, 2)))
    bias = g.input("mask", mask, kind)
    if causal:
        rows, keys = (
            g.op("Range", g.const(0, np.int64), g.op("Squeeze", g.op("Shape", x, start=2, end=3)), g.const(1, np.int64))
            for x in (q, k)
        )
        ahead = g.op("Less", g.unsqueeze(rows, 1), g.unsqueeze(keys, 0))
        bias = g.op("Add", bias, g.op("Where", ahead, g.const(-np.inf), g.const(0.0)))
    if kind == T.BOOL:
        score = g.op("Where", bias, score, g.const(-np.inf))
    else:
        score = g.op("Add", score, bias)
    p = g.softmax(score)
    if guard:
        top = g.op("ReduceMax", bias, g.const([-1], np.int64))
        p = g.op("Where", g.op("Equal", top, g.const(-np.inf)), g.const(0.0), p)
    return g.done(g.op("MatMul", p, v), "ob", H, "os", E)


def given(model: onnx.ModelProto, **sizes: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    found = {}
    for i in model.graph.input:
        dims = [sizes[d.dim_param] if d.dim_param else d.dim_value for d in i.type.tensor_type.shape.dim]
        if i.type.tensor_type.elem_type == T.BOOL:
            found[i.name] = rng.random(dims) < 0.6
        else:
            found[i.name] = rng.standard_normal(dims).astype(np.float32)
            if i.name == "mask":
                found[i.name][rng.random(dims) < 0.3] = -np.inf
    return found


ROWS = {"m": ({"m": S}, {"m": 1}, {"s": 1, "m": 4}, {"s": 1, "m": 1})}
BATCH = {
    "n": (
        {"n": B, "m": S},
        {"n": 1, "m": S},
        {"n": B, "m": 1},
        {"b": 1, "n": 3, "m": S},
        {"b": 1, "n": 3, "s": 1, "m": 4},
    )
}
KEYS = ({"k": N, "v": N, "m": N}, {"k": 1, "v": N, "m": N}, {"k": N, "v": N, "m": 1}, {"k": 1, "v": 1, "m": 1})
MODELS: dict[str, tuple[Callable[[], onnx.ModelProto], tuple[dict[str, int], ...]]] = {
    "rows": (lambda: model(["m", "t"]), ROWS["m"]),
    "rows that keep": (lambda: model(["m", "t"], T.BOOL), ROWS["m"]),
    "rows and a causal mask": (lambda: model(["m", "t"], causal=True), ROWS["m"]),
    "rows behind a guard": (lambda: model(["m", "t"], causal=True, guard=True), ROWS["m"]),
    "batch and rows": (lambda: model(["n", 1, "m", "t"]), BATCH["n"]),
    "batch, heads and rows": (
        lambda: model(["n", "h", "m", "t"]),
        tuple(x | {"h": h} for x in BATCH["n"] for h in (1, H)),
    ),
    "a batch for all keys": (lambda: model(["n", 1, "s", 1]), ({"n": B}, {"n": 1}, {"n": 3, "b": 1})),
    "a batch of K and V": (lambda: model(["s", "t"], kv="c"), ({"c": B}, {"c": 1}, {"b": 1, "c": 3}, {"b": 1, "c": 1})),
    "a batch of K and V, a batch and rows": (
        lambda: model(["n", 1, "m", "t"], kv="c", causal=True),
        (
            *({"c": 1} | x for x in BATCH["n"]),
            {"b": 1, "c": 3, "n": 1, "m": S},
            {"b": 1, "c": 3, "n": 3, "s": 1, "m": 4},
        ),
    ),
    "keys of K, of V and of the mask": (lambda: model(["b", 1, 1, "m"], keys=("k", "v")), KEYS),
    "keys of each, that keep": (lambda: model(["s", "m"], T.BOOL, keys=("k", "v")), KEYS),
    "keys of each, a causal mask of K's": (lambda: model(["b", 1, 1, "m"], causal=True, keys=("k", "v")), KEYS),
    "keys of K and of the mask": (lambda: model(["b", 1, 1, "m"], keys=("k", N)), KEYS[:3]),
    "keys and batches of each": (
        lambda: model(["n", 1, 1, "m"], kv="c", keys=("k", "v")),
        tuple(x | {"n": n, "c": c} for x in KEYS for n, c in ((1, B), (B, 1))),
    ),
    "rows and no row": (lambda: model(["m", "t"]), ({"s": 0, "m": 0}, {"s": 0, "m": 1}, {"s": 1, "m": 0})),
}


@pytest.mark.parametrize("name", MODELS)
def test_whatever_the_dims_are(name: str) -> None:
    build, runs = MODELS[name]
    written = build()
    for form in FORMS[:1] if "no row" in name else FORMS:
        new, report = rewrite(written, form)
        if form == "attention":
            continue  # opset 18 has no such op
        assert len(report.sites) == 1 and not report.misses, report.misses
        for sizes in runs:
            feeds = given(written, **({"b": B, "s": S, "t": N} | sizes))
            want = run(written, feeds, optimise=False)
            for optimise in (True, False):
                assert_same(want, run(new, feeds, optimise=optimise), TOLERANCE)


def test_a_mask_that_does_not_fit_fails_as_before() -> None:
    written = model(["m", "t"])
    new, _ = rewrite(written)
    feeds = given(written, b=B, s=S, t=N, m=S - 1)
    for each in (written, new):
        with pytest.raises(Exception, match=r"(?i)broadcast|invalid|dimension"):
            run(each, feeds)


def test_a_mask_that_widens_a_single_key_expands_k_alone() -> None:
    """V has all the keys: the product with V fails for any other number of them."""
    new, _ = rewrite(model(["b", 1, 1, "m"], keys=("k", "v")))
    expanded = {x for node in new.graph.node if node.op_type == "Expand" for x in node.input[:1]}
    assert expanded == {"k", "mask"}
    new, _ = rewrite(model(["b", 1, 1, "k"], keys=("k", "v")))
    assert "Expand" not in {node.op_type for node in new.graph.node}


@pytest.mark.parametrize("heads", ["h", H + 1])
def test_heads_that_may_be_repeated_are_left_alone(heads: int | str) -> None:
    """A single head of Q may become as many as the mask has, which a site, whose number of heads is known, cannot say."""
    g = Layout(18)
    q, k, v = qkv(g, ("b", 1, "s", D), ("b", 1, "t", D), ("b", 1, "t", E))
    score = g.op("Add", g.op("MatMul", q, g.transpose(k, 0, 1, 3, 2)), g.input("mask", ["b", heads, "s", "t"]))
    written = g.done(g.op("MatMul", g.softmax(score), v), "b", "oh", "s", E)
    _, report = rewrite(written)
    assert not report.sites and "broadcast" in report.misses[0].reason

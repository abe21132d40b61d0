"""The nodes of score expressions: equality, what they print, copies for other processes, walks, values and JSON."""

from __future__ import annotations

import json
import math
import pickle
from dataclasses import FrozenInstanceError

import numpy as np
import pytest

from onnx_fa.spec.attention import AttentionSpec
from onnx_fa.spec.expr import (
    MOST_NODES,
    SCORE,
    SKV,
    SQ,
    Apply,
    Bool,
    Float,
    Int,
    K,
    Kind,
    Q,
    ScoreExpr,
    Tensor,
    compose,
    evaluate,
    is_small,
    kind_of,
    leaves,
    parts,
    substitute,
    tensors_of,
    words,
)
from onnx_fa.spec.expr_json import from_json, to_json
from onnx_fa.spec.terms import Elementwise, TensorArg

CAUSAL = Apply("Where", Apply("LessOrEqual", K, Apply("Add", Q, Int(2))), SCORE, Float(-math.inf))
CAUSAL_JSON = ["Where", ["LessOrEqual", ["k"], ["Add", ["q"], ["i", 2]]], ["score"], ["f", "-inf"]]
EVERY_NODE = Apply(
    "Where", Apply("And", Apply("Less", SQ, SKV), Bool(True)), Apply("Mul", Tensor(1), Float(0.5)), Tensor(0)
)


def test_nodes_are_equal_where_they_are_written_alike() -> None:
    assert Apply("Add", Q, Int(2)) == Apply("Add", Q, Int(2))
    assert hash(Apply("Add", Q, Int(2))) == hash(Apply("Add", Q, Int(2)))
    assert Apply("Add", Q, K) != Apply("Add", K, Q)
    assert Apply("Add", Q, K) != Apply("Sub", Q, K)
    assert Apply("Add", Q, K) != ("Add", Q, K)
    assert len({SCORE, Q, K, SQ, SKV, Tensor(0), Int(0)}) == 7


def test_constants_of_different_kinds_differ() -> None:
    assert len({Float(1.0), Int(1), Bool(True)}) == 3
    assert Float(0.0) == Float(-0.0)
    assert Float(math.nan) == Float(math.nan)  # one NaN, as math has only one
    assert Float(float("nan")) != Float(float("nan"))


def test_nodes_are_frozen() -> None:
    with pytest.raises(FrozenInstanceError):
        CAUSAL.op = "Add"  # type: ignore[misc]
    with pytest.raises(FrozenInstanceError):
        Q.axis = "k"  # type: ignore[misc]


def test_an_expression_prints_as_nested_tuples() -> None:
    assert repr(CAUSAL) == "('Where', ('LessOrEqual', ('k',), ('Add', ('q',), ('i', 2))), ('score',), ('f', -inf))"


@pytest.mark.parametrize("expr", [CAUSAL, EVERY_NODE, SCORE, Float(1.5)], ids=words)
def test_copies_for_other_processes(expr: ScoreExpr) -> None:
    copy = pickle.loads(pickle.dumps(expr))
    assert copy == expr and hash(copy) == hash(expr)


def test_a_pickle_holds_no_hash() -> None:
    assert str(hash(CAUSAL)).encode() not in pickle.dumps(CAUSAL, protocol=0)


def test_walks() -> None:
    assert [repr(part) for part in parts(Apply("Add", Apply("Neg", Q), K))] == [
        "('Add', ('Neg', ('q',)), ('k',))",
        "('Neg', ('q',))",
        "('q',)",
        "('k',)",
    ]
    assert list(leaves(CAUSAL)) == [K, Q, Int(2), SCORE, Float(-math.inf)]
    assert tensors_of(EVERY_NODE) == {0, 1} and tensors_of(CAUSAL) == set()


def test_size_counts_shared_parts_as_often_as_they_stand() -> None:
    doubled: ScoreExpr = SCORE
    for _ in range(9):
        doubled = Apply("Add", doubled, doubled)
    assert sum(1 for _ in parts(doubled)) == 1023 > MOST_NODES
    assert not is_small(doubled) and is_small(CAUSAL)


def test_substitute_and_compose() -> None:
    moved = substitute(CAUSAL, lambda leaf: Apply("Add", Q, Int(5)) if leaf == Q else leaf)
    assert words(moved) == "where((k <= ((q + 5) + 2)), score, -inf)"
    assert substitute(CAUSAL, lambda leaf: leaf) == CAUSAL
    assert words(compose(CAUSAL, Apply("Tanh", SCORE))) == "where((k <= (q + 2)), tanh(score), -inf)"


def test_words_name_every_node() -> None:
    assert words(EVERY_NODE) == "where(((Sq < Skv) and True), (t1 * 0.5), t0)"
    assert [words(x) for x in (SCORE, Q, Int(-3), Float(2.0))] == ["score", "q", "-3", "2"]


@pytest.mark.parametrize(
    ("expr", "kind"),
    [
        (SCORE, "float"),
        (Float(1.0), "float"),
        (Q, "int"),
        (SKV, "int"),
        (Int(1), "int"),
        (Bool(False), "bool"),
        (Tensor(1), "bool"),
        (CAUSAL, "float"),
        (Apply("Where", Tensor(1), Q, K), "int"),
        (Apply("Equal", Tensor(0), SCORE), "bool"),
    ],
    ids=repr,
)
def test_kinds(expr: ScoreExpr, kind: Kind) -> None:
    assert kind_of(expr, ["float", "bool"]) == kind


def test_values() -> None:
    score = np.asarray([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
    shifted = Apply("Where", Apply("Less", K, Q), SCORE, Apply("ToFloat", Apply("Sub", SKV, SQ)))
    np.testing.assert_array_equal(evaluate(shifted, score, []), [[1, 1, 1], [4, 1, 1]])
    kept = Apply("Where", Tensor(0), Apply("Mul", SCORE, Float(0.5)), Float(0.0))
    np.testing.assert_array_equal(evaluate(kept, score, [np.asarray([True, False, True])]), [[0.5, 0, 1.5], [2, 0, 3]])
    assert evaluate(Apply("Xor", Bool(True), Bool(False)), score, []).dtype == bool


def test_json_keeps_its_form() -> None:
    assert to_json(CAUSAL) == CAUSAL_JSON
    assert to_json(EVERY_NODE) == [
        "Where",
        ["And", ["Less", ["Sq"], ["Skv"]], ["b", True]],
        ["Mul", ["tensor", 1], ["f", 0.5]],
        ["tensor", 0],
    ]


@pytest.mark.parametrize("expr", [CAUSAL, EVERY_NODE, SCORE, Float(math.inf), Float(3), Int(1 << 62)], ids=words)
def test_json_and_back(expr: ScoreExpr) -> None:
    text = json.dumps(to_json(expr))
    assert from_json(json.loads(text)) == expr
    assert json.dumps(to_json(from_json(json.loads(text)))) == text


def test_nan_in_json() -> None:
    found = from_json(to_json(Float(math.nan)))
    assert isinstance(found, Float) and math.isnan(found.value)


def test_a_spec_writes_its_expressions_as_json() -> None:
    term = Elementwise(CAUSAL, label="shifted")
    spec = AttentionSpec("f32", 2, 2, 4, 4, 8, 8, masks=(term,))
    assert spec.to_dict()["masks"] == [{"kind": "Elementwise", "expr": CAUSAL_JSON, "tensors": [], "label": "shifted"}]
    assert AttentionSpec.from_dict(json.loads(json.dumps(spec.to_dict()))) == spec


@pytest.mark.parametrize(
    "data",
    [
        None,
        "q",
        [],
        [1, ["q"]],
        ["q", ["k"]],
        ["tensor"],
        ["tensor", "0"],
        ["tensor", True],
        ["f", "high"],
        ["f", True],
        ["i", 1.5],
        ["b", 1],
        ["Add"],
        ["Neg", 3],
    ],
    ids=repr,
)
def test_what_is_no_expression(data: object) -> None:
    with pytest.raises(ValueError, match="is not a score expression"):
        from_json(data)


def test_a_damaged_spec_names_what_is_wrong() -> None:
    spec = AttentionSpec(
        "f32", 2, 2, 4, 4, 8, 8, masks=(Elementwise(Apply("Add", SCORE, Tensor(0)), (TensorArg(()),)),)
    )
    data = spec.to_dict()
    data["masks"][0]["expr"] = ["Add", ["score"], ["tensor", None]]
    with pytest.raises(ValueError, match=r"\['tensor', None\] is not a score expression"):
        AttentionSpec.from_dict(data)
    data["masks"][0]["expr"] = ["Frobnicate", ["score"]]
    with pytest.raises(ValueError, match="'Frobnicate' with 1 arguments is not an op of score expressions"):
        AttentionSpec.from_dict(data)

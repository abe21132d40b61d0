"""Score expressions written as Python: built by the algebra of masks, and computed by NumPy as int64 computes them.

q k Sq Skv            positions and lengths                  a // b  a % b   Div towards zero, Mod
t0 t1 ..  b0 ..       integer and boolean tensors            a <= b  not a  a and b  a or b  a ^ b
abs(a) max(a, b) ...  ops of that name                       x if c else y   Where
float(a) int(a)       casts
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from typing import Any

import numpy as np

from onnx_fa.patterns.masks.algebra import Algebra
from onnx_fa.patterns.masks.apply import apply_op, to_bool, to_float, to_int
from onnx_fa.patterns.masks.expressions import MaskTensor, boolean, integer, number
from onnx_fa.spec.expr import OPS, SKV, SQ, K, Kind, Q, ScoreExpr

Arrays = Mapping[str, np.ndarray]
_BINARY = {ast.Add: "Add", ast.Sub: "Sub", ast.Mult: "Mul", ast.FloorDiv: "Div", ast.Div: "Div", ast.Mod: "Mod"} | {
    ast.BitXor: "Xor"
}
_COMPARES = {
    ast.Lt: "Less",
    ast.LtE: "LessOrEqual",
    ast.Gt: "Greater",
    ast.GtE: "GreaterOrEqual",
    ast.Eq: "Equal",
}
_CALLS = {"abs": "Abs", "max": "Max", "min": "Min", "sign": "Sign", "relu": "Relu"}
_CASTS = {"float": "ToFloat", "int": "ToInt", "bool": "ToBool"}


def tensor(index: int, kind: Kind = "int") -> ScoreExpr:
    """A tensor as the tracer of masks names it."""
    return MaskTensor(index, kind)


def call_of(node: ast.AST) -> tuple[str, list[ast.expr]] | None:
    """The op of OPS that a piece of Python stands for, and its arguments; None for a leaf."""
    match node:
        case ast.BinOp(left, op, right):
            return _BINARY[type(op)], [left, right]
        case ast.Compare(left, [op], [right]):
            return _COMPARES[type(op)], [left, right]
        case ast.BoolOp(op, [left, right]):
            return ("And" if isinstance(op, ast.And) else "Or"), [left, right]
        case ast.UnaryOp(ast.USub(), operand):
            return None if isinstance(operand, ast.Constant) else ("Neg", [operand])
        case ast.UnaryOp(ast.Not(), operand):
            return "Not", [operand]
        case ast.IfExp(test, body, orelse):
            return "Where", [test, body, orelse]
        case ast.Call(ast.Name(name), args):
            return (_CALLS | _CASTS)[name], args
    return None


def parse(text: str) -> ast.expr:
    return ast.parse(text, mode="eval").body


def _leaf_value(node: ast.AST) -> Any:
    if isinstance(node, ast.UnaryOp):
        node = node.operand
        assert isinstance(node, ast.Constant)
        return -node.value
    assert isinstance(node, ast.Constant)
    return node.value


def build(algebra: Algebra, text: str | ast.expr) -> ScoreExpr:
    """What the algebra makes of the expression. Raises TooComplex as it does."""
    return _build(algebra, parse(text) if isinstance(text, str) else text)[0]


def _build(algebra: Algebra, node: ast.expr) -> tuple[ScoreExpr, Kind]:
    if isinstance(node, ast.Name):
        if node.id[0] == "b":
            return tensor(int(node.id[1:]), "bool"), "bool"
        if node.id[0] == "t":
            return tensor(int(node.id[1:])), "int"
        return {"q": Q, "k": K, "Sq": SQ, "Skv": SKV}[node.id], "int"
    call = call_of(node)
    if call is None:
        value = _leaf_value(node)
        if isinstance(value, bool):
            return boolean(value), "bool"
        return (integer(value), "int") if isinstance(value, int) else (number(value), "float")
    op, parts = call
    args = [_build(algebra, part) for part in parts]
    kind = args[-1][1]
    if op == "ToFloat":
        return to_float(algebra, args[0][0], kind, np.dtype(np.float32)), "float"
    if op == "ToInt":
        made = to_int(algebra, args[0][0], kind)
        assert made is not None
        return made, "int"
    if op == "ToBool":
        return to_bool(algebra, args[0][0], kind), "bool"
    result: Kind = OPS[op].result or kind
    dtype = {"int": np.int64, "float": np.float32, "bool": np.bool_}[result]
    found = apply_op(algebra, op, tuple(a for a, _ in args), kind, np.dtype(dtype))
    assert found is not None
    return found, result


def compute(text: str | ast.expr, Sq: int, Skv: int, tensors: Arrays) -> np.ndarray:
    """What the expression is at every position of scores (Sq, Skv): int64 that wraps around, float32 and bool."""
    known = {
        "q": np.arange(Sq)[:, None],
        "k": np.arange(Skv)[None, :],
        "Sq": np.asarray(Sq),
        "Skv": np.asarray(Skv),
        **tensors,
    }

    def run(node: ast.expr) -> np.ndarray:
        if isinstance(node, ast.Name):
            return known[node.id]
        call = call_of(node)
        if call is None:
            value = _leaf_value(node)
            return np.asarray(value, np.float32 if isinstance(value, float) else None)
        op, parts = call
        args = [run(part) for part in parts]
        if op == "ToFloat":
            return args[0].astype(np.float32)
        return np.asarray(OPS[op].run(*args))

    with np.errstate(all="ignore"):
        return np.broadcast_to(run(parse(text) if isinstance(text, str) else text), (Sq, Skv))

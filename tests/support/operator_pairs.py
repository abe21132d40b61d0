"""Two operators in a row over free sizes, as the compiler joins them into one dispatch: what makes numbers of another type, or
moves them, in front of what runs along an axis."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import onnx
import onnx.parser

FIRST = {
    "relu": ("float", "float", "a = Relu(x)"),
    "abs": ("int64", "int64", "a = Abs(x)"),
    "abs of int32": ("int32", "int32", "a = Abs(x)"),
    "negative int32": ("int32", "int32", "a = Neg(x)"),
    "bytes": ("uint8", "uint8", "o = Constant<value = uint8 {1}>() a = BitwiseOr(x, o)"),
    "float as int64": ("float", "int64", "a = Cast<to=7>(x)"),
    "float as int32": ("float", "int32", "a = Cast<to=6>(x)"),
    "float as int8": ("float", "int8", "a = Cast<to=3>(x)"),
    "int64 as float": ("int64", "float", "a = Cast<to=1>(x)"),
    "uint8 as float": ("uint8", "float", "a = Cast<to=1>(x)"),
    "float16 as float": ("float16", "float", "a = Cast<to=1>(x)"),
    "float as float16": ("float", "float16", "a = Cast<to=10>(x)"),
    "float as double": ("float", "double", "a = Cast<to=11>(x)"),
    "positive as float": ("float", "float", "z = Constant<value_float = 0.0>() b = Greater(x, z) a = Cast<to=1>(b)"),
    "positive as int64": ("float", "int64", "z = Constant<value_float = 0.0>() b = Greater(x, z) a = Cast<to=7>(b)"),
    "not": ("bool", "int64", "b = Not(x) a = Cast<to=7>(b)"),
    "no NaN": ("float", "float", "z = Constant<value_float = 0.0>() b = IsNaN(x) a = Where(b, z, x)"),
    "twice": ("float", "float", "a = Concat<axis=1>(x, x)"),
    "without the first": (
        "float",
        "float",
        "s = Constant<value_ints = [1]>() e = Constant<value_ints = [1000000]>() a = Slice(x, s, e, s)",
    ),
    "turned": ("float", "float", "a = Transpose<perm=[1, 0]>(x)"),
    "padded": ("float", "float", "p = Constant<value_ints = [0, 1, 0, 2]>() a = Pad(x, p)"),
    "less their largest": ("float", "float", "l = Constant<value_ints = [1]>() r = ReduceMax(x, l) a = Sub(x, r)"),
}
"""Source of `a` by x (n, m), with the types of both."""
ALONG = "k = Constant<value_ints = [1]>()"
DOWN = "k = Constant<value_ints = [0]>()"
SECOND = {
    "sum along": f"{ALONG} y = ReduceSum<keepdims=0>(a, k)",
    "sum down": f"{DOWN} y = ReduceSum(a, k)",
    "sum of all": "y = ReduceSum<keepdims=0>(a)",
    "largest along": f"{ALONG} y = ReduceMax(a, k)",
    "least down": f"{DOWN} y = ReduceMin<keepdims=0>(a, k)",
    "least along": f"{ALONG} y = ReduceMin(a, k)",
    "largest down": f"{DOWN} y = ReduceMax(a, k)",
    "least of all": "y = ReduceMin<keepdims=0>(a)",
    "place of the largest": "y = ArgMax<axis=1, keepdims=0>(a)",
    "last place of the least": "y = ArgMin<axis=0, select_last_index=1>(a)",
    "place of the least along": "y = ArgMin<axis=1>(a)",
    "last place of the largest down": "y = ArgMax<axis=0, select_last_index=1, keepdims=0>(a)",
    "sums so far": "k = Constant<value_int = 1>() y = CumSum(a, k)",
    "sums so far down": "k = Constant<value_int = 0>() y = CumSum<exclusive=1>(a, k)",
    "two best": "k = Constant<value_ints = [2]>() y, places = TopK<axis=1>(a, k)",
    "mean along": f"{ALONG} y = ReduceMean(a, k)",
    "softmax": "y = Softmax<axis=1>(a)",
    "norm": f"{ALONG} y = ReduceL2(a, k)",
    "log of sum": f"{ALONG} y = ReduceLogSumExp(a, k)",
    "product": "t = Transpose<perm=[1, 0]>(a) y = MatMul(a, t)",
}
"""Source of y by `a`. From the mean on, of floats alone."""
NOT_OF_BYTES = ("sum", "two best")
"""ONNX has sums of 32 bits and more alone, and onnxruntime no order of bytes."""
OF_FLOATS = tuple(SECOND)[list(SECOND).index("mean along") :]
TYPES: dict[str, Any] = {
    "float": np.float32,
    "float16": np.float16,
    "double": np.float64,
    "int64": np.int64,
    "int32": np.int32,
    "int8": np.int8,
    "uint8": np.uint8,
    "bool": np.bool_,
}


def pairs() -> list[tuple[str, str]]:
    """The names of all pairs that fit each other."""
    floats = {name for name, (_, made, _) in FIRST.items() if made in ("float", "float16", "double")}
    small = {name for name, (_, made, _) in FIRST.items() if made in ("int8", "uint8")}
    found = [(a, b) for a, b in itertools.product(FIRST, SECOND) if b not in OF_FLOATS or a in floats]
    return [(a, b) for a, b in found if not (a in small and b.startswith(NOT_OF_BYTES))]


def model_of(first: str, second: str) -> onnx.ModelProto:
    """x (n, m) to y."""
    kind, made, source = FIRST[first]
    result = "int64" if "place" in second else made
    body = f"{source} {SECOND[second]}"
    kept = "[p]" if "keepdims=0" in SECOND[second] else "[p, q]"
    dims = "" if "of all" in second else kept
    return onnx.parser.parse_model(
        f"""<ir_version: 9, opset_import: ["" : 18]>
        pair ({kind}[n, m] x) => ({result}{dims} y) {{ {body} }}"""
    )


def draw(first: str, shape: tuple[int, int], rng: np.random.Generator) -> np.ndarray[Any, Any]:
    """Whole numbers, several of them equal: of either sign, or by the shape all above zero or all below it, where it shows
    what a tile reads beyond an axis."""
    dtype = TYPES[FIRST[first][0]]
    numbers = rng.integers(-4, 5, shape) + (0, 6, -6)[shape[0] % 3]
    if dtype is np.bool_:
        return rng.integers(0, 2, shape) > 0
    return np.abs(numbers).astype(dtype) if dtype is np.uint8 else numbers.astype(dtype)

"""Parts of a tensor of free sizes, and operators that read elements of them by computed places, or write into them."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import onnx
import onnx.parser

PARTS = {
    "sliced": "p = Slice(x, k1, k4, k3)",
    "sliced along two": "o = Slice(x, k1, k4, k3) p = Slice(o, k2, k5, k2)",
    "split": "q, p = Split<axis = 3, num_outputs = 2>(x)",
    "best": "p, w = TopK<axis = 3>(x, k3)",
    "part of a sum": "t = Add(x, x) p = Slice(t, k1, k4, k3)",
    "computed of a part": "o = Slice(x, k1, k4, k3) n = Less(o, t0) p = Cast<to = 1>(n)",
    "split of known": "q, p = Split<axis = 1, num_outputs = 2>(x)",
}
"""Source of p, by x (n, 4, m, 6)."""
READERS = {
    "gathered": "i = Constant<value_ints = [1, 0]>() y = Gather<axis = 1>(p, i)",
    "gathered along the last": "i = Constant<value_ints = [1, 0, 1]>() y = Gather<axis = 3>(p, i)",
    "gathered elements": "a = Mul(p, p) s = Shape(p) i = Expand(k1, s) y = GatherElements<axis = 3>(p, i)",
    "flipped": "y = Slice(p, last, far, k3, last)",
    "flipped along the second": "y = Slice(p, last, far, k1, last)",
    "summed back": "a = Constant<value_int = 3>() y = CumSum<reverse = 1>(p, a)",
    "summed": "a = Constant<value_int = 2>() y = CumSum(p, a)",
    "padded": 'b = Constant<value_ints = [0, 1, 0, 0, 0, 0, 0, 2]>() y = Pad<mode = "edge">(p, b)',
    "scattered": "i = Constant<value = int64[1,1] {0}>() r = Slice(p, k0, k1, k0) y = ScatterND(p, i, r)",
    "written into another": (
        "s = Shape(p) i = Expand(k0, s) z = ConstantOfShape<value = float[1] {0.5}>(s) y = ScatterElements<axis = 3>(z, i, p)"
    ),
    "turned rows": "s = Constant<value_ints = [0, 2, 1, 3]>() y = Transpose<perm = [2, 3, 1, 0]>(p)",
    "sorted": "y, w2 = TopK<axis = 3>(p, k1)",
    "resized": 'b = Constant<value_floats = [1.0, 1.0, 2.0, 2.0]>() y = Resize<mode = "nearest">(p, , b)',
    "largest place": "c = ArgMax<axis = 3>(p) y = Cast<to = 1>(c)",
}
"""Source of y, by p."""
SIZES = ((3, 5), (1, 8), (4, 1))
_NUMBERS = " ".join(f"k{i} = Constant<value_ints = [{i}]>()" for i in range(6))


def part_readers() -> list[tuple[str, str]]:
    return list(itertools.product(PARTS, READERS))


def model_of(part: str, reader: str) -> onnx.ModelProto:
    """The part is a result too: nobody may write into it."""
    return onnx.parser.parse_model(
        f"""<ir_version: 9, opset_import: ["" : 18]> g (float[n, 4, m, 6] x) => (float[p1, q1, r1, s1] y, float[n, q2, r2, s2] p) {{
        {_NUMBERS} last = Constant<value_ints = [-1]>() far = Constant<value_ints = [-100]>()
        t0 = Constant<value_float = 30.0>() {PARTS[part]} {READERS[reader]} }}"""
    )


def feeds() -> list[dict[str, np.ndarray[Any, Any]]]:
    """What each is run on in turns."""
    rng = np.random.default_rng(0)
    return [{"x": rng.permutation(n * 24 * m).reshape(n, 4, m, 6).astype(np.float32)} for n, m in SIZES]

"""Attention in the body of a Loop or Scan whose inputs have no declared dims, and behind Ifs that guard against empty arrays."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import onnx
import onnx.parser

from tests.support.spellings_layout import feeds

__all__ = ["MATCH", "REFUSE", "feeds"]

MATCH: dict[str, Callable[[], onnx.ModelProto]] = {}
REFUSE: dict[str, Callable[[], onnx.ModelProto]] = {}

_HEAD = '<ir_version: 10, opset_import: ["": 21]>'
_ATTENTION = """
      kt = Transpose <perm = [0, 2, 1]> (x)
      half = Constant <value_float = 0.5> ()
      raw = MatMul(x, kt)
      s = Mul(raw, half)
      p = Softmax <axis = -1> (s)
      y = MatMul(p, x)
"""


def looped(nodes: str, shape: str = "2, 5, 8", end: str = "") -> onnx.ModelProto:
    """Three runs of a body that carries x on to `next`, which the nodes make of x and of the attention y over it."""
    return onnx.parser.parse_model(f"""{_HEAD} g (float[{shape}] q) => (float[{end or shape}] o) {{
  trips = Constant <value = int64 {{3}}> ()
  go = Constant <value = bool {{1}}> ()
  o = Loop(trips, go, q) <body = b (int64 i, bool before, float[?, ?, ?] x) => (bool again, float[?, ?, ?] next) {{
      again = Identity(before)
      {_ATTENTION}
      {nodes}
    }}>
}}""")


def scanned(nodes: str) -> onnx.ModelProto:
    """A Scan over the rows of v that carries x on to `next`."""
    return onnx.parser.parse_model(f"""{_HEAD} g (float[2, 5, 8] q, float[3, 8] v) => (float[2, 5, 8] o, float[3, 8] seen) {{
  o, seen = Scan <num_scan_inputs = 1, body = b (float[?, ?, ?] x, float[8] row) => (float[?, ?, ?] next, float[8] shown) {{
      shown = Neg(row)
      {_ATTENTION}
      {nodes}
    }}> (q, v)
}}""")


MATCH["loop that keeps the shape"] = partial(looped, "next = Add(x, y)")
MATCH["loop that keeps a symbol"] = partial(looped, "next = Add(x, y)", "b, s, 8")
MATCH["scan that keeps the shape"] = partial(scanned, "sum = Add(y, row)\n next = Identity(sum)")
REFUSE["loop that turns the shape"] = partial(
    looped, "sum = Add(x, y)\n next = Transpose <perm = [0, 2, 1]> (sum)", end="2, 8, 5"
)
REFUSE["loop whose head dim grows"] = partial(looped, "next = Concat <axis = 2> (x, y)", end="2, 5, 64")


def guarded(
    dims: tuple[str, str] = ("s", "t"), *, filled: str = "0.0", none: int = 0, column: str = "n_b, n_4, n_s, n_1"
) -> onnx.ModelProto:
    """ndonnx's attention over `dims` queries and keys: products and maxima behind Ifs that ask whether there are no elements, and
    fill what is made of none. `filled`: what stands for a product of no keys; `none`: the count that they ask for; `column`: the
    shape of a maximum of no keys."""
    queries, keys = dims
    sizes = "\n".join(
        f"  n_{name} = Shape <start = {axis}, end = {axis + 1}> ({x})"
        for name, x, axis in (("b", "q", 0), ("s", "q", 2), ("t", "k", 2), ("e", "v", 3))
    )
    return onnx.parser.parse_model(f"""{_HEAD} g (float[b, 4, {queries}, 8] q, float[b, 4, {keys}, 8] k, float[b, 4, {keys}, 6] v)
  => (float[b, 4, {queries}, 6] o) {{
{sizes}
  zero = Constant <value = int64 {{{none}}}> ()
  n_4 = Constant <value = int64[1] {{4}}> ()
  n_1 = Constant <value = int64[1] {{1}}> ()
  axis = Constant <value = int64[1] {{3}}> ()
  nothing = Constant <value_float = {filled}> ()
  low = Constant <value = float {{-3.0}}> ()
  half = Constant <value_float = 0.5> ()
  kt = Transpose <perm = [0, 1, 3, 2]> (k)
  size_q = Size(q)
  size_k = Size(kt)
  both = Mul(size_q, size_k)
  no_scores = Equal(both, zero)
  raw = If(no_scores) <
    then_branch = t1 () => (float[?, ?, ?, ?] a1) {{ d1 = Concat <axis = 0> (n_b, n_4, n_s, n_t)  a1 = Expand(low, d1) }},
    else_branch = e1 () => (float[?, ?, ?, ?] b1) {{ m1 = MatMul(q, kt)  b1 = Identity(m1) }}>
  s = Mul(raw, half)
  size_s = Size(s)
  no_keys = Equal(size_s, zero)
  top = If(no_keys) <
    then_branch = t2 () => (float[?, ?, ?, ?] a2) {{ d2 = Concat <axis = 0> ({column})  a2 = Expand(low, d2) }},
    else_branch = e2 () => (float[?, ?, ?, ?] b2) {{ b2 = ReduceMax(s, axis) }}>
  minus = Sub(s, top)
  e = Exp(minus)
  sum = ReduceSum(e, axis)
  p = Div(e, sum)
  size_p = Size(p)
  size_v = Size(v)
  last = Mul(size_p, size_v)
  no_values = Equal(last, zero)
  made = If(no_values) <
    then_branch = t3 () => (float[?, ?, ?, ?] a3) {{ d3 = Concat <axis = 0> (n_b, n_4, n_s, n_e)  a3 = Expand(nothing, d3) }},
    else_branch = e3 () => (float[?, ?, ?, ?] b3) {{ b3 = MatMul(p, v) }}>
  o = Identity(made)
}}""")


MATCH["guards against no elements"] = guarded
MATCH["guards against no elements, of sizes"] = partial(guarded, ("5", "7"))
REFUSE["guard that fills with ones"] = partial(guarded, filled="1.0")
REFUSE["guard against one element"] = partial(guarded, none=24)
REFUSE["guard of another shape"] = partial(guarded, column="n_b, n_4, n_1, n_1")

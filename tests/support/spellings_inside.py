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

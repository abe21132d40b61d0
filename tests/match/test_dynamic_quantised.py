"""Attention behind projections of integers whose ranges each run measures: sizes of a split into heads are asked of integers, to
whose lengths the quantiser gave names that stand nowhere else."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.parser
import pytest

from onnx_fa.forms.rewrite import rewrite
from tests.support.ort_run import assert_same, run

TEXT = """
<ir_version: 9, opset_import: ["": 18]>
agraph (float[batch, length, 8] x, float[batch, other, 8] z, float[1, 4, 1, 1] bias) => (float[a, b, c, d] o)
<uint8[unk__1, unk__2, 8] xi, int32[unk__3, unk__4, 8] integers, uint8[unk__5, unk__6, 8] zi,
 uint8[8, 8] w = {WEIGHTS}, uint8 wz = {7}, float ws = {0.01}, int64[1] zero = {0}, int64[1] one = {1}, int64[2] rest = {-1, 2}>
{
    xi, xs, xz = DynamicQuantizeLinear (x)
    zi, zs, zz = DynamicQuantizeLinear (z)
    integers = MatMulInteger (xi, w, xz, wz)
    scale = Mul (xs, ws)
    numbers = Cast <to = 1> (integers)
    y = Mul (numbers, scale)
    sizes = Shape (ASKED)
    batches = Gather (sizes, zero)
    lengths = Gather (sizes, one)
    to = Concat <axis = 0> (batches, lengths, rest)
    heads = Reshape (y, to)
    q = Transpose <perm = [0, 2, 1, 3]> (heads)
    t = Transpose <perm = [0, 2, 3, 1]> (heads)
    score = MatMul (q, t)
    biased = Add (score, bias)
    p = Softmax <axis = -1> (biased)
    o = MatMul (p, q)
}
"""


def model(asked: str) -> onnx.ModelProto:
    weights = ", ".join(map(str, np.random.default_rng(1).integers(0, 15, 64)))
    return onnx.parser.parse_model(TEXT.replace("WEIGHTS", weights).replace("ASKED", asked))


@pytest.mark.parametrize(("asked", "sites"), [("xi", 1), ("integers", 1), ("zi", 0)])
@pytest.mark.parametrize("other", [5, 20])
def test_heads_are_known_where_the_sizes_are_those_of_what_is_split(asked: str, sites: int, other: int) -> None:
    """Sizes of another tensor make four heads, or one that is broadcast beside four."""
    rng = np.random.default_rng(0)
    feeds = {"x": rng.standard_normal((2, 5, 8), np.float32), "z": rng.standard_normal((2, other, 8), np.float32)}
    feeds["bias"] = rng.standard_normal((1, 4, 1, 1), np.float32)
    original = model(asked)
    rewritten, report = rewrite(original)
    assert len(report.sites) == sites
    assert_same(run(original, feeds), run(rewritten, feeds))

"""Sizes that IREE takes for ones that may be 2^63 are bounded below that, for GPUs."""

from __future__ import annotations

from pathlib import Path

import onnx
import onnx.parser
import pytest

from onnx_fa.iree.bounded_sizes import WHY_BOUNDED, bounded_in
from onnx_fa.iree.compile import compile_model
from onnx_fa.spec.target import parse_target


def tokens(behind: str) -> onnx.ModelProto:
    """The sum of all places of an image, and of a row behind them."""
    return onnx.parser.parse_model(
        f"""<ir_version: 9, opset_import: ["" : 18]> g (float[h, w] x) => (float[1] y) {{
        flat = Constant<value_ints = [-1]>() one = Constant<value_floats = [1.0]>() f = Reshape(x, flat)
        t = {behind} y = ReduceSum(t, flat) }}"""
    )


@pytest.mark.parametrize(
    ("behind", "target", "steps"),
    [
        ("Concat<axis = 0>(f, one)", "cuda-sm_80", True),
        ("Identity(f)", "cuda-sm_80", False),
        ("Concat<axis = 0>(f, one)", "cpu-host", False),
    ],
)
def test_a_row_behind_as_many_as_an_image_has(behind: str, target: str, steps: bool, tmp_path: Path) -> None:
    folder = tmp_path / "kept"
    report = compile_model(tokens(behind), tmp_path / "m.vmfb", parse_target(target), keep_intermediates=folder)
    assert (WHY_BOUNDED in report.note) == steps
    if target != "cpu-host":
        # Threads tell each other their sums.
        assert any("shfl" in path.read_text() for path in (folder / "phases").glob("*.optimized.ll"))


def test_what_is_replaced() -> None:
    text = "a<umin = 1, umax = 9223372036854775807>, b<umin = 1, umax = {}, udiv = 2>"
    assert bounded_in(text.format(7)) == ""
    assert bounded_in(text.format(1 << 63)) == bounded_in(text.format((1 << 64) - 1)) == text.format((1 << 63) - 1)

"""Results of unsigned integers are unsigned, which IREE's runtime does not know."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx.parser
import pytest

import onnx_fa


@pytest.mark.parametrize("bits", [8, 16, 32, 64])
def test_large_numbers(bits: int, tmp_path: Path) -> None:
    """Beside a signed result, and one that is the input as it was."""
    kind, dtype = f"uint{bits}", np.dtype(f"u{bits // 8}")
    model = onnx.parser.parse_model(
        f"""<ir_version: 9, opset_import: ["" : 21]> g ({kind}[n] x) =>
        ({kind}[n] y, int64[n] z, {kind}[n] same, int{bits}[n] other) {{
        o = Constant<value = {kind} {{1}}>() y = BitwiseOr(x, o) s = Cast<to = 7>(x) z = Neg(s) same = Identity(x)
        other = Cast<to = {({8: 3, 16: 5, 32: 6, 64: 7})[bits]}>(x) }}"""
    )
    onnx_fa.compile(model, tmp_path / "m.vmfb")
    x = np.array([0, 2, 2**bits - 2 if bits < 64 else 2**62], dtype)
    y, z, same, other = onnx_fa.run(tmp_path / "m.vmfb", x)
    assert (y.dtype, z.dtype, same.dtype, other.dtype) == (dtype, np.int64, dtype, np.dtype(f"i{bits // 8}"))
    np.testing.assert_array_equal(other, x.view(other.dtype))
    np.testing.assert_array_equal(y, x | 1)
    np.testing.assert_array_equal(z, -x.astype(np.int64))
    np.testing.assert_array_equal(same, x)

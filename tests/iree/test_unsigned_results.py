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


def test_whose_memory_it_is(tmp_path: Path) -> None:
    """A result that is an input's bytes stays what it is when the runtime has let go of them."""
    model = onnx.parser.parse_model(
        """<ir_version: 9, opset_import: ["" : 18]> g (int8[n] x) => (uint8[n] y) { y = Cast<to = 2>(x) }"""
    )
    onnx_fa.compile(model, tmp_path / "m.vmfb")
    x = np.arange(-64, 64, dtype=np.int8)
    results = [onnx_fa.run(tmp_path / "m.vmfb", x)[0] for _ in range(50)]
    others = [np.full(128, 77, np.int8) for _ in range(5000)]
    assert all((y == x.view(np.uint8)).all() for y in results) and len(others) == 5000

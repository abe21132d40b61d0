"""A compiled model whose roundings fall on other sides is right as far as the last bits in front of them explain that."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx.parser
import onnx_ir as ir

from onnx_fa.verifier.inputs import Array
from onnx_fa.verifier.output_checks import OutputChecks, Results
from onnx_fa.verifier.rounding_noise import FELL, MOST, outputs_apart, with_noise
from onnx_fa.verifier.runners import Runner

STEP = np.float32(0.1)


def _model(ops: str = "q = QuantizeLinear (n, step, zero) y = DequantizeLinear (q, step, zero)") -> ir.Model:
    return ir.from_proto(
        onnx.parser.parse_model(f"""<ir_version: 9, opset_import: ["": 18]> g (float[64] x) => (float[64] y)
        <float step = {{0.1}}, int8 zero = {{0}}, float one = {{1}}> {{ n = Mul (x, one) {ops} }}""")
    )


def _inputs(largest: float = 10.0) -> dict[str, Array]:
    """Half of the numbers lie at a tie, as near as f32 has it."""
    x = np.full(64, largest, np.float32)
    x[::2] = STEP / 2
    return {"x": x}


def test_what_noise_does(tmp_path: Path) -> None:
    model, arrays = _model(), _inputs()
    want = Runner(model, tmp_path / "m.onnx")(arrays)
    assert outputs_apart(model, arrays, want, tmp_path)["y"] == np.float32(STEP / 10)
    arrays = _inputs(1.0)
    want = Runner(model, tmp_path / "m.onnx")(arrays)
    assert outputs_apart(model, arrays, want, tmp_path) == {"y": MOST}  # a step is a tenth of the largest there
    arrays["x"][:2] = np.inf, np.nan
    assert outputs_apart(model, arrays, Runner(model, tmp_path / "m.onnx")(arrays), tmp_path) == {"y": 0.0}
    plain = _model("y = Identity (n)")
    assert with_noise(plain, 0) is None and outputs_apart(plain, arrays, want, tmp_path) == {"y": 0.0}


def _check(model: ir.Model, change: float, tmp_path: Path) -> tuple[bool | None, str]:
    """The verdict on a compiled model that makes one number other by `change`, and why."""
    arrays = _inputs()
    want = Runner(model, tmp_path / "m.onnx")(arrays)
    compiled = want["y"].copy()
    compiled[0] += np.float32(change)
    checks = OutputChecks(model.clone(), model.clone(), [], tmp_path).compare(
        Results("x", arrays, want, want, [compiled], 1e-4, 1e-4), optimised=False
    )
    found = next(c for c in checks if c.what.startswith("IREE"))
    return found.ok, found.note


def test_the_verdict(tmp_path: Path) -> None:
    """One step is explained, three are not, and where nothing is rounded none is."""
    assert _check(_model(), 0.0, tmp_path) == (True, "")
    assert _check(_model(), 0.1, tmp_path) == (True, FELL)
    assert _check(_model(), 0.3, tmp_path)[0] is False
    assert _check(_model("y = Identity (n)"), 0.1, tmp_path)[0] is False

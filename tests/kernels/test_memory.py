"""Memory of compiled attention grows with S, not with S x S."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from onnx_fa.iree.compile import compile_model
from onnx_fa.iree.run import run_module
from tests.support.spellings import Spelling, build


@pytest.mark.slow
def test_long_sequence_runs_in_little_memory(tmp_path: Path) -> None:
    """S=16384, H=2, D=64: the scores alone would take 2.1 GB; operands and result are 0.03 GB."""
    H, S = 2, 16384
    model = build(Spelling(B=1, Hq=H, Hkv=H, Sq=S, Skv=S, D=64, Dv=64))
    report = compile_model(model, tmp_path / "m.vmfb")
    assert [s.fused for s in report.sites] == [True] and not report.misses
    rng = np.random.default_rng(0)
    inputs = [rng.standard_normal((1, H, S, 64), dtype=np.float32) for _ in "qkv"]
    (out,), peak = run_module(tmp_path / "m.vmfb", inputs, 1, function="g", timeout_s=300)
    assert peak < 1 << 29, f"{peak / 2**20:.0f} MiB"
    # Some rows against float64.
    q, k, v = (x[0] for x in inputs)
    for head, row in ((0, 0), (0, 12345), (1, S - 1)):
        s = k[head].astype(np.float64) @ q[head, row].astype(np.float64) * 64**-0.5
        p = np.exp(s - s.max())
        want = p @ v[head].astype(np.float64) / p.sum()
        assert np.linalg.norm(out[0, head, row] - want) <= 5e-6 * np.linalg.norm(want)

"""verify on inputs that the user gives: on these alone, and refused in a line where they do not fit."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import onnx.parser
import pytest

from onnx_fa.errors import OnnxFaError
from onnx_fa.graph import io
from onnx_fa.verifier.given_inputs import arrange, read_arrays
from onnx_fa.verifier.verifier import verify
from tests.cli.test_cli import cli, error_line
from tests.support import tiny


def arrays(s: int = 24, scale: float = 1.0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(s)
    return {n: (scale * rng.standard_normal((1, 2, s, 16))).astype(np.float32) for n in ("v", "k", "q")}


def test_on_these_alone(tmp_path: Path) -> None:
    """In any order, and of different lengths where the model leaves them free."""
    path = tiny.attention(tmp_path / "a.onnx", s="S", skv="S", mask=False)
    report = verify(path, inputs={"short": arrays(5), "long": arrays(53)})
    report.check()
    assert {c.inputs for c in report.checks} == {"short", "long"}
    assert {c.what for c in report.checks} >= {"IREE: output o", "site softmax: kernel"}


def test_sees_what_they_show(tmp_path: Path) -> None:
    """An output that is finite on random inputs is not on these, so nothing is shown of it."""
    path = tiny.attention(tmp_path / "a.onnx", s="S", skv="S", mask=False)
    verify(path, seeds=1).check()
    assert not verify(path, inputs={"nan": {n: np.full_like(x, np.nan) for n, x in arrays().items()}}).ok


def test_fixed_inputs_are_not_given() -> None:
    model = io.load(
        onnx.parser.parse_model(
            """<ir_version: 9, opset_import: ["" : 18]> g (float[2, S] x, int64 n, float[S] w) => (float[2, S] y)
            <float[1] w = {1.0}> { y = Identity(x) }"""
        )
    )
    x = np.zeros((2, 3), np.float32)
    assert list(arrange(model, {"n": np.array(1), "x": x}, "f.npz")) == ["x", "n"]
    with pytest.raises(OnnxFaError, match=r"f\.npz: w is no input of the model, whose inputs are x, n"):
        arrange(model, {"n": np.array(1), "x": x, "w": x[0]}, "f.npz")


def test_types_that_numpy_does_not_keep(tmp_path: Path) -> None:
    model = io.load(
        onnx.parser.parse_model(
            """<ir_version: 9, opset_import: ["" : 18]> g (bfloat16[3] x) => (bfloat16[3] y) { y = Identity(x) }"""
        )
    )
    x = np.array([1.5, -2, 3], ml_dtypes.bfloat16)
    np.savez(tmp_path / "x.npz", x=x)
    (read,) = arrange(model, read_arrays(tmp_path / "x.npz"), "x.npz").values()
    assert read.dtype == x.dtype and np.array_equal(read, x)


def test_command(tmp_path: Path) -> None:
    path = tiny.attention(tmp_path / "a.onnx", s="S", skv="S", mask=False)
    good = arrays()
    np.savez(tmp_path / "good.npz", **good)
    np.savez(tmp_path / "missing.npz", q=good["q"], k=good["k"])
    np.savez(tmp_path / "other.npz", **good, mask=good["q"])
    np.savez(tmp_path / "flat.npz", **{**good, "k": good["k"][0]})
    np.savez(tmp_path / "double.npz", **{**good, "k": good["k"].astype(np.float64)})
    np.save(tmp_path / "single.npy", good["q"])
    (tmp_path / "text.npz").write_text("text")
    done = cli("verify", path, "--inputs", "good.npz", cwd=tmp_path)
    assert "good.npz" in done.stdout and "seed" not in done.stdout
    for name, words in (
        ("missing.npz", "missing.npz: the model's input v is missing"),
        ("other.npz", "other.npz: mask is no input of the model"),
        ("flat.npz", "flat.npz: k: 2x24x16xfloat32 does not fit the model's input, which is 1x2xSx16xfloat32"),
        ("double.npz", "double.npz: k: 1x2x24x16xfloat64 does not fit"),
        ("single.npy", "single.npy: one array without a name"),
        ("text.npz", "text.npz: cannot be read as .npz"),
        ("none.npz", "none.npz: cannot be read as .npz"),
    ):
        assert words in error_line(cli("verify", path, "--inputs", name, cwd=tmp_path, code=2))
    assert "--dim" in error_line(cli("verify", path, "--inputs", "good.npz", "--dim", "S=3", cwd=tmp_path, code=2))
    assert "--inputs" in error_line(cli("verify", "--case", "tiny", "--inputs", "good.npz", cwd=tmp_path, code=2))

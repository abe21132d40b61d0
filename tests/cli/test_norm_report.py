"""What commands and reports say of norms."""

from __future__ import annotations

from pathlib import Path

import onnx
import onnx.parser

from tests.cli.test_cli import cli, report

MODEL = """<ir_version: 9, opset_import: ["" : 18]> g (float16[4,64] x, float16[4,64] r, float16[64] s, float16[64] b)
=> (float16[4,64] y) { t = Add(x, r) y = LayerNormalization (t, s, b) }"""
LINE = "1 of 4x64, sum, layer norm, scale, bias: norm_"


def test_commands(tmp_path: Path) -> None:
    path = tmp_path / "a.onnx"
    onnx.save(onnx.parser.parse_model(MODEL), path)
    said = cli("compile", path, "-o", "a.vmfb", "--target", "cuda", "--report", "c.json", "-v", cwd=tmp_path).stderr
    assert "a.vmfb: 1 norm, 1 with a kernel\n" in said and LINE in said
    (found,) = report(tmp_path / "c.json")["norms"]
    assert (found["rows"], found["N"], found["kind"], found["gives_sum"]) == (
        4,
        64,
        "sum, layer norm, scale, bias",
        False,
    )
    assert f"kernels of norms: {found['kernel']}_rows\n" in cli("inspect", "a.vmfb", cwd=tmp_path).stdout
    kept = cli("inspect", path, "--target", "cuda", "--kernels", "iree", "--report", "i.json", cwd=tmp_path).stdout
    assert "the compiler's: --kernels iree" in kept and report(tmp_path / "i.json")["norms"][0]["kernel"] is None
    other = cli("inspect", path, "--target", "vulkan", "--report", "o.json", cwd=tmp_path).stdout
    assert "norms" not in other and report(tmp_path / "o.json")["norms"] == []
    cli("compile", path, "-o", "b.vmfb", "--target", "cpu-avx2", "--report", "b.json", cwd=tmp_path)
    (found,) = report(tmp_path / "b.json")["norms"]
    assert found["tiles"] == {"lanes": 8, "rows": 128} and found["tuning"] == "built in: a rule"
    assert f"kernels of norms: {found['kernel']}_rows\n" in cli("inspect", "b.vmfb", cwd=tmp_path).stdout

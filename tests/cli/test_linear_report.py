"""What commands and reports say of linear sites."""

from __future__ import annotations

from pathlib import Path

import pytest

from onnx_fa.iree.inspect import is_linear
from onnx_fa.iree.kernel_report import LinearReport, grouped, summary
from onnx_fa.spec.linear import Bits, LinearSpec
from onnx_fa.spec.linear_words import weight_words
from tests.cli.test_cli import cli, report
from tests.support import tiny

KINDS = [("64x64x64", 3, []), ("64x64x256", 1, ["bias", "relu"]), ("64x256x64", 1, ["residual"])]


@pytest.mark.parametrize(("options", "kept"), [([], ""), (["--kernels", "iree"], "--kernels iree")])
def test_inspect_and_its_report(tmp_path: Path, options: list[str], kept: str) -> None:
    path = tiny.layer(tmp_path / "a.onnx")
    text = cli("inspect", path, "--target", "cpu-avx512", *options, "--report", "r.json", cwd=tmp_path).stdout
    found = report(tmp_path / "r.json")["linear"]
    assert [(f"{g['rows']}x{g['K']}x{g['N']}", g["count"], g["follows"]) for g in found] == KINDS
    for group, (size, count, follows) in zip(found, KINDS, strict=True):
        assert group["kept"] == kept and (group["kernel"] is None) == bool(kept)
        row = next(line for line in text.splitlines() if f"{count}  " in line and f" {size} " in line)
        assert ", ".join(follows) in row and (f"the compiler's: {kept}" if kept else str(group["kernel"])) in row
    assert found[0]["names"] == ["a", "b", "c"]


def test_compile_import_and_the_module(tmp_path: Path) -> None:
    path = tiny.layer(tmp_path / "a.onnx")
    cli("import", path, "-o", "a.mlir", "--target", "cpu-avx512", "--report", "i.json", cwd=tmp_path)
    said = cli(
        "compile", path, "-o", "a.vmfb", "--target", "cpu-avx512", "--report", "c.json", "-v", cwd=tmp_path
    ).stderr
    assert "a.vmfb: 5 linear sites, 5 with a kernel\n" in said
    assert "1 of 64x64x256, weight f32, then bias, relu: linear_" in said
    found = report(tmp_path / "c.json")["linear"]
    assert found == report(tmp_path / "i.json")["linear"]
    text = cli("inspect", "a.vmfb", cwd=tmp_path).stdout
    assert all(f"{group['kernel']}_tiles" in text for group in found)


def test_a_model_without_any(tmp_path: Path) -> None:
    path = tiny.attention(tmp_path / "a.onnx")
    assert "no linear sites" in cli("inspect", path, "--report", "r.json", cwd=tmp_path).stdout
    assert report(tmp_path / "r.json")["linear"] == []


def test_the_line_of_many() -> None:
    one = LinearSpec((1,), 64, 64, "f32")
    bits = LinearSpec(("n",), 64, 64, "f32", True, Bits(4, 32, "f32"))
    sites = [
        LinearReport("a", one, kept="few rows"),
        LinearReport("b", bits, "bits4"),
        LinearReport("c", bits, "bits4"),
    ]
    assert [(g.names, g.size, weight_words(g.spec)) for g in grouped(sites)] == [
        (("a",), "1x64x64", "f32"),
        (("b", "c"), "?x64x64", "4 bits, blocks of 32"),
    ]
    assert summary(sites) == "3 linear sites, 2 with a kernel, 1 left to the compiler (few rows)"
    half = LinearReport("d", LinearSpec((9,), 64, 64, "f16"), kept="f16 on a CPU")
    assert summary([sites[0], half, half]).endswith("3 left to the compiler (1 of few rows, 2 of f16 on a CPU)")
    assert summary([]) == "no linear sites"


@pytest.mark.parametrize(
    ("export", "wanted"),
    [
        ("linear_f04f49470a_tiles", True),
        ("linear_f04f49470a_few", True),
        ("bits4_1x64x64_32_f32_product", True),
        ("bits4_1x64x64_32_f32_packed_rounded_product", True),
        ("bits4_nx64_32_round_zeros", True),
        ("fa_f04f49470a_attention_fill", False),
        ("main_graph$async_dispatch_0_matmul_like_64x64x64_f32", False),
    ],
)
def test_names_of_dispatches(export: str, wanted: bool) -> None:
    assert is_linear(export) == wanted

"""What commands and reports say of linear sites."""

from __future__ import annotations

from pathlib import Path

import pytest

from onnx_fa.iree.kernel_report import LinearReport, grouped, summary
from onnx_fa.iree.vmfb_facts import is_linear
from onnx_fa.kernels.cpu.linear_measured import COMPILER, FASTER
from onnx_fa.kernels.row_sites import kept_why, origin_of
from onnx_fa.kernels.tiles.database import FOLDER_ENV, Choice, Database, Entry
from onnx_fa.kernels.tiles.families import family
from onnx_fa.spec.linear import Bits, LinearSpec
from onnx_fa.spec.linear_words import weight_words
from onnx_fa.spec.norm import NormSpec
from onnx_fa.spec.target import parse_target
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
        assert (group["tiles"] is None) == (group["tuning"] is None) == bool(kept)
        if not kept:
            assert str(group["tuning"]).startswith("cpu-avx512: linear f32 many rows, narrow K, narrow N")
            assert f"{size}: {group['tuning']}" in text.replace("64x64x256, ", "") or size == "64x64x256"
            assert " ".join(f"{k}={v}" for k, v in group["tiles"].items()) in row  # type: ignore[attr-defined]
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


@pytest.mark.parametrize(
    ("spec", "target", "kept", "tuning"),
    [
        (LinearSpec((512,), 768, 768, "f32"), "cpu-avx512", "", "cpu-avx512: linear f32 many rows, medium K, medium N"),
        (LinearSpec((512,), 768, 768, "f32"), "cpu-avx512", "--kernels iree", ""),
        (
            LinearSpec((64,), 64, 64, "f32", stored="bf16"),
            "cpu-avx512",
            "",
            "built in: nothing was measured of f32 by bf16",
        ),
        (LinearSpec((512,), 768, 768, "f16"), "cuda", "", "cuda-linear-sm_90: f16 512x768x768; the same product"),
        (LinearSpec((500,), 768, 768, "f16"), "cuda", "", "cuda-linear-sm_90: f16 512x768x768; nearest"),
        (
            LinearSpec(("b", "s"), 768, 768, "f16"),
            "cuda",
            "",
            "built in: a rule for rows that only a run knows, measured on an H200",
        ),
        (LinearSpec((1,), 64, 64, "f16"), "cuda", "", "built in: few rows"),
        (LinearSpec((1,), 64, 64, "f16"), "cuda", "--kernels iree", ""),
        (NormSpec((4,), 64, "f16", "f16", 1e-5), "cuda", "", "built in: a rule, measured on an H100"),
    ],
)
def test_where_tiles_are_from(spec: LinearSpec | NormSpec, target: str, kept: str, tuning: str) -> None:
    found = origin_of(spec, parse_target(target), kept)
    assert found.tuning.startswith(tuning) and bool(found.tuning) == bool(tuning) == bool(found.tiles)


def test_tiles_of_the_newest_gpu() -> None:
    """Of an H200's code, which has more stages than an A100's."""
    found = origin_of(LinearSpec(("b", "s"), 768, 768, "f16"), parse_target("cuda"), "")
    assert dict(found.tiles) | {"BM": 128, "BN": 128, "BK": 64, "warps": 4, "stages": 3} == dict(found.tiles)


def test_the_entry_that_has_the_compiler_in_front(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Names the entry, and no tiles."""
    spec, target = LinearSpec((512,), 768, 768, "f32"), parse_target("cpu-avx512")
    slower = Choice(dict(origin_of(spec, target).tiles), 1.5)
    entry = Entry(family(spec, "linear"), "a case", {"machine": "m"}, (Choice(COMPILER, 1.0), slower))
    (tmp_path / "cpu-avx512.json").write_text(Database("cpu-avx512", (entry,)).to_json())
    monkeypatch.setenv(FOLDER_ENV, str(tmp_path))
    assert kept_why(spec, target) == FASTER
    found = origin_of(spec, target, FASTER)
    assert found.tiles == () and found.tuning == f"cpu-avx512: {entry.family}; the same family"


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

"""Kernels that the driver compiles side by side: each once, by its own entry."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

import bench_gpu  # noqa: E402
import gpu_loading  # noqa: E402
import search_known  # noqa: E402
import search_tiles  # noqa: E402


def test_every_kernel_is_loaded_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for n in range(5):
        (tmp_path / f"k{n}.ptx").write_text(f".visible .entry fa{n}(\n")
    found = list[tuple[str, str]]()

    def module(path: str) -> SimpleNamespace:
        return SimpleNamespace(get_function=lambda entry: found.append((Path(path).name, entry)))

    monkeypatch.setitem(sys.modules, "cupy", SimpleNamespace(RawModule=module))
    for first in range(3):
        gpu_loading.load_kernels(tmp_path, f"{first}:3")
    assert sorted(found) == [(f"k{n}.ptx", f"fa{n}") for n in range(5)]


def test_slices_are_all_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process for each processor but two, whose part follows the arguments."""
    script, out = tmp_path / "script.py", tmp_path / "out"
    script.write_text(
        "import pathlib, sys\npathlib.Path(sys.argv[1], sys.argv[-1]).write_text(' '.join(sys.argv[2:]))\n"
    )
    out.mkdir()
    monkeypatch.setattr("os.cpu_count", lambda: 5)
    assert [p.wait() for p in gpu_loading.start_slices(str(script), str(out), "load")] == [0, 0, 0]
    said = {path.name: path.read_text() for path in out.iterdir()}
    assert said == {part: f"load --slice {part}" for part in ("0:3", "1:3", "2:3")}
    taken = [n for part in said for n in list(range(10))[gpu_loading.slice_of(part)]]
    assert sorted(taken) == list(range(10))


def test_all_scripts_load_alike() -> None:
    for script in (bench_gpu, search_known, search_tiles):
        assert script.load_kernels is gpu_loading.load_kernels and script.start_slices is gpu_loading.start_slices

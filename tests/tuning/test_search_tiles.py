"""The search over shapes: what it would compile may run, its shapes are within bounds, its samples are the package's table."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import pytest

from onnx_fa.kernels.tiles.database import package_path, shape_table
from onnx_fa.kernels.tiles.shapes import parse_shapes
from onnx_fa.kernels.triton.columns import columns_computed

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

import search_known  # noqa: E402
import search_tiles  # noqa: E402


def test_kernels() -> None:
    found = list(search_tiles.kernels())
    assert len({(spec, config) for spec, config in found}) == len(found) > 300
    assert all((config.BM == 16) == isinstance(spec.Sq, int) for spec, config in found)
    assert {(spec.D, spec.Dv) for spec, _ in found} == {*search_tiles.DIMS}


@pytest.mark.parametrize(("few", "causal"), [(0, False), (0, True), (4, False)])
def test_shapes(few: int, causal: bool) -> None:
    found = search_tiles.shapes(few, 96, 96, causal)
    assert found == search_tiles.shapes(few, 96, 96, causal) and len(found) >= 24
    for heads, Sq, Skv in found:
        assert 64 <= Skv <= 1 << 15 and heads <= search_tiles.CAPACITY
        assert Sq == few if few else (Sq == Skv or not causal)
    drawn = found[4 if few else len(search_tiles.LARGE) :]
    assert all(2e-9 * h * q * k * 192 / (1 + causal) <= search_tiles.GFLOP for h, q, k in drawn)


def test_table(tmp_path: Path) -> None:
    """The committed samples give the committed table, and each sample is in it."""
    for name, gpu in (("tiles", "h100"), ("tiles-known", "h100"), ("tiles-cluster", "h200")):
        shutil.copy(ROOT / "benchmarks" / f"{name}-{gpu}.csv", tmp_path / f"{name}.csv")
    text = search_tiles.table_text(tmp_path)
    assert text == package_path(shape_table(90)).read_text()
    table = parse_shapes("x", json.loads(text))
    times, _ = search_tiles.read(tmp_path)
    any_size = [m for m in table.shapes if not m.known]
    assert len(any_size) == len(times)
    kept = [search_tiles.fastest_order(search_tiles.without_left_out(*x)) for x in times.items()]
    assert sum(len(m.ms) for m in any_size) == sum(map(len, kept))
    clusters = search_known.read_known(tmp_path / "tiles-cluster.csv")
    assert [len(m.ms) for m in table.apart] == [len(search_tiles.fastest_order(ms)) for ms in clusters.values()]
    known = search_known.read_known(tmp_path / "tiles-known.csv")
    fastest = {
        s: search_tiles.fastest_order(ms) for s, ms in known.items() if all(columns_computed(d) == d for d in s[:2])
    }
    assert sorted(len(ms) for ms in fastest.values()) == sorted(len(m.ms) for m in table.shapes if m.known)
    few = [i for i, t in enumerate(table.tiles) if t["BM"] == 16 and t["warps"] == 8]
    assert not any(m.ms.keys() & set(few) for m in any_size)
    high = [i for i, t in enumerate(table.tiles) if (t["BM"], t["BN"], t["warps"], t["overlap"]) == (128, 64, 8, 0)]
    assert {(m.shape.causal, m.shape.Skv < 768) for m in any_size if m.ms.keys() & set(high)} == {(0, True)}


def test_orders_and_what_is_left_out() -> None:
    high, few = search_tiles.LEFT_OUT + "1/0", "16x128/8/1/0/32/0"
    found = {"64x64/4/2/0/1/0": 2.0, "64x64/4/2/0/1/1": 1.0, "cuDNN": 0.5, high: 0.1}
    assert search_tiles.fastest_order(found) == {"64x64/4/2/0/1": 1.0, search_tiles.LEFT_OUT + "1": 0.1}

    def kept(what: str, causal: int, Skv: int) -> bool:
        return what in search_tiles.without_left_out((64, 64, causal, 8, Skv, Skv), {what: 1.0})

    assert kept(high, 0, 767) and kept("64x64/4/2/0/1/0", 1, 4096)
    assert not (kept(high, 0, 768) or kept(high, 1, 100) or kept(few, 0, 100))

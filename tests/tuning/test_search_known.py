"""The search on shapes beside slow drawn ones: a neighbour is near and no drawn case, and what is tried may run."""

from __future__ import annotations

import csv
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from onnx_fa.kernels.plan.folding import fold_queries
from onnx_fa.kernels.triton.columns import columns_computed
from onnx_fa.kernels.triton.tiles import can_run, is_few, tuned
from onnx_fa.spec.drawn_cases import REPORTED_SEED, draw_cases

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

import search_known  # noqa: E402
import search_tiles  # noqa: E402

DRAWN = [c.spec for c in draw_cases("gpu", REPORTED_SEED, 100)]


def test_neighbours() -> None:
    """They have other lengths, of the same kind, and none of them is a drawn case."""
    for spec in DRAWN:
        found = search_known.neighbour(spec)
        assert found == search_known.neighbour(spec) and found not in DRAWN
        assert replace(found, Sq=spec.Sq, Skv=spec.Skv) == spec
        assert (found.Sq == found.Skv or spec.Sq != spec.Skv) and (found.Sq == 1) == (spec.Sq == 1)
        assert (int(found.Skv) % 64 == 0 or int(spec.Skv) % 64) and found.Skv != spec.Skv
        assert 64 <= int(found.Skv) <= max(int(spec.Skv) + 64, int(1.4 * int(spec.Skv)))


@pytest.mark.parametrize("n", range(0, 100, 9))
def test_candidates(n: int) -> None:
    """The tiles in use come first, and all have a chance to run."""
    spec = fold_queries(DRAWN[n])
    found = list(search_known.candidates(spec))
    assert found[0] == tuned(spec, 90)[0] and len(set(found)) == len(found) > 3
    assert all(can_run(spec, c, 90) and (c.BM <= 16) == is_few(spec) for c in found)
    if not spec.masks:
        assert {c.order for c in found} == {0}


def test_heads_of_one_tile() -> None:
    with search_known.one_tile():
        assert columns_computed(72) == 128
    assert columns_computed(72) == 80


def test_what_the_table_gets(tmp_path: Path) -> None:
    """Medians of neighbours, those of heads in one tile as such; nothing of drawn cases."""
    with (tmp_path / "tiles-known.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(("case", "kind", *search_known.SIZES, "what", "ms"))
        writer.writerow(("a", "drawn", 80, 80, 0, 8, 500, 500, "64x64/4/2/0/1/0", "9 9"))
        writer.writerow(("b", "neighbour", 80, 80, 0, 8, 600, 600, "64x64/4/2/0/1/0", "1 2 7"))
        writer.writerow(("b", "neighbour", 80, 80, 0, 8, 600, 600, "64x64/4/2/0/1/0 128 columns", "3 4 9"))
        writer.writerow(("b", "neighbour", 80, 80, 0, 8, 600, 600, "cuDNN", "0.5"))
    found = search_tiles.read_known(tmp_path)
    assert found == {
        (80, 80, 0, 8, 600, 600): {"64x64/4/2/0/1/0": 2.0, "cuDNN": 0.5},
        (128, 128, 0, 8, 600, 600): {"64x64/4/2/0/1/0": 4.0},
    }
    assert search_tiles.read_known(tmp_path / "nothing") == {}

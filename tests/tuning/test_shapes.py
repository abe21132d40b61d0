"""Tiles by measured shapes: the nearest count most, what a shape leaves unused is reckoned, what was not measured is left alone."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any

import pytest

from onnx_fa.kernels.plan.folding import fold_queries
from onnx_fa.kernels.tiles.database import FOLDER_ENV, Pick, package_path, read_database, shape_table
from onnx_fa.kernels.tiles.families import family
from onnx_fa.kernels.tiles.shapes import Measured, Shape, ShapeTable, read_shapes
from onnx_fa.kernels.triton import by_shape, tiles
from onnx_fa.kernels.triton.by_shape import expected, order_of, parts_of_keys, shape_of, tiles_by_shape
from onnx_fa.kernels.triton.module import emit_triton
from onnx_fa.kernels.triton.tiles import can_run, config_of, tuned, tuned_tiles
from onnx_fa.spec.attention import AttentionSpec
from onnx_fa.spec.cases import case
from onnx_fa.spec.drawn_cases import draw_cases
from onnx_fa.spec.switches import Switch
from onnx_fa.spec.target import parse_target
from onnx_fa.spec.terms import Causal, SlidingWindow, Softcap

LOW, HIGH, FEW = ({"BM": rows, "BN": 64, "warps": 4, "stages": 2, "overlap": 0, "splits": 1} for rows in (64, 128, 16))
SHORT, LONG, DECODE = Shape(64, 64, 0, 8, 64, 64), Shape(64, 64, 0, 132, 8192, 8192), Shape(64, 64, 0, 132, 1, 4096)
KINDS = (lambda tiles: tiles["overlap"] == 3, lambda tiles: tiles["overlap"] == 4)
TABLE = ShapeTable(
    "x",
    {"date": "2026-01-01"},
    (LOW, HIGH, FEW),
    (Measured(SHORT, {0: 1.0, 1: 1.5}), Measured(LONG, {0: 1.2, 1: 1.0}), Measured(DECODE, {2: 1.0})),
)


def half(**changes: Any) -> AttentionSpec:
    return case("x", **{"dtype": "f16", "Sq": 256, "Skv": 256, "D": 64, "Dv": 64, "batch": (1,)} | changes).spec


def test_nearest_counts_most() -> None:
    """A shape gets what is best near it, of what fits; one query has tiles of its own."""

    def best(shape: Shape, fits: Any = lambda tiles: True) -> Any:
        found = TABLE.best(shape, fits, lambda tiles, shape: 1.0)
        return found and found[0]

    assert best(SHORT) == best(Shape(64, 64, 0, 8, 100, 100)) == LOW
    assert best(LONG) == best(Shape(64, 64, 0, 100, 5000, 9000)) == HIGH
    assert best(LONG, lambda tiles: tiles["BM"] < 128) == LOW
    assert best(dataclasses.replace(DECODE, Skv=100)) == FEW
    assert best(LONG, lambda tiles: False) is None


def test_what_is_kept_of_a_measured_shape_is_of_its_tiles_and_of_what_is_expected() -> None:
    """Asked with other tiles, or with other things in mind, it answers anew, and as before when it is asked as before."""

    def wasteful(tiles: Any, shape: Shape) -> float:
        return 3.0 if tiles["BN"] == 32 and shape == SHORT else 1.0

    narrow = dataclasses.replace(TABLE, tiles=(LOW, HIGH | {"BN": 32}, FEW))
    near = dataclasses.replace(SHORT, heads=9)
    for _ in range(2):
        assert TABLE.ranked(near, lambda tiles: True, wasteful)[0] == LOW
        assert narrow.ranked(near, lambda tiles: True, wasteful)[0] == HIGH | {"BN": 32}
        assert narrow.ranked(near, lambda tiles: True, lambda *_: 1.0)[0] == LOW


def test_expected_of_many_queries() -> None:
    """Rows past the last query, and multiprocessors in the last round."""
    assert expected(HIGH, Shape(64, 64, 0, 132, 128, 64)) == 1
    assert expected(HIGH, Shape(64, 64, 0, 132, 64, 64)) == 2
    assert expected(LOW, Shape(64, 64, 0, 33, 64, 64)) == 4
    # So tiles that are best where they fill blocks are not taken where they do not.
    table = dataclasses.replace(TABLE, shapes=TABLE.shapes[1:2])
    whole, half_empty = Shape(64, 64, 0, 1320, 128, 512), Shape(64, 64, 0, 1320, 64, 512)
    assert [table.best(s, lambda tiles: True, expected)[0] for s in (whole, half_empty)] == [HIGH, LOW]  # type: ignore[index]


def test_expected_of_a_few_queries() -> None:
    """More parts fill a GPU that few heads leave idle, until blocks are as many; more keys and heads take longer."""

    def us(shape: Shape, splits: int) -> float:
        return expected({**FEW, "BN": 64, "warps": 4, "stages": 3, "splits": splits}, shape)

    few, many = Shape(128, 128, 0, 8, 4, 8192), Shape(128, 128, 0, 1024, 4, 8192)
    assert min((1, 2, 4, 8, 16, 32, 64), key=lambda n: us(few, n)) in (16, 32)
    assert min((1, 2, 4, 8, 16, 32, 64), key=lambda n: us(many, n)) <= 2
    assert us(few, 1) < us(dataclasses.replace(few, Skv=8193), 1) < us(many, 1)


def test_expected_is_near_what_was_measured() -> None:
    """Half of the times of a few queries whose kernels knew their sizes are within 15%."""
    table = read_shapes(shape_table(90))
    assert table is not None
    off = [
        abs(math.log(expected(table.tiles[i], m.shape) / (1000 * ms)))
        for m in table.shapes
        if m.known and m.shape.Sq <= 16
        for i, ms in m.ms.items()
    ]
    assert len(off) > 400 and sorted(off)[len(off) // 2] < 0.15


@pytest.mark.parametrize(
    ("changes", "there"),
    [
        ({}, True),
        ({"masks": (Causal(),)}, True),
        ({"masks": (Causal("end"),)}, True),
        ({"dtype": "bf16", "Sq": 1, "Hq": 8}, True),
        ({"masks": (Causal("end"),), "Sq": 100}, False),
        ({"masks": (SlidingWindow(64, 0),)}, False),
        ({"mods": (Softcap(5.0),)}, False),
        ({"dtype": "f32"}, False),
        ({"Skv": "s"}, False),
        ({"D": 320}, False),
        ({"Sq": 20}, False),
        ({"Skv": 0}, False),
    ],
)
def test_what_has_a_shape(changes: dict[str, Any], there: bool) -> None:
    assert (shape_of(fold_queries(half(**changes))) is not None) == there


def test_order() -> None:
    """Causal, long rows come first, unless K and V of many heads, or of long ones, are more than the cache holds."""

    def order(**changes: Any) -> int:
        return order_of(half(**{"masks": (Causal(),), "Sq": 1024, "Skv": 1024} | changes))

    assert (order(masks=()), order(Hq=32, Hkv=32)) == (0, 1)
    assert (order(Hq=200, Hkv=200), order(Hq=200, Hkv=25)) == (0, 1)
    counted = [order(Hq=n, Hkv=100, Sq=512, Skv=512) for n in (200, 3200)]  # queries count, too
    assert counted == [1, 0]
    assert order(Hq=32, Hkv=32, Sq=8192, Skv=8192) == 1  # many workgroups share a head
    assert order(Hq=8, Hkv=8, Sq=1 << 17, Skv=1 << 17) == 0  # but those of a long one fill a GPU
    found = tiles_by_shape(half(masks=(Causal(),), Hq=200, Hkv=200), TABLE, lambda tiles: True)
    assert found is not None and found[0]["order"] == 1  # 256 keys of each fit


def test_few_workgroups() -> None:
    """Keys of many queries are split where a GPU would have few workgroups, the more the narrower heads are, and no part has few
    keys."""
    for shape, parts in {
        Shape(64, 64, 0, 4, 309, 6009): 16,
        Shape(64, 64, 0, 4, 64, 32000): 32,  # there are no more
        Shape(64, 64, 0, 64, 64, 6000): 8,
        Shape(128, 128, 0, 64, 64, 6000): 4,
        Shape(256, 256, 0, 64, 64, 6000): 2,
        Shape(256, 256, 0, 80, 64, 6000): 1,  # two parts would be more than one workgroup of each multiprocessor
        Shape(64, 64, 0, 132, 64, 6000): 1,
        Shape(32, 32, 0, 116, 64, 1732): 1,  # parts of 320 keys would be four, and a multiprocessor takes eight
        Shape(64, 64, 1, 4, 309, 6009): 1,
        Shape(64, 64, 0, 4, 309, 500): 1,
        Shape(64, 64, 0, 4, 1, 6009): 1,
    }.items():
        assert parts_of_keys(shape) == parts, shape
    spec = half(Sq=72, Skv=6074, Hq=4, Hkv=4)
    found = tiles_by_shape(spec, TABLE, lambda tiles: True)
    assert found is not None and found[0] == by_shape.SPLIT_TILES | {"splits": 16} and "keys are split" in found[1]
    # The table has tiles with parts, of shapes that the rule is for.
    parts = dataclasses.replace(
        TABLE, tiles=(LOW | {"splits": 4}, HIGH, FEW), shapes=(Measured(SHORT, {0: 1.0, 1: 2.0}),)
    )
    kept = tiles_by_shape(half(Hq=200, Hkv=200, Sq=512, Skv=512), parts, lambda tiles: True)
    assert kept is not None and kept[0]["BM"] == HIGH["BM"] and kept[0]["splits"] == 1


def test_distance() -> None:
    """Of many queries the blocks of keys count besides the keys: 65 are as far from 64 as from 128."""
    base = Shape(64, 64, 0, 8, 512, 64)
    one, two, few = (dataclasses.replace(base, Skv=n) for n in (63, 65, 128))
    assert base.distance(one) < 0.1 < two.distance(few) < base.distance(two) + 0.1
    decode = dataclasses.replace(base, Sq=1)
    assert decode.distance(dataclasses.replace(decode, Skv=65)) < 0.1


def test_package_table() -> None:
    """All tiles of the package's table run on Hopper, times are above zero, and each shape's own best are near the best picked."""
    table = read_shapes(shape_table(90))
    assert table is not None and package_path(shape_table(90)).is_file() and len(table.shapes) > 400
    slower = []
    for m in table.shapes:
        assert all(ms > 0 for ms in m.ms.values()) and m.ms
        spec = half(D=m.shape.D, Dv=m.shape.Dv, Skv=m.shape.Skv, masks=(Causal(),) * m.shape.causal)
        assert all(can_run(spec, config_of(spec, table.tiles[i]), 90) for i in m.ms)
    shapes = table.shapes[::5]
    for m in shapes:
        tried = [table.tiles[i] for i in m.ms]
        best = table.best(m.shape, lambda tiles, tried=tried: tiles in tried, expected)
        assert best is not None
        slower.append(m.ms[table.tiles.index(best[0])] / min(m.ms.values()))
    assert sum(slower) / len(slower) < 1.05


def test_drawn_cases_have_tiles() -> None:
    """What is drawn at random has tiles of the table, or split keys, which fit it, and as many splits as there are keys for."""
    for c in draw_cases("gpu", 5, 60):
        spec = fold_queries(c.spec)
        config, reason = tuned(spec, 90)
        assert reason.startswith("cuda-shapes-sm_90: around") or "keys are split" in reason, reason
        assert can_run(spec, config, 90) and (config.BM <= 16) == (int(spec.Sq) <= 16)
        assert config.splits == 1 or config.splits * config.BN < 2 * int(spec.Skv)
    assert tuned(half(), 80)[1].startswith("built in")
    assert not tuned(half(Sq=4096, Skv=4096), 90, frozenset({Switch.OVERLAPPING}))[0].overlap


def test_variants_have_as_many_parts() -> None:
    """Code for other GPUs writes as many parts as Hopper's, whose tiles say how many."""
    for spec in (half(Sq=1, Skv=4096, Hq=8), half(Sq=72, Skv=6074, Hq=4, Hkv=4)):
        kernel = emit_triton(spec, parse_target("cuda"), "fa_0000000000")
        assert kernel.config["splits"] == kernel.config["splits_sm_80"] > 1
        assert kernel.text.count("flow.dispatch {") == (1 if spec.Sq == 1 else 2)


def test_what_is_measured_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A user's own database goes first, and so does an entry of the very family that is newer than the table."""
    spec = half(Sq=4096, Skv=4096, Hq=4, Hkv=4)
    assert "cuda-shapes" in tuned_tiles(spec, 90)[1]
    (entry, *_) = [e for e in read_database("cuda-sm_90").entries if e.family == family(spec, "triton")]
    newer = Pick(dataclasses.replace(entry, measured={"date": "2999-01-01"}), entry.choices[0], "newer", "newer")
    with monkeypatch.context() as patched:
        patched.setattr(tiles, "pick", lambda *arguments: newer)
        assert tuned_tiles(spec, 90) == (entry.choices[0].tiles, "newer")
        assert "cuda-shapes" in tuned_tiles(half(Sq=100, Skv=100), 90)[1]  # of another family
    (tmp_path / "cuda-sm_90.json").write_text(read_database("cuda-sm_90").to_json())
    monkeypatch.setenv(FOLDER_ENV, str(tmp_path))
    assert tuned_tiles(spec, 90)[1].startswith("cuda-sm_90: ")


def test_later_tiles() -> None:
    """Tiles that were tried on some shapes alone are compared with the others on those, and have what is best of them there."""
    stays = [LOW | {"overlap": 3, "BM": rows} for rows in (128, 192)]
    shapes = (
        Measured(SHORT, {0: 1.0, 1: 1.5, 3: 2.0}),
        Measured(LONG, {0: 1.2, 1: 1.0, 3: 0.9, 4: 0.8}),
        *(Measured(dataclasses.replace(LONG, Skv=8192 + n), {0: 0.8, 1: 0.9}) for n in range(1, 9)),
    )
    table = dataclasses.replace(TABLE, tiles=(LOW, HIGH, FEW, *stays), shapes=shapes)

    def best(shape: Shape, fits: Any = lambda tiles: True, waste: Any = lambda tiles, shape: 1.0) -> Any:
        found = table.best(shape, fits, waste, KINDS)
        return found and found[0]

    assert (best(SHORT), best(LONG)) == (LOW, stays[1])
    assert best(LONG, lambda tiles: tiles["BM"] < 192) == stays[0]
    assert best(LONG, lambda tiles: not tiles["overlap"]) == LOW
    assert best(SHORT, lambda tiles: tiles["overlap"] == 3) == stays[0]  # where nothing else fits
    other = dataclasses.replace(SHORT, Skv=100, heads=1)
    held = dataclasses.replace(
        table, tiles=(*table.tiles, LOW | {"overlap": 4}), shapes=(*shapes, Measured(other, {1: 1.0, 5: 0.5}))
    )
    found = held.best(other, lambda tiles: True, lambda *x: 1.0, KINDS)
    assert found is not None and found[0]["overlap"] == 4  # of two kinds the one that is further ahead
    new = dataclasses.replace(LONG, heads=131)
    assert best(new, waste=lambda tiles, shape: 1.5 if tiles["BM"] == 192 and shape == new else 1.0) == stays[0]

"""The tuning database: every file is sound, the nearest entry is found and named, a bad file is refused with its place."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from onnx_fa.errors import OnnxFaError
from onnx_fa.kernels.choose import emit_kernel
from onnx_fa.kernels.cpu.linear_body import LinearTiles
from onnx_fa.kernels.cpu.linear_measured import COMPILER
from onnx_fa.kernels.cpu.vector import VectorConfig, tuned
from onnx_fa.kernels.iree_gpu.tiles import GpuConfig
from onnx_fa.kernels.tiles.database import (
    FOLDER_ENV,
    Choice,
    Database,
    Entry,
    Refused,
    database_name,
    package_path,
    parse,
    pick,
    read_database,
)
from onnx_fa.kernels.tiles.families import Family, LinearFamily, distance, family
from onnx_fa.kernels.triton.config import TritonConfig
from onnx_fa.kernels.triton.linear_source import LinearConfig
from onnx_fa.kernels.triton.linear_tiles import PRODUCT
from onnx_fa.kernels.triton.tiles import WORKGROUPS
from onnx_fa.spec.attention import AttentionSpec
from onnx_fa.spec.linear import Bits, LinearSpec
from onnx_fa.spec.target import TARGET_NAMES, parse_target
from onnx_fa.spec.terms import AddMask, BoolMask, Causal, SlidingWindow

FILES = sorted(p for p in package_path("x").parent.glob("*.json") if not p.name.startswith("cuda-shapes-"))
"""Of the tuner; the table of shapes has a reader and tests of its own."""
AVX512 = parse_target("cpu-avx512")


def _spec(**changes: object) -> AttentionSpec:
    base = {"dtype": "f32", "Hq": 4, "Hkv": 4, "Sq": 512, "Skv": 512, "D": 64, "Dv": 64, "batch": (1,)}
    return AttentionSpec(**(base | changes))  # type: ignore[arg-type]


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_every_file(path: Path) -> None:
    database = parse(path.read_text(), path.name)
    assert database.target == path.stem and database.entries
    assert parse(database.to_json(), "again") == database
    families = [(e.family, str(e.measured.get(PRODUCT))) for e in database.entries]
    assert len(set(families)) == len(families)
    for entry in database.entries:
        assert entry.choices and entry.case and {"machine", "method"} <= set(entry.measured)
        assert min(c.cost for c in entry.choices) == 1.0
        tiles = [(tuple(sorted(c.tiles.items())), c.flags) for c in entry.choices]
        assert len(set(tiles)) == len(tiles)
        bodies: dict[str, type] = {"vector": VectorConfig, "triton": TritonConfig, "linear": LinearTiles}
        bodies["triton_linear"] = LinearConfig
        if entry.family.body in bodies:
            for c in entry.choices:
                if c.tiles == COMPILER:
                    continue
                bodies[entry.family.body](**{k: v for k, v in c.tiles.items() if k != WORKGROUPS})


@pytest.mark.parametrize("name", [n for n in TARGET_NAMES if not parse_target(n).is_gpu])
def test_every_cpu_has_a_database(name: str) -> None:
    assert f"{database_name(parse_target(name))}.json" in [p.name for p in FILES]


def test_database_by_registers() -> None:
    assert database_name(dataclasses.replace(AVX512, name="cpu-host")) == "cpu-avx512"
    assert database_name(dataclasses.replace(AVX512, lanes=4, registers=16)) == "cpu-avx2"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, ("many", "short", "none")),
        ({"Sq": 1, "Skv": 1024}, ("one", "medium", "none")),
        ({"Sq": 63, "Skv": 8192, "masks": (Causal(),)}, ("few", "long", "causal")),
        ({"Sq": "s", "Skv": "t", "masks": (SlidingWindow(4), Causal())}, ("dynamic", "dynamic", "window")),
        ({"masks": (BoolMask((1, 1, 1, 512)), Causal())}, ("many", "short", "tensor")),
        ({"masks": (AddMask((512,)),)}, ("many", "short", "tensor")),
    ],
)
def test_family(changes: dict[str, object], words: tuple[str, str, str]) -> None:
    found = family(_spec(**changes), "vector")
    assert (found.Sq, found.Skv, found.mask) == words and (found.body, found.D, found.group) == ("vector", 64, 1)


def _entry(bm: int, cost: float = 1.0, **changes: object) -> Entry:
    f = dataclasses.replace(family(_spec(), "vector"), **changes)  # type: ignore[arg-type]
    tiles = {"lanes": 16, "BM": bm, "BK": 64, "tile_keys": 8, "tile_dims": 8, "unroll": 4}
    return Entry(f, "a case", {"machine": "m"}, (Choice(tiles, cost),))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(FOLDER_ENV, str(tmp_path))
    return tmp_path


def test_the_nearest_entry_is_picked_and_named(folder: Path) -> None:
    entries = (_entry(16), _entry(32, D=128, Dv=128), _entry(48, mask="causal"), _entry(64, Sq="few"))
    (folder / "cpu-avx512.json").write_text(Database("cpu-avx512", entries).to_json())

    def picked(spec: AttentionSpec) -> tuple[int, str]:
        config, found = tuned(spec, AVX512)
        return config.BM, found.reason

    assert picked(_spec()) == (16, "cpu-avx512: vector f32 D64 many queries, short keys, mask none; the same family")
    bm, why = picked(_spec(D=96, Dv=128))
    assert bm == 32 and "differs in D (128, not 96)" in why
    bm, why = picked(_spec(masks=(SlidingWindow(9),)))
    assert bm == 48 and "differs in mask (causal, not window)" in why
    bm, why = picked(_spec(Sq=20, Skv=2000))
    assert bm == 64 and "differs in Skv (short, not medium)" in why
    assert picked(_spec(Sq="s", Skv="t"))[0] == 16
    kernel = emit_kernel(_spec(), AVX512)
    assert kernel.config["BM"] == 16 and kernel.tuning == picked(_spec())[1]


def test_other_bodies_and_tiles_that_do_not_fit_are_passed_over(folder: Path) -> None:
    near, far = _entry(16), _entry(32, D=256, Dv=256)
    path = folder / "cpu-avx512.json"
    path.write_text(Database("cpu-avx512", (near, far, _entry(64, body="few"))).to_json())

    def bm(fits: int) -> int | None:
        found = pick(AVX512, "vector", _spec(), lambda t: t["BM"] == fits, lambda t: 1)
        return found and found.choice.tiles["BM"]

    assert [bm(n) for n in (16, 32, 64)] == [16, 32, None]


def test_padding_counts(folder: Path) -> None:
    entry = dataclasses.replace(_entry(16), choices=(*_entry(48).choices, *_entry(16, 1.1).choices))
    (folder / "cpu-avx512.json").write_text(Database("cpu-avx512", (entry,)).to_json())
    assert tuned(_spec(Sq=96), AVX512)[0].BM == 48
    config, found = tuned(_spec(Sq=64), AVX512)  # 64 queries in tiles of 48 are computed as 96
    assert config.BM == 16 and "not its fastest tiles" in found.reason


def test_flags_of_a_choice_reach_the_kernel(folder: Path) -> None:
    choice = dataclasses.replace(_entry(16).choices[0], flags=("--iree-llvmcpu-loop-unrolling",))
    entry = dataclasses.replace(_entry(16), choices=(choice,))
    (folder / "cpu-avx512.json").write_text(Database("cpu-avx512", (entry,)).to_json())
    assert "--iree-llvmcpu-loop-unrolling" in emit_kernel(_spec(), AVX512).flags


def test_new_entries_replace_their_family() -> None:
    old = Database("t", (_entry(16), _entry(32, D=128)))
    new = dataclasses.replace(_entry(48), refused=(Refused({"BM": 1}, "wrong"),))
    assert old.with_entries((new,)).entries == (new, old.entries[1])


@pytest.mark.parametrize(
    ("body", "before", "now"),
    [
        (
            "vector",
            {"W": 16, "BM": 32, "BK": 64, "RI": 8, "RN": 4, "U": 2},
            {"lanes": 16, "BM": 32, "BK": 64, "tile_keys": 8, "tile_dims": 4, "unroll": 2},
        ),
        ("few", {"W": 8, "BK": 64, "RN": 4, "U": 2}, {"lanes": 8, "BK": 64, "tile_dims": 4, "unroll": 2}),
        (
            "gpu",
            {"BM": 64, "BN": 32, "W": 4, "VT": 1, "QS": 0, "ST": 2},
            dataclasses.asdict(GpuConfig(64, 32, 4, 1, 0, 2)),
        ),
        ("triton", {"BM": 64, "BN": 32, "warps": 4, "stages": 2}, {"BM": 64, "BN": 32, "warps": 4, "stages": 2}),
    ],
)
def test_files_of_format_1_are_read(body: str, before: dict[str, int], now: dict[str, int]) -> None:
    """Its fields of tiles had names of one or two letters."""
    entry = dataclasses.replace(_entry(16, body=body), refused=(Refused({"BM": 1}, "wrong"),))
    old = json.loads(Database("t", (entry,)).to_json()) | {"format": 1}
    for kind in ("choices", "refused"):
        old["entries"][0][kind][0]["tiles"] = before
    (read,) = parse(json.dumps(old), "old.json").entries
    assert read.choices[0].tiles == read.refused[0].tiles == now
    assert parse(Database("t", (read,)).to_json(), "new.json").entries == (read,)


def test_distances_of_products() -> None:
    """Between element types, bodies and kinds of sites there is none that a lookup would cross."""
    a = LinearFamily("linear", "f32", "f32", "many", "medium", "wide", True)
    for changes in ({"rows": "few"}, {"rows": "dynamic"}, {"K": "wide"}, {"N": "narrow"}, {"follows": False}):
        b = dataclasses.replace(a, **changes)  # type: ignore[arg-type]
        assert 0 < distance(a, b) == distance(b, a) < float("inf")
    assert distance(a, dataclasses.replace(a, rows="some")) > distance(a, dataclasses.replace(a, K="narrow"))
    for changes in ({"dtype": "bf16"}, {"weight": "bf16"}, {"body": "linear_amx"}):
        assert distance(a, dataclasses.replace(a, **changes)) == float("inf")  # type: ignore[arg-type]
    assert distance(a, Family("linear", "f32", 64, 64, "many", "short", "none", 1)) == float("inf")
    with pytest.raises(ValueError, match="'huge' is not one of narrow"):
        dataclasses.replace(a, K="huge")
    names = {rows: family(LinearSpec((rows,), 511, 2048, "f32"), "linear") for rows in (1, 4, 63, 64, "n")}
    assert [f.rows for f in names.values()] == ["one", "few", "some", "many", "dynamic"]  # type: ignore[union-attr]
    assert str(names["n"]) == "linear f32 dynamic rows, narrow K, wide N"
    bits = LinearSpec((8,), 64, 64, "f16", True, Bits(4, 32, "f16"))
    assert str(family(bits, "linear_staged")).startswith("linear_staged f16 by 4 bits some rows")


def test_entries_of_both_kinds_are_kept_in_one_file() -> None:
    product = Entry(family(LinearSpec((8,), 64, 64, "f32"), "linear"), "x", {}, (Choice(COMPILER, 1.0),))
    both = Database("t", (_entry(16), product))
    assert parse(both.to_json(), "t.json") == both


def test_distance_is_a_distance() -> None:
    a = Family("vector", "f32", 64, 64, "many", "short", "none", 1)
    for changes in ({"dtype": "f16"}, {"D": 128}, {"Sq": "dynamic"}, {"Skv": "long"}, {"mask": "window"}, {"group": 8}):
        b = dataclasses.replace(a, **changes)  # type: ignore[arg-type]
        assert distance(a, b) == distance(b, a) > 0
    assert distance(a, a) == 0 and distance(a, dataclasses.replace(a, body="few")) == float("inf")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda d: "{", "line 1"),
        (lambda d: "[]", "not a tuning database"),
        (lambda d: d | {"format": 9}, "format 9"),
        (lambda d: {"format": 2}, "no field 'target'"),
        (lambda d: d | {"entries": [{}]}, "entry 0: no field 'family'"),
        (lambda d: d | {"entries": [d["entries"][0], d["entries"][0] | {"family": {"body": "x"}}]}, "entry 1"),
        (lambda d: _with(d, cost=0), "cost"),
        (lambda d: _with(d, tiles={"lanes": "8"}), "whole numbers"),
    ],
)
def test_bad_files_are_refused(change: object, words: str) -> None:
    good = json.loads(Database("t", (_entry(16),)).to_json())
    bad = change(good)  # type: ignore[operator]
    with pytest.raises(OnnxFaError, match=r"where\.json: .*") as e:
        parse(bad if isinstance(bad, str) else json.dumps(bad), "where.json")
    assert words in str(e.value) and "\n" not in str(e.value)


def _with(data: dict[str, object], **changes: object) -> dict[str, object]:
    copy = json.loads(json.dumps(data))
    copy["entries"][0]["choices"][0] |= changes
    return copy  # type: ignore[no-any-return]


def test_a_bad_file_in_the_users_folder_is_an_error(folder: Path) -> None:
    (folder / "cpu-neon.json").write_text("{}")
    with pytest.raises(OnnxFaError, match=r"cpu-neon\.json"):
        read_database("cpu-neon")
    assert read_database("no-such-target") == Database("no-such-target")

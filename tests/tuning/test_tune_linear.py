"""The tuner on small products with a weight: what it writes, what it refuses, and what the compiler makes of it. Modules are
real; where times decide, they are made up."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import numpy_helper

from onnx_fa.errors import OnnxFaError, UnsupportedError
from onnx_fa.iree.run import Samples
from onnx_fa.kernels.cpu.linear import kept_why, missing, panel_of, tiles_for
from onnx_fa.kernels.cpu.linear_body import LinearTiles
from onnx_fa.kernels.cpu.linear_measured import COMPILER, FASTER, fitting, rows_computed, tiles_of
from onnx_fa.kernels.tiles.database import FOLDER_ENV, Choice, Database, Entry, Tiles, database_name, parse
from onnx_fa.kernels.tiles.families import family
from onnx_fa.spec.cases import case
from onnx_fa.spec.expr import SCORE, Apply, Float, Tensor
from onnx_fa.spec.linear import LinearSpec, biased
from onnx_fa.spec.linear_cases import LINEAR_CASES, LinearCase
from onnx_fa.spec.site_case import find_case
from onnx_fa.spec.target import Target, parse_target
from onnx_fa.spec.terms import TensorArg
from onnx_fa.tuning import search
from onnx_fa.tuning.command import table_cases, tune
from onnx_fa.tuning.journal import Journal
from onnx_fa.tuning.model_cases import cases_of_model
from onnx_fa.tuning.program import Program
from onnx_fa.tuning.search import Search, Settings
from onnx_fa.tuning.spaces import body_of, space

HOST, AVX2, AVX512, AMX = (parse_target(f"cpu-{name}") for name in ("host", "avx2", "avx512", "amx"))
NAME = database_name(HOST)
QUICK = Settings(rounds=2, calls=1, threads=1, candidates=2)
TINY = LinearCase("tiny", biased(LinearSpec((20,), 24, 96, "f32")), title="20 x 24 x 96")
FREE = LinearCase("free", LinearSpec(("rows",), 24, 96, "f32"), sizes=((("rows", 9),),))


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Databases without an entry, so that the rule says what is in use."""
    for name in ("cpu-avx2", "cpu-avx512", "cpu-neon"):
        (tmp_path / f"{name}.json").write_text(Database(name).to_json())
    monkeypatch.setenv(FOLDER_ENV, str(tmp_path))
    return tmp_path


def _timed(monkeypatch: pytest.MonkeyPatch, ms: Callable[[str], float]) -> None:
    """Times by the function that is called: the compiler's product takes one input less."""

    def bench(vmfb: Path, inputs: list[Path], *, repetitions: int, **options: Any) -> Samples:
        return Samples((ms(Path(inputs[0]).name.split(".")[1]),) * repetitions, 0)

    monkeypatch.setattr(search, "benchmark_module", bench)


@pytest.mark.parametrize("item", [TINY, FREE], ids=lambda c: c.name)
def test_the_compilers_product_is_one_of_the_candidates(item: LinearCase, tmp_path: Path) -> None:
    """It and tiles of the kernel give the right numbers, with adversarial operands too; the entry has all samples."""
    entry = Search(item, HOST, QUICK, tmp_path, Journal(tmp_path / "j", {})).run()
    tried = [dict(c.tiles) for c in entry.choices]
    assert COMPILER in tried and len(tried) >= 2 and not entry.refused
    assert all(c.samples_ms for c in entry.choices) and min(c.cost for c in entry.choices) == 1.0
    rows = "some" if item is TINY else "dynamic"
    then = " and what follows" if item is TINY else ""
    assert str(entry.family) == f"linear f32 {rows} rows, narrow K, narrow N{then}"
    assert {"machine", "date", "versions", "method", "default_cost"} <= set(entry.measured)


_SCALED = Apply("Add", Apply("Mul", SCORE, Tensor(0)), Tensor(1))
SHORTER = {
    "bf16": biased(LinearSpec((20,), 24, 96, "bf16")),
    "f16": biased(LinearSpec((20,), 24, 96, "f16")),
    "stored": biased(LinearSpec((20,), 24, 96, "f32", stored="bf16")),
    "bytes": LinearSpec((20,), 24, 96, "u8", then=_SCALED, tensors=(TensorArg(()), TensorArg((96,))), zero=True),
}


@pytest.mark.parametrize("kind", SHORTER)
def test_types_in_fewer_bits(kind: str, tmp_path: Path) -> None:
    """The compiler's product of each, but where it keeps the weight otherwise, and tiles of the kernel give the right numbers."""
    spec = SHORTER[kind]
    if why := missing(spec, HOST):
        pytest.skip(f"this processor: {why}")
    settings = dataclasses.replace(QUICK, rounds=1)
    entry = Search(LinearCase(kind, spec, title=kind), HOST, settings, tmp_path, Journal(tmp_path / "j", {})).run()
    tried = [c.tiles for c in (*entry.choices, *entry.refused)]
    assert COMPILER in tried and [c for c in entry.choices if c.tiles != COMPILER]
    assert [r.tiles for r in entry.refused] == [COMPILER] * (kind == "stored")


@pytest.mark.parametrize("compilers_is_faster", [True, False])
def test_database_that_the_compiler_uses(
    compilers_is_faster: bool, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who was faster has the site from then on, and those like it; a report says that it was measured."""
    _timed(monkeypatch, lambda layout: 1.0 if (layout == "constant") == compilers_is_faster else 2.0)
    out = folder / "written" / f"{NAME}.json"
    out.parent.mkdir()
    path, (entry,), left_out = tune([TINY], HOST, out, QUICK)
    assert path == out and not left_out and parse(out.read_text(), "x").entries == (entry,)
    monkeypatch.setenv(FOLDER_ENV, str(out.parent))
    other = biased(LinearSpec((40,), 32, 96, "f32"))
    for spec in (TINY.spec, other):
        assert kept_why(spec, HOST) == (FASTER if compilers_is_faster else "")
    assert tiles_of(tiles_for(TINY.spec, HOST)) in [c.tiles for c in entry.choices]
    assert kept_why(LinearSpec((40,), 32, 96, "f16"), HOST) != FASTER


def test_wrong_numbers_are_refused(tmp_path: Path) -> None:
    wrong = dataclasses.replace(TINY.spec, then=Apply("Mul", TINY.spec.then, Float(1.0001)))

    def make(spec: LinearSpec, target: Target, name: str, tiles: Tiles) -> Program:
        return space("linear").emit(spec if tiles == COMPILER else wrong, target, name, tiles)

    entry = Search(TINY, HOST, QUICK, tmp_path, Journal(tmp_path / "j", {}), make=make).run()
    assert [c.tiles for c in entry.choices] == [COMPILER]
    assert entry.refused and all(r.reason.startswith("wrong numbers: relative error") for r in entry.refused)


@pytest.mark.parametrize("target", [AVX2, AVX512], ids=lambda t: t.name)
@pytest.mark.parametrize("item", LINEAR_CASES, ids=lambda c: c.name)
def test_space(item: LinearCase, target: Target) -> None:
    """What is tried fits the site, and its sums the registers."""
    if item.spec.dtype in ("bf16", "u8") and target is AVX512:
        with pytest.raises(UnsupportedError, match=r"no kernel: no AVX512_(BF16|VNNI)"):
            body_of(item.spec, target)
        return
    own = space(body_of(item.spec, target))
    fits = fitting(item.spec, target)
    grid = list(own.first(item.spec, target))
    kernels = [t for t in [*grid, *own.around(item.spec, grid[-1])] if t != COMPILER]
    assert COMPILER in grid and len({tuple(t.values()) for t in kernels}) >= 8 - (item.name == "linear_tiny")
    assert all(fits(t) and t["rows"] * t["vectors"] < target.registers for t in kernels)
    assert list(own.around(item.spec, COMPILER)) == []


def test_amx_has_a_space_for_all_that_it_multiplies() -> None:
    """Bytes and bf16; it is tried where such a processor is."""
    for kind in ("bf16", "u8"):
        for item in (c for c in LINEAR_CASES if f"tune_{kind}" in c.tags):
            own = space(body_of(item.spec, AMX, "linear_amx"))
            tiles = [t for t in own.first(item.spec, AMX) if t != COMPILER]
            assert len(tiles) > 4 and COMPILER in own.first(item.spec, AMX)
            assert "tdpb" in own.emit(item.spec, AMX, "fa_tuned", tiles[0]).text


def test_bodies() -> None:
    """bf16 is AMX's where that is, and of AVX512_BF16; a body of attention is not for products, nor the other way round."""
    half = LinearSpec((64,), 64, 64, "bf16")
    assert body_of(half, AMX) == "linear_amx"
    assert body_of(half, dataclasses.replace(AMX, amx=False)) == "linear"
    tried = list(space("linear_amx").first(half, AMX))
    assert COMPILER in tried and len(tried) > 4 and {t["vectors"] for t in tried if t != COMPILER} == {2}
    with pytest.raises(UnsupportedError, match="tuned on CPUs"):
        body_of(half, parse_target("cuda"))
    with pytest.raises(UnsupportedError, match="the kernel is linear, not linear_amx"):
        body_of(TINY.spec, AVX512, "linear_amx")


def test_bodies_of_another_kind_are_left_out(tmp_path: Path) -> None:
    out, of_products = tmp_path / "x" / f"{NAME}.json", dataclasses.replace(QUICK, body="linear")
    out.parent.mkdir()
    for item, settings in ((case("attention"), of_products), (TINY, dataclasses.replace(QUICK, body="vector"))):
        with pytest.raises(
            OnnxFaError, match=rf"nothing to tune: {item.name}: .* is the body of another kind of sites"
        ):
            tune([item], HOST, out, settings)


def test_one_table() -> None:
    """Both kinds are found by name, and tuned where none is named."""
    assert find_case("linear_up").spec.N == 3072 and find_case("bench_vit").spec.Sq == 197
    kinds = {type(c.spec).__name__ for c in table_cases([], HOST)}
    assert kinds == {"AttentionSpec", "LinearSpec"}
    assert {type(c.spec).__name__ for c in table_cases([], parse_target("cuda"))} == {"AttentionSpec"}
    with pytest.raises(OnnxFaError, match=r"no case 'none': `onnx-fa cases`"):
        find_case("none")


def test_cases_of_a_model() -> None:
    """Its products, each once, without the layout of a target; symbols of rows need a size."""
    model = onnx.parser.parse_model(
        '<ir_version: 9, opset_import: ["" : 17]> g (float[n,64] x) => (float[n,64] y)'
        " { a = MatMul(x, w) b = Relu(a) c = MatMul(b, v) d = MatMul(c, w) e = Relu(d) y = MatMul(e, v) }"
    )
    for name in "wv":
        w = np.random.default_rng(0).standard_normal((64, 64)).astype(np.float32)
        model.graph.initializer.append(numpy_helper.from_array(w, name))
    with pytest.raises(OnnxFaError, match="has no size: give --dim"):
        cases_of_model(model, {}, AVX512)
    (symbol,) = {s for c in _cases(model) for s in c.spec.symbols}
    found = cases_of_model(model, {symbol: 12}, AVX512)
    assert len(found) == 2 and all(c.spec.panel == 0 and c.bound()[0].rows == 12 for c in found)
    empty = onnx.parser.parse_model(
        '<ir_version: 9, opset_import: ["" : 17]> g (float[2,64] x) => (float[2,64] y) { y = Relu(x) }'
    )
    with pytest.raises(OnnxFaError, match="no attention and no product with a weight"):
        cases_of_model(empty, {}, AVX512)


def _cases(model: onnx.ModelProto) -> list[Any]:
    return list(cases_of_model(model, {f"d{i}": 12 for i in range(3)} | {"n": 12}, AVX512))


def _entry(spec: LinearSpec, *choices: tuple[LinearTiles | None, float]) -> Entry:
    made = tuple(Choice(COMPILER if t is None else tiles_of(t), cost) for t, cost in choices)
    return Entry(family(spec, "linear"), "a case", {"machine": "m"}, made)


def test_lookups(folder: Path) -> None:
    """Of the nearest entry, the least time for the rows that are computed; the compiler has a site only where tiles would fit."""
    tall, low = LinearTiles(16, 8, 4, 4, 4), LinearTiles(16, 5, 4, 2, 8, 3)
    entries = (
        _entry(LinearSpec((512,), 768, 768, "f32"), (tall, 1.0), (low, 1.05), (None, 1.5)),
        _entry(LinearSpec((2,), 768, 768, "f32"), (None, 1.0), (LinearTiles(16, 2, 8, 4, 1), 1.2)),
    )
    (folder / "cpu-avx512.json").write_text(Database("cpu-avx512", entries).to_json())
    assert tiles_for(LinearSpec((512,), 512, 512, "f32"), AVX512) == tall
    assert tiles_for(LinearSpec((65,), 512, 512, "f32"), AVX512) == low  # 72 rows by tiles of eight
    assert panel_of(LinearSpec((65,), 512, 512, "f32"), AVX512) == 48
    assert tiles_for(LinearSpec((65,), 512, 40, "f32"), AVX512) == tall  # no panel of 48
    assert kept_why(LinearSpec((4,), 512, 512, "f32"), AVX512) == FASTER
    assert kept_why(LinearSpec((9,), 512, 40, "f32"), AVX512) == ""  # 16 rows of 64 columns; the compiler pads, too
    assert kept_why(LinearSpec((64,), 512, 24, "f32"), AVX512) == "fewer than 32 columns"
    assert kept_why(LinearSpec((64,), 512, 512, "f32"), AVX2) == "no AVX-512"
    assert rows_computed(LinearSpec(("n",), 8, 64, "f32"), tiles_of(tall)) == 1.0
    assert rows_computed(LinearSpec((13,), 8, 64, "f32"), COMPILER) == 13.0
    assert rows_computed(LinearSpec((13,), 8, 64, "f32"), tiles_of(low)) == 15 * 96 / 64

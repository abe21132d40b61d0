"""The tuner on Triton's kernels, without a GPU: its space, what it writes, which entry a kernel takes. Compilers are real; where a
search would run a module, the reference stands in."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from onnx_fa.errors import OnnxFaError, TargetError, UnsupportedError
from onnx_fa.iree.drivers import Gpu
from onnx_fa.iree.run import Samples
from onnx_fa.kernels.plan.folding import fold_queries
from onnx_fa.kernels.tiles.database import FOLDER_ENV, Choice, Database, Entry, parse
from onnx_fa.kernels.tiles.families import family
from onnx_fa.kernels.triton.config import ARCHITECTURES, HELD, SHARED_BYTES, TritonConfig, code_for
from onnx_fa.kernels.triton.tiles import can_run, config_of, fitting, tuned
from onnx_fa.processes import Limits
from onnx_fa.spec.attention import AttentionSpec
from onnx_fa.spec.cases import case
from onnx_fa.spec.reference import attention
from onnx_fa.spec.target import parse_target
from onnx_fa.spec.terms import Causal
from onnx_fa.tuning import command as tune
from onnx_fa.tuning import search
from onnx_fa.tuning.command import table_cases
from onnx_fa.tuning.search import Settings, launches
from onnx_fa.tuning.spaces import space

CUDA = parse_target("cuda")
HOPPER = Gpu("a GPU", 90)
PLAIN = {"BM": 64, "BN": 64, "warps": 4, "stages": 3, "order": 0, "overlap": 0}
DECODE = {"BM": 16, "BN": 64, "warps": 2, "stages": 4, "order": 0, "overlap": 0}


def half(**changes: Any) -> AttentionSpec:
    return case("x", **{"dtype": "f16", "Sq": 4096, "Skv": 4096, "D": 128, "Dv": 128} | changes).spec


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_space(arch: int) -> None:
    """What is tried is for the spec and may fit the architecture; what is in use is tried first, and can be found again."""
    for item in table_cases([], CUDA):
        own, spec = space("triton", arch), fold_queries(item.spec)
        in_use = own.default(item.spec, CUDA)
        assert config_of(spec, in_use) == tuned(spec, arch)[0]
        tried = [in_use, *own.first(item.spec, CUDA), *own.around(item.spec, in_use)]
        distinct = {tuple(sorted(t.items())) for t in tried}
        assert len(distinct) >= 8, item.name
        size = 4 if spec.dtype == "f32" else 2
        for t in tried[1:]:
            config = config_of(spec, t)
            assert fitting(spec)(t) and not (config.overlap not in (0, HELD) and arch == 80)
            buffers = 1 if config.overlap == HELD else config.stages - 1
            assert size * buffers * config.BN * (spec.D + spec.Dv) <= SHARED_BYTES[arch]
            rows = config.BM // (1 if config.overlap == HELD else max(1, config.overlap))  # of a group of warps
            assert rows * (config.BN + spec.Dv) <= 192 * 32 * config.warps
        assert len({frozenset(t) for t in tried}) == 1
        fields = {k for k in in_use if len({t[k] for t in tried}) > 1}
        assert {"BN", "warps", "stages"} <= fields and ("workgroups" in fields) == ("workgroups" in in_use), item.name


def test_few_keys_are_held() -> None:
    """All keys in one block, held or not, are tried where they are few, and nowhere else."""
    short, long = half(Sq=1024, Skv=77, D=64, Dv=64), half(D=64, Dv=64)
    held = [t for t in space("triton", 90).first(short, CUDA) if t["BN"] == 128 and t["stages"] != 2]
    assert {(t["BM"], t["stages"], t["overlap"]) for t in held} >= {
        (64, 1, HELD),
        (64, 3, HELD),
        (128, 3, HELD),
        (64, 1, 0),
    }
    assert all(t["overlap"] != HELD for t in space("triton", 90).first(long, CUDA))


def test_what_cannot_run_is_not_tried() -> None:
    wide = half(D=256, Dv=256)
    assert can_run(half(), TritonConfig(128, 128, 8, 2), 90)
    assert not can_run(wide, TritonConfig(128, 128, 8, 3), 90)  # 256 KiB of buffers
    assert not can_run(half(), TritonConfig(128, 128, 8, 3), 80)  # 128 KiB, where an sm_86 has 99
    assert not can_run(half(), TritonConfig(128, 128, 4, 2), 90)  # 256 accumulators per thread
    assert can_run(half(), TritonConfig(64, 64, 4, 2, overlap=1), 90)
    assert not can_run(half(), TritonConfig(64, 64, 4, 2, overlap=1), 80)
    assert not can_run(half(), TritonConfig(64, 64, 8, 2, overlap=1), 90)  # a warp has 16 rows
    assert can_run(half(), TritonConfig(128, 128, 4, 2, overlap=2), 90)
    assert not can_run(half(), TritonConfig(64, 64, 4, 2, overlap=2), 90)  # and a part of two half of them
    with pytest.raises(OnnxFaError, match=r"no tiles to tune: use one of .*triton"):
        space("none")


def test_launches() -> None:
    """A timed call takes milliseconds, whatever a kernel takes."""
    assert launches(half(batch=(1,), Hq=32, Hkv=32)) == 8
    assert launches(half(Sq=1)) == search.MOST_LAUNCHES and launches(half(batch=(1000,), Hq=32, Hkv=32)) == 1


def test_limits_of_the_compiler() -> None:
    for limits, words in ((Limits(0.05), "was stopped after 0.05 s"), (Limits(60, 1 << 20), "more than 0.000977 GiB")):
        emit = space("triton", 80, limits).emit
        with pytest.raises(UnsupportedError, match=rf"Triton, compiling for sm_80, .*{words}"):
            emit(half(), CUDA, "fa_0000000000", PLAIN)


TINY = case("a/tiny", dtype="f16", batch=(1,), Hq=4, Hkv=1, Sq=256, Skv=256, D=24, Dv=24, masks=(Causal(),))
QUICK = Settings(rounds=2, calls=2, threads=1, candidates=2)


def _without_gpu(monkeypatch: pytest.MonkeyPatch, ms: Callable[[str], float], wrong: str = "") -> list[str]:
    """A device that computes what the reference says (or not, where the code holds `wrong`) in the time that `ms` says of the code.
    Returns the code of every module that ran, as it ran."""
    ran: list[str] = []

    def code(vmfb: Path) -> str:
        return vmfb.read_bytes().decode("latin-1")

    def run(vmfb: Path, inputs: list[Path], outputs: int, **options: Any) -> Any:
        assert options["device"] == "cuda" and outputs == 1
        operands = [np.load(x) for x in inputs]
        result = attention(TINY.spec, *operands) * (1.01 if wrong and wrong in code(vmfb) else 1.0)
        ran.append(code(vmfb))
        return [result.astype(options["as_numbers"]).reshape(-1)], 0

    def bench(vmfb: Path, inputs: list[Path], *, repetitions: int, **options: Any) -> Samples:
        assert all(x.is_file() for x in inputs)
        return Samples((search.MOST_LAUNCHES * ms(code(vmfb)),) * repetitions, 0)

    monkeypatch.setattr(tune, "find_gpu", lambda device: HOPPER)
    monkeypatch.setattr(search, "run_module", run)
    monkeypatch.setattr(search, "benchmark_module", bench)
    return ran


def test_database_that_the_compiler_uses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Exactly the tiles that are named are measured, the fastest are found, kept with their samples and where they are from, and
    taken by the next kernel; a candidate with wrong numbers is refused."""
    slow = ".reqntid 128"

    def ms(code: str) -> float:
        return 0.5 if slow in code else 0.25

    ran = _without_gpu(monkeypatch, ms)
    quantized = case("quantized", dtype="f64")
    path = tmp_path / "cuda-sm_90.json"
    settings = dataclasses.replace(QUICK, candidates=4)
    written, (entry,), left_out = tune.tune([TINY, quantized], CUDA, path, settings)
    assert written == path and left_out[0].startswith("quantized: f64")
    assert parse(path.read_text(), "x").entries == (entry,) and parse(path.read_text(), "x").target == "cuda-sm_90"
    assert str(entry.family) == "triton f16 D32 many queries, short keys, mask causal group 4"
    measured = entry.measured
    assert measured["machine"] == "a GPU" and measured["versions"]["triton"] and measured["date"]
    assert measured["launches"] == 256 and "divided by their number" in measured["method"]
    assert all(c.samples_ms and {x for _, x in c.samples_ms} <= {0.25, 0.5} for c in entry.choices)
    assert all(".target sm_90a" in c and ".target sm_80" not in c for c in ran)  # the one variant that runs
    best = entry.choices[0]
    assert (best.cost, best.tiles["warps"]) == (1.0, 8) and measured["default_cost"] == 2.0

    monkeypatch.setenv(FOLDER_ENV, str(tmp_path))
    config, reason = tuned(fold_queries(TINY.spec), 90)
    assert config == config_of(TINY.spec, best.tiles)
    assert reason == f"cuda-sm_90: {entry.family}; the same family"


def test_wrong_numbers_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _without_gpu(monkeypatch, lambda code: 1.0, wrong=".target sm_90a")
    with pytest.raises(OnnxFaError, match="a/tiny: no candidate gives the right numbers; the first: wrong numbers"):
        tune.tune([TINY], CUDA, tmp_path / "cuda-sm_90.json", dataclasses.replace(QUICK, candidates=1))


def test_kernels_of_another_provider_are_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tune, "find_gpu", lambda device: HOPPER)
    wide = case("wide", dtype="f16", D=1040, Dv=1040, Sq=64, Skv=64)
    with pytest.raises(OnnxFaError, match=r"nothing to tune: wide: .*head dims above 1024; try --kernels iree"):
        tune.tune([wide], CUDA, tmp_path / "cuda-sm_90.json", QUICK)
    with pytest.raises(OnnxFaError, match="a database of cuda-sm_90, not of cuda"):
        (tmp_path / "x.json").write_text(Database("cuda-sm_90").to_json())
        tune.tune([wide], CUDA, tmp_path / "x.json", dataclasses.replace(QUICK, body="gpu"))


def test_devices() -> None:
    """Tiles are kept by the code that a GPU runs; where none runs, one line says so."""
    assert [code_for(c) for c in (75, 80, 86, 89, 90, 100, 120)] == [0, 80, 80, 80, 90, 80, 80]
    assert tune.database_of(CUDA, "triton", Gpu("A100", 80)) == "cuda-sm_80"
    assert tune.database_of(CUDA, "gpu", HOPPER) == "cuda"
    with pytest.raises(TargetError, match=r"T4: Triton's kernels are for compute capability 8\.0 and above"):
        tune.database_of(CUDA, "triton", Gpu("T4", 75))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(FOLDER_ENV, str(tmp_path))
    return tmp_path


def _entry(spec: AttentionSpec, tiles: dict[str, int]) -> Entry:
    seen = space("triton").seen(spec)
    return Entry(family(seen, "triton"), "a case", {"machine": "m"}, (Choice(tiles, 1.0),))


def test_nearest_entry(folder: Path) -> None:
    entries = (
        _entry(half(), PLAIN | {"BN": 32}),
        _entry(half(masks=(Causal(),)), PLAIN | {"overlap": 1, "stages": 2}),
        _entry(half(D=64, Dv=64), PLAIN | {"BM": 128}),
        _entry(half(Sq=1, Hq=32, Hkv=8), DECODE | {"workgroups": 256}),
    )
    (folder / "cuda-sm_90.json").write_text(Database("cuda-sm_90", entries).to_json())

    def picked(**changes: Any) -> tuple[TritonConfig, str]:
        return tuned(fold_queries(half(**changes)), 90)

    config, why = picked(D=96, Dv=96)  # in tiles of 128
    assert (
        config.BN == 32 and why == "cuda-sm_90: triton f16 D128 many queries, medium keys, mask none; the same family"
    )
    assert picked(D=48, Dv=64)[0].BM == 128
    config, why = picked(dtype="bf16", masks=(Causal(),))
    assert config.overlap and "nearest, differs in dtype (f16, not bf16)" in why
    short, why = picked(Skv=1024)  # the overlapped form does not pay for few keys
    assert not short.overlap and "same family" in why
    assert picked(dtype="f32")[1] == "built in: nothing was measured in f32 with head dims of 128"
    assert picked(D=32, Dv=32)[1] == "built in: nothing was measured in halves with head dims of 32"
    # Workgroups carry over to other numbers of heads, splits do not.
    assert picked(Sq=1, Hq=32, Hkv=8, batch=(1,))[0].splits == 32
    assert picked(Sq=1, Hq=8, Hkv=2, batch=(1,))[0].splits == 32 and picked(Sq=1, Hq=8, Hkv=2)[0].splits == 32
    assert picked(Sq=1, Hq=64, Hkv=64, batch=(2,))[0].splits == 2
    assert re.match(r"built in", tuned(half(), 80)[1])

"""The benchmark of single attentions: what every contestant is given means the spec, and what is written and resumed."""

from __future__ import annotations

import csv
import dataclasses
import importlib.util
import json
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest

from onnx_fa.benchmark import attention as ab
from onnx_fa.benchmark import case_bench
from onnx_fa.benchmark.case_result import QUICK, CaseResult, Plan, expected_seconds
from onnx_fa.benchmark.models import ORT, STOCK, TORCH, Contestant
from onnx_fa.benchmark.plot import COPY, OURS
from onnx_fa.benchmark.worker_process import Worker, package_environment
from onnx_fa.benchmark.worker_session import Session
from onnx_fa.errors import RunError, UnsupportedError
from onnx_fa.forms.plain import input_names, plain_model, plain_model_in_halves
from onnx_fa.forms.rewrite import explain
from onnx_fa.spec.accuracy import expect
from onnx_fa.spec.cases import CASES, Case, case, draw_operands
from onnx_fa.spec.target import parse_target
from onnx_fa.spec.terms import Causal, TensorArg
from tests.spec.test_accuracy import small
from tests.support.cli_process import run_main

ROOT = Path(__file__).resolve().parents[2]
TABLE = [dataclasses.replace(c, spec=small(c), sizes=((),)) for c in CASES]
TORCH_HERE = importlib.util.find_spec("torch") is not None
PLAN = Plan(rounds=1, slow_rounds=1, most_calls=1, threads=1, keep_processes=True)


@pytest.mark.parametrize("c", TABLE, ids=lambda c: c.name)
def test_the_plain_model_means_the_spec(c: Case) -> None:
    """In onnxruntime, in PyTorch, and for the matcher."""
    spec = c.spec
    operands = draw_operands(spec, 0)
    arrays = dict(zip(input_names(spec), operands, strict=True))
    expected = expect(spec, operands)
    model = plain_model(spec)
    proto = ir.to_proto(model)
    onnx.checker.check_model(proto, full_check=True)
    session = ort.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    assert expected.compare(np.asarray(session.run(None, arrays)[0])).problem == ""
    (site,) = explain(model).sites
    assert site.spec.tensors or not spec.tensors
    if TORCH_HERE:
        from onnx_fa.benchmark.torch_sdpa import torch_attention

        assert expected.compare(torch_attention(spec, arrays).call().numpy()).problem == ""


def test_a_plain_model_in_halves(tmp_path: Path) -> None:
    """Every value is f16, the attention found in it too, and it means the spec; the GPU benchmark takes it."""
    half = case("x", dtype="f16", Sq=24, Skv=24, masks=(Causal(),))
    spec = half.bound()[0]
    model = ir.to_proto(plain_model_in_halves(spec))
    onnx.checker.check_model(model, full_check=True)
    kinds = {v.type.tensor_type.elem_type for v in (*model.graph.value_info, *model.graph.input, *model.graph.output)}
    assert onnx.TensorProto.FLOAT16 in kinds and onnx.TensorProto.FLOAT not in kinds
    (site,) = explain(model).sites
    assert site.spec.dtype == "f16" and site.spec.masks == spec.masks
    operands = draw_operands(spec, 0)
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    (result,) = session.run(None, dict(zip(input_names(spec), operands, strict=True)))
    assert expect(spec, operands).compare(result).error < 3e-3
    with pytest.raises(UnsupportedError, match="written in halves"):
        plain_model_in_halves(case("x").bound()[0])
    for target, halves in (("cuda", True), ("cpu-host", False)):
        bench = case_bench.CaseBench(half, parse_target(target), Plan(), tmp_path, 0, lambda m: None)
        assert (bench._in_halves() is not None) is halves


def test_a_plain_model_with_a_sink_and_its_limits() -> None:
    spec = dataclasses.replace(TABLE[0].spec, sink=TensorArg((8, 1, 1)), Sq=9)
    operands = draw_operands(spec, 0)
    session = ort.InferenceSession(ir.to_proto(plain_model(spec)).SerializeToString())
    result = session.run(None, dict(zip(input_names(spec), operands, strict=True)))[0]
    assert expect(spec, operands).compare(np.asarray(result)).problem == ""
    with pytest.raises(UnsupportedError, match="row without a key"):
        plain_model(dataclasses.replace(spec, empty_row="zero"))


@pytest.mark.skipif(not TORCH_HERE, reason="torch is not installed")
@pytest.mark.parametrize(
    ("name", "how"),
    [
        ("bench_s512", "SDPA"),
        ("bench_s512_causal", "SDPA, is_causal"),
        ("bench_window", "SDPA, boolean attn_mask"),
        ("bench_prefix", "SDPA, boolean attn_mask"),
        ("bench_document", "SDPA, boolean attn_mask"),
        ("bench_alibi", "SDPA, float attn_mask"),
        ("bench_evoformer", "SDPA, float attn_mask"),
        ("bench_gqa8", "SDPA, is_causal, enable_gqa"),
        ("bench_decode_gqa", "SDPA, enable_gqa"),
        ("bench_softcap", "plain ops"),
    ],
)
def test_torch_is_called_as_its_users_do(name: str, how: str, tmp_path: Path) -> None:
    from onnx_fa.benchmark.torch_sdpa import torch_attention

    spec = next(c.spec for c in TABLE if c.name == name)
    arrays = dict(zip(input_names(spec), draw_operands(spec, 0), strict=True))
    made, again = (torch_attention(spec, arrays, tmp_path / "mask.npy") for _ in range(2))
    assert made.how == again.how == how and (made.mask_bytes > 0) == ("attn_mask" in how)
    assert (made.call() == again.call()).all() and (tmp_path / "mask.npy").exists() == ("attn_mask" in how)


@pytest.mark.skipif(not TORCH_HERE, reason="torch is not installed")
def test_tanh_is_first_called_on_one_number(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its first call is wrong in some processes where torch splits it among threads."""
    import torch

    from onnx_fa.benchmark.torch_sdpa import torch_attention

    sizes: list[int] = []
    tanh = torch.tanh

    def noted(x: torch.Tensor) -> torch.Tensor:
        sizes.append(x.numel())
        return tanh(x)

    monkeypatch.setattr(torch, "tanh", noted)
    spec = next(c.spec for c in TABLE if c.name == "bench_softcap")
    torch_attention(spec, dict(zip(input_names(spec), draw_operands(spec, 0), strict=True))).call()
    assert sizes == [1, 8 * 24 * 24]


def _tiny(name: str, *tags: str, **changes: object) -> Case:
    return case(name, "table", *tags, batch=(1,), **changes)


def test_results_are_written_and_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(case_bench, "COPY_BYTES", 1 << 16)
    monkeypatch.setattr(case_bench, "STOCK_FLAGS", ((), ("--iree-opt-data-tiling",)))
    wanted = [_tiny("one", Sq=40, Skv=40, masks=(Causal(),)), _tiny("two", "decode", Sq=1, Skv=48, Hq=4, Hkv=2)]
    prefix = tmp_path / "b"

    def interrupt(message: str) -> None:
        if message == "two: reference":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ab.bench_attention(wanted, prefix, plan=PLAN, note=interrupt)
    assert [p.name for p in (tmp_path / "b.partial").iterdir()] == ["one.json"] and not (tmp_path / "b.csv").exists()
    notes: list[str] = []
    one, two = ab.bench_attention(wanted, prefix, plan=PLAN, note=notes.append)
    assert notes[0].startswith("1 cases of an interrupted run are used") and notes[1].startswith("1 cases, about")
    names = [STOCK, OURS, ORT, *[TORCH] * TORCH_HERE]
    assert [c.what for c in one.contestants] == [*names, case_bench.TRIED, case_bench.TRIED]
    assert [c.what for c in two.contestants] == [*names, COPY, case_bench.TRIED, case_bench.TRIED]
    for result in (one, two):
        assert not [c.problem for c in result.contestants if c.problem]
        assert all(c.error is not None and c.error < 1e-5 for c in result.contestants[: len(names)])
        assert all(c.extra_bytes is not None for c in result.contestants[: len(names)])
        assert all(c.samples for c in result.contestants)
    assert "1 of 1 sites fused" in one.contestants[1].flags
    assert (
        one.of_bandwidth(OURS) is None and (two.of_bandwidth(OURS) or 0) > 0 and two.read_bytes == 2 * 2 * 48 * 32 * 4
    )

    written = ab.write_results([one, two], prefix, PLAN)
    assert [p.name for p in written] == ["b.csv", "b.json", "b.md", "b.png"]
    rows = list(csv.DictReader(x for x in written[0].read_text().splitlines() if not x.startswith("#")))
    assert {r["what"] for r in rows} == {*names, COPY} and {r["model"] for r in rows} == {"one", "two"}
    table = written[2].read_text()
    assert table.startswith("| case | onnx_fa ms |") and "%" in table and "beyond inputs and outputs" in table
    saved = json.loads(written[1].read_text())
    assert [CaseResult.from_dict(c) for c in saved["cases"]] == [one, two]
    other = dataclasses.replace(PLAN, rounds=2)
    assert ab._read_partial(tmp_path / "b.partial" / "one.json", {"plan": dataclasses.asdict(other)}) is None


def test_wrong_numbers_are_not_timed() -> None:
    spec = TABLE[0].spec
    operands = draw_operands(spec, 0)
    expected = expect(spec, operands)
    right = expected.blocks[0][1].astype(np.float32)
    for scale, tolerance, wrong in (
        (1.0, None, False),
        (1.00001, None, True),
        (1.00001, 1e-4, False),
        (1.1, 1e-4, True),
    ):
        c = Contestant(OURS)
        case_bench._judge(c, expected, right * np.float32(scale), tolerance)
        assert bool(c.problem) == wrong and c.error is not None
    c = Contestant(OURS)
    case_bench._judge(c, expected, right * np.float32(np.nan), 1e-4)
    assert "NaN" in c.problem


def test_workers_say_what_memory_they_need(tmp_path: Path) -> None:
    np.save(tmp_path / "q.npy", np.zeros(1, np.float32))
    done = Worker("copy", str(8 << 20), tmp_path, 2).start(2)
    assert len(done.ms) == 2 and done.extra_bytes is not None and done.extra_bytes < 8 << 20


def test_a_worker_for_many_batches(tmp_path: Path) -> None:
    """A failing job leaves it alive; one that is killed is an error, and the next job starts another."""
    np.save(tmp_path / "q.npy", np.zeros(1, np.float32))
    with Session(package_environment(), 60) as session:
        worker = Worker("copy", str(8 << 20), tmp_path, 2, session=session)
        assert len(worker.start(2).ms) == 2 and worker.start(3, tmp_path / "o.npz").ms
        first = session._process
        assert (tmp_path / "o.npz").exists() and first is not None
        with pytest.raises(RunError, match=r"onnxruntime failed: \S+"):
            Worker("onnxruntime", str(tmp_path / "no.onnx"), tmp_path, 1, session=session).start(1)
        assert session._process is first and worker.start(1).ms
        first.kill()
        with pytest.raises(RunError, match="copy ended, or was stopped"):
            worker.start(1)
        assert worker.start(1).ms and session._process is not first
        second = session._process
    assert second is not None and second.returncode is not None
    with Session(package_environment(), 0.01) as session, pytest.raises(RunError, match=r"stopped after 0\.01 s"):
        Worker("copy", str(8 << 20), tmp_path, 2, session=session).start(2)


def test_estimates_grow_with_the_work() -> None:
    by_name = {c.name: c for c in CASES}
    guesses = [expected_seconds(by_name[f"bench_s{s}"], Plan()) for s in (512, 2048, 8192)]
    assert guesses == sorted(guesses)
    table = [c for c in CASES if "table" in c.tags]
    assert sum(expected_seconds(c, Plan()) for c in table) < 20 * 60
    assert expected_seconds(by_name["bench_s8192"], QUICK) < guesses[-1]


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("--case", "none"), "no case 'none'"),
        (("--threads", "0"), "at least 1"),
        (("--out", "no/where"), "cannot be written"),
        (("--target", "nope"), "unknown target"),
    ],
)
def test_bad_input(args: tuple[str, ...], words: str, tmp_path: Path) -> None:
    done = run_main("onnx_fa.benchmark.attention", args, tmp_path)
    assert done.returncode == 2 and words in done.stderr and "Traceback" not in done.stderr

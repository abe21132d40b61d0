"""Linear sites among the cases that `bench` and `verify` take by name: what every contestant is given means the spec."""

from __future__ import annotations

import csv
import dataclasses
import importlib.util
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from onnx_fa.benchmark import case_bench
from onnx_fa.benchmark.models import EAGER, ORT, STOCK
from onnx_fa.benchmark.plot import OURS
from onnx_fa.cli.command import main
from onnx_fa.iree import run as iree_run
from onnx_fa.spec.expr import SCORE, Apply, Tensor
from onnx_fa.spec.linear import LinearSpec
from onnx_fa.spec.linear_cases import GELU, LINEAR_CASES, RESIDUAL, draw_linear
from onnx_fa.spec.site_case import ALL, find_case
from onnx_fa.spec.terms import TensorArg
from onnx_fa.verifier.case_checks import verify_case
from tests.support.cli_process import run_main

TORCH_HERE = importlib.util.find_spec("torch") is not None
BIAS, WHOLE = TensorArg((32,)), TensorArg((5, 32))
PLAIN = LinearSpec((5,), 24, 32, "f32")
GATED = Apply("Mul", Apply("Sigmoid", SCORE), Tensor(0))


def test_specs_as_json() -> None:
    for case in LINEAR_CASES:
        assert LinearSpec.from_dict(json.loads(json.dumps(case.spec.to_dict()))) == case.spec
    with pytest.raises(ValueError, match="unknown term 'Causal'"):
        LinearSpec.from_dict(PLAIN.to_dict() | {"bits": {"kind": "Causal", "offset": 0}})


@pytest.mark.skipif(not TORCH_HERE, reason="torch is not installed")
@pytest.mark.parametrize(
    ("spec", "how"),
    [
        (PLAIN, "linear"),
        (dataclasses.replace(PLAIN, transposed=True, then=GELU, tensors=(BIAS,)), "linear, bias, gelu"),
        (dataclasses.replace(PLAIN, then=RESIDUAL, tensors=(BIAS, WHOLE)), "linear, bias, plain ops"),
        (dataclasses.replace(PLAIN, then=GATED, tensors=(WHOLE,)), "linear, plain ops"),
        (dataclasses.replace(PLAIN, dtype="bf16"), "linear"),
    ],
)
def test_torch_is_called_as_its_users_do(spec: LinearSpec, how: str) -> None:
    from onnx_fa.benchmark.torch_linear import torch_linear
    from onnx_fa.spec.linear_accuracy import expect_linear

    operands = draw_linear(spec, 0)
    made = torch_linear(spec, operands)
    assert made.how == how and expect_linear(spec, operands).compare(made.call().float().numpy()).problem == ""


@pytest.mark.whole
def test_cases_of_both_kinds_are_timed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In one table and one CSV; everybody is right, but for what onnxruntime does not run."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(case_bench, "STOCK_FLAGS", ((),))
    names = ("tiny", "linear_tiny")
    args = [*(x for n in names for x in ("--case", n)), "--rounds", "1", "--threads", "1", "--no-plot", "-o", "c"]
    assert main(["bench", *args]) == 0
    shown = capsys.readouterr().out
    assert "to stock IREE" in shown and all(find_case(n).title in shown for n in names)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["c.csv", "c.json", "c.md"]
    rows = list(csv.DictReader(x for x in (tmp_path / "c.csv").read_text().splitlines() if not x.startswith("#")))
    own = {r["what"]: r for r in rows if r["model"] == find_case("linear_tiny").title}
    assert {*own} == {STOCK, OURS, ORT, *[EAGER] * TORCH_HERE}
    assert "1 linear site, 1 with a kernel" in own[OURS]["flags"] or "left to the compiler" in own[OURS]["flags"]
    for case in json.loads((tmp_path / "c.json").read_text())["cases"]:
        assert not [c["problem"] for c in case["contestants"] if c["problem"]]
        assert all(c["error"] < 1e-4 for c in case["contestants"] if c["error"] is not None)


def test_cases_are_listed(tmp_path: Path) -> None:
    done = run_main("onnx_fa.cli.command", ("cases",), tmp_path)
    assert done.returncode == 0 and [x.split()[0] for x in done.stdout.splitlines()[2:]] == [c.name for c in ALL]
    done = run_main("onnx_fa.cli.command", ("cases", "--kind", "linear", "--tag", "tune"), tmp_path)
    listed = [x.split()[0] for x in done.stdout.splitlines()[2:]]
    assert listed == [c.name for c in LINEAR_CASES if "tune" in c.tags]


def test_cases_of_both_kinds_are_verified(tmp_path: Path) -> None:
    args = ("verify", "--case", "tiny", "--case", "linear_tiny", "--report", "r.json")
    done = run_main("onnx_fa.cli.command", args, tmp_path)
    assert done.returncode == 0, done.stderr
    assert "note: 1 linear site" in done.stdout
    reports = json.loads((tmp_path / "r.json").read_text())["cases"]
    assert [r["model"] for r in reports] == ["tiny", "linear_tiny"]
    for r in reports:
        judged = [c for c in r["checks"] if c["what"] == "IREE"]
        assert r["ok"] and [c["ok"] for c in judged] == [True, True]
        assert {c["inputs"] for c in judged} == {"ordinary", "adversarial"}
    for args in (("verify",), ("verify", "m.onnx", "--case", "tiny"), ("verify", "--case", "tiny", "--dim", "S=2")):
        done = run_main("onnx_fa.cli.command", args, tmp_path)
        assert done.returncode == 2 and "Traceback" not in done.stderr


def test_wrong_numbers_of_a_case(monkeypatch: pytest.MonkeyPatch) -> None:
    load: Callable[..., Any] = iree_run.load_module

    def wrong(*args: Any, **options: Any) -> Callable[..., list[Any]]:
        call = load(*args, **options)
        return lambda *arrays: [r * np.float32(1.001) for r in call(*arrays)]

    monkeypatch.setattr(iree_run, "load_module", wrong)
    report = verify_case(find_case("linear_tiny"))
    assert not report.ok and "MISMATCH" in report.table()

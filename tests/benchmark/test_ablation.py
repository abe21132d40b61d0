"""onnx-fa bench --ablate: every optimisation off by itself changes a kernel and no result; what stock IREE makes of the forms."""

from __future__ import annotations

import csv
import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import onnxruntime as ort
import pytest

from onnx_fa.benchmark.ablation import HEAD, called, failed, plan_ablation, rows, write
from onnx_fa.benchmark.case_bench import SAME
from onnx_fa.benchmark.case_result import CaseResult, Plan
from onnx_fa.benchmark.kept_modules import KeptModules, Made
from onnx_fa.benchmark.models import STOCK_FLAGS, Contestant
from onnx_fa.benchmark.plot import OURS
from onnx_fa.benchmark.stock_forms import FORMS, compile_form
from onnx_fa.errors import CompileError, OnnxFaError, UnsupportedError
from onnx_fa.forms.plain import input_names, plain_model
from onnx_fa.graph.io import save
from onnx_fa.kernels.choose import emit_kernel
from onnx_fa.kernels.mlir.kernel import Kernel
from onnx_fa.spec.accuracy import expect
from onnx_fa.spec.attention import AttentionSpec
from onnx_fa.spec.cases import CASES, Case, case, draw_operands
from onnx_fa.spec.switches import ALL_ON, Switch
from onnx_fa.spec.target import Target, parse_target
from onnx_fa.spec.terms import Causal, SlidingWindow, Softcap
from tests.support.cli_process import run_main
from tests.support.kernel_harness import Kernels, indices_to_run, mismatch
from tests.support.triton_sources import triton_sources

HOST = parse_target("cpu-host")
BSHD: dict[str, Any] = {f"{x}_layout": (0, 2, 1, 3) for x in "qkvo"}
NARROW: dict[str, Any] = {"D": 16, "Dv": 16}
SMALL: dict[Switch, tuple[Case, ...]] = {
    Switch.SKIPPING: (
        case("causal", Sq=160, Skv=160, masks=(Causal(),), **NARROW),
        case("window", Sq=160, Skv=160, masks=(SlidingWindow(16, 0, fill=-1e9),), empty_row="mean", **NARROW),
    ),
    Switch.FOLDING: (case("folding", Hq=4, Sq=2, masks=(Causal("end"),), **NARROW),),
    Switch.SPLITTING: (case("splitting", batch=(1,), Sq=1, Skv=4096, **NARROW),),
    Switch.EXP2: (case("exp2", Sq=24, **NARROW), case("exp2_few", Sq=1, Skv=4096, batch=(1,), **NARROW)),
    Switch.LAYOUTS: (case("layouts", Hq=4, masks=(Causal(),), **NARROW | BSHD),),
    Switch.MAXIMUM: (case("maximum", Sq=24, mods=(Softcap(20.0),), **NARROW),),
    Switch.TILES: (case("tiles", Sq=1, D=128, Dv=128, Skv=300),),
}
"""Where a CPU's kernels have the optimisation: all the switches that say so."""
TRIED = [(switch, c) for switch, of in SMALL.items() for c in of]


def without(target: Target, switch: Switch) -> Target:
    return dataclasses.replace(target, off=frozenset({switch}))


def renamed(kernel: Kernel, name: str) -> Kernel:
    return dataclasses.replace(kernel, name=name, text=kernel.text.replace(kernel.name, name))


@pytest.fixture(scope="module")
def compiled(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Kernels:
    kernels = [emit_kernel(c.spec, without(HOST, switch)) for switch, c in TRIED]
    named = [renamed(k, f"fa_{switch.word}_{c.name}") for k, (switch, c) in zip(kernels, TRIED, strict=True)]
    return Kernels(named, tmp_path_factory.mktemp("ablation"), only=indices_to_run(request))


@pytest.mark.parametrize("index", range(len(TRIED)), ids=[f"{s.word}-{c.name}" for s, c in TRIED])
def test_without_an_optimisation_results_are_right(compiled: Kernels, index: int) -> None:
    switch, c = TRIED[index]
    assert emit_kernel(c.spec, HOST).text != emit_kernel(c.spec, without(HOST, switch)).text
    for adversarial in (False, True):
        operands = draw_operands(c.spec, 0, adversarial=adversarial)
        assert mismatch(c.spec, operands, compiled.run(index, operands)) is None


def test_the_small_cases_are_for_all_that_cpus_have() -> None:
    assert set(SMALL) == {s for s in Switch if "cpu" in s.where}
    assert all(s.where <= {"cpu", "gpu"} and s.where and s.without for s in Switch)
    assert HOST.off == ALL_ON and all(HOST.has(s) for s in Switch)


@pytest.mark.parametrize(("name", "kind"), [("cpu-avx512", "cpu"), ("cuda", "gpu")])
def test_every_switch_changes_a_kernel_of_the_table(name: str, kind: str) -> None:
    """By the texts alone: of those that kernels for the target have, each changes one, and those that they have not none."""
    target, tag = parse_target(name), {"cpu": "ablate", "gpu": "ablate_gpu"}[kind]
    specs = [c.spec for c in CASES if tag in c.tags]
    assert len(specs) >= 6
    with triton_sources():
        before = [emit_kernel(spec, target).text for spec in specs]
        changed = {s for s in Switch if [emit_kernel(spec, without(target, s)).text for spec in specs] != before}
    assert changed == {s for s in Switch if kind in s.where}


def test_modules_are_kept_by_what_is_off(tmp_path: Path) -> None:
    modules, spec = KeptModules(tmp_path / "kept"), SMALL[Switch.EXP2][0].spec

    def build(word: str, target: Target) -> str:
        def write(out: Path) -> Made:
            out.write_text(word)
            return Made(word)

        return modules.get(OURS, spec, target, (), tmp_path / "out.vmfb", write).said

    assert [build("on", HOST), build("off", without(HOST, Switch.EXP2)), build("again", HOST)] == ["on", "off", "on"]


def test_what_is_planned() -> None:
    plan = plan_ablation(parse_target("cuda"), forms=False)
    assert [*plan.variants] == [called(s) for s in Switch if "gpu" in s.where] and not plan.forms
    assert all(c.spec.dtype == "f16" or "f32" in c.name for c in plan.cases)
    plan = plan_ablation(HOST, ["bench_vit"], ["tiles"])
    assert [c.name for c in plan.cases] == ["bench_vit"] and [c.name for c in plan.forms] == ["forms"]
    assert plan.variants == {"onnx_fa, no tiles": without(HOST, Switch.TILES)}
    for names, words, said in ((["x"], [], "no case 'x'"), ([], ["x"], "no optimisation 'x': they are skipping")):
        with pytest.raises(OnnxFaError, match=said):
            plan_ablation(HOST, names, words)


def test_the_table(tmp_path: Path) -> None:
    form = next(iter(FORMS))
    listed = (
        Contestant(OURS, "fused", [(0, 2.0)], error=1e-7),
        Contestant(called(Switch.EXP2), "fused", [(0, 3.0)], error=1e-7),
        Contestant(called(Switch.TILES), problem=SAME),
        Contestant(called(Switch.LAYOUTS), problem="wrong numbers"),
        Contestant(form, "4 dispatches", [(0, 8.0)], error=1e-7),
        Contestant("stock IREE (tried)", "", [(0, 9.0)]),
    )
    results = [CaseResult("x", "X", False, 0, listed, 1.0)]
    assert [(r[1], *r[2:4], r[5]) for r in rows(results)] == [
        (OURS, "2.000", "1.00x", "fused"),
        ("onnx_fa, no exp2", "3.000", "1.50x", "fused"),
        ("onnx_fa, no layouts", "-", "-", "wrong numbers"),
        (form, "8.000", "4.00x", "4 dispatches"),
        ("no tiles", "-", "-", SAME),
    ]
    assert [c.what for c in failed(results)] == ["onnx_fa, no layouts"]
    paths = write(results, tmp_path / "a", Plan(threads=1))
    assert [p.suffix for p in paths] == [".csv", ".json", ".md", ".png"] and " | ".join(HEAD) in paths[2].read_text()


FORM_CASE = case("forms", batch=(1,), Sq=48, Skv=48, D=16, Dv=16, masks=(Causal(),))


@pytest.mark.parametrize("what", FORMS)
def test_the_forms_mean_the_attention(what: str, tmp_path: Path) -> None:
    spec, model = FORM_CASE.spec, tmp_path / "m.onnx"
    save(plain_model(spec), model)
    written = ir.to_proto(FORMS[what](model, spec)).SerializeToString()
    operands = draw_operands(spec, 0)
    session = ort.InferenceSession(written, providers=["CPUExecutionProvider"])
    (result,) = session.run(None, dict(zip(input_names(spec), operands, strict=True)))
    assert expect(spec, operands).compare(np.asarray(result)).problem == ""


def test_what_stock_iree_makes_of_forms(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It does not fuse by itself; a form that cannot be written is one that is not compiled."""
    spec, model = FORM_CASE.spec, tmp_path / "m.onnx"
    save(plain_model(spec), model)
    made = compile_form([*FORMS][1], model, spec, HOST, STOCK_FLAGS[0], tmp_path / "m.vmfb")
    assert made.dispatches >= made.computing >= 3 and made.score_buffers >= 1
    assert made.score_bytes >= 2 * 48 * 48 * 4 and made.largest_bytes >= 2 * 48 * 48 * 4
    assert str(made).startswith("not fused, ") and (tmp_path / "m.vmfb").stat().st_size > 1000

    def refuse(model: Path, spec: AttentionSpec) -> ir.Model:
        raise UnsupportedError("not in this form")

    monkeypatch.setitem(FORMS, "refused", refuse)
    with pytest.raises(CompileError, match="not in this form"):
        compile_form("refused", model, spec, HOST, STOCK_FLAGS[0], tmp_path / "m.vmfb")


def test_the_command(tmp_path: Path) -> None:
    """One small case without one optimisation: both are timed, right, and in every file."""
    options = ("--case", "tiny", "--switch", "exp2", "--no-forms", "--rounds", "1", "--no-plot", "-o", "a")
    done = run_main("onnx_fa.cli.command", ("bench", "--ablate", *options), tmp_path, timeout_s=300)
    assert done.returncode == 0, done.stderr
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.csv", "a.json", "a.md"]
    lines = [x for x in (tmp_path / "a.csv").read_text().splitlines() if not x.startswith("#")]
    assert {r["what"] for r in csv.DictReader(lines)} == {OURS, "onnx_fa, no exp2"}
    (found,) = json.loads((tmp_path / "a.json").read_text())["cases"]
    assert all(c["error"] < 1e-5 and not c["problem"] for c in found["contestants"])
    assert "onnx_fa, no exp2" in done.stdout

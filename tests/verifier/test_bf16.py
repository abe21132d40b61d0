"""verify and `compile --check` on models of bf16 throughout: right ones agree, and a small mistake is seen, wherever it is made."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from onnx_fa.cli.command import main
from onnx_fa.errors import RunError
from onnx_fa.forms.rewrite import rewrite_in_place
from onnx_fa.iree.compile import compile_model
from onnx_fa.spec.target import parse_target
from onnx_fa.verifier.comparisons import Check
from onnx_fa.verifier.once import check_once
from onnx_fa.verifier.rounded_to_bf16 import CAP, MOVED, judge_bf16
from onnx_fa.verifier.verifier import verify
from tests.support.bf16_models import bf16_attention

HOST = parse_target("cpu-host")
IN_F32 = "runs in float32 (bfloat16 widened) in onnxruntime, onnxruntime refuses it: bfloat16 inputs or outputs"
verifier = importlib.import_module("onnx_fa.verifier.verifier")
Change = Callable[[ir.Model], None]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return bf16_attention(tmp_path_factory.mktemp("bf16") / "a.onnx")


@pytest.fixture(scope="module")
def module(path: Path) -> Path:
    compile_model(path, made := path.with_suffix(".vmfb"), HOST)
    return made


def scaled(model: ir.Model) -> None:
    """The scale is off by 1 in 500: no rounding to bf16 is larger."""
    (factor,) = (n.inputs[1] for n in model.graph if n.name and n.name.endswith("/Mul"))
    assert factor is not None and factor.const_value is not None and factor.const_value.size == 1
    factor.const_value = ir.tensor(factor.const_value.numpy() * np.float32(1.002), name=factor.name)


def unmasked(model: ir.Model) -> None:
    (where,) = (n for n in model.graph if n.name and n.name.endswith("/Where"))
    scores = where.inputs[1]
    assert scores is not None
    ir.convenience.replace_all_uses_with(where.outputs[0], scores)


def of_13(model: ir.Model) -> None:
    """Before it is matched: the scale is that of another size."""
    (count,) = (n for n in model.graph if "value_int" in n.attributes)
    count.attributes["value_int"] = ir.AttrInt64("value_int", 13)


def without_mask(model: ir.Model) -> None:
    """Before it is matched."""
    (add,) = (n for n in model.graph if n.op_type == "Add")
    assert add.inputs[0] is not None
    ir.convenience.replace_all_uses_with(add.outputs[0], add.inputs[0])


def _other(path: Path, change: Change, to: Path) -> Path:
    model = ir.from_proto(onnx.load(path))
    change(model)
    onnx.save(ir.to_proto(model), to)
    return to


def test_agrees_and_says_what_the_original_ran_in(path: Path, module: Path) -> None:
    """What does not depend on the compiler is held to f32, and is far within."""
    report = verify(path, seeds=1, module=module)
    report.check()
    assert next(n for n in report.notes if n.startswith("original ")).startswith(f"original {IN_F32}")
    assert next(n for n in report.notes if n.startswith("rewritten ")).startswith(f"rewritten {IN_F32}")
    judged = {c.what: c for c in report.checks if c.ok is not None and c.inputs.startswith("seed 0")}
    assert set(judged) == {
        "rewritten: output y",
        "IREE: output y",
        "site Softmax:p: rewritten",
        "site Softmax:p: kernel",
    }
    assert all(c.error is not None and c.allowed is not None for c in judged.values())
    assert judged["rewritten: output y"].allowed < 2e-4 and judged["site Softmax:p: rewritten"].allowed < 1e-5  # type: ignore[operator]
    assert 1e-3 < judged["IREE: output y"].error < 3e-2  # type: ignore[operator]


@pytest.mark.parametrize("change", [scaled, unmasked])
def test_sees_a_wrong_rewrite(change: Change, path: Path, module: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(model: ir.Model, form: Any) -> Any:
        done = rewrite_in_place(model, form)
        change(model)
        return done

    monkeypatch.setattr(verifier, "rewrite_in_place", wrong)
    report = verify(path, seeds=1, module=module)
    bad = {c.what for c in report.checks if c.ok is False and not c.inputs.endswith("length 1")}
    assert bad == {"rewritten: output y", "site Softmax:p: rewritten"}


@pytest.mark.parametrize("change", [of_13, without_mask])
def test_sees_a_wrong_match(change: Change, path: Path, module: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The site is what its spec says, and that is not the model."""

    def wrong(model: ir.Model, form: Any) -> Any:
        change(model)
        return rewrite_in_place(model, form)

    monkeypatch.setattr(verifier, "rewrite_in_place", wrong)
    report = verify(path, seeds=1, module=module)
    assert "rewritten: output y" in {c.what for c in report.checks if c.ok is False and c.inputs.startswith("seed 0")}


def test_sees_a_module_of_another_model(path: Path, tmp_path: Path) -> None:
    compile_model(_other(path, without_mask, tmp_path / "b.onnx"), tmp_path / "b.vmfb", HOST)
    report = verify(path, seeds=1, module=tmp_path / "b.vmfb")
    bad = {c.what for c in report.checks if c.ok is False}
    assert bad == {"IREE: output y"}
    with pytest.raises(
        RunError, match=r"output 'y' is not what onnxruntime computes .* is allowed \(roundings to bfloat16"
    ):
        check_once(ir.from_proto(onnx.load(path)), tmp_path / "b.vmfb", HOST)


def test_one_run(path: Path, module: Path) -> None:
    assert f"; the original {IN_F32}" in check_once(ir.from_proto(onnx.load(path)), module, HOST)


@pytest.mark.whole
def test_bf16_inside_a_model_of_f32(tmp_path: Path) -> None:
    """Inputs, outputs and weights are f32; it computes in bf16, and that is what the compiled model is held to."""
    path = bf16_attention(tmp_path / "a.onnx", inside=True)
    compile_model(path, module := tmp_path / "a.vmfb", HOST)
    report = verify(path, seeds=1, module=module)
    report.check()
    assert any("original runs in float32 (bfloat16 widened) in onnxruntime" in note for note in report.notes)
    allowed = {c.what: c.allowed for c in report.checks if c.inputs.startswith("seed 0") and c.allowed}
    assert allowed["rewritten: output y/f32"] < 2e-4 and allowed["IREE: output y/f32"] > 1e-2
    assert "float32 (bfloat16 widened)" in check_once(ir.from_proto(onnx.load(path)), module, HOST)


def test_what_roundings_to_bf16_allow() -> None:
    """Twice what they move, and never ten times the tolerance."""
    exact = np.ones(4, np.float32)
    for moved, error, ok in (
        (0.02, 0.03, True),
        (0.02, 0.05, False),
        (0.5, 0.09, True),
        (0.5, 0.11, False),
        (0.001, 0.011, False),
    ):
        found = judge_bf16(Check("", "y", "original", error, 1e-2, False), exact, np.full(4, 1 + moved, np.float32))
        assert found.ok is ok and MOVED in found.note
        assert found.allowed is not None and 1e-2 <= found.allowed <= CAP * 1e-2
    assert not judge_bf16(Check("", "y", "original", np.inf, 1e-2, False), exact, exact * 1.5).ok
    within = Check("", "y", "original", 0.005, 1e-2, True)
    assert judge_bf16(within, exact, exact) is within
    assert not judge_bf16(Check("", "y", "original", 0.02, 1e-2, False), exact, np.full(4, np.nan, np.float32)).ok


def test_the_command(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In this process, which has compiled the model."""
    assert main(["verify", str(path), "--seeds", "1"]) == 0
    said = capsys.readouterr().out
    assert f"note: original {IN_F32}" in said and "MISMATCH" not in said


def test_the_command_on_a_wrong_rewrite(
    path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def wrong(model: ir.Model, form: Any) -> Any:
        done = rewrite_in_place(model, form)
        scaled(model)
        return done

    monkeypatch.setattr(verifier, "rewrite_in_place", wrong)
    assert main(["verify", str(path), "--seeds", "1"]) == 1
    said = capsys.readouterr()
    assert "MISMATCH" in said.out and "onnx-fa: error:" in said.err and "Traceback" not in said.err


def test_the_check_of_the_compile_command(path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compile", str(path), "-o", str(tmp_path / "a.vmfb"), "--check"]) == 0
    assert f"equals onnxruntime's; the original {IN_F32}" in capsys.readouterr().err

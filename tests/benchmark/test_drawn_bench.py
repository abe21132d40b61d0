"""Drawn cases in benchmarks: onnxruntime's own ops mean the attention, and what is written of ratios follows from the samples."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from onnx_fa.benchmark.histogram import of_drawn, ratios, summary, write_histogram
from onnx_fa.benchmark.ort_ops import ORT_OPS, op_model, prepare_op
from onnx_fa.errors import UnsupportedError
from onnx_fa.spec.accuracy import expect
from onnx_fa.spec.attention import AttentionSpec
from onnx_fa.spec.cases import case, draw_operands
from onnx_fa.spec.terms import Causal, Softcap
from tests.support.cli_process import run_main

ATTENTION, MULTI_HEAD, GROUPED = ORT_OPS
PNG = b"\x89PNG\r\n\x1a\n"


def spec(**changes: Any) -> AttentionSpec:
    return case("x", **{"Sq": 40, "Skv": 40, "Hq": 4, "D": 16, "Dv": 16} | changes).spec


@pytest.mark.parametrize(
    ("what", "changes"),
    [
        (ATTENTION, {"Skv": 33, "Dv": 24}),
        (ATTENTION, {"masks": (Causal(),)}),
        (MULTI_HEAD, {"Hkv": 4, "Skv": 33, "Dv": 24}),
        (MULTI_HEAD, {"Hkv": 4, "masks": (Causal(),)}),
        (GROUPED, {"masks": (Causal(),)}),
        (GROUPED, {"Sq": 1}),
    ],
)
def test_ops(what: str, changes: dict[str, Any]) -> None:
    """Each op's result is the reference's, call after call."""
    s = spec(**changes)
    operands = draw_operands(s, 0)
    call, shown = prepare_op(what, op_model(what, s), s, dict(zip("qkv", operands, strict=True)), 1)
    for _ in range(2):
        seen = expect(s, operands).compare(shown(call()[0]))
        assert seen.error <= 1e-5 and not seen.problem


@pytest.mark.parametrize(
    ("what", "changes", "reason"),
    [
        (ATTENTION, {"mods": (Softcap(5.0),)}, "only plain and causal"),
        (ATTENTION, {"batch": (2, 2)}, "only plain and causal"),
        (MULTI_HEAD, {}, "heads that share keys"),
        (GROUPED, {}, "always causal"),
        (GROUPED, {"Sq": 1, "Dv": 24}, "head dims of 16 and 24"),
    ],
)
def test_ops_refuse(what: str, changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(UnsupportedError, match=reason):
        op_model(what, spec(**changes))


TIMES = {
    "plain B1 H1 S64 D32": {"onnx_fa": 1.0, "cuDNN": 2.0, "FlashAttention-2": 4.0},
    "decode B1 H1 Skv64 D32": {"onnx_fa": 3.0, "cuDNN": 2.0, "copy": 1.0},
    "causal B1 H1 S64 D32": {"onnx_fa": 3.0},
}


def test_ratios() -> None:
    """To the fastest other; a copy is none, and a case without others has no ratio."""
    found = ratios(TIMES)
    assert found == {"plain B1 H1 S64 D32": 0.5, "decode B1 H1 Skv64 D32": 1.5}
    assert summary([*found.values()]) == ("2", "1.00", "0.60", "1.40", "0.50", "1.50", "1")
    text = of_drawn(TIMES, ["what was wrong"])
    assert "| all | 2 | 1.00 |" in text and "| plain | 1 | 0.50 |" in text and "* what was wrong" in text
    assert text.index("decode B1 H1 Skv64") < text.index("plain B1 H1 S64")  # the furthest behind first


def test_histogram(tmp_path: Path) -> None:
    source = tmp_path / "x.csv"
    rows = [f"{title},{what},,0,{ms}" for title, by in TIMES.items() for what, ms in by.items()]
    source.write_text("\n".join(["# device: a GPU", "model,what,flags,round,ms", *rows]) + "\n")
    write_histogram(source, tmp_path / "x.png")
    assert (tmp_path / "x.png").read_bytes().startswith(PNG)


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [(["--drawn", "0"], "--drawn takes SEED:COUNT"), (["--build-only"], "--build-only needs --modules")],
)
def test_bad_input(arguments: list[str], reason: str, tmp_path: Path) -> None:
    done = run_main("onnx_fa.benchmark.attention", arguments, tmp_path)
    assert done.returncode == 2 and reason in done.stderr and "Traceback" not in done.stderr

"""Stages as other people's suites name them: in the table, in the test cases of JUnit, and what older files say."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest

from onnx_fa.zoo.compare import compare, read_baseline, summary
from onnx_fa.zoo.entries import Entry, Suite, default_file
from onnx_fa.zoo.report import HEAD, html, junit, markdown, row, stages
from onnx_fa.zoo.stages import ALL_STEPS, OF_IREE, OF_SHARK, stage_reached, stages_of, steps_of
from tests.explainer.test_explain_page import checked

SHARK = Entry("m", "path", "m.onnx")
IREE = Entry("m", "path", "m.onnx", suite=Suite("cpu", (), ()))
SHARK_STAGES = (
    "setup import_model preprocessing compilation construct_inputs native_inference compiled_inference benchmark postprocessing"
).split()


def result(entry: Entry, failing: str = "", **changes: Any) -> dict[str, Any]:
    """All steps of the entry; after the one that fails none is tried."""
    steps: dict[str, Any] = {}
    for step in steps_of(entry):
        stopped = any(not said["ok"] for said in steps.values())
        steps[step] = {
            "ok": not stopped and step != failing, "message": "why", "seconds": 1.0, "peak_bytes": 5, "skipped": stopped,
        }  # fmt: skip
    problems = [f"{failing}: why"] if failing else []
    made = {"name": entry.name, "steps": steps, "ok": not failing, "problems": problems, "known": []} | changes
    return made | {"stages": stages_of(entry, tuple(steps))}


def test_every_step_has_a_stage_of_theirs() -> None:
    assert set(OF_SHARK) == set(steps_of(SHARK)) and set(OF_IREE) == set(ALL_STEPS) == set(steps_of(IREE))
    assert set(OF_SHARK.values()) < set(SHARK_STAGES) and set(OF_IREE.values()) == {"import", "compile", "run"}
    # In their order, so that the first step that fails is in the stage that fails.
    order = [SHARK_STAGES.index(OF_SHARK[s]) for s in steps_of(SHARK)]
    assert order == sorted(order)


@pytest.mark.parametrize(
    ("entry", "failing", "stage"),
    [
        (SHARK, "", "PASS"),
        (SHARK, "export", "setup"),
        (SHARK, "explain", "import_model"),
        (SHARK, "compile", "compilation"),
        (SHARK, "check", "compiled_inference"),
        (SHARK, "verify", "compiled_inference"),
        (SHARK, "bench", "benchmark"),
        (IREE, "", "PASS"),
        (IREE, "iree-import", "import"),
        (IREE, "iree-compile", "compile"),
        (IREE, "iree-run", "run"),
    ],
)
def test_where_a_model_ended(entry: Entry, failing: str, stage: str) -> None:
    made = result(entry, failing)
    assert stage_reached(made) == stage == row(made)[HEAD.index("stage")]


def test_ends_that_are_no_step() -> None:
    bad = {"worst": {}, "bad": [{}]}
    assert stage_reached(result(SHARK, verify=bad, ok=False)) == "Numerics"
    assert stage_reached(result(SHARK, "bench", verify=bad)) == "benchmark"
    assert stage_reached(result(SHARK, ok=False)) == "expectations"  # such as another number of sites
    both = result(IREE, "iree-import")
    both["steps"]["compile"]["ok"] = False  # our road, a stage later
    assert stage_reached(both) == "import"
    left_out = result(IREE)
    for said in left_out["steps"].values():
        said |= {"ok": False, "skipped": True}
    assert stage_reached(left_out) == "-" and row(left_out)[-1] == "skipped"


def test_stages_in_the_reports(tmp_path: Path) -> None:
    results = [
        result(SHARK),
        result(SHARK, "export") | {"name": "gone"},
        result(IREE, "iree-run") | {"name": "theirs"},
        result(SHARK, ok=False, problems=["1 attention sites found, 2 expected (why)"]) | {"name": "other"},
    ]
    rows = {r[0]: r[1:] for r in stages(results)}
    assert rows["setup"] == ("export", "1") and rows["compilation"] == ("compile, stock", "0")
    assert (
        rows["run"] == ("iree-run, check, verify, bench", "1")
        and rows["expectations"][1] == "1"
        and "Numerics" not in rows
    )
    text = markdown(results, {}, None)
    assert (
        "## Stages\n\n| stage | steps here | models that it stopped |" in text
        and "| run | iree-run, check, verify, bench | 1 |" in text
    )
    suites = ET.fromstring(junit(results, None))
    cases = {s.get("name"): [c.get("name") for c in s] for s in suites}
    assert cases["m"][:5] == ["setup (export)", "import_model (explain)", "preprocessing (rewrite)", "compilation (compile)",
                              "compilation (stock)"]  # fmt: skip
    assert {"import (iree-import)", "compile", "compile (iree-compile)", "run (iree-run)"} < set(cases["theirs"])
    assert suites.find("testsuite[@name='gone']/testcase[@name='setup (export)']/failure") is not None
    page = html(tmp_path, results, {}, None)
    assert checked(page) and "<td>setup</td><td>export</td><td>ok</td>" in page


def test_the_times_of_stock_iree_and_of_the_stock_road_in_the_table() -> None:
    at = HEAD.index("stock IREE ms")
    assert HEAD[at + 1] == "stock road ms"
    both = {"stock": {"ms": 12.34567}, "road": {"ms": 0.5}, "ratios": {}}
    assert row(result(SHARK, bench=both))[at : at + 2] == ("12.35", "0.5")
    refused = {"stock": {"ms": None, "problem": "refused"}, "ratios": {}}
    assert row(result(SHARK, bench=refused))[at : at + 2] == row(result(SHARK))[at : at + 2] == ("-", "-")


def test_results_and_baselines_from_before_stages_had_names(tmp_path: Path) -> None:
    before = result(SHARK, "compile")
    del before["stages"]
    assert stage_reached(before) == "compile" and "<testcase" in junit([before], None) and stages([before]) == []
    assert "compile</td><td>failed" in html(tmp_path, [before], {}, None)
    # A baseline has our steps, whatever the reports call them.
    entries = read_baseline(default_file().parent / "zoo-baseline.json")["entries"]
    assert {s for e in entries.values() for s in e["steps"]} <= set(ALL_STEPS)
    was = json.loads(json.dumps({"m": summary(result(SHARK))}))
    assert compare([result(SHARK, "compile")], {"entries": was}).worse[:2] == (
        "m: compile: why",
        "m: compile worked before",
    )

"""The results of a run for people and for CI systems: Markdown, JUnit XML, one HTML page."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from onnx_fa.explainer.page import template
from onnx_fa.files import write_whole
from onnx_fa.tables import markdown_table
from onnx_fa.zoo.compare import Comparison
from onnx_fa.zoo.entries import folder_name
from onnx_fa.zoo.stages import EXPECTATIONS, NUMERICS, stage_reached
from onnx_fa.zoo.steps import Json

HEAD = (
    "model",
    "sites",
    "fused",
    "variants",
    "passes",
    "stock road",
    "error",
    "stock IREE ms",
    "stock road ms",
    "to stock IREE",
    "to onnxruntime",
    "stage",
    "verdict",
)


def write_reports(
    folder: Path, results: Sequence[Json], machine: Json, comparison: Comparison | None = None
) -> list[Path]:
    """results.md, results.xml and results.html beside results.jsonl. Returns their paths."""
    paths = [folder / f"results.{end}" for end in ("md", "xml", "html")]
    write_whole(paths[0], markdown(results, machine, comparison))
    write_whole(paths[1], junit(results, comparison))
    write_whole(paths[2], html(folder, results, machine, comparison))
    return paths


def row(result: Json) -> tuple[str, ...]:
    """One line of the table, in the order of HEAD."""
    sites: list[Any] = result.get("explain", {}).get("sites", [])
    compiled: Json = result.get("compile", {})
    road: Json = result.get("stock", {})
    worst = result.get("verify", {}).get("worst", {}).get("model")
    bench: Json = result.get("bench", {})
    ratios = bench.get("ratios", {})
    times = [bench.get(of, {}).get("ms") for of in ("stock", "road")]
    fused = sum(s["fused"] is True for s in compiled.get("sites", []))
    return (
        result["name"],
        str(len(sites)) if "explain" in result else "-",
        str(fused) if compiled else "-",
        ", ".join(dict.fromkeys(_brief(s["variant"]) for s in sites)) or "-",
        ", ".join(dict.fromkeys(s["passes"] for s in sites)) or "-",
        f"{road['arrived']}/{road['kernels']}" if road else "-",
        f"{worst['error']:.1e}" if worst else "-",
        *(f"{ms:.4g}" if ms is not None else "-" for ms in times),
        *(f"{ratios[k]['mid']:.2f}" if k in ratios else "-" for k in ("stock", "ort")),
        stage_reached(result),
        verdict(result),
    )


def _brief(variant: str) -> str:
    """Each word of a variant once, with how often it is there: the steps of a quantised model are many."""
    counts = Counter(variant.split("+"))
    return "+".join(word if n == 1 else f"{n} {word}" for word, n in counts.items())


def verdict(result: Json) -> str:
    if result["ok"] and result["steps"] and all(said["skipped"] for said in result["steps"].values()):
        return "skipped"
    if not result["ok"]:
        return "FAILED"
    return "known" if result["known"] else "ok"


def table(results: Sequence[Json]) -> list[tuple[str, ...]]:
    return [row(r) for r in results]


def _circumstances(results: Sequence[Json], machine: Json) -> str:
    good = sum(r["ok"] for r in results)
    versions = " ".join(f"{k} {v}" for k, v in machine.get("versions", {}).items())
    return (
        f"{good} of {len(results)} models are right. {machine.get('cpu', '?')}, {machine.get('threads', '?')} threads, "
        f"{machine.get('date', '?')}; {versions}."
    )


STAGES_HEAD = ("stage", "steps here", "models that it stopped")


def stages(results: Sequence[Json]) -> list[tuple[str, ...]]:
    """Each stage of the suites that the models are from: our steps in it, and how many models failed there, expected or not."""
    steps: dict[str, dict[str, None]] = {}
    for r in results:
        for step, stage in r.get("stages", {}).items():
            steps.setdefault(stage, {})[step] = None
    ended = Counter(stage_reached(r) for r in results)
    rows: list[tuple[str, ...]] = [(stage, ", ".join(of), str(ended[stage])) for stage, of in steps.items()]
    extra = {NUMERICS: "verify: outputs differ", EXPECTATIONS: "all: not as the zoo expects"}
    return rows + [(name, what, str(ended[name])) for name, what in extra.items() if ended[name]]


def case_name(result: Json, step: str) -> str:
    """A step with the stage that it is in."""
    stage = result.get("stages", {}).get(step, step)
    return str(stage) if stage == step else f"{stage} ({step})"


def markdown(results: Sequence[Json], machine: Json, comparison: Comparison | None) -> str:
    parts = ["# Zoo", _circumstances(results, machine), markdown_table(HEAD, table(results))]
    parts += [f"- **{r['name']}**: {p}" for r in results for p in r["problems"]]
    parts += [f"- {r['name']}: {p}" for r in results for p in r["known"]]
    parts += ["## Stages", markdown_table(STAGES_HEAD, stages(results))]
    if comparison is not None:
        parts += ["## Against the baseline"]
        parts += [f"- worse: {w}" for w in comparison.worse] or ["- nothing got worse"]
        parts += [f"- better: {b}" for b in comparison.better]
    text = ""
    for before, part in zip(["", *parts], parts, strict=False):
        text += part if not text else ("\n" if part.startswith("- ") and before.startswith("- ") else "\n\n") + part
    return text + "\n"


def junit(results: Sequence[Json], comparison: Comparison | None) -> str:
    """One test case per step of every model, one for the model as a whole, and one for the comparison."""
    suites = ET.Element("testsuites", name="onnx-fa zoo")
    for r in results:
        suite = ET.SubElement(suites, "testsuite", name=r["name"])
        failures = 0
        for step, said in r["steps"].items():
            case = ET.SubElement(
                suite, "testcase", classname=r["name"], name=case_name(r, step), time=f"{said['seconds']:.1f}"
            )
            mine = [p for p in r["problems"] if p.startswith(f"{step}: ")]
            if said["skipped"]:
                ET.SubElement(case, "skipped", message=said["message"])
            elif mine:
                failures += 1
                ET.SubElement(case, "failure", message=mine[0]).text = "\n".join(mine)
        others = [p for p in r["problems"] if not any(p.startswith(f"{s}: ") for s in r["steps"])]
        case = ET.SubElement(suite, "testcase", classname=r["name"], name="as expected", time="0")
        if others:
            failures += 1
            ET.SubElement(case, "failure", message=others[0]).text = "\n".join(others)
        suite.set("tests", str(len(r["steps"]) + 1))
        suite.set("failures", str(failures))
    if comparison is not None:
        suite = ET.SubElement(suites, "testsuite", name="baseline", tests="1", failures=str(int(not comparison.ok)))
        case = ET.SubElement(suite, "testcase", classname="baseline", name="compare", time="0")
        if comparison.worse:
            ET.SubElement(case, "failure", message=comparison.worse[0]).text = "\n".join(comparison.worse)
    ET.indent(suites)
    return ET.tostring(suites, encoding="unicode", xml_declaration=True) + "\n"


def html(folder: Path, results: Sequence[Json], machine: Json, comparison: Comparison | None) -> str:
    """One page: the table with sparklines of the timed rounds, and a part for every model."""
    shown = []
    for r in results:
        fragment = folder / "work" / folder_name(r["name"]) / "sites.html"
        times = []
        for key, label in (
            ("ours", "onnx_fa"),
            ("stock", "stock IREE"),
            ("road", "stock road"),
            ("ort", "onnxruntime"),
        ):
            of = r.get("bench", {}).get(key)
            if of is not None:
                samples = of.get("samples", [])
                times.append(
                    {"label": label, "ms": of["ms"], "peak": of.get("peak_bytes"), "spark": sparkline(samples),
                     "problem": of.get("problem", "")}
                )  # fmt: skip
        shown.append(
            {
                "result": r,
                "id": folder_name(r["name"]),
                "cells": row(r)[1:-1],
                "verdict": verdict(r),
                "times": times,
                "spark": sparkline(r.get("bench", {}).get("ours", {}).get("samples", [])),
                "sites": fragment.read_text() if fragment.is_file() and "explain" in r else "",
                "seconds": sum(s["seconds"] for s in r["steps"].values()),
            }
        )
    return template("zoo.html").render(
        models=shown,
        head=HEAD[1:-1],
        circumstances=_circumstances(results, machine),
        comparison=comparison,
        stages_head=STAGES_HEAD,
        stages=stages(results),
    )


def sparkline(samples: Sequence[float]) -> str:
    """The samples in order as a small line, from half the median to twice it."""
    if len(samples) < 2:
        return ""
    mid = median(samples)
    points = []
    for i, ms in enumerate(samples):
        high = min(max((ms / mid - 0.5) / 1.5, 0.0), 1.0)
        points.append(f"{1 + 78 * i / (len(samples) - 1):.1f},{19 - 18 * high:.1f}")
    return (
        '<svg class="spark" width="80" height="20" role="img">'
        f"<title>{min(samples):.3g} to {max(samples):.3g} ms</title>"
        f'<polyline points="{" ".join(points)}"/></svg>'
    )

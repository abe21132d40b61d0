"""What is wrong with an entry's result, against what is expected of the entry."""

from __future__ import annotations

from typing import Any

from onnx_fa.iree.inspect import OUTSIDE
from onnx_fa.zoo.entries import Entry
from onnx_fa.zoo.stages import RUNNING

Json = dict[str, Any]
Found = list[tuple[str, str]]
"""(step, what is wrong)."""


def judge(entry: Entry, result: Json) -> tuple[list[str], list[str]]:
    """What is wrong with an entry's result, and what is wrong but explained (`known`)."""
    found: Found = []
    for step, said in result["steps"].items():
        if not said["ok"] and not said["skipped"]:
            found.append((step, f"{step}: {said['message']}"))
    found += _of_sites(entry, result)
    for check in result.get("verify", {}).get("bad", []):
        error, allowed = check["error"], check["allowed"] if entry.tolerance is None else entry.tolerance
        shown = f"{error:.2e}" if isinstance(error, float) else error
        where = f"{check['what']} against {check['against']} on {check['inputs']}"
        found.append(("verify", f"verify: {where}: error {shown}, allowed {allowed:.2e} {check['note']}".rstrip()))
    found += _passed_against_expectation(entry, result)
    problems, known = [], []
    excuses = (*entry.known, *_expected(entry, result))
    for step, text in dict.fromkeys(found):
        why = next((why for what, why in excuses if what == step or text.startswith(f"{what}: ")), None)
        if why is None:
            problems.append(text)
        else:
            known.append(f"{text} (known: {why})")
    return problems, known


def _failing_step(entry: Entry) -> str:
    """The step at which stock IREE is expected to fail; empty where it is not."""
    outcome = entry.suite.outcome if entry.suite else "pass"
    return "" if outcome == "pass" else outcome.replace("fail-", "iree-")


def _expected(entry: Entry, result: Json) -> Found:
    """The steps that may fail, and why. Where stock IREE fails as expected, so may our road from that stage on, for its compiler
    and runtime are stock IREE's. Where it failed earlier than expected, or passed, nothing may."""
    step = _failing_step(entry)
    said = result["steps"].get(step)
    if entry.suite is None or not step or (said is not None and (said["ok"] or said["skipped"])):
        return []
    why = f"{entry.suite.config} expects {entry.suite.outcome}"
    ours = RUNNING[1:] if step == "iree-run" else ("compile", "stock", *RUNNING[1:])
    return [(s, why) for s in (step, *ours)]


def _passed_against_expectation(entry: Entry, result: Json) -> Found:
    """As strict as the suite: what is expected to fail must not pass."""
    step = _failing_step(entry)
    if entry.suite is None or not result["steps"].get(step, {"ok": False})["ok"]:
        return []
    text = f"{step}: passed, and {entry.suite.config} expects {entry.suite.outcome}: take it off the expected failures"
    return [(step, text)]


def _of_sites(entry: Entry, result: Json) -> Found:
    found: Found = []
    explained: Json = result.get("explain", {})
    sites: list[Any] = explained.get("sites", [])
    misses: list[Any] = explained.get("misses", [])
    if explained and entry.sites is not None and len(sites) != entry.sites:
        why = "; ".join(f"{m['node']}: {m['reason']}" for m in misses) or "nothing was left alone"
        found.append(("explain", f"{len(sites)} attention sites found, {entry.sites} expected ({why})"))
    if explained and entry.misses is not None and len(misses) > entry.misses:
        for m in misses:
            found.append(("explain", f"left alone: {m['node']} ({m['op']}): {m['reason']}"))
    kinds = tuple(sorted({s["variant"] for s in sites}))
    if explained and entry.variants and kinds != tuple(sorted(set(entry.variants))):
        found.append(
            ("explain", f"variants {', '.join(kinds) or 'none'}, expected {', '.join(sorted(set(entry.variants)))}")
        )
    if result.get("rewrite", {}).get("again"):
        found.append(("rewrite", f"rewrite: writing it again changes {result['rewrite']['again']} sites"))
    compiled: Json = result.get("compile", {})
    for s in compiled.get("sites", []):
        if s["fused"] is not True:
            found.append(("compile", f"site {s['name']} is not one fused dispatch ({s['dispatches']} dispatches)"))
    seen = {(m["node"], m["reason"]) for m in misses}
    unexpected = [m for m in compiled.get("misses", []) if (m["node"], m["reason"]) not in seen]
    # Without explain, those that are expected have no names.
    if explained or (entry.misses is not None and len(unexpected) > entry.misses):
        found += [("compile", f"no kernel for {m['node']}: {m['reason']}") for m in unexpected]
    for b in compiled.get("buffers", []):
        if OUTSIDE not in b or entry.misses == 0:  # a softmax that is rightly left alone has its buffer
            found.append(("compile", f"buffer of Sq x Skv size: {b}"))
    road: Json = result.get("stock", {})
    if road and road["arrived"] < road["kernels"]:
        found.append(("stock", f"stock road: {road['arrived']} of {road['kernels']} kernels are in the module"))
    return found

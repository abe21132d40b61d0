"""`zoo compare`: results against a baseline: what got worse, what got better."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onnx_fa.errors import OnnxFaError
from onnx_fa.files import read_text, write_whole

if TYPE_CHECKING:
    from onnx_fa.zoo.steps import Json

NOT_TRIED = "not tried: "
"""How the message of a step begins that one before it kept from being tried."""
BAND = 0.25
"""How much worse a time ratio may be than the baseline's before it counts: its median by more than this share, and even its best
round slower than the baseline's slowest."""
HIDDEN_GAIN = 0.2
"""From this share on a time ratio that got better is worth a line."""


@dataclass(frozen=True)
class Comparison:
    """`worse` fails a run. `missing`: entries of the baseline without a result. `new`: the other way round."""

    worse: tuple[str, ...]
    better: tuple[str, ...]
    missing: tuple[str, ...] = ()
    new: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        return not self.worse


def summary(result: Json) -> Json:
    """What a baseline keeps of a result."""
    sites = result.get("explain", {}).get("sites", [])
    compiled: Json = result.get("compile", {})
    worst = result.get("verify", {}).get("worst", {})
    road: Json = result.get("stock", {})
    return {
        "ok": result["ok"],
        "steps": sorted(s for s, said in result["steps"].items() if said["ok"]),
        "sites": len(sites),
        "variants": sorted({s["variant"] for s in sites}),
        "fused": sum(s["fused"] is True for s in compiled.get("sites", [])),
        "misses": sorted({m["reason"] for m in result.get("explain", {}).get("misses", [])}),
        "stock_kernels": road.get("arrived"),
        "errors": {k: c["error"] for k, c in worst.items()},
        "ratios": result.get("bench", {}).get("ratios", {}),
    }


def write_baseline(path: Path, results: Sequence[Json], machine: Json) -> None:
    """Writes the baseline; entries that `results` lack keep what an earlier one says of them."""
    before = read_baseline(path)["entries"] if path.exists() else {}
    entries = {**before, **{r["name"]: summary(r) for r in results}}
    data = {"machine": machine, "entries": dict(sorted(entries.items()))}
    write_whole(path, json.dumps(data, indent=1) + "\n")


def read_baseline(path: Path) -> Json:
    """Raises OnnxFaError when the file is no baseline."""
    try:
        data: Json = json.loads(read_text(path))
        if not all(isinstance(e, dict) and "sites" in e for e in data["entries"].values()):
            raise ValueError("an entry without sites")
    except (ValueError, KeyError, AttributeError, TypeError) as e:
        raise OnnxFaError(f"{path}: not a baseline of onnx-fa zoo: {e}") from e
    return data


def compare(results: Sequence[Json], baseline: Json, band: float = BAND) -> Comparison:
    """Every entry with what the baseline says of it. Entries that one side lacks are named, and fail nothing."""
    worse: list[str] = []
    better: list[str] = []
    entries: dict[str, Any] = baseline["entries"]
    for result in results:
        name = result["name"]
        if not result["ok"]:
            # An error above tolerance, a site of another kind, a step that fails: whatever the baseline says.
            worse += [f"{name}: {p}" for p in result["problems"]]
        if name not in entries:
            continue
        was, now = entries[name], summary(result)
        worse += [f"{name}: {step} worked before" for step in was["steps"] if _failed(result, step)]
        if "explain" in result:
            _counts(name, "sites", was["sites"], now["sites"], worse, better)
            worse += [f"{name}: new miss: {m}" for m in now["misses"] if m not in was["misses"]]
            better += [f"{name}: no more: {m}" for m in was["misses"] if m not in now["misses"]]
        if "compile" in result:
            _counts(name, "sites fused", was["fused"], now["fused"], worse, better)
        if "stock" in result and was["stock_kernels"] is not None:
            _counts(name, "kernels on the stock road", was["stock_kernels"], now["stock_kernels"], worse, better)
        if result["ok"] and not was["ok"]:
            better.append(f"{name}: all right now")
        for to, ratio in now["ratios"].items():
            old = was["ratios"].get(to)
            if old is None:
                continue
            text = f"{name}: time to {TO[to]} {old['mid']:.2f} -> {ratio['mid']:.2f}"
            if ratio["mid"] > old["mid"] * (1 + band) and ratio["low"] > old["high"]:
                worse.append(f"{text}, beyond the noise band of {band:.0%}")
            elif ratio["mid"] < old["mid"] * (1 - HIDDEN_GAIN) and ratio["high"] < old["low"]:
                better.append(text)
    names = [r["name"] for r in results]
    return Comparison(
        tuple(dict.fromkeys(worse)),
        tuple(better),
        tuple(n for n in entries if n not in names),
        tuple(n for n in names if n not in entries),
    )


TO = {"stock": "stock IREE", "ort": "onnxruntime"}


def _failed(result: Json, step: str) -> bool:
    """A step that was tried, or would have been, and failed; one that was not asked for, or is to be left out, has not."""
    said = result["steps"].get(step, {"ok": True})
    return not said["ok"] and not (said["skipped"] and not said["message"].startswith(NOT_TRIED))


def _counts(name: str, what: str, was: int, now: int, worse: list[str], better: list[str]) -> None:
    if now < was:
        worse.append(f"{name}: {now} {what}, {was} before")
    elif now > was:
        better.append(f"{name}: {now} {what}, {was} before")

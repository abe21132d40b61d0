"""`zoo run`: every entry through every step, each step in a process of its own with limits; what is done already is taken over."""

from __future__ import annotations

import hashlib
import json
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from onnx_fa import processes as limits
from onnx_fa.benchmark.worker_process import package_environment
from onnx_fa.errors import MissingDependencyError, OnnxFaError, TargetError
from onnx_fa.files import write_whole, writing
from onnx_fa.iree.run import require_device
from onnx_fa.machine import machine_facts
from onnx_fa.spec.target import foreign_cpu, parse_target
from onnx_fa.zoo.compare import NOT_TRIED
from onnx_fa.zoo.entries import Entry, key
from onnx_fa.zoo.judge import judge
from onnx_fa.zoo.shards import Shard, part, zoo_digest
from onnx_fa.zoo.stages import ALL_STEPS, ALWAYS, NEEDS, USES, stage_reached, stages_of, steps_of
from onnx_fa.zoo.steps import Json

TIMEOUTS = {
    "export": 240,
    "explain": 120,
    "rewrite": 120,
    "compile": 300,
    "stock": 300,
    "iree-import": 300,
    "iree-compile": 300,
    "iree-run": 120,
    "check": 120,
    "verify": 300,
    "bench": 240,
}
"""Seconds per step."""
MEMORY = 8 << 30
MADE = {
    "export": ("model.onnx", "model.static.onnx", "model.dynamic.onnx", "inputs.npz", "unpacked/**/*"),
    "explain": ("sites.html",),
    "compile": ("model.vmfb",),
    "stock": ("stock.vmfb",),
    "iree-import": ("iree.mlir",),
    "iree-compile": ("iree.vmfb",),
}
"""The files of each step that other steps read: damaged since, they are made again."""


@dataclass(frozen=True)
class Settings:
    """`steps`: those to run, with those they need and those that always follow.
    Times: `rounds` of `calls` on `threads`. `factor` stretches all time limits."""

    steps: tuple[str, ...] = ALL_STEPS
    rounds: int = 5
    calls: int = 5
    threads: int = 2
    jobs: int = 1
    factor: float = 1.0

    @property
    def wanted(self) -> tuple[str, ...]:
        found = set(self.steps)
        for step in reversed(ALL_STEPS):
            if step in found:
                found |= set(NEEDS[step])
        found |= {behind for step, behind in ALWAYS.items() if step in found}
        return tuple(s for s in ALL_STEPS if s in found)

    def wanted_of(self, entry: Entry) -> tuple[str, ...]:
        return tuple(s for s in self.wanted if s in steps_of(entry))

    def to_dict(self) -> Json:
        """What results depend on: all but how many entries run at a time."""
        times = {"rounds": self.rounds, "calls": self.calls, "threads": self.threads, "stretch": self.factor}
        return {"steps": list(self.wanted), **times}

    def for_step(self, step: str) -> Json:
        """What a step may know, and what its result depends on."""
        data: Json = {"timeout_s": TIMEOUTS[step] * self.factor}
        if step == "bench":
            data |= {"rounds": self.rounds, "calls": self.calls, "threads": self.threads}
        return data


Advance = Callable[[str, str, bool], None]
"""(entry, step, whether the step was taken over) after each step."""


def run(
    entries: Sequence[Entry],
    target: str,
    folder: Path,
    settings: Settings = Settings(),
    advance: Advance = lambda entry, step, taken: None,
    shard: Shard | None = None,
) -> list[Json]:
    """The results, one for each entry (of the shard), in their order; also as JSON lines in `folder`/results.jsonl. What was run,
    and how, is in `folder`/run.json.

    Everything but timing runs `jobs` entries at a time; timing comes last, alone. What an interrupted run had finished is taken
    over, as is what cannot have changed since an earlier run. Raises OnnxFaError when the folder cannot be written.
    """
    try:
        (folder / "work").mkdir(parents=True, exist_ok=True)
    except OSError as e:
        raise OnnxFaError(f"{folder}: cannot be written: {e.strerror}") from e
    absent = _absent(target)
    states = [_EntryRun(e, target, folder / "work" / e.folder, settings, absent) for e in part(entries, shard)]
    partial = folder / "results.partial.jsonl"
    write_whole(partial, "")

    def first(state: _EntryRun) -> None:
        for step in (s for s in settings.wanted_of(state.entry) if s != "bench"):
            advance(state.entry.name, step, state.do(step))

    with ThreadPoolExecutor(settings.jobs) as pool:
        futures = [pool.submit(first, s) for s in states]
        try:
            for future in futures:
                future.result()
        except BaseException:
            for state in states:
                state.stop = True
            pool.shutdown(cancel_futures=True)
            raise
    results = []
    for state in states:
        if "bench" in settings.wanted_of(state.entry):
            advance(state.entry.name, "bench", state.do("bench"))
        results.append(state.result())
        with writing(partial), partial.open("a") as stream:
            stream.write(json.dumps(results[-1]) + "\n")
    partial.replace(folder / "results.jsonl")
    how = {
        "target": target,
        "machine": machine_facts(settings.threads),
        "settings": settings.to_dict(),
        "zoo": {"digest": zoo_digest(entries), "entries": [e.name for e in entries]},
        "shard": str(shard) if shard else None,
    }
    write_whole(folder / "run.json", json.dumps(how) + "\n")
    return results


def _absent(target: str) -> str:
    """Why this machine cannot run what is compiled for the target; empty where it can."""
    parsed = parse_target(target)
    if not parsed.is_gpu:
        return foreign_cpu(parsed)
    try:
        require_device(parsed.device)
    except (MissingDependencyError, TargetError) as e:
        return str(e)
    return ""


class _EntryRun:
    """One entry on its way: what each step said, and what is on disk of it."""

    def __init__(self, entry: Entry, target: str, folder: Path, settings: Settings, absent: str = "") -> None:
        self.entry, self.target, self.folder, self.settings = entry, target, folder, settings
        self.skips = ({"check": absent} if absent else {}) | dict(entry.skip)
        self.done: dict[str, Json] = {}
        self.stop = False

    def do(self, step: str) -> bool:
        """Runs a step, or takes over what it said before (then the answer is true)."""
        if self.stop:
            return False
        if (why := self.skips.get(step)) is not None:
            self.done[step] = _said(False, why, skipped=True)
            return True
        missing = [n for n in NEEDS[step] if not self.done[n]["ok"]]
        if missing:
            self.done[step] = _said(False, f"{NOT_TRIED}{missing[0]} failed", skipped=True)
            return True
        settings = self.settings.for_step(step)
        uses = [n for n in USES.get(step, ()) if n in self.done and self.done[n]["ok"]]
        if uses:
            settings["uses"] = uses
        # A step's result depends on what it was made from.
        before = [self.done[n]["key"] for n in (*NEEDS[step], *uses)]
        digest = key(self.entry, self.target, {"step": step, "before": before, **settings})
        record = self.folder / f"{step}.record.json"
        said = _read_record(record)
        # What failed is tried again, and what is not on disk any more as it was made.
        if said is not None and said["key"] == digest and said["ok"] and said["files"] == self._made(step):
            self.done[step] = said
            return True
        self.folder.mkdir(exist_ok=True)
        for stale in (record, self.folder / f"{step}.json"):
            stale.unlink(missing_ok=True)
        given = {"entry": self.entry.to_dict(), "target": self.target, "settings": settings}
        write_whole(self.folder / "entry.json", json.dumps(given))
        said = self._start(step, settings["timeout_s"]) | {"key": digest, "files": self._made(step)}
        write_whole(record, json.dumps(said))
        self.done[step] = said
        return False

    def _made(self, step: str) -> Json:
        """The sha256 of each file that a step leaves to others."""
        paths = [p for name in MADE.get(step, ()) for p in sorted(self.folder.glob(name)) if p.is_file()]
        return {p.relative_to(self.folder).as_posix(): hashlib.sha256(p.read_bytes()).hexdigest() for p in paths}

    def _start(self, step: str, timeout_s: float) -> Json:
        command = [sys.executable, "-m", "onnx_fa.zoo.steps", step, str(self.folder.resolve())]
        start = time.monotonic()
        done = limits.run_limited(command, timeout_s=timeout_s, memory_bytes=MEMORY, env=package_environment())
        result = self.folder / f"{step}.json"
        seconds = round(time.monotonic() - start, 1)
        if done.ending == "ok" and result.is_file():
            return _said(True, "", seconds=seconds, peak=done.peak_bytes, data=json.loads(result.read_text()))
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        message = lines[-1].strip()[:400] if lines else "no message"
        if done.ending != "failed" or done.returncode != 1:
            message = f"{done.describe(timeout_s, MEMORY)}: {message}"
        write_whole(self.folder / f"{step}.log", done.stdout + done.stderr)
        return _said(False, message, seconds=seconds, peak=done.peak_bytes)

    def result(self) -> Json:
        """The entry's line in results.jsonl."""
        steps = {
            s: {k: d[k] for k in ("ok", "message", "seconds", "peak_bytes", "skipped")} for s, d in self.done.items()
        }
        data = {s: d["data"] for s, d in self.done.items() if d["data"] is not None}
        made: Json = {"name": self.entry.name, "target": self.target, "steps": steps, **data}
        problems, known = judge(self.entry, made)
        made |= {
            "ok": not problems,
            "problems": problems,
            "known": known,
            "stages": stages_of(self.entry, tuple(steps)),
        }
        return made | {"stage": stage_reached(made)}


def _read_record(path: Path) -> Json | None:
    """What a step said in an earlier run; None where there is nothing, or nothing that can be read."""
    try:
        said = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None
    return said if isinstance(said, dict) and set(_said(True, "")) <= set(said) else None


def _said(
    ok: bool, message: str, *, seconds: float = 0.0, peak: int = 0, data: Json | None = None, skipped: bool = False
) -> Json:
    return {
        "ok": ok,
        "message": message,
        "seconds": seconds,
        "peak_bytes": peak,
        "data": data,
        "skipped": skipped,
        "key": "",
        "files": {},
    }


def read_results(path: Path) -> list[Json]:
    """The lines of a results file. Raises OnnxFaError when it is not one."""
    from onnx_fa.files import read_text

    try:
        results = [json.loads(line) for line in read_text(path).splitlines() if line]
        if not all(
            isinstance(r, dict) and {"name", "ok", "steps"} <= set(r) and isinstance(r["name"], str) for r in results
        ):
            raise ValueError("a line is no result")
    except ValueError as e:
        raise OnnxFaError(f"{path}: not a results file of onnx-fa zoo: {e}") from e
    return results

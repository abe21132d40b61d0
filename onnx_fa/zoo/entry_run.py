"""One entry on its way through its steps: what each said, which can be taken over, and the entry's line of results."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from onnx_fa.files import write_whole
from onnx_fa.zoo.compare import NOT_TRIED
from onnx_fa.zoo.entries import Entry
from onnx_fa.zoo.judge import judge
from onnx_fa.zoo.keys import key
from onnx_fa.zoo.settings import Settings
from onnx_fa.zoo.stages import ALL_STEPS, NEEDS, USES, stage_reached, stages_of
from onnx_fa.zoo.step_process import made_by, read_record, record, run_step

Json = dict[str, Any]


@dataclass(frozen=True)
class Job:
    """A step that is to be run, or taken over from where its `key` is the same. `before` are the steps that it is made from."""

    step: str
    key: str
    settings: Json
    before: tuple[str, ...]


class EntryRun:
    """What the steps of an entry said, and the folder with what is on disk of it."""

    def __init__(self, entry: Entry, target: str, folder: Path, settings: Settings, absent: str = "") -> None:
        self.entry, self.target, self.folder, self.settings = entry, target, folder, settings
        self.skips = ({"check": absent} if absent else {}) | dict(entry.skip)
        self.done: dict[str, Json] = {}
        self.stop = False

    def job(self, step: str) -> Job | None:
        """What is to be done for a step whose earlier steps are done; None where it is skipped, as is noted then."""
        if (why := self.skips.get(step)) is not None:
            self.done[step] = record(False, why, skipped=True)
            return None
        missing = [n for n in NEEDS[step] if not self.done[n]["ok"]]
        if missing:
            self.done[step] = record(False, f"{NOT_TRIED}{missing[0]} failed", skipped=True)
            return None
        settings = self.settings.for_step(step)
        uses = [n for n in USES.get(step, ()) if n in self.done and self.done[n]["ok"]]
        if uses:
            settings["uses"] = uses
        # A step's result depends on what it was made from.
        before = (*NEEDS[step], *uses)
        made_from = [self.done[n]["key"] for n in before]
        digest = key(self.entry, self.target, {"step": step, "before": made_from, **settings})
        return Job(step, digest, settings, before)

    def take_over(self, job: Job) -> bool:
        """Takes over what the step said in an earlier run in this folder, if it can be. What failed is tried again, and what is not
        on disk any more as it was made."""
        found = read_record(self._record(job.step))
        if (
            found is None
            or found["key"] != job.key
            or not found["ok"]
            or found["files"] != made_by(self.folder, job.step)
        ):
            return False
        self.done[job.step] = found
        return True

    def note(self, job: Job, result: Json) -> None:
        """Keeps what the step said, for this run and for later ones."""
        self.folder.mkdir(exist_ok=True)
        write_whole(self._record(job.step), json.dumps(result))
        self.done[job.step] = result

    def do(self, step: str) -> bool:
        """Runs a step here, or takes over what it said before (then the answer is true)."""
        if self.stop:
            return False
        job = self.job(step)
        if job is None or self.take_over(job):
            return True
        self.folder.mkdir(exist_ok=True)
        self._record(step).unlink(missing_ok=True)
        result = self.start(job)
        self.note(job, result | {"key": job.key, "files": made_by(self.folder, step)})
        return False

    def start(self, job: Job) -> Json:
        given = {"entry": self.entry.to_dict(), "target": self.target, "settings": job.settings}
        return run_step(self.folder, job.step, given)

    def _record(self, step: str) -> Path:
        return self.folder / f"{step}.record.json"

    def result(self) -> Json:
        """The entry's line in results.jsonl."""
        done = {s: self.done[s] for s in ALL_STEPS if s in self.done}
        steps = {s: {k: d[k] for k in ("ok", "message", "seconds", "peak_bytes", "skipped")} for s, d in done.items()}
        data = {s: d["data"] for s, d in done.items() if d["data"] is not None}
        made: Json = {"name": self.entry.name, "target": self.target, "steps": steps, **data}
        problems, known = judge(self.entry, made)
        made |= {
            "ok": not problems,
            "problems": problems,
            "known": known,
            "stages": stages_of(self.entry, tuple(steps)),
        }
        return made | {"stage": stage_reached(made)}

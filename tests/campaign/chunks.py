"""Many graphs in processes of their own, so that a crash or an endless loop is a result like any other; a journal keeps them."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .check import FINE, Outcome, check
from .draw import draw

CHUNK = 500
QUIET_SECONDS = 120
"""So long a process may say nothing; every step of every graph says something."""
COMMAND = ("-m", "tests.campaign", "--child")
_ROOT = Path(__file__).parents[2]


@dataclass
class Chunk:
    """Seeds from `start` on. `tally` counts verdicts, notes, kinds and mutations; `faults` has what a graph broke."""

    start: int
    size: int
    digest: str
    kind: str | None = None
    tally: Counter[str] = field(default_factory=Counter)
    faults: list[dict[str, Any]] = field(default_factory=list)

    def add(self, row: dict[str, Any]) -> None:
        tally, verdict = self.tally, row["verdict"]
        tally["graphs"] += 1
        tally[f"verdict {verdict}"] += 1
        tally[f"kind {row['kind']}"] += 1
        tally["sites"] += row["sites"]
        tally["misses"] += row["misses"]
        if verdict not in ("invalid", "not drawn"):
            tally["valid"] += 1
            tally["matched"] += row["sites"] > 0
            tally[f"kind {row['kind']} valid"] += 1
            tally[f"kind {row['kind']} matched"] += row["sites"] > 0
        for name in set(row["mutations"]):
            tally[f"mutation {name}"] += 1
            tally[f"mutation {name} matched"] += row["sites"] > 0
        tally["changed"] += bool(row["mutations"])
        for note in set(row["notes"]):
            tally[f"note {note}"] += 1
        if verdict not in FINE:
            tally["wrong"] += 1
            tally[f"kind {row['kind']} wrong"] += 1
            self.faults.append(row)

    def to_json(self) -> str:
        return json.dumps({**self.__dict__, "tally": dict(self.tally)})


def digest(folders: tuple[str, ...] = ("onnx_fa", "patterns", "tests/campaign")) -> str:
    """Of the sources that a result depends on."""
    files = [p for f in folders for p in sorted((_ROOT / f).rglob("*.py"))]
    files += [
        *sorted((_ROOT / "tests" / "support").glob("spelling*.py")),
        _ROOT / "tests" / "support" / "graph_changes.py",
    ]
    return hashlib.sha256(b"".join(p.read_bytes() for p in files)).hexdigest()[:12]


def one(seed: int, kind: str | None, say: Callable[[str], None]) -> dict[str, Any]:
    """Draws and checks one graph. `say` hears of each step before it begins."""
    say(f"at {seed} original")
    drawn = draw(seed, kind)
    outcome: Outcome = check(drawn, seed, lambda step: say(f"at {seed} {step}"))
    return {
        "seed": seed,
        "kind": drawn.kind if drawn else kind or "?",
        "mutations": drawn.mutations if drawn else (),
        "base": drawn.base if drawn else "",
        "verdict": outcome.verdict,
        "sites": outcome.sites,
        "misses": outcome.misses,
        "notes": outcome.notes,
        "text": outcome.text,
    }


def work(start: int, size: int, kind: str | None) -> None:
    """The part of a child process: a line before every step, and one for every result."""
    for seed in range(start, start + size):
        row = one(seed, kind, lambda line: print(line, flush=True))
        print("done " + json.dumps(row), flush=True)


def run_chunk(start: int, size: int, kind: str | None = None) -> Chunk:
    """All graphs of a chunk; a process that ends or falls silent costs the graph that it was at."""
    chunk, at = Chunk(start, size, digest(), kind), start
    while at < start + size:
        at = _run_from(chunk, at, start + size - at, kind)
    return chunk


def _run_from(chunk: Chunk, at: int, left: int, kind: str | None) -> int:
    """Runs a child from seed `at` on. Returns the next seed that is still to be tried."""
    command = [sys.executable, *COMMAND, "--seed", str(at), "--count", str(left)]
    command += ["--kind", kind] if kind else []
    step, end = "original", chunk.start + chunk.size
    with tempfile.TemporaryFile("w+") as errors:
        with subprocess.Popen(command, cwd=_ROOT, stdout=subprocess.PIPE, stderr=errors, text=True) as child:
            assert child.stdout is not None
            heard = time.monotonic()

            def watch() -> None:
                while child.poll() is None:
                    if time.monotonic() - heard > QUIET_SECONDS:
                        child.kill()
                    time.sleep(1)

            threading.Thread(target=watch, daemon=True).start()
            for line in child.stdout:
                heard = time.monotonic()
                word, _, rest = line.partition(" ")
                if word == "done":
                    chunk.add(json.loads(rest))
                    at, step = at + 1, "original"
                elif word == "at":
                    step = rest.split()[1]
        if at >= end:
            return at
        errors.seek(0)
        why = f"exit code {child.returncode}: {errors.read()[-1500:]}"
    verdict = "invalid" if step == "original" and "Traceback" not in why else "crash"
    row = {"seed": at, "kind": kind or "?", "mutations": (), "base": "", "sites": 0, "misses": 0}
    chunk.add(
        {**row, "verdict": verdict, "notes": ["the original ends the process"] * (verdict == "invalid"), "text": why}
    )
    return at + 1


def run(count: int, start: int, jobs: int, journal: Path | None = None, kind: str | None = None) -> Iterator[Chunk]:
    """Chunks as they are done; those that the journal has of the same sources, without a fault, are not run again."""
    lines = journal.read_text().splitlines() if journal and journal.exists() else []
    now, known = digest(), {}
    for chunk in (Chunk(**json.loads(line)) for line in lines):
        chunk.tally = Counter(chunk.tally)
        if chunk.digest == now and chunk.kind == kind and not chunk.faults:
            known[chunk.start, chunk.size] = chunk
    wanted = [(s, min(CHUNK, start + count - s)) for s in range(start, start + count, CHUNK)]
    yield from (known[w] for w in wanted if w in known)
    with ThreadPoolExecutor(jobs) as pool:
        for chunk in pool.map(lambda w: run_chunk(*w, kind), [w for w in wanted if w not in known]):
            if journal:
                with journal.open("a") as file:
                    file.write(chunk.to_json() + "\n")
            yield chunk

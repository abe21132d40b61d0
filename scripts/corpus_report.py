"""What onnx_fa finds in the files of a corpus, and whether what it rewrites loads and gives the same results.

    python scripts/corpus_report.py DIR [--producer NAME ...] [--file TEXT] [--jobs N] [--page PAGE] [--csv CSV]

DIR is what `python scripts/corpus --out DIR` built. Every file is looked at in a process of its own with a limit of time and of
memory; DIR/report.jsonl keeps what came of it, so that a stopped run goes on, and forgets it when a source of onnx_fa or the file
changes. `--page` writes the tables (docs/results/corpus.md), `--csv` a row for each file (benchmarks/corpus.csv). Exits with 1
where a rewritten model is wrong or does not load, or where explaining or rewriting failed.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import multiprocessing
import os
import resource
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from corpus.check import check  # noqa: E402
from corpus.journal import MANIFEST  # noqa: E402
from corpus.report_page import Row, page, rows_as_csv, totals  # noqa: E402

SECONDS = 180
MEMORY = 8 << 30
JOURNAL = "report.jsonl"


@dataclass(frozen=True)
class File:
    """A file of the corpus as its manifest has it, in its producer's folder."""

    folder: Path
    entry: dict[str, Any]

    @property
    def path(self) -> Path:
        return self.folder / str(self.entry["file"])

    @property
    def key(self) -> str:
        return f"{self.entry['producer']}/{self.entry['name']}"

    @property
    def runs(self) -> dict[str, Path]:
        return {name: self.folder / file for name, file in self.entry["runs"].items()}


def files_of(corpus: Path, producers: list[str], text: str) -> list[File]:
    """The corpus's files, or those of these producers, or those with this text in their names."""
    manifests = sorted(corpus.glob(f"*/{MANIFEST}"))
    chosen = [path for path in manifests if not producers or path.parent.name in producers]
    files = [File(path.parent, entry) for path in chosen for entry in json.loads(path.read_text())]
    return [file for file in files if text in file.key]


def digest_of_sources() -> str:
    """Of everything that an outcome depends on, but for the file."""
    sources = [path for folder in ("onnx_fa", "patterns") for path in sorted((ROOT / folder).rglob("*.py"))]
    sources += [ROOT / "scripts" / "corpus" / name for name in ("broken.py", "check.py")]
    return hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()[:12]


def digest_of(file: File, sources: str) -> str:
    """Of a file, its inputs, and the sources."""
    parts = [path.read_bytes() for path in (file.path, *file.runs.values())]
    return hashlib.sha256(b"".join([sources.encode(), *parts])).hexdigest()[:16]


def look(file: File) -> dict[str, Any]:
    """The outcome of a file, from a process of its own."""
    context = multiprocessing.get_context("fork")
    receive, send = context.Pipe(duplex=False)
    child = context.Process(target=_child, args=(file, send))
    child.start()
    send.close()
    last: dict[str, Any] = {}
    ended = ""
    try:
        while True:
            if not receive.poll(SECONDS):
                ended = f"no result within {SECONDS} s"
                break
            last = receive.recv()
            if last.pop("done", False):
                break
    except EOFError:
        child.join()
        ended = f"the process ended (exit code {child.exitcode})"
    finally:
        child.kill()
        child.join()
    return last | ({"ended": ended} if ended else {})


def _child(file: File, out: Connection) -> None:
    quiet = os.open(os.devnull, os.O_WRONLY)
    os.dup2(quiet, 1)
    os.dup2(quiet, 2)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    outcome: dict[str, Any] = {}
    for step in check(file.path, file.runs):
        outcome = step.to_dict()
        out.send(outcome)
    out.send(outcome | {"done": True})


def read_journal(path: Path) -> dict[str, dict[str, Any]]:
    """The last line of each file, by its key."""
    lines = path.read_text().splitlines() if path.exists() else []
    return {entry["key"]: entry for entry in map(json.loads, lines)}


def outcomes(files: list[File], journal: Path, jobs: int) -> Iterator[tuple[File, dict[str, Any]]]:
    """Each file's outcome: the journal's, or a new one, which is written there."""
    sources, known = digest_of_sources(), read_journal(journal)
    digests = {file.key: digest_of(file, sources) for file in files}
    wanted = [file for file in files if known.get(file.key, {}).get("digest") != digests[file.key]]
    yield from ((file, known[file.key]["outcome"]) for file in files if file not in wanted)
    with ThreadPoolExecutor(jobs) as pool:
        for file, outcome in zip(wanted, pool.map(look, wanted), strict=True):
            entry = {"key": file.key, "digest": digests[file.key], "outcome": outcome}
            with journal.open("a") as out:
                out.write(json.dumps(entry) + "\n")
            yield file, outcome


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", type=Path)
    parser.add_argument("--producer", action="append", default=[], help="only this one (repeatable)")
    parser.add_argument("--file", default="", help="only files with this in PRODUCER/NAME")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--page", type=Path)
    parser.add_argument("--csv", type=Path)
    parser.add_argument("--journal", type=Path, help="another file than DIR/report.jsonl")
    args = parser.parse_args()
    files = files_of(args.corpus, args.producer, args.file)
    if not files:
        sys.exit(f"{args.corpus} has no such file: build it with python scripts/corpus --out {args.corpus}")
    rows = []
    for file, outcome in outcomes(files, args.journal or args.corpus / JOURNAL, args.jobs):
        row = Row.of(file.entry, outcome)
        rows.append(row)
        print(f"{row.found}/{row.attentions} {row.producer}/{row.name}  {row.verdict}", flush=True)
    rows.sort(key=lambda row: (row.producer, row.name))
    print(totals(rows))
    if args.page:
        args.page.write_text(page(rows))
    if args.csv:
        rows_as_csv(rows, args.csv)
    return int(any(row.bad for row in rows))


if __name__ == "__main__":
    sys.exit(main())

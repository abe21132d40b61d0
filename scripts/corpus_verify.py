"""Compiles files of a corpus for the CPU, runs them, and compares: `onnx-fa verify` on a part of other people's files.

    python scripts/corpus_verify.py DIR [--count N] [--seed S] [--producer NAME ...] [--file TEXT] [--again]
                                        [--page PAGE] [--csv CSV]

DIR is what `python scripts/corpus --out DIR` built. The seed draws the files, as many of every producer as there are. Each
is verified by a process of its own with a limit of time and of memory, on the inputs of its manifest (a prompt, a step,
padding), or where it has none on what verify makes up; DIR/verified.jsonl keeps what came of it until a source of onnx_fa
or the file changes (`--again`: only while it was "ok"). `--page` writes the tables (docs/results/compiled.md), `--csv` a
row for each file (benchmarks/compiled.csv), both of all that the journal has, other draws too. Exits with 1 where results
disagree, or where a process ended in another way than by a line that says why.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "scripts")]

from corpus_report import File, digest_of, digest_of_sources, files_of, read_journal  # noqa: E402

from corpus.check import why_not_run  # noqa: E402
from corpus.verified_page import Verified, page, rows_as_csv, totals  # noqa: E402
from onnx_fa.processes import run_limited  # noqa: E402

SECONDS = 120
MEMORY = 8 << 30
JOURNAL = "verified.jsonl"


def draw(files: list[File], count: int, seed: int) -> list[File]:
    """`count` of the files in an order that the seed decides: one of each producer in turn, as long as it has any."""
    left: dict[str, list[File]] = {}
    for file in sorted(files, key=lambda file: file.key):
        left.setdefault(file.folder.name, []).append(file)
    for name, group in left.items():
        Random(f"{seed} {name}").shuffle(group)  # whichever other producers there are
    turns = [
        file
        for turn in range(max(map(len, left.values()), default=0))
        for g in left.values()
        for file in g[turn : turn + 1]
    ]
    return turns[:count]


def verify(file: File) -> Verified:
    """What `onnx-fa verify` says of a file. Nothing is held against it of one that onnxruntime does not run either."""
    with tempfile.TemporaryDirectory(prefix="verified-") as folder:
        report = Path(folder) / "report.json"
        command = [sys.executable, "-m", "onnx_fa", "verify", "-q", os.fspath(file.path), "--seeds", "1"]
        for path in file.runs.values():
            command += ["--inputs", os.fspath(path)]
        done = run_limited([*command, "--report", os.fspath(report)], timeout_s=SECONDS, memory_bytes=MEMORY, cwd=ROOT)
        said: dict[str, Any] = json.loads(report.read_text()) if report.exists() else {}
    row = Verified.of(file.entry, done, done.describe(SECONDS, MEMORY), said)
    if not said and (why := why_not_run(file.path, file.runs)):
        return replace(row, verdict="not run", reason=f"the original {why}")
    return row


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", type=Path)
    parser.add_argument("--count", type=int, default=120)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--producer", action="append", default=[], help="only this one (repeatable)")
    parser.add_argument("--file", default="", help="only files with this in PRODUCER/NAME")
    parser.add_argument("--again", action="store_true", help="also what is in the journal and was not ok")
    parser.add_argument("--page", type=Path)
    parser.add_argument("--csv", type=Path)
    args = parser.parse_args()
    files = files_of(args.corpus, args.producer, args.file)
    if not files:
        sys.exit(f"{args.corpus} has no such file: build it with python scripts/corpus --out {args.corpus}")
    journal, sources = args.corpus / JOURNAL, digest_of_sources()
    known = read_journal(journal)
    digests = {file.key: digest_of(file, sources) for file in files}
    done = {key: Verified(**known[key]["row"]) for key, d in digests.items() if known.get(key, {}).get("digest") == d}
    for file in draw(files, args.count, args.seed):
        row = done.get(file.key)
        if row is None or (args.again and row.verdict != "ok"):
            row = done[file.key] = verify(file)
            with journal.open("a") as out:
                out.write(json.dumps({"key": file.key, "digest": digests[file.key], "row": row.to_dict()}) + "\n")
        print(f"{row.fused}/{row.sites} {file.key}  {row.verdict}  {row.reason}", flush=True)
    rows = sorted(done.values(), key=lambda row: (row.producer, row.name))
    print(totals(rows))
    if args.page:
        args.page.write_text(page(rows, SECONDS, MEMORY))
    if args.csv:
        rows_as_csv(rows, args.csv)
    return int(any(row.bad for row in rows))


if __name__ == "__main__":
    sys.exit(main())

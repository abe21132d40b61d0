"""What became of files that were compiled, run and compared: a row for each, and the tables over them."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from corpus.report_page import group_of
from onnx_fa.processes import Finished
from onnx_fa.tables import markdown_table, text_table

HEAD = """# Other people's files, compiled

Written by `python scripts/corpus_verify.py DIR --page`: `onnx-fa verify` on {count} files of [the corpus](corpus.md), drawn
evenly over their producers. Each is compiled for this CPU through IREE and run on the inputs that its producer gave it
(prompts, steps, padding), and its results are compared with the original's in onnxruntime and with float64. *ok*: all of them
agree, and every site is one fused dispatch. *not fused*: all agree, a site has no kernel. *disagree*: a result is off by more
than its tolerance. *compiler*: iree-compile failed. *not run*: the original does not run on these inputs. *refused*: the file
or an op in it, before anything is compiled. *ended*: the process was stopped by its limits of {seconds} s and {memory} GiB or
ended otherwise, or a bug of onnx_fa ended it.

**{ok} of {count} are ok; {fused} of {sites} sites of files that were compiled are one dispatch.**
"""
KINDS = ("ok", "not fused", "disagree", "compiler", "not run", "refused", "ended")
_ERROR = "onnx-fa: error: "
_BUG = "a bug in onnx_fa"
_NOT_RUN = "cannot be run on the inputs made for it"


@dataclass(frozen=True)
class Verified:
    """A file, how many of its sites are one dispatch, and what verify came to: one of KINDS, with the reason."""

    producer: str
    name: str
    sites: int
    fused: int
    verdict: str
    reason: str

    @property
    def bad(self) -> bool:
        """Whether it may not be like that."""
        return self.verdict in ("disagree", "ended")

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def of(cls, entry: Mapping[str, Any], done: Finished, ended: str, said: Mapping[str, Any]) -> Verified:
        """From a manifest's entry, how the process ended (`ended` in words), and what it reported, if it came to that."""
        sites = said.get("sites", [])
        fused = sum(site["fused"] is True for site in sites)
        errors = [line.removeprefix(_ERROR) for line in done.stderr.splitlines() if line.startswith(_ERROR)]
        verdict, reason = _verdict(done, ended, errors[-1] if errors else "", said)
        reason = reason.replace(f"{said.get('model', '')}: ", "", 1) if said else reason.split(".onnx: ")[-1]
        return cls(entry["producer"], entry["name"], len(sites), fused, verdict, " ".join(reason.split())[:400])


def _verdict(done: Finished, ended: str, error: str, said: Mapping[str, Any]) -> tuple[str, str]:
    if done.ending != "ok" and not error:
        return "ended", ended
    if _BUG in error:
        return "ended", error
    if said and not said["ok"]:
        return "disagree", error
    if _NOT_RUN in error:
        return "not run", error
    if error:
        return ("refused" if done.returncode == 2 else "compiler"), error
    notes = [n for n in said["notes"] if n.startswith(("not one fused dispatch", "no kernel for"))]
    return ("not fused", "; ".join(notes)) if notes else ("ok", "")


def totals(rows: Sequence[Verified]) -> str:
    """The table of producers, for a terminal."""
    return text_table(_HEAD_ROW, _producer_rows(rows))


_HEAD_ROW = ("producer", "files", "sites", "one dispatch", *KINDS)


def _producer_rows(rows: Sequence[Verified]) -> list[list[str]]:
    """A row for each producer, and their sum."""
    names = list(dict.fromkeys(row.producer for row in rows))
    return [_line(name, [row for row in rows if row.producer == name]) for name in names] + [_line("all", rows)]


def _line(name: str, rows: Sequence[Verified]) -> list[str]:
    kinds = Counter(row.verdict for row in rows)
    numbers = (len(rows), sum(row.sites for row in rows), sum(row.fused for row in rows), *(kinds[k] for k in KINDS))
    return [name, *map(str, numbers)]


def page(rows: Sequence[Verified], seconds: float, memory: int) -> str:
    """The whole of docs/results/compiled.md: producers, and the reasons of what is not ok, the most frequent first."""
    reasons = Counter((row.verdict, group_of(row.reason)) for row in rows if row.verdict != "ok")
    example = {(row.verdict, group_of(row.reason)): f"{row.producer}/{row.name}" for row in reversed(rows)}
    head = HEAD.format(
        count=len(rows),
        seconds=f"{seconds:g}",
        memory=memory >> 30,
        ok=sum(row.verdict == "ok" for row in rows),
        fused=sum(row.fused for row in rows),
        sites=sum(row.sites for row in rows),
    )
    ordered = sorted(reasons.items(), key=lambda item: (KINDS.index(item[0][0]), -item[1]))
    table = [[kind, reason, str(count), example[kind, reason]] for (kind, reason), count in ordered]
    parts = [
        head,
        markdown_table(_HEAD_ROW, _producer_rows(rows)),
        "## What is not ok",
        markdown_table(("what", "reason", "files", "for example"), table) if table else "Nothing.",
    ]
    return "\n\n".join(parts) + "\n"


def rows_as_csv(rows: Iterable[Verified], path: Path) -> None:
    """A row for each file."""
    with open(path, "w", newline="") as file:
        out = csv.writer(file, lineterminator="\n")
        out.writerow([field.name for field in fields(Verified)])
        out.writerows([[str(value) for value in row.to_dict().values()] for row in rows])

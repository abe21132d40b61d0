"""The tables of a corpus: a row for each producer, the reasons of what was missed, and what went wrong."""

from __future__ import annotations

import csv
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from onnx_fa.tables import markdown_table, text_table

HEAD = """# The corpus

Written by `python scripts/corpus_report.py`: {files} small ONNX files by {producers} producers that nobody of this project
wrote, built by `python scripts/corpus --out DIR` from configurations with random weights. How many true attentions a file has
is known from its configuration. *found*: those of them that are rewritten. *equal*: rewritten files that load in onnxruntime,
with its optimiser and without, and give what the original gives on every run (a prompt, steps of decoding, padding on either
side, a chunk of a prompt, as the file allows); *not compared*: the original does not load or run in onnxruntime's CPU
provider. *refused*: the file is invalid, onnxruntime does not load it either. *extra sites*: softmaxes that are sites and no
attentions by that count, as windows that values of distances are read in. *slowest*: of `explain` or a rewrite. *broken*:
attentions in files that nobody can run, which the columns before do not count: neither onnxruntime nor ONNX's reference
evaluator takes the file (not for want of a kernel), or its shapes contradict each other whatever its inputs are.

**{found} of {attentions} attentions ({percent:.1f}%) are found in the files that can run; {wrong} rewritten files are wrong,
{invalid} do not load or run.** {broken} further attentions, of which {seen} are found, stand in broken files ({unusable} of them).
"""
COLUMNS = (
    "producer",
    "name",
    "attentions",
    "found",
    "sites",
    "verdict",
    "error",
    "explain_s",
    "rewrite_s",
    "reasons",
    "broken",
)


@dataclass(frozen=True)
class Row:
    """A file: its true attentions and what came of it. `missing` are the reasons of what is not found, `broken` says why nobody can
    run it ("" where somebody may)."""

    producer: str
    name: str
    versions: str
    attentions: int
    sites: int
    missing: tuple[str, ...]
    verdict: str
    error: float
    runs: int
    explain_seconds: float
    rewrite_seconds: float
    broken: str = ""

    @property
    def found(self) -> int:
        """More sites than attentions are no better: a classifier's softmax is none."""
        return min(self.sites, self.attentions)

    @property
    def bad(self) -> bool:
        return self.verdict.split(":")[0] in ("wrong", "invalid", "failed")

    @classmethod
    def of(cls, entry: dict[str, Any], outcome: dict[str, Any]) -> Row:
        """From a manifest's entry and the outcome of `check`."""
        sites, attentions = outcome.get("sites", 0), entry["attentions"]
        misses = [reason for _, _, reason in outcome.get("misses", [])]
        short = attentions - sites
        missing = tuple(misses) if short > 0 else ()
        if short > len(misses):
            missing += (REFUSED if outcome.get("refused") else UNSEEN,) * (short - len(misses))
        return cls(
            entry["producer"],
            entry["name"],
            ", ".join(f"{name} {version}" for name, version in entry["versions"].items()),
            attentions,
            sites,
            missing,
            verdict_of(outcome),
            outcome.get("error", 0.0),
            outcome.get("runs", 0),
            outcome.get("explain_seconds", 0.0),
            outcome.get("rewrite_seconds", 0.0),
            outcome.get("broken", ""),
        )


UNSEEN = "neither a site nor left alone"
REFUSED = "the file is refused as invalid, and onnxruntime does not load it either"


def verdict_of(outcome: dict[str, Any]) -> str:
    """In a word, with the reason behind a colon: failed, refused, invalid, wrong, not compared, equal."""
    for kind, reason in (
        ("failed", outcome.get("ended") or outcome.get("explain") or outcome.get("rewrite")),
        ("refused", outcome.get("refused")),
        ("invalid", outcome.get("loads")),
        ("wrong", outcome.get("differs")),
        ("not compared", outcome.get("original") if not outcome.get("runs") else ""),
    ):
        if reason:
            return f"{kind}: {reason}"
    return "equal" if outcome.get("runs") else "not compared: no inputs"


def group_of(reason: str) -> str:
    """A reason without the names and numbers of one file."""
    text = re.sub(r"\s*\(at [^()]*\)", "", reason)
    text = re.sub(r"(?<!\w)'[^']*'|\"[^\"]*\"|`[^`]*`", "…", text)
    text = re.sub(r"\[[^\]]*\]|\([^()]*\d[^()]*\)", "[…]", text)
    text = re.sub(r"\w+_\d+\b|(?<!\w)/[\w./]+", "…", text)
    return re.sub(r"(?<![\w.])-?\d+(\.\d+)?(e[+-]?\d+)?(?![\w])", "n", text)


def totals(rows: Sequence[Row]) -> str:
    """The table of producers, for a terminal."""
    return text_table(PRODUCER_HEAD, producer_rows(rows))


PRODUCER_HEAD = (
    "producer",
    "files",
    "attentions",
    "found",
    "%",
    "broken",
    "equal",
    "not compared",
    "wrong",
    "invalid",
    "failed",
    "refused",
    "extra sites",
    "slowest, s",
)


def producer_rows(rows: Sequence[Row]) -> list[list[str]]:
    """A row for each producer, and their sum."""
    by: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        by[row.producer].append(row)
    return [_producer_row(name, group) for name, group in by.items()] + [_producer_row("all", rows)]


def _producer_row(name: str, rows: Sequence[Row]) -> list[str]:
    verdicts = Counter(row.verdict.split(":")[0] for row in rows)
    attentions, found, broken = _count(rows)
    slowest = max(max(row.explain_seconds, row.rewrite_seconds) for row in rows)
    return [
        name,
        str(len(rows)),
        str(attentions),
        str(found),
        f"{100 * found / attentions:.1f}" if attentions else "-",
        str(broken),
        *(str(verdicts[kind]) for kind in ("equal", "not compared", "wrong", "invalid", "failed", "refused")),
        str(sum(max(row.sites - row.attentions, 0) for row in rows)),
        f"{slowest:.1f}",
    ]


def _count(rows: Sequence[Row]) -> tuple[int, int, int]:
    """The attentions of files that can run, how many of them are found, and the attentions of broken files."""
    whole = [row for row in rows if not row.broken]
    broken = sum(row.attentions for row in rows if row.broken)
    return sum(row.attentions for row in whole), sum(row.found for row in whole), broken


def reason_rows(rows: Iterable[Row]) -> list[list[str]]:
    """Producer, reason, how often, and a file with it; the most frequent first within a producer. Broken files have none."""
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    example: dict[tuple[str, str], str] = {}
    for row in rows:
        if row.broken:
            continue
        for reason in row.missing:
            group = group_of(reason)
            counts[row.producer][group] += 1
            example.setdefault((row.producer, group), row.name)
    return [
        [producer, reason, str(count), example[producer, reason]]
        for producer, reasons in counts.items()
        for reason, count in reasons.most_common()
    ]


def page(rows: Sequence[Row]) -> str:
    """The whole of docs/results/corpus.md."""
    attentions, found, in_broken = _count(rows)
    broken = [[row.producer, row.name, f"{row.found}/{row.attentions}", row.broken] for row in rows if row.broken]
    head = HEAD.format(
        files=len(rows),
        producers=len({row.producer for row in rows}),
        found=found,
        attentions=attentions,
        percent=100 * found / max(attentions, 1),
        broken=in_broken,
        seen=sum(row.found for row in rows if row.broken),
        unusable=len(broken),
        wrong=sum(row.verdict.startswith("wrong") for row in rows),
        invalid=sum(row.verdict.startswith("invalid") for row in rows),
    )
    bad = [[row.producer, row.name, row.verdict] for row in rows if row.bad]
    versions = dict.fromkeys((row.producer, row.versions) for row in rows)
    parts = [
        head,
        markdown_table(PRODUCER_HEAD, producer_rows(rows)),
        "## What is missed\n\nReasons of every softmax that is left alone in a file with fewer sites than attentions.",
        markdown_table(("producer", "reason", "softmaxes", "for example"), reason_rows(rows)),
        "## What went wrong",
        markdown_table(("producer", "file", "what"), bad) if bad else "Nothing.",
        "## Files that nobody can run",
        markdown_table(("producer", "file", "found", "why"), broken) if broken else "None.",
        "## Producers",
        markdown_table(("producer", "versions"), [list(pair) for pair in versions]),
    ]
    return "\n\n".join(parts) + "\n"


def rows_as_csv(rows: Iterable[Row], path: Path) -> None:
    """A row for each file."""
    with open(path, "w", newline="") as file:
        out = csv.writer(file)
        out.writerow(COLUMNS)
        for row in rows:
            cells = (row.producer, row.name, row.attentions, row.found, row.sites, row.verdict, f"{row.error:.1e}")
            seconds = (f"{row.explain_seconds:.2f}", f"{row.rewrite_seconds:.2f}")
            out.writerow([*cells, *seconds, "; ".join(dict.fromkeys(map(group_of, row.missing))), row.broken])

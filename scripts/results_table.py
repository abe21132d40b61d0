"""Writes the README's tables from the committed CSV files: medians per contestant and ratios, and who finds which spelling; and the
pictures beside these files.

python scripts/results_table.py            between the markers of README.md
"""

from __future__ import annotations

import csv
import sys
from collections import Counter
from pathlib import Path

from onnx_fa.benchmark import sweep as attention_sweep
from onnx_fa.benchmark.plot import medians, plot, read_csv
from onnx_fa.tables import markdown_table

ROOT = Path(__file__).resolve().parent.parent
SOURCES = ("benchmarks/attention.csv", "benchmarks/demo/demo.csv")
CONTESTANTS = ("stock IREE", "onnxruntime", "torch SDPA", "onnx_fa")
PICTURES = {**dict.fromkeys(SOURCES, plot), "benchmarks/sweep.csv": attention_sweep.plot}
SPELLINGS = "benchmarks/spellings.csv"


def rows(path: Path) -> list[list[str]]:
    """One row per model: best median of each contestant in ms, and onnx_fa's ratio to stock IREE and to the fastest other."""
    result = []
    for model, best in medians(read_csv(path)).items():
        ours = best.get("onnx_fa")
        cells = [f"{best[c]:.1f}" if c in best else "-" for c in CONTESTANTS]
        others = [best[c] for c in CONTESTANTS[1:-1] if c in best]
        to = (best.get(CONTESTANTS[0]), min(others, default=None))
        ratios = [f"{ours / t:.2f}" if ours and t else "-" for t in to]
        result.append([model, *cells, *ratios])
    return result


def results() -> str:
    text = []
    for source in SOURCES:
        path = ROOT / source
        head = ("", *(f"{c}, ms" for c in CONTESTANTS), "to stock IREE", "to the fastest other")
        text.append(markdown_table(head, rows(path)))
        facts = [line[2:] for line in path.read_text().splitlines() if line.startswith("# ")]
        text.append(f"{'; '.join(facts)}. Medians of [{source}]({source}).")
    return "\n\n".join(text)


def spellings() -> str:
    """How many of the spellings that are attention each contestant finds."""
    with open(ROOT / SPELLINGS, newline="") as f:
        must = [row for row in csv.DictReader(f) if row["must"] == "match"]
    who = [name.removesuffix(": detail") for name in must[0] if name.endswith(": detail")]
    counts = {name: Counter(row[name] for row in must) for name in who}
    found = [str(counts[name]["found"]) for name in who]
    return markdown_table((f"of {len(must)} spellings", *who), [["found, result kept", *found]])


def fill(text: str, name: str, content: str) -> str:
    """The text with `content` between the markers of that name."""
    start, end = f"<!-- {name} -->", f"<!-- /{name} -->"
    before, rest = text.split(start)
    return f"{before}{start}\n{content}\n{end}{rest.split(end)[1]}"


def main() -> int:
    readme = ROOT / "README.md"
    for source, draw in PICTURES.items():
        draw(ROOT / source, (ROOT / source).with_suffix(".png"))
    readme.write_text(fill(fill(readme.read_text(), "results", results()), "spellings", spellings()))
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Writes the README's table of results from the committed CSV files: medians per contestant and ratios.

python scripts/results_table.py            between the markers of README.md
"""

from __future__ import annotations

import sys
from pathlib import Path

from onnx_fa.plot import medians, read_csv
from onnx_fa.table import markdown_table

ROOT = Path(__file__).resolve().parent.parent
SOURCES = ("benchmarks/attention.csv", "benchmarks/demo/demo.csv")
CONTESTANTS = ("stock IREE", "onnxruntime", "torch SDPA", "onnx_fa")
START, END = "<!-- results -->", "<!-- /results -->"


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


def main() -> int:
    text = []
    for source in SOURCES:
        path = ROOT / source
        head = ("", *(f"{c}, ms" for c in CONTESTANTS), "to stock IREE", "to the fastest other")
        text.append(markdown_table(head, rows(path)))
        facts = [line[2:] for line in path.read_text().splitlines() if line.startswith("# ")]
        text.append(f"{'; '.join(facts)}. Medians of [{source}]({source}).")
    readme = ROOT / "README.md"
    before, rest = readme.read_text().split(START)
    after = rest.split(END)[1]
    readme.write_text(f"{before}{START}\n" + "\n\n".join(text) + f"\n{END}{after}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

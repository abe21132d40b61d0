"""Writes the tables of README.md, docs/results/cpu.md and docs/results/where-time-goes.md from the committed CSV files, the
pictures beside these files, and the table of docs/reference/report.md from the schema.

python scripts/results_table.py            between the markers of the pages
python scripts/results_table.py --tables   the same without drawing the pictures
"""

from __future__ import annotations

import argparse
import csv
import json
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from onnx_fa.benchmark import sweep as attention_sweep
from onnx_fa.benchmark import time_parts
from onnx_fa.benchmark.plot import COPY, medians, plot, read_csv
from onnx_fa.tables import markdown_table

ROOT = Path(__file__).resolve().parent.parent
README = ROOT / "README.md"
CPU_PAGE = ROOT / "docs" / "results" / "cpu.md"
PARTS_PAGE = ROOT / "docs" / "results" / "where-time-goes.md"
REPORT_PAGE = ROOT / "docs" / "reference" / "report.md"
SCHEMA = ROOT / "docs" / "reference" / "report.schema.json"
ATTENTION, MODELS = "benchmarks/attention.csv", "benchmarks/demo/demo.csv"
GPU_KERNELS, GPU_CALLS = "benchmarks/gpu.csv", "benchmarks/sweep-cuda.csv"
PARTS = "benchmarks/where-time-goes.csv"
STOCK, OURS = "stock IREE", "onnx_fa"
CONTESTANTS = (STOCK, "onnxruntime", "torch SDPA", OURS)
PICTURES = {ATTENTION: plot, MODELS: plot, "benchmarks/sweep.csv": attention_sweep.plot}
SPELLINGS = "benchmarks/spellings.csv"
SELECTION = (
    ("attention, 8 heads, 4096 tokens", ATTENTION, "B1 H8 S4096 D64"),
    ("the same, causal", ATTENTION, "B1 H8 S4096 D64 causal"),
    (
        "decoding one token: 32 query heads on 8 key and value heads, 8192 keys",
        ATTENTION,
        "B1 H32:8 Sq1 Skv8192 D128 decode",
    ),
    ("a GPT-2 of 4 layers as a whole, 1024 tokens", MODELS, "gpt-dynamo18"),
)
"""The README's rows of a CPU: what it is in words, and where its samples are."""
SELECTION_GPU = (
    "attention on a GPU, f16, 32 heads, 2048 tokens",
    "plain B1 H32 S2048 D64",
    "B1 H32 S2048 D64 f16 cuda",
)


def rows(path: Path) -> list[list[str]]:
    """One row per model: best median of each contestant in ms, and onnx_fa's ratio to stock IREE and to the fastest other."""
    result = []
    for model, best in medians(read_csv(path)).items():
        ours = best.get(OURS)
        cells = [f"{best[c]:.1f}" if c in best else "-" for c in CONTESTANTS]
        others = [best[c] for c in CONTESTANTS[1:-1] if c in best]
        to = (best.get(STOCK), min(others, default=None))
        ratios = [f"{ours / t:.2f}" if ours and t else "-" for t in to]
        result.append([model, *cells, *ratios])
    return result


def results() -> str:
    """The whole tables of docs/results/cpu.md."""
    text = []
    for source in (ATTENTION, MODELS):
        head = ("", *(f"{c}, ms" for c in CONTESTANTS), "to stock IREE", "to the fastest other")
        text.append(markdown_table(head, rows(ROOT / source)))
        text.append(f"{_facts(source)}. Medians of [{source}](../../{source}).")
    return "\n\n".join(text)


def parts() -> str:
    """The table of docs/results/where-time-goes.md."""
    found = time_parts.read(ROOT / PARTS)
    table = markdown_table(time_parts.HEAD, [r.row() for r in found])
    return f"{table}\n\n{_facts(PARTS)}. Calls: [{PARTS}](../../{PARTS})."


def selection() -> str:
    """The README's five rows, of which the last is a GPU's: its kernel and its whole call."""
    table = []
    for words, source, model in SELECTION:
        best = medians(read_csv(ROOT / source))[model]
        table.append([words, f"{best[OURS]:.1f}", f"{best[OURS] / best[STOCK]:.2f}", _to_the_fastest_other(best)])
    words, kernel_case, call_case = SELECTION_GPU
    kernels, calls = medians(read_csv(ROOT / GPU_KERNELS))[kernel_case], medians(read_csv(ROOT / GPU_CALLS))[call_case]
    kernels = {who: ms for who, ms in kernels.items() if "call" not in who}
    table.append(
        [
            f"{words}: the kernel alone / a whole call",
            f"{kernels[OURS]:.3f} / {calls[OURS]:.3f}",
            f"- / {calls[OURS] / calls[STOCK]:.2f}",
            f"{_to_the_fastest_other(kernels)} / {_to_the_fastest_other(calls)}",
        ]
    )
    return markdown_table(("", "onnx_fa, ms", "to stock IREE", "to the fastest other"), table)


def _to_the_fastest_other(best: Mapping[str, float]) -> str:
    """onnx_fa's time over that of the fastest contestant that is neither onnx_fa nor stock IREE, and who that is."""
    others = {who: ms for who, ms in best.items() if who not in (OURS, STOCK, COPY)}
    fastest = min(others, key=others.__getitem__)
    return f"{best[OURS] / others[fastest]:.2f} ({fastest})"


def _facts(source: str) -> str:
    return "; ".join(line[2:] for line in (ROOT / source).read_text().splitlines() if line.startswith("# "))


def spellings() -> str:
    """How many of the spellings that are attention each contestant finds."""
    with open(ROOT / SPELLINGS, newline="") as f:
        must = [row for row in csv.DictReader(f) if row["must"] == "match"]
    who = [name.removesuffix(": detail") for name in must[0] if name.endswith(": detail")]
    counts = {name: Counter(row[name] for row in must) for name in who}
    found = [str(counts[name]["found"]) for name in who]
    return markdown_table((f"of {len(must)} spellings", *who), [["found, result kept", *found]])


def report_fields() -> str:
    """The fields of a report, of an attention, a miss, a linear site and a linear attention, as the schema has them."""
    schema = json.loads(SCHEMA.read_text())
    places = {"sites[].": "site", "misses[].": "miss", "linear[].": "linear", "linear_attention[].": "linear_attention"}
    objects = {"": schema, **{place: schema["$defs"][name] for place, name in places.items()}}
    table = []
    for place, item in objects.items():
        for name, field in item["properties"].items():
            kind = field.get("type", "object" if "$ref" in field or "anyOf" in field else "")
            kinds = ", ".join(kind) if isinstance(kind, list) else kind
            table.append([f"`{place}{name}`", kinds, field.get("description", "")])
    return markdown_table(("field", "type", "what"), table)


def fill(text: str, name: str, content: str) -> str:
    """The text with `content` between the markers of that name."""
    start, end = f"<!-- {name} -->", f"<!-- /{name} -->"
    before, rest = text.split(start)
    return f"{before}{start}\n{content}\n{end}{rest.split(end)[1]}"


def pages() -> dict[Path, str]:
    """What the pages should say."""
    readme = fill(fill(README.read_text(), "results", selection()), "spellings", spellings())
    return {
        README: readme,
        CPU_PAGE: fill(CPU_PAGE.read_text(), "results", results()),
        PARTS_PAGE: fill(PARTS_PAGE.read_text(), "parts", parts()),
        REPORT_PAGE: fill(REPORT_PAGE.read_text(), "schema", report_fields()),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tables", action="store_true", help="leave the pictures as they are")
    if not parser.parse_args().tables:
        for source, draw in PICTURES.items():
            draw(ROOT / source, (ROOT / source).with_suffix(".png"))
    for page, text in pages().items():
        page.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())

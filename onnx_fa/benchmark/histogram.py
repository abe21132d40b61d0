"""How far attentions drawn at random are from the fastest of the others, as a table and as a histogram.

    python -m onnx_fa.benchmark.histogram OUT.png CSV...

plots CSVs of bench again, one picture beside the other.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median, quantiles

from onnx_fa.benchmark.plot import COPY, OURS, medians, pyplot, read_csv, save
from onnx_fa.tables import markdown_table

KINDS = ("plain", "causal", "decode")
"""The first word of a title, see spec/drawn_cases.py."""
STEP, MOST = 0.1, 2.0
"""Of the histogram: the width of a bar, and where the last one, which takes what lies beyond, begins."""
_COLOURS = dict(zip(KINDS, ("#0072b2", "#d55e00", "#009e73"), strict=True))

Times = Mapping[str, Mapping[str, float]]
"""Median ms by title and contestant."""


def ratios(times: Times) -> dict[str, float]:
    """Our time over that of the fastest other, by title."""
    found = {}
    for title, by in times.items():
        others = [ms for what, ms in by.items() if what not in (OURS, COPY)]
        if OURS in by and others:
            found[title] = by[OURS] / min(others)
    return found


def summary(found: Sequence[float]) -> tuple[str, ...]:
    """Number, median, the tenth and ninetieth percentile, least and largest, and how many are at most 1."""
    deciles = quantiles(found, n=10, method="inclusive") if len(found) > 1 else [found[0]] * 9
    numbers = (median(found), deciles[0], deciles[8], min(found), max(found))
    return (str(len(found)), *(f"{x:.2f}" for x in numbers), f"{sum(x <= 1 for x in found)}")


HEAD = ("", "cases", "median", "10%", "90%", "least", "largest", "at most 1.00")


def of_drawn(times: Times, problems: Sequence[str] = ()) -> str:
    """Markdown: ratios to the fastest other by kind, and every case."""
    found = ratios(times)
    groups = {"all": list(found.values())}
    groups |= {kind: [x for title, x in found.items() if title.startswith(kind)] for kind in KINDS}
    rows = [(kind, *summary(numbers)) for kind, numbers in groups.items() if numbers]
    names = list(dict.fromkeys(what for by in times.values() for what in by))
    cells = [
        (title, *(f"{by[what]:.4f}" if what in by else "-" for what in names), f"{found.get(title, float('nan')):.2f}")
        for title, by in sorted(times.items(), key=lambda item: -found.get(item[0], 0.0))
    ]
    parts = [markdown_table(HEAD, rows), markdown_table(("ms", *names, "to the fastest other"), cells)]
    return "\n\n".join([*parts, *(f"* {p}" for p in problems)])


def write_histogram(source: Path, output: Path) -> None:
    """The picture of one CSV. Raises OnnxFaError."""
    write_histograms([source], output)


def write_histograms(sources: Sequence[Path], output: Path) -> None:
    """A histogram for each CSV, side by side; the numbers of each kind stand on another. Raises OnnxFaError."""
    plt = pyplot()
    figure, axes = plt.subplots(1, len(sources), figsize=(6.2 * len(sources), 3.4), squeeze=False)
    edges = [STEP * n for n in range(round(MOST / STEP) + 2)]
    for ax, source in zip(axes[0], sources, strict=True):
        found = ratios(medians(read_csv(source)))
        numbers = [[min(x, MOST + STEP / 2) for t, x in found.items() if t.startswith(kind)] for kind in KINDS]
        ax.hist(numbers, bins=edges, stacked=True, color=[_COLOURS[k] for k in KINDS], label=KINDS)
        ax.axvline(1.0, color="black", linewidth=0.8)
        ax.axvline(median(found.values()), color="black", linewidth=0.8, linestyle=":")
        ax.set_title(f"{_device(source)}: {len(found)} drawn cases, median {median(found.values()):.2f}", fontsize=9)
        ax.set_xlabel(f"time to the fastest other (the last bar: above {MOST:g})")
        ax.legend(fontsize=8)
    figure.tight_layout()
    save(figure, output)


def _device(source: Path) -> str:
    """What a CSV's comments say that it was measured on."""
    heads = [line[2:] for line in source.read_text().splitlines() if line.startswith("# ")]
    named = [line.removeprefix("device: ") for line in heads if line.startswith("device: ")]
    return (named or heads or [source.stem])[0].split(", ")[0]


if __name__ == "__main__":
    write_histograms([Path(p) for p in sys.argv[2:]], Path(sys.argv[1]))

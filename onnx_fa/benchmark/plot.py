"""PNGs from the CSVs that bench writes, and from nothing else: a committed CSV can be plotted again."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from onnx_fa.errors import MissingDependencyError, OnnxFaError
from onnx_fa.files import staged_file

COLUMNS = ("model", "what", "flags", "round", "ms", "extra_bytes")
COPY = "copy"
"""Timed beside decode for its bandwidth: no contestant, so it has no bar."""


@dataclass(frozen=True)
class Row:
    """One timed call. `extra_bytes` is the contestant's memory beyond inputs and outputs, None where that was not measured."""

    model: str
    what: str
    flags: str
    round: int
    ms: float
    extra_bytes: int | None = None


def read_csv(path: Path) -> list[Row]:
    """The rows of a CSV of bench; lines that start with # are comments. Raises OnnxFaError when it is not one."""
    try:
        lines = [line for line in path.read_text().splitlines() if line and not line.startswith("#")]
        table = list(csv.DictReader(lines))
        return [
            Row(r["model"], r["what"], r["flags"], int(r["round"]), float(r["ms"]), int(extra) if extra else None)
            for r in table
            for extra in [r.get("extra_bytes")]
        ]
    except OSError as e:
        raise OnnxFaError(f"{path}: cannot be read: {e.strerror}") from e
    except (KeyError, TypeError, ValueError) as e:
        raise OnnxFaError(f"{path}: not a CSV of onnx-fa bench (columns {', '.join(COLUMNS)}): {e}") from e


def medians(rows: list[Row]) -> dict[str, dict[str, float]]:
    """Median ms by model and by what was run: of stock IREE only its best flags, as "stock IREE"."""
    result: dict[str, dict[str, float]] = {}
    groups: dict[tuple[str, str, str], list[float]] = {}
    for r in rows:
        groups.setdefault((r.model, r.what, r.flags), []).append(r.ms)
    for (model, what, _), times in groups.items():
        best = result.setdefault(model, {})
        best[what] = min(best.get(what, float("inf")), median(times))
    return result


_COLUMNS = 4


def plot(csv_path: Path, png_path: Path, baseline: str = "stock IREE") -> None:
    """Bars of the medians of every model; over each bar ms and, where the model has a baseline, the ratio to it.

    Raises MissingDependencyError without matplotlib, OnnxFaError for a CSV without samples.
    """
    plt = pyplot()
    table = medians(read_csv(csv_path))
    if not table:
        raise OnnxFaError(f"{csv_path}: no samples to plot")
    kinds = list(dict.fromkeys(k for by in table.values() for k in by if k != COPY))
    columns = min(len(table), _COLUMNS)
    rows = -(-len(table) // columns)
    figure, axes = plt.subplots(
        rows, columns, figsize=(1.2 + 3.2 * columns, 3.6 * rows), squeeze=False, layout="constrained"
    )
    for ax in axes.flat[len(table) :]:
        ax.remove()
    colors = {k: f"C{i}" for i, k in enumerate(kinds)}
    for ax, (model, by) in zip(axes.flat, table.items(), strict=False):
        names = [k for k in kinds if k in by]
        bars = ax.bar(range(len(names)), [by[k] for k in names], color=[colors[k] for k in names])
        base = by.get(baseline)
        for bar, k in zip(bars, names, strict=True):
            text = f"{by[k]:.3g} ms" + (f"\n{by[k] / base:.2f}x" if base else "")
            ax.annotate(text, (bar.get_x() + bar.get_width() / 2, by[k]), ha="center", va="bottom", fontsize=8)
        ax.set_xticks(range(len(names)), names, rotation=20, ha="right", fontsize=8)
        ax.set_title(model, fontsize=9)
        ax.margins(y=0.2)
        ax.spines[["top", "right"]].set_visible(False)
    for ax in axes[:, 0]:
        ax.set_ylabel("ms per call, median")
    save(figure, png_path)


def pyplot() -> Any:
    """matplotlib.pyplot, drawing to files. Raises MissingDependencyError."""
    try:
        import matplotlib

        matplotlib.use("Agg")
        import matplotlib.pyplot as plt
    except ImportError as e:
        raise MissingDependencyError(
            "matplotlib is not installed: pip install 'onnx-fa[plot]', or use --no-plot"
        ) from e
    return plt


def save(figure: Any, png_path: Path) -> None:
    """Writes a figure, whole or not at all, and closes it. Raises OnnxFaError."""
    try:
        with staged_file(png_path) as staged:
            figure.savefig(staged, format="png", dpi=130, metadata={"Software": "onnx_fa"})
    finally:
        pyplot().close(figure)

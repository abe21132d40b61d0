"""PNGs from the CSVs that bench writes, and from nothing else: a committed CSV can be plotted again."""

from __future__ import annotations

import csv
from collections.abc import Mapping
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
_MOST_BARRED = 16
"""Pictures of bars that can be read side by side."""
_MARKERS = ("o", "s", "D")
"""By how many words say how a contestant was called."""
OURS = "onnx_fa"
_COLOURS = {
    "onnx_fa": "#d55e00",
    "stock IREE": "#0072b2",
    "onnxruntime": "#009e73",
    "torch SDPA": "#56b4e9",
    "torch eager": "#8c8c8c",
    "torch.compile": "#cc79a7",
    "blocked form": "#a89200",
    "FlashAttention-2": "#e69f00",
    "cuDNN": "#4d7f17",
    "FlexAttention": "#882255",
}
_OTHER = "#444444"


def colour(who: str) -> tuple[str, float]:
    """A contestant's colour and how opaque it is, the same in every picture. What is behind a comma says how it was called, and
    makes the colour paler: "onnx_fa, call"."""
    name, *how = who.split(", ")
    return _COLOURS.get(name, _OTHER), 1.0 - 0.3 * min(len(how), 2)


def plot(csv_path: Path, png_path: Path, baseline: str = "stock IREE") -> None:
    """Bars of the medians of every model; beside each bar ms and, where the model has a baseline, the ratio to it. More models than
    bars can be read of get a line each, with a dot per contestant.

    Raises MissingDependencyError without matplotlib, OnnxFaError for a CSV without samples.
    """
    table = medians(read_csv(csv_path))
    if not table:
        raise OnnxFaError(f"{csv_path}: no samples to plot")
    many = len(table) > _MOST_BARRED and all(OURS in by for by in table.values())
    save(_dots(table) if many else _grid(table, baseline), png_path)


def _dots(table: Mapping[str, Mapping[str, float]]) -> Any:
    """A line for every model: each contestant's time over onnx_fa's, and onnx_fa's in ms."""
    height = 1.1 + 0.21 * len(table)
    figure, ax = pyplot().subplots(figsize=(9, height), layout="constrained")
    kinds = list(dict.fromkeys(who for by in table.values() for who in by if who != COPY))
    for who in kinds:
        ratios = [(by[who] / by[OURS], line) for line, by in enumerate(table.values()) if who in by]
        style = {"marker": _MARKERS[min(who.count(", "), 2)], "color": colour(who), "label": who}
        ax.plot(*zip(*ratios, strict=True), linestyle="", markersize=6, zorder=3, **style)
    ax.axvline(1, color=colour(OURS), linewidth=1)
    ax.set_xscale("log")
    ax.xaxis.set_major_locator(log_ticks())
    ax.xaxis.set_major_formatter(lambda ratio, _: f"{ratio:g}")
    ax.minorticks_off()
    ax.tick_params(axis="x", top=True, labeltop=True)
    ax.set_ylim(len(table) - 0.3, -0.7)
    ax.set_yticks(range(len(table)), list(table), fontsize=8)
    times = ax.secondary_yaxis("right")
    times.set_yticks(range(len(table)), [f"{milliseconds(by[OURS])} ms" for by in table.values()], fontsize=8)
    for axis in (ax, times):
        axis.tick_params(axis="y", length=0)
        axis.spines[:].set_visible(False)
    ax.grid(alpha=0.3)
    ax.set_xlabel(f"times {OURS}'s time, which is at the right: beyond 1, {OURS} is faster")
    figure.legend(loc="outside upper center", ncols=4, frameon=False, fontsize=9)
    return figure


def log_ticks() -> Any:
    """Ticks of a logarithmic axis. A range of less than a factor of ten may hold no power of ten, and would have no label."""
    from matplotlib.ticker import LogLocator

    return LogLocator(subs=(1, 2, 5))


def milliseconds(ms: float) -> str:
    """Three digits, and no exponent."""
    return f"{ms:.3g}" if ms < 1000 else f"{ms:.0f}"


def _grid(table: Mapping[str, Mapping[str, float]], baseline: str) -> Any:
    """A picture of bars for every model."""
    plt = pyplot()
    kinds = list(dict.fromkeys(k for by in table.values() for k in by if k != COPY))
    columns = min(len(table), _COLUMNS)
    rows = -(-len(table) // columns)
    most = max(sum(k in by for k in kinds) for by in table.values())
    figure, axes = plt.subplots(
        rows,
        columns,
        figsize=(0.6 + 4.2 * columns, 0.5 + (0.7 + 0.24 * most) * rows),
        squeeze=False,
        layout="constrained",
    )
    for ax in axes.flat[len(table) :]:
        ax.remove()
    for ax, (model, by) in zip(axes.flat, table.items(), strict=False):
        _bars(ax, model, {k: by[k] for k in kinds if k in by}, baseline)
    for ax in axes[-1, :]:
        ax.set_xlabel("ms per call, median")
    if any(baseline in by for by in table.values()):
        figure.suptitle(f"1.00x is the time of {baseline}; less is faster", fontsize=9)
    return figure


def _bars(ax: Any, model: str, times: dict[str, float], baseline: str) -> None:
    """One model's bars, the first contestant on top."""
    bars = ax.barh(range(len(times)), list(times.values()), color=[colour(who) for who in times])
    base = times.get(baseline)
    for bar, ms in zip(bars, times.values(), strict=True):
        text = f" {milliseconds(ms)} ms" + (f", {ms / base:.2f}x" if base else "")
        ax.annotate(text, (ms, bar.get_y() + bar.get_height() / 2), ha="left", va="center", fontsize=8)
    ax.set_yticks(range(len(times)), list(times), fontsize=8)
    ax.invert_yaxis()
    ax.set_title(model, fontsize=9)
    ax.locator_params(axis="x", nbins=5)
    ax.set_xlim(0, 1.55 * max(times.values()))
    ax.spines[["top", "right"]].set_visible(False)


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

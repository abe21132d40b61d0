"""`onnx-fa bench --heads ... --head-dim ... --seq ...`: attention alone, over heads, head dims and lengths, against PyTorch
called in three ways, onnxruntime with the plain and the blocked form, and stock IREE."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from itertools import product
from pathlib import Path
from typing import Any

from onnx_fa.benchmark.attention import METHOD, bench_attention, write_case_files
from onnx_fa.benchmark.case_result import CaseResult, Plan
from onnx_fa.benchmark.kept_modules import KeptModules
from onnx_fa.benchmark.models import BLOCKED, COMPILED, EAGER, ORT, STOCK, TORCH
from onnx_fa.benchmark.plot import OURS, Row, colour, log_ticks, medians, pyplot, read_csv, save
from onnx_fa.errors import OnnxFaError
from onnx_fa.machine import machine_facts
from onnx_fa.spec.cases import Case, case
from onnx_fa.spec.target import Target
from onnx_fa.spec.terms import Causal
from onnx_fa.tables import markdown_table

WHO = (EAGER, TORCH, COMPILED, ORT, BLOCKED, STOCK, OURS)


def sweep_cases(
    heads: Sequence[int],
    head_dims: Sequence[int],
    lengths: Sequence[int],
    *,
    batch: int = 1,
    causal: bool = False,
    dtype: str = "f32",
    target: str = "cpu-host",
) -> list[Case]:
    """One attention for each combination, Sq = Skv. Their titles say all of it, with the length as S<number>, for `plot`."""
    where = "" if target == "cpu-host" else f" {target}"
    cases = []
    for h, d, s in product(heads, head_dims, lengths):
        title = f"B{batch} H{h} S{s} D{d}{' causal' if causal else ''}{'' if dtype == 'f32' else f' {dtype}'}{where}"
        sizes: dict[str, Any] = {"batch": (batch,), "Hq": h, "Hkv": h, "Sq": s, "Skv": s, "D": d, "Dv": d}
        masks = (Causal(),) if causal else ()
        cases.append(case(title.replace(" ", "_"), title=title, dtype=dtype, masks=masks, **sizes))
    return cases


def sweep(
    cases: Sequence[tuple[Target, Sequence[Case]]],
    prefix: Path,
    plan: Plan,
    *,
    fresh: bool = False,
    note: Callable[[str], None] = lambda message: None,
    modules: KeptModules | None = None,
) -> list[CaseResult]:
    """Measures the cases of every target. Resumes as `bench_attention` does; `modules` holds what is compiled. Raises
    OnnxFaError."""
    return [
        result
        for target, of in cases
        for result in bench_attention(of, prefix, target, plan, fresh=fresh, who=WHO, note=note, modules=modules)
    ]


def write(results: Sequence[CaseResult], prefix: Path, plan: Plan, *, with_plot: bool = True) -> list[Path]:
    """CSV, JSON, Markdown and, with `with_plot`, PNG. Raises OnnxFaError."""
    facts = machine_facts(plan.threads) | {"method": METHOD}
    return write_case_files(results, prefix, facts, markdown(results), plot if with_plot else None)


HEAD = ("case", *(f"{w}, ms" for w in WHO), *(f"to {w}" for w in WHO[:-1]), *(f"{w}, MiB" for w in WHO))


def rows(results: Sequence[CaseResult]) -> list[tuple[str, ...]]:
    """Lines under HEAD: medians, onnx_fa's median over each other's, and memory beyond inputs and outputs."""
    lines = []
    for r in results:
        ours = r.median(OURS)
        times = [r.median(w) for w in WHO]
        extra = [next((c.extra_bytes for c in r.contestants if c.what == w and not c.problem), None) for w in WHO]
        lines.append(
            (
                r.title,
                *("-" if t is None else f"{t:.2f}" for t in times),
                *("-" if t is None or ours is None else f"{ours / t:.2f}" for t in times[:-1]),
                *("-" if b is None else f"{b / 2**20:.1f}" for b in extra),
            )
        )
    return lines


def problems(results: Sequence[CaseResult]) -> list[str]:
    """Who could not be timed, and why; the same reason only once."""
    said: dict[tuple[str, str], list[str]] = {}
    for r in results:
        for c in r.contestants:
            if c.problem and c.what in WHO:
                said.setdefault((c.what, c.problem), []).append(r.title)
    return [f"{what}: {why} ({', '.join(titles)})" for (what, why), titles in said.items()]


def markdown(results: Sequence[CaseResult]) -> str:
    left_out = problems(results)
    table = markdown_table(HEAD, rows(results))
    return table + ("\n\nNot timed:\n\n" + "\n".join(f"- {p}" for p in left_out) if left_out else "")


def plot(csv_path: Path, png_path: Path) -> None:
    """Lines over the length, a column per kind of attention: time, how many times onnx_fa's time each other takes, and memory
    beyond inputs and outputs. Of the CSV alone. Raises OnnxFaError, and MissingDependencyError without matplotlib."""
    plt = pyplot()
    samples = read_csv(csv_path)
    times = medians(samples)
    kinds: dict[str, dict[int, str]] = {}
    for title in times:
        kind, length = _kind(title)
        kinds.setdefault(kind, {})[length] = title
    if not kinds:
        raise OnnxFaError(f"{csv_path}: no samples to plot")
    extra = _extra(samples)
    names = [w for w in WHO if any(w in by for by in times.values())]
    parts: tuple[tuple[str, Callable[[str, str], float | None]], ...] = (
        ("ms per call, median", lambda title, who: times[title].get(who)),
        ("times onnx_fa's time", lambda title, who: _over(times[title].get(who), times[title].get(OURS))),
        ("MiB beyond inputs and outputs", lambda title, who: _mib(extra.get((title, who)))),
    )
    figure, axes = plt.subplots(
        len(parts), len(kinds), figsize=(1.5 + 4 * len(kinds), 9), squeeze=False, sharex="col", layout="constrained"
    )
    for column, (kind, by_length) in zip(axes.T, kinds.items(), strict=True):
        lengths = sorted(by_length)
        column[0].set_title(kind)
        column[-1].set_xlabel("length")
        for ax, (label, value) in zip(column, parts, strict=True):
            for who in names:
                points = [(s, y) for s in lengths if (y := value(by_length[s], who)) is not None]
                width = 2.5 if who == OURS else 1.5
                if points:
                    ax.plot(
                        *zip(*points, strict=True),
                        marker="o",
                        markersize=4,
                        label=who,
                        color=colour(who),
                        linewidth=width,
                    )
            ax.set_xscale("log", base=2)
            if label.startswith("times"):
                ax.set_ylim(bottom=0)
            else:
                ax.set_yscale("log")
                ax.yaxis.set_major_locator(log_ticks())
            ax.set_xticks(lengths, [str(s) for s in lengths])
            ax.minorticks_off()
            ax.yaxis.set_major_formatter(lambda y, _: f"{y:g}")
            ax.grid(alpha=0.3)
            ax.spines[["top", "right"]].set_visible(False)
    for ax, (label, _) in zip(axes[:, 0], parts, strict=True):
        ax.set_ylabel(label)
    figure.legend(
        *axes[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=min(4, 2 * len(kinds)), frameon=False
    )
    save(figure, png_path)


def _kind(title: str) -> tuple[str, int]:
    """A title without its length, and the length. Raises OnnxFaError where it has none."""
    found = re.search(r" S(\d+)", title)
    if found is None:
        raise OnnxFaError(f"{title!r} has no length: not a CSV of onnx-fa bench --heads")
    return title.replace(found[0], ""), int(found[1])


def _extra(samples: Sequence[Row]) -> dict[tuple[str, str], int]:
    return {(r.model, r.what): r.extra_bytes for r in samples if r.extra_bytes is not None}


def _over(other: float | None, ours: float | None) -> float | None:
    return other / ours if other is not None and ours else None


def _mib(size: int | None) -> float | None:
    """At least what the measurement can see, so that nothing is lost on a logarithmic axis."""
    return None if size is None else max(size / 2**20, 0.05)

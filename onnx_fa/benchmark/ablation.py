"""`onnx-fa bench --ablate`: what each optimisation of the kernels is worth where it alone is off, and what stock IREE makes of the
forms of ONNX by itself. All of a case is timed in one run, in turns."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from onnx_fa.benchmark.attention import METHOD, bench_attention, build_modules, write_case_files
from onnx_fa.benchmark.case_bench import SAME
from onnx_fa.benchmark.case_result import CaseResult, Plan
from onnx_fa.benchmark.kept_modules import KeptModules
from onnx_fa.benchmark.models import Contestant
from onnx_fa.benchmark.plot import OURS, plot
from onnx_fa.benchmark.stock_forms import FORMS
from onnx_fa.machine import machine_facts
from onnx_fa.spec.cases import CASES, Case, find
from onnx_fa.spec.switches import Switch
from onnx_fa.spec.target import Target
from onnx_fa.tables import markdown_table


@dataclasses.dataclass(frozen=True)
class Ablation:
    """What is measured for a target: `cases` with every one of `switches` off by itself, and `forms`, which stock IREE gets in
    every form of ONNX."""

    target: Target
    cases: tuple[Case, ...]
    switches: tuple[Switch, ...]
    forms: tuple[Case, ...]

    @property
    def variants(self) -> dict[str, Target]:
        """The target with each optimisation off, by what the contestant is called."""
        return {called(s): dataclasses.replace(self.target, off=frozenset({s})) for s in self.switches}

    @property
    def groups(self) -> list[tuple[tuple[Case, ...], tuple[str, ...]]]:
        """Cases, and who is timed on them."""
        return [(self.cases, (OURS, *self.variants)), (self.forms, (OURS, *FORMS))]

    def run(
        self,
        prefix: Path,
        plan: Plan,
        *,
        fresh: bool = False,
        note: Callable[[str], None] = lambda message: None,
        modules: KeptModules | None = None,
    ) -> list[CaseResult]:
        """Measures all; resumes as `bench_attention` does; `modules` holds what is compiled. Raises OnnxFaError."""
        measure = partial(bench_attention, prefix=prefix, target=self.target, plan=plan, note=note, modules=modules)
        found: list[CaseResult] = []
        for i, (cases, who) in enumerate((cases, who) for cases, who in self.groups if cases):
            found += measure(cases, fresh=fresh and i == 0, who=who, variants=self.variants)
        return found

    def build(self, plan: Plan, modules: KeptModules, note: Callable[[str], None]) -> list[str]:
        """Compiles all that `run` would time. Returns what could not be compiled of the variants; what stock IREE does not compile
        is a result."""
        problems: list[str] = []
        for cases, who in self.groups:
            lacking = build_modules(cases, self.target, plan, modules, who, note, self.variants) if cases else []
            problems += [p for p in lacking if not any(form in p for form in FORMS)]
        return problems


def called(switch: Switch) -> str:
    """The contestant that does without an optimisation."""
    return f"{OURS}, no {switch.word}"


def plan_ablation(
    target: Target, names: Sequence[str] = (), words: Sequence[str] = (), *, forms: bool = True
) -> Ablation:
    """The cases of these names, or those that the table has for the target, with the optimisations of these words off, or with each
    that its kernels have; `forms`: and what stock IREE makes of the forms. Raises OnnxFaError for a name or a word that is none."""
    end = "_gpu" if target.is_gpu else ""
    cases = tuple(map(find, names)) or tuple(c for c in CASES if f"ablate{end}" in c.tags)
    kind = "gpu" if target.is_gpu else "cpu"
    switches = tuple(map(Switch.of, words)) or tuple(s for s in Switch if kind in s.where)
    return Ablation(target, cases, switches, tuple(c for c in CASES if forms and f"forms{end}" in c.tags))


HEAD = ("case", "what", "ms", "to onnx_fa", "error", "remarks")


def rows(results: Sequence[CaseResult]) -> list[tuple[str, ...]]:
    """Lines under HEAD: medians, and over onnx_fa's with every optimisation on; in one line those whose kernel is the same."""
    lines: list[tuple[str, ...]] = []
    for r in results:
        ours = r.median(OURS)
        for c in r.contestants:
            if (c.what not in FORMS and not _ours(c)) or c.problem == SAME:
                continue
            ms = None if c.problem else c.median_ms
            lines.append(
                (
                    r.title,
                    c.what,
                    "-" if ms is None else f"{ms:.3f}",
                    "-" if ms is None or not ours else f"{ms / ours:.2f}x",
                    "-" if c.error is None else f"{c.error:.1e}",
                    c.problem or c.flags,
                )
            )
        if same := [c.what.partition(", ")[2] for c in r.contestants if c.problem == SAME]:
            lines.append((r.title, ", ".join(same), "-", "-", "-", SAME))
    return lines


def _ours(c: Contestant) -> bool:
    return c.what.partition(", ")[0] == OURS


def failed(results: Sequence[CaseResult]) -> list[Contestant]:
    """The contestants of this project that were wrong or did not run."""
    return [c for r in results for c in r.contestants if _ours(c) and c.problem and c.problem != SAME]


def write(results: Sequence[CaseResult], prefix: Path, plan: Plan, *, with_plot: bool = True) -> list[Path]:
    """CSV, JSON, Markdown and, with `with_plot`, PNG. Raises OnnxFaError."""
    facts = machine_facts(plan.threads) | {"method": METHOD}
    draw = partial(plot, baseline=OURS) if with_plot else None
    return write_case_files(results, prefix, facts, markdown_table(HEAD, rows(results)), draw)

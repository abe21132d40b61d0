"""Exports every model family in every way, rewrites it, compares, and writes docs/results/families.md.

python scripts/families.py [processes]
"""

from __future__ import annotations

import sys
from collections import defaultdict
from importlib import metadata
from pathlib import Path

from onnx_fa.models import families
from onnx_fa.models.family_check import CASES, EXPORTS, Outcome, evaluate_all
from onnx_fa.tables import markdown_table

PAGE = Path(__file__).resolve().parent.parent / "docs" / "results" / "families.md"
PACKAGES = ("torch", "transformers", "onnxscript", "onnxruntime")


def main(processes: int) -> int:
    found = list(evaluate_all(CASES, processes))
    PAGE.write_text(page(found))
    bad = [o for o in found if o.failure or _short(o) or _wrong(o)]
    for o in bad:
        print(o.case, o.failure or f"{o.sites} of {_sites(o)} attentions, errors {dict(o.errors)}")
    return int(any(_wrong(o) for o in bad))


def page(found: list[Outcome]) -> str:
    """The whole of docs/results/families.md."""
    usable = [o for o in found if not o.failure]
    have, want = sum(o.sites for o in usable), sum(map(_sites, usable))
    versions = ", ".join(f"{p} {metadata.version(p)}" for p in PACKAGES)
    head = ("family", "kind", "attention", *(f"{e} {o}" for e, o in EXPORTS), "largest error", "recovered as")
    return f"""# Model families

Written by `python scripts/families.py`: {len(families.FAMILIES)} models of two layers, each exported by both PyTorch exporters
from every spelling of attention its library has ({versions}). Sites are counted as rewritten/there. A result is compared
with the original's in every form, on padded inputs and on inputs with an entirely padded row, as a relative norm error; an
Attention op in the original is replaced by ONNX's definition of it first.

**{have} of {want} attentions in {len(usable)} exports are rewritten.** No other softmax is (routers of experts, classifier heads).

{markdown_table(head, _rows(found))}

## Left alone

{_bullets(_misses(usable)) or "Nothing."}

## No usable export

{_bullets({str(o.case): o.failure for o in found if o.failure}) or "None."}
"""


def _rows(found: list[Outcome]) -> list[list[str]]:
    by: dict[tuple[str, str], list[Outcome]] = defaultdict(list)
    for o in found:
        by[o.case.family, o.case.attn].append(o)
    rows = []
    for (name, attn), group in by.items():
        cells = {(o.case.exporter, o.case.opset): "no export" if o.failure else f"{o.sites}/{_sites(o)}" for o in group}
        errors = [error for o in group for _, error in o.errors]
        variants = sorted({v for o in group for v in o.variants})
        worst = f"{max(errors):.0e}" if errors else "-"
        rows.append([name, families.find(name).kind, attn, *(cells[e] for e in EXPORTS), worst, "<br>".join(variants)])
    return rows


def _misses(usable: list[Outcome]) -> dict[str, str]:
    return {str(o.case): "; ".join(dict.fromkeys(o.misses)) for o in usable if _short(o)}


def _bullets(lines: dict[str, str]) -> str:
    return "\n".join(f"* {name}: {reason}" for name, reason in lines.items())


def _sites(outcome: Outcome) -> int:
    return families.find(outcome.case.family).sites


def _short(outcome: Outcome) -> bool:
    return not outcome.failure and outcome.sites != _sites(outcome)


def _wrong(outcome: Outcome) -> bool:
    return any(error > families.find(outcome.case.family).tolerance for _, error in outcome.errors)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 2))

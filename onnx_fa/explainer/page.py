"""`explain --html`: one self-contained page about the attentions of a model."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import jinja2
import onnx_ir as ir

from onnx_fa.explainer.graph_picture import boxes_of, svg
from onnx_fa.forms.report import RewriteReport, SiteReport
from onnx_fa.forms.rewrite import find, rewrite_in_place, shown_words
from onnx_fa.forms.site_passes import SitePasses, site_nodes, site_passes
from onnx_fa.graph import io
from onnx_fa.printable import printable_lines
from onnx_fa.spec.words import einsums, sentence


@dataclass(frozen=True)
class SitePicture:
    """One site as the page shows it: its report, and the graph around it before and after, as SVG."""

    report: SiteReport
    before: str
    after: str

    def context(self) -> tuple[dict[str, Any], str, str]:
        """What the template wants."""
        s = self.report
        facts = {
            "name": s.name,
            "op": s.op,
            "variant": s.variant,
            "dtype": s.spec.dtype,
            "sentence": sentence(s.spec),
            "einsums": einsums(s.spec),
            "passes": s.passes,
            "words": s.passes.words if s.passes else "?",
            "beside": s.beside,
        }
        return facts, self.before, self.after


def pictures(model: io.ModelLike) -> tuple[RewriteReport, list[SitePicture]]:
    """The report of `explain`, with passes, and a picture of every site. The model is not changed."""
    work = model.clone() if isinstance(model, ir.Model) else io.load(model)
    after = _after(work.clone())
    view, matches, misses = find(work)
    found = []
    for match in matches:
        counted = site_passes(view, match)
        report = SiteReport(match.name, match.op, match.form, match.spec, passes=counted, beside=shown_words(match))
        found.append(
            SitePicture(report, svg(boxes_of(site_nodes(match), _classes(counted))), after.get(match.name, ""))
        )
    return RewriteReport(tuple(p.report for p in found), tuple(misses)), found


def _after(model: ir.Model) -> dict[str, str]:
    """By site: its ops in the decomposed form."""
    _, sites = rewrite_in_place(model, "decomposed")
    return {s.name: svg(boxes_of(s.nodes, {n.name or "": "site" for n in s.nodes})) for s in sites}


def _classes(passes: SitePasses) -> dict[str, str]:
    """The colour of each op of the model by its name: the pass that it is in."""
    if passes.before is None:
        return {}
    return {op: f"p{min(n, 2)}" for n, p in enumerate(passes.before.passes) for op in p.ops}


def page(model: io.ModelLike, title: str) -> tuple[RewriteReport, str]:
    """The report and the page. Raises what `explain` raises."""
    report, sites = pictures(model)
    html = template("explain.html").render(model=title, sites=[s.context() for s in sites], misses=report.misses)
    return report, html


@lru_cache
def _environment() -> jinja2.Environment:
    loader = jinja2.FileSystemLoader(Path(__file__).parent / "pages")
    made = jinja2.Environment(
        loader=loader, autoescape=True, trim_blocks=True, undefined=jinja2.StrictUndefined, finalize=_finalize
    )
    made.filters |= {"size": size_words, "op_word": op_word}
    return made


def _finalize(value: object) -> object:
    """Names of a model; markup is of this package's own making."""
    return printable_lines(value) if type(value) is str else value


def template(name: str) -> jinja2.Template:
    """A page of the folder `pages`."""
    return _environment().get_template(name)


def size_words(size: float | None) -> str:
    """Bytes for people."""
    if size is None:
        return "?"
    for unit in ("B", "KiB", "MiB"):
        if size < 1024:
            return f"{size:.4g} {unit}"
        size /= 1024
    return f"{size:.4g} GiB"


def op_word(op: str) -> str:
    """An op's name, short."""
    return op if len(op) <= 40 else f"…{op[-39:]}"

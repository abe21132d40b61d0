"""A small graph as SVG: boxes in rows by longest path, arrows downward. No script, no font of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

import onnx_ir as ir

from onnx_fa.explainer.layout import place
from onnx_fa.graph.ops import op_of, outer_reads
from onnx_fa.printable import printable
from onnx_fa.spec.words import shape_words

_WIDTH, _HEIGHT, _GAP_X, _GAP_Y = 148, 38, 16, 30
_VIA_WIDTH = 4
"""Of an arrow that passes a row of boxes."""
MAX_BOXES = 80
"""Larger graphs are cut at the top: what is nearest to the output stays."""


@dataclass(frozen=True)
class Box:
    """One op or one input. `kind` is a CSS class: "op", "input", or "site"."""

    key: str
    label: str
    detail: str
    kind: str
    sources: tuple[str, ...] = ()


def boxes_of(nodes: Sequence[ir.Node], classes: Mapping[str, str]) -> list[Box]:
    """A box for every node (the class by its name, else "op"), and one for every tensor that comes from outside; constants
    have none."""
    nodes = [n for n in nodes if n.inputs][-MAX_BOXES:]
    made = {o: n for n in nodes for o in n.outputs}
    boxes: dict[str, Box] = {}
    for node in nodes:
        sources = []
        for value in filter(None, (*node.inputs, *outer_reads(node))):
            if value in made:
                sources.append(_key(made[value]))
            elif value.const_value is None and value.type is not None and not _constant(value):
                boxes.setdefault(str(value.name), Box(str(value.name), _short(value.name), _type(value), "input"))
                sources.append(str(value.name))
        out = node.outputs[0] if node.outputs else None
        name = node.name or str(out.name if out else "")
        kind = classes.get(name, "op")
        boxes[_key(node)] = Box(_key(node), op_of(node), _type(out), kind, tuple(dict.fromkeys(sources)))
    return list(boxes.values())


def _constant(value: ir.Value) -> bool:
    node = value.producer()
    return node is not None and not node.inputs


def _key(node: ir.Node) -> str:
    return f"node {id(node)}"


def _short(name: object) -> str:
    text = str(name)
    return text if len(text) <= 20 else f"…{text[-19:]}"


def _cut(detail: str) -> str:
    return detail if len(detail) <= 24 else f"{detail[:23]}…"


def _type(value: ir.Value | None) -> str:
    if value is None or value.shape is None:
        return ""
    dtype = value.dtype.name.lower() if value.dtype is not None else ""
    return f"{dtype} {shape_words([d if isinstance(d, int) else d.value or '?' for d in value.shape])}"


def svg(boxes: Sequence[Box]) -> str:
    """The picture. Boxes must come after what they read, inputs anywhere."""
    by_key = {b.key: b for b in boxes}
    sources = {b.key: [s for s in b.sources if s in by_key] for b in boxes}
    row = _rows(sources)
    hops, vias = _hops(sources, row)
    by_row: list[list[str]] = [[] for _ in range(max(row.values(), default=-1) + 1)]
    for key in (*by_key, *vias):
        by_row[row[key]].append(key)
    widths = dict.fromkeys(by_key, _WIDTH) | dict.fromkeys(vias, _VIA_WIDTH)
    centre = place(by_row, widths, hops, _GAP_X, frozenset(vias))
    wide = max((centre[key] + _WIDTH / 2 for key in by_key), default=0)
    wide = max([wide, *(centre[key] for key in vias)])
    high = len(by_row) * (_HEIGHT + _GAP_Y)
    parts = [f'<svg class="graph" viewBox="-8 -8 {wide + 16:.0f} {high}" width="{wide + 16:.0f}" role="img">']
    top = {key: n * (_HEIGHT + _GAP_Y) for key, n in row.items()}
    parts += [f'<path class="edge" d="M{centre[v]:.0f} {top[v]}V{top[v] + _HEIGHT}"/>' for v in vias]
    for upper, lower in hops:
        x0, y0, x, y = centre[upper], top[upper] + _HEIGHT, centre[lower], top[lower]
        parts.append(f'<path class="edge" d="M{x0:.0f} {y0}C{x0:.0f} {y0 + 18} {x:.0f} {y - 18} {x:.0f} {y}"/>')
    for box in boxes:
        x, y = centre[box.key], top[box.key]
        parts.append(
            f'<g class="{escape(box.kind)}"><rect x="{x - _WIDTH / 2:.0f}" y="{y}" width="{_WIDTH}" height="{_HEIGHT}" rx="5"/>'
            f'<text x="{x:.0f}" y="{y + 16}">{_text(box.label)}</text>'
            f'<text class="detail" x="{x:.0f}" y="{y + 30}">{_text(_cut(box.detail))}</text>'
            f"<title>{_text(f'{box.label} {box.detail}')}</title></g>"
        )
    return "".join([*parts, "</svg>"])


def _rows(sources: Mapping[str, Sequence[str]]) -> dict[str, int]:
    """The row of every box, below all that it reads. What reads nothing stands right above its first reader."""
    row: dict[str, int] = {}
    for key in sources:
        stack = [key]
        while stack:
            todo = [s for s in sources[stack[-1]] if s not in row]
            if todo:
                stack += todo
                continue
            done = stack.pop()
            row[done] = 1 + max((row[s] for s in sources[done]), default=-1)
    first_reader: dict[str, int] = {}
    for key, read in sources.items():
        for source in read:
            first_reader[source] = min(row[key], first_reader.get(source, row[key]))
    return {key: n if sources[key] else max(0, first_reader.get(key, n + 1) - 1) for key, n in row.items()}


def _hops(sources: Mapping[str, Sequence[str]], row: dict[str, int]) -> tuple[list[tuple[str, str]], list[str]]:
    """Arrows as hops from a row to the next, and the places where they pass rows in between, which `row` gets too. All arrows from
    a box pass a row at one place, so that none runs through a box."""
    hops: dict[tuple[str, str], None] = {}
    vias: dict[str, None] = {}
    for key, read in sources.items():
        for source in read:
            upper = source
            for n in range(row[source] + 1, row[key]):
                via = f"{source} in row {n}"
                row[via] = n
                vias[via] = hops[upper, via] = None
                upper = via
            hops[upper, key] = None
    return list(hops), list(vias)


def _text(name: str) -> str:
    return escape(printable(name))

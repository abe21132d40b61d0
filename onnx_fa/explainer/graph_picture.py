"""A small graph as SVG: boxes in rows by longest path, arrows downward. No script, no font of its own."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape

import onnx_ir as ir

from onnx_fa.graph.ops import op_of
from onnx_fa.graph.view import outer_reads
from onnx_fa.printable import printable
from onnx_fa.spec.words import shape_words

_WIDTH, _HEIGHT, _GAP_X, _GAP_Y = 148, 38, 16, 30
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


def _type(value: ir.Value | None) -> str:
    if value is None or value.shape is None:
        return ""
    dtype = value.dtype.name.lower() if value.dtype is not None else ""
    return f"{dtype} {shape_words([d if isinstance(d, int) else d.value or '?' for d in value.shape])}"


def svg(boxes: Sequence[Box]) -> str:
    """The picture. Boxes must come after what they read, inputs anywhere."""
    by_key = {b.key: b for b in boxes}
    row: dict[str, int] = {}

    def depth(key: str) -> int:
        stack = [key]
        while stack:
            todo = [s for s in by_key[stack[-1]].sources if s in by_key and s not in row]
            if todo:
                stack += todo
                continue
            k = stack.pop()
            row[k] = 1 + max((row[s] for s in by_key[k].sources if s in by_key), default=-1)
        return row[key]

    for box in boxes:
        depth(box.key)
    readers: dict[str, list[str]] = {}
    for box in boxes:
        for source in box.sources:
            readers.setdefault(source, []).append(box.key)
    for box in boxes:  # an input stands right above its first reader
        if not box.sources and box.key in readers:
            row[box.key] = max(0, min(row[r] for r in readers[box.key]) - 1)
    rows: dict[int, list[str]] = {}
    for box in boxes:
        rows.setdefault(row[box.key], []).append(box.key)
    at = _columns(rows, by_key, readers)
    wide = max(at.values(), default=0) + _WIDTH
    high = (max(rows, default=0) + 1) * (_HEIGHT + _GAP_Y)
    parts = [f'<svg class="graph" viewBox="-8 -8 {wide + 16:.0f} {high}" width="{wide + 16:.0f}" role="img">']
    for box in boxes:
        x, y = at[box.key] + _WIDTH / 2, row[box.key] * (_HEIGHT + _GAP_Y)
        for source in (s for s in box.sources if s in by_key):
            x0, y0 = at[source] + _WIDTH / 2, row[source] * (_HEIGHT + _GAP_Y) + _HEIGHT
            parts.append(f'<path class="edge" d="M{x0:.0f} {y0} C{x0:.0f} {y0 + 18} {x:.0f} {y - 18} {x:.0f} {y}"/>')
    for box in boxes:
        x, y = at[box.key], row[box.key] * (_HEIGHT + _GAP_Y)
        parts.append(
            f'<g class="{escape(box.kind)}"><rect x="{x:.0f}" y="{y}" width="{_WIDTH}" height="{_HEIGHT}" rx="5"/>'
            f'<text x="{x + _WIDTH / 2:.0f}" y="{y + 16}">{_text(box.label)}</text>'
            f'<text class="detail" x="{x + _WIDTH / 2:.0f}" y="{y + 30}">{_text(box.detail[:26])}</text>'
            f"<title>{_text(f'{box.label} {box.detail}')}</title></g>"
        )
    return "".join([*parts, "</svg>"])


def _columns(
    rows: Mapping[int, list[str]], by_key: Mapping[str, Box], readers: Mapping[str, Sequence[str]]
) -> dict[str, float]:
    """Left edges: every row in the order of its neighbours' places, rows centred."""
    step = _WIDTH + _GAP_X
    at = {k: i * step for keys in rows.values() for i, k in enumerate(keys)}

    def mean(keys: Iterable[str], own: str) -> float:
        found = [at[k] for k in keys if k in at]
        return sum(found) / len(found) if found else at[own]

    for down in (True, False, True, False):
        for n in sorted(rows, reverse=not down):
            near = {k: mean(by_key[k].sources if down else readers.get(k, ()), k) for k in rows[n]}
            rows[n].sort(key=near.__getitem__)
            for i, k in enumerate(rows[n]):
                at[k] = i * step
    widest = max(len(keys) for keys in rows.values()) if rows else 0
    return {k: at[k] + (widest - len(keys)) * step / 2 for keys in rows.values() for k in keys}


def _text(name: str) -> str:
    return escape(printable(name))

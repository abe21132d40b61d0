"""Parts of a network that are connected by images, or by sequences, whose nodes can do with channels last: found, and written so
where that turns fewer numbers."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Mapping
from typing import Any

import onnx

from onnx_fa.graph.ops import op_of
from onnx_fa.iree.legalise.image_rows import Places, RowsForm, RowsWriter
from onnx_fa.iree.legalise.writer import GraphWriter, read_by

FindForm = Callable[[GraphWriter, Any, onnx.NodeProto], RowsForm | None]
"""The form of a node of a graph whose images are these; None where it has none."""


def write_parts(
    g: GraphWriter,
    images: Mapping[str, Places],
    forms_of: Mapping[str, FindForm],
    w: RowsWriter[Any],
    *,
    around: Collection[str] = (),
) -> bool:
    """Writes the parts that save something, by the forms of their nodes' operators, in place; those alone, if that is said, that
    have one of the operators `around`. Returns whether there are any."""
    forms = dict[int, RowsForm]()
    for place, node in enumerate(g.graph.node):
        find = forms_of.get(op_of(node))
        if find is not None and (form := find(g, images, node)) is not None:
            forms[place] = form
    parts = [p for p in _parts(forms) if not around or any(op_of(g.graph.node[place]) in around for place in p)]
    chosen = {place for part in parts if _saved(g, images, forms, part) > 0 for place in part}
    if not chosen:
        return False
    for place, node in enumerate(g.graph.node):
        for name in sorted(read_by(node).difference(forms[place].images if place in chosen else ())):
            w.need(name)
        if place in chosen:
            forms[place].write(w, node)
        else:
            g.nodes.append(node)
    for value in g.graph.output:
        w.need(value.name)
    g.replace_nodes(g.nodes)
    return True


def _parts(forms: Mapping[int, RowsForm]) -> list[list[int]]:
    """The places of nodes that have forms, of which those are together that hand each other images."""
    leader = {place: place for place in forms}

    def find(place: int) -> int:
        while leader[place] != place:
            leader[place] = leader[leader[place]]
            place = leader[place]
        return place

    makers = {name: place for place, form in forms.items() for name in form.results}
    for place, form in forms.items():
        for name in form.images:
            if name in makers:
                leader[find(place)] = find(makers[name])
    parts = defaultdict[int, list[int]](list)
    for place in forms:
        parts[find(place)].append(place)
    return list(parts.values())


def _saved(g: GraphWriter, images: Mapping[str, Places], forms: Mapping[int, RowsForm], part: list[int]) -> int:
    """How many numbers less are turned of an image where this part has channels last."""
    inside = set(part)
    made = {name for place in part for name in forms[place].results}
    read = {name for place in part for name in forms[place].images if not forms[place].takes_both} - made
    given = {name for name in made if g.is_output(name) or not inside.issuperset(_numbers_readers(g, name))}
    return sum(forms[place].saved for place in part) - sum(images[name].numbers for name in (*read, *given))


def _numbers_readers(g: GraphWriter, name: str) -> list[int]:
    """The places of nodes that read more than a value's shape."""
    return [place for place in g.readers(name) if op_of(g.graph.node[place]) != "Shape"]

"""Axes of an Einsum that one operand has once and another longer. ONNX's inference and IREE take such an axis to be one for all; a
letter of its own says the same: a sum over one number, repeated along the other's axis."""

from __future__ import annotations

import string
from collections.abc import Sequence

import onnx

from onnx_fa.graph.ops import op_of


def equation_of(node: onnx.NodeProto) -> str:
    """That of an Einsum without spaces; "" of another op, or where it has none."""
    given = next((a.s.decode() for a in node.attribute if a.name == "equation"), "") if op_of(node) == "Einsum" else ""
    return "".join(given.split())


def with_own_letters(equation: str, shapes: Sequence[Sequence[object] | None]) -> str | None:
    """The equation in which an axis of length 1 that another operand has longer, or may have, has a letter of its own, and what is
    behind "..." has letters; None where there are no such axes, or it cannot be told. Dims of unknown length are anything but 1."""
    given, arrow, result = equation.partition("->")
    terms = given.split(",")
    if not arrow or len(terms) != len(shapes):
        return None
    free = iter(sorted(set(string.ascii_letters) - set(equation)))
    known = [shape for shape in shapes if shape is not None]
    ranks = [
        len(s) - len(t.replace("...", "")) for t, s in zip(terms, known, strict=len(known) == len(shapes)) if "..." in t
    ]
    if len(known) < len(shapes) or any(rank < 0 for rank in ranks):
        return None
    try:
        dots = [next(free) for _ in range(max(ranks, default=0))]
        parts = []
        for term, shape in zip(terms, known, strict=True):
            rank = len(shape) - len(term.replace("...", ""))
            parts.append(list(term.replace("...", "".join(dots[len(dots) - rank :]))) if "..." in term else list(term))
        if any(len(part) != len(shape) for part, shape in zip(parts, known, strict=True)):
            return None
        pairs = [list(zip(part, shape, strict=True)) for part, shape in zip(parts, known, strict=True)]
        wide = {letter for pair in pairs for letter, dim in pair if dim != 1}
        if not any(dim == 1 and letter in wide for pair in pairs for letter, dim in pair):
            return None
        named = [
            "".join(next(free) if dim == 1 and letter in wide else letter for letter, dim in pair) for pair in pairs
        ]
    except (StopIteration, RuntimeError):
        return None  # all letters are taken
    return f"{','.join(named)}->{result.replace('...', ''.join(dots))}"

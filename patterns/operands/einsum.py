"""Einsum equations (https://onnx.ai/onnx/operators/onnx__Einsum.html) as letters without ellipsis."""

from __future__ import annotations

import string


def einsum_letters(equation: str, a: int, b: int) -> tuple[str, str, str] | None:
    """(left, right, out) of an equation for operands of ranks `a` and `b`; None when it is not one for two such operands."""
    text = equation.replace(" ", "")
    terms, arrow, out = text.partition("->")
    sides = terms.split(",")
    if len(sides) != 2:
        return None
    if not arrow:
        # Implicit output: the letters that occur once, in alphabetical order, behind the ellipsis.
        plain = terms.replace("...", "").replace(",", "")
        out = ("..." if "..." in terms else "") + "".join(sorted(x for x in set(plain) if plain.count(x) == 1))
    free = [x for x in string.ascii_letters if x not in text]
    ranks = [rank - len(side.replace("...", "")) for side, rank in zip(sides, (a, b), strict=True)]
    if any(extra < 0 or (extra > 0 and "..." not in side) for side, extra in zip(sides, ranks, strict=True)):
        return None
    width = max([extra for side, extra in zip(sides, ranks, strict=True) if "..." in side], default=0)
    if width > len(free) or any(t.count("...") > 1 for t in (*sides, out)) or ("..." not in out and width):
        return None
    dots = "".join(free[:width])
    left, right = (side.replace("...", dots[width - extra :]) for side, extra in zip(sides, ranks, strict=True))
    out = out.replace("...", dots)
    if not (left + right + out).isalpha() or any(out.count(x) > 1 for x in out):
        return None
    return left, right, out

"""Products of parts of the keys, of which some have keys or values that others share along a batch axis: blocks of queries that all
see the same global tokens beside the tokens of their own block (Pegasus-X's local attention).

einsum("bhnkf,bhgf->bhnkg") is einsum("bhnkf,bhngf->bhnkg") of the operand repeated along n, which is what a concatenation with keys
that do have that axis needs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from onnx_fa.match import Call, Const, Expr, Product
from onnx_fa.spec.terms import Dim

Dims = tuple[Dim | None, ...]


def align_products(parts: Sequence[Product], side: int) -> list[Product] | None:
    """The products with the letters of the one whose operand at `side` has most axes, and that operand of each with all of these
    axes, repeated along batch axes that it lacks or of which it has one. None where the products differ in anything else."""
    widest = max(parts, key=lambda p: len(p.letters[side]))
    named = [_rename(p, widest, side) for p in parts]
    placed = [_place(p, widest.letters[side], side) if p is not None else None for p in named]
    found = [p for p in placed if p is not None]
    if len(found) != len(parts):
        return None
    repeatable = [x in widest.out and x in widest.letters[1 - side] for x in widest.letters[side]]
    return [_repeat(p, found, side, repeatable) for p in found]


def _rename(part: Product, like: Product, side: int) -> Product | None:
    """The product with the letters of another one, whose output and whose operand at the other side have as many axes."""
    pairs = [(part.out, like.out), (part.letters[1 - side], like.letters[1 - side])]
    if any(len(a) != len(b) for a, b in pairs):
        return None
    names = {(a, b) for own, other in pairs for a, b in zip(own, other, strict=True)}
    to = dict(names)
    if len(to) != len(names) or len({*to.values()}) != len(names) or any(x not in to for x in part.letters[side]):
        return None
    own = "".join(to[x] for x in part.letters[side])
    other = like.letters[1 - side]
    return replace(part, letters=(own, other) if side == 0 else (other, own), out=like.out)


def _place(part: Product, letters: str, side: int) -> Product | None:
    """The product whose operand at `side` has the axes `letters`, of length 1 where it has none."""
    own, value = part.letters[side], part.operands[side]
    dims: Dims = part.shapes[side]
    kept = "".join(x for x in letters if x in own)
    missing = tuple(i for i, x in enumerate(letters) if x not in own)
    if len(kept) != len(own) or any(letters[i] not in part.out for i in missing):
        return None
    if kept != own:
        perm = tuple(own.index(x) for x in kept)
        dims = tuple(dims[i] for i in perm)
        value = Call("Transpose", (value,), (("perm", perm),), shape=dims)
    if missing:
        lengths = iter(dims)
        dims = tuple(next(lengths) if x in own else 1 for x in letters)
        value = Call("Unsqueeze", (value, Const(np.asarray(missing, np.int64))), shape=dims)
    return _with(part, side, value, dims, letters)


def _repeat(part: Product, parts: Sequence[Product], side: int, repeatable: Sequence[bool]) -> Product:
    """The product whose operand at `side` is repeated along batch axes of which it has one and another part has more."""
    pieces: list[Expr] = []
    dims = list(part.shapes[side])
    for i, dim in enumerate(part.shapes[side]):
        longer = next((p for p in parts if repeatable[i] and dim == 1 and p.shapes[side][i] not in (1, None)), None)
        if longer is None:
            pieces.append(Const(np.ones(1, np.int64)))
            continue
        dims[i] = longer.shapes[side][i]
        size = Call("Shape", (longer.operands[side],))
        pieces.append(Call("Gather", (size, Const(np.asarray([i], np.int64))), (("axis", 0),)))
    if tuple(dims) == tuple(part.shapes[side]):
        return part
    shape = Call("Concat", tuple(pieces), (("axis", 0),))
    value = Call("Expand", (part.operands[side], shape), shape=tuple(dims))
    return _with(part, side, value, tuple(dims), part.letters[side])


def _with(part: Product, side: int, value: Expr, dims: Dims, letters: str) -> Product:
    operands, shapes, named = list(part.operands), list(part.shapes), list(part.letters)
    operands[side], shapes[side], named[side] = value, dims, letters
    return replace(
        part, operands=(operands[0], operands[1]), shapes=(shapes[0], shapes[1]), letters=(named[0], named[1])
    )

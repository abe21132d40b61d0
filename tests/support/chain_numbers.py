"""Steps of a chain that make other numbers: reductions, places, products, types."""

from __future__ import annotations

import numpy as np

from tests.support.chain import KINDS, Chain, Step, Value, known, places, resized


def _count(c: Chain, x: Value) -> Value | None:
    """Added to its places along an axis."""
    axis = c.axis(x)
    rows = places(c, x, axis)
    if axis < x.rank - 1:
        rows = c.add("Unsqueeze", [rows, c.constant(list(range(1, x.rank - axis)))])
    return resized(x, c.add("Add", [x.name, c.cast(rows, x.kind)]))


def _reduce(c: Chain, x: Value) -> Value | None:
    axes = sorted(c.draw.sample(range(x.rank), c.draw.randint(1, min(2, x.rank))))
    ops = ["ReduceSum", "ReduceMax", "ReduceMin"] + (
        ["ReduceMean", "ReduceL2", "ReduceLogSumExp"] if x.kind == "f" else []
    )
    kept = c.draw.randrange(2)
    if not kept and len(axes) == x.rank:
        return None
    given = [a - x.rank if c.draw.random() < 0.3 else a for a in axes]
    made = c.add(c.draw.choice(ops), [x.name, c.constant(given)], keepdims=kept)
    dims = [known(1) if i in axes else d for i, d in enumerate(x.dims) if kept or i not in axes]
    return Value(made, x.kind, tuple(dims))


def _less_reduced(c: Chain, x: Value) -> Value | None:
    axis = c.axis(x)
    op = c.draw.choice(["ReduceMax", "ReduceSum"])
    return resized(x, c.add("Sub", [x.name, c.add(op, [x.name, c.constant([axis])])]))


def _place_of(c: Chain, x: Value) -> Value | None:
    axis = c.axis(x)
    if x.kind == "h":
        return None
    op, last = c.draw.choice(["ArgMax", "ArgMin"]), c.draw.randrange(2)
    made = c.add(op, [x.name], axis=axis, select_last_index=last)
    return Value(made, "i", (*x.dims[:axis], known(1), *x.dims[axis + 1 :]))


def _sums_so_far(c: Chain, x: Value) -> Value | None:
    if x.kind == "h":
        return None
    flags = {"exclusive": c.draw.randrange(2), "reverse": c.draw.randrange(2)}
    return resized(x, c.add("CumSum", [x.name, c.constant(c.axis(x))], **flags))


def _one_hot(c: Chain, x: Value) -> Value | None:
    if x.rank > 3:
        return None
    whole = c.add("Mod", [c.add("Abs", [c.cast(x.name, "i")]), c.constant(5)])
    axis = c.draw.choice([-1, 0])
    made = c.add("OneHot", [whole, c.constant(5), c.constant([0, 1], np.float32)], axis=axis)
    return Value(made, "f", (*x.dims, known(5)) if axis else (known(5), *x.dims))


def _cast(c: Chain, x: Value) -> Value | None:
    to = c.draw.choice([k for k in KINDS if k != x.kind])
    return Value(c.cast(x.name, to), to, x.dims)


def _is_positive(c: Chain, x: Value) -> Value | None:
    to = c.draw.choice("fiw")
    return Value(c.cast(c.add("Greater", [x.name, c.number(x, 0)]), to), to, x.dims)


def _softmax(c: Chain, x: Value) -> Value | None:
    return None if x.kind != "f" else resized(x, c.add("Softmax", [x.name], axis=c.axis(x)))


def _product(c: Chain, x: Value) -> Value | None:
    if x.kind != "f" or x.rank < 2:
        return None
    perm = [*range(x.rank - 2), x.rank - 1, x.rank - 2]
    made = c.add("MatMul", [x.name, c.add("Transpose", [x.name], perm=perm)])
    return Value(
        c.add("Clip", [made, c.constant(-9, np.float32), c.constant(9, np.float32)]), x.kind, (*x.dims[:-1], x.dims[-2])
    )


def _mod(c: Chain, x: Value) -> Value | None:
    if x.kind == "h":
        return None
    return resized(x, c.add("Mod", [x.name, c.number(x, 3)], fmod=int(x.kind == "f")))


def _outer(c: Chain, x: Value) -> Value | None:
    """Compared with itself, turned: where the sizes of two axes meet."""
    if x.rank > 3:
        return None
    a, b = (c.add("Unsqueeze", [x.name, c.constant([n])]) for n in (x.rank, x.rank - 1))
    last = x.dims[-1]
    return Value(c.cast(c.add("Equal", [a, b]), "i"), "i", (*x.dims[:-1], last, last))


def _nonzero_rows(c: Chain, x: Value) -> Value | None:
    """How many numbers are not zero, and the places of the first of them, sums of which remain. Of floats, which may be 0 but for
    their rounding, those above a number that none is likely to be."""
    counted = c.add("Greater", [x.name, c.number(x, 0.0437)]) if x.kind in "fh" else x.name
    places = c.add("NonZero", [counted])
    total = c.add("ReduceSum", [places, c.constant([1])], keepdims=0)
    return Value(total, "i", (known(x.rank),))


def _max_pool(c: Chain, x: Value) -> Value | None:
    if x.rank not in (3, 4) or x.kind != "f":
        return None
    n = x.rank - 2
    op = c.draw.choice(["MaxPool", "AveragePool"])
    made = c.add(op, [x.name], kernel_shape=[3] * n, pads=[1] * (2 * n))
    return resized(x, made)


def _einsum(c: Chain, x: Value) -> Value | None:
    if x.kind != "f" or x.rank not in (2, 3):
        return None
    equations = {
        2: ["ij,ik->jk", "ij,kj->ik", "ij,ij->i", "ij,ij->j"],
        3: ["bij,bkj->bik", "bij,bik->bjk", "bij,bij->bi", "bij,bik->ijk", "bij,bij->ji"],
    }
    equation = c.draw.choice(equations[x.rank])
    left, out = equation.split("->")
    one, two = left.split(",")
    sizes = {**dict(zip(two, x.dims, strict=True)), **dict(zip(one, x.dims, strict=True))}
    clipped = c.add(
        "Clip",
        [c.add("Einsum", [x.name, x.name], equation=equation), c.constant(-9, np.float32), c.constant(9, np.float32)],
    )
    return Value(clipped, x.kind, tuple(sizes[s] for s in out))


def _pairs(c: Chain, x: Value) -> Value | None:
    """What is reduced along the last axis, less itself along another."""
    if x.rank not in (2, 3) or x.kind == "h":
        return None
    reduced = c.add(c.draw.choice(["ReduceMax", "ReduceSum", "ReduceMin"]), [x.name, c.constant([x.rank - 1])])
    perm = [*range(x.rank - 2), x.rank - 1, x.rank - 2]
    return Value(c.add("Sub", [reduced, c.add("Transpose", [reduced], perm=perm)]), x.kind, (*x.dims[:-1], x.dims[-2]))


def _turned_product(c: Chain, x: Value) -> Value | None:
    """With all of its axes in another order on one side or both."""
    if x.kind != "f" or x.rank != 3:
        return None
    perm = c.draw.choice([[0, 2, 1], [1, 2, 0], [2, 0, 1], [2, 1, 0], [1, 0, 2]])
    turned = c.add("Transpose", [x.name], perm=perm)
    back = c.add("Transpose", [turned], perm=[0, 2, 1])
    dims = tuple(x.dims[p] for p in perm)
    operands, rows = ([turned, back], dims[1]) if c.draw.random() < 0.5 else ([back, turned], dims[2])
    made = c.add("MatMul", operands)
    return Value(
        c.add("Clip", [made, c.constant(-9, np.float32), c.constant(9, np.float32)]), x.kind, (dims[0], rows, rows)
    )


NUMBERS: tuple[Step, ...] = (
    _count,
    _reduce,
    _less_reduced,
    _place_of,
    _sums_so_far,
    _one_hot,
    _cast,
    _is_positive,
    _softmax,
    _product,
    _mod,
    _outer,
    _nonzero_rows,
    _max_pool,
    _einsum,
    _pairs,
    _turned_product,
)

"""Loops over tiles whose lanes are queries, and what is computed of a vector of queries."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from onnx_fa.kernels.mlir.text import inline_asm
from onnx_fa.kernels.mlir.vectors import Lanes
from onnx_fa.kernels.plan.score import LN2, MAX_START
from onnx_fa.spec.attention import LOWEST_STAT, EmptyRow, Stat
from onnx_fa.spec.dtypes import F32_MAX


def over_tiles(
    t: Lanes, queries: int | str, width: int, init: str, type_: str, body: Callable[[str, str, str], str]
) -> str:
    """body(row, column, tensor) for each W x W tile of BM x width; the last overlaps where W does not divide it, and
    reaches over the edge where the width is below W."""
    w = t.width
    zero, step, whole = t.index(0), t.index(w), t.index(width - width % w)

    def rows(row: str, carried: list[str]) -> list[str]:
        out = t.loop((zero, whole, step), [(carried[0], type_)], lambda d, c: [body(row, d, c[0])])
        return [body(row, t.index(max(width - w, 0)), out[0])] if width % w else out

    end = t.index(queries) if isinstance(queries, int) else queries
    return t.loop((zero, end, step), [(init, type_)], rows)[0]


def over_rows(t: Lanes, queries: int, width: int, init: str, type_: str, body: Callable[[str, str, str], str]) -> str:
    """body(d, column, tensor) for each vector of width x BM."""
    columns = (t.index(0), t.index(queries), t.index(t.width))

    def rows(d: str, carried: list[str]) -> list[str]:
        return t.loop(columns, [(carried[0], type_)], lambda column, c: [body(d, column, c[0])])

    return t.loop((t.index(0), t.index(width), t.index(1)), [(init, type_)], rows)[0]


def fma_tile(
    t: Lanes,
    product: Callable[[str, str, str], str],
    scalars: Callable[[], Sequence[Callable[[str], str]]],
    steps: str | int,
    unroll: int,
    right: str,
    right_type: str,
    inits: list[list[str]],
    first: int = 0,
) -> list[list[str]]:
    """Register tile: inits[row][j] + sum over steps k of scalars()[row](k) * right[k, vector first + j of the queries].
    `product` adds one step of a product to what there is; `scalars` is called in each turn of the loop over the steps."""
    n = len(inits[0])

    def step(k: str, acc: list[str], count: int) -> list[str]:
        acc, numbers = list(acc), scalars()
        for u in range(count):
            at = t.shifted(k, u)
            vectors = [t.read(right, right_type, at, t.index((first + j) * t.width)) for j in range(n)]
            for i, scalar in enumerate(numbers):
                b = t.broadcast(scalar(at))
                for j in range(n):
                    acc[i * n + j] = product(b, vectors[j], acc[i * n + j])
        return acc

    rest = steps % unroll if isinstance(steps, int) else 0
    end = t.index(steps - rest) if isinstance(steps, int) else steps
    carried = [(x, t.vec) for row in inits for x in row]
    out = t.loop((t.index(0), end, t.index(unroll)), carried, lambda k, acc: step(k, acc, unroll))
    if rest:
        out = step(end, out, rest)
    return [out[i * n : (i + 1) * n] for i in range(len(inits))]


def keep_in_loop(t: Lanes, index: str) -> str:
    """The same number, which the compiler takes for another one in each turn of the loop around it. What a loop reads at a number
    from outside plus 0, 1, 2, ... it else reads at sums that it keeps in registers, and then it reads all of that before it
    multiplies: more than there are registers for, so that it goes to memory and back, and attention takes 1.3 times as long."""
    number = t.let(f"arith.index_cast {index} : index to i64")
    same = t.let(f"{inline_asm('', '=r,0')} {number} : (i64) -> i64")
    return t.let(f"arith.index_cast {same} : i64 to index")


def inverse_of_sum(t: Lanes, total: str, empty_row: EmptyRow) -> str:
    """1 / l of a vector of sums, or what stands for it in rows without a key."""
    zero = t.splat(0.0)
    inverse = t.vop("arith.divf", t.splat(1.0), total)
    if empty_row == "zero":
        return t.select(t.compare("oeq", total, zero), zero, inverse)
    if empty_row == "guarded":
        return t.select(t.compare("ogt", total, zero), inverse, zero)
    return inverse


def guard_output(t: Lanes, x: str, total: str) -> str:
    """x, but zero where the sum of the probabilities is NaN."""
    return t.select(t.compare("ord", total, total), x, t.splat(0.0))


def statistic(t: Lanes, which: Stat, best: str, total: str) -> str:
    """The largest score, or the logarithm of the sum of exponentials, in natural units, or that sum; total is in units of best."""
    if which == "sum":
        return total
    x = t.vop("arith.mulf", best, t.splat(LN2))
    if which == "lse":
        x = t.vop("arith.addf", x, t.vop("math.log", total))
    # Such a number is a mask's, raised to MASK_FLOOR so that log2(e) times it was finite.
    x = t.select(t.compare("ole", x, t.splat(LOWEST_STAT * 0.999)), t.splat(-F32_MAX), x)
    infinite = t.splat(math.inf)
    x = t.select(t.compare("oeq", best, infinite), infinite, t.select(t.compare("uno", total, total), total, x))
    nothing = t.compare("ole", best, t.splat(MAX_START)), t.compare("oeq", total, t.splat(0.0))
    return t.select(t.arith("andi", *nothing, t.bvec), t.splat(-math.inf), x)


def copy_rows(
    t: Lanes, type_: str, tile: str, rows: str, width: int, numbers: Callable[[str], Callable[[str], str]], by_one: bool
) -> str:
    """The tile with numbers(row)(column) in so many rows: a scalar if `by_one`, else a vector."""
    step = 1 if by_one else t.width

    def body(i: str, carried: list[str]) -> list[str]:
        number = numbers(i)

        def put(d: str, out: str) -> str:
            if by_one:
                return t.insert(number(d), out, type_, i, d)
            return t.write(number(d), out, type_, i, d)

        bounds = (t.index(0), t.index(width - width % step), t.index(step))
        out = t.loop(bounds, [(carried[0], type_)], lambda d, c: [put(d, c[0])])
        return [put(t.index(width - step), out[0])] if width % step else out

    return t.loop((t.index(0), rows, t.index(1)), [(tile, type_)], body)[0]

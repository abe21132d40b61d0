"""What counts as a product, with a letter for every axis, and products in parts along the keys."""

from __future__ import annotations

import numpy as np
import pytest

from onnx_fa.match.types import Nothing, Product, Scale
from onnx_fa.patterns.operands import cache, product
from onnx_fa.patterns.operands.einsum import einsum_letters
from tests.support.text_graphs import Constant, TextGraph, name_of

INPUTS = (
    "float[2,3,6,4] q, float[2,3,4,8] kt, float[2,3,8,4] k, float[4,8] w, "
    "float[6,4] a, float[8,4] b, float[8] bias, float[n] vector, "
    "float[2,3,1,4] unit, float[2,3,m,4] some, "
    "float[2,4,n,m] map, float[5,4,1,1] taps, float[6,2,1,1] halves, float[5,4,1,2] pairs, float[5] five"
)


def describe(found: Product | None) -> str | None:
    if found is None:
        return None
    factor = f" * {found.factor:g}" if found.factor != 1 else ""
    return f"{','.join(map(name_of, found.operands))}: {found.letters[0]},{found.letters[1]}->{found.out}{factor}"


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("y = MatMul(q, kt)", "q,kt: ABmk,ABkn->ABmn"),
        ("y = MatMul(q, w)", "q,w: ABmk,kn->ABmn"),
        ("y = Gemm <transB = 1, alpha = 0.5> (a, b)", "a,b: mk,nk->mn * 0.5"),
        ("y = Gemm(a, w, zeros)", "a,w: mk,kn->mn"),
        ("y = Gemm <beta = 0.0> (a, w, bias)", "a,w: mk,kn->mn"),
        ("y = com.microsoft.FusedMatMul <transB = 1, alpha = 2.0> (q, k)", "q,k: ABmk,ABnk->ABmn * 2"),
        ('y = Einsum <equation = "bhid,bhjd->bhij"> (q, k)', "q,k: bhid,bhjd->bhij"),
        ('y = Einsum <equation = "...id,...jd->...ij"> (q, k)', "q,k: abid,abjd->abij"),
        ("y = Gemm(a, w, bias)", None),
        ("y = com.microsoft.FusedMatMul <transBatchA = 1> (q, k)", None),
        ('y = Einsum <equation = "bhid,bhjd->bhijd"> (q, k)', "q,k: bhid,bhjd->bhijd"),
        ('y = Einsum <equation = "bhid,bhjk->bhij"> (q, k)', None),
        ('y = Einsum <equation = "bhid,bhjd->bhij"> (q, unit)', "q,unit: bhid,bhjd->bhij"),
        ('y = Einsum <equation = "bhid,bhjd->bhij"> (unit, unit)', "unit,unit: bhid,bhjd->bhij"),
        ("y = Add(q, q)", None),
        ("y = MatMul(vector, b)", None),
        ("y = my.MatMul(q, kt)", None),
        ("y = Conv(map, taps)", "Reshape(taps, [5,4]),map: mk,AkBC->AmBC"),
        (
            "y = Conv <pads = [0, 0, 0, 0], strides = [1, 1], dilations = [3, 3]> (map, taps)",
            "Reshape(taps, [5,4]),map: mk,AkBC->AmBC",
        ),
        ("y = Conv <strides = [1, 2]> (map, taps)", None),
        ("y = Conv <pads = [0, 1, 0, 0]> (map, taps)", None),
        ("y = Conv <group = 2> (map, halves)", None),
        ("y = Conv(map, pairs)", None),
        ("y = Conv(map, taps, five)", None),
        ("p = Softmax <axis = 1> (map) y = Conv(p, taps)", None),
    ],
)
def test_product(body: str, said: str | None) -> None:
    constants: dict[str, Constant] = {"zeros": [0.0] * 8} if "zeros" in body else {}
    graph = TextGraph(INPUTS, body, outputs="y", **constants)
    assert describe(product.read_product(graph.view, graph.value("y"))) == said


@pytest.mark.parametrize(
    ("equation", "ranks", "letters"),
    [
        ("ij,jk->ik", (2, 2), ("ij", "jk", "ik")),
        ("ij,jk", (2, 2), ("ij", "jk", "ik")),
        (" i j , j k -> i k ", (2, 2), ("ij", "jk", "ik")),
        ("...ij,...jk->...ik", (4, 3), ("abij", "bjk", "abik")),
        ("...ij,jk", (3, 2), ("aij", "jk", "aik")),
        ("ij,jk->ik", (3, 2), None),
        ("ij->ji", (2, 2), None),
        ("...ij,...jk->ik", (3, 3), None),
        ("ij,jk->ii", (2, 2), None),
        ("i1,1k->ik", (2, 2), None),
    ],
)
def test_einsum_equations(equation: str, ranks: tuple[int, int], letters: tuple[str, str, str] | None) -> None:
    assert einsum_letters(equation, *ranks) == letters


PARTS = (
    "float[2,3,6,4] q, float[2,3,4,8] k1, float[2,3,4,m] k2, float[2,3,6,4] other, float[2,5,4,8] k5, float[2,4,9] shared, "
    "float[2,1,4,9] unit, float[2,2,4,4] square, float[2,2,4,4] rows"
)
SHARED = 'a = Einsum <equation = "bhid,bdj->bhij"> (q, shared) '
SQUARE = 'a = Einsum <equation = "bhid,bhjd->bhij"> (square, rows) b = Einsum <equation = "{}"> (square, rows) '
REPEATED = "Concat([1], Gather(Shape(k2), [1], axis=0), [1], [1], axis=0)"


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (
            "a = MatMul(q, k1) b = MatMul(q, k2) y = Concat <axis = 3> (a, b)",
            "q,Concat(k1, k2, axis=3): ABmk,ABkn->ABmn",
        ),
        (
            "a = MatMul(q, k1) b = MatMul(q, k2) y = Concat <axis = -1> (a, b)",
            "q,Concat(k1, k2, axis=3): ABmk,ABkn->ABmn",
        ),
        ("a = MatMul(q, k1) b = MatMul(other, k2) y = Concat <axis = 3> (a, b)", None),
        ("a = MatMul(q, k1) y = Concat <axis = 2> (a, a)", "Concat(q, q, axis=2),k1: ABmk,ABkn->ABmn"),
        ("a = MatMul(q, k1) y = Concat <axis = 1> (a, a)", None),
        ("a = MatMul(q, k1) b = Neg(a) y = Concat <axis = 3> (a, b)", None),
        ("a = MatMul(q, k1) y = Identity(a)", None),
        (
            SHARED + "b = MatMul(q, k2) y = Concat <axis = 3> (a, b)",
            f"q,Concat(Expand(Unsqueeze(shared, [1]), {REPEATED}), k2, axis=3): ABmk,ABkn->ABmn",
        ),
        (
            "a = MatMul(q, unit) b = MatMul(q, k2) y = Concat <axis = 3> (a, b)",
            f"q,Concat(Expand(unit, {REPEATED}), k2, axis=3): ABmk,ABkn->ABmn",
        ),
        (
            SQUARE.format("xyim,xyjm->xyij") + "y = Concat <axis = 3> (a, b)",
            "square,Concat(rows, rows, axis=2): bhid,bhjd->bhij",
        ),
        (SQUARE.format("hbid,bhjd->bhij") + "y = Concat <axis = 3> (a, b)", None),
        (
            SQUARE.format("bhid,hbjd->bhij") + "y = Concat <axis = 3> (a, b)",
            "square,Concat(rows, Transpose(rows, perm=(1,0,2,3)), axis=2): bhid,bhjd->bhij",
        ),
    ],
)
def test_scores_in_parts(body: str, said: str | None) -> None:
    graph = TextGraph(PARTS, body, outputs="y")

    def read(value: object) -> list[tuple[tuple[Nothing | Scale, ...], Product]]:
        found = product.read_product(graph.view, value)  # type: ignore[arg-type]
        return [((Scale(0.5), Nothing()), found)] if found is not None else []

    joined = cache.join_scores(graph.view, graph.value("y"), read)  # type: ignore[arg-type]
    assert (None if joined is None else describe(joined[1])) == said
    assert joined is None or joined[0][0] == Scale(0.5)


CUT = "float[2,3,6,9] p, float[2,3,4,5] v1, float[2,3,5,5] v2"
SLICED = "a = Slice(p, zero, four, last) b = Slice(p, four, end, last) "


@pytest.mark.parametrize(
    ("body", "joins"),
    [
        ("a, b = Split <axis = -1> (p, sizes) c = MatMul(a, v1) d = MatMul(b, v2) y = Add(c, d)", True),
        (SLICED + "c = MatMul(a, v1) d = MatMul(b, v2) y = Add(d, c)", True),
        (SLICED + "c = MatMul(a, v1) d = MatMul(b, v2) y = Sub(c, d)", False),
        (SLICED + "c = MatMul(a, v1) d = MatMul(b, v2) e = Neg(c) y = Add(e, d)", False),
        (
            "a = Slice(p, zero, four, last) b = Slice(p, minus, end, last) c = MatMul(a, v1) d = MatMul(b, v1) y = Add(c, d)",
            False,
        ),
        ("y = MatMul(p, whole)", False),
    ],
)
def test_probabilities_in_parts(body: str, joins: bool) -> None:
    numbers: dict[str, Constant] = {
        "zero": [0],
        "four": [4],
        "end": [1 << 62],
        "last": [-1],
        "sizes": [4, 5],
        "minus": [-4],
    }
    numbers = {n: v for n, v in numbers.items() if n in body} | {"whole": np.zeros((9, 5), np.float32)}
    graph = TextGraph(CUT, body, outputs="y", **numbers)
    p = graph.value("p")
    joined = cache.join_values(graph.view, p, graph.view.users(p), product.read_product)
    assert describe(joined) == ("p,Concat(v1, v2, axis=2): ABmk,ABkn->ABmn" if joins else None)
    assert joined is None or joined.output is graph.value("y")

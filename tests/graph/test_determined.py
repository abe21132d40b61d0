"""Free dims that can have only one size."""

from __future__ import annotations

import pytest

from onnx_fa.graph.determined import determined_sizes
from onnx_fa.graph.io import load
from tests.support import tiny_decoders
from tests.support.text_graphs import TextGraph


@pytest.mark.parametrize(
    ("inputs", "body", "sizes"),
    [
        ("float[B,S,K] x, float[16,5] w", "y = MatMul(x, w)", {"K": 16}),
        ("float[B,S,K] x, float[K,5] w", "y = MatMul(x, w)", {}),
        ("float[K,S] x, float[5,16] w", "y = Gemm <transA = 1, transB = 1> (x, w)", {"K": 16}),
        ("float[B,C,H,W] x, float[8,3,2,2] w", "y = Conv <group = 4> (x, w)", {"C": 12}),
        ("float[B,4,P,D] past, float[B,4,S,16] new", "y = Concat <axis = -2> (past, new)", {"D": 16}),
        ("float[B,4,P,D] past, float[B,4,S,16] new", "y = Concat <axis = 3> (past, new)", {}),
        ("float[S,K] x, float[S,K] w", "y = Add(x, w)", {}),
        ("float[S,K] x, float[1,16] w", "y = Add(x, w)", {"K": 16}),
        ("bool[S,1] b, float[S,K] x, float[16] w", "y = Where(b, x, w)", {"K": 16}),
        ("float[S,K] x, float[16,5] v, float[8,5] w", "a = MatMul(x, v) b = MatMul(x, w) y = Add(a, b)", {}),
    ],
)
def test_determined_sizes(inputs: str, body: str, sizes: dict[str, int]) -> None:
    assert determined_sizes(TextGraph(inputs, body, outputs="y").model) == sizes


@pytest.mark.parametrize(("kind", "heads"), [("grouped", 2), ("multi_head", 2), ("attention", 2), ("concat", 2)])
def test_sizes_of_caches(kind: str, heads: int) -> None:
    """The heads and the head dim that the new keys have."""
    model = tiny_decoders.IN_PLACE[kind]()
    for value in model.graph.input:
        if value.name.startswith("past"):
            value.type.tensor_type.shape.dim[1].dim_param = "heads"
            value.type.tensor_type.shape.dim[3].dim_param = "width"
    found = determined_sizes(load(model))
    assert (found.get("heads"), found.get("width")) == (heads, tiny_decoders.D)

"""Chains drawn at random of operators that move, pick, count and join numbers of tensors whose sizes only the run knows, with
numbers of several types in between."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx import helper as h

from tests.support.chain import KINDS, RUNS, Chain, Value, known
from tests.support.chain_layers import LAYERS
from tests.support.chain_moves import MOVES
from tests.support.chain_numbers import NUMBERS

_MOST = 40_000
"""Numbers of a tensor."""
_SHAPES = (["a", "b"], ["a", "b", 4], ["a", 2, "b"], ["b", "a", "c"], ["a", "c", "b", 4], ["a", 4, "b", "c"])
_OF_LAYERS = (["a", "b", 4], ["a", 4, "b"], ["a", 2, "b", "c"], ["a", 8, "b", "b"], [1, 4, "a", "b"], ["a", 3, 8, 8])


def draw_chain(seed: int, *, layers: bool = False) -> tuple[onnx.ModelProto, list[dict[str, np.ndarray[Any, Any]]]]:
    """A model of one input and one output, and what it is run on in turns; `layers`: most of its steps are layers of networks."""
    c = Chain(seed)
    free = {name: tuple(run[name] for run in RUNS) for name in RUNS[0]}
    of_layers = layers and c.draw.random() < 0.7
    names = c.draw.choice(_OF_LAYERS if of_layers else _SHAPES)
    x = Value(
        "x",
        "f" if of_layers else c.draw.choice("ffiw"),
        tuple(free[n] if isinstance(n, str) else known(n) for n in names),
    )
    first = x
    for _ in range(c.draw.randint(2, 5)):
        step = c.draw.choice(LAYERS if layers and c.draw.random() < 0.6 else (*MOVES, *NUMBERS))
        before = len(c.nodes), len(c.constants)
        y = step(c, x)
        if y is None or y.rank == 0 or max(np.prod([d[i] for d in y.dims]) for i in range(len(RUNS))) > _MOST:
            del c.nodes[before[0] :], c.constants[before[1] :]
            continue
        x = y
    if not c.nodes:
        x = Value(c.add("Identity", [x.name]), x.kind, x.dims)
    inputs = [h.make_tensor_value_info("x", KINDS[first.kind], names)]
    output = h.make_tensor_value_info(x.name, KINDS[x.kind], [f"d{i}" for i in range(x.rank)])
    model = h.make_model(
        h.make_graph(c.nodes, "chain", inputs, [output], c.constants),
        opset_imports=[h.make_opsetid("", 18)],
        ir_version=9,
    )
    rng = np.random.default_rng(seed)
    dtype = h.tensor_dtype_to_np_dtype(KINDS[first.kind])
    feeds = [{"x": rng.integers(-4, 5, [d[i] for d in first.dims]).astype(dtype)} for i in range(len(RUNS))]
    return model, feeds

"""Chains drawn at random of operators that move, pick, count and join numbers of tensors whose sizes only the run knows, with
numbers of several types in between."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper as h

from tests.support.chain import KINDS, RUNS, Chain, Value, known, resized
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
    return _model(c, first, names, [x]), _feeds(seed, first)


def draw_graph(seed: int) -> tuple[onnx.ModelProto, list[dict[str, np.ndarray[Any, Any]]]]:
    """A model of one input and several outputs: its steps begin with any value before, fills of the input's sizes and constants
    among them, and some join two."""
    c = Chain(seed)
    free = {name: tuple(run[name] for run in RUNS) for name in RUNS[0]}
    names = c.draw.choice((*_SHAPES, *_OF_LAYERS))
    x = Value("x", c.draw.choice("ffiw"), tuple(free[n] if isinstance(n, str) else known(n) for n in names))
    values = [x, *_without_numbers(c, x)]
    for _ in range(c.draw.randint(3, 8)):
        from_any, kind = c.draw.random() < 0.3, c.draw.random()
        source = c.draw.choice(values if from_any else values[-2:])
        before = len(c.nodes), len(c.constants)
        y = (
            _join(c, source, values)
            if kind < 0.3
            else c.draw.choice(LAYERS if kind < 0.5 else (*MOVES, *NUMBERS))(c, source)
        )
        if y is None or y.rank == 0 or max(np.prod([d[i] for d in y.dims]) for i in range(len(RUNS))) > _MOST:
            del c.nodes[before[0] :], c.constants[before[1] :]
            continue
        values.append(y)
    made = {name for node in c.nodes for name in node.output}
    read = {name for node in c.nodes for name in node.input}
    results = [v for v in values if v.name in made and (v.name not in read or c.draw.random() < 0.3)]
    if not results:
        results = [Value(c.add("Identity", [x.name]), x.kind, x.dims)]
    return _model(c, x, names, results), _feeds(seed, x)


def _without_numbers(c: Chain, x: Value) -> list[Value]:
    """What no number of the run decides: of the input's sizes, and of known ones."""
    found = []
    if c.draw.random() < 0.5:
        number = onnx.numpy_helper.from_array(np.array([c.draw.randint(-2, 3)], np.float32))
        found.append(Value(c.add("ConstantOfShape", [c.add("Shape", [x.name])], value=number), "f", x.dims))
    if c.draw.random() < 0.3:
        number = c.number(x, c.draw.randint(-2, 3))
        found.append(Value(c.add("Expand", [number, c.add("Shape", [x.name])]), x.kind, x.dims))
    if c.draw.random() < 0.5:
        shape = c.draw.choice(((1,), (1, 1), (3, 4), (2, 1, 5)))
        numbers = np.arange(np.prod(shape)).reshape(shape) - 2 if c.draw.random() < 0.5 else np.full(shape, 3)
        kind = c.draw.choice("fi")
        name = c.constant(numbers, np.float32 if kind == "f" else np.int64)
        found.append(Value(c.add("Identity", [name]), kind, tuple(known(n) for n in shape)))
    return found


def _join(c: Chain, x: Value, values: list[Value]) -> Value | None:
    """With another value of the same sizes, or that differs along one axis."""
    others = [v for v in values if v.kind == x.kind and v.rank == x.rank and v is not x]
    same = [v for v in others if v.dims == x.dims]
    if same and c.draw.random() < 0.6:
        other = c.draw.choice(same)
        if c.draw.random() < 0.3:
            return Value(c.add("Where", [c.add("Less", [x.name, other.name]), other.name, x.name]), x.kind, x.dims)
        return Value(c.add(c.draw.choice(("Add", "Sub", "Mul", "Max")), [x.name, other.name]), x.kind, x.dims)
    fitting = [
        (v, i) for v in others for i in range(x.rank) if all(v.dims[j] == x.dims[j] for j in range(x.rank) if j != i)
    ]
    if not fitting:
        return None
    other, axis = c.draw.choice(fitting)
    sizes = tuple(a + b for a, b in zip(x.dims[axis], other.dims[axis], strict=True))
    return resized(x, c.add("Concat", [x.name, other.name], axis=axis), axis, sizes)


def _model(c: Chain, first: Value, names: Sequence[str | int], results: list[Value]) -> onnx.ModelProto:
    inputs = [h.make_tensor_value_info("x", KINDS[first.kind], names)]
    outputs = [
        h.make_tensor_value_info(x.name, KINDS[x.kind], [f"{x.name}_{i}" for i in range(x.rank)]) for x in results
    ]
    return h.make_model(
        h.make_graph(c.nodes, "chain", inputs, outputs, c.constants),
        opset_imports=[h.make_opsetid("", 18)],
        ir_version=9,
    )


def _feeds(seed: int, first: Value) -> list[dict[str, np.ndarray[Any, Any]]]:
    rng = np.random.default_rng(seed)
    dtype = h.tensor_dtype_to_np_dtype(KINDS[first.kind])
    return [{"x": rng.integers(-4, 5, [d[i] for d in first.dims]).astype(dtype)} for i in range(len(RUNS))]

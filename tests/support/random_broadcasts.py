"""Two ops that broadcast, one behind the other, along axes that are numbers, named or unnamed, and in a run of one size or 1."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import helper

OPS = ("Add", "Mul", "Max", "Sum", "Where", "Less", "Pow", "MatMul", "Einsum")


def draw_broadcast(seed: int) -> tuple[onnx.ModelProto, dict[str, np.ndarray], bool]:
    """A model, what it is run on, and whether a free dim of it is 1 there where another size is not."""
    rng = np.random.default_rng(seed)
    sizes = [int(n) for n in rng.integers(2, 6, 4)]
    inputs, feeds, odd = [], {}, False
    names: dict[tuple[int, int], str] = {}

    def operand(name: str, axes: list[int], rank: int) -> str:
        """An input along these places of `sizes`; those in front of the last `rank` may be left out."""
        nonlocal odd
        axes = axes[int(rng.integers(0, len(axes) - rank + 1)) :]
        dims, lengths = list[int | str | None](), []
        for place, axis in enumerate(axes):
            may_be_one = place < len(axes) - rank
            kind, one = rng.choice(["number", "name", "none"], p=[0.3, 0.5, 0.2]), may_be_one and rng.random() < 0.25
            length = 1 if one else sizes[axis]
            lengths.append(length)
            odd |= bool(one) and kind != "number"
            named = names.setdefault((axis, length), f"{'one' if one else 'd'}{axis}")
            dims.append({"number": length, "name": named, "none": None}[str(kind)])
        inputs.append(helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, dims))
        feeds[name] = np.asarray(np.abs(rng.standard_normal(lengths)), np.float32)
        return name

    def op(kind: str, first: str, number: int, out: str) -> list[onnx.NodeProto]:
        if kind in ("MatMul", "Einsum"):
            # Its rows are of axis 3, as the columns are: what follows broadcasts as before.
            second = operand(f"b{number}", [0, 1, 3, 3], 2)
            if kind == "Einsum" and first == "a" and feeds[first].ndim == feeds[second].ndim == 4:
                return [helper.make_node("Einsum", [first, second], [out], equation="bhij,bhjk->bhik")]
            return [helper.make_node("MatMul", [first, second], [out])]
        second = operand(f"b{number}", [0, 1, 2, 3], 0)
        if kind in ("Less", "Where"):
            less = [helper.make_node("Less", [first, second], [f"less{number}"])]
            if kind == "Less":
                return [*less, helper.make_node("Cast", [f"less{number}"], [out], to=1)]
            return [
                *less,
                helper.make_node("Where", [f"less{number}", first, operand(f"c{number}", [0, 1, 2, 3], 0)], [out]),
            ]
        return [helper.make_node(kind, [first, second], [out])]

    kinds = rng.choice(OPS, 2)
    start = operand("a", [0, 1, 2, 3], 2)
    nodes = [*op(kinds[0], start, 0, "h"), *op(kinds[1], "h", 1, "y")]
    graph = helper.make_graph(
        nodes, "broadcasts", inputs, [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, None)]
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9), feeds, odd

"""How far two correct computations of a model that quantises at run time lie apart.

What is rounded is computed in f32, by whoever runs the model in an order of its own: a norm, a convolution or an activation in
front of a QuantizeLinear may differ in its last bits, and a number that lies near a tie then becomes another whole step. The
original with noise of a few units in the last place in front of every rounding says what that does to its outputs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx_ir as ir

from onnx_fa.graph.builder import OnnxBuilder, names_in
from onnx_fa.graph.normalise import infer_shapes
from onnx_fa.graph.ops import op_of
from onnx_fa.graph.view import default_opset
from onnx_fa.verifier.comparisons import Check, compare_outputs
from onnx_fa.verifier.inputs import Array
from onnx_fa.verifier.rounded_activations import SPREAD
from onnx_fa.verifier.runners import Runner

FELL = "roundings fall on other sides, as they do where f32's last bits in front of them differ"
DRAWS = 3
NOISE = 2.0**-21
"""Four units in the last place: what norms, activations and short sums differ by."""
MOST = 0.05
"""Of the largest number of an output. Where what is rounded was rounded before, exact ties are many, and noise moves all of them,
which no runtime does: more than that it does not excuse."""
_ROUNDS = ("QuantizeLinear", "DynamicQuantizeLinear")
_LEAST_OPSET = 10
"""IsInf is an op of opset 10, as QuantizeLinear is."""


def outputs_apart(
    model: ir.Model, arrays: Mapping[str, Array], want: Mapping[str, Array], folder: Path
) -> dict[str, float]:
    """By output of `model`: the largest of the differences from `want`, what the model makes of `arrays`, with DRAWS draws of
    noise, and MOST at the most. 0 where nothing is rounded. `folder` is for files. Raises RunError where the model does not run
    so."""
    apart = dict.fromkeys(want, 0.0)
    for seed in range(DRAWS):
        noisy = with_noise(model, seed)
        if noisy is None:
            break
        got = Runner(noisy, folder / f"noise_{seed}.onnx")(arrays)
        for name, exact in want.items():
            error = compare_outputs("", "", "", got[name], exact, 0.0).error
            if error is not None and np.isfinite(error):
                apart[name] = max(apart[name], min(error, MOST))
    return apart


def judge_noise(found: Check, apart: float) -> Check:
    """`found` is the check of a compiled model's output, which noise moves by `apart`. That check where it is ok or noise does not
    explain it, else one that is held to SPREAD times that beside the tolerance."""
    if found.ok or found.allowed is None or found.error is None or not found.error <= found.allowed + SPREAD * apart:
        return found
    return replace(found, allowed=found.allowed + SPREAD * apart, ok=True, note=FELL)


def with_noise(model: ir.Model, seed: int) -> ir.Model | None:
    """A copy in which normal noise is added to what is rounded in the main graph: NOISE times the mean magnitude of the tensor.
    None where there is no such rounding of f32 that is computed."""
    if default_opset(model) < _LEAST_OPSET:
        return None
    noisy = model.clone()
    infer_shapes(noisy)
    names, consts, graph = names_in(noisy), dict[tuple[str, ...], ir.Value](), noisy.graph
    rounding = [node for node in graph if op_of(node) in _ROUNDS and _is_computed(node.inputs[0])]
    for number, node in enumerate(rounding):
        x = node.inputs[0]
        b = OnnxBuilder(graph, default_opset(model), f"{node.name or node.op_type}/noise", names, consts)
        size = b.op("ReduceMean", b.op("Abs", x), keepdims=0)
        unknown = b.op("Or", b.op("IsInf", size), b.op("IsNaN", size))
        scale = b.op("Where", unknown, b.const(np.zeros((), np.float32)), size)
        scale = b.op("Mul", scale, b.const(np.asarray(NOISE, np.float32)))
        drawn = b.op("RandomNormalLike", x, seed=float(len(rounding) * seed + number + 1))
        noise = b.op("Mul", drawn, scale)
        node.replace_input_with(0, b.op("Add", x, noise))
        graph.insert_before(node, b.nodes)
    return noisy if rounding else None


def _is_computed(value: ir.Value | None) -> bool:
    """Whether a value is in f32 and no constant."""
    return value is not None and value.const_value is None and value.dtype == ir.DataType.FLOAT

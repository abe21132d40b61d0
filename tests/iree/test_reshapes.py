"""Random Reshapes of free dims to constant targets, which IREE takes for others than they are (docs/developer/iree-bugs.md)."""

from __future__ import annotations

import math
import random
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto as T
from onnx import helper as h

from onnx_fa.iree.compile import compile_model
from onnx_fa.iree.run import load_module
from onnx_fa.spec.target import parse_target
from tests.support.ort_run import assert_same, run

SIZES = {"b": 2, "s": 5, "t": 3}
Dims = list[int | str]


def drawn(r: random.Random) -> tuple[Dims, list[int]] | None:
    """Dims, and a target that merges neighbours, splits static ones, and has a -1 for one group of free ones; None where a second
    group would want one."""
    names = list(SIZES)
    r.shuffle(names)
    dims: Dims = [*names[: r.choice([1, 2, 2, 2, 3])]]
    for _ in range(r.choice([1, 1, 2])):
        dims.insert(r.randint(0, len(dims)), r.choice([2, 4, 6, 8]))
    target: list[int] = []
    at = 0
    while at < len(dims):
        group = dims[at : at + r.choice([1, 1, 2, 2, 3])]
        static = math.prod(d for d in group if isinstance(d, int))
        if all(isinstance(d, int) for d in group):
            part = r.choice([k for k in (1, 2, static) if static % k == 0])
            target += [static] if part in (1, static) else [part, static // part]
        elif len(group) == 1 and len(target) == at and r.random() < 0.5:
            target.append(0)
        elif -1 not in target:
            part = r.choice([k for k in (1, 2, 4) if static % k == 0])
            target += [-1] if part == 1 else r.choice([[-1, part], [part, -1]])
        else:
            return None
        at += len(group)
    splits_first = (
        isinstance(dims[0], str) and target[0] > 0
    )  # which IREE refuses at run time; without a 0 it is written around
    return None if splits_first and 0 in target else (dims, target)


@pytest.mark.parametrize("seed", range(2))
def test_random_reshapes(seed: int, tmp_path: Path) -> None:
    r = random.Random(seed)
    cases = [case for case in (drawn(r) for _ in range(40)) if case is not None]
    nodes, inputs, outputs, targets, arrays = [], [], [], [], {}
    for i, (dims, target) in enumerate(cases):
        shape = [SIZES.get(d, 0) if isinstance(d, str) else d for d in dims]
        arrays[f"x{i}"] = np.random.default_rng(i).standard_normal(shape).astype(np.float32)
        made = arrays[f"x{i}"].reshape([shape[j] if d == 0 else d for j, d in enumerate(target)])
        inputs.append(h.make_tensor_value_info(f"x{i}", T.FLOAT, dims))
        outputs.append(h.make_tensor_value_info(f"y{i}", T.FLOAT, [f"y{i}_{j}" for j in range(made.ndim)]))
        targets.append(h.make_tensor(f"t{i}", T.INT64, [len(target)], target))
        zeros = {"allowzero": 1} if 0 not in target and r.random() < 0.5 else {}
        nodes += [
            h.make_node("Reshape", [f"x{i}", f"t{i}"], [f"r{i}"], f"r{i}", **zeros),
            h.make_node("Mul", [f"r{i}", f"r{i}"], [f"y{i}"]),
        ]
    graph = h.make_graph(nodes, "main_graph", inputs, outputs, targets)
    model = h.make_model(graph, opset_imports=[h.make_opsetid("", 18)], ir_version=9)
    onnx.checker.check_model(model)
    compile_model(model, tmp_path / "m.vmfb", parse_target("cpu-host"))
    assert_same(run(model, arrays), load_module(tmp_path / "m.vmfb")(*arrays.values()))

"""The Attention node tests that the onnx package carries: models with inputs, expected outputs and tolerances."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
from onnx.backend.test.runner import Runner

from onnx_fa.forms.rewrite import rewrite
from onnx_fa.iree.compile import compile_model
from onnx_fa.iree.run import load_module
from tests.support.ort_run import session

Array = np.ndarray
BFLOAT16 = np.dtype(ml_dtypes.bfloat16)


@dataclass(frozen=True)
class NodeCase:
    """One test of the onnx package: `want` are the outputs for `inputs`, within `rtol` and `atol`."""

    name: str
    model: onnx.ModelProto
    inputs: dict[str, Array]
    want: tuple[Array, ...]
    rtol: float
    atol: float

    def check(self, have: list[Array]) -> None:
        """Raises AssertionError unless the onnx package's own test runner would let `have` pass."""
        Runner.assert_similar_outputs(self.want, have, self.rtol, self.atol)


@cache
def cases(*, expanded: bool = False) -> dict[str, NodeCase]:
    """By name, without the prefix "test_". `expanded` are the variants that spell the op's function body out."""
    from onnx.backend.test.case import node

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        # A module of cases appends its own when it is imported. onnx's collect_testcases imports those of every op, and so computes
        # what they expect, which takes ten times as long.
        importlib.import_module(f"{node.__name__}.attention")
    result = {}
    for case in node._NodeTestCases:
        if "_expanded" in case.name and not expanded:
            continue
        (inputs, outputs), *_ = case.data_sets
        names = [i.name for i in case.model.graph.input]
        feeds = {n: np.asarray(x) for n, x in zip(names, inputs, strict=True)}
        name = case.name.removeprefix("test_")
        result[name] = NodeCase(name, case.model, feeds, tuple(np.asarray(x) for x in outputs), case.rtol, case.atol)
    return result


def run_rewritten(case: NodeCase) -> list[Array]:
    """The decomposed form in onnxruntime. Raises AssertionError when the op is still there."""
    model, report = rewrite(case.model)
    assert not report.misses, report.misses
    assert not any(n.op_type == "Attention" for n in model.graph.node)
    onnx.checker.check_model(model, full_check=True)
    return run_ort(model, case.inputs)


def run_ort(model: onnx.ModelProto, inputs: dict[str, Array]) -> list[Array]:
    """Results of onnxruntime on the CPU. bfloat16 values, which do not travel to NumPy, are cast to f32 at the model's ends."""
    model, back = _without_bfloat16(model)
    made = session(model)
    feeds = {n: x.astype(np.float32) if x.dtype == BFLOAT16 else x for n, x in inputs.items()}
    known = {i.name for i in made.get_inputs()}
    results = made.run(None, {n: x for n, x in feeds.items() if n in known})
    return [r.astype(BFLOAT16) if b else r for r, b in zip(results, back, strict=True)]


def _without_bfloat16(model: onnx.ModelProto) -> tuple[onnx.ModelProto, list[bool]]:
    new = onnx.ModelProto()
    new.CopyFrom(model)
    half, full = onnx.TensorProto.BFLOAT16, onnx.TensorProto.FLOAT
    before, after = [], []
    renamed = {}
    for value in new.graph.input:
        if value.type.tensor_type.elem_type == half:
            renamed[value.name] = f"{value.name}/bf16"
            before.append(onnx.helper.make_node("Cast", [value.name], [f"{value.name}/bf16"], to=half))
            value.type.tensor_type.elem_type = full
    back = []
    for value in new.graph.output:
        back.append(value.type.tensor_type.elem_type == half)
        if back[-1]:
            renamed[value.name] = f"{value.name}/bf16"
            after.append(onnx.helper.make_node("Cast", [f"{value.name}/bf16"], [value.name], to=full))
            value.type.tensor_type.elem_type = full
    for node in new.graph.node:
        for names in (node.input, node.output):
            names[:] = [renamed.get(n, n) for n in names]
    nodes = [*before, *new.graph.node, *after]
    nodes = [onnx.NodeProto.FromString(n.SerializeToString()) for n in nodes]
    del new.graph.node[:]
    del new.graph.value_info[:]
    new.graph.node.extend(nodes)
    return new, back


TOGETHER = ("--mlir-disable-threading", "--iree-opt-data-tiling=false")
"""Flags for cases that are compiled side by side: no threads that wait for each other, and no matmuls in packed layout, which the
compiler refuses beside some of them, so that all would be compiled twice."""


def run_compiled(case: NodeCase, folder: Path) -> tuple[list[Array], str]:
    """The model compiled for this machine and run: (its results, "fused" or why a site is not)."""
    return run_side_by_side([case], folder, ())[case.name]


def run_side_by_side(
    cases: Sequence[NodeCase], folder: Path, flags: Sequence[str] = TOGETHER
) -> dict[str, tuple[list[Array], str]]:
    """As `run_compiled`, by name, for models of one opset that are made one: starting a compiler costs as much as a kernel."""
    whole = onnx.ModelProto()
    whole.CopyFrom(cases[0].model)
    whole.ClearField("graph")
    for case in cases:
        graph = onnx.compose.add_prefix(case.model, f"{case.name}/").graph
        for node in graph.node:
            node.name = case.name
        whole.graph.MergeFrom(graph)
    whole.graph.name = "cases"
    output = folder / f"{cases[0].name}.vmfb"
    report = compile_model(whole, output, flags=flags, timeout_s=300, memory_bytes=8 << 30)
    results = load_module(output)(*(x for case in cases for x in case.inputs.values()))
    of = [o.name.partition("/")[0] for o in whole.graph.output]
    states = [(s.name, "fused" if s.fused else "not one dispatch") for s in report.sites]
    states += [(m.node, m.reason) for m in report.misses]
    return {
        case.name: (
            [x for name, x in zip(of, results, strict=True) if name == case.name],
            "; ".join(state for name, state in states if name == case.name),
        )
        for case in cases
    }

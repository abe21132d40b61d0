"""Chains of operators over free sizes, drawn at random, give what onnxruntime gives. By hand as many as one likes."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import onnx
import pytest

from onnx_fa.errors import CompileError, ModelError
from onnx_fa.iree.compile import compile_model
from onnx_fa.iree.run import load_module
from onnx_fa.spec.target import parse_target
from tests.support.ort_run import run
from tests.support.random_chains import draw_chain, draw_graph

COUNT, FIRST = int(os.environ.get("ONNX_FA_CHAINS", "0")), int(os.environ.get("ONNX_FA_SEED", "0"))
SEEDS = range(FIRST, FIRST + COUNT) if COUNT else range(4)


@pytest.mark.parametrize("kind", ["operators", "layers", "graph"])
@pytest.mark.parametrize("seed", SEEDS)
def test_chain(seed: int, kind: str, tmp_path: Path) -> None:
    model, feeds = draw_graph(seed) if kind == "graph" else draw_chain(seed, layers=kind == "layers")
    wants = [run(model, given) for given in feeds]
    try:
        compile_model(model, tmp_path / "m.vmfb", parse_target("cpu-host"))
    except (CompileError, ModelError) as e:
        pytest.skip(f"the compiler refuses it: {e}")
    call, names = load_module(tmp_path / "m.vmfb"), [n.op_type for n in model.graph.node]
    is_half = any(n.op_type == "Cast" and n.attribute[0].i == onnx.TensorProto.FLOAT16 for n in model.graph.node)
    for given, want in zip(feeds, wants, strict=True):
        for a, b in zip(call(given["x"]), want, strict=True):
            assert a.shape == b.shape, names
            bound = 2e-2 if is_half else 1e-4
            np.testing.assert_allclose(a.astype(float), b.astype(float), rtol=bound, atol=bound, err_msg=str(names))

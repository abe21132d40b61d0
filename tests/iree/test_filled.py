"""Constant vectors of one number, which kernels read in front of a choice between dispatches and behind it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from onnx_fa.iree.compile import compile_model
from onnx_fa.iree.importer import import_mlir
from onnx_fa.spec.target import parse_target
from tests.support.text_graphs import TextGraph
from tests.support.triton_sources import triton_sources

GLOBAL = "inlining_policy = #util.inline.never"


def _layers(bias: float, scale: float = 1.0) -> onnx.ModelProto:
    """Norms and products of any number of rows, with ones, and with zeros or `bias` at one place."""
    few = np.zeros(48, np.float16)
    few[5] = bias
    w = (np.random.default_rng(0).standard_normal((48, 48)) * 0.1).astype(np.float16)
    body = """n = LayerNormalization (x, ones, few)
        a = MatMul (n, w)
        b = Add (a, few)
        c = Relu (b)
        d = MatMul (c, w)
        e = Add (d, few)
        f = Add (e, x)
        m = LayerNormalization (f, ones, few)
        k = MatMul (m, w)
        y = Add (k, few)"""
    return TextGraph("float16[b, s, 48] x", body, ones=np.full(48, scale, np.float16), few=few, w=w).proto


@pytest.mark.parametrize(("target", "bias", "hidden"), [("cuda", 0.0, 2), ("cuda", 1.0, 1), ("cpu-host", 0.0, 0)])
def test_filled_vectors_are_hidden_where_calls_branch(target: str, bias: float, hidden: int) -> None:
    with triton_sources():
        text = import_mlir(_layers(bias), {}, target=parse_target(target)).text
    assert text.count(GLOBAL) == hidden
    assert "util.optimization_barrier" not in text  # it would divide what a run submits at once


def test_a_vector_of_infinities_is_hidden_too() -> None:
    """A global's text has no word for them."""
    with triton_sources():
        text = import_mlir(_layers(0.0, np.inf), {}, target=parse_target("cuda")).text
    assert text.count(GLOBAL) == 1 and "util.optimization_barrier" in text


def test_a_model_before_training_compiles_for_cuda(tmp_path: Path) -> None:
    with triton_sources():
        compile_model(_layers(0.0), tmp_path / "m.vmfb", parse_target("cuda"))
    assert (tmp_path / "m.vmfb").is_file()

"""accuracy_level 4, at which onnxruntime rounds what weights of few bits multiply: compared without, and told."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto as T
from onnx import helper as h
from onnx import numpy_helper as nh

from onnx_fa.graph.accuracy_levels import rounds_activations
from onnx_fa.iree.compile import compile_model
from onnx_fa.spec.target import parse_target
from onnx_fa.verifier.comparisons import compare_outputs
from onnx_fa.verifier.once import LEVEL_0, check_once
from onnx_fa.verifier.rounded_activations import APART, AS_GIVEN, ROUNDS, judge_rounded
from onnx_fa.verifier.verifier import LEVELS, verify

HOST = parse_target("cpu-host")


def product(level: int) -> ir.Model:
    random = np.random.default_rng(0)
    packed, scales = random.integers(0, 256, (48, 4, 16), np.uint8), random.random((48, 4), np.float32)
    attrs = {"bits": 4, "K": 128, "N": 48, "block_size": 32, "accuracy_level": level}
    node = h.make_node("MatMulNBits", ["x", "w", "s"], ["y"], name="product", domain="com.microsoft", **attrs)
    inputs, outputs = (h.make_tensor_value_info(n, T.FLOAT, [2, w]) for n, w in (("x", 128), ("y", 48)))
    weights = [nh.from_array(packed, "w"), nh.from_array(scales, "s")]
    opsets = [h.make_opsetid("", 17), h.make_opsetid("com.microsoft", 1)]
    made = h.make_model(h.make_graph([node], "g", [inputs], [outputs], weights), opset_imports=opsets, ir_version=9)
    onnx.checker.check_model(made)
    return ir.from_proto(made)


@pytest.mark.parametrize("compiled", [0, 4])
def test_level_4_is_compared_with_what_it_is_and_told(compiled: int, tmp_path: Path) -> None:
    """A module that does not round equals the model at level 0, one that does (on some processors) the model as given."""
    model, module = product(4), tmp_path / "m.vmfb"
    compile_model(product(compiled), module, HOST)
    rounds = compiled == 4 and HOST.multiplies_bytes
    assert (ROUNDS if rounds else LEVEL_0) in check_once(model, module, HOST)
    report = verify(model, HOST, seeds=1, module=module)
    report.check()
    assert LEVELS in report.notes
    told = {c.what: c for c in report.checks if c.against == AS_GIVEN}
    assert set(told) == {"original: output y", "IREE: output y"}
    original, ours = told["original: output y"], told["IREE: output y"]
    assert original.ok is None and original.error is not None and 1e-3 < original.error < 0.05
    assert ours.ok is (True if rounds else None)
    assert rounds_activations(model)  # it is the caller's
    if not compiled:
        assert check_once(product(0), module, HOST) == ""


def test_what_roundings_allow() -> None:
    """The original at level 0 is 1; as given it is off by 0.01. Nothing is as far off as 0.03."""
    exact, given = np.ones(4, np.float32), np.full(4, 1.01, np.float32)
    for got, ok, note in (
        (1.0, True, ""),
        (1.01, True, ROUNDS),
        (0.985, True, APART),
        (1.03, False, ""),
        (np.nan, False, "NaN"),
    ):
        result = np.full(4, got, np.float32)
        check = judge_rounded(compare_outputs("", "y", "original", result, exact, 1e-4), result, exact, given)
        assert check.ok is ok and note in check.note

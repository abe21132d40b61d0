"""A model that the compiler refuses for one of its own faults is compiled once more without the part that fails."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
from onnx import TensorProto

from onnx_fa.errors import CompileError
from onnx_fa.iree.compile import compile_model
from onnx_fa.iree.remedies import TILING, remedy_for
from onnx_fa.spec.target import parse_target

REDUCTIONS = "--iree-codegen-llvmgpu-use-reduction-vector-distribution"
UNDISTRIBUTED = "iree-compile failed ('func.func' op failed to distribute); command and messages are in m.log"
STOPPED = "iree-compile was stopped after 3 s"
TYPES = {"bool": TensorProto.BOOL, "int32": TensorProto.INT32, "uint8": TensorProto.UINT8, "float": TensorProto.FLOAT}


@pytest.mark.parametrize(
    ("said", "target", "flags", "wanted", "sure"),
    [
        (UNDISTRIBUTED, "cuda", (), f"{REDUCTIONS}=false", True),
        (UNDISTRIBUTED, "cuda", (f"{REDUCTIONS}=true",), "", False),
        ("something else", "cuda", (), "", False),
        (UNDISTRIBUTED, "cpu-avx2", (), f"{TILING}=false", False),
        ("expected padding_value has 'i8' but got: 'i1'", "cpu-avx2", (), f"{TILING}=false", True),
        ("something else", "cpu-avx2", (f"{TILING}=true",), "", False),
        (STOPPED, "cpu-avx2", (), "", False),
        (STOPPED, "cuda", (), "", False),
    ],
)
def test_what_is_left_out(said: str, target: str, flags: tuple[str, ...], wanted: str, sure: bool) -> None:
    found = remedy_for(CompileError(said), parse_target(target), flags)
    assert ("" if found is None else found.flags[0]) == wanted
    assert found is None or (found.is_sure == sure and said.partition(";")[0] in found.why)


def _reduced(op: str, kind: str, wide: str) -> onnx.ModelProto:
    """A sum or maximum along the last axis of numbers that are made wider first; or the place of the largest, as they are."""
    to = {"int64": TensorProto.INT64, "double": TensorProto.DOUBLE}[wide]
    body = f"c = Cast<to={to}>(x) y = {op}(c, last)"
    if op == "ArgMax":
        body = "y = ArgMax<axis=1>(x)"
    return onnx.parser.parse_model(
        f"""<ir_version: 9, opset_import: ["" : 18]>
        g ({kind}[n, m] x) => ({wide}[n, one] y) <int64[1] last = {{1}}> {{ {body} }}"""
    )


@pytest.mark.parametrize(
    ("op", "kind", "wide"),
    [
        ("ReduceSum", "bool", "int64"),
        ("ReduceSum", "int32", "int64"),
        ("ReduceMax", "uint8", "int64"),
        ("ReduceSum", "float", "double"),
        ("ArgMax", "int32", "int64"),
    ],
)
def test_wider_reductions_compile_for_cuda(op: str, kind: str, wide: str, tmp_path: Path) -> None:
    done = compile_model(_reduced(op, kind, wide), tmp_path / "m.vmfb", parse_target("cuda"))
    assert "with reductions by another form of IREE's" in done.note
    assert f"{REDUCTIONS}=false" in done.command


def test_reductions_of_one_width_keep_theirs(tmp_path: Path) -> None:
    model = onnx.parser.parse_model(
        """<ir_version: 9, opset_import: ["" : 18]>
        g (int64[n, m] x) => (int64[n, one] y) <int64[1] last = {1}> { y = ReduceSum(x, last) }"""
    )
    done = compile_model(model, tmp_path / "m.vmfb", parse_target("cuda"))
    assert not done.note and not any(REDUCTIONS in flag for flag in done.command)

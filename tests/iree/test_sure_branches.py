"""Ifs of which the model itself says which branch runs: IREE takes none whose branches give results of other shapes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import parser

import onnx_fa
from onnx_fa.match.prepare.branches import with_sure_branches
from tests.support.ort_run import run

TEXT = """
<ir_version: 9, opset_import: ["" : 17]>
agraph (float[2, 3] x) => (float[4, 6] y)
 <int64 rank = {2}, int64[1] zero = {0}, int64[2] twice = {2, 2}>
{
 sizes = Shape (x)
 count = Size (sizes)
 more = Sub (rank, count)
 ask = Greater (more, zero)
 repeats = If (ask) <
   then_branch = wide () => (int64[3] three) { one = Constant <value = int64[1] {1}> ()
     three = Concat <axis = 0> (one, twice) },
   else_branch = same () => (int64[2] two) { two = Identity (twice) }>
 y = Tile (x, repeats)
}
"""


def test_a_branch_that_never_runs_is_not_compiled(tmp_path: Path) -> None:
    model = parser.parse_model(TEXT)
    out = tmp_path / "model.vmfb"
    onnx_fa.compile(model, out)
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    np.testing.assert_array_equal(onnx_fa.run(out, x)[0], run(model, {"x": x})[0])


@pytest.mark.parametrize("asked", [False, True])
def test_a_branch_that_the_caller_chooses_stays(asked: bool) -> None:
    proto = parser.parse_model(TEXT)
    if asked:
        del proto.graph.node[3]
        proto.graph.input.append(onnx.helper.make_tensor_value_info("ask", onnx.TensorProto.BOOL, [1]))
    model = ir.from_proto(proto)
    decided = with_sure_branches(model)
    assert [node.op_type for node in decided.graph if node.op_type == "If"] == (["If"] if asked else [])
    assert [node.op_type for node in model.graph if node.op_type == "If"] == ["If"]  # the caller's own is not changed

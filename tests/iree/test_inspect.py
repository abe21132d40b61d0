"""What is said of each site where the compiler merges kernels."""

from __future__ import annotations

import re
from pathlib import Path

import onnx
import onnx.parser
import onnx_ir

from onnx_fa.forms.rewrite import rewrite_in_place
from onnx_fa.iree.compile import compile_model
from onnx_fa.iree.stock_road import spec_for_model
from onnx_fa.spec.target import parse_target

TWO_STAGES = """<ir_version: 9, opset_import: ["": 18]>
stages (float[N, 4, S, 16] q, float[N, 4, T, 16] k, float[N, 4, U, 16] a, float[N, 4, V, 16] b)
    => (float[N, 4, S, 16] r, float[N, 4, U, 16] d) {
  kt = Transpose<perm = [0, 1, 3, 2]>(k)
  first = MatMul(q, kt)
  first_weights = Softmax<axis = -1>(first)
  o = MatMul(first_weights, k)
  second = MatMul(o, kt)
  second_weights = Softmax<axis = -1>(second)
  r = MatMul(second_weights, k)
  bt = Transpose<perm = [0, 1, 3, 2]>(b)
  third = MatMul(a, bt)
  third_weights = Softmax<axis = -1>(third)
  d = MatMul(third_weights, b)
}"""


def test_merged_kernels_belong_to_each_of_their_sites(tmp_path: Path) -> None:
    """Three sites, two kernels that differ in the names of free lengths, and one executable: as the stages of a SegFormer with
    free sizes and as many heads."""
    done = compile_model(onnx.parser.parse_model(TWO_STAGES), tmp_path / "a.vmfb")
    assert [(s.dispatches, s.fused) for s in done.sites] == [(1, True)] * 3
    own = [d for d in done.inspection.dispatches if d.executable.endswith("_attention")]
    assert len({d.executable for d in own}) == 1 < len(done.inspection.by_kernel)


def test_a_spec_for_unmodified_tools_has_such_a_kernel_once() -> None:
    model = onnx_ir.from_proto(onnx.parser.parse_model(TWO_STAGES))
    _, sites = rewrite_in_place(model, "decomposed")
    text = spec_for_model(model, sites, parse_target("cpu-host"))
    assert len(sites) == 3 and len(set(re.findall(r"fa_[0-9a-f]{10}", text))) == 1

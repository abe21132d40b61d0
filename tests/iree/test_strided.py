"""A gather of every n-th row, which IREE refuses: icefall's Zipformer reads its mask so at lower rates."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest

import onnx_fa
from onnx_fa.graph.ops import op_of
from onnx_fa.iree.legalise.rules import legalize
from tests.support.ort_run import run

END = 2**62


def gathered(dims: str, start: int, end: int, step: int, reader: str, made: str) -> onnx.ModelProto:
    return onnx.parser.parse_model(
        f"""<ir_version: 9, opset_import: ["" : 18]>
        g (float[{dims}] x, int64[2, S] at) => (float[{made}] y)
        <int64[2] start = {{{start}, 1}}, int64[2] end = {{{end}, 9}}, int64[2] axes = {{-1, 0}}, int64[2] step = {{{step}, 1}}>
        {{ part = Slice(x, start, end, axes, step)  {reader} }}"""
    )


def read(dims: str, bounds: tuple[int, int, int], reader: str, made: str, length: int, folder: Path) -> None:
    model = gathered(dims, *bounds, reader, made)
    rng = np.random.default_rng(0)
    rows = len(range(*slice(*bounds).indices(length)))
    x, at = rng.standard_normal((3, length)).astype(np.float32), rng.integers(0, rows, (2, 5))
    onnx_fa.compile(model, folder / "m.vmfb")
    np.testing.assert_array_equal(onnx_fa.run(folder / "m.vmfb", x, at)[0], run(model, {"x": x, "at": at})[0])


@pytest.mark.parametrize("dims", ["3, 13", "N, L"])
@pytest.mark.parametrize("bounds", [(0, END, 2), (-5, END, 2), (2, -1, 3), (-20, 100, 4)])
def test_bounds(dims: str, bounds: tuple[int, int, int], tmp_path: Path) -> None:
    read(dims, bounds, "y = Gather <axis = 1> (part, at)", "A, B, C", 13, tmp_path)


def test_elements_behind_views(tmp_path: Path) -> None:
    reader = "view = Identity(part)  y = GatherElements <axis = 1> (view, at)"
    read("N, L", (1, END, 2), reader, "A, B", 11, tmp_path)


@pytest.mark.parametrize(
    ("step", "reader"),
    [(1, "y = Gather <axis = 1> (part, at)"), (-1, "y = Gather <axis = 1> (part, at)"), (2, "y = Exp(part)")],
)
def test_what_iree_compiles_stays(step: int, reader: str) -> None:
    first, last = (0, END) if step > 0 else (-1, -END)
    nodes = legalize(gathered("3, 13", first, last, step, reader, "A, B, C")).graph.node
    assert op_of(nodes[0]) == "Slice" and len(nodes) == 2

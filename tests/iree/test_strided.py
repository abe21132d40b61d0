"""A gather of every n-th row, which IREE refuses: icefall's Zipformer reads its mask so at lower rates."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest

import onnx_fa
from onnx_fa.errors import ModelError
from onnx_fa.graph.ops import op_of
from onnx_fa.iree.legalise.rules import legalize
from onnx_fa.iree.run import load_module
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


COLUMN_READERS = (
    "flat = Squeeze(part, last)  y = Gather <axis = 0> (flat, at)",
    "rows = Gather <axis = 0> (part, at)  flat = Squeeze(rows, last)  y = Exp(flat)",
    "y = Gather <axis = 0> (part, at)",
)


@pytest.mark.parametrize("reader", COLUMN_READERS)
@pytest.mark.parametrize(
    ("dims", "cut"), [("N, 2, 9", "8, 9"), ("N, 2, 9", "-1, 1000"), ("6, 3, 9", "4, 5"), ("N, 2, 9", "1")]
)
def test_one_column(dims: str, cut: str, reader: str, tmp_path: Path) -> None:
    """Rows of a column lie as far from each other as the others are wide."""
    if "," in cut:
        start, end = cut.split(", ")
        bounds = f", int64[1] start = {{{start}}}, int64[1] end = {{{end}}}"
        part = "part = Slice(x, start, end, last)"
    else:
        bounds, parts = "", [f"p{i}" for i in range(9)]
        part = f"{', '.join(parts)} = Split <axis = -1, num_outputs = 9> (x)  part = Identity(p{cut})"
    model = onnx.parser.parse_model(
        f"""<ir_version: 9, opset_import: ["" : 18]>
        g (float[{dims}] x, int64[K] at) => (float y) <int64[1] last = {{-1}}{bounds}> {{ {part}  {reader} }}"""
    )
    onnx_fa.compile(model, tmp_path / "m.vmfb")
    rng = np.random.default_rng(0)
    x, at = rng.standard_normal((6, int(dims.split(", ")[1]), 9)).astype(np.float32), rng.integers(0, 6, 5)
    got, want = onnx_fa.run(tmp_path / "m.vmfb", x, at)[0], run(model, {"x": x, "at": at})[0]
    np.testing.assert_allclose(got, want, rtol=1e-6)


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


BACKWARDS = [
    (20, -END, -1),
    (3, 0, -1),
    (20, 0, -3),
    (2, -END, -2),
    (-1, -END, -1),
    (2, 4, -1),
    (20, 100, 1),
    (-20, 5, 2),
]


def test_steps_from_behind_the_end(tmp_path: Path) -> None:
    """Rows of which a run may have fewer than where a Slice begins."""
    bounds = "".join(
        f", int64[1] s{i} = {{{s}}}, int64[1] e{i} = {{{e}}}, int64[1] t{i} = {{{t}}}"
        for i, (s, e, t) in enumerate(BACKWARDS)
    )
    outputs = ", ".join(f"float[R{i}, M] y{i}" for i in range(len(BACKWARDS)))
    nodes = " ".join(f"y{i} = Slice(x, s{i}, e{i}, zero, t{i})" for i in range(len(BACKWARDS)))
    text = f'<ir_version: 9, opset_import: ["": 18]> g (float[N, M] x) => ({outputs}) <int64[1] zero = {{0}}{bounds}> {{ {nodes} }}'
    model = onnx.parser.parse_model(text)
    onnx_fa.compile(model, tmp_path / "m.vmfb")
    module = load_module(tmp_path / "m.vmfb")
    for rows in (1, 2, 7, 13, 30):
        x = np.random.default_rng(rows).standard_normal((rows, 3)).astype(np.float32)
        for bound, got, want in zip(BACKWARDS, module(x), run(model, {"x": x}), strict=True):
            np.testing.assert_array_equal(got, want, err_msg=str(bound))


def test_backwards_to_a_row_counted_from_the_end_is_refused() -> None:
    with pytest.raises(ModelError, match=r"Slice backwards to a row counted from the end of a free size \(--dim\)"):
        legalize(gathered("N, L", 7, -3, -1, "y = Exp(part)", "A, B"))

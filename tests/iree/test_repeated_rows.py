"""`torch.repeat_interleave` with counts of the run, which TorchScript writes as a Loop over sequences (FastSpeech)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import pytest

import onnx_fa
from onnx_fa.graph.ops import op_of
from onnx_fa.iree.repeated_rows import write_repeats
from onnx_fa.iree.run import load_module
from tests.support.ort_run import run

SHAPES = {0: "N, 3", 1: "2, N, 3", 2: "2, 4, N"}


def repeated(axis: int, choice: bool = True, change: tuple[str, str] = ("", "")) -> onnx.ModelProto:
    """Rows along `axis`, each as often as its count; `choice`: with TorchScript's way of saying that a -1 stays as it is."""
    dims = SHAPES[axis].split(", ")
    kept = [d if d != "N" else "1" for d in dims]
    before, behind = ", ".join(kept[: axis + 1]), ", ".join(kept[axis + 1 :])
    target = ", ".join("-1" if d == "N" else d for d in dims)
    last = f", int64[{len(dims) - axis - 1}] behind = {{{behind}}}" if behind else ""
    wanted = f"wanted = Concat <axis = 0> (before, count{', behind' if behind else ''})"
    if choice:
        wanted += """ size = Shape(wanted)  ones = ConstantOfShape <value = int64[1] {1}> (size)  less = Mul(ones, minus)
            same = Equal(wanted, less)  asked = Where(same, ones, wanted)"""
    made = f"seq(float[{SHAPES[axis].replace('N', 'K')}])"
    text = f"""<ir_version: 9, opset_import: ["" : 17]>
    g (float[{SHAPES[axis]}] x, int64[N] counts) => (float[{", ".join("P" if d == "N" else d for d in dims)}] y)
    <int64[1] first = {{0}}, int64[{axis + 1}] before = {{{before}}}{last}, int64 minus = {{-1}}, int64 place = {{0}},
     bool yes = {{1}}, int64[{len(dims)}] target = {{{target}}}, int64[1] next = {{{axis + 1}}}> {{
      length = Shape(counts)  each = ConstantOfShape <value = int64[1] {{1}}> (length)
      rows = SplitToSequence <axis = {axis}> (x, each)  numbers = SplitToSequence <axis = 0> (counts, each)
      steps = Gather(length, place)
      none = SequenceEmpty <dtype = 1> ()
      all = Loop (steps, yes, none) <body = body (int64 i, bool goes, {made} so_far) => (bool on, {made} more) {{
        row = SequenceAt(rows, i)  count = SequenceAt(numbers, i)
        unit = Unsqueeze(row, next)  {wanted}
        wide = Expand(unit, {"asked" if choice else "wanted"})  flat = Reshape(wide, target)
        more = SequenceInsert(so_far, flat)  on = Cast <to = 9> (yes)
      }}>
      y = ConcatFromSequence <axis = {axis}> (all)
    }}"""
    assert change[0] in text
    return onnx.parser.parse_model(text.replace(*change))


@pytest.mark.parametrize("axis", SHAPES)
def test_as_onnxruntime_repeats(axis: int, tmp_path: Path) -> None:
    model = repeated(axis, choice=axis != 1)
    onnx_fa.compile(model, tmp_path / "m.vmfb")
    module = load_module(tmp_path / "m.vmfb")
    rng = np.random.default_rng(0)
    for counts in ([2, 0, 3, 1], [1], [0, 0], [0, 4], rng.integers(0, 5, 13), [-1, 2] if axis != 1 else [5, 5]):
        x = rng.standard_normal([len(counts) if d == "N" else int(d) for d in SHAPES[axis].split(", ")]).astype(
            np.float32
        )
        feeds = {"x": x, "counts": np.array(counts, np.int64)}
        np.testing.assert_array_equal(module(*feeds.values())[0], run(model, feeds)[0])


def test_what_runs_before_is_gone() -> None:
    work = ir.from_proto(repeated(0))
    write_repeats(work)
    assert {op_of(node) for node in work.graph} & {
        "Loop",
        "SplitToSequence",
        "SequenceEmpty",
        "ConcatFromSequence",
    } == set()


@pytest.mark.parametrize(
    "change",
    [
        ("more = SequenceInsert(so_far, flat)", "more = SequenceInsert(so_far, flat, place)"),  # backwards
        ("on = Cast <to = 9> (yes)", "on = Less(i, steps)"),
        ("each = ConstantOfShape <value = int64[1] {1}> (length)", "each = Add(length, length)"),
        ("count = SequenceAt(numbers, i)", "count = SequenceAt(numbers, place)"),
        ("Reshape(wide, target)", "Reshape(wide, before)"),
        ("steps = Gather(length, place)", "steps = ReduceMax <keepdims = 0> (counts)"),
        ("unit = Unsqueeze(row, next)", "unit = Unsqueeze(row, first)"),  # the row in place of the count
        ("less = Mul(ones, minus)", "less = Mul(ones, place)"),
        ("ConcatFromSequence <axis = 0>", "ConcatFromSequence <axis = 1>"),
    ],
)
def test_other_loops_stay(change: tuple[str, str]) -> None:
    work = ir.from_proto(repeated(0, change=change))
    write_repeats(work)
    assert "Loop" in {op_of(node) for node in work.graph}

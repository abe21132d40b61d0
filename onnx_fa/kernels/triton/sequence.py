"""Convolutions along an axis by Triton: those of images of one line, whose length most often only a run knows. Taps that lie
outside of x are not read, so that nobody pads x nor cuts it."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

from onnx_fa.kernels.cpu.sequence import operands_of, y_of
from onnx_fa.kernels.mlir.called import function_text, read_dims
from onnx_fa.kernels.mlir.operand import Operand
from onnx_fa.kernels.mlir.text import Text
from onnx_fa.kernels.triton.window import compile_window
from onnx_fa.spec.sequences import SequenceSpec


@cache
def emit_sequence(spec: SequenceSpec) -> dict[str, str]:
    """The executable and the function of the spec's name, which takes the operands and returns y, by their symbols. Raises
    UnsupportedError where Triton refuses all tiles."""
    free, line = spec.length is None, spec.line(spec.length or spec.span)
    if free:  # of few places there may be many, as of images whose number only a run knows
        line = replace(line, images=None)
    code, t, operands, y = compile_window(line, spec.name, free=free), Text(), operands_of(spec), y_of(spec)
    read_dims(t, operands[:1])
    images = "%images" if spec.images is None else t.index(spec.images)
    places, sizes = t.index(line.rows), list[str]()
    if free:
        room = t.arith("floordivsi", t.shifted("%length", sum(spec.pads) - spec.span), t.index(spec.stride))
        t.do(f"%places = arith.maxsi {t.shifted(room, 1)}, {t.index(0)} : index")
        places, sizes = "%places", ["%length", t.arith("maxui", "%places", t.index(1))]
    rows = t.arith("muli", images, places)
    made = code.call(
        t, [v.name for v in operands], [v.sized_type for v in operands], rows, _in_phases(t, spec, y), sizes
    )
    texts = code.texts | {spec.name: function_text(spec.name, operands, [y], t, [made])}
    return {key: "\n".join(lines) + "\n" for key, lines in texts.items()}


def _in_phases(t: Text, spec: SequenceSpec, y: Operand) -> Operand:
    """y, whose free places are those of windows in all phases."""
    if spec.length is not None or spec.phases == 1:
        return y
    t.do(f"%rows_of_y = arith.muli %places, {t.index(spec.phases)} : index")
    return Operand(y.name, (y.shape[0], "rows_of_y", y.shape[2]), y.element)

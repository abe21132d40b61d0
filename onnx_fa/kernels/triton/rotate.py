"""Rotary embedding by Triton, and the new rows of caches in the same dispatch: a workgroup has a head of a row. Queries go where
the results are, rotated keys and values into the caches, at their last rows, in place."""

from __future__ import annotations

from functools import cache

from onnx_fa.kernels.mlir.entry import KernelEntry, tied_dims
from onnx_fa.kernels.triton import ptx
from onnx_fa.kernels.triton.config import ARCHITECTURES, power_of_two
from onnx_fa.kernels.triton.entry import dispatch
from onnx_fa.kernels.triton.executable import ArchCode, executable_text
from onnx_fa.kernels.triton.expressions import Block
from onnx_fa.kernels.triton.program import TYPES, Program, write_program
from onnx_fa.spec.rotated import RotatedSpec, rotated_name

_SYMBOLS = {"rows": "s0", "seqlen": "s1", "first": "s2"}
"""The rows of x, those of a sequence, and the row of the caches that the first of a sequence is."""


@cache
def emit_rotated(spec: RotatedSpec) -> dict[str, str]:
    """The executable and the function of the spec's name, which takes its operands and returns its results, by their symbols.
    Raises UnsupportedError where Triton refuses the source."""
    name = rotated_name(spec)
    symbol = f"{name}_rows"
    program = rotation_program(spec, symbol)
    codes = [ArchCode(arch, ptx.compile_program(program, arch, 1, 1)) for arch in ARCHITECTURES]
    executable = executable_text(symbol, program, codes, [1] * len(codes))
    return {symbol: "\n".join(executable) + "\n", name: "\n".join(RotationEntry(spec, name).text_lines()) + "\n"}


def rotation_program(spec: RotatedSpec, symbol: str) -> Program:
    """The source. What it writes: the results are `out0`, the caches `out1` and `out2`."""
    t, half, kept = Block(), spec.D // 2, spec.kept
    rows, seqlen, first = _SYMBOLS.values()
    t.do(f"row = tl.program_id(0) // {spec.all_heads}")
    t.do(f"head = tl.program_id(0) % {spec.all_heads}")
    t.do(f"n = tl.arange(0, {power_of_two(half)})")
    t.do(f"inside = tl.where(row < {rows}, n, {half}) < {half}")
    column, last = f"{spec.first} + head * {spec.D}", spec.heads
    if kept is not None:
        last += kept.heads
        keys, values = (
            f"{at} + (head - {before}) * {spec.D}" for at, before in ((kept.keys, spec.heads), (kept.values, last))
        )
        column = f"tl.where(head < {spec.heads}, {column}, tl.where(head < {last}, {keys}, {values}))"
    t.do(f"at = row.to(tl.int64) * {spec.width} + {column} + n")
    t.do("a = tl.load(x + at, mask=inside, other=0.0)")
    t.do(f"b = tl.load(x + at + {half}, mask=inside, other=0.0)")
    t.do(f"turn = row.to(tl.int64) * {half} + n")

    def rotate_into(target: str, at: str) -> None:
        for table in ("cos", "sin"):
            t.do(f"{table[0]} = tl.load({table} + turn, mask=inside, other=0.0).to(tl.float32)")
        t.do("fa = a.to(tl.float32)")
        t.do("fb = b.to(tl.float32)")
        store(target, at, "fa * c - fb * s", "fa * s + fb * c")

    def store(target: str, at: str, real: str, imaginary: str) -> None:
        for value, offset in ((real, ""), (imaginary, f" + {half}")):
            t.do(f"tl.store({target} + {at}{offset}, ({value}).to({TYPES[spec.dtype]}), mask=inside)")

    rotated = f"(row.to(tl.int64) * {spec.heads} + head) * {spec.D} + n"
    if kept is None:
        rotate_into("out0", rotated)
    else:
        batch = f"({rows} // tl.maximum({seqlen}, 1))"
        line = f"({first} + row % tl.maximum({seqlen}, 1)).to(tl.int64) * {batch} + row // tl.maximum({seqlen}, 1)"
        t.do(f"line = ({line}) * {kept.heads}")
        for test, target, at, before in (
            (f"if head < {spec.heads}:", "out0", rotated, 0),
            (f"elif head < {last}:", "out1", "", spec.heads),
            ("else:", "out2", "", last),
        ):
            t.do(test)
            t.indent += 1
            at = at or f"(line + head - {before}) * {spec.D} + n"
            store(target, at, "a", "b") if target == "out2" else rotate_into(target, at)
            t.indent -= 1
    caches = [(name, spec.dtype) for name in ("out1", "out2")] if kept else []
    pointers = [*((name, spec.dtype) for name in ("x", "cos", "sin")), *caches, ("out0", spec.dtype)]
    return write_program(symbol, pointers, _SYMBOLS, t.lines)


class RotationEntry(KernelEntry):
    """The function of a spec."""

    def __init__(self, spec: RotatedSpec, name: str) -> None:
        super().__init__(spec, name)
        self.spec = spec

    def text_lines(self) -> list[str]:
        t, spec = self.t, self.spec
        rows = self.count_rows(spec.lead)
        seqlen = t.index(spec.lead[1]) if isinstance(spec.lead[1], int) else self.dims[spec.lead[1]]
        first = t.index(0)
        if spec.kept is not None:
            length = spec.kept.length
            if isinstance(length, str):
                self.measure(length)
            first = t.arith("subi", t.index(length) if isinstance(length, int) else self.dims[length], seqlen)
        types = [self.typed(shape, spec.dtype) for shape in spec.operand_shapes]
        constants = [t.let(f"arith.index_cast {value} : index to i32") for value in (rows, seqlen, first)]
        count = t.arith("muli", rows, t.index(spec.all_heads))
        if any(isinstance(d, str) for d in spec.lead):
            count = t.arith("maxui", count, t.index(1))  # CUDA takes no launch of nothing
        (y, *_) = (self.typed(shape, dtype) for shape, dtype in spec.results)
        sizes = tied_dims(spec.operand_shapes[-1], self.dims) if spec.kept else ""
        caches = [f"{name}{sizes}" for name in self.names[3:]]
        archs = list(ARCHITECTURES)
        given, kinds = [*self.names, *constants], [*types, *["i32"] * len(constants)]
        made = dispatch(t, f"{self.name}_rows", archs, [count] * len(archs), given, kinds, [*caches, y])
        return self.lines([made[-1], *made[:-1]])

"""Attention without a function of the score, divided by its sum (onnx_fa/spec/token_sums.py), by Triton: a workgroup has a head. It
adds up in registers what keys and values make of each other, and then multiplies each query by that; numbers are read where a
projection left them."""

from __future__ import annotations

from functools import cache

from onnx_fa.kernels.cpu.token_sums import TokenSums
from onnx_fa.kernels.mlir.called import function_text, read_dims
from onnx_fa.kernels.mlir.text import Text
from onnx_fa.kernels.triton import ptx
from onnx_fa.kernels.triton.config import ARCHITECTURES, padded
from onnx_fa.kernels.triton.entry import dispatch
from onnx_fa.kernels.triton.executable import ArchCode, executable_text
from onnx_fa.kernels.triton.expressions import Block
from onnx_fa.kernels.triton.program import Program, write_program
from onnx_fa.spec.terms import Dim

_TOKENS = 64
"""Of a step."""
_WIDEST = 64
"""D and Dv whose sums registers hold."""
_WARPS, _STAGES = 4, 2


def takes(D: int, Dv: int) -> bool:
    """Whether there is a kernel for heads of so many numbers."""
    return max(D, Dv) <= _WIDEST


@cache
def emit_token_sums(spec: TokenSums) -> dict[str, str]:
    """The executable and the function of the spec's name, which takes its operands and returns y, by their symbols. Raises
    UnsupportedError where Triton refuses the source."""
    symbol = f"{spec.name}_heads"
    program = sums_program(spec, symbol)
    codes = [ArchCode(arch, ptx.compile_program(program, arch, _WARPS, _STAGES)) for arch in ARCHITECTURES]
    texts = {symbol: executable_text(symbol, program, codes, [1] * len(codes)), spec.name: _function(spec, symbol)}
    return {key: "\n".join(lines) + "\n" for key, lines in texts.items()}


def _sizes(spec: TokenSums) -> dict[str, str]:
    """The parameters of sizes that only a run knows, by what they are called in the function."""
    free = dict.fromkeys(d for x in spec.operands for d in x.shape if isinstance(d, str))
    return {dim: f"s{i}" for i, dim in enumerate(free)}


def sums_program(spec: TokenSums, symbol: str) -> Program:
    """The source."""
    t, sizes = Block(), _sizes(spec)

    def size(dim: Dim) -> str:
        return sizes[dim] if isinstance(dim, str) else str(dim)

    images, queries, heads, _ = spec.operands[spec.parts[0][0]].shape
    keys = spec.operands[spec.parts[1][0]].shape[1]
    t.do(f"image = (tl.program_id(0) // {size(heads)}).to(tl.int64)")
    t.do(f"head = tl.program_id(0) % {size(heads)}")
    # Of no images one workgroup is launched all the same.
    t.do(f"there = (image < {size(images)}).to(tl.int32)")

    def begin(part: int, name: str, columns: int) -> tuple[str, str]:
        """Where the numbers of q, k or v of this head begin, how far apart tokens are, and which columns there are."""
        tensor, first = spec.parts[part]
        _, S, H, width = (size(d) for d in spec.operands[tensor].shape)
        t.do(f"{name}_at = in{tensor} + image * {S} * {H} * {width} + head * {width} + {first}")
        t.do(f"{name}_n = tl.arange(0, {padded(columns)})[None, :]")
        return f"{H} * {width}", "" if padded(columns) == columns else f" & ({name}_n < {columns})"

    def read(name: str, apart: str, edge: str, end: str) -> None:
        t.do(f"{name} = tl.load({name}_at + token * ({apart}) + {name}_n, mask=(token < {end}){edge}, other=0.0)")

    of_q, of_k, of_v = (begin(i, "qkv"[i], n) for i, n in enumerate((spec.D, spec.D, spec.Dv)))
    t.do(f"sums = tl.zeros([{padded(spec.D)}, {padded(spec.Dv)}], tl.float32)")
    t.do(f"z = tl.zeros([{padded(spec.D)}], tl.float32)")
    t.do(f"for start in range(0, {size(keys)} * there, {_TOKENS}):")
    t.indent += 1
    t.do(f"token = (start + tl.arange(0, {_TOKENS}))[:, None]")
    read("k", *of_k, size(keys))
    read("v", *of_v, size(keys))
    if spec.relu[1]:
        t.do("k = tl.where(k < 0.0, 0.0, k)  # NaN stays")
    # Plain products: of the parts of larger ones an infinity would be NaN.
    t.do('sums = tl.dot(tl.trans(k), v, sums, input_precision="ieee")')
    t.do("z += tl.sum(k, 0)")
    t.indent -= 1
    t.do(f"for start in range(0, {size(queries)} * there, {_TOKENS}):")
    t.indent += 1
    t.do(f"token = (start + tl.arange(0, {_TOKENS}))[:, None]")
    read("q", *of_q, size(queries))
    if spec.relu[0]:
        t.do("q = tl.where(q < 0.0, 0.0, q)  # NaN stays")
    t.do("above = tl.dot(q, sums, input_precision='ieee')")
    t.do(f"below = tl.sum(q * z[None, :], 1) + {spec.epsilon!r}")
    t.do(f"y_n = tl.arange(0, {padded(spec.Dv)})[None, :]")
    row = f"(image * {size(queries)} + token) * {size(heads)} + head"
    edge = "" if padded(spec.Dv) == spec.Dv else f" & (y_n < {spec.Dv})"
    t.do(f"tl.store(out + ({row}) * {spec.Dv} + y_n, above / below[:, None], mask=(token < {size(queries)}){edge})")
    t.indent -= 1
    pointers = [(x.name.removeprefix("%"), x.element) for x in spec.operands]
    return write_program(symbol, [*pointers, ("out", "f32")], sizes, t.lines)


def _function(spec: TokenSums, symbol: str) -> list[str]:
    t, operands, y = Text(), spec.operands, spec.y
    read_dims(t, operands)
    B, _, H, _ = (f"%{d}" if isinstance(d, str) else t.index(d) for d in y.shape)
    count = t.arith("maxui", t.arith("muli", B, H), t.index(1))  # CUDA takes no launch of nothing
    values, types = [x.name for x in operands], [x.sized_type for x in operands]
    for dim in _sizes(spec):
        values.append(t.let(f"arith.index_cast %{dim} : index to i32"))
        types.append("i32")
    made = dispatch(t, symbol, list(ARCHITECTURES), [count] * len(ARCHITECTURES), values, types, [y.sized_type])
    return function_text(spec.name, operands, [y], t, made)

"""Linear attention by Triton: a workgroup has columns of a head's state in registers and goes through all tokens. What it reads of
the next token is on its way while it computes one, as nothing of that depends on the state."""

from __future__ import annotations

from functools import cache

from onnx_fa.errors import UnsupportedError
from onnx_fa.kernels.mlir.entry import KernelEntry
from onnx_fa.kernels.triton import ptx
from onnx_fa.kernels.triton.config import ARCHITECTURES, power_of_two
from onnx_fa.kernels.triton.entry import dispatch
from onnx_fa.kernels.triton.executable import ArchCode, executable_text
from onnx_fa.kernels.triton.expressions import Block
from onnx_fa.kernels.triton.program import Program, write_program
from onnx_fa.spec.linear_attention import LinearAttentionSpec, linear_attention_name

_COLUMNS, _WARPS = 8, 1
"""Of a state a workgroup's, and its threads by 32."""
_MOST_NUMBERS = 1 << 14
"""Of a workgroup's columns, which registers hold."""
_BATCH, _TOKENS = "s0", "s1"
"""The parameters with the numbers of sequences and of tokens."""


@cache
def emit_tokens(spec: LinearAttentionSpec, columns: int = _COLUMNS, warps: int = _WARPS) -> dict[str, str]:
    """The executable and the function of the site's name, which takes its operands and returns its results, by their symbols.
    Raises UnsupportedError for states that do not fit into registers, and where Triton refuses the source."""
    if power_of_two(spec.D) * columns > _MOST_NUMBERS:
        raise UnsupportedError(f"keys of {spec.D} numbers, whose states registers do not hold")
    name = linear_attention_name(spec)
    symbol = f"{name}_tokens"
    program = program_of(spec, symbol, columns)
    codes = [ArchCode(arch, ptx.compile_program(program, arch, warps, 1)) for arch in ARCHITECTURES]
    executable = executable_text(symbol, program, codes, [1] * len(codes))
    entry = _Entry(spec, name).text(symbol, -(-spec.Dv // columns))
    return {symbol: "\n".join(executable) + "\n", name: "\n".join(entry) + "\n"}


class _Entry(KernelEntry):
    """Writes the function that dispatches."""

    def text(self, symbol: str, blocks: int) -> list[str]:
        t, spec = self.t, self.site
        assert isinstance(spec, LinearAttentionSpec)
        for dim in dict.fromkeys((spec.B, spec.T)):
            if isinstance(dim, str):
                self.measure(dim)
        batch, tokens = (t.index(d) if isinstance(d, int) else self.dims[d] for d in (spec.B, spec.T))
        count = t.arith("muli", batch, t.index(spec.H * blocks))
        if isinstance(spec.B, str):
            count = t.arith("maxui", count, t.index(1))  # CUDA takes no launch of nothing
        given = [*self.names, *(t.let(f"arith.index_cast {n} : index to i32") for n in (batch, tokens))]
        types = [*(self.typed(shape, "f32") for shape in spec.operand_shapes), "i32", "i32"]
        results = [self.typed(shape, dtype) for shape, dtype in spec.results]
        archs = list(ARCHITECTURES)
        return self.lines(dispatch(t, symbol, archs, [count] * len(archs), given, types, results))


def program_of(spec: LinearAttentionSpec, name: str, columns: int = _COLUMNS) -> Program:
    """The source, whose workgroups have so many columns of a state."""
    t, D, Dv, H = Block(), spec.D, spec.Dv, spec.H
    width, blocks = power_of_two(D), -(-Dv // columns)
    t.do("pid = tl.program_id(0)")
    t.do(f"n = (pid % {blocks}) * {columns} + tl.arange(0, {columns})")
    t.do(f"h = (pid // {blocks}) % {H}")
    t.do(f"b = (pid // {blocks * H}).to(tl.int64)")
    t.do(f"d = tl.arange(0, {width})")
    t.do(f"there = b < {_BATCH}")
    t.do(f"rows = d < tl.where(there, {D}, 0)")
    t.do(f"cols = n < tl.where(there, {Dv}, 0)")
    t.do(f"at = ((b * {H} + h) * {D} + d[:, None]) * {Dv} + n[None, :]")
    t.do("s = tl.load(state + at, mask=rows[:, None] & cols[None, :], other=0.0)")
    t.do(f"last = tl.where(there, {_TOKENS}, 0)")
    t.do("more = last > 0")
    reads = _reads(spec)
    for name_, (place, mask) in reads.items():
        t.do(f"{name_}_ = tl.load({place.format('b * ' + _TOKENS)}, mask={mask}, other=0.0)")
    t.do("for i in range(last):")
    t.indent += 1
    t.do(f"token = b * {_TOKENS} + i")
    t.do("more = i + 1 < last")
    for name_, (place, mask) in reads.items():
        t.do(f"{name_}_now = {name_}_")
        t.do(f"{name_}_ = tl.load({place.format('(token + 1)')}, mask={mask}, other=0.0)")
    if spec.decay:
        t.do("s *= decay_now" + ("[:, None]" if spec.decay == "key" else ""))
    added = "v_now"
    if spec.beta:
        t.do("step = (v_now - tl.sum(s * k_now[:, None], 0)) * beta_now")
        added = "step"
    t.do(f"s += k_now[:, None] * {added}[None, :]")
    for g in range(spec.G):
        t.do(f"y = tl.sum(s * q{g}_now[:, None], 0) * {float(spec.scale)!r}")
        t.do(f"tl.store(out0 + ((token * {H} + h) * {spec.G} + {g}) * {Dv} + n, y, mask=cols)")
    t.indent -= 1
    t.do("tl.store(out1 + at, s, mask=rows[:, None] & cols[None, :])")
    pointers = [*((operand, "f32") for operand, _ in spec.operands), ("out0", "f32"), ("out1", "f32")]
    return write_program(name, pointers, {"batch": _BATCH, "tokens": _TOKENS}, t.lines)


def _reads(spec: LinearAttentionSpec) -> dict[str, tuple[str, str]]:
    """What a token's numbers are read from, {} for the token, and which of them there are, by the names of the values."""
    H, D = spec.H, spec.D
    rows, cols = f"d < tl.where(more, {D}, 0)", f"n < tl.where(more, {spec.Dv}, 0)"
    k, q = (f"(h // {H // heads})" if heads < H else "h" for heads in (spec.Hk, spec.Hq))
    found = {
        "k": (f"k + ({{}} * {spec.Hk} + {k}) * {D} + d", rows),
        "v": (f"v + ({{}} * {H} + h) * {spec.Dv} + n", cols),
    }
    for g in range(spec.G):
        found[f"q{g}"] = (f"q + (({{}} * {spec.Hq} + {q}) * {spec.G} + {g}) * {D} + d", rows)
    if spec.decay == "key":
        found["decay"] = (f"decay + ({{}} * {H} + h) * {D} + d", rows)
    elif spec.decay:
        found["decay"] = (f"decay + {{}} * {H} + h", "more")
    if spec.beta:
        found["beta"] = (f"beta + {{}} * {H} + h" if spec.beta == "head" else "beta + {}", "more")
    return found

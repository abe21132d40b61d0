"""Linear attention by Triton: a workgroup has columns of a head's state in registers and goes through all tokens. What it reads of
the next token is on its way while it computes one, as nothing of that depends on the state. Calls of many tokens take them in
chunks (`token_chunks.py`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache

from onnx_fa.errors import UnsupportedError
from onnx_fa.kernels.mlir.entry import KernelEntry
from onnx_fa.kernels.mlir.text import tensor_type
from onnx_fa.kernels.triton import ptx
from onnx_fa.kernels.triton.config import ARCHITECTURES, power_of_two
from onnx_fa.kernels.triton.entry import dispatch
from onnx_fa.kernels.triton.executable import ArchCode, executable_text
from onnx_fa.kernels.triton.expressions import Block
from onnx_fa.kernels.triton.program import Program, write_program
from onnx_fa.kernels.triton.token_chunks import (
    BATCH,
    LEAST_TOKENS,
    TOKENS,
    Chunks,
    chunks_of,
    chunks_program,
    facts_of,
    facts_program,
    of_chunks,
    of_facts,
)
from onnx_fa.spec.linear_attention import LinearAttentionSpec, linear_attention_name

_COLUMNS, _WARPS = 8, 1
"""Of a state a workgroup's, and its threads by 32."""
_MOST_NUMBERS = 1 << 14
"""Of a workgroup's columns, which registers hold."""
_CHUNKS = "chunks"
"""How many a run has."""


@cache
def emit_tokens(spec: LinearAttentionSpec, columns: int = _COLUMNS, warps: int = _WARPS) -> dict[str, str]:
    """The executables and the function of the site's name, which takes its operands and returns its results, by their symbols.
    Raises UnsupportedError for states that do not fit into registers, and where Triton refuses the source."""
    if power_of_two(spec.D) * columns > _MOST_NUMBERS:
        raise UnsupportedError(f"keys of {spec.D} numbers, whose states registers do not hold")
    name = linear_attention_name(spec)
    symbol = f"{name}_tokens"
    found = {symbol: _executable(program_of(spec, symbol, columns), warps)}
    chunks = chunks_of(spec)
    if chunks is not None:
        first, second = chunks.warps
        facts, passes = facts_program(spec, f"{name}_facts", chunks), chunks_program(spec, f"{name}_chunks", chunks)
        found |= {facts.entry: _executable(facts, first), passes.entry: _executable(passes, second, chunks.stages)}
    found[name] = "\n".join(_Entry(spec, name).text(symbol, -(-spec.Dv // columns), chunks)) + "\n"
    return found


def _executable(program: Program, warps: int, stages: int = 1) -> str:
    codes = [ArchCode(arch, ptx.compile_program(program, arch, warps, stages)) for arch in ARCHITECTURES]
    return "\n".join(executable_text(program.entry, program, codes, [1] * len(codes))) + "\n"


class _Entry(KernelEntry):
    """Writes the function that dispatches."""

    def __init__(self, spec: LinearAttentionSpec, name: str) -> None:
        super().__init__(spec, name)
        self.spec = spec
        for dim in dict.fromkeys((spec.B, spec.T)):
            if isinstance(dim, str):
                self.measure(dim)
        self.batch, self.tokens = (self.t.index(d) if isinstance(d, int) else self.dims[d] for d in (spec.B, spec.T))
        self.sizes = [self.t.let(f"arith.index_cast {n} : index to i32") for n in (self.batch, self.tokens)]

    def text(self, symbol: str, blocks: int, chunks: Chunks | None) -> list[str]:
        """The function: from token to token, and in chunks where there are any and the run's tokens are many."""
        t, spec = self.t, self.spec
        if chunks is None:
            return self.lines(self._token_by_token(symbol, blocks))
        many = t.arith("cmpi sge,", self.tokens, t.index(LEAST_TOKENS))
        some = t.arith("cmpi sgt,", self.batch, t.index(0))
        types = ", ".join(tensor_type(shape, dtype) for shape, dtype in spec.results)
        made = t.several(f"scf.if {t.arith('andi', many, some, 'i1')} -> ({types}) {{", len(spec.results))
        t.do(f"scf.yield {', '.join(self._in_chunks(chunks))} : {types}")
        t.do("} else {")
        t.do(f"scf.yield {', '.join(self._token_by_token(symbol, blocks))} : {types}")
        t.do("}")
        return self.lines(made)

    def _token_by_token(self, symbol: str, blocks: int) -> list[str]:
        count = self.t.arith("muli", self.batch, self.t.index(self.spec.H * blocks))
        if isinstance(self.spec.B, str):
            count = self.t.arith("maxui", count, self.t.index(1))  # CUDA takes no launch of nothing
        return self._dispatch(symbol, count, [name for name, _ in self.spec.operands], self._results())

    def _in_chunks(self, chunks: Chunks) -> list[str]:
        t, spec = self.t, self.spec
        heads = t.arith("muli", self.batch, t.index(spec.H))
        self.dims[_CHUNKS] = t.arith("ceildivui", self.tokens, t.index(chunks.tokens))
        count = t.arith("muli", heads, self.dims[_CHUNKS])
        shapes = [(spec.B, _CHUNKS, spec.H, *fact) for fact in facts_of(spec, chunks).values()]
        types = [self.typed(shape, "f32") for shape in shapes]
        made = self._dispatch(f"{self.name}_facts", count, of_facts(spec), types)
        count = t.arith("muli", heads, t.index(-(-spec.Dv // chunks.columns)))
        facts = dict(zip(made, types, strict=True))
        return self._dispatch(f"{self.name}_chunks", count, of_chunks(spec), self._results(), facts)

    def _results(self) -> list[str]:
        return [self.typed(shape, dtype) for shape, dtype in self.spec.results]

    def _dispatch(
        self,
        symbol: str,
        count: str,
        names: Sequence[str],
        results: Sequence[str],
        more: Mapping[str, str] | None = None,
    ) -> list[str]:
        """What a dispatch makes of the operands of these names, then of the values `more`, which have their types."""
        operands = zip(self.spec.operands, self.names, strict=True)
        given = {value: self.typed(shape, "f32") for (name, shape), value in operands if name in names} | dict(
            more or {}
        )
        values, types = [*given, *self.sizes], [*given.values(), *("i32" for _ in self.sizes)]
        return dispatch(self.t, symbol, ARCHITECTURES, [count] * len(ARCHITECTURES), values, types, results)


def program_of(spec: LinearAttentionSpec, name: str, columns: int = _COLUMNS) -> Program:
    """The source, whose workgroups have so many columns of a state."""
    t, D, Dv, H = Block(), spec.D, spec.Dv, spec.H
    width, blocks = power_of_two(D), -(-Dv // columns)
    t.do("pid = tl.program_id(0)")
    t.do(f"n = (pid % {blocks}) * {columns} + tl.arange(0, {columns})")
    t.do(f"h = (pid // {blocks}) % {H}")
    t.do(f"b = (pid // {blocks * H}).to(tl.int64)")
    t.do(f"d = tl.arange(0, {width})")
    t.do(f"there = b < {BATCH}")
    t.do(f"rows = d < tl.where(there, {D}, 0)")
    t.do(f"cols = n < tl.where(there, {Dv}, 0)")
    t.do(f"at = ((b * {H} + h) * {D} + d[:, None]) * {Dv} + n[None, :]")
    t.do("s = tl.load(state + at, mask=rows[:, None] & cols[None, :], other=0.0)")
    t.do(f"last = tl.where(there, {TOKENS}, 0)")
    t.do("more = last > 0")
    reads = _reads(spec)
    for name_, (place, mask) in reads.items():
        t.do(f"{name_}_ = tl.load({place.format('b * ' + TOKENS)}, mask={mask}, other=0.0)")
    t.do("for i in range(last):")
    t.indent += 1
    t.do(f"token = b * {TOKENS} + i")
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
    return write_program(name, pointers, {"batch": BATCH, "tokens": TOKENS}, t.lines)


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

"""The source of a linear site in Triton: a workgroup has BM rows of x and BN columns of the result, and walks along K. Workgroups
that run at the same time share rows and columns, which so are read from the cache (eight rows of blocks before the next column).

A weight of a few bits is widened in registers, a place of the bytes of a row after the other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from onnx_fa.errors import UnsupportedError
from onnx_fa.kernels.mlir.text import element_type
from onnx_fa.kernels.triton.config import f32_products
from onnx_fa.kernels.triton.expressions import Block, Expressions
from onnx_fa.kernels.triton.program import HEADER, TYPES, Program, write_program
from onnx_fa.kernels.triton.shared_sums import SHARED, add_parts, begin_part
from onnx_fa.spec.expr import SCORE, ScoreExpr, Tensor
from onnx_fa.spec.linear import LinearSpec

ROWS = "s0"
"""The parameter that holds the number of rows."""
_WIDE = 64
"""Columns for which Hopper's products of bf16 are worth it."""
_TOGETHER = 8
"""Rows of blocks that are computed before the next column of blocks."""


@dataclass(frozen=True)
class LinearConfig:
    """BM rows and BN columns per workgroup, in steps of BK numbers; `warps` of 32 threads; `stages` of the load pipeline; K is
    cut into so many `splits`, and at most so many where only a run knows the rows."""

    BM: int
    BN: int
    BK: int
    warps: int
    stages: int
    splits: int = 1


def products_of(config: LinearConfig, arch: int) -> str:
    """How such tiles multiply f32, in Triton's words: see `f32_products`. Of few columns the parts of a bf16 cost more than they
    save (benchmarks/linear-f32-h200.csv)."""
    return f32_products(config.BM if config.BN >= _WIDE else 0, config.warps, arch)


class LinearSource:
    """Writes the kernel of a spec. `products`: how f32 is multiplied, see `f32_products`."""

    def __init__(self, spec: LinearSpec, config: LinearConfig, name: str, products: str) -> None:
        self.spec, self.config, self.name, self.t = spec, config, name, Block()
        self.precision = f', input_precision="{products}"' if spec.dtype == "f32" else ""
        self.type = TYPES[spec.dtype]

    def program(self) -> Program:
        t, spec, config = self.t, self.spec, self.config
        self.place()
        t.do(f"acc = tl.zeros([{config.BM}, {config.BN}], tl.float32)")
        if config.splits > 1:
            begin_part(t, spec.K, config.BK, config.stages)
        else:  # of two forms in one kernel each has its own stages
            t.do(f"for k in tl.range(0, {spec.K}, {config.BK}, num_stages={config.stages}):")
            t.indent += 1
        if spec.bits is None:
            self.step()
        else:
            self.step_of_bits()
        t.indent -= 1
        inside = f"(row[:, None] < {ROWS})" + (f" & (n[None, :] < {spec.N})" if spec.N % config.BN else "")
        if config.splits > 1:
            add_parts(t, config.BM, config.BN)
        t.do(f"at = row.to(tl.int64)[:, None] * {spec.N} + n[None, :]")
        y = write_then(t, spec, "acc", "at", f", mask={inside}, other=0.0")
        store_result(t, spec, config.BN, y, "row.to(tl.int64)[:, None]", inside)
        return linear_program(spec, self.name, t, SHARED if config.splits > 1 else ())

    def place(self) -> None:
        """Which rows and columns the workgroup has. Columns past the last are computed as the last, rows as the first ones again,
        and neither is stored."""
        t, spec, config = self.t, self.spec, self.config
        across = -(-spec.N // config.BN)
        t.do("pid = tl.program_id(0)")
        t.do(f"down = tl.cdiv({ROWS}, {config.BM})")
        t.do(f"first = pid // {_TOGETHER * across} * {_TOGETHER}")
        t.do(f"high = tl.minimum(down - first, {_TOGETHER})")
        t.do(f"row = (first + pid % {_TOGETHER * across} % high) * {config.BM} + tl.arange(0, {config.BM})")
        t.do(f"left = pid % {_TOGETHER * across} // high * {config.BN}")
        t.do(f"n = left + tl.arange(0, {config.BN})")
        t.do(f"column = tl.minimum(n, {spec.N - 1})" if spec.N % config.BN else "column = n")
        # Many threads that read one row would wait for each other.
        t.do(f"x_row = x + (row % tl.maximum({ROWS}, 1)).to(tl.int64)[:, None] * {spec.K}")

    def step(self) -> None:
        """BK numbers of the rows and columns."""
        t, spec, config = self.t, self.spec, self.config
        t.do(f"at = k + tl.arange(0, {config.BK})")
        inside = "" if spec.K % config.BK == 0 else f"at < {spec.K}"
        a = t.let(f"tl.load(x_row + at[None, :]{f', mask=({inside})[None, :], other=0.0' if inside else ''})")
        (w,) = Weights(t, spec).tiles(inside, self.type)
        t.do(f"acc = tl.dot({a}, {f'tl.trans({w})' if spec.transposed else w}, acc{self.precision})")

    def step_of_bits(self) -> None:
        """BK numbers of each row of the weight: those at each place of a byte, side by side again."""
        t, spec, config, bits = self.t, self.spec, self.config, self.spec.bits
        assert bits is not None
        whole = spec.K % config.BK == 0
        t.do(f"at = k // {bits.places} + tl.arange(0, {config.BK // bits.places})")
        tiles = Weights(t, spec).tiles("" if whole else f"at < {spec.K // bits.places}", self.type)
        while len(tiles) > 1:  # of four places: (0, 2) and (1, 3), then both
            half = len(tiles) // 2
            tiles = [t.let(f"tl.join({a}, {b})") for a, b in zip(tiles[:half], tiles[half:], strict=True)]
        t.do(f"here = k + tl.arange(0, {config.BK})")
        a = t.let(f"tl.load(x_row + here[None, :]{'' if whole else f', mask=here[None, :] < {spec.K}, other=0.0'})")
        t.do(f"w_tile = tl.reshape({tiles[0]}, [{config.BN}, {config.BK}])")
        t.do(f"acc = tl.dot({a}, tl.trans(w_tile), acc{self.precision})")


class Source(Protocol):
    """The source of a kernel whose first size is the number of rows."""

    @property
    def name(self) -> str: ...

    def program(self) -> Program: ...


def program_of_forms(forms: Sequence[tuple[int, Source]], name: str) -> Program:
    """One kernel of several sources of the same spec, of other names, each with the most rows that it is for; the last is for all
    others. A program that chose between kernels would be cut at each site, and submitted in as many pieces."""
    programs = [source.program() for _, source in forms]
    functions = "\n\n".join(program.text.removeprefix(HEADER) for program in programs)
    symbols = {size: f"s{i}" for i, size in enumerate(programs[0].constants)}
    lines = list[str]()
    for i, ((most, source), program) in enumerate(zip(forms, programs, strict=True)):
        given = ", ".join([*(pointer for pointer, _ in program.pointers), *symbols.values()])
        test = f"{'el' * (i > 0)}if {ROWS} <= {most}:" if i < len(forms) - 1 else "else:"
        lines += [f"    {test}", f"        {source.name}({given})"]
    header = f"{HEADER}{functions}\n\n@triton.jit"
    # Those whose sums are cut have more.
    return write_program(name, max((p.pointers for p in programs), key=len), symbols, lines, header)


def linear_program(
    spec: LinearSpec, name: str, t: Block, shared: Sequence[tuple[str, str]] = (), sizes: Sequence[str] = ()
) -> Program:
    """The program of a site's lines; `shared` are pointers to what its workgroups leave each other, `sizes` what parameters s1, s2
    ... hold."""
    operands = zip(spec.operand_names(), map(element_type, spec.operand_dtypes), strict=True)
    outs = [(f"out{i}", spec.dtype) for i in range(len(spec.parts))] or [("out", spec.dtype)]
    symbols = {size: f"s{i}" for i, size in enumerate(("rows", *sizes))}
    return write_program(name, [*operands, *shared, *outs], symbols, t.lines)


def write_then(
    t: Block,
    spec: LinearSpec,
    total: str,
    at: str,
    mask: str,
    *,
    tensors: str = "t",
    given: Mapping[int, str] | None = None,
) -> str:
    """What becomes of a tile of sums, which stand at `at` of the result. `mask` is what loads from there are followed by, `tensors`
    what the names of tensors begin with; those that are `given` are not loaded."""
    known: dict[ScoreExpr, str] = {SCORE: total, **{Tensor(i): value for i, value in (given or {}).items()}}
    for i, tensor in enumerate(spec.tensors):
        if Tensor(i) in known:
            continue
        place = "column[None, :]" if len(tensor.shape) == 1 else at
        known[Tensor(i)] = t.let(f"tl.load({tensors}{i} + {place}{mask if place == at else ''}).to(tl.float32)")
    writer = Expressions(t, "rows", spec.N, spec.tensors, exact_tanh=True, to_halves=spec.dtype in ("f16", "bf16"))
    return writer.emit(spec.then, known.get)


def store_result(t: Block, spec: LinearSpec, BN: int, y: str, row: str, inside: str) -> None:
    """Writes a tile of rows and of columns n, the first of which is `left`, to the result that it belongs to. Raises
    UnsupportedError where tiles of BN columns would belong to two."""
    mask, type_ = f", mask={inside}" if inside else "", TYPES[spec.dtype]
    if not spec.parts:
        t.do(f"tl.store(out + {row} * {spec.N} + n[None, :], ({y}).to({type_}){mask})")
        return
    start = 0
    for i, columns in enumerate(spec.parts):
        if start % BN:
            raise UnsupportedError(f"results of {spec.parts} columns do not begin with tiles of {BN}")
        t.do(f"if (left >= {start}) & (left < {start + columns}):")
        t.do(f"    tl.store(out{i} + {row} * {columns} + (n - {start})[None, :], ({y}).to({type_}){mask})")
        start += columns


class Weights:
    """Loads tiles of a weight: of the numbers `at` of K and of columns `column`, (columns, numbers) where it is transposed. Of a
    weight of a few bits `at` counts bytes."""

    def __init__(self, t: Block, spec: LinearSpec, prefix: str = "") -> None:
        """`prefix`: what the names of its operands begin with."""
        self.t, self.spec, self.prefix = t, spec, prefix

    def tiles(self, inside: str, type_: str = "tl.float32") -> list[str]:
        """The tile, or that of each place of a byte. `inside`: which of `at` there are, "" for all."""
        t, spec, bits = self.t, self.spec, self.spec.bits
        depth = spec.K // (bits.places if bits else 1)
        far = ".to(tl.int64)" if depth * spec.N >= 1 << 31 else ""
        if not spec.transposed:
            mask = f", mask=({inside})[:, None], other=0.0" if inside else ""
            return [t.let(f"tl.load({self.prefix}w + at{far}[:, None] * {spec.N} + column[None, :]{mask}).to({type_})")]
        mask = f", mask=({inside})[None, :], other=0" if inside else ""
        read = t.let(f"tl.load({self.prefix}w + column{far}[:, None] * {depth} + at[None, :]{mask})")
        if bits is None:
            return [t.let(f"{read}.to({type_})")]
        packed = t.let(f"{read}.to(tl.int32) & 255")
        block = t.let(f"at // {bits.block // bits.places}")
        if inside:
            block = t.let(f"tl.minimum({block}, {spec.blocks - 1})")
        scale = t.let(
            f"tl.load({self.prefix}scale + column[:, None] * {spec.blocks} + {block}[None, :]).to(tl.float32)"
        )
        zero, found = self.zero_point(block), []
        for place in range(bits.places):
            number = f"({packed} >> {bits.bits * place})" if place else packed
            if bits.bits * (place + 1) < 8:
                number = f"({number} & {(1 << bits.bits) - 1})"
            found.append(t.let(f"((({number}).to(tl.float32) - {zero}) * {scale}).to({type_})"))
        return found

    def zero_point(self, block: str) -> str:
        spec, bits, t = self.spec, self.spec.bits, self.t
        assert bits is not None
        if not bits.zeros:
            return f"{bits.middle}.0"
        if bits.zeros != "packed":
            return t.let(
                f"tl.load({self.prefix}zero + column[:, None] * {spec.blocks} + {block}[None, :]).to(tl.float32)"
            )
        row = -(-spec.blocks // bits.places)
        stored = t.let(
            f"tl.load({self.prefix}zero + column[:, None] * {row} + ({block} // {bits.places})[None, :]).to(tl.int32)"
        )
        shift = f"({block} % {bits.places} * {bits.bits})[None, :]"
        return t.let(f"(({stored} >> {shift}) & {(1 << bits.bits) - 1}).to(tl.float32)")

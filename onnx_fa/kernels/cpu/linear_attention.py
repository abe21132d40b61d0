"""Linear attention for llvm-cpu: a workgroup has columns of a head's state, which no others need, in the first cache, and goes
through all tokens. Each walks over them twice: what the state holds for its key, then the step and what its queries read."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from onnx_fa.errors import UnsupportedError
from onnx_fa.kernels.cpu.addresses import Addresses
from onnx_fa.kernels.cpu.linear_ahead import fetch_line
from onnx_fa.kernels.mlir.entry import KernelEntry, listed_types
from onnx_fa.kernels.mlir.text import CPU_TRANSLATION, INDEX, executable, tensor_type
from onnx_fa.kernels.mlir.vectors import Lanes
from onnx_fa.spec.linear_attention import LinearAttentionSpec, linear_attention_name
from onnx_fa.spec.target import Target
from onnx_fa.spec.terms import Dim

_STATE_BYTES = 32 << 10
"""Of the columns of a state that a workgroup has, at most; the rest of the first cache is for the token."""
_CHAINS = 8
"""Sums of a walk that are added up apart, about: the next addition to one of them has to wait for the last."""
_AHEAD, _LINE = 4, 64
"""Tokens between asking for one's rows and computing it, and bytes of a line of the caches."""
_QUERIES = 8
"""Of a state: each has vectors of its own, of which there are 16 or 32."""


def kept_why(spec: LinearAttentionSpec, target: Target) -> str:
    """Why there is no kernel, in a few words; "" where there is one."""
    if target.kernels != "auto":
        return f"--kernels {target.kernels}"
    if not target.has_avx2:
        return "vectors of four lanes"
    if not (width := target.lanes_dividing(spec.Dv)):
        return f"heads of {spec.Dv} values, which no vector divides"
    if spec.D * width * 4 > _STATE_BYTES:
        return f"keys of {spec.D} numbers"
    return f"{spec.G} queries of each state" if spec.G > _QUERIES else ""


def emit_tokens(spec: LinearAttentionSpec, target: Target) -> dict[str, str]:
    """The executable and the function of the site's name, which takes its operands and returns its results, by their symbols.
    Raises UnsupportedError where there is no kernel."""
    if why := kept_why(spec, target):
        raise UnsupportedError(why)
    name = linear_attention_name(spec)
    symbol = f"{name}_tokens"
    width = target.lanes_dividing(spec.Dv)
    body = _Body(spec, width)
    texts = {symbol: body.executable(symbol), name: _Entry(spec, name).text(symbol)}
    return {key: "\n".join(lines) + "\n" for key, lines in texts.items()}


def vectors_of(spec: LinearAttentionSpec, width: int) -> int:
    """The vectors beside each other that a workgroup has of each row of the state."""
    fits = [n for n in (4, 2, 1) if spec.Dv % (n * width) == 0 and spec.D * n * width * 4 <= _STATE_BYTES]
    return next((n for n in fits if n * (spec.G + 1) <= _CHAINS), 1)


class _Entry(KernelEntry):
    """Writes the function that dispatches."""

    def text(self, symbol: str) -> list[str]:
        spec = self.site
        assert isinstance(spec, LinearAttentionSpec)
        free = [d for d in dict.fromkeys((spec.B, spec.T)) if isinstance(d, str)]
        for dim in free:
            self.measure(dim)
        sizes = [self.dims[d] for d in free]
        shapes = [shape for shape, _ in spec.results]
        typed = [self.typed(shape, "f32") for shape in (*spec.operand_shapes, *shapes)]
        operands, results = typed[: len(self.names)], typed[len(self.names) :]
        workload = f"[{', '.join(sizes)}]" if sizes else ""
        given, types = ", ".join([*self.names, *sizes]), ", ".join([*operands, *[INDEX] * len(sizes)])
        call = f"flow.dispatch @{symbol}::@{symbol}{workload}({given}) : ({types}) -> {listed_types(results)}"
        return self.lines(self.t.several(call, len(results)))


class _Body:
    """Writes the dispatch with vectors of so many lanes."""

    def __init__(self, spec: LinearAttentionSpec, width: int) -> None:
        self.spec, self.t = spec, Lanes(width)
        self.vectors = vectors_of(spec, width)
        self.block = self.vectors * width
        self.tile = f"memref<{spec.D}x{self.block}xf32>"
        self.free = [d for d in dict.fromkeys((spec.B, spec.T)) if isinstance(d, str)]
        wanted = max(1, _CHAINS // self.vectors)
        self.unroll = next(n for n in (8, 4, 2, 1) if n <= wanted and spec.D % n == 0)

    def executable(self, symbol: str) -> list[str]:
        spec = self.spec
        args, ties = list[str](), list[str]()
        operands = [(name, shape, "readonly") for name, shape in spec.operands]
        results = [(name, shape, "writeonly") for name, (shape, _) in zip(("read", "last"), spec.results, strict=True)]
        for name, shape, access in operands:
            self._bind(name, shape, access, args, ties)
        args += [f"%{d}: index" for d in map(self._size, self.free)]
        for name, shape, access in results:
            self._bind(name, shape, access, args, ties)
        each = spec.H * (spec.Dv // self.block)
        batch = f"%{self._size(spec.B)}" if isinstance(spec.B, str) else "%fixed"
        fixed = [] if isinstance(spec.B, str) else [f"%fixed = arith.constant {spec.B} : index"]
        count = [
            *fixed,
            f"%each = arith.constant {each} : index",
            f"%x = arith.muli {batch}, %each : index",
            "%y = arith.constant 1 : index",
            "%z = arith.constant 1 : index",
        ]
        workload = [f"%{self._size(d)}" for d in self.free]
        self.addresses = Addresses(symbol)
        helpers = (self.addresses.helper, self.addresses.keep)
        return executable(symbol, workload, count, args, [*ties, *self._body()], CPU_TRANSLATION, helpers)

    def _size(self, dim: Dim) -> str:
        return "tokens" if dim == self.spec.T else "batch"

    def _bind(self, name: str, shape: Sequence[Dim], access: str, args: list[str], ties: list[str]) -> None:
        type_ = self._bound(shape, access)
        free = any(isinstance(d, str) for d in shape)
        args.append(f"%{name}{'_' * free}: {type_}")
        if free:
            ties.append(f"%{name} = flow.dispatch.tie_shape %{name}_ : {type_}{self._tied(shape)}")

    def _bound(self, shape: Sequence[Dim], access: str) -> str:
        return f"!iree_tensor_ext.dispatch.tensor<{access}:{tensor_type(shape, 'f32')}>"

    def _tied(self, shape: Sequence[Dim]) -> str:
        dynamic = [f"%{self._size(d)}" for d in shape if isinstance(d, str)]
        return f"{{{', '.join(dynamic)}}}" if dynamic else ""

    def _part(self, shape: Sequence[Dim], starts: Sequence[str], sizes: Sequence[Dim]) -> tuple[str, str]:
        """Where a part of a dispatch's tensor is, as operations say it, and its type."""
        lengths = ", ".join(f"%{self._size(d)}" if isinstance(d, str) else str(d) for d in sizes)
        ones = ", ".join("1" for _ in shape)
        where = f"offsets = [{', '.join(starts)}], sizes = [{lengths}], strides = [{ones}]"
        return where, tensor_type(sizes, "f32")

    def _load(
        self, name: str, shape: Sequence[Dim], access: str, starts: Sequence[str], sizes: Sequence[Dim]
    ) -> tuple[str, str]:
        where, type_ = self._part(shape, starts, sizes)
        bound = f"{self._bound(shape, access)}{self._tied(shape)}"
        return self.t.let(f"iree_tensor_ext.dispatch.tensor.load %{name}, {where} : {bound} -> {type_}"), type_

    def _body(self) -> list[str]:
        t, spec = self.t, self.spec
        at = t.let("flow.dispatch.workgroup.id[0] : index")
        blocks = spec.Dv // self.block
        column = t.arith("muli", t.arith("remui", at, t.index(blocks)), t.index(self.block))
        head = t.arith("divui", at, t.index(blocks))
        h, b = t.arith("remui", head, t.index(spec.H)), t.arith("divui", head, t.index(spec.H))
        tile = t.empty(self.tile)
        self._copy_in(tile, [b, h], column)
        tokens = t.index(spec.T) if isinstance(spec.T, int) else "%tokens"
        lines = self._lines((b, t.index(0), h), column)
        n = t.fresh()
        t.do(f"scf.for {n} = {t.index(0)} to {tokens} step {t.index(1)} {{")
        self._fetch(lines, n)
        parts = {}
        for name, shape in spec.operands:
            if name != "state":
                starts, sizes = self._of_head(name, shape, (b, n, h), column)
                parts[name] = self._load(name, shape, "readonly", starts, sizes)
        rows = self._token(parts, tile)
        self._store("read", [b, n, h, "0", column], (1, 1, 1, spec.G, self.block), rows)
        t.do("}")
        self._copy_out(tile, [b, h], column)
        return t.render()

    def _store(self, name: str, starts: Sequence[str], sizes: Sequence[Dim], rows: Sequence[Sequence[str]]) -> None:
        """Writes rows of vectors as a part of a result, of which all but the last two sizes are one."""
        t = self.t
        shape = self.spec.results[name == "last"][0]
        part, type_ = self._load(name, shape, "writeonly", starts, sizes)
        before = [t.index(0)] * (len(sizes) - 2)
        for n, row in enumerate(rows):
            for c, value in zip(self._columns(), row, strict=True):
                part = t.write(value, part, type_, *before, t.index(n), c)
        where, _ = self._part(shape, starts, sizes)
        bound = f"{self._bound(shape, 'writeonly')}{self._tied(shape)}"
        t.do(f"iree_tensor_ext.dispatch.tensor.store {part}, %{name}, {where} : {type_} -> {bound}")

    def _lines(self, first: tuple[str, str, str], column: str) -> list[tuple[str, int, int]]:
        """Where the head's part of each long row of the first token lies in memory, the bytes of it, and those from a token to the
        next."""
        found = []
        for name, shape in self.spec.operands:
            if name in ("q", "k", "v") and self.spec.T != 1:
                starts, sizes = self._of_head(name, shape, first, column)
                part = self._load(name, shape, "readonly", starts, sizes)
                address = self.addresses.of(self.t, *part)
                row = 4 * math.prod(d for d in sizes if isinstance(d, int))
                step = 4 * math.prod(d for d in shape[2:] if isinstance(d, int))
                found.append((self.t.let(f"llvm.inttoptr {address} : i64 to !llvm.ptr"), row, step))
        return found

    def _fetch(self, lines: Sequence[tuple[str, int, int]], token: str) -> None:
        """Asks for the rows of a token that comes soon: they are far from this one's, where the processor does not look itself."""
        t = self.t
        at = t.let(f"arith.index_cast {token} : index to i64")
        for base, row, step in lines:
            now = t.let(f"llvm.getelementptr {base}[{at}] : (!llvm.ptr, i64) -> !llvm.ptr, !llvm.array<{step} x i8>")
            for byte in range(_AHEAD * step, _AHEAD * step + row, _LINE):
                line = t.let(f"llvm.getelementptr {now}[{byte}] : (!llvm.ptr) -> !llvm.ptr, i8")
                fetch_line(t, line)

    def _of_head(
        self, name: str, shape: tuple[Dim, ...], at: tuple[str, str, str], column: str
    ) -> tuple[list[str], tuple[Dim, ...]]:
        """Where a token's part of an operand, of one head, begins, and its sizes. `at`: which of the batch, token, head."""
        *place, head = at
        states = self.spec.H // heads if isinstance(heads := shape[2], int) else 1
        starts = [*place, head if states == 1 else self.t.arith("divui", head, self.t.index(states))]
        if name == "v":
            return [*starts, column], (1, 1, 1, self.block)
        return [*starts, *["0"] * len(shape[3:])], (1, 1, 1, *shape[3:])

    def _rows(self, body: Callable[[str], None]) -> None:
        """A loop over rows of the tile that carries nothing."""
        t = self.t
        i = t.fresh()
        t.do(f"scf.for {i} = {t.index(0)} to {t.index(self.spec.D)} step {t.index(1)} {{")
        body(i)
        t.do("}")

    def _columns(self) -> list[str]:
        return [self.t.index(n * self.t.width) for n in range(self.vectors)]

    def _copy_in(self, tile: str, head: list[str], column: str) -> None:
        t, zero = self.t, self.t.index(0)
        shape = dict(self.spec.operands)["state"]
        sizes = (1, 1, self.spec.D, self.block)
        state = self._load("state", shape, "readonly", [*head, "0", column], sizes)

        def row(d: str) -> None:
            for c in self._columns():
                t.write(t.read(*state, zero, zero, d, c), tile, self.tile, d, c)

        self._rows(row)

    def _copy_out(self, tile: str, head: list[str], column: str) -> None:
        def row(d: str) -> None:
            values = [self.t.read(tile, self.tile, d, c) for c in self._columns()]
            self._store("last", [*head, d, column], (1, 1, 1, self.block), [values])

        self._rows(row)

    def _token(self, parts: dict[str, tuple[str, str]], tile: str) -> list[list[str]]:
        """What a token's queries read, each as vectors. `parts` are its parts of the operands."""
        t, spec, zero = self.t, self.spec, self.t.index(0)
        columns = self._columns()
        factor = t.broadcast(t.extract(*parts["decay"], zero, zero, zero, zero)) if spec.decay == "head" else ""
        added = [t.read(*parts["v"], zero, zero, zero, c) for c in columns]

        def of_row(name: str, d: str) -> str:
            return t.broadcast(t.extract(*parts[name], zero, zero, zero, d))

        if spec.beta:

            def hold(d: str, sums: list[str]) -> list[str]:
                made = list[str]()
                for n in range(self.unroll):
                    row = t.shifted(d, n)
                    k = of_row("k", row)
                    if spec.decay == "key":
                        k = t.vop("arith.mulf", k, of_row("decay", row))
                    for i, c in enumerate(columns):
                        s = t.read(tile, self.tile, row, c)
                        made.append(t.vop("vector.fma", k, s, sums[n * self.vectors + i]))
                return made

            held = self._sums(self.vectors, hold)
            rate = t.broadcast(t.extract(*parts["beta"], zero, zero, zero))
            if factor:
                held = [t.vop("arith.mulf", factor, x) for x in held]
            added = [t.vop("arith.mulf", t.vop("arith.subf", v, x), rate) for v, x in zip(added, held, strict=True)]

        def step(d: str, sums: list[str]) -> list[str]:
            made = list[str]()
            for n in range(self.unroll):
                row = t.shifted(d, n)
                k = of_row("k", row)
                decay = of_row("decay", row) if spec.decay == "key" else factor
                queries = [
                    t.broadcast(t.extract(*parts["q"], zero, zero, zero, t.index(g), row)) for g in range(spec.G)
                ]
                for i, c in enumerate(columns):
                    s = t.read(tile, self.tile, row, c)
                    if decay:
                        s = t.vop("arith.mulf", s, decay)
                    s = t.vop("vector.fma", k, added[i], s)
                    t.write(s, tile, self.tile, row, c)
                    for g, q in enumerate(queries):
                        place = (n * self.vectors + i) * spec.G + g
                        made.append(t.vop("vector.fma", q, s, sums[place]))
            return made

        totals = self._sums(self.vectors * spec.G, step)
        scale = t.splat(spec.scale)
        return [
            [t.vop("arith.mulf", totals[i * spec.G + g], scale) for i in range(self.vectors)] for g in range(spec.G)
        ]

    def _sums(self, count: int, added: Callable[[str, list[str]], list[str]]) -> list[str]:
        """So many sums over the rows of the tile, added up in as many parts as rows are taken at a time."""
        t = self.t
        start = [(t.splat(0.0), t.vec)] * (count * self.unroll)
        parts = t.loop((t.index(0), t.index(self.spec.D), t.index(self.unroll)), start, added)
        while len(parts) > count:
            half = len(parts) // 2
            parts = [t.vop("arith.addf", a, b) for a, b in zip(parts[:half], parts[half:], strict=True)]
        return parts

"""The general kernel body for llvm-cpu: IREE's `online_attention` with its producers and epilogue in one dispatch.

The kernel is a `flow.executable` written by hand, so that its name is ours and nothing between the model and the code
generator can split it, fold a dim of the op that our tile sizes count on, or fuse a neighbour into it. Inside, operands
are loaded whole in the layout they are stored in (the op's indexing maps do the rest), masks are made by one
`linalg.generic` that the compiler tiles into the K/V loop, and the epilogue divides by the row sum. All arithmetic is
f32.

Iteration dims: b0, b1, ... (batch), h (key/value heads), g (query heads per key/value head), m (queries), n (Dv),
k1 (D), k2 (keys). Dims of size one are left out, as the compiler would fold them and leave our tile sizes one too long;
with a single query the group takes the place of m.

Masks are added, so a NaN or infinite score of a masked key makes its row NaN, where the reference drops it; a NaN is
never turned into a number, not even by `empty_row = "zero"`.
"""

from __future__ import annotations

import dataclasses
import math
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from onnx_fa.emit.expr_vectors import ExprVectors, IntBounds, Vector
from onnx_fa.emit.kernel_text import Kernel, check_plain
from onnx_fa.emit.lanes import Scalars
from onnx_fa.emit.mlir_text import CPU_TRANSLATION, executable
from onnx_fa.emit.score_plan import free, numbered
from onnx_fa.errors import UnsupportedError
from onnx_fa.expr import K, Q, ScoreExpr, leaves
from onnx_fa.spec import AddMask, AttentionSpec, BoolMask, Causal, Dim, Elementwise, MaskTerm, Offset, SlidingWindow
from onnx_fa.target import Target
from onnx_fa.tuning.database import family, pick

LOG2E = math.log2(math.e)
LN2 = math.log(2.0)

MLIR_DTYPE = {"f64": "f64", "f32": "f32", "f16": "f16", "bf16": "bf16", "bool": "i1", "i32": "i32", "i64": "i64"}

FINITE_FILLS = (-1e30, -1e33, -1e36)
"""What stands for the finite fills of a spec, weakest first. Each swallows any score it is added to, as a `where`
would, and log2(e) times it still is a finite f32 (finfo.min is not)."""

STRONGEST_MODERATE_FILL = -1e4
"""A finite fill above this may compete with real scores, which adding cannot express."""

ADD_LIMIT = 1e37
"""Additive masks are clamped to this magnitude (infinities stay), so that log2(e) times their sum is finite in f32."""

_FLAGS = ("--iree-llvmcpu-max-allowed-number-of-native-vectors=8192",)

ONE_KEY = "one key"
"""The symbol that stands for Skv = 1, hidden from the compiler, which would fold the dim away."""

Axis = tuple[str | None, Dim]
"""An axis of a stored operand: the iteration dim that walks it (None: size 1, nothing walks it) and its size."""


@dataclass(frozen=True)
class OpConfig:
    """Tiles: queries per workgroup, queries per register tile, keys per step; and whether K is transposed first."""

    block_m: int
    tile_m: int
    tile_k2: int
    transpose_k: bool


_TILES = ((64, 4, 32), (96, 4, 64), (128, 2, 64), (192, 2, 32), (512, 2, 32))
"""(largest head dim, tile_m, tile_k2): the fastest tried with 16 lanes, f32, Sq = Skv = 512. At head dim 192, 64 keys
are 20% faster but take 16 s to compile instead of 4, and its spills pass the stack of a runtime worker (so they do at 256)."""


def default_config(spec: AttentionSpec) -> OpConfig:
    """Tiles for a spec, from its head dims and its number of query rows.

    One query row reads K once, so that transposing it first would cost more than the whole attention. (Tiles of 32 keys
    take four times as long to compile, and are no faster.)
    """
    rows = _rows(spec)
    if rows == 1:
        return OpConfig(1, 1, 8, transpose_k=False)
    tile_m, tile_k2 = next(t for dv, *t in _TILES if max(spec.D, spec.Dv) <= dv or dv == _TILES[-1][0])
    block_m = 64
    if isinstance(rows, int):
        tile_m = min(tile_m, rows)
        block_m = min(block_m, -(-rows // tile_m) * tile_m)
    return OpConfig(block_m, tile_m, tile_k2, transpose_k=True)


def tuned(spec: AttentionSpec, target: Target) -> tuple[OpConfig, str]:
    """Tiles measured for the same head dims and kind of length, else the default's; and where they are from.

    Tiles of other head dims may need more stack than a runtime worker has.
    """
    want = family(spec, "op")
    found = pick(target, "op", spec, lambda t: True, lambda t: 1.0)
    if found and (found.entry.family.D, found.entry.family.Dv, found.entry.family.Sq) == (want.D, want.Dv, want.Sq):
        t = found.choice.tiles
        return OpConfig(t["block_m"], t["tile_m"], t["tile_k2"], bool(t["transpose_k"])), found.reason
    return default_config(spec), f"built in: no entry is for {want}"


def emit_op(spec: AttentionSpec, target: Target, name: str, config: OpConfig | None = None) -> Kernel:
    """The kernel for `spec`, named `name`. Raises UnsupportedError with the reason when the op cannot express it."""
    if target.backend != "llvm-cpu":
        raise UnsupportedError(f"the op kernel has no form for backend {target.backend}")
    check_plain(spec)
    if spec.dtype == "f64" or "f64" in spec.operand_dtypes:
        raise UnsupportedError("IREE's attention op computes in f32: f64 attention is not supported")
    if min(spec.D, spec.Dv) < 2:
        raise UnsupportedError(f"head dims D={spec.D}, Dv={spec.Dv}: a head dim of 1 is folded away by the compiler")
    fills = _fills(spec.masks)
    chosen, tuning = (config, "") if config else tuned(spec, target)
    emitter = _Emitter(spec, name, chosen, fills)
    return Kernel(
        name=name,
        text=emitter.text(),
        body="op",
        spec=spec,
        config={k: int(v) for k, v in dataclasses.asdict(chosen).items()},
        flags=_FLAGS,
        tuning=tuning,
    )


def _rows(spec: AttentionSpec) -> Dim:
    """Size of iteration dim m: the queries, or the group when there is one query."""
    return spec.group if spec.Sq == 1 else spec.Sq


def _fills(masks: Sequence[MaskTerm]) -> dict[float, float]:
    """What is added to a score in place of each fill: the same result for every row, also those with no key left."""
    finite: set[float] = set()
    for mask in masks:
        if isinstance(mask, AddMask):
            if any(f > FINITE_FILLS[0] for f in finite):
                raise UnsupportedError("an additive mask after a mask with a moderate finite fill")
            continue
        if isinstance(mask, Elementwise):
            found, adds = _replacements(mask.expr)
            if adds and any(f > FINITE_FILLS[0] for f in (*finite, *found)):
                raise UnsupportedError("a bias after a mask with a moderate finite fill")
        else:
            found = [mask.fill]
        for fill in found:
            if math.isnan(fill) or fill > STRONGEST_MODERATE_FILL:
                raise UnsupportedError(f"a mask fill of {fill} competes with real scores")
            if math.isfinite(fill):
                finite.add(fill)
    if len(finite) > len(FINITE_FILLS):
        raise UnsupportedError(f"more than {len(FINITE_FILLS)} different finite mask fills")
    ladder = dict(zip(sorted(finite, reverse=True), FINITE_FILLS, strict=False))
    return {-math.inf: -math.inf, **ladder}


def _replacements(expr: ScoreExpr) -> tuple[list[float], bool]:
    """The constants that a score expression puts in the score's place, and whether it adds to the score."""
    match expr:
        case ("score",):
            return [], False
        case ("f", value):
            return [value], False
        case ("Where", condition, a, b) if free(condition):
            (first, adds), (second, more) = _replacements(a), _replacements(b)
            return first + second, adds or more
        case ("Add" | "Sub", a, b) if free(b) and not free(a):
            return _replacements(a)[0], True
        case ("Add", a, b) if free(a) and not free(b):
            return _replacements(b)[0], True
    raise UnsupportedError("op kernel: a score function that is more than a mask or a bias")


def _as_mask(expr: ScoreExpr, fills: dict[float, float]) -> ScoreExpr:
    """What a score expression does to the mask, which the score is added to in the end."""
    match expr:
        case ("score",):
            return expr
        case ("f", value):
            return ("f", fills[value])
        case ("Where", condition, a, b):
            return ("Where", condition, _as_mask(a, fills), _as_mask(b, fills))
        case ("Add", a, b):
            return ("Add", _as_mask(a, fills), _limited(b)) if free(b) else ("Add", _limited(a), _as_mask(b, fills))
        case ("Sub", a, b):
            return ("Add", _as_mask(a, fills), _limited(("Neg", b)))
    raise AssertionError(expr[0])


def _limited(bias: ScoreExpr) -> ScoreExpr:
    """A bias within +-ADD_LIMIT; infinities stay."""
    infinite: ScoreExpr = ("Equal", ("Abs", bias), ("f", math.inf))
    return ("Where", infinite, bias, ("Min", ("Max", bias, ("f", -ADD_LIMIT)), ("f", ADD_LIMIT)))


def _float(value: float) -> str:
    """An f32 constant, exact, infinities included."""
    return f"0x{struct.unpack('<I', struct.pack('<f', value))[0]:08X}"


def _type(dims: Sequence[Dim], dtype: str) -> str:
    sizes = "".join(f"{d if isinstance(d, int) else '?'}x" for d in dims)
    return f"tensor<{sizes}{MLIR_DTYPE[dtype]}>"


@dataclass(frozen=True)
class _Operand:
    """A tensor at the dispatch boundary. `axes` are its stored axes with the query heads split in (h, g)."""

    name: str
    stored: tuple[Dim, ...]
    axes: tuple[Axis, ...]
    dtype: str

    @property
    def split(self) -> tuple[Dim, ...]:
        return tuple(size for _, size in self.axes)

    @property
    def walked(self) -> tuple[tuple[str, Dim], ...]:
        """The axes that an iteration dim walks; the others are dropped when the tensor is loaded."""
        return tuple((name, size) for name, size in self.axes if name is not None)

    @property
    def dims(self) -> tuple[str, ...]:
        return tuple(name for name, _ in self.walked)

    @property
    def loaded(self) -> str:
        return _type([size for _, size in self.walked], self.dtype)


class _Emitter:
    """Builds the text of one kernel."""

    def __init__(self, spec: AttentionSpec, name: str, config: OpConfig, fills: dict[float, float]) -> None:
        if spec.Skv == 1:
            spec = dataclasses.replace(spec, Skv=ONE_KEY)
        self.spec, self.name, self.config, self.fills = spec, name, config, fills
        self.fold = spec.Sq == 1 and spec.group > 1
        batch_names = [f"b{i}" for i in range(len(spec.batch))]
        heads = spec.Hkv if spec.group > 1 else spec.Hq
        outer: list[tuple[str, Dim]] = [*zip(batch_names, spec.batch, strict=True), ("h", heads)]
        if spec.group > 1 and not self.fold:
            outer.append(("g", spec.group))
        self.outer = {n: d for n, d in outer if d != 1}
        inner: dict[str, Dim] = {"m": _rows(spec), "n": spec.Dv, "k1": spec.D, "k2": spec.Skv}
        self.sizes: dict[str, Dim] = {**self.outer, **{n: d for n, d in inner.items() if d != 1}}
        self.rows = (*self.outer, "m") if "m" in self.sizes else tuple(self.outer)
        self.order = list(self.sizes)
        q, k, v, o = spec.canonical_shapes
        kinds = (("Hq", "m", "k1"), ("Hkv", "k2", "k1"), ("Hkv", "k2", "n"), ("Hq", "m", "n"))
        layouts = (spec.q_layout, spec.k_layout, spec.v_layout, spec.o_layout)
        self.q, self.k, self.v, self.o = (
            self._operand(letter, shape, (*batch_names, *kind), layout, spec.dtype)
            for letter, shape, kind, layout in zip("qkvo", (q, k, v, o), kinds, layouts, strict=True)
        )
        score_axes = (*batch_names, "Hq", "m", "k2")
        self.masks = [
            self._operand(f"t{i}", m.shape, score_axes[len(score_axes) - len(m.shape) :], None, dtype)
            for i, (m, dtype) in enumerate(zip(spec.tensors, spec.operand_dtypes[3:], strict=False))
        ]
        self.sink = None
        if spec.sink is not None:
            axes = score_axes[len(score_axes) - len(spec.sink.shape) :]
            self.sink = self._operand("t_sink", spec.sink.shape, axes, None, spec.sink.dtype)

    def _operand(
        self, letter: str, shape: Sequence[Dim], kinds: Sequence[str], layout: Sequence[int] | None, dtype: str
    ) -> _Operand:
        """`shape` and `kinds` are in canonical order; the result is in stored order."""
        axes: list[Axis] = []
        stored = []
        for a in layout or range(len(shape)):
            size, kind = shape[a], kinds[a]
            stored.append(1 if size == ONE_KEY else size)
            if kind == "Hq" and self.spec.group > 1 and size != 1:
                axes += [self._axis("h", self.spec.Hkv), ("m" if self.fold else "g", self.spec.group)]
            elif kind == "m" and self.fold:
                axes.append((None, 1))
            else:
                axes.append(self._axis({"Hq": "h", "Hkv": "h"}.get(kind, kind), size))
        if letter.startswith("t"):  # a mask's axes of size 1 broadcast
            axes = [(None if size == 1 else name, size) for name, size in axes]
        return _Operand(letter, tuple(stored), tuple(axes), dtype)

    def _axis(self, name: str, size: Dim) -> Axis:
        return (name if name in self.sizes else None, size)

    # Small pieces of text.

    def _map(self, dims: Sequence[str]) -> str:
        return f"affine_map<({', '.join(self.order)}) -> ({', '.join(dims)})>"

    def _shape(self, dims: Sequence[str]) -> tuple[Dim, ...]:
        return tuple(self.sizes[d] for d in dims)

    def _size(self, symbol: str) -> str:
        """The value that holds a symbol's size: symbols are any text, values are not."""
        return f"%dim{self.spec.symbols.index(symbol)}"

    def _dynamic(self, dims: Sequence[Dim]) -> str:
        return ", ".join(self._size(d) for d in dims if isinstance(d, str))

    def _braces(self, dims: Sequence[Dim]) -> str:
        """The list of dynamic sizes that a flow or dispatch tensor carries."""
        return f"{{{self._dynamic(dims)}}}" if self._dynamic(dims) else ""

    def _empty(self, name: str, dims: Sequence[Dim], dtype: str) -> str:
        return f"%{name} = tensor.empty({self._dynamic(dims)}) : {_type(dims, dtype)}"

    def _bounds(self, dims: Sequence[Dim]) -> str:
        sizes = ", ".join(str(d) if isinstance(d, int) else self._size(d) for d in dims)
        zeros, ones = ", ".join("0" for _ in dims), ", ".join("1" for _ in dims)
        return f"offsets = [{zeros}], sizes = [{sizes}], strides = [{ones}]"

    def _binding(self, x: _Operand, access: str) -> str:
        return f"!iree_tensor_ext.dispatch.tensor<{access}:{_type(x.split, x.dtype)}>"

    # The parts of the kernel.

    def text(self) -> str:
        spec, name = self.spec, self.name
        further = [*self.masks, *([self.sink] if self.sink else [])]
        inputs = [self.q, self.k, self.v, *further]
        out: list[str] = []
        key = self.k
        if self._transposes_k():
            key = _Operand("kt", (), tuple((d, self.sizes[d]) for d in (*self._kv_outer(), "k1", "k2")), "f32")
            out.append(self._executable("transpose", [self.k], key, self._transpose_body(key)))
        inside = [self.q, key, self.v, *further]
        out.append(self._executable("attention", inside, self.o, self._attention_body(key)))

        args = ", ".join(f"%{x.name}: {_type(x.stored, x.dtype)}" for x in inputs)
        result = _type(self.o.stored, self.o.dtype)
        body = [f"util.func private @{name}({args}) -> {result} {{"]
        for i in range(max(len(x.stored) for x in inputs)):
            body.append(f"  %axis{i} = arith.constant {i} : index")
        for symbol in spec.symbols:
            if symbol == ONE_KEY:
                body.append(f"  {self._size(symbol)} = util.optimization_barrier %axis1 : index")
                continue
            x, axis = next((x, x.stored.index(symbol)) for x in inputs if symbol in x.stored)
            body.append(f"  {self._size(symbol)} = tensor.dim %{x.name}, %axis{axis} : {_type(x.stored, x.dtype)}")
        for x in inputs:
            body.append("  " + self._reshape(f"{x.name}_", x.name, x.dtype, x.stored, x.split))
        if key is not self.k:
            body.append("  " + self._dispatch("transpose", [self.k], key))
        body.append("  " + self._dispatch("attention", inside, self.o))
        body.append("  " + self._reshape("result", "o_", self.o.dtype, self.o.split, self.o.stored))
        body.append(f"  util.return %result : {result}\n}}")
        out.append("\n".join(body))
        return "\n".join(out) + "\n"

    def _kv_outer(self) -> list[str]:
        return [d for d in self.outer if d in self.k.dims]

    def _transposes_k(self) -> bool:
        return self.config.transpose_k and self.k.dims[-1] == "k1"

    def _reshape(self, result: str, source: str, dtype: str, old: Sequence[Dim], new: Sequence[Dim]) -> str:
        types = f"{_type(old, dtype)}{self._braces(old)} -> {_type(new, dtype)}{self._braces(new)}"
        return f"%{result} = flow.tensor.reshape %{source} : {types}"

    def _dispatch(self, part: str, inputs: Sequence[_Operand], result: _Operand) -> str:
        entry = f"@{self.name}_{part}::@{self.name}_{part}"
        symbols = self.spec.symbols
        workload = f"[{self._dynamic(symbols)}]" if symbols else ""
        args = ", ".join([*(f"%{x.name}_" for x in inputs), *map(self._size, symbols)])
        types = [f"{_type(x.split, x.dtype)}{self._braces(x.split)}" for x in inputs] + ["index"] * len(symbols)
        to = f"{_type(result.split, result.dtype)}{self._braces(result.split)}"
        return f"%{result.name}_ = flow.dispatch {entry}{workload}({args}) : ({', '.join(types)}) -> {to}"

    def _executable(self, part: str, inputs: Sequence[_Operand], result: _Operand, body: Sequence[str]) -> str:
        symbols = self.spec.symbols
        args = [f"%{x.name}_arg: {self._binding(x, 'readonly')}" for x in inputs]
        args += [f"{self._size(s)}_arg: index" for s in symbols]
        args.append(f"%{result.name}_arg: {self._binding(result, 'writeonly')}")
        lines = [
            f"  %dim{i} = iree_tensor_ext.dispatch.workload.ordinal %dim{i}_arg, {i} : index"
            for i in range(len(symbols))
        ]
        for x, access in [*((x, "readonly") for x in inputs), (result, "writeonly")]:
            binding, tied = self._binding(x, access), self._braces(x.split)
            source = f"%{x.name}_arg"
            if tied:
                lines.append(f"  %{x.name}_tied = flow.dispatch.tie_shape {source} : {binding}{tied}")
                source = f"%{x.name}_tied"
            if access == "readonly":
                load = f"iree_tensor_ext.dispatch.tensor.load {source}, {self._bounds(x.split)}"
                lines.append(f"  %{x.name} = {load} : {binding}{tied} -> {x.loaded}")
            else:
                target = source
        lines += [f"  {line}" for line in body]
        store = f"iree_tensor_ext.dispatch.tensor.store %{result.name}, {target}, {self._bounds(result.split)}"
        binding, tied = self._binding(result, "writeonly"), self._braces(result.split)
        lines.append(f"  {store} : {result.loaded} -> {binding}{tied}")
        workload = [f"%w{i}" for i in range(len(symbols))]
        return "\n".join(executable(f"{self.name}_{part}", workload, None, args, lines))

    def _elementwise(
        self,
        result: str,
        dims: Sequence[str],
        sources: Sequence[tuple[str, Sequence[str], str]],
        body: Sequence[str],
        dtype: str,
    ) -> list[str]:
        """A linalg.generic over `dims` with inputs (name, dims, dtype) as %x0, %x1, ... whose body ends in %y."""
        shape = self._shape(dims)
        maps = [f"affine_map<({', '.join(dims)}) -> ({', '.join(d)})>" for d in [*(s[1] for s in sources), dims]]
        ins = ""
        if sources:
            names = ", ".join(f"%{s[0]}" for s in sources)
            ins = f"ins({names} : {', '.join(_type(self._shape(s[1]), s[2]) for s in sources)}) "
        types = [MLIR_DTYPE[s[2]] for s in sources]
        args = ", ".join([*(f"%x{i}: {t}" for i, t in enumerate(types)), f"%unused: {MLIR_DTYPE[dtype]}"])
        kinds = ", ".join('"parallel"' for _ in dims)
        return [
            self._empty(f"{result}_empty", shape, dtype),
            f"%{result} = linalg.generic {{indexing_maps = [{', '.join(maps)}], iterator_types = [{kinds}]}} "
            f"{ins}outs(%{result}_empty : {_type(shape, dtype)}) {{",
            f"^bb0({args}):",
            *(f"  {line}" for line in body),
            f"  linalg.yield %y : {MLIR_DTYPE[dtype]}",
            f"}} -> {_type(shape, dtype)}",
        ]

    def _widen(self, x: _Operand) -> tuple[str, list[str]]:
        """The loaded tensor in f32: its name and the ops that make it."""
        if x.dtype == "f32":
            return x.name, []
        body = [f"%y = arith.extf %x0 : {x.dtype} to f32"]
        return f"{x.name}_f32", self._elementwise(f"{x.name}_f32", x.dims, [(x.name, x.dims, x.dtype)], body, "f32")

    def _transpose_body(self, key: _Operand) -> list[str]:
        cast = f"%y = arith.extf %x0 : {self.k.dtype} to f32"
        if self.k.dtype == "f32":
            cast = "%zero = arith.constant -0.0 : f32\n%y = arith.addf %x0, %zero : f32"
        return self._elementwise("kt", key.dims, [("k", self.k.dims, self.k.dtype)], [cast], "f32")

    def _attention_body(self, key: _Operand) -> list[str]:
        spec = self.spec
        lines = [
            f"%scale = arith.constant {_float(spec.scale)} : f32",
            "%zero = arith.constant 0.0 : f32",
            f"%one = arith.constant {_float(1.0)} : f32",
            "%lowest = arith.constant 0xFF7FFFFF : f32",
            *self._mask_constants(),
        ]
        names = []
        for x in (self.q, key, self.v):
            name, ops = self._widen(x)
            names.append(name)
            lines += ops
        mask_dims, ops = self._mask()
        lines += ops
        acc, row = (*self.rows, "n"), self.rows
        acc_type, row_type = _type(self._shape(acc), "f32"), _type(self._shape(row), "f32")
        lines += [self._empty("acc_empty", self._shape(acc), "f32"), self._empty("row_empty", self._shape(row), "f32")]
        fills = [("acc0", "zero", "acc_empty", acc_type)]
        if self.sink is None:
            fills += [("max0", "lowest", "row_empty", row_type), ("sum0", "zero", "row_empty", row_type)]
        else:
            lines += self._sink_rows(self.sink)
        for name, value, empty, kind in fills:
            lines.append(f"%{name} = linalg.fill ins(%{value} : f32) outs(%{empty} : {kind}) -> {kind}")
        dims = [self.q.dims, key.dims, self.v.dims, ()]
        types = [_type(self._shape(d), "f32") for d in dims[:3]] + ["f32"]
        names.append("scale")
        if mask_dims:
            dims.append(mask_dims)
            types.append(_type(self._shape(mask_dims), "f32"))
            names.append("mask")
        maps = ", ".join(self._map(d) for d in [*dims, acc, row, row])
        ins = f"ins({', '.join(f'%{n}' for n in names)} : {', '.join(types)})"
        lines += [
            f"%online:3 = iree_linalg_ext.online_attention <indexing_maps = [{maps}]> "
            f"{{compilation_info = {self._compilation_info()}}} {ins} "
            f"outs(%acc0, %max0, %sum0 : {acc_type}, {row_type}, {row_type}) {{",
            "^bb0(%score: f32):",
            *(f"  {line}" for line in self._score_mods()),
            f"}} -> {acc_type}, {row_type}, {row_type}",
        ]
        body, divisor = [], "%x1"
        if spec.empty_row == "zero":
            # A row with no key left has sum 0 and accumulator 0 (NaN where v has one): divide by 1 instead.
            body = ["%none = arith.cmpf oeq, %x1, %zero : f32", "%sum = arith.select %none, %one, %x1 : f32"]
            divisor = "%sum"
        numerator = "%x0"
        if spec.empty_row == "guarded":
            # The same for a row whose sum is NaN, and its accumulator with it.
            body = [
                "%some = arith.cmpf ogt, %x1, %zero : f32",
                "%sum = arith.select %some, %x1, %one : f32",
                "%acc = arith.select %some, %x0, %zero : f32",
            ]
            numerator, divisor = "%acc", "%sum"
        body.append(f"{'%y' if spec.dtype == 'f32' else '%wide'} = arith.divf {numerator}, {divisor} : f32")
        if spec.dtype != "f32":
            body.append(f"%y = arith.truncf %wide : f32 to {spec.dtype}")
        sources = [("online#0", acc, "f32"), ("online#2", row, "f32")]
        lines += self._elementwise("o", self.o.dims, sources, body, spec.dtype)
        return lines

    def _sink_rows(self, sink: _Operand) -> list[str]:
        """The maximum and the sum that rows start with: a logit without a value."""
        source = "%x0" if sink.dtype == "f32" else "%wide"
        body = [f"%wide = arith.extf %x0 : {sink.dtype} to f32"] if sink.dtype != "f32" else []
        body += [
            f"%limit = arith.constant {_float(-ADD_LIMIT)} : f32",
            "%none = arith.constant 0xFF800000 : f32",
            f"%low = arith.cmpf oeq, {source}, %none : f32",
            f"%raised = arith.maximumf {source}, %limit : f32",
            f"%kept = arith.select %low, {source}, %raised : f32",
            f"%log2e = arith.constant {_float(LOG2E)} : f32",
            "%logit = arith.mulf %kept, %log2e : f32",
            "%most = arith.maximumf %logit, %lowest : f32",
        ]
        sources = [(sink.name, sink.dims, sink.dtype)]
        total = ["%less = arith.subf %logit, %most : f32", "%y = math.exp2 %less : f32"]
        return [
            *self._elementwise("max0", self.rows, sources, [*body, "%y = arith.addf %most, %zero : f32"], "f32"),
            *self._elementwise("sum0", self.rows, sources, [*body, *total], "f32"),
        ]

    def _score_mods(self) -> list[str]:
        """The op's region: it sees score * scale * log2(e) and yields the same unit."""
        lines, value = [], "%score"
        for i, mod in enumerate(self.spec.mods):
            lines += [
                f"%in{i} = arith.constant {_float(LN2 / mod.cap)} : f32",
                f"%out{i} = arith.constant {_float(LOG2E * mod.cap)} : f32",
                f"%a{i} = arith.mulf {value}, %in{i} : f32",
                f"%b{i} = math.tanh %a{i} : f32",
                f"%c{i} = arith.mulf %b{i}, %out{i} : f32",
            ]
            value = f"%c{i}"
        return [*lines, f"iree_linalg_ext.yield {value} : f32"]

    def _mask_constants(self) -> list[str]:
        """Sizes and offsets that the index terms use."""
        lines = []
        for i, mask in enumerate(self.spec.masks):
            if isinstance(mask, (Causal, SlidingWindow)):
                lines += self._offset(f"offset{i}", mask.offset)
        return lines

    def _offset(self, name: str, offset: Offset) -> list[str]:
        if offset != "end":
            return [f"%{name} = arith.constant {offset} : index"]
        sq, skv = self.spec.Sq, self.spec.Skv
        if isinstance(sq, int) and isinstance(skv, int):
            return [f"%{name} = arith.constant {skv - sq} : index"]
        lines, names = [], []
        for size in (skv, sq):
            if isinstance(size, int):
                lines.append(f"%{name}_{size} = arith.constant {size} : index")
            names.append(f"%{name}_{size}" if isinstance(size, int) else self._size(size))
        return [*lines, f"%{name} = arith.subi {names[0]}, {names[1]} : index"]

    def _mask(self) -> tuple[tuple[str, ...], list[str]]:
        """The dims of the mask operand (none: no mask) and the generic that makes it: terms apply in order."""
        spec = self.spec
        if not spec.masks:
            return (), []
        read = {leaf for m in spec.masks if isinstance(m, Elementwise) for leaf in leaves(m.expr)}
        indexed = any(isinstance(m, (Causal, SlidingWindow)) for m in spec.masks) or bool(read & {Q, K})
        rows_matter = indexed and not self.fold and "m" in self.sizes
        used = {"k2"} | ({"m"} if rows_matter else set())
        for x in self.masks:
            used |= set(x.dims)
        dims = tuple(d for d in self.order if d in used)
        body: list[str] = []
        if indexed:
            body.append(f"%j = linalg.index {dims.index('k2')} : index")
            body.append(
                f"%i = linalg.index {dims.index('m')} : index" if rows_matter else "%i = arith.constant 0 : index"
            )
        value, tensor = "%zero", 0
        scalars = Scalars()
        exprs = ExprVectors(scalars, IntBounds(spec.Sq, spec.Skv, spec.tensors), spec.tensors)
        before, terms = body, list(numbered(spec))
        body = []
        for i, (mask, expr) in enumerate(terms):
            if isinstance(mask, Elementwise) and expr is not None:
                known = self._leaves(scalars, value)
                value = exprs.emit(_as_mask(expr, self.fills), known, {}).value
                body += scalars.take()
                tensor += len(mask.tensors)
                continue
            if isinstance(mask, AddMask):
                body += self._add_term(i, mask, f"%x{tensor}", value)
                tensor += 1
            elif not isinstance(mask, Elementwise):
                if isinstance(mask, BoolMask):
                    keep = f"%x{tensor}"
                    tensor += 1
                else:
                    keep, ops = self._index_term(i, mask)
                    body += ops
                body += [
                    f"%fill{i} = arith.constant {_float(self.fills[mask.fill])} : f32",
                    f"%m{i} = arith.select {keep}, {value}, %fill{i} : f32",
                ]
            value = f"%m{i}"
        body = [*before, *scalars.render(), *body, f"%y = arith.addf {value}, %zero : f32"]
        sources = [(x.name, x.dims, x.dtype) for x in self.masks]
        return dims, self._elementwise("mask", dims, sources, body, "f32")

    def _leaves(self, t: Scalars, value: str) -> Callable[[ScoreExpr], Vector | None]:
        """The scalars that expressions read in the mask's generic, where `value` is the mask so far."""

        def known(leaf: ScoreExpr) -> Vector | None:
            match leaf:
                case ("score",):
                    return Vector(value, "f32")
                case ("q",) | ("k",):
                    place = "%i" if leaf == Q else "%j"
                case ("Sq" | "Skv" as which,):
                    size = self.spec.Sq if which == "Sq" else self.spec.Skv
                    place = t.index(size) if isinstance(size, int) else self._size(size)
                case ("tensor", n):
                    dtype = MLIR_DTYPE[self.masks[n].dtype]
                    if dtype in ("f16", "bf16"):
                        return Vector(t.let(f"arith.extf %x{n} : {dtype} to f32"), "f32")
                    return Vector(f"%x{n}", dtype)
                case _:
                    return None
            return Vector(t.let(f"arith.index_cast {place} : index to i32"), "i32")

        return known

    @staticmethod
    def _add_term(i: int, mask: AddMask, source: str, value: str) -> list[str]:
        lines = []
        if mask.dtype != "f32":
            lines.append(f"%wide{i} = arith.extf {source} : {mask.dtype} to f32")
            source = f"%wide{i}"
        largest = 65504.0 if mask.dtype == "f16" else 3.4028234663852886e38
        if largest * abs(mask.factor) > ADD_LIMIT:
            limit = min(ADD_LIMIT / abs(mask.factor), largest)
            lines += [
                f"%hi{i} = arith.constant {_float(limit)} : f32",
                f"%lo{i} = arith.constant {_float(-limit)} : f32",
                f"%inf{i} = arith.constant 0x7F800000 : f32",
                f"%abs{i} = math.absf {source} : f32",
                f"%big{i} = arith.cmpf oeq, %abs{i}, %inf{i} : f32",
                f"%max{i} = arith.maximumf {source}, %lo{i} : f32",
                f"%min{i} = arith.minimumf %max{i}, %hi{i} : f32",
                f"%clamped{i} = arith.select %big{i}, {source}, %min{i} : f32",
            ]
            source = f"%clamped{i}"
        if mask.factor != 1.0:
            lines += [
                f"%factor{i} = arith.constant {_float(mask.factor)} : f32",
                f"%scaled{i} = arith.mulf {source}, %factor{i} : f32",
            ]
            source = f"%scaled{i}"
        return [*lines, f"%m{i} = arith.addf {value}, {source} : f32"]

    @staticmethod
    def _index_term(i: int, mask: Causal | SlidingWindow) -> tuple[str, list[str]]:
        """An i1 that tells whether query %i sees key %j."""
        lines = [f"%pos{i} = arith.addi %i, %offset{i} : index"]
        if isinstance(mask, Causal):
            return f"%keep{i}", [*lines, f"%keep{i} = arith.cmpi sle, %j, %pos{i} : index"]
        keeps = []
        for side, bound, sign, test in (("l", mask.left, -1, "sge"), ("r", mask.right, 1, "sle")):
            if bound is not None:
                lines += [
                    f"%{side}{i} = arith.constant {sign * bound} : index",
                    f"%{side}p{i} = arith.addi %pos{i}, %{side}{i} : index",
                    f"%{side}k{i} = arith.cmpi {test}, %j, %{side}p{i} : index",
                ]
                keeps.append(f"%{side}k{i}")
        if not keeps:
            return f"%keep{i}", [f"%keep{i} = arith.constant true"]
        if len(keeps) == 1:
            return keeps[0], lines
        return f"%keep{i}", [*lines, f"%keep{i} = arith.andi {keeps[0]}, {keeps[1]} : i1"]

    def _compilation_info(self) -> str:
        """Tiles, in the op's order. k1 and n stay whole: tiling k1 gives wrong numbers, tiling n repeats QK."""
        c = self.config
        sizes = {
            "distribution": {"m": c.block_m, "n": 0, "k1": 0, "k2": 0},
            "vector_common_parallel": {"m": c.tile_m, "n": self.spec.Dv, "k1": 0, "k2": 0},
            "vector_reduction": {"k2": c.tile_k2} | dict.fromkeys([*self.outer, "m", "n", "k1"], 0),
        }
        tiles = {level: [size.get(d, 1) for d in self.order] for level, size in sizes.items()}
        levels = ", ".join(f"{k} = {v}" for k, v in tiles.items())
        return (
            f"#iree_codegen.compilation_info<lowering_config = #iree_cpu.lowering_config<{levels}>, "
            f"translation_info = {CPU_TRANSLATION}>"
        )

"""The body of the vector-level attention dispatch: what one workgroup does, as MLIR text.

A workgroup owns BM queries of one head. It keeps Q^T (D x BM, scaled), O^T (Dv x BM) and the scores S^T of one block
of BK keys (BK x BM) on its stack, and walks the keys with the running maximum m and sum l of online softmax:

    S^T = K Q^T;  m' = max(m, S);  P = 2^(S - m');  l = l 2^(m - m') + sum P;  O^T = O^T 2^(m - m') + V^T P

With queries along the lanes the row statistics are plain vectors, and K and V are read as scalars that are broadcast
into fused multiply-adds, in whatever layout they have. Scores are in units of log2, so that exp is exp2.

Index masks (causal, window) decide which key blocks are visited: blocks that no query sees are skipped, blocks that
every query sees run without a compare, and only the blocks on an edge test positions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from onnx_fa.emit.block_bounds import BlockBounds, Range, Truth
from onnx_fa.emit.dequantize import Integers, Scales, stored_shape
from onnx_fa.emit.expr_vectors import ExprVectors, IntBounds, Vector
from onnx_fa.emit.lanes import Lanes
from onnx_fa.emit.mlir_text import I32, tensor_type
from onnx_fa.emit.score_plan import (
    LOG2E,
    ExprStep,
    IndexMask,
    IndexStep,
    kind,
    row_parts,
    score_plan,
    tile_parts,
    tile_slots,
    uses,
    varies,
    window,
)
from onnx_fa.emit.skipping import skipping
from onnx_fa.emit.vector_state import Block, Slab, State
from onnx_fa.expr import SCORE, K, Q, ScoreExpr, leaves
from onnx_fa.spec import LOWEST_STAT, AttentionSpec, Dim, Quantized, Stat, TensorArg

MAX_START = -3.0e38
"""The running maximum before the first key: finite, so that a score of -inf gives 0 and not NaN; below any mask."""
LN2 = math.log(2.0)
FLOAT_MAX = 3.4028234663852886e38
_LOWERING = (
    "#iree_cpu.lowering_config<distribution = [0, 0], vector_common_parallel = [0, 0], vector_reduction = [0, 0]>"
)


@dataclass(frozen=True)
class VectorConfig:
    """Tiles of the kernel, in queries, keys and head dims.

    W lanes of a vector; BM queries per workgroup; BK keys per block; register tiles of RI keys x BM queries (scores)
    and RN head dims x BM queries (output); U steps of the reduction unrolled. BM is a multiple of W, BK of RI.
    Raises ValueError otherwise.
    """

    W: int
    BM: int
    BK: int
    RI: int
    RN: int
    U: int

    def __post_init__(self) -> None:
        if min(self.W, self.BM, self.BK, self.RI, self.RN, self.U) < 1 or self.W not in (4, 8, 16):
            raise ValueError(f"tiles must be positive, and W 4, 8 or 16: {self}")
        self.check()

    def check(self) -> None:
        if self.BM % self.W or self.BK % self.RI:
            raise ValueError(f"BM must be a multiple of W, and BK of RI: {self}")


def operand_types(spec: AttentionSpec) -> list[str]:
    """Element types of the operands as the dispatch sees them: booleans and small integers are bytes."""
    return ["i8" if d in ("bool", "i8", "u8", "i4", "u4") else d for d in spec.operand_dtypes]


def operand_shapes(spec: AttentionSpec) -> list[tuple[Dim, ...]]:
    """Shapes of the operands as the dispatch sees them."""
    return [stored_shape(s, d) for s, d in zip(spec.operand_shapes, spec.operand_dtypes, strict=True)]


def operand_names(spec: AttentionSpec) -> list[str]:
    """The dispatch's arguments for the operands."""
    names = ["%q", "%k", "%v", *(f"%mask{i}" for i in range(len(spec.tensors))), *["%sink"] * (spec.sink is not None)]
    for letter, quant in (("k", spec.k_quant), ("v", spec.v_quant)):
        if quant is not None:
            names += [f"%{letter}_scale", *[f"%{letter}_zero"] * quant.zero_point]
    return names


def widens(spec: AttentionSpec) -> bool:
    """Whether blocks of K and V are made f32 before they are used."""
    return spec.dtype != "f32" or bool(spec.quantized)


def mask_tiles(spec: AttentionSpec) -> int:
    """How many tiles of keys x queries the mask terms need."""
    return sum(tile_slots(part, spec.tensors) for part in tile_parts(score_plan(spec), spec.tensors))


@dataclass(frozen=True)
class _Cut:
    """What a workgroup takes of one stored axis: `size` elements from `offset`; `dim` is None for a single element."""

    offset: str
    size: str
    dim: Dim | None


@dataclass(frozen=True)
class _Row:
    """A key of a block: its place in the block, its position, the key to read for it, and what is known of it alone."""

    at: str
    key: str
    read: str
    known: dict[ScoreExpr, Vector] = field(default_factory=dict)


class VectorBody:
    """Writes the dispatch's function for one spec. Arguments: those of `operand_names`, `dims` for the symbols, %out."""

    def __init__(self, spec: AttentionSpec, config: VectorConfig, splits: int = 1) -> None:
        self.spec, self.config, self.splits = spec, config, splits
        self.t = t = Lanes(config.W)
        self.vectors = self.row_vector_count
        self.dims = {symbol: f"%dim{i}" for i, symbol in enumerate(spec.symbols)}
        self.ragged_keys = not (isinstance(spec.Skv, int) and spec.Skv % config.BK == 0)
        self.few_queries = not (isinstance(spec.Sq, int) and spec.Sq >= config.BM)
        self.plan = score_plan(spec)
        self.parts = tile_parts(self.plan, spec.tensors)
        self.widen = widens(spec)
        self.skips = skipping(spec)
        self.clear_plan = self.plan.without(self.skips.kept)
        self.clear_parts = set(tile_parts(self.clear_plan, spec.tensors))

        self.qT_type = tensor_type((spec.D, config.BM), "f32")
        self.acc_type = tensor_type((spec.Dv, config.BM), "f32")
        self.tile_type = tensor_type((config.BK, config.BM), "f32")
        self.row_type = tensor_type((config.BM,), "f32")
        self.wide_type = tensor_type((config.BK, max(spec.D, spec.Dv)), "f32")
        self.scratch_types = [self.tile_type] * mask_tiles(spec) + [self.wide_type] * self.widen

        self.sq, self.skv = self.dim(spec.Sq), self.dim(spec.Skv)
        wx = t.let("flow.dispatch.workgroup.id[0] : index")
        rest = t.let("flow.dispatch.workgroup.id[1] : index")
        self.lead: list[str] = []
        for d in reversed((*spec.batch, spec.Hq)):
            self.lead.insert(0, t.arith("remui", rest, self.dim(d)))
            rest = t.arith("divui", rest, self.dim(d))
        self.key_limits = (t.index(0), self.skv)
        if splits > 1:
            self.split = t.let("flow.dispatch.workgroup.id[2] : index")
            self.key_limits = self.split_limits()
        bm = t.index(config.BM)
        self.m0 = t.arith("muli", wx, bm)
        if not (isinstance(spec.Sq, int) and spec.Sq % config.BM == 0):
            # The last workgroup moves back to end at the last query; rows shared with its neighbour come out the same.
            back = t.arith("maxsi", t.arith("subi", self.sq, bm), t.index(0))
            self.m0 = t.arith("minsi", self.m0, back)
        self.rows = t.arith("minsi", t.arith("subi", self.sq, self.m0), bm) if self.few_queries else bm
        self.last_row = t.arith("subi", self.rows, t.index(1))

        shapes, types = operand_shapes(spec), operand_types(spec)
        kv_head = t.arith("divui", self.lead[-1], t.index(spec.group)) if spec.group > 1 else self.lead[-1]
        kv_lead = [*self.lead[:-1], kv_head]
        queries = _Cut(self.m0, self.rows, "rows") if self.few_queries else _Cut(self.m0, str(config.BM), config.BM)
        keys = self.whole(spec.Skv)
        self.q = self.load(
            "%q", shapes[0], types[0], self.cuts(self.lead, queries, spec.D, spec.q_layout), spec.q_layout
        )
        widths = [stored_shape((w,), d)[0] for w, d in zip((spec.D, spec.Dv), spec.operand_dtypes[1:3], strict=True)]
        self.k = self.load("%k", shapes[1], types[1], self.cuts(kv_lead, keys, widths[0], spec.k_layout), spec.k_layout)
        self.v = self.load("%v", shapes[2], types[2], self.cuts(kv_lead, keys, widths[1], spec.v_layout), spec.v_layout)
        self.k_integers = self.integers("%k", spec.k_quant, self.k, kv_lead, spec.k_layout, spec.D)
        self.v_integers = self.integers("%v", spec.v_quant, self.v, kv_lead, spec.v_layout, spec.Dv)
        self.stats: list[Slab] = []
        if splits > 1:
            lead = [_Cut(x, "1", None) for x in (self.split, *self.lead)]
            cuts = [[*lead, queries, self.whole(spec.Dv)], [*lead, queries], [*lead, queries]]
            self.out, self.part_best, self.part_total = (
                self.load(name, shape, element, c, access="writeonly")
                for (name, shape, element), c in zip(self.outputs, cuts, strict=True)
            )
        else:
            out_cuts = self.cuts(self.lead, queries, spec.Dv, spec.o_layout)
            self.out = self.load("%out", spec.out_shape, spec.dtype, out_cuts, spec.o_layout, "writeonly")
            row_cuts = [*(_Cut(x, "1", None) for x in self.lead), queries]
            self.stats = [
                self.load(name, shape, element, row_cuts, access="writeonly")
                for name, shape, element in self.outputs[1:]
            ]
        tensors = (*spec.tensors, spec.sink) if spec.sink is not None else spec.tensors
        names = [f"%mask{i}" for i in range(len(spec.tensors))] + ["%sink"]
        self.masks = [
            self.load(name, x.shape, element, self.mask_cuts(x))
            for name, x, element in zip(names, tensors, types[3:], strict=False)
        ]
        self.vector = ExprVectors(t, IntBounds(spec.Sq, spec.Skv, spec.tensors), spec.tensors)
        by_position = any(Q in leaves(e) for e in self.plan.expressions)
        by_position = by_position or any(isinstance(m, IndexMask) for m in spec.masks)
        self.positions = self.query_positions() if by_position else []
        tensor_rows = {i: self.row_vectors(x, self.masks[i]) for i, x in enumerate(spec.tensors) if not varies(x)[1]}
        conditions = (*self.skips.low, *self.skips.kept.values())
        self.row_ranges = {
            i: self.row_range(tensor_rows[i])
            for i in sorted({leaf[1] for e in conditions for leaf in leaves(e) if leaf[0] == "tensor"})
            if i in tensor_rows
        }
        parts = row_parts(self.plan, spec.tensors)
        self.row_values = [
            self.row_parts(parts, j, {i: x[j] for i, x in tensor_rows.items()}) for j in range(self.vectors)
        ]
        self.sink = [
            self.vector.in_log2(x.value)
            for x in (self.row_vectors(spec.sink, self.masks[-1]) if spec.sink is not None else [])
        ]

    def split_limits(self) -> tuple[str, str]:
        """The keys of this workgroup's split: whole blocks, but for the end; none where there are fewer blocks than splits."""
        t, bk = self.t, self.t.index(self.config.BK)
        blocks = t.arith("ceildivui", t.arith("ceildivui", self.skv, bk), t.index(self.splits))
        keys = t.arith("muli", blocks, bk)
        low = t.arith("muli", self.split, keys)
        return low, t.arith("maxsi", low, t.arith("minsi", t.arith("addi", low, keys), self.skv))

    @property
    def outputs(self) -> list[tuple[str, tuple[Dim, ...], str]]:
        """(argument, shape, element type) of what the dispatch writes: the results, or for each split of the keys O, not divided by
        the sum, the maximum and the sum."""
        spec = self.spec
        if self.splits == 1:
            return [(f"%stat{i - 1}" if i else "%out", *result) for i, result in enumerate(spec.results)]
        rows = (self.splits, *spec.batch, spec.Hq, spec.Sq)
        return [("%out", (*rows, spec.Dv), "f32"), ("%best", rows, "f32"), ("%total", rows, "f32")]

    @property
    def row_vector_count(self) -> int:
        """How many vectors hold a number per query."""
        return self.config.BM // self.config.W

    def render(self) -> list[str]:
        """The operations of the function, without its return."""
        t = self.t
        self.qT = self.transposed_queries()
        config = f"{{lowering_config = {_LOWERING}}}"
        empty = t.let(f"tensor.empty() : {self.acc_type}")
        acc = t.let(f"linalg.fill {config} ins({t.f32(0.0)} : f32) outs({empty} : {self.acc_type}) -> {self.acc_type}")
        scratch = tuple(t.let(f"tensor.empty() : {s}") for s in self.scratch_types)
        scores = t.let(f"tensor.empty() : {self.tile_type}")
        best, total = (t.splat(MAX_START),) * self.vectors, (t.splat(0.0),) * self.vectors
        if self.sink:  # one more logit, without a value
            best = tuple(t.maximum(x, t.splat(MAX_START)) for x in self.sink)
            total = tuple(self.once(self.first_sum(x, b)) for x, b in zip(self.sink, best, strict=True))
        state = self.all_keys(State(acc, scores, scratch, best, total))
        results = [(self.out, self.transposed_output(state))]
        results += [(slab, self.row_statistic(i, state)) for i, slab in enumerate(self.stats)]
        if self.splits > 1:
            results.append((self.part_best, self.row_numbers(self.part_best, state.best)))
            results.append((self.part_total, self.row_numbers(self.part_total, self.sums(state.total))))
        for (slab, result), (name, shape, element) in zip(results, self.outputs, strict=True):
            t.do(
                f"iree_tensor_ext.dispatch.tensor.store {result}, {name}, {slab.place} : {slab.type} -> "
                f"{self.binding('writeonly', shape, element)}"
            )
        return t.render()

    def sums(self, total: tuple[str, ...]) -> tuple[str, ...]:
        """The sum of each query."""
        return total

    def row_numbers(self, slab: Slab, vectors: tuple[str, ...]) -> str:
        """A number per query, from vectors of queries."""
        out = slab.value
        for j, x in enumerate(vectors):
            out = self.t.write(x, out, slab.type, self.lane(j), in_bounds=not self.few_queries)
        return out

    def once(self, x: str) -> str:
        """x in the first split of the keys, 0 in the others."""
        if self.splits == 1:
            return x
        first = self.t.let(f"arith.cmpi eq, {self.split}, {self.t.index(0)} : index")
        return self.t.let(f"arith.select {first}, {x}, {self.t.splat(0.0)} : {self.t.vec}")

    def first_sum(self, sink: str, best: str) -> str:
        """What a sink adds to the sums of a vector of queries."""
        return self.t.exp2(self.t.vop("arith.subf", sink, best))

    # Operands.

    def dim(self, d: Dim) -> str:
        return self.t.index(d) if isinstance(d, int) else self.dims[d]

    def tied(self, shape: Sequence[Dim]) -> str:
        """{%dims} of a shape's symbols, as types of dynamic shape are followed by."""
        dynamic = [self.dims[d] for d in shape if isinstance(d, str)]
        return f"{{{', '.join(dynamic)}}}" if dynamic else ""

    def binding(self, access: str, shape: Sequence[Dim], element: str) -> str:
        return f"!iree_tensor_ext.dispatch.tensor<{access}:{tensor_type(shape, element)}>{self.tied(shape)}"

    def whole(self, d: Dim) -> _Cut:
        return _Cut(self.t.index(0), str(d) if isinstance(d, int) else self.dims[d], d)

    def integers(
        self, name: str, quant: Quantized | None, slab: Slab, lead: list[str], layout: tuple[int, ...], width: int
    ) -> Integers | None:
        """K or V as integers with their scales, if that is what they are."""
        if quant is None:
            return None
        rank = self.spec.rank
        shape = (1,) * (rank - len(quant.shape)) + quant.shape

        def scales(arg: str, element: str) -> Scales:
            cuts = []
            for axis, d in zip(layout, shape, strict=True):
                if axis < rank - 2:
                    cuts.append(_Cut(self.t.index(0) if d == 1 else lead[axis], "1", None))
                else:
                    cuts.append(_Cut(self.t.index(0), "1", None) if d == 1 else self.whole(d))
            part = self.load(arg, quant.shape, element, cuts[rank - len(quant.shape) :])
            groups = shape[layout.index(rank - 1)]
            assert isinstance(groups, int)
            rows = shape[layout.index(rank - 2)] != 1
            swapped = slab.swapped and rows and groups > 1
            return Scales(part.value, part.type, element, rows, 0 if groups == 1 else width // groups, swapped)

        zero = scales(f"{name}_zero", "i8") if quant.zero_point else None
        scale = scales(f"{name}_scale", self.spec.dtype)
        return Integers(self.t, quant, slab.value, slab.type, slab.swapped, scale, zero)

    def cuts(self, lead: list[str], rows: _Cut, width: Dim, layout: tuple[int, ...]) -> list[_Cut]:
        """One head of q, k, v or out."""
        canonical = [*(_Cut(x, "1", None) for x in lead), rows, self.whole(width)]
        return [canonical[axis] for axis in layout]

    def mask_cuts(self, mask: TensorArg) -> list[_Cut]:
        """One head of a mask, along the axes that it has."""
        lead = self.lead[max(0, self.spec.rank - len(mask.shape)) :]
        cuts = [_Cut(self.t.index(0) if d == 1 else x, "1", None) for d, x in zip(mask.shape[:-2], lead, strict=False)]
        for d in mask.shape[-2:]:
            cuts.append(_Cut(self.t.index(0), "1", None) if d == 1 else self.whole(d))
        return cuts

    def load(
        self,
        arg: str,
        shape: Sequence[Dim],
        element: str,
        cuts: list[_Cut],
        layout: tuple[int, ...] = (),
        access: str = "readonly",
    ) -> Slab:
        offsets, sizes = ", ".join(c.offset for c in cuts), ", ".join(c.size for c in cuts)
        place = f"offsets = [{offsets}], sizes = [{sizes}], strides = [{', '.join('1' * len(cuts))}]"
        type_ = tensor_type([c.dim for c in cuts if c.dim is not None] or [1], element)
        binding = self.binding(access, shape, element)
        value = self.t.let(f"iree_tensor_ext.dispatch.tensor.load {arg}, {place} : {binding} -> {type_}")
        swapped = bool(layout) and layout.index(self.spec.rank - 1) < layout.index(self.spec.rank - 2)
        return Slab(value, type_, element, place, swapped)

    def query_row(self, row: str) -> str:
        """Rows past the last query stand for the last query, which is then computed several times over."""
        return self.t.arith("minsi", row, self.last_row) if self.few_queries else row

    def query(self, row: str) -> str:
        return self.t.arith("addi", self.m0, self.query_row(row))

    def query_positions(self) -> list[str]:
        """The index of each lane's query, as i32 vectors."""
        t = self.t
        lanes = t.let(f"vector.step : vector<{t.width}xindex>")
        lanes = t.let(f"arith.index_cast {lanes} : vector<{t.width}xindex> to {t.ivec}")
        last = t.broadcast(self.i32(t.arith("subi", self.sq, t.index(1))), I32)
        out = []
        for j in range(self.vectors):
            position = t.arith("addi", t.broadcast(self.i32(t.shifted(self.m0, j * t.width)), I32), lanes, t.ivec)
            out.append(t.arith("minsi", position, last, t.ivec) if self.few_queries else position)
        return out

    def i32(self, index: str) -> str:
        return self.t.let(f"arith.index_cast {index} : index to i32")

    def lane(self, j: int) -> str:
        return self.t.index(j * self.t.width)

    def to_f32(self, value: str, element: str, lanes: str = "") -> str:
        """A scalar (or a vector, with `lanes` such as "16x") of that element type as f32."""
        if element == "f32":
            return value
        types = [f"vector<{lanes}{e}>" if lanes else e for e in (element, "f32")]
        return self.t.let(f"arith.{'uitofp' if element == 'i8' else 'extf'} {value} : {types[0]} to {types[1]}")

    def read_f32(self, slab: Slab, row: str, column: str, in_bounds: bool = True) -> str:
        """W neighbours of a slab's row."""
        x = self.t.read(slab.value, slab.type, row, column, element=slab.element, in_bounds=in_bounds)
        return self.to_f32(x, slab.element, f"{self.t.width}x")

    def extract(self, slab: Slab, *indices: str) -> str:
        at = indices[::-1] if slab.swapped else indices
        value = self.t.let(f"tensor.extract {slab.value}[{', '.join(at)}] : {slab.type}")
        return self.to_f32(value, slab.element)

    # Into and out of the layout with queries along the lanes.

    def over_tiles(self, width: int, init: str, type_: str, body: Callable[[str, str, str], str]) -> str:
        """body(row, column, tensor) for each W x W tile of BM x width; the last overlaps where W does not divide it, and
        reaches over the edge where the width is below W."""
        t, w = self.t, self.t.width
        zero, step, whole = t.index(0), t.index(w), t.index(width - width % w)

        def rows(row: str, carried: list[str]) -> list[str]:
            out = t.loop((zero, whole, step), [(carried[0], type_)], lambda d, c: [body(row, d, c[0])])
            return [body(row, t.index(max(width - w, 0)), out[0])] if width % w else out

        return t.loop((zero, t.index(self.config.BM), step), [(init, type_)], rows)[0]

    def over_rows(self, width: int, init: str, type_: str, body: Callable[[str, str, str], str]) -> str:
        """body(d, column, tensor) for each vector of width x BM."""
        t = self.t
        columns = (t.index(0), t.index(self.config.BM), t.index(t.width))

        def rows(d: str, carried: list[str]) -> list[str]:
            return t.loop(columns, [(carried[0], type_)], lambda column, c: [body(d, column, c[0])])

        return t.loop((t.index(0), t.index(width), t.index(1)), [(init, type_)], rows)[0]

    @property
    def query_factor(self) -> float:
        """What queries are multiplied by: the scale, and the first softcap or the change of unit."""
        return self.spec.scale / self.spec.mods[0].cap if self.spec.mods else self.spec.scale * self.unit

    def transposed_queries(self) -> str:
        """Q^T, D x BM, times the scale (and log2 e, where nothing needs scores as they are)."""
        t, spec, wide = self.t, self.spec, self.t.width <= self.spec.D
        factor = self.query_factor
        scale = t.splat(factor)

        def swapped(d: str, row: str, out: str) -> str:
            if self.few_queries:  # one by one, so that the last query is repeated
                for lane in range(t.width):
                    column = t.shifted(row, lane)
                    x = t.arith("mulf", self.extract(self.q, self.query_row(column), d), t.f32(factor), "f32")
                    out = t.let(f"tensor.insert {x} into {out}[{d}, {column}] : {self.qT_type}")
                return out
            x = self.read_f32(self.q, d, row)
            return t.write(t.vop("arith.mulf", x, scale), out, self.qT_type, d, row)

        def body(row: str, d: str, out: str) -> str:
            rows = [self.read_f32(self.q, self.query_row(t.shifted(row, i)), d, wide) for i in range(t.width)]
            for i, x in enumerate(t.transpose([t.vop("arith.mulf", x, scale) for x in rows])[: spec.D]):
                out = t.write(x, out, self.qT_type, t.shifted(d, i), row)
            return out

        empty = t.let(f"tensor.empty() : {self.qT_type}")
        if self.q.swapped:
            return self.over_rows(spec.D, empty, self.qT_type, swapped)
        return self.over_tiles(spec.D, empty, self.qT_type, body)

    def inverse(self, total: str) -> str:
        """1 / l of a vector of sums, or what stands for it in rows without a key."""
        t, zero = self.t, self.t.splat(0.0)
        if self.splits > 1:
            return t.splat(1.0)
        inverse = t.vop("arith.divf", t.splat(1.0), total)
        if self.spec.empty_row == "zero":
            return t.select(t.compare("oeq", total, zero), zero, inverse)
        if self.spec.empty_row == "guarded":
            return t.select(t.compare("ogt", total, zero), inverse, zero)
        return inverse

    def guarded(self, x: str, total: str) -> str:
        """x, but zero where the probabilities are NaN."""
        return self.t.select(self.t.compare("ord", total, total), x, self.t.splat(0.0))

    def write_out(self, x: str, result: str, row: str, column: str, inside: bool) -> str:
        """The result with a vector of it replaced, in its element type."""
        t, out = self.t, self.out
        if out.element != "f32":
            x = t.let(f"arith.truncf {x} : {t.vec} to vector<{t.width}x{out.element}>")
        return t.write(x, result, out.type, row, column, element=out.element, in_bounds=inside)

    def transposed_output(self, state: State) -> str:
        """O = (O^T / l)^T. Rows without a key have l = 0: they are NaN (0 * inf), or 0 if the spec says so."""
        t, spec, out = self.t, self.spec, self.out
        guarded = spec.empty_row == "guarded" and self.splits == 1
        inverses = t.let(f"tensor.empty() : {self.row_type}")
        sums = t.let(f"tensor.empty() : {self.row_type}") if guarded else ""
        for j, total in enumerate(state.total):
            if guarded:
                sums = t.write(total, sums, self.row_type, self.lane(j))
            inverses = t.write(self.inverse(total), inverses, self.row_type, self.lane(j))

        def value(d: str, row: str) -> str:
            x = t.vop("arith.mulf", t.read(state.acc, self.acc_type, d, row), t.read(inverses, self.row_type, row))
            return self.guarded(x, t.read(sums, self.row_type, row)) if guarded else x

        def write(x: str, result: str, at: str, column: str, inside: bool) -> str:
            return self.write_out(x, result, at, column, inside)

        def body(row: str, d: str, result: str) -> str:
            columns = [value(t.shifted(d, i), row) for i in range(min(t.width, spec.Dv))]
            columns += [t.splat(0.0)] * (t.width - len(columns))
            for i, x in enumerate(t.transpose(columns)):
                result = write(x, result, self.query_row(t.shifted(row, i)), d, spec.Dv >= t.width)
            return result

        if out.swapped:
            columnwise = lambda d, row, result: write(value(d, row), result, d, row, not self.few_queries)  # noqa: E731
            return self.over_rows(spec.Dv, out.value, out.type, columnwise)
        return self.over_tiles(spec.Dv, out.value, out.type, body)

    def row_statistic(self, i: int, state: State) -> str:
        """A row statistic of every query, as the tensor of that result."""
        t, slab = self.t, self.stats[i]
        tile, type_ = (
            (t.let(f"tensor.empty() : {self.row_type}"), self.row_type) if self.few_queries else (slab.value, slab.type)
        )
        for j, (best, total) in enumerate(zip(state.best, state.total, strict=True)):
            x = self.statistic(self.spec.stats[i], best, total)
            tile = t.write(x, tile, type_, self.lane(j))
        if not self.few_queries:
            return tile

        def copy(row: str, carried: list[str]) -> list[str]:
            """One by one: of vectors that reach over the end, all but the first would be lost (docs/iree-bugs.md)."""
            x = t.let(f"tensor.extract {tile}[{row}] : {type_}")
            return [t.let(f"tensor.insert {x} into {carried[0]}[{row}] : {slab.type}")]

        return t.loop((t.index(0), self.rows, t.index(1)), [(slab.value, slab.type)], copy)[0]

    def statistic(self, which: Stat, best: str, total: str) -> str:
        """The largest score, or the logarithm of the sum of exponentials, in natural units; total is in units of best."""
        t = self.t
        x = t.vop("arith.mulf", best, t.splat(LN2))
        if which == "lse":
            x = t.vop("arith.addf", x, t.vop("math.log", total))
        # Such a number is a mask's, raised to MASK_FLOOR so that log2(e) times it was finite.
        x = t.select(t.compare("ole", x, t.splat(LOWEST_STAT * 0.999)), t.splat(-FLOAT_MAX), x)
        infinite = t.splat(math.inf)
        x = t.select(t.compare("oeq", best, infinite), infinite, t.select(t.compare("uno", total, total), total, x))
        nothing = t.compare("ole", best, t.splat(MAX_START)), t.compare("oeq", total, t.splat(0.0))
        return t.select(t.arith("andi", *nothing, t.bvec), t.splat(-math.inf), x)

    # Masks.

    @property
    def unit(self) -> float:
        """What a score is multiplied by before the mask terms see it."""
        return 1.0 if self.plan.natural else LOG2E

    def to_vector(self, value: str, element: str) -> Vector:
        """A vector of a tensor's elements, as expressions take them."""
        if element == "i8":
            zero = self.t.constant("dense<0>", f"vector<{self.t.width}xi8>")
            return Vector(self.t.let(f"arith.cmpi ne, {value}, {zero} : vector<{self.t.width}xi8>"), "i1")
        if element in ("i32", "i64"):
            return Vector(value, element)
        return Vector(self.to_f32(value, element, f"{self.t.width}x"), "f32")

    def splat_of(self, slab: Slab, *indices: str) -> Vector:
        """One element of a tensor in every lane."""
        value = self.t.let(f"tensor.extract {slab.value}[{', '.join(indices)}] : {slab.type}")
        return self.to_vector(self.t.broadcast(value, slab.element), slab.element)

    def row_vectors(self, tensor: TensorArg, slab: Slab) -> list[Vector]:
        """A tensor that does not vary along the keys, per vector of queries."""
        t = self.t
        if not varies(tensor)[0]:
            return [self.splat_of(slab, t.index(0))] * self.vectors
        row_type = tensor_type((self.config.BM,), slab.element)

        def body(row: str, carried: list[str]) -> list[str]:
            value = t.let(f"tensor.extract {slab.value}[{self.query(row)}] : {slab.type}")
            return [t.let(f"tensor.insert {value} into {carried[0]}[{row}] : {row_type}")]

        empty = t.let(f"tensor.empty() : {row_type}")
        rows = t.loop((t.index(0), t.index(self.config.BM), t.index(1)), [(empty, row_type)], body)[0]
        vectors = [t.read(rows, row_type, self.lane(j), element=slab.element) for j in range(self.vectors)]
        return [self.to_vector(x, slab.element) for x in vectors]

    def row_parts(self, parts: list[ScoreExpr], j: int, tensors: dict[int, Vector]) -> dict[ScoreExpr, Vector]:
        """What of the mask terms does not change with the key, for one vector of queries."""

        def known(expr: ScoreExpr) -> Vector | None:
            if expr == Q:
                return Vector(self.positions[j], "i32")
            return tensors[expr[1]] if expr[0] == "tensor" else self.length(expr)

        memo: dict[ScoreExpr, Vector] = {}
        return {part: self.vector.emit(part, known, memo) for part in parts}

    def row_range(self, vectors: list[Vector]) -> Range:
        """The least and the largest of integers or booleans over the workgroup's queries."""
        if vectors[0].element == "i1":
            vectors = [self.as_i32(v) for v in vectors]
        low, high = vectors[0].value, vectors[0].value
        for v in vectors[1:]:
            low, high = (self.t.arith(op, x, v.value, v_type) for op, x, v_type in self.extremes(low, high, v.element))
        return self.least_and_largest(low, high, vectors[0].element)

    def as_i32(self, x: Vector) -> Vector:
        return Vector(self.t.let(f"arith.extui {x.value} : {self.t.bvec} to {self.t.ivec}"), "i32")

    def extremes(self, low: str, high: str, element: str) -> list[tuple[str, str, str]]:
        """(operation, value, type) for the next least and the next largest."""
        return [("minsi", low, self.t.type(element)), ("maxsi", high, self.t.type(element))]

    def least_and_largest(self, low: str, high: str, element: str) -> Range:
        """The ends of vectors of least and of largest, as indices."""
        t, found = self.t, []
        for op, x, type_ in self.extremes(low, high, element):
            x = t.let(f"vector.reduction <{op}>, {x} : {type_} into {element}")
            found.append(t.let(f"arith.index_cast {x} : {element} to index"))
        return found[0], found[1]

    def key_range(self, i: int, k0: str, rows: str) -> Range:
        """The least and the largest of a tensor of integers or booleans that varies along the keys alone, over a block."""
        t, slab = self.t, self.masks[i]
        first = t.let(f"tensor.extract {slab.value}[{k0}] : {slab.type}")  # stands for what lies past the last key

        def value(at: str) -> Vector:
            x = t.let(
                f"vector.transfer_read {slab.value}[{at}], {first} {{in_bounds = [false]}} : {slab.type}, "
                f"{t.type(slab.element)}"
            )
            x_ = self.to_vector(x, slab.element)
            return self.as_i32(x_) if x_.element == "i1" else x_

        start = value(k0)

        def body(at: str, carried: list[str]) -> list[str]:
            x = value(t.arith("addi", k0, at))
            return [t.arith(op, y, x.value, type_) for op, y, type_ in self.extremes(carried[0], carried[1], x.element)]

        carried = [(start.value, t.type(start.element))] * 2
        low, high = t.loop((t.index(0), rows, t.index(t.width)), carried, body)
        return self.least_and_largest(low, high, start.element)

    def length(self, expr: ScoreExpr) -> Vector | None:
        if expr[0] not in ("Sq", "Skv"):
            return None
        return Vector(self.t.broadcast(self.i32(self.sq if expr[0] == "Sq" else self.skv), I32), "i32")

    def mask_tile(self, part: ScoreExpr, tiles: list[str], block: Block) -> list[str]:
        """A block of what is made from one Sq x Skv tensor, transposed into one tile, or two for the halves of integers."""
        t, w = self.t, self.t.width
        slab = self.masks[next(leaf[1] for leaf in leaves(part) if leaf[0] == "tensor")]
        carried_types = [self.tile_type] * len(tiles)

        def read(row: str, column: str) -> list[str]:
            x = t.read(slab.value, slab.type, row, column, element=slab.element, in_bounds=not block.edge)
            tensor = self.to_vector(x, slab.element)
            value = self.vector.emit(part, lambda e: tensor if e[0] == "tensor" else None, {})
            return self.as_floats(value)

        def keys(key: str, carried: list[str]) -> list[str]:
            column = t.arith("addi", block.k0, key)

            def queries(row: str, inner: list[str]) -> list[str]:
                rows = [read(self.query(t.shifted(row, i)), column) for i in range(w)]
                out = list(inner)
                for tile in range(len(out)):
                    for i, x in enumerate(t.transpose([r[tile] for r in rows])):
                        out[tile] = t.write(x, out[tile], self.tile_type, t.shifted(key, i), row)
                return out

            bounds = (t.index(0), t.index(self.config.BM), t.index(w))
            return t.loop(bounds, list(zip(carried, carried_types, strict=True)), queries)

        bounds = (t.index(0), block.rows, t.index(w))
        return t.loop(bounds, list(zip(tiles, carried_types, strict=True)), keys)

    def as_floats(self, x: Vector) -> list[str]:
        """A vector as f32 vectors that can be moved about: integers by their bits, the low half first."""
        t = self.t
        if x.element == "f32":
            return [x.value]
        if x.element == "i1":
            return [t.select(x.value, t.splat(1.0), t.splat(0.0))]
        wide = f"vector<{t.width}xi64>"
        value = x.value if x.element == "i64" else t.let(f"arith.extsi {x.value} : {t.ivec} to {wide}")
        high = t.arith("shrui", value, t.constant("dense<32>", wide), wide)
        halves = [t.let(f"arith.trunci {h} : {wide} to {t.ivec}") for h in (value, high)]
        return [t.let(f"arith.bitcast {h} : {t.ivec} to {t.vec}") for h in halves]

    def from_floats(self, part: ScoreExpr, values: list[str]) -> Vector:
        """The inverse of `as_floats`."""
        t, element = self.t, kind(part, self.spec.tensors)
        if element == "float":
            return Vector(values[0], "f32")
        if element == "bool":
            return Vector(t.compare("one", values[0], t.splat(0.0)), "i1")
        wide = f"vector<{t.width}xi64>"
        bits = [t.let(f"arith.bitcast {v} : {t.vec} to {t.ivec}") for v in values]
        low, high = (t.let(f"arith.extui {b} : {t.ivec} to {wide}") for b in bits)
        high = t.arith("shli", high, t.constant("dense<32>", wide), wide)
        return Vector(t.arith("ori", low, high, wide), "i64")

    def expression(self, expr: ScoreExpr, score: str, row: _Row, j: int, tiles: dict[ScoreExpr, list[str]]) -> str:
        """A step of the plan for one vector of queries and one key."""
        t, tensors = self.t, self.spec.tensors

        def by_key(e: ScoreExpr) -> Vector | None:
            if e == K:
                return Vector(t.broadcast(self.i32(row.key), I32), "i32")
            if e in self.row_values[j]:
                return self.row_values[j][e]  # the same in every lane, as nothing here varies along the queries
            return self.splat_of(self.masks[e[1]], row.read) if e[0] == "tensor" else None

        def known(e: ScoreExpr) -> Vector | None:
            if e == SCORE:
                return Vector(score, "f32")
            if e in self.row_values[j]:
                return self.row_values[j][e]
            if e in tiles:
                return self.from_floats(e, [t.read(x, self.tile_type, row.at, self.lane(j)) for x in tiles[e]])
            if uses(e, tensors) == {"k"}:
                return self.vector.emit(e, by_key, row.known)
            return None

        return self.vector.emit(expr, known, {}).value

    def offset(self, mask: IndexMask) -> str:
        return self.t.arith("subi", self.skv, self.sq) if mask.offset == "end" else self.t.index(mask.offset)

    def index_mask(self, step: IndexStep, score: str, key: str, j: int) -> str:
        """key - offset - right <= query <= key - offset + left"""
        t, mask = self.t, step.mask
        at = self.i32(t.arith("subi", key, self.offset(mask)))
        left, right = window(mask)
        bounds = [("sle", -right)] if right is not None else []
        bounds += [("sge", left)] if left is not None else []
        for predicate, by in bounds:
            limit = t.broadcast(t.arith("addi", at, t.constant(str(by), I32), I32), I32)
            keep = t.let(f"arith.cmpi {predicate}, {limit}, {self.positions[j]} : {t.ivec}")
            score = t.select(keep, score, t.splat(step.fill))
        return score

    def steps(self, block: Block) -> tuple[IndexStep | ExprStep, ...]:
        return (self.clear_plan if block.clear else self.plan).steps

    def capped(self, s: str) -> str:
        """The product of q and k, scaled as `query_factor` says, after the softcaps."""
        t, mods = self.t, self.spec.mods
        for mod, following in zip(mods, (*mods[1:], None), strict=False):
            s = t.vop("math.tanh", s)
            s = t.vop("arith.mulf", s, t.splat(mod.cap / following.cap if following else mod.cap * self.unit))
        return s

    def score(self, raw: str, row: _Row, j: int, block: Block, tiles: dict[ScoreExpr, list[str]]) -> str:
        """What the softmax sees, in units of log2, for one vector of queries and one key."""
        t, s = self.t, self.capped(raw)
        for step in self.steps(block):
            if not isinstance(step, IndexStep):
                s = self.expression(step.expr, s, row, j, tiles)
            elif block.edge:
                s = self.index_mask(step, s, row.key, j)
        if block.edge and self.ragged_keys:
            inside = t.broadcast(t.arith("cmpi slt,", row.key, self.skv), "i1")
            s = t.select(inside, s, t.splat(-math.inf))
        return s

    # One block of keys.

    def fma_tile(
        self,
        scalars: list[Callable[[str], str]],
        steps: str | int,
        unroll: int,
        right: str,
        right_type: str,
        inits: list[list[str]],
    ) -> list[list[str]]:
        """Register tile: inits[row][j] + sum over steps k of scalars[row](k) * right[k, vector j of the queries]."""
        t, n = self.t, self.vectors

        def step(k: str, acc: list[str], count: int) -> list[str]:
            acc = list(acc)
            for u in range(count):
                at = t.shifted(k, u)
                vectors = [t.read(right, right_type, at, self.lane(j)) for j in range(n)]
                for i, scalar in enumerate(scalars):
                    b = t.broadcast(scalar(at))
                    for j in range(n):
                        acc[i * n + j] = t.vop("vector.fma", b, vectors[j], acc[i * n + j])
            return acc

        rest = steps % unroll if isinstance(steps, int) else 0
        end = t.index(steps - rest) if isinstance(steps, int) else steps
        carried = [(x, t.vec) for row in inits for x in row]
        out = t.loop((t.index(0), end, t.index(unroll)), carried, lambda k, acc: step(k, acc, unroll))
        if rest:
            out = step(end, out, rest)
        return [out[i * n : (i + 1) * n] for i in range(len(scalars))]

    def widened(self, slab: Slab, integers: Integers | None, width: int, tile: str, block: Block) -> str:
        """Copies a block of K or V to f32: once per block instead of once per use."""
        t, w = self.t, self.t.width

        def body(i: str, carried: list[str]) -> list[str]:
            row = self.row(block, i).read
            by_one = slab.swapped or width < w if integers is None else not integers.in_vectors(width)
            vector = integers.row(row) if integers is not None and not by_one else lambda d: self.read_f32(slab, row, d)

            def copy(d: str, out: str) -> str:
                if not by_one:
                    return t.write(vector(d), out, self.wide_type, i, d)
                x = self.extract(slab, row, d) if integers is None else integers.element(row, d)
                return t.let(f"tensor.insert {x} into {out}[{i}, {d}] : {self.wide_type}")

            step = 1 if by_one else w
            bounds = (t.index(0), t.index(width - width % step), t.index(step))
            out = t.loop(bounds, [(carried[0], self.wide_type)], lambda d, c: [copy(d, c[0])])
            return [copy(t.index(width - w), out[0])] if width % step else out

        return t.loop((t.index(0), block.rows, t.index(1)), [(tile, self.wide_type)], body)[0]

    def row(self, block: Block, i: str) -> _Row:
        """Row i of the block; past the last key, that key is read."""
        t = self.t
        key = t.arith("addi", block.k0, i)
        if not (block.edge and self.ragged_keys):
            return _Row(i, key, key)
        return _Row(i, key, t.arith("minsi", key, t.arith("subi", self.skv, t.index(1))))

    def unroll(self, block: Block) -> int:
        """Few blocks are on an edge: there, short code matters more than the loop's overhead."""
        return min(self.config.U, 2) if block.edge else self.config.U

    def block(self, state: State, block: Block) -> State:
        t, spec, scratch = self.t, self.spec, list(state.scratch)
        tiles: dict[ScoreExpr, list[str]] = {}
        at = 0
        for part in self.parts:
            end = at + tile_slots(part, spec.tensors)
            if not block.clear or part in self.clear_parts:
                scratch[at:end] = tiles[part] = self.mask_tile(part, scratch[at:end], block)
            at = end
        if self.widen:
            scratch[-1] = self.widened(self.k, self.k_integers, spec.D, scratch[-1], block)
        scores, best = self.scores(state, block, tiles, scratch)
        decay = [t.exp2(t.vop("arith.subf", old, new)) for old, new in zip(state.best, best, strict=True)]
        scores, total = self.probabilities(scores, best, decay, state.total, block)
        if self.widen:
            scratch[-1] = self.widened(self.v, self.v_integers, spec.Dv, scratch[-1], block)
        acc = self.output(state.acc, scores, decay, block, scratch)
        return State(acc, scores, tuple(scratch), tuple(best), tuple(total))

    def scores(
        self, state: State, block: Block, tiles: dict[ScoreExpr, list[str]], scratch: list[str]
    ) -> tuple[str, list[str]]:
        """S^T = K Q^T of the block, RI keys at a time, masked; and the new maximum."""
        t, config = self.t, self.config

        def wide(i: str) -> Callable[[str], str]:
            return lambda d: t.let(f"tensor.extract {scratch[-1]}[{i}, {d}] : {self.wide_type}")

        def stored(key: str) -> Callable[[str], str]:
            return lambda d: self.extract(self.k, key, d)

        def body(i: str, carried: list[str]) -> list[str]:
            tile, best = carried[0], carried[1:]
            rows = [self.row(block, t.shifted(i, r)) for r in range(config.RI)]
            scalars = [wide(row.at) if self.widen else stored(row.read) for row in rows]
            zeros = [[t.splat(0.0)] * self.vectors] * config.RI
            raw = self.fma_tile(scalars, self.spec.D, self.unroll(block), self.qT, self.qT_type, zeros)
            for row, vectors in zip(rows, raw, strict=True):
                for j, x in enumerate(vectors):
                    s = self.score(x, row, j, block, tiles)
                    tile = t.write(s, tile, self.tile_type, row.at, self.lane(j))
                    best[j] = t.maximum(s, best[j])
            return [tile, *best]

        carried = [(state.scores, self.tile_type), *((b, t.vec) for b in state.best)]
        tile, *best = t.loop((t.index(0), block.rows, t.index(config.RI)), carried, body)
        return tile, best

    def probabilities(
        self, scores: str, best: list[str], decay: list[str], total: Sequence[str], block: Block
    ) -> tuple[str, list[str]]:
        """P = 2^(S - m) in the scores' place, and the new sum (the block by itself first, which rounds less)."""
        t = self.t

        def body(i: str, carried: list[str]) -> list[str]:
            tile, sums = carried[0], carried[1:]
            for j in range(self.vectors):
                s = t.read(tile, self.tile_type, i, self.lane(j))
                p = t.exp2(t.vop("arith.subf", s, best[j]))
                sums[j] = t.vop("arith.addf", sums[j], p)
                tile = t.write(p, tile, self.tile_type, i, self.lane(j))
            return [tile, *sums]

        carried = [(scores, self.tile_type), *[(t.splat(0.0), t.vec)] * self.vectors]
        tile, *sums = t.loop((t.index(0), block.rows, t.index(1)), carried, body)
        return tile, [t.vop("vector.fma", x, a, new) for x, a, new in zip(total, decay, sums, strict=True)]

    def output(self, acc: str, tile: str, decay: list[str], block: Block, scratch: list[str]) -> str:
        """O^T = O^T decay + V^T P, RN head dims at a time (the block by itself first, which rounds less)."""
        t, config, dv = self.t, self.config, self.spec.Dv
        unroll = math.gcd(self.unroll(block), config.RI if block.edge else config.BK)

        def column(d: str) -> Callable[[str], str]:
            if self.widen:
                return lambda i: t.let(f"tensor.extract {scratch[-1]}[{i}, {d}] : {self.wide_type}")
            return lambda i: self.extract(self.v, self.row(block, i).read, d)

        def body(d: str, acc: str, count: int) -> str:
            dims = [t.shifted(d, r) for r in range(count)]
            zeros = [[t.splat(0.0)] * self.vectors] * count
            new = self.fma_tile([column(x) for x in dims], block.rows, unroll, tile, self.tile_type, zeros)
            for x, row in zip(dims, new, strict=True):
                for j, value in enumerate(row):
                    old = t.read(acc, self.acc_type, x, self.lane(j))
                    acc = t.write(t.vop("vector.fma", old, decay[j], value), acc, self.acc_type, x, self.lane(j))
            return acc

        rest = dv % config.RN
        bounds = (t.index(0), t.index(dv - rest), t.index(config.RN))
        out = t.loop(bounds, [(acc, self.acc_type)], lambda d, c: [body(d, c[0], config.RN)])[0]
        return body(t.index(dv - rest), out, rest) if rest else out

    # Which blocks.

    def all_keys(self, state: State) -> State:
        """Full blocks, then blocks on an edge, then, if some row found nothing else, the blocks that were left out."""
        t, bk = self.t, self.t.index(self.config.BK)
        zero = t.index(0)
        low, high = self.key_limits
        first, full_first, full_end, end = self.bounds()

        def full(k0: str, carried: list[str]) -> list[str]:
            needed, clear = self.proofs(k0, bk)
            state = self.unpack(carried)
            if clear is not True:
                needed = needed if clear is False else self.neither(clear, needed)
                state = self.block_if(needed, state, Block(k0, bk, False))
            return self.pack(state if clear is False else self.block_if(clear, state, Block(k0, bk, False, True)))

        state = self.unpack(t.loop((full_first, full_end, bk), self.carried(state), full))
        edges = [(first, full_first)] if full_first != low else []
        edges += [(full_end, end)] if full_end != high else []
        if edges:
            state = self.edge_blocks(state, edges)
        skipped = [(low, first)] if first != low else []
        skipped += [(end, high)] if end != high else []
        anywhere = self.needed(zero, bk) is not True  # blocks between these ranges may have been left out as well
        if self.skips.threshold is None or not (skipped or anywhere):
            return state
        lowest = state.best[0]
        for b in state.best[1:]:
            lowest = t.select(t.compare("olt", b, lowest), b, lowest)
        least = t.let(f"vector.reduction <minnumf>, {lowest} : {t.vec} into f32")
        needed = t.let(f"arith.cmpf ole, {least}, {t.f32(self.skips.threshold)} : f32")
        ranges = [(a, t.let(f"arith.select {needed}, {b}, {a} : index")) for a, b in skipped]
        if anywhere:
            return self.edge_blocks(
                state, [(first, t.let(f"arith.select {needed}, {end}, {first} : index")), *ranges], 1
            )
        return self.edge_blocks(state, ranges, 0)

    def needed(self, k0: str, rows: str) -> Truth:
        """Whether a block may hold a key that is not masked, as far as its own values tell."""
        return self.proofs(k0, rows)[0]

    def proofs(self, k0: str, rows: str) -> tuple[Truth, Truth]:
        """Whether a block may hold a key that is not masked, and whether all terms that choose surely choose the score, as far as
        intervals of positions, lengths, integers and booleans tell."""
        t = self.t
        last = t.arith("subi", t.arith("minsi", t.arith("addi", k0, rows), self.skv), t.index(1))
        ranges: dict[ScoreExpr, Range | None] = {("q",): (self.m0, t.arith("addi", self.m0, self.last_row))}
        ranges |= {("k",): (k0, last), ("Sq",): (self.sq, self.sq), ("Skv",): (self.skv, self.skv)}

        def leaf(e: ScoreExpr) -> Range | None:
            if e not in ranges:
                by_row, by_key = varies(self.spec.tensors[e[1]])
                ranges[e] = self.key_range(e[1], k0, rows) if by_key and not by_row else self.row_ranges.get(e[1])
            return ranges[e]

        bounds = BlockBounds(t, leaf)
        low: Truth = False
        for condition in self.skips.low:
            low = bounds.either(low, bounds.truth(condition)[0])
        clear: Truth = bool(self.skips.kept)
        for condition in self.skips.kept.values():
            clear = bounds.both(clear, bounds.truth(condition)[0])
        return self.neither(low, True), clear

    def neither(self, proof: Truth, otherwise: Truth) -> Truth:
        """`otherwise` where the proof does not hold."""
        if isinstance(proof, bool):
            return False if proof else otherwise
        other = self.t.arith("xori", proof, self.t.constant("1", "i1"), "i1")
        return other if otherwise is True else BlockBounds(self.t, lambda e: None).both(other, otherwise)

    def block_if(self, needed: Truth, state: State, block: Block) -> State:
        """The state after a block, or as it was where the block is not needed."""
        t = self.t
        if needed is True:
            return self.block(state, block)
        once = t.let(f"arith.select {needed}, {t.index(1)}, {t.index(0)} : index") if needed else t.index(0)
        bounds = (t.index(0), once, t.index(1))
        return self.unpack(
            t.loop(bounds, self.carried(state), lambda _, c: self.pack(self.block(self.unpack(c), block)))
        )

    def bounds(self) -> tuple[str, str, str, str]:
        """(first, full_first, full_end, end): the keys to visit, and among them the blocks that test no positions."""
        t, bk = self.t, self.config.BK
        low, high = self.key_limits
        first, full_first, full_end, end = low, low, high, high
        last = t.arith("addi", self.m0, self.last_row)
        for i, mask in enumerate(self.spec.masks):
            if not isinstance(mask, IndexMask):
                continue
            left, right = window(mask)
            if right is not None:
                reach = t.arith("addi", self.offset(mask), t.index(right + 1))
                full_end = t.arith("minsi", full_end, t.arith("addi", self.m0, reach))
                if i in self.skips.terms:
                    end = t.arith("minsi", end, t.arith("addi", last, reach))
            if left is not None:
                reach = t.arith("subi", self.offset(mask), t.index(left))
                full_first = t.arith("maxsi", full_first, t.arith("addi", last, reach))
                if i in self.skips.terms:
                    first = t.arith("maxsi", first, t.arith("addi", self.m0, reach))

        def floor(x: str) -> str:
            return t.arith("muli", t.arith("divui", x, t.index(bk)), t.index(bk))

        if end != high:  # whole rows of register tiles: what is visited must not be visited again
            ri = t.index(self.config.RI)
            end = t.arith("muli", t.arith("ceildivui", t.arith("maxsi", end, low), ri), ri)
        if first != low:
            first = floor(t.arith("minsi", first, end))
        if full_end != high or self.ragged_keys:
            full_end = floor(t.arith("maxsi", full_end, low))
        if full_first != low:
            full_first = floor(t.shifted(t.arith("minsi", full_first, end), bk - 1))
            full_end = t.arith("maxsi", full_end, full_first)
            if end != high:
                end = t.arith("maxsi", end, full_first)
        return first, full_first, full_end, end

    def edge_blocks(self, state: State, ranges: list[tuple[str, str]], left_out: int | None = None) -> State:
        """Visits the blocks of some ranges of keys, the last of each as short as it is, testing positions.

        Blocks that are masked as a whole are left out; with `left_out`, only those are visited in that many first ranges,
        and all in the others.
        """
        t, bk, ri = self.t, self.t.index(self.config.BK), self.t.index(self.config.RI)
        counts = [
            t.arith("ceildivui", t.arith("maxsi", t.arith("subi", high, low), t.index(0)), bk) for low, high in ranges
        ]
        starts = [t.index(0)]
        for count in counts:
            starts.append(t.arith("addi", starts[-1], count))

        def body(step: str, carried: list[str]) -> list[str]:
            (low, high), at = ranges[0], step
            for start, following in zip(starts[1:], ranges[1:], strict=False):
                later = t.arith("cmpi sge,", step, start)
                pairs = [(following[0], low), (following[1], high), (t.arith("subi", step, start), at)]
                low, high, at = (t.let(f"arith.select {later}, {b}, {a} : index") for b, a in pairs)
            k0 = t.arith("addi", low, t.arith("muli", at, bk))
            keys = t.arith("minsi", t.arith("subi", high, k0), bk)
            rows = t.arith("muli", t.arith("ceildivui", keys, ri), ri)
            needed = self.needed(k0, rows) if left_out != 0 else True
            if left_out and not isinstance(needed, bool):
                needed = t.arith("xori", needed, t.constant("1", "i1"), "i1")
                other = t.arith("cmpi sge,", step, starts[left_out])
                needed = t.arith("ori", needed, other, "i1")
            return self.pack(self.block_if(needed, self.unpack(carried), Block(k0, rows, True)))

        return self.unpack(t.loop((t.index(0), starts[-1], t.index(1)), self.carried(state), body))

    def carried(self, state: State) -> list[tuple[str, str]]:
        tensors = [(state.acc, self.acc_type), (state.scores, self.tile_type)]
        tensors += zip(state.scratch, self.scratch_types, strict=True)
        return [*tensors, *((x, self.t.vec) for x in (*state.best, *state.total))]

    def pack(self, state: State) -> list[str]:
        return [value for value, _ in self.carried(state)]

    def unpack(self, values: list[str]) -> State:
        acc, scores, *rest = values
        s, n = len(self.scratch_types), self.vectors
        return State(acc, scores, tuple(rest[:s]), tuple(rest[s : s + n]), tuple(rest[s + n :]))

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
from dataclasses import dataclass

from onnx_fa.emit.lanes import Lanes
from onnx_fa.emit.mlir_text import I32, tensor_type
from onnx_fa.emit.skipping import LOG2E, MASK_FLOOR, IndexMask, fill_log2, skipping, window
from onnx_fa.spec import AddMask, AttentionSpec, BoolMask, Causal, Dim, Elementwise, SlidingWindow, TensorMask

MAX_START = -3.0e38
"""The running maximum before the first key: finite, so that a score of -inf gives 0 and not NaN; below any mask."""
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
        if self.BM % self.W or self.BK % self.RI:
            raise ValueError(f"BM must be a multiple of W, and BK of RI: {self}")


def varies(mask: TensorMask) -> tuple[bool, bool]:
    """Whether a tensor mask varies along the queries, and along the keys."""
    shape = (1, 1, *mask.shape)[-2:]
    return shape[0] != 1, shape[1] != 1


def operand_types(spec: AttentionSpec) -> list[str]:
    """Element types of the operands as the dispatch sees them: booleans are bytes."""
    return ["i8" if d == "bool" else d for d in spec.operand_dtypes]


@dataclass(frozen=True)
class _Cut:
    """What a workgroup takes of one stored axis: `size` elements from `offset`; `dim` is None for a single element."""

    offset: str
    size: str
    dim: Dim | None


@dataclass(frozen=True)
class _Slab:
    """The part of an operand that a workgroup reads or writes, as a tensor of rank 1 or 2."""

    value: str
    type: str
    element: str
    place: str
    swapped: bool = False


@dataclass(frozen=True)
class _Block:
    """A block of keys: the first, how many rows of the score tile to run, whether to test positions."""

    k0: str
    rows: str
    edge: bool


@dataclass(frozen=True)
class _State:
    """What the loops over keys carry: O^T, score tile, further tiles; per vector of queries the maximum and the sum."""

    acc: str
    scores: str
    scratch: tuple[str, ...]
    best: tuple[str, ...]
    total: tuple[str, ...]


class VectorBody:
    """Writes the dispatch's function for one spec. Arguments: %q %k %v %mask0 .. %out and `dims` for the symbols."""

    def __init__(self, spec: AttentionSpec, config: VectorConfig) -> None:
        self.spec, self.config = spec, config
        self.t = t = Lanes(config.W)
        self.vectors = config.BM // config.W
        self.dims = {symbol: f"%dim{i}" for i, symbol in enumerate(spec.symbols)}
        self.ragged_keys = not (isinstance(spec.Skv, int) and spec.Skv % config.BK == 0)
        self.few_queries = not (isinstance(spec.Sq, int) and spec.Sq >= config.BM)
        self.tiled = [varies(m) == (True, True) for m in spec.tensor_masks]
        self.widen = spec.dtype != "f32"
        self.skips = skipping(spec)

        self.qT_type = tensor_type((spec.D, config.BM), "f32")
        self.acc_type = tensor_type((spec.Dv, config.BM), "f32")
        self.tile_type = tensor_type((config.BK, config.BM), "f32")
        self.row_type = tensor_type((config.BM,), "f32")
        self.wide_type = tensor_type((config.BK, max(spec.D, spec.Dv)), "f32")
        self.scratch_types = [self.tile_type] * sum(self.tiled) + [self.wide_type] * self.widen

        self.sq, self.skv = self.dim(spec.Sq), self.dim(spec.Skv)
        wx = t.let("flow.dispatch.workgroup.id[0] : index")
        rest = t.let("flow.dispatch.workgroup.id[1] : index")
        self.lead: list[str] = []
        for d in reversed((*spec.batch, spec.Hq)):
            self.lead.insert(0, t.arith("remui", rest, self.dim(d)))
            rest = t.arith("divui", rest, self.dim(d))
        bm = t.index(config.BM)
        self.m0 = t.arith("muli", wx, bm)
        if not (isinstance(spec.Sq, int) and spec.Sq % config.BM == 0):
            # The last workgroup moves back to end at the last query; rows shared with its neighbour come out the same.
            back = t.arith("maxsi", t.arith("subi", self.sq, bm), t.index(0))
            self.m0 = t.arith("minsi", self.m0, back)
        self.rows = t.arith("minsi", t.arith("subi", self.sq, self.m0), bm) if self.few_queries else bm
        self.last_row = t.arith("subi", self.rows, t.index(1))

        shapes, types = spec.operand_shapes, operand_types(spec)
        kv_head = t.arith("divui", self.lead[-1], t.index(spec.group)) if spec.group > 1 else self.lead[-1]
        kv_lead = [*self.lead[:-1], kv_head]
        queries = _Cut(self.m0, self.rows, "rows") if self.few_queries else _Cut(self.m0, str(config.BM), config.BM)
        keys = self.whole(spec.Skv)
        self.q = self.load(
            "%q", shapes[0], types[0], self.cuts(self.lead, queries, spec.D, spec.q_layout), spec.q_layout
        )
        self.k = self.load("%k", shapes[1], types[1], self.cuts(kv_lead, keys, spec.D, spec.k_layout), spec.k_layout)
        self.v = self.load("%v", shapes[2], types[2], self.cuts(kv_lead, keys, spec.Dv, spec.v_layout), spec.v_layout)
        out_cuts = self.cuts(self.lead, queries, spec.Dv, spec.o_layout)
        self.out = self.load("%out", spec.out_shape, spec.dtype, out_cuts, spec.o_layout, "writeonly")
        self.masks = [
            self.load(f"%mask{i}", m.shape, types[3 + i], self.mask_cuts(m)) for i, m in enumerate(spec.tensor_masks)
        ]
        self.row_masks = {
            i: self.row_vectors(m, self.masks[i]) for i, m in enumerate(spec.tensor_masks) if not varies(m)[1]
        }
        self.positions = self.query_positions() if any(isinstance(m, IndexMask) for m in spec.masks) else []

    def render(self) -> list[str]:
        """The operations of the function, without its return."""
        t, spec = self.t, self.spec
        self.qT = self.transposed_queries()
        config = f"{{lowering_config = {_LOWERING}}}"
        empty = t.let(f"tensor.empty() : {self.acc_type}")
        acc = t.let(f"linalg.fill {config} ins({t.f32(0.0)} : f32) outs({empty} : {self.acc_type}) -> {self.acc_type}")
        scratch = tuple(t.let(f"tensor.empty() : {s}") for s in self.scratch_types)
        scores = t.let(f"tensor.empty() : {self.tile_type}")
        best, total = (t.splat(MAX_START),) * self.vectors, (t.splat(0.0),) * self.vectors
        state = self.all_keys(_State(acc, scores, scratch, best, total))
        result = self.transposed_output(state)
        t.do(
            f"iree_tensor_ext.dispatch.tensor.store {result}, %out, {self.out.place} : {self.out.type} -> "
            f"{self.binding('writeonly', spec.out_shape, spec.dtype)}"
        )
        return t.render()

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

    def cuts(self, lead: list[str], rows: _Cut, width: int, layout: tuple[int, ...]) -> list[_Cut]:
        """One head of q, k, v or out."""
        canonical = [*(_Cut(x, "1", None) for x in lead), rows, self.whole(width)]
        return [canonical[axis] for axis in layout]

    def mask_cuts(self, mask: TensorMask) -> list[_Cut]:
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
    ) -> _Slab:
        offsets, sizes = ", ".join(c.offset for c in cuts), ", ".join(c.size for c in cuts)
        place = f"offsets = [{offsets}], sizes = [{sizes}], strides = [{', '.join('1' * len(cuts))}]"
        type_ = tensor_type([c.dim for c in cuts if c.dim is not None] or [1], element)
        binding = self.binding(access, shape, element)
        value = self.t.let(f"iree_tensor_ext.dispatch.tensor.load {arg}, {place} : {binding} -> {type_}")
        swapped = bool(layout) and layout.index(self.spec.rank - 1) < layout.index(self.spec.rank - 2)
        return _Slab(value, type_, element, place, swapped)

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

    def read_f32(self, slab: _Slab, row: str, column: str, in_bounds: bool = True) -> str:
        """W neighbours of a slab's row."""
        x = self.t.read(slab.value, slab.type, row, column, element=slab.element, in_bounds=in_bounds)
        return self.to_f32(x, slab.element, f"{self.t.width}x")

    def extract(self, slab: _Slab, *indices: str) -> str:
        at = indices[::-1] if slab.swapped else indices
        value = self.t.let(f"tensor.extract {slab.value}[{', '.join(at)}] : {slab.type}")
        return self.to_f32(value, slab.element)

    # Into and out of the layout with queries along the lanes.

    def over_tiles(self, width: int, init: str, type_: str, body: Callable[[str, str, str], str]) -> str:
        """body(row, column, tensor) for each W x W tile of BM x width; the last overlaps where W does not divide it."""
        t, w = self.t, self.t.width
        zero, step, whole = t.index(0), t.index(w), t.index(width - width % w)

        def rows(row: str, carried: list[str]) -> list[str]:
            out = t.loop((zero, whole, step), [(carried[0], type_)], lambda d, c: [body(row, d, c[0])])
            return [body(row, t.index(width - w), out[0])] if width % w else out

        return t.loop((zero, t.index(self.config.BM), step), [(init, type_)], rows)[0]

    def transposed_queries(self) -> str:
        """Q^T, D x BM, times the scale (and log2 e, unless a softcap comes first)."""
        t, spec = self.t, self.spec
        scale = t.splat(spec.scale / spec.mods[0].cap if spec.mods else spec.scale * LOG2E)

        def body(row: str, d: str, out: str) -> str:
            rows = [self.read_f32(self.q, self.query_row(t.shifted(row, i)), d) for i in range(t.width)]
            for i, x in enumerate(t.transpose([t.vop("arith.mulf", x, scale) for x in rows])):
                out = t.write(x, out, self.qT_type, t.shifted(d, i), row)
            return out

        return self.over_tiles(spec.D, t.let(f"tensor.empty() : {self.qT_type}"), self.qT_type, body)

    def transposed_output(self, state: _State) -> str:
        """O = (O^T / l)^T. Rows without a key have l = 0: they are NaN (0 * inf), or 0 if the spec says so."""
        t, spec, out = self.t, self.spec, self.out
        guarded = spec.empty_row == "guarded"
        inverses = t.let(f"tensor.empty() : {self.row_type}")
        sums = t.let(f"tensor.empty() : {self.row_type}") if guarded else ""
        for j, total in enumerate(state.total):
            inverse = t.vop("arith.divf", t.splat(1.0), total)
            if spec.empty_row == "zero":
                inverse = t.select(t.compare("oeq", total, t.splat(0.0)), t.splat(0.0), inverse)
            if guarded:
                inverse = t.select(t.compare("ogt", total, t.splat(0.0)), inverse, t.splat(0.0))
                sums = t.write(total, sums, self.row_type, self.lane(j))
            inverses = t.write(inverse, inverses, self.row_type, self.lane(j))

        def body(row: str, d: str, result: str) -> str:
            inverse = t.read(inverses, self.row_type, row)
            columns = []
            for i in range(t.width):
                x = t.vop("arith.mulf", t.read(state.acc, self.acc_type, t.shifted(d, i), row), inverse)
                if guarded:  # a row of NaN probabilities is zero as well
                    total = t.read(sums, self.row_type, row)
                    x = t.select(t.compare("ord", total, total), x, t.splat(0.0))
                columns.append(x)
            for i, x in enumerate(t.transpose(columns)):
                if out.element != "f32":
                    x = t.let(f"arith.truncf {x} : {t.vec} to vector<{t.width}x{out.element}>")
                at = self.query_row(t.shifted(row, i))
                result = t.write(x, result, out.type, at, d, element=out.element)
            return result

        return self.over_tiles(spec.Dv, out.value, out.type, body)

    # Masks.

    def prepare_mask(self, mask: TensorMask, value: str) -> str:
        """Mask elements as the kernel uses them: booleans as 0 and 1; additive ones clamped, in units of log2."""
        t = self.t
        if isinstance(mask, BoolMask):
            return value
        if mask.factor != 1.0:
            value = t.vop("arith.mulf", value, t.splat(mask.factor))
        low = t.compare("olt", value, t.splat(MASK_FLOOR))
        finite = t.compare("one", value, t.splat(-math.inf))
        both = t.let(f"arith.andi {finite}, {low} : {t.bvec}")
        return t.vop("arith.mulf", t.select(both, t.splat(MASK_FLOOR), value), t.splat(LOG2E))

    def row_vectors(self, mask: TensorMask, slab: _Slab) -> list[str]:
        """A mask that does not vary along the keys, per vector of queries."""
        t = self.t
        if not varies(mask)[0]:
            return [self.prepare_mask(mask, t.broadcast(self.extract(slab, t.index(0))))] * self.vectors

        def body(row: str, carried: list[str]) -> list[str]:
            value = self.extract(slab, self.query(row))
            return [t.let(f"tensor.insert {value} into {carried[0]}[{row}] : {self.row_type}")]

        empty = t.let(f"tensor.empty() : {self.row_type}")
        bounds = (t.index(0), t.index(self.config.BM), t.index(1))
        rows = t.loop(bounds, [(empty, self.row_type)], body)[0]
        return [self.prepare_mask(mask, t.read(rows, self.row_type, self.lane(j))) for j in range(self.vectors)]

    def mask_tile(self, mask: TensorMask, slab: _Slab, tile: str, block: _Block) -> str:
        """A block of an Sq x Skv mask, transposed into a tile."""
        t, w = self.t, self.t.width
        inside = not block.edge

        def keys(key: str, carried: list[str]) -> list[str]:
            column = t.arith("addi", block.k0, key)

            def queries(row: str, inner: list[str]) -> list[str]:
                rows = [self.read_f32(slab, self.query(t.shifted(row, i)), column, inside) for i in range(w)]
                out = inner[0]
                for i, x in enumerate(t.transpose([self.prepare_mask(mask, x) for x in rows])):
                    out = t.write(x, out, self.tile_type, t.shifted(key, i), row)
                return [out]

            bounds = (t.index(0), t.index(self.config.BM), t.index(w))
            return t.loop(bounds, [(carried[0], self.tile_type)], queries)

        return t.loop((t.index(0), block.rows, t.index(w)), [(tile, self.tile_type)], keys)[0]

    def mask_values(self, i: str, key: str, tiles: dict[int, str]) -> list[list[str]]:
        """For each mask term, its vectors at row i of the block (none for index masks)."""
        t, tensors = self.t, 0
        values: list[list[str]] = []
        for term in self.spec.masks:
            if isinstance(term, (Causal, SlidingWindow, Elementwise)):
                values.append([])
                continue
            if tensors in tiles:
                tile = tiles[tensors]
                values.append([t.read(tile, self.tile_type, i, self.lane(j)) for j in range(self.vectors)])
            elif tensors in self.row_masks:
                values.append(self.row_masks[tensors])
            else:
                value = t.broadcast(self.extract(self.masks[tensors], key))
                values.append([self.prepare_mask(term, value)] * self.vectors)
            tensors += 1
        return values

    def offset(self, mask: IndexMask) -> str:
        return self.t.arith("subi", self.skv, self.sq) if mask.offset == "end" else self.t.index(mask.offset)

    def index_mask(self, mask: IndexMask, score: str, key: str, j: int) -> str:
        """key - offset - right <= query <= key - offset + left"""
        t = self.t
        at = self.i32(t.arith("subi", key, self.offset(mask)))
        left, right = window(mask)
        bounds = [("sle", -right)] if right is not None else []
        bounds += [("sge", left)] if left is not None else []
        for predicate, by in bounds:
            limit = t.broadcast(t.arith("addi", at, t.constant(str(by), I32), I32), I32)
            keep = t.let(f"arith.cmpi {predicate}, {limit}, {self.positions[j]} : {t.ivec}")
            score = t.select(keep, score, t.splat(fill_log2(mask.fill)))
        return score

    def score(self, raw: str, values: list[list[str]], key: str, j: int, block: _Block) -> str:
        """What the softmax sees, in units of log2, for one vector of queries and one key."""
        t, spec, s = self.t, self.spec, raw
        for mod, following in zip(spec.mods, (*spec.mods[1:], None), strict=False):
            s = t.vop("math.tanh", s)
            s = t.vop("arith.mulf", s, t.splat(mod.cap / following.cap if following else mod.cap * LOG2E))
        for term, vectors in zip(spec.masks, values, strict=True):
            if isinstance(term, AddMask):
                s = t.vop("arith.addf", s, vectors[j])
            elif isinstance(term, BoolMask):
                s = t.select(t.compare("one", vectors[j], t.splat(0.0)), s, t.splat(fill_log2(term.fill)))
            elif isinstance(term, IndexMask) and block.edge:
                s = self.index_mask(term, s, key, j)
        if block.edge and self.ragged_keys:
            inside = t.arith("cmpi slt,", key, self.skv)
            bias = t.let(f"arith.select {inside}, {t.f32(0.0)}, {t.f32(-math.inf)} : f32")
            s = t.vop("arith.addf", s, t.broadcast(bias))
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

    def widened(self, slab: _Slab, width: int, tile: str, block: _Block) -> str:
        """Copies a block of K or V to f32: once per block instead of once per use."""
        t, w = self.t, self.t.width

        def copy(i: str, row: str, d: str, out: str) -> str:
            if slab.swapped:
                return t.let(f"tensor.insert {self.extract(slab, row, d)} into {out}[{i}, {d}] : {self.wide_type}")
            return t.write(self.read_f32(slab, row, d), out, self.wide_type, i, d)

        def body(i: str, carried: list[str]) -> list[str]:
            row = self.key(block, i)[1]
            step = 1 if slab.swapped else w
            bounds = (t.index(0), t.index(width - width % step), t.index(step))
            out = t.loop(bounds, [(carried[0], self.wide_type)], lambda d, c: [copy(i, row, d, c[0])])
            return [copy(i, row, t.index(width - w), out[0])] if width % step else out

        return t.loop((t.index(0), block.rows, t.index(1)), [(tile, self.wide_type)], body)[0]

    def key(self, block: _Block, i: str) -> tuple[str, str]:
        """(key at row i of the block, key to read for it: the last one where that is past the end)."""
        t = self.t
        key = t.arith("addi", block.k0, i)
        if not (block.edge and self.ragged_keys):
            return key, key
        return key, t.arith("minsi", key, t.arith("subi", self.skv, t.index(1)))

    def unroll(self, block: _Block) -> int:
        """Few blocks are on an edge: there, short code matters more than the loop's overhead."""
        return min(self.config.U, 2) if block.edge else self.config.U

    def block(self, state: _State, block: _Block) -> _State:
        t, spec, scratch = self.t, self.spec, list(state.scratch)
        tiles: dict[int, str] = {}
        for i, mask in enumerate(spec.tensor_masks):
            if self.tiled[i]:
                slot = sum(self.tiled[:i])
                scratch[slot] = tiles[i] = self.mask_tile(mask, self.masks[i], scratch[slot], block)
        if self.widen:
            scratch[-1] = self.widened(self.k, spec.D, scratch[-1], block)
        scores, best = self.scores(state, block, tiles, scratch)
        decay = [t.exp2(t.vop("arith.subf", old, new)) for old, new in zip(state.best, best, strict=True)]
        scores, total = self.probabilities(scores, best, decay, state.total, block)
        if self.widen:
            scratch[-1] = self.widened(self.v, spec.Dv, scratch[-1], block)
        acc = self.output(state.acc, scores, decay, block, scratch)
        return _State(acc, scores, tuple(scratch), tuple(best), tuple(total))

    def scores(self, state: _State, block: _Block, tiles: dict[int, str], scratch: list[str]) -> tuple[str, list[str]]:
        """S^T = K Q^T of the block, RI keys at a time, masked; and the new maximum."""
        t, config = self.t, self.config

        def wide(i: str) -> Callable[[str], str]:
            return lambda d: t.let(f"tensor.extract {scratch[-1]}[{i}, {d}] : {self.wide_type}")

        def stored(key: str) -> Callable[[str], str]:
            return lambda d: self.extract(self.k, key, d)

        def body(i: str, carried: list[str]) -> list[str]:
            tile, best = carried[0], carried[1:]
            rows = [t.shifted(i, r) for r in range(config.RI)]
            keys = [self.key(block, row) for row in rows]
            scalars = [wide(row) if self.widen else stored(key[1]) for row, key in zip(rows, keys, strict=True)]
            zeros = [[t.splat(0.0)] * self.vectors] * config.RI
            raw = self.fma_tile(scalars, self.spec.D, self.unroll(block), self.qT, self.qT_type, zeros)
            for row, (key, read), vectors in zip(rows, keys, raw, strict=True):
                values = self.mask_values(row, read, tiles)
                for j, x in enumerate(vectors):
                    s = self.score(x, values, key, j, block)
                    tile = t.write(s, tile, self.tile_type, row, self.lane(j))
                    best[j] = t.maximum(s, best[j])
            return [tile, *best]

        carried = [(state.scores, self.tile_type), *((b, t.vec) for b in state.best)]
        tile, *best = t.loop((t.index(0), block.rows, t.index(config.RI)), carried, body)
        return tile, best

    def probabilities(
        self, scores: str, best: list[str], decay: list[str], total: Sequence[str], block: _Block
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

    def output(self, acc: str, tile: str, decay: list[str], block: _Block, scratch: list[str]) -> str:
        """O^T = O^T decay + V^T P, RN head dims at a time (the block by itself first, which rounds less)."""
        t, config, dv = self.t, self.config, self.spec.Dv
        unroll = math.gcd(self.unroll(block), config.RI if block.edge else config.BK)

        def column(d: str) -> Callable[[str], str]:
            if self.widen:
                return lambda i: t.let(f"tensor.extract {scratch[-1]}[{i}, {d}] : {self.wide_type}")
            return lambda i: self.extract(self.v, self.key(block, i)[1], d)

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

    def all_keys(self, state: _State) -> _State:
        """Full blocks, then blocks on an edge, then, if some row found nothing else, the blocks that were left out."""
        t, bk = self.t, self.t.index(self.config.BK)
        zero = t.index(0)
        first, full_first, full_end, end = self.bounds()

        def full(k0: str, carried: list[str]) -> list[str]:
            return self.pack(self.block(self.unpack(carried), _Block(k0, bk, False)))

        state = self.unpack(t.loop((full_first, full_end, bk), self.carried(state), full))
        edges = [(first, full_first)] if full_first != zero else []
        edges += [(full_end, end)] if full_end != self.skv else []
        if edges:
            state = self.edge_blocks(state, edges)
        skipped = [(zero, first)] if first != zero else []
        skipped += [(end, self.skv)] if end != self.skv else []
        if self.skips.threshold is None or not skipped:
            return state
        lowest = state.best[0]
        for b in state.best[1:]:
            lowest = t.select(t.compare("olt", b, lowest), b, lowest)
        least = t.let(f"vector.reduction <minnumf>, {lowest} : {t.vec} into f32")
        needed = t.let(f"arith.cmpf ole, {least}, {t.f32(self.skips.threshold)} : f32")
        ranges = [(low, t.let(f"arith.select {needed}, {high}, {low} : index")) for low, high in skipped]
        return self.edge_blocks(state, ranges)

    def bounds(self) -> tuple[str, str, str, str]:
        """(first, full_first, full_end, end): the keys to visit, and among them the blocks that test no positions."""
        t, bk = self.t, self.config.BK
        zero = t.index(0)
        first, full_first, full_end, end = zero, zero, self.skv, self.skv
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

        if end != self.skv:  # whole rows of register tiles: what is visited must not be visited again
            ri = t.index(self.config.RI)
            end = t.arith("muli", t.arith("ceildivui", t.arith("maxsi", end, zero), ri), ri)
        if first != zero:
            first = floor(t.arith("minsi", first, end))
        if full_end != self.skv or self.ragged_keys:
            full_end = floor(t.arith("maxsi", full_end, zero))
        if full_first != zero:
            full_first = floor(t.shifted(t.arith("minsi", full_first, end), bk - 1))
            full_end = t.arith("maxsi", full_end, full_first)
            if end != self.skv:
                end = t.arith("maxsi", end, full_first)
        return first, full_first, full_end, end

    def edge_blocks(self, state: _State, ranges: list[tuple[str, str]]) -> _State:
        """Visits the blocks of one or two ranges of keys, the last of each as short as it is, testing positions."""
        t, bk, ri = self.t, self.t.index(self.config.BK), self.t.index(self.config.RI)
        counts = [
            t.arith("ceildivui", t.arith("maxsi", t.arith("subi", high, low), t.index(0)), bk) for low, high in ranges
        ]
        number = counts[0] if len(counts) == 1 else t.arith("addi", counts[0], counts[1])

        def body(step: str, carried: list[str]) -> list[str]:
            (low, high), at = ranges[0], step
            if len(ranges) == 2:
                second = t.arith("cmpi sge,", step, counts[0])
                pairs = [(ranges[1][0], low), (ranges[1][1], high), (t.arith("subi", step, counts[0]), step)]
                low, high, at = (t.let(f"arith.select {second}, {b}, {a} : index") for b, a in pairs)
            k0 = t.arith("addi", low, t.arith("muli", at, bk))
            keys = t.arith("minsi", t.arith("subi", high, k0), bk)
            rows = t.arith("muli", t.arith("ceildivui", keys, ri), ri)
            return self.pack(self.block(self.unpack(carried), _Block(k0, rows, True)))

        return self.unpack(t.loop((t.index(0), number, t.index(1)), self.carried(state), body))

    def carried(self, state: _State) -> list[tuple[str, str]]:
        tensors = [(state.acc, self.acc_type), (state.scores, self.tile_type)]
        tensors += zip(state.scratch, self.scratch_types, strict=True)
        return [*tensors, *((x, self.t.vec) for x in (*state.best, *state.total))]

    def pack(self, state: _State) -> list[str]:
        return [value for value, _ in self.carried(state)]

    def unpack(self, values: list[str]) -> _State:
        acc, scores, *rest = values
        s, n = len(self.scratch_types), self.vectors
        return _State(acc, scores, tuple(rest[:s]), tuple(rest[s : s + n]), tuple(rest[s + n :]))

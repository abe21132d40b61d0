"""From a product of q and k to what the softmax sees: softcaps, masks and score functions, for vectors of queries."""

from __future__ import annotations

from onnx_fa.derive.attention import hidden_score
from onnx_fa.kernels.cpu.operands import Operands
from onnx_fa.kernels.cpu.query_rows import QueryRows
from onnx_fa.kernels.cpu.state import Block, Row
from onnx_fa.kernels.mlir.expressions import ExprVectors, IntBounds, Vector
from onnx_fa.kernels.mlir.text import I32, tensor_type
from onnx_fa.kernels.plan.bounds import Range
from onnx_fa.kernels.plan.score import (
    LOG2E,
    ExprStep,
    IndexStep,
    kind,
    row_parts,
    score_plan,
    tile_parts,
    uses,
    varies,
    window,
)
from onnx_fa.kernels.plan.skipping import skipping
from onnx_fa.spec.expr import SCORE, SQ, K, Length, Q, ScoreExpr, Tensor, leaves, tensors_of
from onnx_fa.spec.switches import Switch
from onnx_fa.spec.terms import IndexMask


class ScoreTerms:
    """The steps from a product of q and k to a score, and what is known of their terms before the first key: per vector of queries
    `row_values`, over all of the workgroup's queries `row_ranges`."""

    def __init__(self, operands: Operands, rows: QueryRows) -> None:
        self.operands, self.rows = operands, rows
        self.t, self.spec = operands.t, operands.spec
        spec = self.spec
        self.plan = score_plan(spec)
        self.parts = tile_parts(self.plan, spec.tensors)
        self.skips = skipping(spec, visit_all=Switch.SKIPPING in operands.off)
        self.clear_plan = self.plan.without(self.skips.kept)
        self.clear_parts = set(tile_parts(self.clear_plan, spec.tensors))

        self.vector = ExprVectors(self.t, IntBounds(spec.Sq, spec.Skv, spec.tensors), spec.tensors)
        by_position = any(Q in leaves(e) for e in self.plan.expressions)
        by_position = by_position or any(isinstance(m, IndexMask) for m in spec.masks)
        self.positions = rows.positions() if by_position else []
        tensor_rows = {i: rows.load(x, operands.masks[i]) for i, x in enumerate(spec.tensors) if not varies(x)[1]}
        conditions = (*self.skips.low, *self.skips.kept.values())
        self.row_ranges = {
            i: self.row_range(tensor_rows[i])
            for i in sorted({index for e in conditions for index in tensors_of(e)})
            if i in tensor_rows
        }
        parts = row_parts(self.plan, spec.tensors)
        self.row_values = [
            self.row_parts(parts, j, {i: x[j] for i, x in tensor_rows.items()}) for j in range(rows.count)
        ]
        self.sink = [
            self.vector.in_log2(x.value)
            for x in (rows.load(spec.sink, operands.masks[-1]) if spec.sink is not None else [])
        ]

    @property
    def unit(self) -> float:
        """What a score is multiplied by before the mask terms see it."""
        return 1.0 if self.plan.natural else LOG2E

    @property
    def query_factor(self) -> float:
        """What queries are multiplied by: the scale, and the first softcap or the change of unit."""
        return self.spec.scale / self.spec.mods[0].cap if self.spec.mods else self.spec.scale * self.unit

    def row_parts(self, parts: list[ScoreExpr], j: int, tensors: dict[int, Vector]) -> dict[ScoreExpr, Vector]:
        """What of the mask terms does not change with the key, for one vector of queries."""

        def known(expr: ScoreExpr) -> Vector | None:
            if expr == Q:
                return Vector(self.positions[j], "i32")
            return tensors[expr.index] if isinstance(expr, Tensor) else self.length(expr)

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
        t, slab = self.t, self.operands.masks[i]
        first = t.let(f"tensor.extract {slab.value}[{k0}] : {slab.type}")  # stands for what lies past the last key

        def value(at: str) -> Vector:
            x = t.let(
                f"vector.transfer_read {slab.value}[{at}], {first} {{in_bounds = [false]}} : {slab.type}, "
                f"{t.type(slab.element)}"
            )
            x_ = self.operands.to_vector(x, slab.element)
            return self.as_i32(x_) if x_.element == "i1" else x_

        start = value(k0)

        def body(at: str, carried: list[str]) -> list[str]:
            x = value(t.arith("addi", k0, at))
            return [t.arith(op, y, x.value, type_) for op, y, type_ in self.extremes(carried[0], carried[1], x.element)]

        carried = [(start.value, t.type(start.element))] * 2
        low, high = t.loop((t.index(0), rows, t.index(t.width)), carried, body)
        return self.least_and_largest(low, high, start.element)

    def length(self, expr: ScoreExpr) -> Vector | None:
        if not isinstance(expr, Length):
            return None
        length = self.operands.sq if expr == SQ else self.operands.skv
        return Vector(self.t.broadcast(self.operands.i32(length), I32), "i32")

    def offset(self, mask: IndexMask) -> str:
        """The key that the first query stands at, an index."""
        if mask.offset == "end":
            return self.t.arith("subi", self.operands.skv, self.operands.sq)
        return self.t.index(mask.offset)

    def steps(self, block: Block) -> tuple[IndexStep | ExprStep, ...]:
        return (self.clear_plan if block.clear else self.plan).steps

    def capped(self, s: str) -> str:
        """The product of q and k, scaled as `query_factor` says, after the softcaps."""
        t, mods = self.t, self.spec.mods
        for mod, following in zip(mods, (*mods[1:], None), strict=False):
            s = t.vop("math.tanh", s)
            s = t.vop("arith.mulf", s, t.splat(mod.cap / following.cap if following else mod.cap * self.unit))
        return s


class LaneScores:
    """Scores with queries along the lanes, a vector of them for one key. Tensors of Sq x Skv are transposed a block at a time into
    tiles of `tile_type`."""

    def __init__(self, terms: ScoreTerms) -> None:
        self.terms, self.operands = terms, terms.operands
        self.t, self.spec = terms.t, terms.spec
        self.tile_type = tensor_type((self.operands.config.BK, self.operands.config.BM), "f32")

    def mask_tile(self, part: ScoreExpr, tiles: list[str], block: Block) -> list[str]:
        """A block of what is made from one Sq x Skv tensor, transposed into one tile, or two for the halves of integers."""
        t, w = self.t, self.t.width
        slab = self.operands.masks[next(leaf.index for leaf in leaves(part) if isinstance(leaf, Tensor))]
        carried_types = [self.tile_type] * len(tiles)

        def read(row: str, column: str) -> list[str]:
            x = t.read(slab.value, slab.type, row, column, element=slab.element, in_bounds=not block.edge)
            tensor = self.operands.to_vector(x, slab.element)
            value = self.terms.vector.emit(part, lambda e: tensor if isinstance(e, Tensor) else None, {})
            return self.as_floats(value)

        def queries(row: str, carried: list[str]) -> list[str]:
            at = [self.operands.query(t.shifted(row, i)) for i in range(w)]

            def keys(key: str, inner: list[str]) -> list[str]:
                column = t.arith("addi", block.k0, key)
                rows = [read(x, column) for x in at]
                out = list(inner)
                for tile in range(len(out)):
                    for i, x in enumerate(t.transpose([r[tile] for r in rows])):
                        out[tile] = t.write(x, out[tile], self.tile_type, t.shifted(key, i), row)
                return out

            bounds = (t.index(0), block.rows, t.index(w))
            return t.loop(bounds, list(zip(carried, carried_types, strict=True)), keys)

        # Rows of the tensor are read a block's length at a time: far less pages and streams at once than key by key.
        bounds = (t.index(0), t.index(self.operands.config.BM), t.index(w))
        return t.loop(bounds, list(zip(tiles, carried_types, strict=True)), queries)

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

    def expression(self, expr: ScoreExpr, score: str, row: Row, j: int, block: Block) -> str:
        """A step of the plan for one vector of queries and one key."""
        t, tensors = self.t, self.spec.tensors

        def by_key(e: ScoreExpr) -> Vector | None:
            if e == K:
                return Vector(t.broadcast(self.operands.i32(row.key), I32), "i32")
            if e in self.terms.row_values[j]:
                return self.terms.row_values[j][e]  # the same in every lane, as nothing here varies along the queries
            return self.operands.splat_of(self.operands.masks[e.index], row.read) if isinstance(e, Tensor) else None

        def known(e: ScoreExpr) -> Vector | None:
            if e == SCORE:
                return Vector(score, "f32")
            if e in self.terms.row_values[j]:
                return self.terms.row_values[j][e]
            if e in block.tiles:
                return self.from_floats(
                    e, [t.read(x, self.tile_type, row.at, self.operands.lane(j)) for x in block.tiles[e]]
                )
            if uses(e, tensors) == {"k"}:
                return self.terms.vector.emit(e, by_key, row.known)
            return None

        return self.terms.vector.emit(expr, known, {}).value

    def index_mask(self, step: IndexStep, score: str, key: str, j: int) -> str:
        """key - offset - right <= query <= key - offset + left"""
        t, mask = self.t, step.mask
        at = self.operands.i32(t.arith("subi", key, self.terms.offset(mask)))
        left, right = window(mask)
        bounds = [("sle", -right)] if right is not None else []
        bounds += [("sge", left)] if left is not None else []
        for predicate, by in bounds:
            limit = t.broadcast(t.arith("addi", at, t.constant(str(by), I32), I32), I32)
            keep = t.let(f"arith.cmpi {predicate}, {limit}, {self.terms.positions[j]} : {t.ivec}")
            score = t.select(keep, score, t.splat(step.fill))
        return score

    def score(self, raw: str, row: Row, j: int, block: Block) -> str:
        """What the softmax sees, in units of log2, for one vector of queries and one key."""
        t, s = self.t, self.terms.capped(raw)
        for step in self.terms.steps(block):
            if not isinstance(step, IndexStep):
                s = self.expression(step.expr, s, row, j, block)
            elif block.edge:
                s = self.index_mask(step, s, row.key, j)
        if block.edge and self.operands.ragged_keys:
            inside = t.broadcast(t.arith("cmpi slt,", row.key, self.operands.skv), "i1")
            s = t.select(inside, s, t.splat(hidden_score(self.spec)))
        return s

"""The source of an attention in Triton, for one spec: the loop over blocks of keys that was derived for it (derive/loop.py; for a
softmax that of Dao, "FlashAttention-2"). Scores are in units of log2, so that exp is exp2.

A workgroup owns BM queries of one head. Blocks of keys that every query of them sees run without masks; blocks that none sees are
left out (block_ranges.py). A row that turns out to have no key goes back for the blocks that were left out, where that matters.
"""

from __future__ import annotations

import math

from onnx_fa.derive.loop import MASS, MAXIMUM, SCORE, Loop
from onnx_fa.derive.terms import Term
from onnx_fa.derive.terms import known as known_by
from onnx_fa.derive.writer import write
from onnx_fa.errors import UnsupportedError
from onnx_fa.kernels.mlir.stored import is_packed, operand_types
from onnx_fa.kernels.plan.score import LOG2, MAX_START, IndexStep, score_plan, varies
from onnx_fa.kernels.plan.skipping import Skipping, skipping
from onnx_fa.kernels.triton.block_ranges import BlockRanges, Ends
from onnx_fa.kernels.triton.columns import WIDEST_TILE, Columns, Part
from onnx_fa.kernels.triton.combine import combine_last
from onnx_fa.kernels.triton.config import FEW, WARPGROUP_ROWS, TritonConfig
from onnx_fa.kernels.triton.expressions import Expressions, float_text
from onnx_fa.kernels.triton.key_rows import KeyBlock, KeyRows
from onnx_fa.kernels.triton.language import TritonLanguage, correction_of, output_of, statistic_of
from onnx_fa.kernels.triton.places import Places
from onnx_fa.kernels.triton.program import Program, combines_itself, loop_in, product, result_pointers
from onnx_fa.kernels.triton.scores import Scores
from onnx_fa.spec.attention import AttentionSpec
from onnx_fa.spec.expr import Apply, Tensor


class AttentionSource(Places):
    """Writes the kernel of a spec whose queries are folded already."""

    blocks_layout = rows_layout = ""
    """Of vectors with an element for each block of keys, and for each query."""
    parts = 1
    """Into how many groups of warps the queries are divided."""

    def __init__(
        self,
        spec: AttentionSpec,
        config: TritonConfig,
        name: str,
        *,
        products: str = "tf32x3",
        skips: Skipping | None = None,
        loop: Loop | None = None,
    ) -> None:
        """`products`: how f32 is multiplied, see `f32_products`; `skips`: which blocks may be left out, if not all that can be;
        `loop`: what is carried, if not what is derived by default."""
        super().__init__(spec, config, name)
        self.precision = f', input_precision="{products}"' if spec.dtype == "f32" else ""
        wide = spec.D > WIDEST_TILE and config.BM < WARPGROUP_ROWS
        pairs = spec.k_quant is not None and is_packed(spec.k_quant.dtype)  # every other column: no copy takes that
        self.reloads = (config.BM <= FEW and not pairs) or wide
        """Whether queries are loaded with each block of keys."""
        plan, self.skips = score_plan(spec), skips or skipping(spec)
        self.loop = loop or loop_in(spec)
        if len(self.loop.walks) > 1 and config.splits > 1:
            raise UnsupportedError("keys are not split where a second walk over them needs what the first one found")
        self.sweep, self.found = self.loop.walks[0], dict[Term, str]()
        """The walk that is being written, and what those before it left, by name."""
        self.masked = any(isinstance(s, IndexStep) for s in plan.steps)
        self.blocks = BlockRanges(self, plan, self.skips, self.blocks_layout)
        self.scores = Scores(self, plan, self.skips, self.blocks.sure, self.broadcast)

    def pointers(self) -> list[tuple[str, str]]:
        """Name and element type of what the main kernel reads and writes."""
        spec, split = self.spec, self.config.splits > 1
        found = [*zip(spec.operand_names("t"), operand_types(spec), strict=True)]
        alone = combines_itself(spec, self.config)
        found += [("count", "i32")] * alone + [("part", "f32"), ("stat", "f32")] * split
        return [*found, *result_pointers(spec)] if alone or not split else found

    def program(self) -> Program:
        """The main kernel."""
        self.body()
        return self.written(self.pointers())

    def body(self) -> None:
        lead = self.place()
        self.indices()
        self.number_rows()
        self.load_queries()
        self.bases = [self.tensor_base(i, x, lead) for i, x in enumerate(self.spec.tensors)]
        self.load_columns()
        ranges = self.ranges()
        self.scores.start_ramp()
        for i, sweep in enumerate(self.loop.walks):
            self.sweep = sweep
            if self.sweep.weight is not None:
                self.start_output()
            self.start_rows()
            if not i:
                self.start_sink(lead)
            self.loops(*ranges)
            if self.sweep is not self.loop.walks[-1]:
                self.leave_results()
        self.finish(lead)

    def leave_results(self) -> None:
        """What the next walk has to know of this one."""
        known, language = self.found | {MAXIMUM: "m", MASS: "l"}, TritonLanguage(self)
        made = {name: self.t.let(write(term, language, known)) for name, term in self.sweep.results.items()}
        self.found |= {known_by(name): x for name, x in made.items()}

    def indices(self) -> None:
        """Indices along the axes of tiles."""
        t, config = self.t, self.config
        t.do(f"om = tl.arange(0, {config.BM})")
        t.do(f"on = tl.arange(0, {config.BN})")
        self.keys.prepare()
        self.values.prepare()

    def number_rows(self) -> None:
        """The numbers of the queries, and which of them there are."""
        self.t.do(f"row = {self.m0} + om")
        self.mask_rows()

    def mask_rows(self) -> None:
        self.rows = self.t.let(f"(row < {self.sq})[:, None]") if self.ragged_rows else ""
        self.position = self.t.let("row[:, None]")

    def load_columns(self) -> None:
        """Those of the spec's tensors that do not vary along the keys."""
        for i, x in enumerate(self.spec.tensors):
            if not varies(x)[1]:
                self.tiles[i] = self.row_tensor(self.bases[i], x)

    def place(self) -> list[str]:
        lead = super().place()
        self.place_columns()
        return lead

    def place_columns(self) -> None:
        """The tiles that the columns of K and V are."""
        self.keys, self.values = (KeyRows(self, letter, self.kv_lead) for letter in "kv")

    def load_queries(self) -> None:
        """A few queries are loaded with each block of keys: what is loaded before a loop has to arrive before the first loads of
        the loop are started. So are those of a wide head that would be kept in registers, as they are where blocks are too low
        for Hopper's products."""
        self.q_start = self.t.let(self.moved(self.q_operand, self.m0, self.spec.Sq))
        if self.reloads:
            self.t.do(
                "zero = tl.program_id(2)  # unknown to the compiler, which else would take the load out of the loop"
            )
        else:
            self.q = {columns: self.query_tile(self.q_start, columns) for columns in self.keys.columns}

    def query_tile(self, start: str, columns: Columns) -> str:
        return self.load(self.tile(start, self.q_operand, "om", columns.name), self.rows, columns.mask)

    def ranges(self) -> Ends:
        """The blocks of keys to visit."""
        return self.blocks.find()

    def start_output(self) -> None:
        for columns in self.values.columns:
            self.t.do(f"{accumulator(columns)} = tl.zeros([{self.config.BM}, {columns.padded}], tl.float32)")

    def start_rows(self) -> None:
        """The rows' maxima and sums before the first key. The parts of split keys have them in any case."""
        rows, layout, split = str(self.config.BM // self.parts), self.rows_layout, self.config.splits > 1
        if self.sweep.has_maximum or split:
            self.t.do(f"m = tl.full([{rows}], {MAX_START}, tl.float32{layout})")
        if self.sweep.mass is not None or split:
            self.t.do(f"l = tl.zeros([{rows}], tl.float32{layout})")

    def start_sink(self, lead: list[str]) -> None:
        """One more logit, without a value: the first thing that the maximum and the sum see."""
        t, spec = self.t, self.spec
        if spec.sink is None:
            return
        at = self.tensor_base(0, spec.sink, lead, "sink")
        if varies(spec.sink)[0]:
            at += f" + tl.minimum(row, {self.sq} - 1)"
        sink = self.value(t.let(f"tl.load({at})"), spec.sink)
        writer = Expressions(t, spec.Sq, spec.Skv, (spec.sink,), True)
        value = writer.emit(Apply(LOG2, Tensor(0)), lambda e: sink if e == Tensor(0) else None)
        value = t.let(f"l + {value}")
        if self.config.splits > 1:
            value = t.let(f"tl.where(split == 0, {value}, {float_text(-math.inf)})")  # it counts once
        t.do(f"m = tl.maximum({value}, m)")
        assert self.sweep.mass is not None
        t.do(f"l = {write(self.sweep.mass, TritonLanguage(self), {SCORE: value, MAXIMUM: 'm'})}")

    @property
    def has_edges(self) -> bool:
        """Whether there are blocks that need masks which others do not."""
        return self.masked or self.ragged_keys or self.blocks.scanned

    def loops(self, first: str, full_first: str, full_end: str, end: str) -> None:
        """Blocks without masks, blocks with masks, and if some row found nothing else, the blocks that were left out."""
        t = self.t
        k0 = t.let(f"{full_first} * {self.config.BN}")
        for rows in (self.keys, self.values):
            rows.begin(k0)
        t.do(f"for j in range({full_first}, {full_end}):")
        self.block("j", edge=False)
        before = t.let(f"tl.minimum({full_first}, {end}) - {first}") if full_first != first else ""
        if self.has_edges and (before or full_end != end):
            if before:
                t.do(f"full_end_ = tl.maximum({full_end}, {full_first})")
                t.do(f"for i in range(0, {before} + tl.maximum({end} - full_end_, 0)):")
                t.indent += 1
                j = t.let(f"tl.where(i < {before}, {first} + i, full_end_ + i - {before})")
            else:
                t.do(f"for i in range({self.at_least(full_end, full_first)}, {end}):")
                t.indent += 1
                j = "i"
            t.indent -= 1
            self.block(j, edge=True)
        threshold = self.skips.threshold if any(w.has_maximum for w in self.loop.walks) else None
        if threshold is None or not self.blocks.may_skip or (first == "0" and end == self.blocks.count):
            return
        found = f"tl.where(row < {self.sq}, m, 0.0)" if self.ragged_rows else "m"
        t.do(f"again = (tl.min({found}) <= {float_text(threshold)}).to(tl.int32)")
        first, end = t.let(f"tl.minimum({first}, {end})"), t.let(f"tl.maximum({first}, {end})")
        t.do(f"for i in tl.range(0, again * ({first} + {self.blocks.count} - {end}), num_stages=1):")
        t.indent += 1
        j = t.let(f"tl.where(i < {first}, i, {end} + i - {first})")
        t.indent -= 1
        self.block(j, edge=True)

    def at_least(self, x: str, least: str) -> str:
        return x if least == "0" else f"tl.maximum({x}, {least})"

    def block(self, j: str, *, edge: bool) -> None:
        """What a block of keys changes, the body of a loop."""
        t, config = self.t, self.config
        t.indent += 1
        k0 = t.let(f"{j} * {config.BN}")
        inside = f"({k0} + on < {self.skv})" if edge and self.ragged_keys else ""
        block = KeyBlock(k0, inside, self.rows_of(k0, inside), "" if edge else t.let(f"{k0} + {config.BN}"))
        self.keys.advance(block)
        self.values.advance(block)
        start = t.let(f"{self.q_start} + zero * {j} * 16") if self.reloads else ""
        s = ""
        for part in self.keys.parts:
            for columns, k in zip(part.columns, self.tiles_of(self.keys, part, block), strict=True):
                q = self.query_tile(start, columns) if self.reloads else self.q[columns]
                s = t.let(f"tl.dot({q}, tl.trans({k}){f', {s}' if s else ''}{self.precision})")
        new, p, mass = self.scores.weigh(self.sweep, self.found, s, k0, inside, edge)
        self.update_rows(new, mass)
        if p:
            for part in self.values.parts:
                for columns, v in zip(part.columns, self.tiles_of(self.values, part, block), strict=True):
                    acc = accumulator(columns)
                    if self.corrects:
                        t.do(f"{acc} = {acc} * alpha[:, None]")
                    t.do(f"{acc} = tl.dot({p}.to({v}.dtype), {v}, {acc}{self.precision})")
        if new:
            t.do(f"m = {new}")
        t.indent -= 1

    def tiles_of(self, rows: KeyRows, part: Part, block: KeyBlock) -> list[str]:
        """The numbers of a part's columns of K or V, a tile for each of them."""
        return rows.tiles(part, block)

    @property
    def corrects(self) -> bool:
        """Whether a block changes what those before it found."""
        return self.sweep.correction is not None

    def update_rows(self, new: str, mass: str) -> None:
        """The rows' sums with a block more; and their correction, alpha, where there is one."""
        t, corrected = self.t, ""
        if self.corrects:
            assert self.sweep.correction is not None
            t.do(f"alpha = {correction_of(self, self.sweep.correction, new)}")
            corrected = " * alpha"
        if mass:
            t.do(f"l = l{corrected} + tl.sum({mass}, 1)")

    def broadcast(self, s: str) -> str:
        return self.t.let(f"tl.broadcast_to({s}, [{self.config.BM}, {self.config.BN}])")

    def finish(self, lead: list[str]) -> None:
        t, spec, config = self.t, self.spec, self.config
        if config.splits == 1:
            out = self.operand("out", spec.canonical_shapes[3], spec.o_layout, lead)
            start = t.let(self.moved(out, self.m0, spec.Sq))
            for columns in self.values.columns:
                result = output_of(self, self.loop, accumulator(columns), "l[:, None]")
                pointers = self.tile(start, out, "om", columns.name)
                self.store(pointers, f"{result}.to(out.dtype.element_ty)", columns.mask)
            self.store_statistics()
            return
        heads = product((*spec.batch, spec.Hq), self.names, True)
        at = t.let(f"(split.to(tl.int64) * ({heads}) + {self.head}) * {self.sq} + {self.m0}")
        rows = t.let(f"{at} + om")
        for columns in self.values.columns:
            pointers = f"part + {rows}[:, None] * {spec.Dv} + {columns.name}[None, :]"
            self.store(pointers, accumulator(columns), columns.mask)
        mask = f", mask=row < {self.sq}" if self.ragged_rows else ""
        t.do(f"tl.store(stat + {rows}, m{mask})")
        t.do(f"tl.store(stat + {self.total_rows()} * {config.splits} + {rows}, l{mask})")
        if combines_itself(spec, config):
            combine_last(self, lead, self.loop)

    def store_statistics(self) -> None:
        """The row statistics that the spec asks for."""
        t, known = self.t, self.found | {MAXIMUM: "m", MASS: "l"}
        mask = f", mask=row < {self.sq}" if self.ragged_rows else ""
        for which in self.spec.stats:
            value = statistic_of(self, which, self.loop.walks[-1].results[which], known)
            rows = t.let(f"{self.head}.to(tl.int64) * {self.sq} + row")
            t.do(f"tl.store(row_{which} + {rows}, {value}{mask})")


def accumulator(columns: Columns) -> str:
    """What the sum of some columns of the output is called."""
    return f"acc{columns.name.removeprefix('ov')}"

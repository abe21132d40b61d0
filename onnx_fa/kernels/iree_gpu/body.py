"""The loop over keys for GPUs, as tensor ops on tiles, which IREE's VectorDistribute pipeline spreads over a workgroup's threads.

A workgroup has BM queries of one head. The loop over blocks of BN keys is an scf.for of ours inside an scf.forall that is mapped to
workgroups: its bounds follow the masks, so that masked blocks cost nothing. In the loop stand the parts of online softmax, each an
op of its own with a lowering config of its own: IREE's attention op would compute exp2 by its slow expansion on CUDA, round Q times
the scale to f16, and could not express most masks.

Blocks always have their full size. Where lengths are no multiples of it, the last block starts earlier, at the last BN keys (BM
queries), and what an earlier block had is masked (computed again, with the same result); or operands are padded before, where rows
of the starts would not be aligned.

On NVIDIA GPUs D, and the keys where V is transposed, are written as two halves. The compiler adds 8 bytes to every innermost row in
shared memory; added twice to a row, they spread the reads of matrix instructions over all banks.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence

from onnx_fa.derive.loop import MASS, MAXIMUM, OLD_MAXIMUM, SCORE
from onnx_fa.derive.terms import Term
from onnx_fa.derive.writer import write
from onnx_fa.kernels.iree_gpu.language import Rows
from onnx_fa.kernels.iree_gpu.scores import LOWEST_START, GpuScores
from onnx_fa.kernels.iree_gpu.tile_ops import Region
from onnx_fa.kernels.mlir.visited import VisitedKeys
from onnx_fa.spec.terms import Dim


class GpuBody(GpuScores):
    """The whole of the dispatch's function: what a block changes, which blocks are visited, where a workgroup is."""

    def block(self, state: Rows, query: str, key: str, value: str) -> Rows:
        """What is carried, after a block of keys."""
        rows, mk, mn, walk = ("m",), ("m", *self.ops.key_axes), ("m", "n"), self.walk
        raw = self.ops.matmul((query, self.q.tile), (key, self.k.tile), self.ops.fill(mk, 0.0), mk, "qk")
        s = raw if self.late_scale else self.scores(raw)
        best, acc, total, decay = state.best, state.acc, state.total, ""
        if walk.has_maximum:
            best = self.ops.generic(
                mk, [(s, mk, "f32")], (best, rows, "f32"), lambda r, x, o: r.vop("arith.maximumf", x[0], o)
            )
        if walk.correction is not None:
            decay = self.of_rows([state.best, best], walk.correction, (OLD_MAXIMUM, MAXIMUM))
        p = self.of_keys(s, best, walk.weight)
        if walk.mass is not None:
            total = self.corrected(decay, total, rows)
            summed = p if walk.mass == walk.weight else self.of_keys(s, best, walk.mass)
            total = self.ops.generic(
                mk, [(summed, mk, "f32")], (total, rows, "f32"), lambda r, x, o: r.vop("arith.addf", x[0], o)
            )
        dtype = self.spec.dtype
        if dtype != "f32":
            narrow = lambda r, x, _: r.let(f"arith.truncf {x[0]} : f32 to {dtype}")  # noqa: E731
            p = self.ops.generic(mk, [(p, mk, "f32")], (self.ops.empty(mk, dtype), mk, dtype), narrow)
        acc = self.corrected(decay, acc, mn)
        return Rows(self.ops.matmul((p, mk), (value, self.v.tile), acc, mn, "pv"), best, total)

    def of_rows(self, values: Sequence[str], term: Term, names: Sequence[Term]) -> str:
        """A term of numbers of the rows."""
        rows = ("m",)

        def body(r: Region, x: list[str], _: str) -> str:
            return write(term, self.language(r), dict(zip(names, x, strict=False)))

        sources = [(v, rows, "f32") for v in values]
        return self.ops.generic(rows, sources, (self.ops.empty(rows), rows, "f32"), body)

    def of_keys(self, s: str, best: str, term: Term | None) -> str:
        """A term of the scores, and of the rows' maxima where there are any."""
        assert term is not None
        mk = ("m", *self.ops.key_axes)

        def body(r: Region, x: list[str], _: str) -> str:
            return write(term, self.language(r), dict(zip((SCORE, MAXIMUM), x, strict=False)))

        sources = [(s, mk, "f32")] + [(best, ("m",), "f32")] * self.walk.has_maximum
        return self.ops.generic(mk, sources, (self.ops.empty(mk), mk, "f32"), body)

    def corrected(self, decay: str, value: str, axes: Sequence[str]) -> str:
        """What was carried, times the correction where there is one."""
        if not decay:
            return value
        sources = [(decay, ("m",), "f32"), (value, axes, "f32")]
        return self.ops.generic(
            axes, sources, (self.ops.empty(axes), axes, "f32"), lambda r, x, _: r.vop("arith.mulf", *x)
        )

    def start(self) -> Rows:
        """What is carried before any key."""
        acc, rows = self.ops.fill(("m", "n"), 0.0), ("m",)
        if self.sink is None:
            best = self.ops.fill(rows, LOWEST_START) if self.walk.has_maximum else ""
            return Rows(acc, best, self.ops.fill(rows, 0.0) if self.walk.mass is not None else "")
        sink = self.sink
        source = [(self.ops.slice(sink), sink.tile, sink.element)]

        def logit(r: Region, x: list[str]) -> tuple[str, str]:
            value = self.scalar.exprs(r).in_log2(self.scalar.element(r, sink.element, x[0]).value)
            return value, r.vop("arith.maximumf", value, r.splat(LOWEST_START))

        def total(r: Region, x: list[str], _: str) -> str:
            value, best = logit(r, x)
            assert self.walk.mass is not None
            language = dataclasses.replace(self.language(r), exp2=lambda r, x: r.vop("math.exp2", x))  # once per row
            return write(self.walk.mass, language, {SCORE: value, MAXIMUM: best})

        best = self.ops.generic(rows, source, (self.ops.empty(rows), rows, "f32"), lambda r, x, _: logit(r, x)[1])
        return Rows(acc, best, self.ops.generic(rows, source, (self.ops.empty(rows), rows, "f32"), total))

    def finish(self, state: Rows) -> str:
        """The output's tile. A row's maximum that is NaN or infinite makes it NaN, as softmax does; without any keys it is 0."""
        axes, dtype, empty_row, divisor = self.out.tile, self.spec.dtype, self.spec.empty_row, self.loop.divisor
        sources: list[tuple[str, Sequence[str], str]] = [(state.acc, ("m", "n"), "f32")]
        sources += [(x, ("m",), "f32") for x in (state.total, state.best) if x]

        def body(r: Region, x: list[str], _: str) -> str:
            value = x[0]
            if self.loop.factor != 1.0:
                value = r.vop("arith.mulf", value, r.splat(self.loop.factor))
            if divisor is None:
                return value if dtype == "f32" else r.let(f"arith.truncf {value} : f32 to {dtype}")
            weight = write(divisor, self.language(r), {MASS: x[1]})
            if empty_row == "zero":
                weight = r.select(r.compare("oeq", weight, r.splat(0.0)), r.splat(1.0), weight)
            if state.best:
                weight = r.vop("arith.addf", weight, r.vop("arith.mulf", x[2], r.splat(0.0)))
            if isinstance(self.spec.Skv, str):
                none = r.let(f"arith.cmpi eq, {self.value(self.spec.Skv)}, {r.index(0)} : index")
                weight = r.select(none, r.splat(1.0), weight)
            if empty_row == "guarded":
                some = r.compare("ogt", weight, r.splat(0.0))
                weight, value = r.select(some, weight, r.splat(1.0)), r.select(some, value, r.splat(0.0))
            y = r.vop("arith.divf", value, weight)
            return y if dtype == "f32" else r.let(f"arith.truncf {y} : f32 to {dtype}")

        return self.ops.generic(axes, sources, (self.ops.empty(axes, dtype), axes, dtype), body)

    @property
    def skipped(self) -> bool:
        """Whether masked blocks at the ends are left out."""
        return bool(self.skips.terms)

    def keys(self) -> VisitedKeys:
        """Which keys are visited."""
        return VisitedKeys(self.t, self.spec, self.skips, self.config.BN, lambda: self.size(self.spec.Skv), self.offset)

    def left_out(
        self,
        state: Rows,
        types: Sequence[str],
        first: str,
        end: str,
        body: Callable[[str, list[str]], list[str]],
    ) -> Rows:
        """The state after the blocks outside `first` to `end` as well, if some row found only what a finite fill may equal."""
        t = self.t
        assert self.skips.threshold is not None
        none = t.let("tensor.empty() : tensor<f32>")
        most = t.let(f"linalg.fill ins({t.f32(math.inf)} : f32) outs({none} : tensor<f32>) -> tensor<f32>")
        least = self.ops.generic(
            ("m",), [(state.best, ("m",), "f32")], (most, (), "f32"), lambda r, x, o: r.vop("arith.minimumf", x[0], o)
        )
        value = t.let(f"tensor.extract {least}[] : tensor<f32>")
        needed = t.let(f"arith.cmpf ole, {value}, {t.f32(self.skips.threshold)} : f32")
        count, begin = self.keys().left_out(first, end, needed)

        def visit(n: str, carried: list[str]) -> list[str]:
            return body(begin(n), carried)

        return state.unpack(t.loop((t.index(0), count, t.index(1)), list(zip(state.pack(), types, strict=True)), visit))

    def render(self) -> list[str]:
        """The ops of the function: from the loaded operands to the tensor that is stored, which is called %result."""
        t, spec, config = self.t, self.spec, self.config
        blocks = t.arith("ceildivui", self.size(spec.Sq), t.index(config.BM))
        outer = [*spec.batch, spec.Hq]
        total = blocks
        for d in outer:
            total = t.arith("muli", total, self.size(d)) if d != 1 else total
        out_dynamic = ", ".join(self.value(d) for d in self.out.shape if isinstance(d, str))
        empty = t.let(f"tensor.empty({out_dynamic}) : {self.out.type}")
        t.do(f"%result = scf.forall (%w) in ({total}) shared_outs(%all = {empty}) -> ({self.out.type}) {{")
        self.place(blocks, outer)
        query = self.ops.slice(self.q)
        state = start = self.start()
        types = [self.ops.type(("m", "n")), *[self.ops.type(("m",))] * (len(state.pack()) - 1)]
        first, end = self.keys().of_queries(self.ops.offsets["m"], config.BM)

        def body(k: str, carried: list[str]) -> list[str]:
            self.ops.offsets["fresh"] = self.ops.offsets["k"] = k
            if self.ragged:
                self.ops.offsets["k"] = t.arith(
                    "minsi", k, t.arith("subi", self.size(self.ops.sizes["k"]), t.index(config.BN))
                )
            if len(self.ops.key_axes) > 1:
                self.ops.offsets["j"] = t.arith("divui", k, t.index(config.BN // 2))
            rows = self.block(start.unpack(carried), query, self.ops.slice(self.k), self.ops.slice(self.v))
            return rows.pack()

        looped = t.loop((first, end, t.index(config.BN)), list(zip(state.pack(), types, strict=True)), body)
        state = start.unpack(looped)
        if self.skipped and self.skips.threshold is not None and state.best:
            state = self.left_out(state, types, first, end, body)
        tile = self.finish(state)
        starts, sizes = self.ops.bounds_of(self.out)
        ones = ", ".join("1" for _ in self.out.kinds)
        t.do("scf.forall.in_parallel {")
        t.do(
            f"tensor.parallel_insert_slice {tile} into %all[{starts}] [{sizes}] [{ones}] : "
            f"{self.ops.type(self.out.tile, spec.dtype)} into {self.out.type}"
        )
        t.do("}")
        t.do("} {mapping = [#iree_codegen.workgroup_mapping<x>]}")
        return t.render()

    def place(self, blocks: str, outer: Sequence[Dim]) -> None:
        """Where a workgroup is: batch, head and first query. Blocks of queries with the most keys under a causal mask go first."""
        t, spec, config = self.t, self.spec, self.config
        rest, block = t.arith("divui", "%w", blocks), t.arith("remui", "%w", blocks)
        if self.skipped:
            block = t.arith("subi", t.arith("subi", blocks, t.index(1)), block)
        self.ops.offsets["outer q"] = rest
        self.ops.offsets["outer kv"] = t.arith("divui", rest, t.index(spec.group)) if spec.group > 1 else rest
        names = [*(f"b{i}" for i in range(len(spec.batch))), "h"]
        for name, dim in reversed(list(zip(names, outer, strict=True))):
            self.ops.offsets[name] = t.arith("remui", rest, self.size(dim)) if dim != 1 else t.index(0)
            rest = t.arith("divui", rest, self.size(dim)) if dim != 1 else rest
        self.ops.offsets["kv"] = (
            t.arith("divui", self.ops.offsets["h"], t.index(spec.group)) if spec.group > 1 else self.ops.offsets["h"]
        )
        m0 = t.arith("muli", block, t.index(config.BM))
        if not (isinstance(self.ops.sizes["m"], int) and self.ops.sizes["m"] % config.BM == 0):
            m0 = t.arith("minsi", m0, t.arith("subi", self.size(self.ops.sizes["m"]), t.index(config.BM)))
        self.ops.offsets["m"] = m0

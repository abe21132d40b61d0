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

import math
from collections.abc import Callable, Sequence

from onnx_fa.kernels.iree_gpu.operand import Operand
from onnx_fa.kernels.iree_gpu.tile_ops import Region, TileOps
from onnx_fa.kernels.iree_gpu.tiles import GpuConfig
from onnx_fa.kernels.mlir.expressions import ExprVectors, IntBounds, Vector
from onnx_fa.kernels.mlir.vectors import EXP2_POWERS, NEAREST_INT
from onnx_fa.kernels.plan.score import LOG2E, IndexStep, score_plan, window
from onnx_fa.kernels.plan.skipping import skipping
from onnx_fa.spec.attention import AttentionSpec
from onnx_fa.spec.dtypes import F32_MAX
from onnx_fa.spec.expr import Length, Position, Score, ScoreExpr, Tensor
from onnx_fa.spec.target import Target
from onnx_fa.spec.terms import Dim, IndexMask

LOWEST_START = -F32_MAX
"""Where row maxima start: so that a row that sees only -inf subtracts a number from it."""
_EXP2_F16 = (1.0, 0.69328293, 0.24221097, 0.05500893)
"""As EXP2_POWERS, with a relative error of 1e-4: half a step of f16 is 5e-4."""


class GpuBody:
    """Text of the dispatch's function. `operands` are q, k, v, then what the masks read, then the sink, as the dispatch takes them;
    `sizes` are those of the axes in it, padding included, while lengths of the spec are the true ones. `value` gives the SSA index
    of a symbol."""

    def __init__(
        self,
        spec: AttentionSpec,
        config: GpuConfig,
        target: Target,
        operands: Sequence[Operand],
        out: Operand,
        sizes: dict[str, Dim],
        value: Callable[[str], str],
    ) -> None:
        self.spec, self.config, self.target = spec, config, target
        self.operands = list(operands)
        self.q, self.k, self.v, *rest = operands
        self.masks = rest[: len(spec.tensors)]
        self.sink = rest[len(spec.tensors)] if spec.sink is not None else None
        self.out, self.value = out, value
        self.plan = score_plan(spec)
        self.skips = skipping(spec)
        self.ops = TileOps(config, target, spec.dtype, (self.q, self.k, self.v), sizes)
        self.t = self.ops.t
        self.bounds = IntBounds(spec.Sq, spec.Skv, spec.tensors)

    def exprs(self, region: Region) -> ExprVectors:
        return ExprVectors(region, self.bounds, self.spec.tensors)

    def size(self, dim: Dim) -> str:
        return self.t.index(dim) if isinstance(dim, int) else self.value(dim)

    def exp2(self, r: Region, x: str) -> str:
        """2^x for x <= 0, exactly 1 at 0 and 0 from -127 down. On CUDA by a polynomial of the fractional part, whose exponent bits
        the whole part is added to: IREE's own expansion takes twice as many instructions. NaN gives any number: see `finish`."""
        if self.target.backend != "cuda":
            return r.vop("math.exp2", x)
        powers = EXP2_POWERS if self.spec.dtype == "f32" else _EXP2_F16
        x = r.vop("arith.maximumf", x, r.splat(-127.0))
        rounded = r.vop("arith.addf", x, r.splat(NEAREST_INT))
        rest = r.vop("arith.subf", x, r.vop("arith.subf", rounded, r.splat(NEAREST_INT)))
        p = r.splat(powers[-1])
        for c in reversed(powers[:-1]):
            p = r.let(f"math.fma {p}, {rest}, {r.splat(c)} : f32")
        bits, n = (r.let(f"arith.bitcast {y} : f32 to i32") for y in (p, rounded))
        n = r.arith("shli", n, r.constant("23", "i32"), "i32")
        return r.let(f"arith.bitcast {r.arith('addi', bits, n, 'i32')} : i32 to f32")

    @property
    def steps(self) -> bool:
        """Whether anything but the scale changes a score."""
        return bool(self.spec.mods or self.plan.steps) or self.ragged

    @property
    def ragged(self) -> bool:
        """Whether some block holds keys that do not count."""
        return isinstance(self.spec.Skv, str) or self.spec.Skv % self.config.BN != 0

    @property
    def late_scale(self) -> float | None:
        """What products of Q and K are multiplied by where they are subtracted from their maximum, in one instruction; None where
        scores are scaled before the maximum is known."""
        plain = not self.steps and self.sink is None and 0 < self.spec.scale < 1
        return self.spec.scale * LOG2E if plain else None

    def scores(self, raw: str) -> str:
        """What the softmax sees, in units of log2, of a block of products of Q and K."""
        spec, axes = self.spec, ("m", *self.ops.key_axes)
        unit = 1.0 if self.plan.natural else LOG2E
        sources: list[tuple[str, Sequence[str], str]] = [(raw, axes, "f32")]
        sources += [(self.ops.slice(x), x.tile, x.element) for x in self.masks]
        m0, k0, fresh = self.ops.offsets["m"], self.ops.offsets["k"], self.ops.offsets["fresh"]

        def body(r: Region, x: list[str], _: str) -> str:
            s = x[0]
            factors = [spec.scale / spec.mods[0].cap] if spec.mods else [spec.scale * unit]
            for mod, following in zip(spec.mods, (*spec.mods[1:], None), strict=False):
                factors.append(mod.cap / following.cap if following else mod.cap * unit)
            for n, factor in enumerate(factors):
                s = r.vop("math.tanh", s) if n else s
                s = r.vop("arith.mulf", s, r.splat(factor))
            positions = {
                "q": r.arith("addi", r.let("linalg.index 0 : index"), m0),
                "k": r.arith("addi", self.key(r), k0),
            }
            value = {a: r.let(f"arith.index_cast {p} : index to i32") for a, p in positions.items()}
            tensors = [self.element(r, e, x) for e, x in zip(self.masks, x[1:], strict=True)]
            memo: dict[ScoreExpr, Vector] = {}

            def known(e: ScoreExpr) -> Vector | None:
                match e:
                    case Score():
                        return Vector(s, "f32")
                    case Position(axis):
                        return Vector(value[axis], "i32")
                    case Length(axis):
                        return self.length(r, spec.Sq if axis == "q" else spec.Skv)
                    case Tensor(index):
                        return tensors[index]
                return None

            for step in self.plan.steps:
                if isinstance(step, IndexStep):
                    s = self.index_mask(r, step, s, positions["q"], positions["k"])
                else:
                    memo.clear()
                    s = self.exprs(r).emit(step.expr, known, memo).value
            if self.ragged:
                counts = r.let(f"arith.cmpi sge, {positions['k']}, {fresh} : index")
                inside = r.let(f"arith.cmpi slt, {positions['k']}, {self.size(spec.Skv)} : index")
                s = r.select(r.arith("andi", counts, inside, "i1"), s, r.splat(-math.inf))
            return s

        return self.ops.generic(axes, sources, (self.ops.empty(axes), axes, "f32"), body)

    def length(self, r: Region, dim: Dim) -> Vector:
        """A length, as expressions take it."""
        if isinstance(dim, int):
            return Vector(r.constant(str(dim), "i32"), "i32")
        return Vector(r.let(f"arith.index_cast {self.value(dim)} : index to i32"), "i32")

    def key(self, r: Region) -> str:
        """The key of an element of the score, counted from the block's first."""
        if len(self.ops.key_axes) == 1:
            return r.let("linalg.index 1 : index")
        half = r.arith("muli", r.let("linalg.index 1 : index"), r.index(self.config.BN // 2))
        return r.arith("addi", half, r.let("linalg.index 2 : index"))

    def element(self, r: Region, x: Operand, value: str) -> Vector:
        """An element of a tensor, as expressions take it."""
        if x.element == "i8":
            return Vector(r.let(f"arith.cmpi ne, {value}, {r.constant('0', 'i8')} : i8"), "i1")
        if x.element in ("f16", "bf16"):
            return Vector(r.let(f"arith.extf {value} : {x.element} to f32"), "f32")
        return Vector(value, x.element)

    def offset(self, mask: IndexMask) -> str:
        if mask.offset != "end":
            return self.t.index(mask.offset)
        if isinstance(self.spec.Sq, int) and isinstance(self.spec.Skv, int):
            return self.t.index(self.spec.Skv - self.spec.Sq)
        return self.t.arith("subi", self.size(self.spec.Skv), self.size(self.spec.Sq))

    def index_mask(self, r: Region, step: IndexStep, s: str, q: str, k: str) -> str:
        at = r.arith("addi", q, self.offset(step.mask))
        left, right = window(step.mask)
        for bound, predicate, sign in ((right, "sle", 1), (left, "sge", -1)):
            if bound is not None:
                limit = r.arith("addi", at, r.index(sign * bound)) if bound else at
                s = r.select(r.let(f"arith.cmpi {predicate}, {k}, {limit} : index"), s, r.splat(step.fill))
        return s

    def block(self, state: list[str], query: str, key: str, value: str) -> list[str]:
        """acc, maximum and sum after a block of keys."""
        acc, best, total = state
        rows, mk, factor = ("m",), ("m", *self.ops.key_axes), self.late_scale
        raw = self.ops.matmul((query, self.q.tile), (key, self.k.tile), self.ops.fill(mk, 0.0), mk, "qk")
        s = raw if factor else self.scores(raw)
        new = self.ops.generic(
            mk, [(s, mk, "f32")], (best, rows, "f32"), lambda r, x, o: r.vop("arith.maximumf", x[0], o)
        )

        def less(r: Region, x: list[str], _: str) -> str:
            if factor is None:
                return self.exp2(r, r.vop("arith.subf", *x))
            shift = r.vop("arith.mulf", x[1], r.splat(-factor))
            return self.exp2(r, r.let(f"math.fma {x[0]}, {r.splat(factor)}, {shift} : f32"))

        decay = self.ops.generic(
            rows, [(best, rows, "f32"), (new, rows, "f32")], (self.ops.empty(rows), rows, "f32"), less
        )
        p = self.ops.generic(mk, [(s, mk, "f32"), (new, rows, "f32")], (self.ops.empty(mk), mk, "f32"), less)
        scaled = lambda r, x, _: r.vop("arith.mulf", *x)  # noqa: E731
        total = self.ops.generic(
            rows, [(decay, rows, "f32"), (total, rows, "f32")], (self.ops.empty(rows), rows, "f32"), scaled
        )
        total = self.ops.generic(
            mk, [(p, mk, "f32")], (total, rows, "f32"), lambda r, x, o: r.vop("arith.addf", x[0], o)
        )
        dtype = self.spec.dtype
        if dtype != "f32":
            narrow = lambda r, x, _: r.let(f"arith.truncf {x[0]} : f32 to {dtype}")  # noqa: E731
            p = self.ops.generic(mk, [(p, mk, "f32")], (self.ops.empty(mk, dtype), mk, dtype), narrow)
        mn = ("m", "n")
        acc = self.ops.generic(mn, [(decay, rows, "f32"), (acc, mn, "f32")], (self.ops.empty(mn), mn, "f32"), scaled)
        return [self.ops.matmul((p, mk), (value, self.v.tile), acc, mn, "pv"), new, total]

    def start(self) -> list[str]:
        """acc, maximum and sum before any key."""
        acc, rows = self.ops.fill(("m", "n"), 0.0), ("m",)
        if self.sink is None:
            return [acc, self.ops.fill(rows, LOWEST_START), self.ops.fill(rows, 0.0)]
        sink = self.sink
        source = [(self.ops.slice(sink), sink.tile, sink.element)]

        def logit(r: Region, x: list[str]) -> tuple[str, str]:
            value = self.exprs(r).in_log2(self.element(r, sink, x[0]).value)
            return value, r.vop("arith.maximumf", value, r.splat(LOWEST_START))

        def total(r: Region, x: list[str], _: str) -> str:
            value, best = logit(r, x)
            return r.vop("math.exp2", r.vop("arith.subf", value, best))

        best = self.ops.generic(rows, source, (self.ops.empty(rows), rows, "f32"), lambda r, x, _: logit(r, x)[1])
        return [acc, best, self.ops.generic(rows, source, (self.ops.empty(rows), rows, "f32"), total)]

    def finish(self, state: list[str]) -> str:
        """The output's tile. A row's maximum that is NaN or infinite makes it NaN, as softmax does; without any keys it is 0."""
        acc, best, total = state
        axes, dtype, empty_row = self.out.tile, self.spec.dtype, self.spec.empty_row
        sources = [(acc, ("m", "n"), "f32"), (total, ("m",), "f32"), (best, ("m",), "f32")]

        def body(r: Region, x: list[str], _: str) -> str:
            value, weight, most = x
            if empty_row == "zero":
                weight = r.select(r.compare("oeq", weight, r.splat(0.0)), r.splat(1.0), weight)
            weight = r.vop("arith.addf", weight, r.vop("arith.mulf", most, r.splat(0.0)))
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

    def visited(self, m0: str) -> tuple[str, str]:
        """The keys to visit for the queries from m0 on: (first, end), the first a multiple of BN."""
        t, bn = self.t, self.t.index(self.config.BN)
        zero, end = t.index(0), self.size(self.spec.Skv)
        first = zero
        if not self.skipped:
            return first, end
        last = t.shifted(m0, self.config.BM - 1)
        for i in sorted(self.skips.terms):
            mask = self.spec.masks[i]
            assert isinstance(mask, IndexMask)
            left, right = window(mask)
            if right is not None:
                end = t.arith(
                    "minsi", end, t.arith("addi", last, t.arith("addi", self.offset(mask), t.index(right + 1)))
                )
            if left is not None:
                reach = t.arith("subi", self.offset(mask), t.index(left))
                first = t.arith("maxsi", first, t.arith("addi", m0, reach))
        end = t.arith("maxsi", end, zero)
        if first != zero:
            first = t.arith("muli", t.arith("divui", t.arith("minsi", first, end), bn), bn)
        return first, end

    def left_out(
        self,
        state: list[str],
        types: Sequence[str],
        first: str,
        end: str,
        body: Callable[[str, list[str]], list[str]],
    ) -> list[str]:
        """The state after the blocks outside `first` to `end` as well, if some row found only what a finite fill may equal."""
        t, bn = self.t, self.t.index(self.config.BN)
        assert self.skips.threshold is not None
        none = t.let("tensor.empty() : tensor<f32>")
        most = t.let(f"linalg.fill ins({t.f32(math.inf)} : f32) outs({none} : tensor<f32>) -> tensor<f32>")
        least = self.ops.generic(
            ("m",), [(state[1], ("m",), "f32")], (most, (), "f32"), lambda r, x, o: r.vop("arith.minimumf", x[0], o)
        )
        value = t.let(f"tensor.extract {least}[] : tensor<f32>")
        needed = t.let(f"arith.cmpf ole, {value}, {t.f32(self.skips.threshold)} : f32")
        before, after = t.arith("divui", first, bn), t.arith("ceildivui", end, bn)
        blocks = t.arith("ceildivui", self.size(self.spec.Skv), bn)
        count = t.arith("addi", before, t.arith("subi", blocks, after))
        count = t.let(f"arith.select {needed}, {count}, {t.index(0)} : index")

        def visit(n: str, carried: list[str]) -> list[str]:
            behind = t.arith("addi", t.arith("subi", n, before), after)
            early = t.arith("cmpi ult,", n, before)
            return body(t.arith("muli", t.let(f"arith.select {early}, {n}, {behind} : index"), bn), carried)

        return t.loop((t.index(0), count, t.index(1)), list(zip(state, types, strict=True)), visit)

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
        state = self.start()
        types = [self.ops.type(("m", "n")), self.ops.type(("m",)), self.ops.type(("m",))]
        first, end = self.visited(self.ops.offsets["m"])

        def body(k: str, carried: list[str]) -> list[str]:
            self.ops.offsets["fresh"] = self.ops.offsets["k"] = k
            if self.ragged:
                self.ops.offsets["k"] = t.arith(
                    "minsi", k, t.arith("subi", self.size(self.ops.sizes["k"]), t.index(config.BN))
                )
            if len(self.ops.key_axes) > 1:
                self.ops.offsets["j"] = t.arith("divui", k, t.index(config.BN // 2))
            return self.block(carried, query, self.ops.slice(self.k), self.ops.slice(self.v))

        state = t.loop((first, end, t.index(config.BN)), list(zip(state, types, strict=True)), body)
        if self.skipped and self.skips.threshold is not None:
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

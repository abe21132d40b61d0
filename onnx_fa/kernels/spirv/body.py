"""The loop over keys of one invocation. It keeps one row of Q, and what the derived recurrence carries of one row of the output, in
registers; all invocations of a workgroup read the same keys at the same time.

Where queries are few, several invocations (lanes) share the keys of one, each with every so-many-th step. What they found is put
together in pairs, through the workgroup's memory: the part of one is corrected to the maximum of both, as a step corrects what was
before it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from onnx_fa.derive.attention import hidden_score
from onnx_fa.derive.loop import MASS, MAXIMUM, OLD_MAXIMUM, SCORE, loop_of
from onnx_fa.derive.terms import Term
from onnx_fa.derive.writer import write
from onnx_fa.kernels.iree_gpu.language import RegionLanguage
from onnx_fa.kernels.mlir.scalar_scores import ScalarScores
from onnx_fa.kernels.mlir.visited import VisitedKeys
from onnx_fa.kernels.plan.skipping import Skipping, skipping
from onnx_fa.kernels.spirv.config import INVOCATIONS, SpirvConfig
from onnx_fa.kernels.spirv.operands import Access
from onnx_fa.kernels.spirv.shader import ShaderText
from onnx_fa.spec.attention import AttentionSpec
from onnx_fa.spec.dtypes import F32_MAX
from onnx_fa.spec.switches import Switch
from onnx_fa.spec.target import Target
from onnx_fa.spec.terms import Dim, IndexMask

LOWEST_START = -F32_MAX
"""Where a row's maximum starts: so that a row that sees only -inf subtracts a number from it."""
_EXCHANGED = 32
"""Numbers of the output's row that each invocation writes to the workgroup's memory at a time: 8 KiB of the 16 that all devices
have."""


@dataclass(frozen=True)
class State:
    """What is carried: the output's row in vectors; the row's maximum and sum, "" where the loop has none."""

    acc: tuple[str, ...]
    best: str
    total: str

    def pack(self) -> list[str]:
        return [*self.acc, *(x for x in (self.best, self.total) if x)]

    def unpack(self, values: Sequence[str]) -> State:
        """The same with other values, in the order of `pack`."""
        rest = iter(values[len(self.acc) :])
        return State(tuple(values[: len(self.acc)]), next(rest) if self.best else "", next(rest) if self.total else "")


class SpirvBody:
    """Text of the dispatch's function. `render` gives its operations."""

    def __init__(self, spec: AttentionSpec, config: SpirvConfig, target: Target) -> None:
        self.spec, self.config = spec, config
        self.t = ShaderText()
        self.dims = {symbol: f"%dim{i}" for i, symbol in enumerate(spec.symbols)}
        self.access = Access(self.t, spec, self.dims)
        self.scores = ScalarScores(spec, lambda symbol: self.dims[symbol], self._offset)
        self.loop = loop_of(spec, bounded=target.has(Switch.MAXIMUM))
        self.walk = self.loop.one_walk
        self.skips = skipping(spec, visit_all=not target.has(Switch.SKIPPING))
        if config.lanes > 1 and self.skips.threshold is not None:
            # Whether a row needs the masked keys after all is known when its lanes are put together, which happens once.
            self.skips = Skipping(frozenset(), (), None, {})
        self.vec = f"vector<{config.width_v}xf32>"
        self.lane, self.row = "", ""

    @property
    def skipped(self) -> bool:
        """Whether masked blocks at the ends are left out."""
        return bool(self.skips.terms)

    # The terms of the recurrence.

    def language(self) -> RegionLanguage:
        lengths = {"q": self.spec.Sq, "k": self.spec.Skv}
        return RegionLanguage(
            self.t, self.spec, lambda t, x: t.exp2(x), None, lambda t, e: self.scores.length(t, lengths[e.axis])
        )

    def write(self, term: Term, known: dict[Term, str]) -> str:
        return write(term, self.language(), known)

    def size(self, dim: Dim) -> str:
        return self.t.index(dim) if isinstance(dim, int) else self.dims[dim]

    def _offset(self, mask: IndexMask) -> str:
        if mask.offset != "end":
            return self.t.index(mask.offset)
        if isinstance(self.spec.Sq, int) and isinstance(self.spec.Skv, int):
            return self.t.index(self.spec.Skv - self.spec.Sq)
        return self.t.arith("subi", self.size(self.spec.Skv), self.size(self.spec.Sq))

    # Vectors of the output's row.

    def times(self, chunks: Sequence[str], scalar: str) -> list[str]:
        factor = self._spread(scalar)
        return [self.t.let(f"arith.mulf {x}, {factor} : {self.vec}") for x in chunks]

    def _spread(self, scalar: str) -> str:
        return self.t.let(f"vector.broadcast {scalar} : f32 to {self.vec}")

    # The walk.

    def start(self) -> State:
        """What is carried before any key; the sink is the first lane's."""
        t, spec, walk = self.t, self.spec, self.walk
        acc = (t.constant("dense<0.0>", self.vec),) * (spec.Dv // self.config.width_v)
        sink = self.access.sink
        if sink is None:
            return State(
                acc, t.splat(LOWEST_START) if walk.has_maximum else "", t.splat(0.0) if walk.mass is not None else ""
            )
        stored = self.scores.element(t, sink.element, self.access.element(sink, self.row, t.index(0)))
        logit = self.scores.exprs(t).in_log2(stored.value)
        assert walk.mass is not None
        best = t.maximum(logit, t.splat(LOWEST_START))
        total = self.write(walk.mass, {SCORE: logit, MAXIMUM: best})
        if self.config.lanes > 1:
            first = t.test("eq", self.lane, t.index(0))
            best, total = t.select(first, best, t.splat(LOWEST_START)), t.select(first, total, t.splat(0.0))
        return State(acc, best if walk.has_maximum else "", total)

    def products(self, query: Sequence[str], keys: Sequence[str]) -> list[str]:
        """Q times each of the rows of K."""
        t, width, layout = self.t, self.config.width_qk, self.spec.k_layout
        vec = f"vector<{width}xf32>"
        sums = [t.constant("dense<0.0>", vec)] * len(keys)
        for i, q in enumerate(query):
            read = [self.access.head_dims(self.access.k, layout, key, i * width, width) for key in keys]
            sums = [t.let(f"math.fma {q}, {k}, {s} : {vec}") for k, s in zip(read, sums, strict=True)]
        return [t.let(f"vector.reduction <add>, {s} : {vec} into f32") for s in sums]

    def step(self, state: State, query: Sequence[str], first: str, end: str) -> State:
        """What is carried after some keys from `first` on; those from `end` on do not count."""
        t, spec, walk = self.t, self.spec, self.walk
        keys = [t.shifted(first, u) for u in range(self.config.keys)]
        places = keys
        if self.ragged:
            places = [t.arith("minsi", k, t.arith("subi", end, t.index(1))) for k in keys]
        scores = []
        for key, place, product in zip(keys, places, self.products(query, places), strict=True):
            tensors = [
                self.scores.element(t, x.element, self.access.element(x, self.row, place)) for x in self.access.masks
            ]
            s = self.scores.score(t, product, self.row, key, tensors)
            if self.ragged:
                s = t.select(t.test("slt", key, end), s, t.splat(hidden_score(spec)))
            scores.append(s)
        best, known = state.best, dict[Term, str]()
        if walk.has_maximum:
            for s in scores:
                best = t.maximum(s, best)
            known = {MAXIMUM: best}
        assert walk.weight is not None
        weights = [self.write(walk.weight, {SCORE: s, **known}) for s in scores]
        masses = weights
        if walk.mass is not None and walk.mass != walk.weight:
            masses = [self.write(walk.mass, {SCORE: s, **known}) for s in scores]
        decay = ""
        if walk.correction is not None:
            decay = self.write(walk.correction, {OLD_MAXIMUM: state.best, **known})
        # What a step adds is summed first: one rounding of the large sums for all of its keys.
        total = state.total
        if total:
            added = masses[0]
            for mass in masses[1:]:
                added = t.vop("arith.addf", added, mass)
            total = t.vop("math.fma", total, decay, added) if decay else t.vop("arith.addf", total, added)
        return State(tuple(self.add_rows(state.acc, decay, weights, places)), best, total)

    def add_rows(self, acc: Sequence[str], decay: str, weights: Sequence[str], keys: Sequence[str]) -> Iterator[str]:
        """The output's row, corrected by `decay` if there is any, plus the rows of V times their weights."""
        t, width, access = self.t, self.config.width_v, self.access
        factors, spread = [self._spread(w) for w in weights], self._spread(decay) if decay else ""
        for i, old in enumerate(acc):
            rows = [access.head_dims(access.v, self.spec.v_layout, key, i * width, width) for key in keys]
            added = t.let(f"arith.mulf {factors[0]}, {rows[0]} : {self.vec}")
            for factor, v in zip(factors[1:], rows[1:], strict=True):
                added = t.let(f"math.fma {factor}, {v}, {added} : {self.vec}")
            joined = f"math.fma {old}, {spread}, {added}" if decay else f"arith.addf {old}, {added}"
            yield t.let(f"{joined} : {self.vec}")

    @property
    def ragged(self) -> bool:
        """Whether a step may hold keys past the last one."""
        return isinstance(self.spec.Skv, str) or self.spec.Skv % self.config.keys != 0

    def types(self, state: State) -> list[str]:
        return [self.vec] * len(state.acc) + ["f32"] * (len(state.pack()) - len(state.acc))

    def carried(self, state: State) -> list[tuple[str, str]]:
        return list(zip(state.pack(), self.types(state), strict=True))

    def run(self, query: Sequence[str], m0: str) -> State:
        """The walk of this invocation over its keys."""
        t, config = self.t, self.config
        visited = VisitedKeys(t, self.spec, self.skips, config.keys, lambda: self.size(self.spec.Skv), self._offset)
        first, end = visited.of_queries(m0, config.rows)
        length = self.size(self.spec.Skv)
        state = start = self.start()
        low = first
        if config.lanes > 1:
            low = t.arith("addi", first, t.arith("muli", self.lane, t.index(config.keys)))

        def body(k: str, values: list[str]) -> list[str]:
            return self.step(start.unpack(values), query, k, length).pack()

        stride = t.index(config.keys * config.lanes)
        state = start.unpack(t.loop((low, end, stride), self.carried(state), body))
        if self.skipped and self.skips.threshold is not None and state.best:
            needed = t.compare("ole", state.best, t.splat(self.skips.threshold))
            count, begin = visited.left_out(first, end, needed)
            bounds = (t.index(0), count, t.index(1))
            looped = t.loop(bounds, self.carried(state), lambda n, values: body(begin(n), values))
            state = start.unpack(looped)
        return state if config.lanes == 1 else self.join(state)

    # Lanes.

    def join(self, state: State) -> State:
        """What all lanes of a row found, in each of them: in every round a lane and the one `distance` from it share theirs."""
        t, config = self.t, self.config
        width = config.width_v
        at_once = max(1, min(_EXCHANGED // width, len(state.acc)))
        rows = f"memref<{at_once * INVOCATIONS}x{self.vec}, #gpu.address_space<workgroup>>"
        numbers = f"memref<{INVOCATIONS}xf32, #gpu.address_space<workgroup>>"
        shared, place = t.let(f"memref.alloc() : {rows}"), t.let("gpu.thread_id x")
        shared_numbers = t.let(f"memref.alloc() : {numbers}")
        start = state

        def exchange(partner: str, x: str) -> str:
            t.do(f"memref.store {x}, {shared_numbers}[{place}] : {numbers}")
            t.do("gpu.barrier")
            other = t.let(f"memref.load {shared_numbers}[{partner}] : {numbers}")
            t.do("gpu.barrier")
            return other

        def one_round(n: str, values: list[str]) -> list[str]:
            own = start.unpack(values)
            partner = t.arith("xori", place, t.arith("shli", t.index(1), n))
            both, factors = own, ("", "")
            if own.best:
                other = exchange(partner, own.best)
                best = t.maximum(own.best, other)
                best = t.select(t.compare("uno", other, other), other, best)
                both = replace(both, best=best)
                if self.walk.correction is not None:
                    found = [
                        self.write(self.walk.correction, {OLD_MAXIMUM: b, MAXIMUM: best}) for b in (own.best, other)
                    ]
                    factors = found[0], found[1]
            if own.total:
                total = exchange(partner, own.total)
                both = replace(both, total=self._sum(own.total, total, factors, "f32"))
            acc: list[str] = []
            spread = tuple(self._spread(f) if f else "" for f in factors)
            for i in range(0, len(own.acc), at_once):
                part = own.acc[i : i + at_once]
                for j, x in enumerate(part):
                    t.do(f"memref.store {x}, {shared}[{t.shifted(place, j * INVOCATIONS)}] : {rows}")
                t.do("gpu.barrier")
                others = [
                    t.let(f"memref.load {shared}[{t.shifted(partner, j * INVOCATIONS)}] : {rows}")
                    for j in range(len(part))
                ]
                t.do("gpu.barrier")
                acc += [self._sum(x, y, (spread[0], spread[1]), self.vec) for x, y in zip(part, others, strict=True)]
            return replace(both, acc=tuple(acc)).pack()

        rounds = config.lanes.bit_length() - 1
        looped = t.loop((t.index(0), t.index(rounds), t.index(1)), self.carried(state), one_round)
        return start.unpack(looped)

    def _sum(self, a: str, b: str, factors: tuple[str, str], type_: str) -> str:
        if factors[0]:
            a, b = (self.t.let(f"arith.mulf {x}, {f} : {type_}") for x, f in zip((a, b), factors, strict=True))
        return self.t.let(f"arith.addf {a}, {b} : {type_}")

    # The end.

    def finish(self, state: State) -> list[str]:
        """The output's row, in vectors."""
        t, spec, divisor = self.t, self.spec, self.loop.divisor
        chunks = list(state.acc)
        if self.loop.factor != 1.0:
            chunks = self.times(chunks, t.splat(self.loop.factor))
        if divisor is None:
            return chunks
        weight = self.write(divisor, {MASS: state.total})
        if spec.empty_row == "zero":
            weight = t.select(t.compare("oeq", weight, t.splat(0.0)), t.splat(1.0), weight)
        if isinstance(spec.Skv, str):
            none = t.test("eq", self.dims[spec.Skv], t.index(0))
            weight = t.select(none, t.splat(1.0), weight)
        some = t.compare("ogt", weight, t.splat(0.0))
        if spec.empty_row == "guarded":
            weight = t.select(some, weight, t.splat(1.0))
        divided = [t.let(f"arith.divf {x}, {self._spread(weight)} : {self.vec}") for x in chunks]
        if spec.empty_row == "guarded":
            zero = t.constant("dense<0.0>", self.vec)
            mask = f"vector<{self.config.width_v}xi1>"
            every = t.let(f"vector.broadcast {some} : i1 to {mask}")
            divided = [t.let(f"arith.select {every}, {x}, {zero} : {mask}, {self.vec}") for x in divided]
        return divided

    def place(self) -> str:
        """Finds the batch, head, query and lane of this invocation; returns the first query of the workgroup. Blocks of queries
        with the most keys under a causal mask go first."""
        t, spec, config, access = self.t, self.spec, self.config, self.access
        block, rest = (t.let(f"flow.dispatch.workgroup.id[{i}] : index") for i in (0, 1))
        if self.skipped:
            count = t.let("flow.dispatch.workgroup.count[0] : index")
            block = t.arith("subi", t.arith("subi", count, t.index(1)), block)
        for d in reversed((*spec.batch, spec.Hq)):
            access.lead.insert(0, t.arith("remui", rest, self.size(d)) if d != 1 else t.index(0))
            rest = t.arith("divui", rest, self.size(d)) if d != 1 else rest
        head = access.lead[-1]
        access.kv_head = t.arith("divui", head, t.index(spec.group)) if spec.group > 1 else head
        thread = t.let("gpu.thread_id x")
        m0 = t.arith("muli", block, t.index(config.rows))
        lanes = t.index(config.lanes)
        self.lane = t.arith("remui", thread, lanes) if config.lanes > 1 else t.index(0)
        self.row = t.arith("addi", m0, t.arith("divui", thread, lanes) if config.lanes > 1 else thread)
        return m0

    def render(self) -> list[str]:
        """The operations of the function."""
        t, spec, config = self.t, self.spec, self.config
        m0 = self.place()
        own = self.row
        if not (isinstance(spec.Sq, int) and spec.Sq % config.rows == 0):
            # Rows past the last query compute the last one again, and write nothing.
            self.row = t.arith("minsi", own, t.arith("subi", self.size(spec.Sq), t.index(1)))
        width, access = config.width_qk, self.access
        query = [access.head_dims(access.q, spec.q_layout, self.row, i * width, width) for i in range(spec.D // width)]
        chunks = self.finish(self.run(query, m0))
        writes = t.test("ult", own, self.size(spec.Sq))
        if config.lanes > 1:
            writes = t.arith("andi", writes, t.test("eq", self.lane, t.index(0)), "i1")
        t.do(f"scf.if {writes} {{")
        access.store(self.row, chunks, config.width_v)
        t.do("}")
        constants = t.render()
        return [*access.load_whole(), *constants]

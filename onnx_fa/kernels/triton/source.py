"""The source of an attention in Triton, for one spec: online softmax over blocks of keys (Dao, "FlashAttention-2"), with what the
spec's terms add. Scores are in units of log2, so that exp is exp2.

A workgroup owns BM queries of one head. Blocks of keys that every query of them sees run without masks; blocks that none sees are
left out. Both are known from index masks directly, and from other masks by interval arithmetic (kernels/plan/bounds.py), for many
blocks at once. A row that turns out to have no key goes back for the blocks that were left out, where that matters.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from onnx_fa.kernels.plan.bounds import BlockBounds, Range, Truth
from onnx_fa.kernels.plan.score import (
    LOG2,
    LOG2E,
    ExprStep,
    IndexMask,
    IndexStep,
    free,
    score_plan,
    uses,
    varies,
    window,
)
from onnx_fa.kernels.plan.skipping import skipping
from onnx_fa.kernels.triton.config import FEW, TritonConfig, padded, power_of_two
from onnx_fa.kernels.triton.expressions import SLOPE, Block, BoundsText, Expressions, float_text
from onnx_fa.spec.attention import AttentionSpec, Dim, TensorArg
from onnx_fa.spec.expr import SCORE, K, Q, ScoreExpr, leaves

MAX_START = -3.0e38
"""The running maximum before the first key: finite, so that a score of -inf gives 0 and not NaN; below any mask."""
_HEADER = "import triton\nimport triton.language as tl\n\n\n"
_SCANNED = 4096
"""Elements of a tensor that are looked at together when blocks are classified."""
_SMALL = 1 << 31
_SUMS = {"Add": "+", "Sub": "-", "Mul": "*"}
_UNROLLED = 8
_LOADED = 128
"""Up to so many queries are combined without a loop, and so many numbers per thread loaded side by side."""


@dataclass(frozen=True)
class Program:
    """`text` defines the Triton function `entry`, whose parameters are `pointers` (name, element type), then `constants`, which are
    i32: the spec's symbols. The grid is (`grid` workgroups, splits)."""

    entry: str
    text: str
    pointers: tuple[tuple[str, str], ...]
    constants: tuple[str, ...]


def product(dims: Sequence[Dim], names: dict[str, str], wide: bool = False) -> str:
    """The product of dims as source; symbols by their names, in 64 bits if `wide`."""
    known = math.prod(d for d in dims if isinstance(d, int))
    unknown = [names[d] + (".to(tl.int64)" if wide else "") for d in dims if isinstance(d, str)]
    return " * ".join([*unknown, *([str(known)] if known != 1 or not unknown else [])])


def _times(a: str, b: str) -> str:
    return a if b == "1" else f"{a} * ({b})" if " " in b else f"{a} * {b}"


@dataclass(frozen=True)
class Operand:
    """A head of q, k, v or out: where it starts, and the strides of its two axes."""

    base: str
    row: str
    column: str


@dataclass(frozen=True)
class Ramp:
    """A bias of `slope` * (k - `start`), with one slope per head, and a whole number that follows from the query's position for a
    start, as in ALiBi."""

    slope: ScoreExpr
    start: ScoreExpr


def ramp_of(step: ScoreExpr, tensors: tuple[TensorArg, ...]) -> Ramp | None:
    """The ramp that a step, in units of log2, adds to the score. None where it does anything else."""
    match step:
        case ("Add", ("score",), (op, ("Mul", a, b))) | ("Add", (op, ("Mul", a, b)), ("score",)) if op == LOG2:
            for slope, distance in ((a, b), (b, a)):
                match distance:
                    case ("ToFloat", ("Sub", ("k",), start)) if not uses(slope, tensors) and _positional(start):
                        return Ramp(slope, start)
                    case ("ToFloat", ("k",)) if not uses(slope, tensors):
                        return Ramp(slope, ("i", 0))
    return None


def _positional(expr: ScoreExpr) -> bool:
    """Whether a whole number follows from the query's position and the lengths by sums and products."""
    if expr[0] in _SUMS:
        return all(map(_positional, expr[1:]))
    return expr[0] in ("q", "i", "Sq", "Skv")


def _position(expr: ScoreExpr, names: Mapping[str, str]) -> str:
    """Such a number as source."""
    if expr[0] in _SUMS:
        return f"({_position(expr[1], names)} {_SUMS[expr[0]]} {_position(expr[2], names)})"
    return str(expr[1]) if expr[0] == "i" else names[expr[0]]


class AttentionSource:
    """Writes the source for a spec whose queries are folded already (kernels/plan/folding.py)."""

    header = _HEADER
    decorator = "@triton.jit"
    max_start = MAX_START
    blocks_layout = ""

    def __init__(self, spec: AttentionSpec, config: TritonConfig, name: str, *, products: str = "tf32x3") -> None:
        """`products`: how f32 is multiplied, see `f32_products`."""
        self.spec, self.config, self.name = spec, config, name
        self.precision = f', input_precision="{products}"' if spec.dtype == "f32" else ""
        self.few = config.BM <= FEW
        self.t = Block()
        self.names = {symbol: f"s{i}" for i, symbol in enumerate(spec.symbols)}
        self.sq, self.skv = self.dim(spec.Sq), self.dim(spec.Skv)
        self.dp, self.dvp = padded(spec.D), padded(spec.Dv)
        self.plan, self.skips = score_plan(spec), skipping(spec)
        self.unit = 1.0 if self.plan.natural else LOG2E
        self.factor = spec.scale * self.unit
        self.ragged_keys = not (isinstance(spec.Skv, int) and spec.Skv % config.BN == 0)
        self.ragged_rows = not (isinstance(spec.Sq, int) and spec.Sq % config.BM == 0)
        self.masked = any(isinstance(s, IndexStep) for s in self.plan.steps)
        self.ramp = self._find_ramp()
        self.expressions = Expressions(self.t, spec.Sq, spec.Skv, spec.tensors, spec.dtype == "f32")
        self.tiles: dict[int, str] = {}

    def dim(self, d: Dim) -> str:
        return str(d) if isinstance(d, int) else self.names[d]

    def _find_ramp(self) -> Ramp | None:
        """The bias of a spec that has only one, and that a ramp. What depends on the query alone is left out of it, as no softmax
        sees that; so nothing else may compare scores with numbers of its own. f32 wants the bias rounded as it is written."""
        others = [x for x in self.plan.steps if not isinstance(x, ExprStep)]
        expressions = self.plan.expressions
        if len(expressions) != 1 or self.plan.natural or self.spec.dtype == "f32" or self.spec.sink is not None:
            return None
        if self.skips.threshold is not None or any(x.fill != -math.inf for x in others):
            return None
        return ramp_of(expressions[0], self.spec.tensors)

    def pointers(self) -> list[tuple[str, str]]:
        """Name and element type of what the main kernel reads and writes."""
        spec, split = self.spec, self.config.splits > 1
        types = ["i8" if d == "bool" else d for d in spec.operand_dtypes]
        names = ["q", "k", "v", *(f"t{i}" for i in range(len(spec.tensors))), *["sink"] * (spec.sink is not None)]
        found = [*zip(names, types, strict=True)]
        alone = combines_itself(spec, self.config)
        found += [("count", "i32")] * alone + [("part", "f32"), ("stat", "f32")] * split
        return found + [("out", spec.dtype)] * (alone or not split)

    def program(self) -> Program:
        """The main kernel."""
        self.body()
        return self.written(self.pointers())

    def written(self, pointers: Sequence[tuple[str, str]]) -> Program:
        """The program of the lines so far."""
        parameters = [*(n for n, _ in pointers), *self.names.values()]
        head = f"{self.header}{self.decorator}\ndef {self.name}({', '.join(parameters)}):\n"
        return Program(self.name, head + "\n".join(self.t.lines) + "\n", tuple(pointers), tuple(self.names))

    # Where things are.

    def lead(self, head: str) -> list[str]:
        """Indices of the batch dims and the head, of a number that counts all heads."""
        t, rest = self.t, head
        found: list[str] = []
        dims = (*self.spec.batch, self.spec.Hq)
        for i, d in enumerate(reversed(dims)):
            last = i == len(dims) - 1
            found.insert(0, rest if last else t.let(f"{rest} % {self.dim(d)}"))
            rest = rest if last else t.let(f"{rest} // {self.dim(d)}")
        return found

    def operand(self, name: str, canonical: tuple[Dim, ...], layout: tuple[int, ...], lead: list[str]) -> Operand:
        stored = [canonical[a] for a in layout]
        small = all(isinstance(d, int) for d in stored) and math.prod(d for d in stored if isinstance(d, int)) < _SMALL

        def stride(axis: int, wide: bool) -> str:
            return product(stored[layout.index(axis) + 1 :], self.names, wide)

        at = [_times(x if small else f"{x}.to(tl.int64)", stride(i, not small)) for i, x in enumerate(lead)]
        rank = self.spec.rank
        base = self.t.let(" + ".join([name, *(f"({a})" for a in at)]))
        return Operand(base, stride(rank - 2, False), stride(rank - 1, False))

    def moved(self, operand: Operand, by: str, limit: Dim) -> str:
        """The operand's start, `by` rows on."""
        small = isinstance(limit, int) and operand.row.isdigit() and limit * int(operand.row) < _SMALL
        return f"{operand.base} + {_times(by if small else f'{by}.to(tl.int64)', operand.row)}"

    def tile(self, start: str, operand: Operand, rows: str, columns: str) -> str:
        return f"{start} + {_times(f'{rows}[:, None]', operand.row)} + {_times(f'{columns}[None, :]', operand.column)}"

    def load(self, pointers: str, *masks: str) -> str:
        kept = " & ".join(f"({m})" for m in masks if m)
        return self.t.let(f"tl.load({pointers}, mask={kept}, other=0.0)" if kept else f"tl.load({pointers})")

    def narrow(self, width: int, of: int, columns: str) -> str:
        """A mask for columns that are there only because tiles are powers of two."""
        return "" if width == of else f"{columns}[None, :] < {width}"

    # The whole.

    def place(self) -> list[str]:
        """Which queries the workgroup has, and where its operands are. Returns the indices of its head."""
        t, spec, config = self.t, self.spec, self.config
        t.do("pid = tl.program_id(0)")
        blocks = -(-spec.Sq // config.BM) if isinstance(spec.Sq, int) else f"tl.cdiv({self.sq}, {config.BM})"
        heads = product((*spec.batch, spec.Hq), self.names)
        if config.order == 0:
            block, head = t.let(f"pid % {blocks}"), t.let(f"pid // {blocks}")
        else:
            head, block = t.let(f"pid % ({heads})"), t.let(f"pid // ({heads})")
        if any(isinstance(m, IndexMask) and window(m)[1] is not None and window(m)[0] is None for m in spec.masks):
            block = t.let(f"{blocks} - 1 - {block}")  # the long rows first, so that the short ones fill the end
        self.m0 = t.let(f"{block} * {config.BM}")
        self.head = head
        lead = self.lead(head)
        kv_lead = [*lead[:-1], t.let(f"{lead[-1]} // {spec.group}")] if spec.group > 1 else lead
        shapes = spec.canonical_shapes
        self.q_operand = self.operand("q", shapes[0], spec.q_layout, lead)
        self.k = self.operand("k", shapes[1], spec.k_layout, kv_lead)
        self.v = self.operand("v", shapes[2], spec.v_layout, kv_lead)
        return lead

    def body(self) -> None:
        t, spec = self.t, self.spec
        lead = self.place()
        self.indices()
        self.rows = t.let(f"(row < {self.sq})[:, None]") if self.ragged_rows else ""
        self.load_queries()
        self.position = t.let("row[:, None]")
        self.bases = [self.tensor_base(i, x, lead) for i, x in enumerate(spec.tensors)]
        for i, x in enumerate(spec.tensors):
            if not varies(x)[1]:
                self.tiles[i] = self.row_tensor(self.bases[i], x)
        ranges = self.ranges()
        self.start_ramp()
        self.start(lead)
        self.loops(*ranges)
        self.finish(lead)

    def indices(self) -> None:
        """Indices along the axes of tiles."""
        t, config = self.t, self.config
        t.do(f"om = tl.arange(0, {config.BM})")
        t.do(f"on = tl.arange(0, {config.BN})")
        t.do(f"od = tl.arange(0, {self.dp})")
        t.do(f"ov = tl.arange(0, {self.dvp})")
        t.do(f"row = {self.m0} + om")

    def load_queries(self) -> None:
        """A few queries are loaded with each block of keys: what is loaded before a loop has to arrive before the first loads of
        the loop are started."""
        self.q_start = self.t.let(self.moved(self.q_operand, self.m0, self.spec.Sq))
        if self.few:
            self.t.do(
                "zero = tl.program_id(2)  # unknown to the compiler, which else would take the load out of the loop"
            )
        else:
            self.q = self.query_tile(self.q_start)

    def query_tile(self, start: str) -> str:
        pointers = self.tile(start, self.q_operand, "om", "od")
        return self.load(pointers, self.rows, self.narrow(self.spec.D, self.dp, "od"))

    def tensor_base(self, i: int, tensor: TensorArg, lead: list[str], name: str = "") -> str:
        """Where a tensor's part for this head starts."""
        shape = tensor.shape
        small = all(isinstance(d, int) for d in shape) and math.prod(d for d in shape if isinstance(d, int)) < _SMALL
        own = lead[max(0, self.spec.rank - len(shape)) :] if len(shape) > 2 else []
        at = []
        for axis, (d, x) in enumerate(zip(shape[:-2], own, strict=False)):
            if d != 1:
                stride = product(shape[axis + 1 :], self.names, not small)
                at.append(f"({_times(x if small else f'{x}.to(tl.int64)', stride)})")
        return self.t.let(" + ".join([name or f"t{i}", *at]))

    def row_tensor(self, base: str, tensor: TensorArg) -> str:
        """A tensor that does not vary along the keys: a column, or a scalar. Rows past the last query have the last one's value."""
        if not varies(tensor)[0]:
            return self.value(self.t.let(f"tl.load({base})"), tensor)
        rows = f"tl.minimum(row, {self.sq} - 1)" if self.ragged_rows else "row"
        return self.value(self.t.let(f"tl.load({base} + {rows})[:, None]"), tensor)

    def value(self, loaded: str, tensor: TensorArg) -> str:
        """A tensor's elements as expressions take them."""
        if tensor.dtype == "bool":
            return self.t.let(f"{loaded} != 0")
        return self.t.let(f"{loaded}.to(tl.float32)") if tensor.kind == "float" else loaded

    # Which blocks.

    def ranges(self) -> tuple[str, str, str, str]:
        """(first, full_first, full_end, end): the blocks to visit, and among them a run that no mask touches."""
        t, spec, bn = self.t, self.spec, self.config.BN
        count = t.let(f"tl.cdiv({self.skv}, {bn})") if isinstance(spec.Skv, str) else str(-(-spec.Skv // bn))
        whole = count if not self.ragged_keys else t.let(f"{self.skv} // {bn}")
        self.count = count
        first, full_first, full_end, end = "0", "0", whole, count
        self.may_skip = self.config.splits == 1 or self.skips.threshold is None
        last = (
            f"tl.minimum({self.m0} + {self.config.BM}, {self.sq}) - 1"
            if self.ragged_rows
            else f"{self.m0} + {self.config.BM - 1}"
        )
        self.last = t.let(last)
        lows, highs, full_lows, full_highs = [], [], [], []
        for i, mask in enumerate(spec.masks):
            if not isinstance(mask, IndexMask):
                continue
            left, right = window(mask)
            offset = f"({self.skv} - {self.sq})" if mask.offset == "end" else str(mask.offset)
            skip = i in self.skips.terms and self.may_skip
            if right is not None:
                full_highs.append(f"tl.maximum({self.m0} + {offset} + {right + 1}, 0) // {bn}")
                if skip:
                    highs.append(f"(tl.maximum({self.last} + {offset} + {right + 1}, 0) + {bn - 1}) // {bn}")
            if left is not None:
                full_lows.append(f"(tl.maximum({self.last} + {offset} - {left}, 0) + {bn - 1}) // {bn}")
                if skip:
                    lows.append(f"tl.maximum({self.m0} + {offset} - {left}, 0) // {bn}")
        for x in highs:
            end = t.let(f"tl.minimum({x}, {end})")
        for x in lows:
            first = t.let(f"tl.maximum({x}, {first})")
        for x in full_highs:
            full_end = t.let(f"tl.minimum({x}, {full_end})")
        for x in full_lows:
            full_first = t.let(f"tl.maximum({x}, {full_first})")
        self.sure: dict[ScoreExpr, ScoreExpr] = {}
        scanned = self.scan(count)
        self.scanned = scanned is not None
        if scanned:
            first, end = (
                t.let(f"tl.{f}({x}, {y})") for f, x, y in (("maximum", scanned[0], first), ("minimum", scanned[3], end))
            )
            full_first = t.let(f"tl.maximum({scanned[1]}, {full_first})")
            full_end = t.let(f"tl.minimum({scanned[2]}, {full_end})")
        if self.config.splits > 1:
            t.do("split = tl.program_id(1)")
            per = t.let(f"tl.cdiv(tl.maximum({end} - {first}, 0), {self.config.splits})")
            end, first = t.let(f"tl.minimum({first} + (split + 1) * {per}, {end})"), t.let(f"{first} + split * {per}")
        if full_first != "0" or first != "0":
            full_first = t.let(f"tl.maximum({full_first}, {first})")
        if (full_end, end) != (count, count):
            full_end = t.let(f"tl.minimum({full_end}, {end})")
        return first, full_first, full_end, end

    def scan(self, count: str) -> tuple[str, str, str, str] | None:
        """Classifies all blocks by the masks that expressions make: (first, full_first, full_end, end) as in `ranges`. None where
        nothing can be known."""
        t, spec = self.t, self.spec
        lows = self.skips.low if self.may_skip else ()
        masks: list[tuple[ScoreExpr, ScoreExpr, ScoreExpr]] = []
        for step in self.plan.steps:
            if isinstance(step, ExprStep):
                match step.expr:
                    case ("Where", condition, kept, ("f", _)) if free(condition) and condition[0] != "b":
                        masks.append((step.expr, condition, kept))
        if not lows and not masks:
            return None
        of_keys = {
            leaf[1]
            for e in (*lows, *(c for _, c, _ in masks))
            for leaf in leaves(e)
            if leaf[0] == "tensor"
            and varies(spec.tensors[leaf[1]]) == (False, True)
            and spec.tensors[leaf[1]].kind == "int"
        }
        at_once = max(1, _SCANNED // self.config.BN) if of_keys else 128
        known = int(count) if count.isdigit() else None
        if known is not None:
            at_once = min(at_once, power_of_two(known))
        looped = known is None or known > at_once
        # Names first: a dry run tells whether anything can be known at all.
        if not self._anything(lows, masks, of_keys):
            return None
        rows: dict[int, Range] = {}
        for i, x in enumerate(spec.tensors):
            if x.kind == "int" and not varies(x)[1]:
                tile = self.tiles[i]
                ends = [
                    t.let(f"tl.{f}({tile}).to(tl.int64)" if varies(x)[0] else f"{tile}.to(tl.int64)")
                    for f in ("min", "max")
                ]
                rows[i] = ends[0], ends[1]
        q_range = t.let(f"{self.m0}.to(tl.int64)"), t.let(f"{self.last}.to(tl.int64)")
        names = ["first", "full_first", "full_end", "end"]
        big = 1 << 30
        for name in names:
            t.do(f"{name} = {count} * 0 + {0 if name == 'end' else big}")
        if looped:
            t.do(f"for scanned in range(0, {count}, {at_once}):")
            t.indent += 1
        at = t.let(f"{'scanned + ' if looped else ''}tl.arange(0, {at_once}{self.blocks_layout})")
        inside = t.let(f"{at} < {count}")
        k_low = t.let(f"({at} * {self.config.BN}).to(tl.int64)")
        k_high = t.let(f"tl.minimum({k_low} + {self.config.BN}, {self.skv}) - 1")
        for i in of_keys:
            keys = t.let(f"{at}[:, None] * {self.config.BN} + on[None, :]")
            if known is None or known % at_once or self.ragged_keys:
                keys = f"tl.minimum({keys}, {self.skv} - 1)"
            tile = t.let(f"tl.load({self.bases[i]} + {keys})")
            rows[i] = t.let(f"tl.min({tile}, axis=1).to(tl.int64)"), t.let(f"tl.max({tile}, axis=1).to(tl.int64)")
        ranges: dict[str, Range] = {"q": q_range, "k": (k_low, k_high)}
        for name, d, text in (("Sq", spec.Sq, self.sq), ("Skv", spec.Skv, self.skv)):
            ranges[name] = (d, d) if isinstance(d, int) else (text, text)
        bounds = BlockBounds(BoundsText(t), lambda e: rows.get(e[1]) if e[0] == "tensor" else ranges[e[0]])
        low: Truth = False
        for condition in lows:
            low = bounds.either(low, bounds.truth(condition)[0])
        full: Truth = True
        for expr, condition, kept in masks:
            sure = bounds.truth(condition)[0]
            if sure is not False:
                self.sure[expr] = kept
                full = bounds.both(full, sure)
        if not self.sure:
            full = True
        needed = (
            inside
            if low is False
            else t.let(f"{inside} & ~{low}")
            if isinstance(low, str)
            else t.let(f"{inside} & ({at} < 0)")
        )
        whole = needed if full is True else t.let(f"{needed} & {full}")
        t.do(f"first = tl.minimum(first, tl.min(tl.where({needed}, {at}, {big})))")
        t.do(f"end = tl.maximum(end, tl.max(tl.where({needed}, {at} + 1, 0)))")
        t.do(f"full_first = tl.minimum(full_first, tl.min(tl.where({whole}, {at}, {big})))")
        broken = t.let(f"tl.min(tl.where({inside} & ~({whole}) & ({at} > full_first), {at}, {big}))")
        t.do(f"full_end = tl.minimum(full_end, {broken})")
        if looped:
            t.indent -= 1
        return names[0], names[1], names[2], names[3]

    def _anything(self, lows: Sequence[ScoreExpr], masks: Sequence[tuple[ScoreExpr, ...]], of_keys: set[int]) -> bool:
        """Whether interval arithmetic can say anything about the masks."""
        dry = BoundsText(Block())

        def leaf(e: ScoreExpr) -> Range | None:
            if e[0] != "tensor":
                return "x", "x"
            tensor = self.spec.tensors[e[1]]
            return ("x", "x") if tensor.kind == "int" and (e[1] in of_keys or not varies(tensor)[1]) else None

        bounds = BlockBounds(dry, leaf)
        return any(bounds.truth(c)[0] is not False for c in (*lows, *(m[1] for m in masks)))

    # The loops over keys.

    def start(self, lead: list[str]) -> None:
        t, config = self.t, self.config
        t.do(f"acc = tl.zeros([{config.BM}, {self.dvp}], tl.float32)")
        t.do(f"m = tl.full([{config.BM}], {MAX_START}, tl.float32)")
        t.do(f"l = tl.zeros([{config.BM}], tl.float32)")
        self.start_sink(lead)

    def start_ramp(self) -> None:
        """What a ramp adds along a block of keys; what it adds to the whole block, see `rise`."""
        t = self.t
        if self.ramp is None:
            return
        known = {("tensor", i): tile for i, tile in self.tiles.items()} | {("Sq",): self.sq, ("Skv",): self.skv}
        slope = self.expressions.emit((SLOPE, self.ramp.slope), known.get)
        start = _position(self.ramp.start, {"q": self.m0, "Sq": self.sq, "Skv": self.skv})
        t.do(f"slope = {slope}")
        t.do("ramp = slope * on.to(tl.float32)[None, :]")
        t.do(f"ramp_start = {start}")

    def rise(self, k0: str) -> str:
        """What a ramp adds to every score of a block, for the workgroup's first query; "" without one."""
        return self.t.let(f"slope * ({k0} - ramp_start).to(tl.float32)") if self.ramp else ""

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
        value = writer.emit((LOG2, ("tensor", 0)), lambda e: sink if e == ("tensor", 0) else None)
        value = t.let(f"l + {value}")
        if self.config.splits > 1:
            value = t.let(f"tl.where(split == 0, {value}, {float_text(-math.inf)})")  # it counts once
        t.do(f"m = tl.maximum({value}, m)")
        t.do(f"l = tl.exp2({value} - m)")

    @property
    def has_edges(self) -> bool:
        """Whether there are blocks that need masks which others do not."""
        return self.masked or self.ragged_keys or self.scanned

    def loops(self, first: str, full_first: str, full_end: str, end: str) -> None:
        """Blocks without masks, blocks with masks, and if some row found nothing else, the blocks that were left out."""
        t = self.t
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
        threshold = self.skips.threshold
        if threshold is None or not self.may_skip or (first == "0" and end == self.count):
            return
        found = f"tl.where(row < {self.sq}, m, 0.0)" if self.ragged_rows else "m"
        t.do(f"again = (tl.min({found}) <= {float_text(threshold)}).to(tl.int32)")
        first, end = t.let(f"tl.minimum({first}, {end})"), t.let(f"tl.maximum({first}, {end})")
        t.do(f"for i in tl.range(0, again * ({first} + {self.count} - {end}), num_stages=1):")
        t.indent += 1
        j = t.let(f"tl.where(i < {first}, i, {end} + i - {first})")
        t.indent -= 1
        self.block(j, edge=True)

    def at_least(self, x: str, least: str) -> str:
        return x if least == "0" else f"tl.maximum({x}, {least})"

    def block(self, j: str, *, edge: bool) -> None:
        """One step of online softmax, the body of a loop."""
        t, spec, config = self.t, self.spec, self.config
        t.indent += 1
        k0 = t.let(f"{j} * {config.BN}")
        inside = f"({k0} + on < {self.skv})" if edge and self.ragged_keys else ""

        def keys(operand: Operand, width: int, of: int, columns: str) -> str:
            start = t.let(self.moved(operand, k0, spec.Skv))
            rows = f"{inside}[:, None]" if inside else ""
            return self.load(self.tile(start, operand, "on", columns), rows, self.narrow(width, of, columns))

        if self.few:
            self.q = self.query_tile(t.let(f"{self.q_start} + zero * {j} * 16"))
        k = keys(self.k, spec.D, self.dp, "od")
        s = t.let(f"tl.dot({self.q}, tl.trans({k}){self.precision})")
        new, p = self.probabilities(s, k0, inside, edge)
        t.do(f"alpha = tl.exp2(m - {new})")
        t.do(f"l = l * alpha + tl.sum({p}, 1)")
        t.do("acc = acc * alpha[:, None]")
        v = keys(self.v, spec.Dv, self.dvp, "ov")
        t.do(f"acc = tl.dot({p}.to({v}.dtype), {v}, acc{self.precision})")
        t.do(f"m = {new}")
        t.indent -= 1

    def probabilities(self, s: str, k0: str, inside: str, edge: bool) -> tuple[str, str]:
        """The new maximum of the rows, and 2 to the power of the scores less it."""
        s, factor = self.score(s, k0, inside, edge)
        times, rise = f" * {factor!r}" if factor != 1.0 else "", self.rise(k0)
        new = self.t.let(f"tl.maximum(m, tl.max({s}, 1){times}{f' + {rise}' if rise else ''})")
        less = self.t.let(f"{new} - {rise}") if rise else new
        return new, self.t.let(f"tl.exp2({s}{times} - {less}[:, None])")

    def score(self, s: str, k0: str, inside: str, edge: bool) -> tuple[str, float]:
        """What the softmax sees, and a positive factor that is still to be applied."""
        t, spec = self.t, self.spec
        steps: list[IndexStep | ExprStep] = []
        for step in self.plan.steps:
            if isinstance(step, IndexStep):
                if edge:
                    steps.append(step)
            elif edge or self.sure.get(step.expr) != SCORE:
                steps.append(step if edge else ExprStep(self.sure.get(step.expr, step.expr)))
        late = not spec.mods and self.factor > 0
        late = late and all(isinstance(x, IndexStep) and x.fill == -math.inf for x in steps)
        if spec.mods:
            s = t.let(f"{s} * {spec.scale!r}")
            for i, mod in enumerate(spec.mods):
                s = t.let(self.expressions.tanh(t.let(f"{s} * {1 / mod.cap!r}")))
                s = t.let(f"{s} * {mod.cap * (self.unit if i == len(spec.mods) - 1 else 1.0)!r}")
        elif not late:
            s = t.let(f"{s} * {self.factor!r}")
        tiles = dict(self.tiles)
        position = ""
        if steps:
            position = t.let(f"({k0} + on)[None, :]")
        memo: dict[ScoreExpr, str] = {}
        for step in steps:
            if isinstance(step, IndexStep):
                s = self.index_mask(step, s, position)
                continue
            if self.ramp is not None:
                s = t.let(f"{s} + ramp")
                continue
            for leaf in leaves(step.expr):
                if leaf[0] == "tensor" and leaf[1] not in tiles:
                    tiles[leaf[1]] = self.tensor_tile(leaf[1], k0, inside)
            now = s

            def known(e: ScoreExpr, now: str = now) -> str | None:
                if e[0] == "tensor":
                    return tiles[e[1]]
                return {SCORE: now, Q: self.position, K: position, ("Sq",): self.sq, ("Skv",): self.skv}.get(e)

            s = t.let(self.expressions.emit(step.expr, known, {k: v for k, v in memo.items() if free(k)}))
        if steps and not late:
            # An expression may have made a column or a row of it.
            s = self.broadcast(s)
        if inside:
            s = t.let(f"tl.where({inside}[None, :], {s}, {float_text(-math.inf)})")
        return s, self.factor if late else 1.0

    def broadcast(self, s: str) -> str:
        return self.t.let(f"tl.broadcast_to({s}, [{self.config.BM}, {self.config.BN}])")

    def tensor_tile(self, i: int, k0: str, inside: str) -> str:
        """A block of a tensor that varies along the keys."""
        t, tensor = self.t, self.spec.tensors[i]
        rows, _ = varies(tensor)
        if not rows:
            loaded = self.load(f"{self.bases[i]} + {k0} + on", inside)
            return self.value(t.let(f"{loaded}[None, :]"), tensor)
        small = (
            isinstance(self.spec.Skv, int) and isinstance(self.spec.Sq, int) and self.spec.Sq * self.spec.Skv < _SMALL
        )
        start = f"{self.bases[i]} + {_times(self.m0 if small else f'{self.m0}.to(tl.int64)', self.skv)} + {k0}"
        loaded = self.load(
            f"{start} + {_times('om[:, None]', self.skv)} + on[None, :]",
            self.rows,
            f"{inside}[None, :]" if inside else "",
        )
        return self.value(loaded, tensor)

    def index_mask(self, step: IndexStep, s: str, position: str) -> str:
        """q + offset - left <= k <= q + offset + right"""
        left, right = window(step.mask)
        offset = f"({self.skv} - {self.sq})" if step.mask.offset == "end" else f"({step.mask.offset})"
        keeps = [f"({position} <= {self.position} + {offset} + {right})"] if right is not None else []
        keeps += [f"({position} >= {self.position} + {offset} - {left})"] if left is not None else []
        if not keeps:
            return s
        return self.t.let(f"tl.where({' & '.join(keeps)}, {s}, {float_text(step.fill)})")

    # Results.

    def finish(self, lead: list[str]) -> None:
        t, spec, config = self.t, self.spec, self.config
        if config.splits == 1:
            result = normalised(t, spec, "acc", "l[:, None]", self.skv)
            out = self.operand("out", spec.canonical_shapes[3], spec.o_layout, lead)
            start = t.let(self.moved(out, self.m0, spec.Sq))
            self.store(self.tile(start, out, "om", "ov"), f"{result}.to(out.dtype.element_ty)", "ov")
            return
        heads = product((*spec.batch, spec.Hq), self.names, True)
        at = t.let(f"(split.to(tl.int64) * ({heads}) + {self.head}) * {self.sq} + {self.m0}")
        rows = t.let(f"{at} + om")
        self.store(f"part + {rows}[:, None] * {spec.Dv} + ov[None, :]", "acc", "ov")
        mask = f", mask=row < {self.sq}" if self.ragged_rows else ""
        t.do(f"tl.store(stat + {rows}, m{mask})")
        t.do(f"tl.store(stat + {self.total_rows()} * {config.splits} + {rows}, l{mask})")
        if combines_itself(spec, config):
            self.combine_last(lead)

    def combine_last(self, lead: list[str]) -> None:
        """Of the workgroups that share queries the last to come here combines the parts. It leaves the counter at zero again."""
        t, spec, config = self.t, self.spec, self.config
        assert isinstance(spec.Sq, int)
        t.do("tl.debug_barrier()  # all threads' parts are written")
        t.do("before = tl.atomic_add(count + pid, 1, sem='acq_rel')")
        t.do(f"if before == {config.splits - 1}:")
        t.indent += 1
        t.do("tl.store(count + pid, 0)")
        if spec.Sq <= min(_UNROLLED, config.BM):
            together = max(1, _LOADED * 32 * config.warps // (config.splits * self.dvp))
            for r in range(0, spec.Sq, together):
                self.combine_rows(lead, [str(x) for x in range(r, min(r + together, spec.Sq))])
        else:
            t.do(f"for r in range({self.m0}, tl.minimum({self.m0} + {config.BM}, {spec.Sq})):")
            t.indent += 1
            self.combine_rows(lead, ["r"])
            t.indent -= 1
        t.indent -= 1

    def total_rows(self) -> str:
        """How many queries there are, in all heads."""
        return f"({product((*self.spec.batch, self.spec.Hq, self.spec.Sq), self.names, True)})"

    def combine_rows(self, lead: list[str], rows: Sequence[str]) -> None:
        """The parts of some queries, weighed by their maxima. All loads come first, so that they go side by side."""
        t, spec, parts = self.t, self.spec, self.config.splits
        narrow = self.narrow(spec.Dv, self.dvp, "ov")
        mask = f", mask=ov < {spec.Dv}" if narrow else ""
        loaded = []
        for row in rows:
            at = t.let(f"tl.arange(0, {parts}).to(tl.int64) * {self.total_rows()} + {self.head} * {self.sq} + {row}")
            m, total = (t.let(f"tl.load(stat + {first}{at})") for first in ("", f"{self.total_rows()} * {parts} + "))
            loaded.append((m, total, self.load(f"part + {at}[:, None] * {spec.Dv} + ov[None, :]", narrow)))
        out = self.operand("out", spec.canonical_shapes[3], spec.o_layout, lead)
        for row, (m, total, acc) in zip(rows, loaded, strict=True):
            weight = t.let(f"tl.exp2({m} - tl.max({m}))")
            total = t.let(f"tl.sum({weight} * {total})")
            acc = t.let(f"tl.sum({acc} * {weight}[:, None], 0)")
            result = normalised(t, spec, acc, total, self.skv)
            start = t.let(self.moved(out, row, spec.Sq))
            t.do(f"tl.store({start} + {_times('ov', out.column)}, {result}.to(out.dtype.element_ty){mask})")

    def store(self, pointers: str, value: str, columns: str) -> None:
        kept = " & ".join(f"({m})" for m in (self.rows, self.narrow(self.spec.Dv, self.dvp, columns)) if m)
        self.t.do(f"tl.store({pointers}, {value}{f', mask={kept}' if kept else ''})")


def normalised(t: Block, spec: AttentionSpec, acc: str, total: str, skv: str) -> str:
    """The output: divided by the sum. Rows without a key have a sum of 0: they are NaN (0 / 0), or 0 if the spec says so, or if
    there are no keys at all."""
    result = t.let(f"{acc} / {total}")
    if isinstance(spec.Skv, str) and spec.empty_row in ("nan", "mean"):
        return t.let(f"tl.where({skv} == 0, 0.0, {result})")
    if spec.empty_row == "zero":
        return t.let(f"tl.where({total} == 0.0, 0.0, {result})")
    return t.let(f"tl.where({total} > 0.0, {result}, 0.0)") if spec.empty_row == "guarded" else result


def combines_itself(spec: AttentionSpec, config: TritonConfig) -> bool:
    """Whether the kernel of split keys combines the parts, too, which takes a counter for each workgroup of queries."""
    return config.splits > 1 and all(isinstance(d, int) for d in (*spec.batch, spec.Hq, spec.Sq))


def combine_program(spec: AttentionSpec, config: TritonConfig, name: str) -> Program:
    """The second dispatch of split keys, where there is one: a workgroup per query."""
    source = AttentionSource(spec, config, name)
    t = source.t
    t.do("pid = tl.program_id(0)")
    t.do(f"ov = tl.arange(0, {source.dvp})")
    source.head, row = t.let(f"pid // {source.sq}"), t.let(f"pid % {source.sq}")
    source.combine_rows(source.lead(source.head), [row])
    pointers = (("part", "f32"), ("stat", "f32"), ("out", spec.dtype))
    return source.written(pointers)

"""The same attention for Hopper, with the pipeline written out (in Gluon, Triton's lower level): while the tensor cores multiply
the probabilities of one block by V, the others compute the softmax of the next (Shah et al., "FlashAttention-3", section 3.2).
K and V come by the copy engine, into rings of `stages` buffers.

    S = Q K[0]^T;  P = softmax(S)
    for each further block: start S = Q K[n]^T, start O += P V[n-1];  wait for S;  P = softmax(S);  wait for O;  O = O decay
    O += P V[last]

Blocks are walked from the last to the first: those on the right edge of a mask, those that no mask touches, those on the left edge.
A head whose columns are two tiles (columns.py) has two buffers, two products that make up one score, and two accumulators.
"""

from __future__ import annotations

from onnx_fa.derive.loop import Loop
from onnx_fa.errors import UnsupportedError
from onnx_fa.kernels.plan.skipping import Skipping, skipping
from onnx_fa.kernels.triton.columns import WIDEST_TILE, Columns
from onnx_fa.kernels.triton.config import TritonConfig
from onnx_fa.kernels.triton.language import output_of
from onnx_fa.kernels.triton.places import Operand
from onnx_fa.kernels.triton.program import TYPES
from onnx_fa.kernels.triton.source import AttentionSource, accumulator
from onnx_fa.spec.attention import AttentionSpec

_HEADER = """import triton.language
from triton.experimental import gluon
from triton.experimental.gluon import language as tl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared, mbarrier, tma, warpgroup_mma, warpgroup_mma_init, warpgroup_mma_wait,
)


"""


def check_copied(width: int, row: str, column: str) -> None:
    """Raises UnsupportedError where the copy engine cannot load the rows of a head: whole 16 bytes, side by side."""
    if column != "1" or not row.isdigit() or int(row) % 8 or width % 8:
        raise UnsupportedError("the overlapped form loads by the copy engine, which these strides do not allow")


def can_overlap(spec: AttentionSpec) -> bool:
    """Whether the form is for a spec: of halves, with many queries, one walk without a need to go back for blocks that were left
    out, and K and V stored with head dims innermost."""
    if spec.dtype not in ("f16", "bf16") or (isinstance(spec.Sq, int) and spec.Sq <= 32):
        return False
    if spec.rounding is not None:  # which takes two walks
        return False
    if spec != spec.plain or max(spec.D, spec.Dv) > WIDEST_TILE:  # which the copy engine does not bring as tiles
        return False
    inner = all(x[-1] == spec.rank - 1 for x in (spec.q_layout, spec.k_layout, spec.v_layout))
    return inner and spec.D % 8 == 0 and spec.Dv % 8 == 0 and skipping(spec).threshold is None


class OverlappedSource(AttentionSource):
    """Writes the source. Raises UnsupportedError for what only the plain form carries."""

    header = _HEADER
    decorator = "@gluon.jit"
    blocks_layout = ", layout=tl.SliceLayout(1, s_layout)"
    rows_layout = ", layout=m_layout"
    part = "0"

    def __init__(
        self,
        spec: AttentionSpec,
        config: TritonConfig,
        name: str,
        *,
        skips: Skipping | None = None,
        loop: Loop | None = None,
    ) -> None:
        self.parts = self.parts_of(spec, config)
        super().__init__(spec, config, name, skips=skips, loop=loop)
        self.height = config.BM // self.parts
        if config.splits > 1 or 16 * config.warps > self.height or config.warps % 4:
            raise UnsupportedError(f"the overlapped form has no such tiles: {config}")

    @classmethod
    def parts_of(cls, spec: AttentionSpec, config: TritonConfig) -> int:
        """Into how many groups of warps the queries are divided. Raises UnsupportedError where the form is not for a spec, or has
        no such tiles."""
        if not can_overlap(spec):
            raise UnsupportedError(
                "the overlapped form is for halves, many queries and heads that the copy engine loads"
            )
        return cls.parts

    def indices(self) -> None:
        """Layouts, then indices along the axes of the score and of the output."""
        t, config = self.t, self.config
        t.do(
            f"s_layout: tl.constexpr = tl.NVMMADistributedLayout([3, 0], [{config.warps}, 1], [16, {min(config.BN, 256)}, 16])"
        )
        for columns in self.values.columns:
            end = end_of(columns)
            t.do(
                f"o_layout{end}: tl.constexpr = tl.NVMMADistributedLayout([3, 0], [{config.warps}, 1], "
                f"[16, {columns.padded}, 16])"
            )
            t.do(f"p_layout{end}: tl.constexpr = tl.DotOperandLayout(0, o_layout{end}, 2)")
        t.do("m_layout: tl.constexpr = tl.SliceLayout(1, s_layout)")
        t.do(f"om = tl.arange(0, {self.height}, layout=m_layout)")
        t.do(f"on = tl.arange(0, {config.BN}, layout=tl.SliceLayout(0, s_layout))")

    def load_queries(self) -> None:
        """Q by the copy engine, too; the rows past the last query are zeros."""
        self.element()
        self.buffers()
        self.sources()
        self.fetch_queries("0", "")

    def element(self) -> None:
        self.t.do(f"type: tl.constexpr = {TYPES[self.spec.dtype]}")

    def buffers(self, parts: int = 1) -> None:
        """Shared memory for the queries, in so many parts, and for the rings of K and V, with barriers for what has come, and where
        there are parts, for what all of them have used."""
        t, config = self.t, self.config
        rows, ring = [self.height] if parts == 1 else [parts, self.height], [config.stages, config.BN]
        for name, lead in (("q", rows), ("k", ring), ("v", ring)):
            for columns in self.columns_of(name):
                own, shape = f"{name}{end_of(columns)}", [*lead, columns.padded]
                t.do(f"{own}_layout: tl.constexpr = tl.NVMMASharedLayout.get_default_for({shape[-2:]}, type)")
                t.do(f"{own}_buffer = tl.allocate_shared_memory(type, {shape}, {own}_layout)")
        bars = {"bars": parts, "k_bars": config.stages, "v_bars": config.stages}
        if parts > 1:
            bars |= {"k_free": config.stages, "v_free": config.stages}
        bars |= self.further_bars(parts)
        for name, many in bars.items():
            t.do(f"{name} = mbarrier.allocate_mbarrier(batch={many})")
        for name, many in bars.items():
            for i in range(many):
                t.do(f"mbarrier.init({name}.index({i}), count={parts if name in ('k_free', 'v_free') else 1})")
        t.do("fence_async_shared()")
        t.do("tl.barrier()")

    def further_bars(self, parts: int) -> dict[str, int]:
        """Other barriers, and how many of each."""
        return {}

    def columns_of(self, name: str) -> list[Columns]:
        """The tiles of "q", "k" or "v"; those of Q are K's."""
        return (self.values if name == "v" else self.keys).columns

    def owned(self, name: str, what: str) -> list[str]:
        """What an operand has one of for each of its tiles: "buffer", "source"."""
        return [f"{name}{end_of(columns)}_{what}" for columns in self.columns_of(name)]

    def sources(self) -> None:
        self.source("q", self.q_operand, self.sq, self.height)
        self.source("k", self.keys.operand, self.skv, self.config.BN)
        self.source("v", self.values.operand, self.skv, self.config.BN)

    def fetch_queries(self, part: str, index: str) -> None:
        start = self.m0 if part == "0" else f"{self.m0} + {part} * {self.height}"
        self.copy("q", f"bars.index({part})", start, index)

    def copy(self, name: str, bar: str, row: str, index: str, there: str = "") -> None:
        """Starts the load of all tiles of an operand from a row on, to the buffers of that `index`."""
        pred = f", pred={there}" if there else ""
        sizes = " + ".join(f"{source}.block_type.nbytes" for source in self.owned(name, "source"))
        self.t.do(f"mbarrier.expect({bar}, {sizes}{pred})")
        for source, buffer in zip(self.owned(name, "source"), self.owned(name, "buffer"), strict=True):
            self.load_tile(name, source, row, bar, f"{buffer}{index}", pred)

    def load_tile(self, name: str, source: str, row: str, bar: str, buffer: str, pred: str) -> None:
        """Starts the load of one tile of the operand `name`."""
        self.t.do(f"tma.async_load({source}, [{row}, 0], {bar}, {buffer}{pred})")

    def source(self, name: str, x: Operand, rows: str, block: int) -> None:
        """What the copy engine knows of a head: rows and columns beyond it are zeros."""
        for columns in self.columns_of(name):
            check_copied(columns.many, x.row, x.column)
            own = f"{name}{end_of(columns)}"
            base = f"{x.base} + {columns.first}" if columns.first else x.base
            self.t.do(
                f"{own}_source = tma.make_tensor_descriptor({base}, shape=[{rows}, {columns.many}], "
                f"strides=[{x.row}, 1], block_shape=[{block}, {columns.padded}], layout={own}_layout)"
            )

    def start_output(self) -> None:
        for columns in self.values.columns:
            self.t.do(
                f"{accumulator(columns)} = tl.zeros([{self.height}, {columns.padded}], tl.float32, "
                f"layout=o_layout{end_of(columns)})"
            )

    def turn(self, at: str) -> str:
        """How many blocks a ring took in before the `at`-th of the walk."""
        return at

    def fetch(self, name: str, at: str) -> None:
        """Starts the load of the block that is the `at`-th in the order of the walk."""
        t, stages = self.t, self.config.stages
        slot = t.let(f"({self.turn(at)}) % {stages}")
        there = t.let(f"({at}) < total")
        self.copy(name, f"{name}_bars.index({slot})", f"(last - ({at})) * {self.config.BN}", f".index({slot})", there)

    def wait(self, name: str, at: str) -> list[str]:
        """The buffers that hold the `at`-th block, once it is there."""
        t, stages = self.t, self.config.stages
        turn = self.turn(at)
        slot = t.let(f"({turn}) % {stages}")
        t.do(f"mbarrier.wait({name}_bars.index({slot}), (({turn}) // {stages}) & 1)")
        return [t.let(f"{buffer}.index({slot})") for buffer in self.owned(name, "buffer")]

    def scores_of(self, k: list[str], how: str = "") -> str:
        """The product of the queries and a block of keys, `how` it is started."""
        s, start = "zero", ", use_acc=False"
        for q, tile in zip(self.owned("q", "buffer"), k, strict=True):
            s, start = self.t.let(f"warpgroup_mma({q}, {tile}.permute((1, 0)), {s}{start}{how})"), ""
        return s

    def probabilities(self, p: str) -> None:
        """`p`, as the products with V take it."""
        self.t.do(f"p = {p}.to(type)")
        for columns in self.values.columns:
            self.t.do(f"p{end_of(columns)}_ = tl.convert_layout(p, p_layout{end_of(columns)})")

    def add_values(self, v: list[str], how: str = "") -> list[str]:
        """The outputs with a block of values more, `how` its products are started."""
        return [
            self.t.let(f"warpgroup_mma(p{end_of(columns)}_, {tile}, {accumulator(columns)}{how})")
            for columns, tile in zip(self.values.columns, v, strict=True)
        ]

    def walk(self, first: str, full_first: str, full_end: str, end: str) -> None:
        """The blocks of keys from the last on, and how many of them are at the edges of masks."""
        t = self.t
        t.do(f"total = tl.maximum({end} - {first}, 0) + 0")
        t.do(f"last = {end} - 1 + 0 * total")
        t.do(f"right = tl.minimum(tl.maximum({end} - tl.maximum({full_end}, {full_first}), 0), total)")
        t.do(f"left = tl.minimum(tl.maximum(tl.minimum({full_first}, {end}) - {first}, 0), total - right)")

    def loops(self, first: str, full_first: str, full_end: str, end: str) -> None:
        t, config = self.t, self.config
        self.walk(first, full_first, full_end, end)
        self.wait_queries()
        t.do("if total > 0:")
        t.indent += 1
        self.begin()
        k = self.wait("k", "0")
        t.do(f"zero = tl.zeros([{self.height}, {config.BN}], tl.float32, layout=s_layout)")
        s = self.scores_of(k)
        self.used("0")
        self.probabilities(self.softmax(s, t.let(f"last * {config.BN}"), edge=True, first=True))
        for low, high, edge in (
            ("1", "right", True),
            ("tl.maximum(right, 1)", "total - left", False),
            ("tl.maximum(total - left, 1)", "total", True),
        ):
            if edge and (not self.has_edges or (low != "1" and first == full_first == "0")):
                continue
            t.do(f"for n in range({low}, {high}):")
            t.indent += 1
            self.step(edge)
            t.indent -= 1
        v = self.wait("v", "total - 1")
        self.last_scored()
        for columns, o in zip(self.values.columns, self.add_values(v), strict=True):
            t.do(f"{accumulator(columns)} = {o}")
        self.last_used()
        t.indent -= 1

    def wait_queries(self) -> None:
        """Before the first product."""
        self.t.do(f"mbarrier.wait(bars.index({self.part}), 0)")

    def step(self, edge: bool) -> None:
        t, config = self.t, self.config
        k = self.wait("k", "n")
        s = self.scores_of(k, ", is_async=True")
        v = self.wait("v", "n - 1")
        products = self.add_values(v, ", is_async=True")
        done = t.let(f"warpgroup_mma_wait({len(products)}, deps=[{s}])")
        self.scored()
        p = self.softmax(done, t.let(f"(last - n) * {config.BN}"), edge=edge, first=False)
        tiles = self.values.columns
        kept = [f"p{end_of(columns)}_" for columns in tiles]
        there = ", ".join([*(accumulator(columns) for columns in tiles), *["_"] * len(kept)])
        # The products read the probabilities until then.
        t.do(f"{there} = warpgroup_mma_wait(0, deps=[{', '.join([*products, *kept])}])")
        self.used("n")
        if self.sweep.correction is not None:
            for columns in tiles:
                factor = f"tl.convert_layout(alpha, tl.SliceLayout(1, o_layout{end_of(columns)}))[:, None]"
                t.do(f"{accumulator(columns)} = {accumulator(columns)} * {factor}")
        self.probabilities(p)

    def begin(self) -> None:
        """Before the first block: the rings are filled."""
        for i in range(self.config.stages):
            self.fetch("k", str(i))
            self.fetch("v", str(i))

    def scored(self) -> None:
        """After the scores of block n are there, which no longer needs its K."""

    def last_scored(self) -> None:
        """After the scores of the last block are there, which no longer needs Q."""

    def last_used(self) -> None:
        """After the last block no longer needs its V."""

    def used(self, n: str) -> None:
        """After block n no longer needs its K, nor the one before it its V."""
        t, stages = self.t, self.config.stages
        t.do("tl.barrier()")
        self.fetch("k", str(stages) if n == "0" else f"{n} + {stages}")
        if n != "0":
            self.fetch("v", f"{n} - 1 + {stages}")

    def softmax(self, s: str, k0: str, *, edge: bool, first: bool) -> str:
        """The probabilities of a block, and the row statistics with it."""
        t = self.t
        inside = f"({k0} + on < {self.skv})" if edge and self.ragged_keys else ""
        new, p, mass = self.scores.weigh(self.sweep, {}, s, k0, inside, edge)
        self.update_rows(new, mass)
        if new:
            t.do(f"m = {new}")
        return p

    def broadcast(self, s: str) -> str:
        return self.t.let(f"tl.zeros([{self.height}, {self.config.BN}], tl.float32, layout=s_layout) + {s}")

    def finish(self, lead: list[str]) -> None:
        t, spec, config = self.t, self.spec, self.config
        self.store_statistics()
        out = self.operand("out", spec.canonical_shapes[3], spec.o_layout, lead)
        start = t.let(self.moved(out, self.m0, spec.Sq))
        for columns in self.values.columns:
            end = end_of(columns)
            if self.sweep.mass is not None:
                t.do(f"total_row = tl.convert_layout(l, tl.SliceLayout(1, o_layout{end}))[:, None]")
            result = output_of(self, self.loop, accumulator(columns), "total_row")
            # Sixteen bytes per thread, side by side.
            across = min(columns.padded // 8, 32)
            t.do(
                f"w_layout{end}: tl.constexpr = tl.BlockedLayout([1, 8], [{32 // across}, {across}], "
                f"[{config.warps}, 1], [1, 0])"
            )
            result = t.let(f"tl.convert_layout({result}.to(type), w_layout{end})")
            t.do(f"om = tl.arange(0, {self.height}, layout=tl.SliceLayout(1, w_layout{end}))")
            indices = columns.indices.replace(")", f", layout=tl.SliceLayout(0, w_layout{end}))", 1)
            t.do(f"{columns.name} = {indices}")
            self.rows = f"({self.m0} + om < {self.sq})[:, None]" if self.ragged_rows else ""
            self.store(self.tile(start, out, "om", columns.name), result, columns.mask)


def end_of(columns: Columns) -> str:
    """What tells the names of a tile from those of the others; "" where there is one."""
    return columns.name.removeprefix("od").removeprefix("ov")

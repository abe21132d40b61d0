"""The specialised form with workgroups that stay (Shah et al., "FlashAttention-3"): one of a multiprocessor takes tile after tile
of queries. The copy engine gets its descriptors once, of all heads, and loads what the next tile begins with while this one ends.

Two to four warpgroups have 64 queries of a tile each. Each visits the blocks that its own queries see, and gives those back at once
that only others need. Blocks are counted through all tiles, as the rings of K and V go on from one to the next.
"""

from __future__ import annotations

import math

from onnx_fa.errors import UnsupportedError
from onnx_fa.kernels.triton.block_ranges import Ends
from onnx_fa.kernels.triton.config import WARPGROUP_ROWS, TritonConfig
from onnx_fa.kernels.triton.overlapped import OverlappedSource, check_copied, end_of
from onnx_fa.kernels.triton.program import Program
from onnx_fa.kernels.triton.specialised import (
    BARRIERS,
    LOADING_WARPS,
    LoadsSource,
    RowsSource,
    can_specialise,
    function_text,
)
from onnx_fa.spec.attention import AttentionSpec
from onnx_fa.spec.terms import IndexMask

REGISTERS = {2: (240, 24), 3: (160, 32), 4: (112, 32)}
"""Of a thread that computes, and of one that loads, by the number of parts."""
_MOST_AXES = 5
"""Of a tensor that the copy engine loads from."""
_COMMON = [*BARRIERS, "q_free"]
_TILE = ["pid", "base", "tile"]
"""Of the function of a tile: its number among all, how many blocks of keys the workgroup visited before, and how many tiles."""


def can_persist(spec: AttentionSpec) -> bool:
    """Whether the form is for a spec: one whose warps can be specialised, and of known sizes, as descriptors of all heads are."""
    sizes = (*spec.batch, spec.Hq, spec.Hkv, spec.Sq, spec.Skv)
    return can_specialise(spec) and all(isinstance(d, int) for d in sizes) and spec.rank <= _MOST_AXES


class _TilesSource(OverlappedSource):
    """What all functions of the form have in common."""

    @classmethod
    def parts_of(cls, spec: AttentionSpec, config: TritonConfig) -> int:
        if not can_persist(spec):
            raise UnsupportedError(
                "workgroups that stay are for attentions of known sizes whose blocks of keys follow from positions"
            )
        parts = config.BM // WARPGROUP_ROWS
        if parts not in REGISTERS or config.warps != WARPGROUP_ROWS // 16:
            raise UnsupportedError(f"the form with workgroups that stay has no such tiles: {config}")
        return parts

    def number(self) -> None:
        """The number of the tile is a parameter."""

    def head_and_block(self, heads: str, blocks: str) -> tuple[str, str]:
        """Blocks of `order` heads take turns, so that the keys and values of no more heads are in use. Those of every other group
        of heads are walked from the short ones on: tiles that follow each other have about as many keys."""
        together, t = self.config.order, self.t
        if together < 2 or blocks == "1":
            return super().head_and_block(heads, blocks)
        group, rest = (t.let(f"pid {op} {together * int(blocks)}") for op in ("//", "%"))
        many = str(together)
        if int(heads) % together:
            many = t.let(f"tl.minimum({heads} - {group} * {together}, {together})")
        head, block = t.let(f"{group} * {together} + {rest} % {many}"), t.let(f"{rest} // {many}")
        if self.long_first:
            odd = (-(-int(heads) // together) - 1) % 2
            block = t.let(f"tl.where({group} % 2 == {odd}, {blocks} - 1 - {block}, {block})")
        return head, block

    def turn(self, at: str) -> str:
        return f"base + {at}"

    def further_bars(self, parts: int) -> dict[str, int]:
        return {"q_free": parts}


class PersistentSource(_TilesSource):
    """Writes the source: the function of a tile for the warps that compute, and for the warp that loads, what calls these for all
    tiles of a workgroup, and the kernel. Raises UnsupportedError for what only the other forms carry."""

    def program(self) -> Program:
        rows, loads = (
            kind(self.spec, self.config, self.name, skips=self.skips, loop=self.loop) for kind in (_Rows, _Loads)
        )
        rows.body()
        rows.t.do("return visited")
        loads.body()
        loads.t.do("return total")
        self.element()
        self.place_columns()
        self.buffers(self.parts)
        self.sources()
        shared = [*(x for name in "qkv" for x in self.owned(name, "buffer")), *_COMMON]
        shared += [n for n, _ in self.pointers()]
        sources = [x for name in "qkv" for x in self.owned(name, "source")]
        listed = [f"({self.name}_rows_{i}, ({', '.join(shared)}))" for i in range(self.parts)]
        listed.append(f"({self.name}_loads, ({', '.join([*sources, *shared])}))")
        computing, loading = REGISTERS[self.parts]
        workers = f"{[self.config.warps] * (self.parts - 1) + [LOADING_WARPS]}"
        registers = f"{[computing] * (self.parts - 1) + [loading]}"
        self.t.do(f"tl.warp_specialize([{', '.join(listed)}], {workers}, {registers})")
        kernel = self.written(self.pointers())
        parameters = ["part: tl.constexpr", *_TILE, *shared]
        functions = [self.header + function_text(f"{self.name}_rows", parameters, rows.t.lines)]
        for i in range(self.parts):
            call = f"{self.name}_rows({', '.join([str(i), *_TILE, *shared])})"
            functions.append(function_text(f"{self.name}_rows_{i}", shared, self.all_tiles(call)))
        parameters = [*_TILE, *sources, *shared]
        functions.append(function_text(f"{self.name}_tile_loads", parameters, loads.t.lines))
        call = f"{self.name}_tile_loads({', '.join(parameters)})"
        functions.append(function_text(f"{self.name}_loads", [*sources, *shared], self.all_tiles(call)))
        text = "\n\n".join([*functions, kernel.text.removeprefix(self.header)])
        return Program(kernel.entry, text, kernel.pointers, kernel.constants)

    def all_tiles(self, call: str) -> list[str]:
        """The lines of a function that calls another for each tile of its workgroup. Every other round of tiles is dealt out
        backwards: where tiles become shorter, as causal ones do, all workgroups so have about as much to do."""
        spec = self.spec
        tiles = math.prod(int(d) for d in (*spec.batch, spec.Hq)) * -(-int(spec.Sq) // self.config.BM)
        return [
            "    base = 0",
            "    tile = 0",
            "    own, many = tl.program_id(0), tl.num_programs(0)",
            f"    for first in range(0, {tiles}, many):",
            "        pid = first + tl.where(tile % 2 == 0, own, many - 1 - own)",
            f"        if pid < {tiles}:",
            f"            base += {call}",
            "        tile += 1",
        ]

    def sources(self) -> None:
        """Descriptors of whole operands."""
        spec = self.spec
        layouts, blocks = (spec.q_layout, spec.k_layout, spec.v_layout), (self.height, self.config.BN, self.config.BN)
        for name, shape, layout, block in zip("qkv", spec.canonical_shapes[:3], layouts, blocks, strict=True):
            sizes, stored = [int(d) for d in shape], [int(shape[a]) for a in layout]
            strides = [math.prod(stored[layout.index(axis) + 1 :]) for axis in range(spec.rank)]
            for columns in self.columns_of(name):
                check_copied(columns.many, str(strides[-2]), str(strides[-1]))
                own, box = f"{name}{end_of(columns)}", [*[1] * (spec.rank - 2), block, columns.padded]
                base = f"{name} + {columns.first}" if columns.first else name
                self.t.do(f"{own}_box: tl.constexpr = tl.NVMMASharedLayout.get_default_for({box}, type)")
                self.t.do(
                    f"{own}_source = tma.make_tensor_descriptor({base}, shape={[*sizes[:-1], columns.many]}, "
                    f"strides={strides}, block_shape={box}, layout={own}_box)"
                )


class _Rows(_TilesSource, RowsSource):
    """One of the parts: `part` is its number."""

    whole: Ends
    """The blocks that any part visits."""

    @property
    def trims(self) -> bool:
        """Whether a part may have fewer blocks than all of them together."""
        return any(isinstance(m, IndexMask) for m in self.spec.masks) or self.ragged_rows

    def ranges(self) -> Ends:
        self.whole = self.blocks.find()
        self.m0 = self.t.let(f"{self.m0} + part * {self.height}")
        if not self.trims:
            return self.whole
        self.span = self.height
        return self.blocks.find()

    def walk(self, first: str, full_first: str, full_end: str, end: str) -> None:
        """The blocks of the part, of all parts those `before` and `after` them in the order of the walk."""
        t = self.t
        t.do(f"visited = tl.maximum({self.whole[3]} - {self.whole[0]}, 0) + 0")
        if self.ragged_rows:
            end = t.let(f"tl.where({self.m0} < {self.sq}, {end}, {first})")
        super().walk(first, full_first, full_end, end)
        if self.trims:
            t.do(f"before = tl.minimum(tl.maximum({self.whole[3]} - tl.maximum({end}, {first}), 0), visited - total)")
            t.do("after = visited - total - before")

    def loops(self, first: str, full_first: str, full_end: str, end: str) -> None:
        super().loops(first, full_first, full_end, end)
        t = self.t
        t.do("else:")
        t.indent += 1
        self.last_scored()
        t.indent -= 1
        if self.trims:
            t.do("base += total")
            self.pass_by("after")

    def pass_by(self, count: str) -> None:
        """Gives blocks back that the part does not need. It waits for them, or it might answer for two turns of a ring at once."""
        t, stages = self.t, self.config.stages
        t.do(f"for i in range({count}):")
        t.indent += 1
        slot = t.let(f"(base + i) % {stages}")
        for name in "kv":
            t.do(f"mbarrier.wait({name}_bars.index({slot}), ((base + i) // {stages}) & 1)")
            t.do(f"mbarrier.arrive({name}_free.index({slot}), count=1)")
        t.indent -= 1

    def wait_queries(self) -> None:
        if self.trims:
            self.pass_by("before")
            self.t.do("base += before")
        self.t.do("mbarrier.wait(bars.index(part), tile & 1)")

    def last_scored(self) -> None:
        self.t.do("mbarrier.arrive(q_free.index(part), count=1)")

    def last_used(self) -> None:
        self.free("v", "total - 1")


class _Loads(_TilesSource, LoadsSource):
    """The warp that loads Q, K and V: the first keys of a tile before its queries, which wait for the end of the tile before."""

    def body(self) -> None:
        t = self.t
        self.head_of_queries = self.place()
        self.walk(*self.ranges())
        self.fetch_free("k", "0")
        for i in range(self.parts):
            t.do(f"mbarrier.wait(q_free.index({i}), (tile & 1) ^ 1)")
            self.fetch_queries(str(i), f".index({i})")
        self.fetch_free("v", "0")
        t.do("for n in range(1, total):")
        t.indent += 1
        self.fetch_free("k", "n")
        self.fetch_free("v", "n")
        t.indent -= 1

    def load_tile(self, name: str, source: str, row: str, bar: str, buffer: str, pred: str) -> None:
        lead = ", ".join(self.head_of_queries if name == "q" else self.kv_lead)
        self.t.do(
            f"tma.async_load({source}, [{lead}, {row}, 0], {bar}, "
            f"{buffer}.reinterpret({source}.dtype, {source}.block_shape, {source}.layout){pred})"
        )

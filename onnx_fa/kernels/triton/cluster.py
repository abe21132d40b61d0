"""The form whose workgroups, which share the keys of the same few queries, are a cluster of Hopper's: each sends its part of the
output into the shared memory of the workgroup that combines those columns, and nothing goes through the device's memory.

Parts that go through it wait for one round trip after another: they are written, a counter is raised, and the last workgroup of all
reads them. Of few keys that was a third of the time.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from onnx_fa.derive.loop import MASS, MAXIMUM
from onnx_fa.derive.terms import Term
from onnx_fa.errors import UnsupportedError
from onnx_fa.kernels.triton.combine import weigh_parts
from onnx_fa.kernels.triton.config import CLUSTER, FEW, TritonConfig, power_of_two
from onnx_fa.kernels.triton.expressions import Block
from onnx_fa.kernels.triton.language import output_of, statistic_of
from onnx_fa.kernels.triton.program import RECEIVED, Program, combines_itself, loop_in, times
from onnx_fa.kernels.triton.source import AttentionSource, accumulator
from onnx_fa.spec.attention import AttentionSpec

MOST_IN_CLUSTER = 8
"""Workgroups, which every GPU with clusters takes."""
_ADDRESS = f"mov.u32 a, global_smem; add.u32 a, a, {RECEIVED}; add.u32 a, a,"
"""Of a byte of what is received, in a workgroup's own shared memory, which Triton calls global_smem."""
_SEND = (
    f"{{ .reg .b32 a; .reg .pred p; setp.ne.b32 p, $4, 0; {_ADDRESS} $2; mapa.shared::cluster.u32 a, a, $1; "
    "@p st.shared::cluster.f32 [a], $3; mov.b32 $0, 0; }"
)
_RECEIVE = f"{{ .reg .b32 a; {_ADDRESS} $1; ld.shared.f32 $0, [a]; }}"
ARRIVE = "barrier.cluster.arrive.relaxed;"
"""Says that the workgroup has begun, and may be sent to."""
WAIT = "barrier.cluster.wait.acquire;"
MEET = "barrier.cluster.arrive.release; barrier.cluster.wait.acquire;"
"""What all have sent before it they can read behind it."""


def can_cluster(spec: AttentionSpec) -> bool:
    """Whether the form is for a spec (already folded): a few queries, whose number is known, and one walk over the keys."""
    return isinstance(spec.Sq, int) and 0 < spec.Sq <= FEW and len(loop_in(spec).walks) == 1


def is_cluster(spec: AttentionSpec, config: TritonConfig) -> bool:
    """Whether so many parts of the keys are a cluster, and so few that code for other GPUs combines them itself."""
    in_plain_form = replace(config, overlap=0)
    return 1 < config.splits <= MOST_IN_CLUSTER and can_cluster(spec) and combines_itself(spec, in_plain_form)


def received_bytes(rows: int, columns: int, splits: int) -> int:
    """Of shared memory: its own columns of each part, of `columns` in all as tiles have them, and the maximum and the sum of each
    row, in f32."""
    return 4 * rows * (columns + 2 * splits)


def pass_barrier(t: Block, what: str) -> None:
    """What every thread does once."""
    asm = f'"{what} mov.b32 $0, $1;", "=r,r", [thread]'
    t.do(f"tl.inline_asm_elementwise({asm}, dtype=tl.int32, is_pure=False, pack=1)")


def send(t: Block, to: str, at: str, value: str, kept: str) -> None:
    """Stores numbers into the shared memory of the workgroups `to` of the cluster, at places that count what is received; those
    alone of which `kept` is not zero."""
    asm = f'"{_SEND}", "=r,r,r,f,r", [{to}, 4 * ({at}), {value}, {kept}]'
    t.do(f"tl.inline_asm_elementwise({asm}, dtype=tl.int32, is_pure=False, pack=1)")


def receive(t: Block, at: str) -> str:
    """What lies at places in the workgroup's own shared memory."""
    asm = f'"{_RECEIVE}", "=f,r", [4 * ({at})]'
    return t.let(f"tl.inline_asm_elementwise({asm}, dtype=tl.float32, is_pure=False, pack=1)")


class ClusterSource(AttentionSource):
    """Writes the source. Raises UnsupportedError for what only other forms carry."""

    def __init__(self, spec: AttentionSpec, config: TritonConfig, name: str, **options: Any) -> None:
        if config.overlap != CLUSTER or not is_cluster(spec, config):
            raise UnsupportedError(
                f"a cluster is of two to {MOST_IN_CLUSTER} parts of the keys, of {FEW} queries at the most whose number is known"
            )
        super().__init__(spec, config, name, **options)
        self.each = self.dvp // config.splits
        """Columns of the output that a workgroup combines."""

    def program(self) -> Program:
        splits = self.config.splits
        return replace(super().program(), cluster=splits, received=received_bytes(int(self.spec.Sq), self.dvp, splits))

    def place(self) -> list[str]:
        self.t.do(f"thread = tl.arange(0, {32 * self.config.warps})")
        pass_barrier(self.t, ARRIVE)
        return super().place()

    def finish(self, lead: list[str]) -> None:
        rows, splits = int(self.spec.Sq), self.config.splits
        sums = rows * splits * self.each
        pass_barrier(self.t, WAIT)
        self.send_part(rows, sums)
        pass_barrier(self.t, MEET)
        self.t.do(f"e = tl.arange(0, {power_of_two(rows) * self.each})")
        self.t.do(f"r = tl.minimum(e // {self.each}, {rows - 1})")
        self.combine(rows, sums, lead)

    def send_part(self, rows: int, sums: int) -> None:
        """Each column to the workgroup that combines it, and the rows' maxima and sums to all."""
        t, splits, each = self.t, self.config.splits, self.each
        t.do(f"kept = (om < {rows}).to(tl.int32)")
        for columns in self.values.columns:
            at = f"(split * {rows} + om[:, None]) * {each} + {columns.name}[None, :] % {each}"
            send(t, f"({columns.name} // {each})[None, :]", at, accumulator(columns), "kept[:, None]")
        t.do(f"others = tl.arange(0, {splits})")
        for first, value in ((sums, "m"), (sums + splits * rows, "l")):
            at = f"{first} + split * {rows} + om[:, None]"
            send(t, "others[None, :]", at, f"{value}[:, None]", "kept[:, None]")

    def combine(self, rows: int, sums: int, lead: list[str]) -> None:
        """The workgroup's columns of the output, an element `e` after the other: those of a row `r` side by side."""
        t, spec, splits, each = self.t, self.spec, self.config.splits, self.each
        part = t.let(f"others[None, :] * {rows} + r[:, None]")
        m, total = (receive(t, f"{first} + {part}") for first in (sums, sums + splits * rows))
        acc = receive(t, f"{part} * {each} + (e % {each})[:, None]")
        most, weight = weigh_parts(self, self.loop, m, ", 1", "[:, None]")
        if weight:
            total, acc = f"{weight} * {total}", f"{acc} * {weight}"
        total, acc = t.let(f"tl.sum({total}, 1)"), t.let(f"tl.sum({acc}, 1)")
        result = output_of(self, self.loop, acc, total)
        out = self.operand("out", spec.canonical_shapes[3], spec.o_layout, lead)
        column = t.let(f"split * {each} + e % {each}")
        kept = " & ".join([f"(e < {rows * each})", *([f"({column} < {spec.Dv})"] if spec.Dv < self.dvp else [])])
        place = f"{self.moved(out, 'r', spec.Sq)} + {times(column, out.column)}"
        t.do(f"tl.store({place}, {result}.to(out.dtype.element_ty), mask={kept})")
        for which in spec.stats:
            known: dict[Term, str] = {MAXIMUM: most, MASS: total}
            value = statistic_of(self, which, self.loop.one_walk.results[which], known)
            first = f"(e % {each} == 0) & (e < tl.where(split == 0, {rows * each}, 0))"
            t.do(f"tl.store(row_{which} + {self.head}.to(tl.int64) * {self.sq} + r, {value}, mask={first})")

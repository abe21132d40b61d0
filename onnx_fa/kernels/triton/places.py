"""Where a workgroup of a Triton kernel finds things: its queries, its head of each operand, tiles and their masks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from onnx_fa.kernels.plan.score import varies, window
from onnx_fa.kernels.triton.config import TritonConfig, padded
from onnx_fa.kernels.triton.expressions import Block
from onnx_fa.kernels.triton.program import HEADER, Program, product, times, write_program
from onnx_fa.spec.attention import AttentionSpec
from onnx_fa.spec.terms import Dim, Gathered, IndexMask, TensorArg

ALONE = "0"
"""The index along an axis of one element."""
_MOST_NARROW = 1 << 31
"""Tensors of fewer elements are addressed in 32 bits."""


def is_narrow(shape: Sequence[Dim]) -> bool:
    """Whether 32 bits address every element of a tensor."""
    return all(isinstance(d, int) for d in shape) and math.prod(d for d in shape if isinstance(d, int)) < _MOST_NARROW


@dataclass(frozen=True)
class Operand:
    """A head of q, k, v or out: where it starts, and the strides of its two axes."""

    base: str
    row: str
    column: str


class Places:
    """The source of a kernel as it grows, in `t`, for a spec whose queries are folded already (kernels/plan/folding.py). `names`
    are the parameters that hold the spec's symbols."""

    blocks_together = 1
    """How many blocks of queries a workgroup takes."""
    header = HEADER
    decorator = "@triton.jit"

    def __init__(self, spec: AttentionSpec, config: TritonConfig, name: str) -> None:
        self.spec, self.config, self.name = spec, config, name
        self.t = Block()
        self.names = {symbol: f"s{i}" for i, symbol in enumerate(spec.symbols)}
        self.sq, self.skv = self.dim(spec.Sq), self.dim(spec.Skv)
        self.dp, self.dvp = padded(spec.D), padded(spec.Dv)
        self.ragged_keys = not (isinstance(spec.Skv, int) and spec.Skv % config.BN == 0)
        self.ragged_rows = not (isinstance(spec.Sq, int) and spec.Sq % config.BM == 0)
        self.tiles: dict[int, str] = {}
        """Those of the spec's tensors that do not vary along the keys."""
        self.bases: list[str] = []
        """Where each tensor's part for this head starts."""
        self.span = config.BM
        """How many queries, from the first, visit the same blocks of keys."""
        self.m0 = self.head = ""
        """The workgroup's first query, and the number of its head among all."""
        self.kv_lead: list[str] = []
        """The indices of its head of K and V, or of its pools."""
        self.index = self.first_row = ""
        """Where the index of gathered rows starts, and what is added to its numbers."""
        self.position = self.rows = ""
        """The queries as a column, and a mask of those that exist; "" where all do."""

    def dim(self, d: Dim) -> str:
        return str(d) if isinstance(d, int) else self.names[d]

    def written(self, pointers: Sequence[tuple[str, str]]) -> Program:
        """The program of the lines so far."""
        return write_program(self.name, pointers, self.names, self.t.lines, f"{self.header}{self.decorator}")

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
        small = is_narrow(stored)

        def stride(axis: int, wide: bool) -> str:
            return product(stored[layout.index(axis) + 1 :], self.names, wide)

        at = [
            times(x if small else f"{x}.to(tl.int64)", stride(i, not small)) for i, x in enumerate(lead) if x != ALONE
        ]
        rank = self.spec.rank
        base = self.t.let(" + ".join([name, *(f"({a})" for a in at)]))
        return Operand(base, stride(rank - 2, False), stride(rank - 1, False))

    def moved(self, operand: Operand, by: str, limit: Dim) -> str:
        """The operand's start, `by` rows on."""
        small = isinstance(limit, int) and operand.row.isdigit() and limit * int(operand.row) < _MOST_NARROW
        return f"{operand.base} + {times(by if small else f'{by}.to(tl.int64)', operand.row)}"

    def tile(self, start: str, operand: Operand, rows: str, columns: str) -> str:
        return f"{start} + {times(f'{rows}[:, None]', operand.row)} + {times(f'{columns}[None, :]', operand.column)}"

    def load(self, pointers: str, *masks: str) -> str:
        kept = " & ".join(f"({m})" for m in masks if m)
        return self.t.let(f"tl.load({pointers}, mask={kept}, other=0.0)" if kept else f"tl.load({pointers})")

    def narrow(self, width: int, of: int, columns: str) -> str:
        """A mask for columns that are there only because tiles are powers of two."""
        return "" if width == of else f"{columns}[None, :] < {width}"

    def place(self) -> list[str]:
        """Which queries the workgroup has, and where its operands are. Returns the indices of its head."""
        t, spec, config = self.t, self.spec, self.config
        self.number()
        rows = config.BM * self.blocks_together
        blocks = -(-spec.Sq // rows) if isinstance(spec.Sq, int) else f"tl.cdiv({self.sq}, {rows})"
        heads = product((*spec.batch, spec.Hq), self.names)
        head, block = self.head_and_block(heads, str(blocks))
        self.m0 = t.let(f"{block} * {rows}")
        self.head = head
        lead = self.lead(head)
        self.kv_lead = [*lead[:-1], t.let(f"{lead[-1]} // {spec.group}")] if spec.group > 1 else lead
        self.q_operand = self.operand("q", spec.canonical_shapes[0], spec.q_layout, lead)
        if spec.gathered is not None:
            self.place_rows(spec.gathered, lead[:-1])
        return lead

    def number(self) -> None:
        """The number of the queries among all, `pid`: the workgroup's."""
        self.t.do("pid = tl.program_id(0)")

    def head_and_block(self, heads: str, blocks: str) -> tuple[str, str]:
        """The head of the queries with the number `pid`, and which of its blocks they are."""
        t = self.t
        if self.config.order == 0 or blocks == "1":  # of one block the compiler then knows that it is the first
            block, head = t.let(f"pid % {blocks}"), t.let(f"pid // {blocks}")
        else:
            head, block = t.let(f"pid % ({heads})"), t.let(f"pid // ({heads})")
        return head, t.let(f"{blocks} - 1 - {block}") if self.long_first else block

    @property
    def long_first(self) -> bool:
        """Whether the blocks of queries are walked from the last to the first, which see more keys, so that the short ones fill
        the end."""
        return any(
            isinstance(m, IndexMask) and window(m)[1] is not None and window(m)[0] is None for m in self.spec.masks
        )

    def place_rows(self, gathered: Gathered, batch: list[str]) -> None:
        """Where the index of gathered rows starts for the workgroup's batch row, and its head of the pools."""
        dims = (*self.spec.batch, self.spec.Skv)
        small = is_narrow(dims)
        at = [
            f"({times(x if small else f'{x}.to(tl.int64)', product(dims[i + 1 :], self.names, not small))})"
            for i, x in enumerate(batch)
        ]
        self.index = self.t.let(" + ".join(["rows", *at]))
        head = self.kv_lead[-1]
        self.first_row = times(head, str(gathered.head_rows)) if gathered.head_rows else ""
        self.kv_lead = [*[ALONE] * len(batch), ALONE if gathered.head_rows else head]

    def rows_of(self, k0: str, inside: str) -> str:
        """Where the keys of a block stand in their pools, a number for each; "" where they are in their order."""
        spec = self.spec
        if spec.gathered is None:
            return ""
        rows = self.load(f"{self.index} + {k0} + on", inside)
        small = all(is_narrow(shape) for shape in spec.canonical_shapes[1:3])
        rows = f"{rows}.to({'tl.int32' if small else 'tl.int64'})"
        return self.t.let(f"{rows} + {self.first_row}" if self.first_row else rows)

    def tensor_base(self, i: int, tensor: TensorArg, lead: list[str], name: str = "") -> str:
        """Where a tensor's part for this head starts."""
        shape = tensor.shape
        small = is_narrow(shape)
        own = lead[max(0, self.spec.rank - len(shape)) :] if len(shape) > 2 else []
        at = []
        for axis, (d, x) in enumerate(zip(shape[:-2], own, strict=False)):
            if d != 1:
                stride = product(shape[axis + 1 :], self.names, not small)
                at.append(f"({times(x if small else f'{x}.to(tl.int64)', stride)})")
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

    def tensor_tile(self, i: int, k0: str, inside: str) -> str:
        """A block of a tensor that varies along the keys."""
        t, tensor = self.t, self.spec.tensors[i]
        rows, _ = varies(tensor)
        if not rows:
            loaded = self.load(f"{self.bases[i]} + {k0} + on", inside)
            return self.value(t.let(f"{loaded}[None, :]"), tensor)
        small = is_narrow((self.spec.Sq, self.spec.Skv))
        start = f"{self.bases[i]} + {times(self.m0 if small else f'{self.m0}.to(tl.int64)', self.skv)} + {k0}"
        loaded = self.load(
            f"{start} + {times('om[:, None]', self.skv)} + on[None, :]",
            self.rows,
            f"{inside}[None, :]" if inside else "",
        )
        return self.value(loaded, tensor)

    def store(self, pointers: str, value: str, columns: str) -> None:
        """`columns`: a mask of those that there are, "" for all."""
        kept = " & ".join(f"({m})" for m in (self.rows, columns) if m)
        self.t.do(f"tl.store({pointers}, {value}{f', mask={kept}' if kept else ''})")

    def total_rows(self) -> str:
        """How many queries there are, in all heads."""
        return f"({product((*self.spec.batch, self.spec.Hq, self.spec.Sq), self.names, True)})"

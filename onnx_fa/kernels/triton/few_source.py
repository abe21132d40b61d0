"""What kernels of a few rows share, whatever the weight is made of (linear_few.py, linear_bits.py): the columns of a workgroup, the
norm of the rows in front, which each workgroup takes for itself, and what becomes of sums."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from onnx_fa.kernels.mlir.text import element_type
from onnx_fa.kernels.triton.config import power_of_two
from onnx_fa.kernels.triton.expressions import Block
from onnx_fa.kernels.triton.linear_source import store_result, write_then
from onnx_fa.kernels.triton.norm_source import write_reciprocal
from onnx_fa.kernels.triton.program import Program, write_program
from onnx_fa.spec.fused_linear import FusedLinear
from onnx_fa.spec.linear import LinearSpec

MOST_ROWS = 4
"""More rows are multiplied by tensor cores."""


@dataclass(frozen=True)
class FewConfig:
    """BN columns and steps of BK numbers of K, which is cut into so many `splits`; `warps` of 32 threads."""

    BN: int
    BK: int
    splits: int
    warps: int = 4
    stages: int = 1
    BM: int = MOST_ROWS


@dataclass(frozen=True)
class Weight:
    """One of the products, and what the names of its operands, and those of its tensors, begin with."""

    spec: LinearSpec
    prefix: str
    tensors: str


class FewSource:
    """Writes the kernel of a spec of up to MOST_ROWS rows."""

    def __init__(self, spec: FusedLinear, config: FewConfig, name: str) -> None:
        assert spec.product.rows is not None and spec.product.rows <= MOST_ROWS
        self.spec, self.config, self.name, self.t = spec, config, name, Block()
        self.product, self.rows = spec.product, range(spec.product.rows)
        self.weights = [Weight(spec.gate, "g", "u")] if spec.gate else []
        self.weights.append(Weight(spec.product, "", "t"))
        self.edge = f"n < {self.product.N}" if self.product.N % config.BN else ""
        """Which of the columns there are, "" for all."""

    def place(self) -> None:
        """Which columns the workgroup has. Those past the last are computed as the last, and not stored."""
        t, config = self.t, self.config
        t.do("pid = tl.program_id(0)")
        t.do(f"left = pid * {config.BN}")
        t.do(f"n = left + tl.arange(0, {config.BN})")
        t.do(f"column = tl.minimum(n, {self.product.N - 1})" if self.edge else "column = n")

    def take_norms(self) -> None:
        """What the numbers of each row are multiplied by: a power of two first, so that their squares are finite, and what brings
        these to a mean of one, which sums of products are multiplied by."""
        t, norm = self.t, self.spec.norm
        if norm is None:
            return
        width = power_of_two(norm.N)
        t.do(f"all_k = tl.arange(0, {width})")
        mask = "" if width == norm.N else f", mask=all_k < {norm.N}, other=0.0"
        for r in self.rows:
            t.do(f"v = tl.load(x + {r * norm.N} + all_k{mask}).to(tl.float32)")
            small, by = write_reciprocal(t, norm, "v", 0)
            t.do(f"small{r} = {small}")
            t.do(f"norm{r} = {by}")

    @property
    def x_type(self) -> str:
        return self.spec.operands[0][2]

    @property
    def gain_type(self) -> str:
        """Of what the norm's numbers are multiplied by, "" where there is nothing."""
        return self.spec.norm.scale if self.spec.norm else ""

    def scaled(self, r: int, x: Sequence[str], gain: Sequence[str]) -> list[str]:
        """Numbers of a row as the products take them, but for the factor of the whole row."""
        if self.spec.norm is None:
            return list(x)
        made = [self.t.let(f"{value} * small{r}") for value in x]
        return [self.t.let(f"{a} * {b}") for a, b in zip(made, gain, strict=True)] if gain else made

    def finish(self, r: int, sums: Sequence[str]) -> None:
        """Writes what becomes of a row's sums (1, BN), one for each of the weights."""
        t, product = self.t, self.product
        edge = f"({self.edge})[None, :]" if self.edge else ""
        at = t.let(f"{r * product.N} + n[None, :]")
        mask, made = f", mask={edge}, other=0.0" if edge else "", ""
        for w, total in zip(self.weights, sums, strict=True):
            normed = t.let(f"{total} * norm{r}") if self.spec.norm else total
            given = {self.spec.gated: made} if made else {}
            made = write_then(t, w.spec, normed, at, mask, tensors=w.tensors, given=given)
        store_result(t, product, self.config.BN, made, str(r), edge)

    def write(self, shared: Sequence[tuple[str, str]] = ()) -> Program:
        """The program of the lines; `shared` are pointers to what workgroups leave each other."""
        operands = [(name, element_type(dtype)) for name, _, dtype in self.spec.operands]
        dtype = self.product.dtype
        outs = [(f"out{i}", dtype) for i in range(len(self.product.parts))] or [("out", dtype)]
        return write_program(self.name, [*operands, *shared, *outs], {"rows": "s0"}, self.t.lines)

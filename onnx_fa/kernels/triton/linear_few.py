"""A linear site of one row, or a few that are known, by a weight of floats (by few bits: linear_bits.py): what takes the time is
reading the weight, once. A workgroup has BN columns and a part of K. It multiplies without tensor cores: each thread adds up the
numbers that it reads, and threads are added up at the end. Of the workgroups that share columns the last to come adds their parts
in order."""

from __future__ import annotations

from dataclasses import dataclass

from onnx_fa.kernels.triton.config import power_of_two
from onnx_fa.kernels.triton.expressions import Block
from onnx_fa.kernels.triton.linear_source import Weights, linear_program, store_result, write_then
from onnx_fa.kernels.triton.program import Program, begin_last
from onnx_fa.spec.linear import LinearSpec

MOST_ROWS = 4
"""More rows are multiplied by tensor cores."""
_WORKGROUPS = 528
"""Four for each of a large GPU's multiprocessors, so that some read while others add."""


@dataclass(frozen=True)
class FewConfig:
    """BN columns and steps of BK numbers of K, which is cut into so many `splits`; `warps` of 32 threads."""

    BN: int
    BK: int
    splits: int
    warps: int = 4
    stages: int = 1
    BM: int = MOST_ROWS


def few_config(spec: LinearSpec) -> FewConfig:
    """Tiles of 16 KiB, which go along memory: wide where the weight is (K, N), deep where it is (N, K)."""
    size = {"f32": 4}.get(spec.dtype, 2)
    if spec.transposed:
        BN, BK = 16, min(1024 // size, power_of_two(spec.K))
    else:
        BN, BK = 128 // size, 128
    wanted = -(-_WORKGROUPS // -(-spec.N // BN))
    steps = -(-spec.K // BK)
    return FewConfig(BN, BK, max(1, min(wanted, steps, 16)))


class FewRowsSource:
    """Writes the kernel of a spec of up to MOST_ROWS rows."""

    def __init__(self, spec: LinearSpec, config: FewConfig, name: str) -> None:
        assert spec.rows is not None and spec.rows <= MOST_ROWS
        self.spec, self.config, self.name, self.t = spec, config, name, Block()
        self.rows = range(spec.rows)
        self.across = "[None, :]" if spec.transposed else "[:, None]"
        """How numbers along K lie in a tile."""

    def program(self) -> Program:
        t, spec, config = self.t, self.spec, self.config
        shape = [config.BN, config.BK] if spec.transposed else [config.BK, config.BN]
        t.do("pid = tl.program_id(0)")
        t.do("split = tl.program_id(1)")
        t.do(f"left = pid * {config.BN}")
        t.do(f"n = left + tl.arange(0, {config.BN})")
        t.do(f"column = tl.minimum(n, {spec.N - 1})" if spec.N % config.BN else "column = n")
        for r in self.rows:
            t.do(f"acc{r} = tl.zeros({shape}, tl.float32)")
        steps = -(-spec.K // config.BK)
        each = -(-steps // config.splits) * config.BK
        t.do(f"for k in range(split * {each}, tl.minimum(split * {each} + {each}, {spec.K}), {config.BK}):")
        t.indent += 1
        self.step()
        t.indent -= 1
        for r in self.rows:
            t.do(f"y{r} = tl.sum(acc{r}, {1 if spec.transposed else 0})")
        self.finish()
        shared = [("count", "i32"), ("part", "f32")] if config.splits > 1 else []
        return linear_program(spec, self.name, t, shared)

    def step(self) -> None:
        """BK numbers of the rows and columns."""
        t, spec, config = self.t, self.spec, self.config
        t.do(f"at = k + tl.arange(0, {config.BK})")
        inside = "" if spec.K % config.BK == 0 else f"at < {spec.K}"
        (w,) = Weights(t, spec).tiles(inside)
        for r in self.rows:
            mask = f", mask={inside}, other=0.0" if inside else ""
            x = t.let(f"tl.load(x + {r * spec.K} + at{mask}).to(tl.float32)")
            t.do(f"acc{r} += {w} * {x}{self.across}")

    def finish(self) -> None:
        t, spec, config = self.t, self.spec, self.config
        edge = f"n < {spec.N}" if spec.N % config.BN else ""
        mask = f", mask={edge}" if edge else ""
        if config.splits > 1:
            rows = len(self.rows)
            for r in self.rows:
                t.do(f"tl.store(part + (split * {rows} + {r}) * {spec.N} + n, y{r}{mask})")
            begin_last(t, config.splits)
            t.do(f"i = tl.arange(0, {power_of_two(config.splits)})[:, None]")
            for r in self.rows:
                kept = f"(i < {config.splits})" + (f" & ({edge})[None, :]" if edge else "")
                read = f"part + (i * {rows} + {r}) * {spec.N} + n[None, :]"
                t.do(f"y{r} = tl.sum(tl.load({read}, mask={kept}, other=0.0), 0)")
        for r in self.rows:
            at = t.let(f"{r * spec.N} + n[None, :]")
            inside = f", mask=({edge})[None, :]" if edge else ""
            y = write_then(t, spec, t.let(f"y{r}[None, :]"), at, f"{inside}, other=0.0" if edge else "")
            store_result(t, spec, config.BN, y, str(r), inside.removeprefix(", mask="))
        t.indent = 1

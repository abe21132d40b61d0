"""A linear site of one row, or a few that are known, by a weight of floats (by few bits: linear_bits.py): what takes the time is
reading the weight, once. A workgroup has BN columns and a part of K. It multiplies without tensor cores: each thread adds up the
numbers that it reads, and threads are added up at the end. Of the workgroups that share columns the last to come adds their parts
in order."""

from __future__ import annotations

from onnx_fa.kernels.triton.config import power_of_two
from onnx_fa.kernels.triton.few_source import FewConfig, FewSource
from onnx_fa.kernels.triton.linear_source import Weights
from onnx_fa.kernels.triton.program import Program, begin_last
from onnx_fa.spec.fused_linear import FusedLinear
from onnx_fa.spec.linear import LinearSpec

_WORKGROUPS = 528
"""Four for each of a large GPU's multiprocessors, so that some read while others add."""


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


class FewRowsSource(FewSource):
    """Writes the kernel of a spec of up to MOST_ROWS rows."""

    def __init__(self, spec: FusedLinear, config: FewConfig, name: str) -> None:
        super().__init__(spec, config, name)
        self.across = "[None, :]" if spec.product.transposed else "[:, None]"
        """How numbers along K lie in a tile."""

    def program(self) -> Program:
        t, product, config = self.t, self.product, self.config
        shape = [config.BN, config.BK] if product.transposed else [config.BK, config.BN]
        self.place()
        t.do("split = tl.program_id(1)")
        self.take_norms()
        for r in self.rows:
            for w in self.weights:
                t.do(f"{w.tensors}_acc{r} = tl.zeros({shape}, tl.float32)")
        steps = -(-product.K // config.BK)
        each = -(-steps // config.splits) * config.BK
        t.do(f"for k in range(split * {each}, tl.minimum(split * {each} + {each}, {product.K}), {config.BK}):")
        t.indent += 1
        self.step()
        t.indent -= 1
        for r in self.rows:
            for w in self.weights:
                t.do(f"{w.tensors}_y{r} = tl.sum({w.tensors}_acc{r}, {1 if product.transposed else 0})")
        if config.splits > 1:
            self.add_parts()
        for r in self.rows:
            self.finish(r, [t.let(f"{w.tensors}_y{r}[None, :]") for w in self.weights])
        t.indent = 1
        return self.write([("count", "i32"), ("part", "f32")] if config.splits > 1 else [])

    def step(self) -> None:
        """BK numbers of the rows and columns."""
        t, K, config = self.t, self.product.K, self.config
        t.do(f"at = k + tl.arange(0, {config.BK})")
        inside = "" if K % config.BK == 0 else f"at < {K}"
        mask = f", mask={inside}, other=0.0" if inside else ""
        tiles = [Weights(t, w.spec, w.prefix).tiles(inside)[0] for w in self.weights]
        gain = [t.let(f"tl.load(gain + at{mask}).to(tl.float32)")] if self.gain_type else []
        for r in self.rows:
            (x,) = self.scaled(r, [t.let(f"tl.load(x + {r * K} + at{mask}).to(tl.float32)")], gain)
            for w, tile in zip(self.weights, tiles, strict=True):
                t.do(f"{w.tensors}_acc{r} += {tile} * {x}{self.across}")

    def add_parts(self) -> None:
        """Leaves the sums of this part of K to the last of the workgroups with these columns, which adds all of them in order."""
        t, N, config = self.t, self.product.N, self.config
        mask = f", mask={self.edge}" if self.edge else ""
        sums = [f"{w.tensors}_y{r}" for r in self.rows for w in self.weights]
        for i, y in enumerate(sums):
            t.do(f"tl.store(part + (split * {len(sums)} + {i}) * {N} + n, {y}{mask})")
        begin_last(t, config.splits)
        t.do(f"i = tl.arange(0, {power_of_two(config.splits)})[:, None]")
        kept = f"(i < {config.splits})" + (f" & ({self.edge})[None, :]" if self.edge else "")
        for i, y in enumerate(sums):
            read = f"part + (i * {len(sums)} + {i}) * {N} + n[None, :]"
            t.do(f"{y} = tl.sum(tl.load({read}, mask={kept}, other=0.0), 0)")

"""The source of a norm site in Triton: a workgroup has a few whole rows in registers, so that the mean, the mean square of what is
left and the result each take one walk over registers, and memory is read once."""

from __future__ import annotations

from dataclasses import dataclass

from onnx_fa.kernels.mlir.text import element_type
from onnx_fa.kernels.triton.config import power_of_two
from onnx_fa.kernels.triton.expressions import Block
from onnx_fa.kernels.triton.program import TYPES, Program, write_program
from onnx_fa.spec.norm import NormSpec

ROWS = "s0"
"""The parameter that holds the number of rows."""
_LEAST = 2.0**-126
"""Below the square of a deviation that f32 can tell in a row that was made small."""
_SMALL = 2.0**-80
"""Brings f32's largest numbers to where their squares can be added up."""


@dataclass(frozen=True)
class NormConfig:
    """`rows` per workgroup, `warps` of 32 threads."""

    rows: int
    warps: int


class NormSource:
    """Writes the kernel of a spec."""

    def __init__(self, spec: NormSpec, config: NormConfig, name: str) -> None:
        self.spec, self.config, self.name, self.t = spec, config, name, Block()
        self.width = power_of_two(spec.N)
        self.padded = self.width != spec.N
        """Whether the registers of a row hold more than its numbers."""

    def program(self) -> Program:
        t, spec = self.t, self.spec
        t.do(f"row = tl.program_id(0) * {self.config.rows} + tl.arange(0, {self.config.rows})[:, None]")
        t.do(f"n = tl.arange(0, {self.width})[None, :]")
        inside = f"(row < {ROWS})" + (f" & (n < {spec.N})" if self.padded else "")
        t.do(f"inside = {inside}")
        t.do(f"at = row.to(tl.int64) * {spec.N} + n")
        t.do("v = tl.load(x + at, mask=inside, other=0.0).to(tl.float32)")
        if spec.skip:
            t.do("v += tl.load(skip + at, mask=inside, other=0.0).to(tl.float32)")
            # What is normalised is the sum as others read it.
            t.do(f"rounded = v.to({TYPES[spec.dtype]})")
            t.do("v = rounded.to(tl.float32)")
        if spec.gives_sum:
            t.do("tl.store(out1 + at, rounded, mask=inside)")
        small = keep_finite(t, spec, "v", 1)
        if small:
            t.do(f"v *= {small}[:, None]")
        epsilon = epsilon_of(spec, small)
        if spec.centred:
            # The mean of a row of one large number is rounded; that of what is left corrects it.
            for _ in range(2):
                t.do(f"v -= (tl.sum(v, 1) / {spec.N})[:, None]")
                if self.padded:
                    t.do(f"v = tl.where(n < {spec.N}, v, 0.0)")
        t.do(f"square = tl.sum(v * v, 1) / {spec.N}")
        t.do(f"y = v * (1.0 / tl.sqrt_rn(square + {epsilon}))[:, None]")
        self.scale_and_shift()
        t.do(f"tl.store(out0 + at, y.to({TYPES[spec.result]}), mask=inside)")
        operands = [(name, element_type(dtype)) for name, _, dtype in spec.operands]
        outs = [(f"out{i}", element_type(dtype)) for i, (_, dtype) in enumerate(spec.results)]
        return write_program(self.name, [*operands, *outs], {"rows": ROWS}, t.lines)

    def scale_and_shift(self) -> None:
        mask = f", mask=n < {self.spec.N}, other=0.0" if self.padded else ""
        if self.spec.scale:
            self.t.do(f"y *= tl.load(scale + n{mask}).to(tl.float32)")
        if self.spec.bias:
            self.t.do(f"y += tl.load(bias + n{mask}).to(tl.float32)")


def keep_finite(t: Block, spec: NormSpec, v: str, axis: int) -> str:
    """What makes rows small whose squares f32 does not hold, which changes no norm; "" where there are none. Infinities stay what
    they are. `v` are rows along `axis`."""
    if spec.dtype == "f16":
        return ""
    t.do(f"largest = tl.max(tl.abs({v}), {axis})")
    t.do(f"small = tl.where((largest > 1e15) & (largest < float('inf')), {_SMALL!r}, 1.0)")
    return "small"


def epsilon_of(spec: NormSpec, small: str) -> str:
    """The epsilon of rows that were made small: still more than nothing, where it was, for rows whose numbers are all the same."""
    epsilon = f"{float(spec.epsilon)!r}"
    if not small:
        return epsilon
    return f"tl.maximum({epsilon} * {small} * {small}, {_LEAST!r})" if spec.epsilon else "0.0"


def write_reciprocal(t: Block, spec: NormSpec, v: str, axis: int) -> tuple[str, str]:
    """What numbers of a row that is not centred are to be multiplied by, before and behind all sums: a power of two, and the
    reciprocal of the root of their mean square."""
    small = keep_finite(t, spec, v, axis)
    if small:
        t.do(f"{v} *= {small}")
    square = t.let(f"tl.sum({v} * {v}, {axis}) / {spec.N}")
    return small or "1.0", f"1.0 / tl.sqrt_rn({square} + {epsilon_of(spec, small)})"

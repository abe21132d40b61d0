"""The text of a Triton function, and what it takes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from onnx_fa.derive.loop import Loop, loop_of
from onnx_fa.kernels.triton.config import TritonConfig, few_parts
from onnx_fa.kernels.triton.expressions import Block
from onnx_fa.spec.attention import AttentionSpec
from onnx_fa.spec.terms import Dim


@dataclass(frozen=True)
class Program:
    """`text` defines the Triton function `entry`, whose parameters are `pointers` (name, element type), then `constants`, which are
    i32: the spec's symbols. The grid is (`grid` workgroups, splits). `cluster` workgroups along its second axis are one (0: no
    clusters), each with so many bytes of `received` numbers in shared memory, behind what Triton keeps there."""

    entry: str
    text: str
    pointers: tuple[tuple[str, str], ...]
    constants: tuple[str, ...]
    cluster: int = 0
    received: int = 0


RECEIVED = 0x5EED5EE0
"""Stands in the text of a program for the place in shared memory, in bytes, where what others of a cluster send begins. It is known
when the kernel is compiled."""
HEADER = "import triton\nimport triton.language as tl\n\n\n"
TYPES = {"f32": "tl.float32", "f16": "tl.float16", "bf16": "tl.bfloat16"}


def write_program(
    entry: str,
    pointers: Sequence[tuple[str, str]],
    symbols: Mapping[str, str],
    lines: Sequence[str],
    header: str = f"{HEADER}@triton.jit",
) -> Program:
    """The program of a function's lines; `symbols` are the parameters behind the pointers, by what they hold."""
    parameters = ", ".join([*(name for name, _ in pointers), *symbols.values()])
    text = f"{header}\ndef {entry}({parameters}):\n" + "\n".join(lines) + "\n"
    return Program(entry, text, tuple(pointers), tuple(symbols))


def begin_last(t: Block, splits: int) -> None:
    """Begins what the last of `splits` workgroups alone does, when all of them have written their parts. It leaves the counter at
    zero again."""
    t.do("tl.debug_barrier()  # all threads' parts are written")
    t.do("before = tl.atomic_add(count + pid, 1, sem='acq_rel')")
    t.do(f"if before == {splits - 1}:")
    t.indent += 1
    t.do("tl.store(count + pid, 0)")


def product(dims: Sequence[Dim], names: dict[str, str], wide: bool = False) -> str:
    """The product of dims as source; symbols by their names, in 64 bits if `wide`."""
    known = math.prod(d for d in dims if isinstance(d, int))
    unknown = [names[d] + (".to(tl.int64)" if wide else "") for d in dims if isinstance(d, str)]
    return " * ".join([*unknown, *([str(known)] if known != 1 or not unknown else [])])


def result_pointers(spec: AttentionSpec) -> list[tuple[str, str]]:
    """Name and element type of where the results go."""
    return [("out", spec.dtype), *((f"row_{which}", "f32") for which in spec.stats)]


def times(a: str, b: str) -> str:
    """The product of two terms as source."""
    if b == "1":
        return a
    return f"{a} * ({b})" if " " in b else f"{a} * {b}"


def combines_itself(spec: AttentionSpec, config: TritonConfig) -> bool:
    """Whether the kernel of split keys combines the parts, too, which takes a counter for each workgroup of queries. More of them,
    which one workgroup would read alone, are combined in a dispatch of their own, a workgroup for each query."""
    if config.splits == 1 or not all(isinstance(d, int) for d in (*spec.batch, spec.Hq, spec.Sq)):
        return False
    return few_parts(config.splits, min(int(spec.Sq), config.BM), spec.Dv)


def loop_in(spec: AttentionSpec, *, bounded: bool = True) -> Loop:
    """The derived loop of a spec whose probabilities multiply V in the spec's type; `bounded` as in loop_of."""
    return loop_of(spec, narrow=spec.dtype == "f16", bounded=bounded)

"""Norm sites by Triton: code for all architectures, and the function that a program calls."""

from __future__ import annotations

from functools import cache

from onnx_fa.errors import UnsupportedError
from onnx_fa.kernels.mlir.entry import KernelEntry
from onnx_fa.kernels.mlir.operand import ROWS
from onnx_fa.kernels.mlir.text import element_type
from onnx_fa.kernels.tiles.origin import Origin, built_in
from onnx_fa.kernels.triton import ptx
from onnx_fa.kernels.triton.config import ARCHITECTURES, power_of_two
from onnx_fa.kernels.triton.entry import dispatch
from onnx_fa.kernels.triton.executable import ArchCode, executable_text
from onnx_fa.kernels.triton.norm_source import NormConfig, NormSource
from onnx_fa.spec.norm import NormSpec, norm_name

MOST_NUMBERS = 1 << 15
"""Of a row, which registers of 512 threads hold."""
_WARPS, _MOST_WARPS = ((2048, 4), (8192, 8)), 16
"""Of a row of so many numbers at most, and of longer ones."""


def config_of(spec: NormSpec) -> NormConfig:
    """A row per workgroup, and as many threads as measured fastest on an H100 (benchmarks/norm-h100.csv)."""
    width = power_of_two(spec.N)
    return NormConfig(1, next((warps for most, warps in _WARPS if width <= most), _MOST_WARPS))


def origin_of(spec: NormSpec) -> Origin:
    """The tiles and where they are from."""
    config = config_of(spec)
    return built_in({"rows": config.rows, "warps": config.warps}, "a rule, measured on an H100")


@cache
def emit_norm(spec: NormSpec) -> dict[str, str]:
    """The executable and the function of the site's name, which takes its operands and returns its results, by their symbols.
    Raises UnsupportedError for rows that do not fit into registers, and where Triton refuses the source."""
    if spec.N > MOST_NUMBERS:
        raise UnsupportedError(f"rows of {spec.N} numbers, where registers hold {MOST_NUMBERS}")
    name = norm_name(spec)
    symbol, config = f"{name}_rows", config_of(spec)
    program = NormSource(spec, config, symbol).program()
    codes = [ArchCode(arch, ptx.compile_program(program, arch, config.warps, 1)) for arch in ARCHITECTURES]
    executable = executable_text(symbol, program, codes, [1] * len(codes))
    return {symbol: "\n".join(executable) + "\n", name: "\n".join(NormEntry(spec, name, config).text_lines()) + "\n"}


class NormEntry(KernelEntry):
    """The function of a site."""

    def __init__(self, spec: NormSpec, name: str, config: NormConfig) -> None:
        super().__init__(spec, name)
        self.spec, self.config = spec, config

    def text_lines(self) -> list[str]:
        t, spec = self.t, self.spec
        rows = self.count_rows(spec.lead)
        flat = (ROWS if spec.rows is None else spec.rows, spec.N)
        elements = [element_type(d) for d in spec.operand_dtypes]
        wanted = [flat if len(shape) > 1 else shape for shape in spec.operand_shapes]
        values = self.pass_operands(spec.operand_shapes, wanted, elements)
        types = [self.typed(shape, element) for shape, element in zip(wanted, elements, strict=True)]
        count = t.arith("ceildivui", rows, t.index(self.config.rows))
        if spec.rows is None:
            count = t.arith("maxui", count, t.index(1))  # CUDA takes no launch of nothing
        results = [self.typed(flat, dtype) for _, dtype in spec.results]
        given = [*values, t.let(f"arith.index_cast {rows} : index to i32")]
        archs = list(ARCHITECTURES)
        made = dispatch(t, f"{self.name}_rows", archs, [count] * len(archs), given, [*types, "i32"], results)
        shaped = zip(made, spec.results, strict=True)
        return self.lines([self.reshape(value, flat, shape, dtype) for value, (shape, dtype) in shaped])

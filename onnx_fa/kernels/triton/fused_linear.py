"""Products of a few rows with the norm in front of them and the gate beside them (few_source.py): code for all architectures, and
the function that a program calls."""

from __future__ import annotations

from dataclasses import fields
from functools import cache

from onnx_fa.errors import UnsupportedError
from onnx_fa.kernels.mlir.entry import KernelEntry
from onnx_fa.kernels.mlir.text import element_type
from onnx_fa.kernels.tiles.origin import Origin, built_in
from onnx_fa.kernels.triton import ptx
from onnx_fa.kernels.triton.config import ARCHITECTURES
from onnx_fa.kernels.triton.entry import Counters, dispatch
from onnx_fa.kernels.triton.executable import ArchCode, executable_text
from onnx_fa.kernels.triton.few_source import MOST_ROWS, FewConfig
from onnx_fa.kernels.triton.linear_bits import FewBitsSource, few_bits_config
from onnx_fa.kernels.triton.linear_few import FewRowsSource, few_config
from onnx_fa.kernels.triton.program import Program
from onnx_fa.spec.fused_linear import FusedLinear, fused_name


def takes(spec: FusedLinear) -> bool:
    """Whether there is a kernel: for a few known rows, whose sums registers hold, and a norm that few enough workgroups read."""
    product = spec.product
    few = product.rows is not None and 0 < product.rows <= MOST_ROWS // (1 if product.bits or not spec.gate else 2)
    plain = not (product.is_of_bytes or product.stored or product.panel)
    return few and plain and (spec.norm is None or _may_norm(spec))


def _may_norm(spec: FusedLinear) -> bool:
    """Whether registers hold a row, and a dispatch of its own takes longer than the norms of all workgroups do."""
    config, weights = config_of(spec), 2 if spec.gate else 1
    blocks = -(-spec.product.N // config.BN) * config.splits
    return spec.product.K <= _MOST_NORMED and blocks * spec.product.K <= weights * _NORMED_NUMBERS


def config_of(spec: FusedLinear) -> FewConfig:
    """The tiles."""
    return few_bits_config(spec.product) if spec.product.bits else few_config(spec.product)


_MOST_NORMED = 1 << 14
"""Numbers of a row whose norm a workgroup takes for itself."""
_NORMED_NUMBERS = 5 << 20
"""So many numbers are read for norms beside each weight, at most (benchmarks/linear-few-bits-h200.csv): 512 workgroups take 2.2 us
more for rows of 4096, 1600 take 6.8 more, which is longer than a dispatch."""


def program_of(spec: FusedLinear, config: FewConfig, symbol: str) -> Program:
    """The source of the kernel for the product's kind of weight."""
    source = FewBitsSource if spec.product.bits else FewRowsSource
    return source(spec, config, symbol).program()


def origin_of(spec: FusedLinear) -> Origin:
    """The tiles and where they are from."""
    config = config_of(spec)
    return built_in({f.name: int(getattr(config, f.name)) for f in fields(config)}, "few rows")


@cache
def emit_fused(spec: FusedLinear) -> dict[str, str]:
    """The executable and the function of the spec's name, which takes its operands and returns its results, by their symbols.
    Raises UnsupportedError where no kernel takes it, and where Triton refuses the source."""
    if not takes(spec):
        raise UnsupportedError("many rows, rows that are not known, or a weight that kernels of a few rows do not take")
    name, config = fused_name(spec), config_of(spec)
    symbol = f"{name}_few"
    program = program_of(spec, config, symbol)
    codes = [ArchCode(arch, ptx.compile_program(program, arch, config.warps, config.stages)) for arch in ARCHITECTURES]
    entry = FusedEntry(spec, name, config)
    texts = {symbol: executable_text(symbol, program, codes, [config.splits] * len(codes))}
    if entry.counters:
        texts[entry.counters.symbol] = [entry.counters.declaration]
    texts[name] = entry.text_lines()
    return {key: "\n".join(lines) + "\n" for key, lines in texts.items()}


class FusedEntry(KernelEntry):
    """The function of a spec."""

    def __init__(self, spec: FusedLinear, name: str, config: FewConfig) -> None:
        super().__init__(spec, name)
        self.spec, self.config = spec, config
        self.tiles = -(-spec.product.N // config.BN)
        self.counters = Counters(name, self.tiles) if config.splits > 1 else None
        """A number for each tile of columns, where K is split."""

    def text_lines(self) -> list[str]:
        t, spec, product = self.t, self.spec, self.spec.product
        rows = self.count_rows(product.lead)
        assert product.rows is not None
        elements = [element_type(d) for d in spec.operand_dtypes]
        wanted = [(product.rows, product.K), *spec.operand_shapes[1:]]
        values = self.pass_operands(spec.operand_shapes, wanted, elements)
        types = [self.typed(shape, element) for shape, element in zip(wanted, elements, strict=True)]
        results = [self.typed((product.rows, columns), product.dtype) for columns in product.widths]
        shared, parts = list[str](), list[str]()
        if self.counters is not None:
            numbers = self.config.splits * product.rows * product.N * (2 if spec.gate else 1)
            shared, parts = [self.counters.load(t)], [f"tensor<{numbers}xf32>"]
        given = [*values, *shared, t.let(f"arith.index_cast {rows} : index to i32")]
        kinds = [*types, *[self.counters.type for _ in shared if self.counters], "i32"]
        archs = list(ARCHITECTURES)
        count = t.index(self.tiles)
        made = dispatch(t, f"{self.name}_few", archs, [count] * len(archs), given, kinds, [*shared, *parts, *results])
        if self.counters is not None:
            self.counters.store(t, made[0])
            made = made[2:]
        shaped = zip(made, product.widths, strict=True)
        return self.lines(
            [self.reshape(y, (product.rows, many), (*product.lead, many), product.dtype) for y, many in shaped]
        )

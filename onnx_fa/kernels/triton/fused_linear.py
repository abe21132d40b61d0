"""Products by weights of a few bits with the norm in front of them and the gate beside them (linear_bits.py): code for all
architectures, and the function that a program calls."""

from __future__ import annotations

from functools import cache

from onnx_fa.errors import UnsupportedError
from onnx_fa.kernels.mlir.entry import KernelEntry
from onnx_fa.kernels.mlir.text import element_type
from onnx_fa.kernels.triton import ptx
from onnx_fa.kernels.triton.config import ARCHITECTURES
from onnx_fa.kernels.triton.entry import dispatch
from onnx_fa.kernels.triton.executable import ArchCode, executable_text
from onnx_fa.kernels.triton.linear_bits import MOST_NORMED, FewBitsSource, few_bits_config
from onnx_fa.kernels.triton.linear_few import MOST_ROWS, FewConfig
from onnx_fa.spec.fused_linear import FusedLinear, fused_name


def takes(spec: FusedLinear) -> bool:
    """Whether there is a kernel: for a few known rows and a weight of a few bits, with a norm where it is read by few enough
    workgroups."""
    rows = spec.product.rows
    few = rows is not None and 0 < rows <= MOST_ROWS
    return few and spec.product.bits is not None and (spec.norm is None or _may_norm(spec))


def _may_norm(spec: FusedLinear) -> bool:
    """Whether registers hold a row, and a dispatch of its own takes longer than the norms of all workgroups do."""
    weights = 2 if spec.gate else 1
    blocks = -(-spec.product.N // few_bits_config(spec.product, weights).BN)
    return spec.product.K <= MOST_NORMED and blocks * spec.product.K <= weights * _NORMED_NUMBERS


_NORMED_NUMBERS = 7 << 20
"""So many numbers are read for norms beside each weight, at most (benchmarks/linear-few-bits-h200.csv): 1024 workgroups take 1.3 us
more for rows of 4096, 3200 take 7 more."""


@cache
def emit_fused(spec: FusedLinear) -> dict[str, str]:
    """The executable and the function of the spec's name, which takes its operands and returns its results, by their symbols.
    Raises UnsupportedError where no kernel takes it, and where Triton refuses the source."""
    if not takes(spec):
        raise UnsupportedError("many rows, rows that are not known, or a weight of floats")
    name = fused_name(spec)
    symbol, config = f"{name}_few", few_bits_config(spec.product, 2 if spec.gate else 1)
    program = FewBitsSource(spec, config, symbol).program()
    codes = [ArchCode(arch, ptx.compile_program(program, arch, config.warps, config.stages)) for arch in ARCHITECTURES]
    executable = executable_text(symbol, program, codes, [1] * len(codes))
    return {symbol: "\n".join(executable) + "\n", name: "\n".join(FusedEntry(spec, name, config).text_lines()) + "\n"}


class FusedEntry(KernelEntry):
    """The function of a spec."""

    def __init__(self, spec: FusedLinear, name: str, config: FewConfig) -> None:
        super().__init__(spec, name)
        self.spec, self.config = spec, config

    def text_lines(self) -> list[str]:
        t, spec, product = self.t, self.spec, self.spec.product
        rows = self.count_rows(product.lead)
        assert product.rows is not None
        elements = [element_type(d) for d in spec.operand_dtypes]
        wanted = [(product.rows, product.K), *spec.operand_shapes[1:]]
        values = self.pass_operands(spec.operand_shapes, wanted, elements)
        types = [self.typed(shape, element) for shape, element in zip(wanted, elements, strict=True)]
        results = [self.typed((product.rows, columns), product.dtype) for columns in product.widths]
        given = [*values, t.let(f"arith.index_cast {rows} : index to i32")]
        archs = list(ARCHITECTURES)
        count = t.index(-(-product.N // self.config.BN))
        made = dispatch(t, f"{self.name}_few", archs, [count] * len(archs), given, [*types, "i32"], results)
        shaped = zip(made, product.widths, strict=True)
        return self.lines(
            [self.reshape(y, (product.rows, many), (*product.lead, many), product.dtype) for y, many in shaped]
        )

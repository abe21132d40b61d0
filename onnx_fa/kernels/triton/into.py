"""The function of a Triton kernel whose every buffer is the caller's: a call of it allocates and copies nothing.

A program's own function gives its results in buffers that IREE allocates, as it does what lies between (parts of split keys).
`iree.abi.output` would write results to a caller's buffers by copies: a dispatch that updates an operand, as counters are, keeps
its results where they are. So all of them are operands here, which the dispatch updates in place.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from math import prod
from typing import Any

from onnx_fa.kernels.mlir.kernel import Into
from onnx_fa.kernels.mlir.launches import Code, Launch, Plan, Tensor
from onnx_fa.kernels.mlir.stored import stored_shape
from onnx_fa.kernels.triton.config import MULTIPROCESSORS, PERSISTENT
from onnx_fa.kernels.triton.entry import TritonEntry, Variant
from onnx_fa.kernels.triton.held import rows_of_workgroup
from onnx_fa.spec.terms import Dim

_BYTES = {"f32": 4, "i8": 1}
"""Of the numbers that lie between dispatches."""


class IntoEntry(TritonEntry):
    """The function `name`_into: the site's operands, then a buffer (!hal.buffer) for each result and for each workspace. For sizes
    that are known. `combining` is the code of the dispatch that combines parts."""

    def __init__(self, *args: Any, combining: Sequence[Variant]) -> None:
        super().__init__(*args)
        self.combining = combining

    def into(self) -> Into:
        lines, site = self.text_lines(), self.attention
        workspace = tuple(_bytes_of(type_) for type_ in self._workspace.values())
        operands = zip(site.operand_shapes, site.operand_dtypes, strict=True)
        plan = Plan(
            tuple(_known(stored_shape(shape, dtype), dtype) for shape, dtype in operands),
            tuple(_known(shape, dtype) for shape, dtype in site.results),
            4 * self.counters.many if self.counters else 0,
            workspace,
            tuple(self._launches),
        )
        return Into("\n".join(lines) + "\n", workspace, plan)

    def text_lines(self) -> list[str]:
        self._results: list[str] = []
        self._workspace: dict[str, str] = {}
        self._launches: list[Launch] = []
        declared = 1 if self.counters else 0
        return super().text_lines()[declared:]  # the counters are the other function's

    def attend(self, values: list[str], passed: list[str], constants: Sequence[str]) -> list[str]:
        self._places = {name: place for place, name in enumerate(values)}
        self._operands = len(values)
        return super().attend(values, passed, constants)

    def dispatch(
        self, symbol: str, counts: Sequence[str], values: Sequence[str], types: Sequence[str], results: Sequence[str]
    ) -> list[str]:
        made = [self.typed(shape, element) for shape, element in self.spec.results]
        own = [type_ for type_ in results if not type_.startswith("%")]  # others are operands already
        tied = iter([self._buffer(type_, is_result=type_ in made) for type_ in own])
        filled = [type_ if type_.startswith("%") else next(tied) for type_ in results]
        added = [name for name in filled if name not in results]
        made = super().dispatch(symbol, counts, [*values, *added], [*types, *own], filled)
        self._places |= {name: self._place(buffer) for name, buffer in zip(made, filled, strict=True)}
        self._launches.append(self._launch(symbol, [*values, *added]))
        return made

    def _launch(self, symbol: str, values: Sequence[str]) -> Launch:
        """A dispatch of these values, which are operands, buffers of the caller's, or the counters."""
        attends = symbol == self.program.entry
        variants = self.variants if attends else self.combining
        codes = [Code(v.arch, v.code.text, self._grid(v, attends), 32 * v.code.warps, v.code.shared) for v in variants]
        return Launch(symbol, tuple(map(self._place, values)), tuple(codes))

    def _grid(self, variant: Variant, attends: bool) -> tuple[int, int]:
        """The numbers of workgroups along both axes; of a dispatch that combines, one for each query."""
        spec, config = self.spec, variant.config
        heads, Sq = prod(int(d) for d in (*spec.batch, spec.Hq)), int(spec.Sq)
        if not attends:
            return heads * Sq, 1
        count = heads * -(-Sq // rows_of_workgroup(spec, config))
        return min(count, MULTIPROCESSORS) if config.overlap == PERSISTENT else count, config.splits

    def _place(self, value: str) -> int:
        """A value's buffer among the arguments of a plan. What is none of the other values are the counters."""
        if value not in self._places:
            assert self.counters is not None
            self._places[value] = self._operands + len(self.spec.results)
        return self._places[value]

    def _buffer(self, type_: str, is_result: bool) -> str:
        """The tensor of a type in a buffer of the caller's."""
        if is_result:
            argument, place = f"%result{len(self._results)}", len(self._results)
            self._results.append(argument)
        else:
            argument, place = f"%workspace{len(self._workspace)}", len(self.spec.results) + 1 + len(self._workspace)
            self._workspace[argument] = type_
        # What is consumed may be written to: nobody else looks at it until the call returns.
        value = self.t.let(f"hal.tensor.import consume {argument} : !hal.buffer -> {type_}")
        self._places[value] = self._operands + place
        return value

    def lines(self, results: Sequence[str]) -> list[str]:
        buffers = [*self._results, *self._workspace]
        self.names, self.types = [*self.names, *buffers], [*self.types, *["!hal.buffer"] * len(buffers)]
        self.name = f"{self.name}_into"
        return super().lines(results)


def _known(shape: Sequence[Dim], dtype: str) -> Tensor:
    return tuple(int(d) for d in shape), dtype


def _bytes_of(type_: str) -> int:
    """The size of a tensor of known dims."""
    dims, element = re.fullmatch(r"tensor<((?:\d+x)+)(\w+)>", type_).groups()  # type: ignore[union-attr]
    return prod(int(d) for d in dims.split("x") if d) * _BYTES[element]

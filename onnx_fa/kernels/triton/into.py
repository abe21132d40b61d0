"""The function of a Triton kernel whose every buffer is the caller's: a call of it allocates and copies nothing.

A program's own function gives its results in buffers that IREE allocates, as it does what lies between (parts of split keys).
`iree.abi.output` would write results to a caller's buffers by copies: a dispatch that updates an operand, as counters are, keeps
its results where they are. So all of them are operands here, which the dispatch updates in place.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from math import prod

from onnx_fa.kernels.mlir.kernel import Into
from onnx_fa.kernels.triton.entry import TritonEntry

_BYTES = {"f32": 4, "i8": 1}
"""Of the numbers that lie between dispatches."""


class IntoEntry(TritonEntry):
    """The function `name`_into: the site's operands, then a buffer (!hal.buffer) for each result and for each workspace. For sizes
    that are known."""

    def into(self) -> Into:
        lines = self.text_lines()
        return Into("\n".join(lines) + "\n", tuple(_bytes_of(type_) for type_ in self._workspace.values()))

    def text_lines(self) -> list[str]:
        self._results: list[str] = []
        self._workspace: dict[str, str] = {}
        declared = 1 if self.counters else 0
        return super().text_lines()[declared:]  # the counters are the other function's

    def dispatch(
        self, symbol: str, counts: Sequence[str], values: Sequence[str], types: Sequence[str], results: Sequence[str]
    ) -> list[str]:
        made = [self.typed(shape, element) for shape, element in self.spec.results]
        own = [type_ for type_ in results if not type_.startswith("%")]  # others are operands already
        tied = iter([self._buffer(type_, is_result=type_ in made) for type_ in own])
        filled = [type_ if type_.startswith("%") else next(tied) for type_ in results]
        added = [name for name in filled if name not in results]
        return super().dispatch(symbol, counts, [*values, *added], [*types, *own], filled)

    def _buffer(self, type_: str, is_result: bool) -> str:
        """The tensor of a type in a buffer of the caller's."""
        if is_result:
            argument = f"%result{len(self._results)}"
            self._results.append(argument)
        else:
            argument = f"%workspace{len(self._workspace)}"
            self._workspace[argument] = type_
        # What is consumed may be written to: nobody else looks at it until the call returns.
        return self.t.let(f"hal.tensor.import consume {argument} : !hal.buffer -> {type_}")

    def lines(self, results: Sequence[str]) -> list[str]:
        buffers = [*self._results, *self._workspace]
        self.names, self.types = [*self.names, *buffers], [*self.types, *["!hal.buffer"] * len(buffers)]
        self.name = f"{self.name}_into"
        return super().lines(results)


def _bytes_of(type_: str) -> int:
    """The size of a tensor of known dims."""
    dims, element = re.fullmatch(r"tensor<((?:\d+x)+)(\w+)>", type_).groups()  # type: ignore[union-attr]
    return prod(int(d) for d in dims.split("x") if d) * _BYTES[element]

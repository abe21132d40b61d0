"""Which symbols the inputs of a model give. tf2onnx names the dims of inputs as ONNX's inference names what it cannot follow."""

from __future__ import annotations

import re

import onnx_ir as ir

from onnx_fa.graph.dims import known
from onnx_fa.spec.terms import Dim

_INVENTED = re.compile(r"unk__\w+")


class Named:
    """ONNX's inference invents no symbol that a model has already, so that a symbol of an input stands for that input's length
    wherever it appears."""

    def __init__(self, model: ir.Model) -> None:
        shapes = [v.shape for v in model.graph.inputs if v.shape is not None]
        values = [d.value for shape in shapes for d in shape if not isinstance(d, int)]
        self._given = {value for value in values if value is not None and _INVENTED.fullmatch(value)}

    def knows(self, dim: Dim | None) -> bool:
        """Whether the dim is a number, or made of symbols that somebody named."""
        if known(dim):
            return True
        return isinstance(dim, str) and all(symbol in self._given for symbol in _INVENTED.findall(dim))

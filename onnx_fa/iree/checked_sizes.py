"""Sizes that a program compares before it reads, as the text for iree-compile says it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import reduce
from typing import Any

from onnx_fa.errors import MissingDependencyError

try:
    from iree.compiler import ir as mlir
except ImportError as _error:
    raise MissingDependencyError("the MLIR importer is not installed: pip install iree-base-compiler") from _error


_HOSTILE = re.compile(r"[^A-Za-z0-9_ .,:;'()\[\]/+*=?-]")
"""Letters of names that a model gives and that no text for the compiler, terminal or page may hold."""
_MOST_LETTERS = 600


def check_sizes(
    tensors: Sequence[Any],
    axes: Sequence[int],
    otherwise: str,
    factors: Sequence[int] | None = None,
    rest: int = 0,
    least: int = 0,
) -> None:
    """The first of some tensors is as long along its axis as the others along theirs, each times a factor, and `rest` say together
    (at least so long, with `least`), or the program stops and says `otherwise`. All ops are torch's: the compiler takes no others
    in the body of a Loop."""

    def make(op: str, *operands: Any, result: str = "int", **attributes: Any) -> Any:
        results = [mlir.Type.parse(f"!torch.{result}")]
        return mlir.Operation.create(
            f"torch.{op}", results=results, operands=list(operands), attributes=attributes
        ).result

    def number(n: int) -> Any:
        return make("constant.int", value=mlir.IntegerAttr.get(mlir.IntegerType.get_signless(64), n))

    first, *others = [make("aten.size.int", x, number(axis)) for x, axis in zip(tensors, axes, strict=True)]
    times = factors or [1] * len(others)
    terms = [x if n == 1 else make("aten.mul.int", x, number(n)) for x, n in zip(others, times, strict=True)]
    terms += [number(rest)] if rest or not terms else []
    whole = reduce(lambda a, b: make("aten.add.int", a, b), terms)
    same = make("aten.ge.int" if least else "aten.eq.int", first, whole, result="bool")
    message = {"message": mlir.StringAttr.get(_HOSTILE.sub("?", otherwise)[:_MOST_LETTERS])}
    mlir.Operation.create("torch.runtime.assert", operands=[same], attributes=message)

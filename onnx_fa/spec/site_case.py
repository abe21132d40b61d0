"""What tuner, benchmarks and `verify --case` ask of a case, whatever kind of site it is of."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy.typing as npt

from onnx_fa.errors import OnnxFaError
from onnx_fa.spec.accuracy import Comparison
from onnx_fa.spec.cases import CASES
from onnx_fa.spec.linear_cases import LINEAR_CASES


class Reference(Protocol):
    """What is right for some operands."""

    def compare(self, result: npt.NDArray[Any]) -> Comparison:
        """How far a result is from it."""


class SiteCase(Protocol):
    """A site with a name. `bound` are its specs with sizes for symbols, the first of them the one that is timed; `draw` makes
    operands of such a one, ordinary or adversarial, and `expect` says what is right for them, within about so many scores where
    these are many."""

    @property
    def name(self) -> str: ...
    @property
    def spec(self) -> Any: ...
    @property
    def tags(self) -> frozenset[str]: ...
    @property
    def sizes(self) -> Sequence[Sequence[tuple[str, int]]]: ...
    @property
    def title(self) -> str: ...
    def bound(self) -> Sequence[Any]: ...
    def draw(self, spec: Any, *, adversarial: bool = False) -> list[npt.NDArray[Any]]: ...
    def expect(self, spec: Any, operands: Sequence[npt.NDArray[Any]], budget: int) -> Reference: ...


ALL: tuple[SiteCase, ...] = (*CASES, *LINEAR_CASES)
"""The tables of all kinds of sites."""


def find_case(name: str) -> SiteCase:
    """The case of that name, of whatever kind. Raises OnnxFaError."""
    found = next((c for c in ALL if c.name == name), None)
    if found is None:
        raise OnnxFaError(f"no case {name!r}: `onnx-fa cases` lists them")
    return found

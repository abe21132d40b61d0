"""The optimisations of kernels that can be left out, one by one, to see what each is worth (`onnx-fa bench --ablate`)."""

from __future__ import annotations

from enum import Enum

from onnx_fa.errors import OnnxFaError


class Switch(Enum):
    """An optimisation: the word by which a command names it, where kernels have it, and what is done where it is off.

    Every one is on unless `Target.off` names it. None changes what is computed, only how: results keep to the same tolerances.
    """

    SKIPPING = "skipping", "cpu gpu", "blocks of keys that are masked as a whole are visited like all others"
    FOLDING = (
        "folding",
        "cpu gpu",
        "a few queries of heads that share K and V are not put together: each head reads K and V",
    )
    SPLITTING = "splitting", "cpu gpu", "one workgroup walks all keys of its queries, however few workgroups that makes"
    PIPELINING = "pipelining", "gpu", "K and V are loaded when they are needed, not some blocks ahead: one stage"
    OVERLAPPING = "overlapping", "gpu", "Triton's plain form: no warps that only load, no softmax behind the products"
    EXP2 = "exp2", "cpu", "the compiler's own exp2, in the place of a polynomial of the kernel"
    LAYOUTS = "layouts", "cpu gpu", "Q, K, V and the output in another order of axes are transposed before and after"
    MAXIMUM = (
        "bounds",
        "cpu gpu",
        "bounds of the scores are not used: a running maximum is kept where a cap makes it needless",
    )
    TILES = "tiles", "cpu gpu", "tiles of a rule, not those that were measured"

    def __init__(self, word: str, where: str, off: str) -> None:
        self.word, self.where, self.without = word, frozenset(where.split()), off

    @classmethod
    def of(cls, word: str) -> Switch:
        """The switch of that word. Raises OnnxFaError naming all."""
        found = {s.word: s for s in cls}
        if word not in found:
            raise OnnxFaError(f"no optimisation {word!r}: they are {', '.join(found)}")
        return found[word]


ALL_ON: frozenset[Switch] = frozenset()
"""What is off by default: nothing."""

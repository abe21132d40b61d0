"""Graphs with chains of hundreds of nodes, and with subexpressions that are shared at every level, around one attention."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
from onnx import TensorProto as T
from onnx import helper as h

from tests.match.test_soundness import Site
from tests.support.spellings import Graph

S, L = 6, 8
Link = Callable[["Deep", str, int], str]


class Deep(Site):
    """A site with the positions and the masks that links are made of."""

    def __init__(self) -> None:
        super().__init__(18)
        self.rows, self.columns = self.positions(S, 1), self.positions(L, 0)
        self.flags = self.input("flags", [1, 1, S, L], T.BOOL)
        self.causal = self.op("LessOrEqual", self.columns, self.rows)
        self.key_is = [self.op("Equal", self.columns, self.i(n)) for n in range(L)]

    def chain(self, link: Link, start: str, length: int) -> str:
        for n in range(length):
            start = link(self, start, n)
        return start

    def masked(self, keep: str) -> onnx.ModelProto:
        return self.softmax(self.keep(keep, self.score()))


BOOLS: dict[str, Link] = {
    "And": lambda g, x, n: g.op("And", x, g.flags),
    "Or": lambda g, x, n: g.op("Or", x, g.flags),
    "Xor": lambda g, x, n: g.op("Xor", x, g.flags),
    "Not": lambda g, x, n: g.op("Not", x),
    "Cast": lambda g, x, n: g.op("Cast", g.op("Cast", x, to=T.INT64), to=T.BOOL),
    "halves": lambda g, x, n: g.op("Slice", g.op("Concat", x, x, axis=1), g.i([0]), g.i([L]), g.i([1])),
}
"""Links of a chain of conditions."""
INTS: dict[str, Link] = {
    "Add": lambda g, x, n: g.op("Add", x, g.i(1 + n % 3)),
    "Sub": lambda g, x, n: g.op("Sub", x, g.i(1 + n % 3)),
    "Max": lambda g, x, n: g.op("Max", x, g.rows),
    "Abs": lambda g, x, n: g.op("Abs", g.op("Sub", x, g.i(1))),
    "Mod": lambda g, x, n: g.op("Mod", g.op("Add", x, g.i(7)), g.i(5)),
    "Where": lambda g, x, n: g.op("Where", g.key_is[n % L], x, g.rows),
    "twice": lambda g, x, n: g.op("Add", x, x),
}
"""Links of a chain of whole numbers."""
SCORES: dict[str, Link] = {
    "score + score": lambda g, x, n: g.op("Add", x, x),
    "Max of a score with itself": lambda g, x, n: g.op("Max", x, x),
    "masks": lambda g, x, n: g.keep(g.key_is[n % L], x, -1e9),
}
"""Links of a chain of scores."""
PROBABILITIES: dict[str, Link] = {
    "Identity": lambda g, x, n: g.op("Identity", x),
    "p * 1": lambda g, x, n: g.op("Mul", x, g.const(1.0)),
    "p * p": lambda g, x, n: g.op("Mul", x, x),
    "p + p": lambda g, x, n: g.op("Add", x, x),
}
"""Links of a chain between the softmax and V."""


def bools(name: str, length: int) -> onnx.ModelProto:
    g = Deep()
    return g.masked(g.chain(BOOLS[name], g.causal, length))


def ints(name: str, length: int) -> onnx.ModelProto:
    g = Deep()
    made = g.chain(INTS[name], g.op("Sub", g.rows, g.columns), length)
    return g.masked(g.op("LessOrEqual", g.i(0), made))


def scores(name: str, length: int) -> onnx.ModelProto:
    g = Deep()
    return g.softmax(g.chain(SCORES[name], g.score(), length))


def probabilities(name: str, length: int) -> onnx.ModelProto:
    g = Deep()
    prob = g.op("Softmax", g.keep(g.causal, g.score()), axis=3)
    return g.finish(g.chain(PROBABILITIES[name], prob, length))


def shared(depth: int) -> onnx.ModelProto:
    """a, b = Xor(a, b), Or(a, Not(b)), again and again."""
    g = Deep()
    a, b = g.flags, g.causal
    for _ in range(depth):
        a, b = g.op("Xor", a, b), g.op("Or", a, g.op("Not", b))
    return g.masked(b)


def decoding(steps: int, attending: int) -> onnx.ModelProto:
    """A decode loop written out: K and V grow by a token in every step, and the last `attending` steps read them."""
    g = Graph(18)
    x, k, v = g.input("x", [1, 2, 1, 4]), g.input("k", [1, 2, "past", 4]), g.input("v", [1, 2, "past", 4])
    for n in range(steps):
        k, v = g.op("Concat", k, x, axis=2), g.op("Concat", v, g.op("Mul", x, g.const(0.5)), axis=2)
        if n >= steps - attending:
            score = g.op("MatMul", x, g.op("Transpose", k, perm=[0, 1, 3, 2]))
            x = g.op("Tanh", g.op("Add", x, g.op("MatMul", g.op("Softmax", score, axis=-1), v)))
    g.nodes.append(h.make_node("Identity", [x], ["o"]))
    return g.model({"o": ([1, 2, 1, 4], T.FLOAT)})


def decoding_feeds() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    sizes = {"x": 1, "k": 3, "v": 3}
    return {name: rng.standard_normal((1, 2, n, 4)).astype(np.float32) for name, n in sizes.items()}

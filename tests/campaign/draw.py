"""One random graph per seed."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Any

import onnx
from onnx import TensorProto as T
from onnx import helper as h

from tests.support import random_softmax
from tests.support.graph_changes import symbolise
from tests.support.spelling_table import AXES, entries, of_spelling
from tests.support.spellings import Spelling

from .areas_behind import weighed
from .areas_operand import operand
from .areas_positions import positioned
from .areas_score import layered, scores
from .areas_types import rounded_scores, to_scores
from .inputs import Feeds, feeds_of
from .mutations import MUTATIONS, mutate
from .sketch import KINDS, Sketch

WEIGHTS = {"deep": 2, "table": 14, "quantised": 12, "plain": 6}
"""Of a kind among all, 7 where nothing is said."""
_BUILDERS = [e for e in entries() if e.spelling is None]
_HEADS = ((2, 2), (4, 4), (4, 2), (4, 1), (1, 1))


@dataclass(frozen=True)
class Drawn:
    """A model with symbols, the same with the sizes that its inputs will have, its inputs, and what was done to it."""

    model: onnx.ModelProto
    fixed: onnx.ModelProto
    feeds: Feeds
    kind: str
    mutations: tuple[str, ...]
    base: str


def draw(seed: int, kind: str | None = None) -> Drawn | None:
    """The graph of a seed; `kind` overrides the drawn one. None where the parts cannot be put together."""
    r = Random(f"attention {seed}")
    drawn_kind = r.choices(KINDS, [WEIGHTS.get(k, 7) for k in KINDS])[0]
    kind = kind or drawn_kind
    try:
        model, feeds, base = _of_table(r) if kind == "table" else _sketched(r, kind)
    except (ValueError, onnx.checker.ValidationError):
        return None
    names: list[str] = []
    usable = feeds.runs(model)
    for _ in range(r.choice((0, 0, 0, 1, 1, 2)) + (kind == "foreign") if usable else 0):
        name = "foreign" if kind == "foreign" and not names else r.choice(list(MUTATIONS))
        changed = mutate(model, name, r, feeds)
        if changed is not None:
            model = changed
            names.append(name)
    fixed = onnx.ModelProto()
    fixed.CopyFrom(model)
    if r.random() < 0.15 and not base.endswith("nothing"):
        symbolise(model, r.randrange(1, 1 << 13))
    return Drawn(model, fixed, feeds, kind, tuple(names), base)


def _sketched(r: Random, kind: str) -> tuple[onnx.ModelProto, Feeds, str]:
    g = Sketch(r, kind)
    q, k = to_scores(g, "q"), to_scores(g, "k")
    v = operand(g, "v")
    if g.mixed:
        g.float_type = T.FLOAT  # until the probabilities are cast down
    raw = scores(g, q, k)
    score = rounded_scores(g, positioned(g, raw) if kind == "positions" else layered(g, raw))
    out = weighed(g, score, v)
    shapes: dict[str, list[int | str]] = {
        "scores": [*g.score_shape],
        "rows": [*g.lead, g.S, 1],
        "result": [*g.lead, g.S, g.E],
    }
    g.nodes.append(h.make_node("Identity", [out], ["o"], name="out"))
    outputs = {"o": (shapes["result"], g.float_type)}
    outputs |= {x: (shapes[what], kind) for x, (what, kind) in g.extra.items()}
    # Without queries or batch rows at run time, and with a known number of keys, forms do not run: docs/developer/testing.md.
    return g.model(outputs), feeds_of, g.base + " nothing" * (0 in (g.B, g.S))


def _of_table(r: Random) -> tuple[onnx.ModelProto, Feeds, str]:
    """A row of the table of spellings, a mix of its axes, or a softmax of any kind."""
    if r.random() < 0.15:
        seed = r.randrange(10**9)
        return random_softmax.graph(seed)[0], feeds_of, f"softmax {seed}"
    if r.random() < 0.5:
        entry = r.choice(_BUILDERS)
        return entry.build(), Feeds(entry.feeds), entry.id
    default: dict[str, Any] = {name: getattr(Spelling(), name) for name in AXES}
    values = {name: r.choice((default[name], r.choice(values))) for name, values in AXES.items()}
    heads = r.choice(_HEADS)
    sizes = {
        "B": r.randint(1, 2),
        "Sq": r.randint(1, 5),
        "Skv": r.randint(1, 6),
        "D": r.randint(1, 4),
        "Dv": r.randint(1, 4),
    }
    fill = r.choice((float("-inf"), -3.4028235e38, -1e9, -1e4))
    spelling = Spelling(
        **values, softcap=r.random() < 0.2, Hq=heads[0], Hkv=heads[1], **sizes, opset=r.choice((18, 13, 23)), fill=fill
    )
    entry = of_spelling("random", "", spelling)
    return entry.build(), Feeds(entry.feeds), repr(spelling)

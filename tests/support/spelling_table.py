"""Every spelling there is, in one ordered list: each value of each axis of `spellings.py`, then every builder of `spellings_*.py`.

A module `spellings_<name>.py` offers dicts of name to builder, or to a tuple that starts with one. Those of a dict with NOT, REFUSE
or MISS in its name must be left alone, all others must match. It may bring `feeds` of its own.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

import onnx

from tests.support import spellings
from tests.support.spellings import Spelling, build

Expected = Literal["match", "refuse"]
Inputs = dict[str, Any]

AXES: dict[str, tuple[Any, ...]] = {
    f.name: getattr(spellings, f.name.upper()) for f in fields(Spelling) if hasattr(spellings, f.name.upper())
}
"""Every field of Spelling that has a tuple of its values, in upper case."""


@dataclass(frozen=True)
class Entry:
    """One row: `group` is an axis or a module, `build` makes the model, `spelling` is there for those made from one."""

    group: str
    name: str
    build: Callable[[], onnx.ModelProto]
    expected: Expected
    feeds: Callable[..., Inputs]
    spelling: Spelling | None = None

    @property
    def id(self) -> str:
        return f"{self.group}-{self.name}"


def _axes() -> Iterator[Entry]:
    for axis, values in AXES.items():
        for value in values:
            yield of_spelling(axis, str(value), replace(Spelling(), **{axis: value}))
    yield of_spelling("softcap", "tanh", Spelling(softcap=True))
    for heads in ((4, 2), (4, 1)):
        yield of_spelling("heads", f"{heads[0]}:{heads[1]}", Spelling(Hq=heads[0], Hkv=heads[1]))
    for fill in (-3.4028235e38, -1e9, -1e4):
        for mask in ("where", "bool_add"):
            yield of_spelling("fill", f"{mask} {fill:g}", Spelling(mask=mask, fill=fill))
    for softmax in ("explicit", "deferred"):
        yield of_spelling("opset", f"13 {softmax}", Spelling(opset=13, softmax=softmax))


def of_spelling(group: str, name: str, spelling: Spelling) -> Entry:
    """A row that must match."""
    return Entry(group, name, lambda: build(spelling), "match", spellings.feeds, spelling)


def _module(name: str) -> Iterator[Entry]:
    module: ModuleType = importlib.import_module(f"tests.support.spellings_{name}")
    feeds = getattr(module, "feeds", spellings.feeds)
    for label, table in vars(module).items():
        if not isinstance(table, dict) or label.startswith("_") or not label.isupper():
            continue
        refused = any(word in label for word in ("NOT", "REFUSE", "MISS"))
        for key, value in table.items():
            make = value[0] if isinstance(value, tuple) else value
            if callable(make):
                yield Entry(name, str(key), make, "refuse" if refused else "match", feeds)


def entries() -> list[Entry]:
    """All rows, always in the same order; every (group, name) once."""
    rows = list(_axes())
    for path in sorted(Path(__file__).parent.glob("spellings_*.py")):
        rows += _module(path.stem.removeprefix("spellings_"))
    seen: dict[str, Entry] = {}
    for row in rows:
        seen.setdefault(row.id, row)
    return list(seen.values())

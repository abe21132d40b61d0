"""A part of a zoo for each machine of a CI matrix, and what says that parts belong together."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from onnx_fa.zoo.entries import Entry


@dataclass(frozen=True)
class Shard:
    """Number `number` of `count`, from 1."""

    number: int
    count: int

    def __str__(self) -> str:
        return f"{self.number}/{self.count}"

    def names(self, names: Sequence[str]) -> set[str]:
        """Those of this shard: each is in one shard, whatever order they come in."""
        return set(sorted(names)[self.number - 1 :: self.count])


def parse_shard(text: str) -> Shard:
    """`2/4`. Raises ValueError."""
    found = re.fullmatch(r"([0-9]{1,6})/([0-9]{1,6})", text)
    if found is None or not 1 <= int(found[1]) <= int(found[2]):
        raise ValueError(f"{text!r} is no shard: i/n, with i from 1 to n")
    return Shard(int(found[1]), int(found[2]))


def part(entries: Sequence[Entry], shard: Shard | None) -> list[Entry]:
    """The entries of a shard, in their order; all of them where there is none."""
    mine = {e.name for e in entries} if shard is None else shard.names([e.name for e in entries])
    return [e for e in entries if e.name in mine]


def zoo_digest(entries: Sequence[Entry]) -> str:
    """Of what the entries say; not of the folders that they lie in, for these differ from machine to machine."""
    said = [replace(e, base="", of="" if e.source == "missing" else e.of).to_dict() for e in entries]
    return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()[:16]

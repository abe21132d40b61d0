"""Where the tiles of a kernel are from, as reports say it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from onnx_fa.kernels.tiles.database import Pick


@dataclass(frozen=True)
class Origin:
    """`tiles` by name, none where there is no kernel; `tuning` is the entry of the database that they are from and how its family
    differs from the site's, or that they are built in; "" where neither says anything of a site."""

    tiles: tuple[tuple[str, int], ...] = ()
    tuning: str = ""


UNKNOWN = Origin()
BY_RULE = Origin((), "built in")
"""Of kernels of which nothing is measured."""


def built_in(tiles: Mapping[str, int], why: str) -> Origin:
    """Tiles of a rule."""
    return Origin(tuple(tiles.items()), f"built in: {why}")


def measured(found: Pick) -> Origin:
    """Tiles of the database."""
    return Origin(tuple(found.choice.tiles.items()), found.reason)

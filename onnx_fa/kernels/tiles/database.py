"""Measured tiles, by target and family of sites: `data/<target>.json`, written by `onnx-fa tune`.

An entry holds what was tried on one case, the fastest first. A kernel takes the nearest entry of its family that has tiles which
fit it, and says which and why.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from onnx_fa.errors import OnnxFaError
from onnx_fa.kernels.tiles.families import SiteFamily, distance, family, family_from
from onnx_fa.spec.attention import AttentionSpec
from onnx_fa.spec.linear import LinearSpec
from onnx_fa.spec.target import Target
from onnx_fa.spec.terms import Dim

FORMAT = 2
"""Of the files that are written. Those of format 1 are read too; another number is refused."""
_CPU_NAMES = {"W": "lanes", "RI": "tile_keys", "RN": "tile_dims", "U": "unroll"}
_GPU_NAMES = {"W": "subgroups", "VT": "transpose_v", "QS": "stage_q_in_shared", "ST": "pipeline_stages"}
_NAMES_OF_FORMAT_1 = {"vector": _CPU_NAMES, "few": _CPU_NAMES, "gpu": _GPU_NAMES}
"""By body: the fields of tiles that files of format 1 call otherwise, and what they are called now."""
FOLDER_ENV = "ONNX_FA_TUNING"
"""Environment variable: a folder whose <target>.json stands in for the package's own."""

Tiles = Mapping[str, int]


@dataclass(frozen=True)
class Choice:
    """One set of tiles. `cost` is the time per query, those of padding included, relative to the fastest of its entry; `flags` are
    iree-compile flags that it was measured with; `samples_ms` are all timed calls, (round, ms)."""

    tiles: Tiles
    cost: float
    flags: tuple[str, ...] = ()
    samples_ms: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True)
class Refused:
    """Tiles that did not compile, ran out of time or memory, or gave wrong numbers."""

    tiles: Tiles
    reason: str
    flags: tuple[str, ...] = ()


@dataclass(frozen=True)
class Entry:
    """What was measured on one case. `case` says what, `measured` where, when, with which versions and how."""

    family: SiteFamily
    case: str
    measured: Mapping[str, Any]
    choices: tuple[Choice, ...]
    refused: tuple[Refused, ...] = ()


@dataclass(frozen=True)
class Database:
    """All entries of a target. `target` is the name of the file, see `database_name`."""

    target: str
    entries: tuple[Entry, ...] = ()

    def with_entries(self, new: tuple[Entry, ...]) -> Database:
        """New entries take the place of old ones of their family, whose tiles of other vector widths they keep: narrow head dims
        need narrow vectors, which a search for wide ones does not try."""
        old = {e.family: e for e in self.entries}
        joined = []
        for e in new:
            widths = {c.tiles.get("lanes") for c in e.choices}
            known = old.pop(e.family).choices if e.family in old else ()
            joined.append(replace(e, choices=(*e.choices, *(c for c in known if c.tiles.get("lanes") not in widths))))
        return Database(self.target, (*joined, *old.values()))

    def to_json(self) -> str:
        """One choice per line."""
        lines = []
        for e in self.entries:
            head = {"family": asdict(e.family), "case": e.case, "measured": dict(e.measured)}
            parts = [f'   "{k}": {json.dumps(v)}' for k, v in head.items()]
            for key, items in (("choices", e.choices), ("refused", e.refused)):
                rows = ",\n".join(f"    {json.dumps(asdict(x))}" for x in items)
                parts.append(f'   "{key}": [\n{rows}\n   ]' if rows else f'   "{key}": []')
            lines.append("  {\n" + ",\n".join(parts) + "\n  }")
        entries = ",\n".join(lines)
        return f'{{\n "format": {FORMAT},\n "target": {json.dumps(self.target)},\n "entries": [\n{entries}\n ]\n}}\n'


@dataclass(frozen=True)
class Pick:
    """What a lookup found. `near` says in words which entry it is and how it differs from what was asked, `reason` also why they
    are not its fastest tiles."""

    entry: Entry
    choice: Choice
    near: str = field(compare=False)
    reason: str = field(compare=False)


def pick(
    target: Target | str,
    body: str,
    spec: AttentionSpec | LinearSpec,
    fits: Callable[[Tiles], bool],
    queries: Callable[[Tiles], float],
    among: Callable[[Any], bool] = lambda family: True,
) -> Pick | None:
    """The tiles for a spec: of the nearest entry (`among` says of which families) that has any which `fits` accepts, those with the
    least cost times `queries`, the number of queries (of rows, of a product) computed with them, padding included. None where no
    entry has any. `target` may be the name of a database."""
    want, name = family(spec, body), target if isinstance(target, str) else database_name(target)
    near = [
        (distance(want, e.family), i, e)
        for i, e in enumerate(read_database(name).entries)
        if distance(want, e.family) < math.inf and among(e.family)
    ]
    for _, _, entry in sorted(near, key=lambda n: n[:2]):
        fitting = [c for c in entry.choices if fits(c.tiles)]
        if fitting:
            choice = min(fitting, key=lambda c: c.cost * queries(c.tiles))
            words = _words(want, entry, name)
            return Pick(entry, choice, words, words + _choice_words(entry, choice, fitting))
    return None


def _words(want: SiteFamily, entry: Entry, name: str) -> str:
    """Why this entry, e.g. "cpu-avx512: vector f32 D64 ...; differs in mask (none, not causal)"."""
    differs = [
        f"{f.name} ({getattr(entry.family, f.name)}, not {getattr(want, f.name)})"
        for f in fields(want)
        if getattr(entry.family, f.name) != getattr(want, f.name)
    ]
    words = f"{name}: {entry.family}; "
    return words + (f"nearest, differs in {', '.join(differs)}" if differs else "the same family")


def _choice_words(entry: Entry, choice: Choice, fitting: list[Choice]) -> str:
    """Why not the fastest tiles of an entry, where it is not them."""
    if choice is not min(fitting, key=lambda c: c.cost):
        return "; not its fastest tiles, which would compute more padding or leave processors idle"
    if len(fitting) < len(entry.choices) and choice is not min(entry.choices, key=lambda c: c.cost):
        return "; its fastest tiles do not fit"
    return ""


def database_name(target: Target) -> str:
    """The file that holds a target's tiles: by registers and lanes, so that cpu-host has those of its kind of processor. CUDA's
    architectures share one, whose entries say which GPU they were measured on."""
    if target.is_gpu:
        return "cuda" if target.backend == "cuda" else target.name
    if target.has_many_registers:
        return "cpu-avx512" if target.has_avx512 else "cpu-neon"
    return "cpu-avx2"


def triton_database(arch: int) -> str:
    """The file that holds the tiles of Triton's kernels for sm_`arch`: they differ between architectures."""
    return f"cuda-sm_{arch}"


def shape_table(arch: int) -> str:
    """The file that holds, for sm_`arch`, what tiles took on many shapes."""
    return f"cuda-shapes-sm_{arch}"


def is_own(name: str) -> bool:
    """Whether a folder that the user names has a database of that name."""
    folder = os.environ.get(FOLDER_ENV, "")
    return bool(folder) and (Path(folder) / f"{name}.json").is_file()


def package_path(name: str) -> Path:
    """Where the package keeps a database."""
    return Path(str(resources.files("onnx_fa.kernels.tiles").joinpath(f"data/{name}.json")))


def read_database(name: str) -> Database:
    """The database of that name; empty where there is none. Raises OnnxFaError for a file that is not one."""
    return _read(name, os.environ.get(FOLDER_ENV, ""))


@cache
def _read(name: str, folder: str) -> Database:
    own = Path(folder) / f"{name}.json"
    if folder and own.is_file():
        return parse(own.read_text(), str(own))
    file = resources.files("onnx_fa.kernels.tiles").joinpath(f"data/{name}.json")
    return parse(file.read_text(), f"{name}.json") if file.is_file() else Database(name)


def parse(text: str, where: str) -> Database:
    """The database in a file's text. Raises OnnxFaError, naming `where` and the entry, for anything that is not as it should be."""
    try:
        data = json.loads(text)
        version = data["format"]
        if version not in (1, FORMAT):
            raise ValueError(f"format {version}, not {FORMAT}")
        name, listed = str(data["target"]), list(data["entries"])
    except (ValueError, KeyError, TypeError) as e:
        raise OnnxFaError(f"{where}: not a tuning database: {_what(e)}") from e
    entries = []
    for n, item in enumerate(listed):
        try:
            entries.append(_entry(item, version))
        except (ValueError, KeyError, TypeError) as e:
            raise OnnxFaError(f"{where}: not a tuning database: entry {n}: {_what(e)}") from e
    return Database(name, tuple(entries))


def _what(error: Exception) -> str:
    return f"no field {error}" if isinstance(error, KeyError) else str(error)


def _entry(item: Any, version: int) -> Entry:
    family = family_from(item["family"])
    renamed = _NAMES_OF_FORMAT_1.get(family.body, {}) if version == 1 else {}
    choices = tuple(
        Choice(
            _tiles(c["tiles"], renamed),
            float(c["cost"]),
            tuple(map(str, c["flags"])),
            tuple((int(r), float(ms)) for r, ms in c["samples_ms"]),
        )
        for c in item["choices"]
    )
    if not all(0 < c.cost < math.inf for c in choices):
        raise ValueError("a cost that is not above 0")
    refused = tuple(Refused(_tiles(r["tiles"], renamed), str(r["reason"]), tuple(r["flags"])) for r in item["refused"])
    return Entry(family, str(item["case"]), dict(item["measured"]), choices, refused)


def _tiles(item: Any, renamed: Mapping[str, str]) -> Tiles:
    """Tiles of a file, whose fields named in `renamed` get the name that it gives them."""
    if not item or not all(isinstance(v, int) for v in item.values()):
        raise ValueError(f"tiles {item} are not named whole numbers")
    return {renamed.get(name, name): value for name, value in item.items()}


def queries_computed(Sq: Dim, block: int) -> float:
    """Sq rounded up to whole blocks; 1 where Sq is known only at run time."""
    return 1.0 if isinstance(Sq, str) else -(-Sq // block) * block

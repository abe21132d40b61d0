"""What `zoo.toml` says: models, where they come from, and what is expected of them."""

from __future__ import annotations

import fnmatch
import hashlib
import re
import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Literal

from onnx_fa.errors import OnnxFaError
from onnx_fa.files import read_text
from onnx_fa.spec.target import parse_target

Source = Literal["family", "variant", "model", "package", "path", "url", "missing"]
SOURCES: tuple[Source, ...] = ("family", "variant", "model", "package", "path", "url")
"""Those that a zoo file may name; `missing` is a name of somebody else's list that no file was found for."""


def default_file() -> Path:
    """The package's own zoo: beside its models, in a checkout as in an installed package."""
    root = Path(__file__).parent.parent
    return next(p for p in (root / "models" / "zoo.toml", root.parent / "models" / "zoo.toml") if p.exists())


Outcome = Literal["pass", "fail-import", "fail-compile", "fail-run"]


@dataclass(frozen=True)
class Suite:
    """What a config of iree-test-suites says of a test: the flags that stock IREE gets, and what is expected of it. `flagfile` has
    the inputs and expected outputs; without it inputs are drawn, and onnxruntime says what is expected."""

    config: str
    compile_flags: tuple[str, ...]
    run_flags: tuple[str, ...]
    outcome: Outcome = "pass"
    flagfile: str = ""


@dataclass(frozen=True)
class Entry:
    """One model. `source` and `of` say where it comes from: a family of `models/families.py`, a variant of `models/variants.py`, a
    model of `models/build.py`, a Python package with weights, a file (ONNX, or a .tar.gz with it), or a URL with its `sha256`; of a
    model that is `missing`, `of` says what was looked for. `attn`, `exporter`, `opset` and `quantize` say how it is exported.

    Expected: `sites` attentions of the kinds `variants`, `misses` softmaxes left alone (None: any number), largest difference
    `tolerance` (None: what `verify` allows). `known` says why a step that fails may fail, or a problem whose words begin so. `dims`
    are sizes of free dims, `targets` those that it is for (none: all), `subset` marks those of a quick run. `base` is the folder
    that `path` is relative to. `suite` is there for a test of iree-test-suites, `skip` says why a step is left out.
    """

    name: str
    source: Source
    of: str
    attn: Literal["sdpa", "eager"] = "sdpa"
    exporter: Literal["dynamo", "torchscript"] = "dynamo"
    opset: int = 18
    quantize: Literal["", "static", "dynamic"] = ""
    sha256: str = ""
    sites: int | None = None
    misses: int | None = 0
    variants: tuple[str, ...] = ()
    tolerance: float | None = None
    dims: tuple[tuple[str, int], ...] = ()
    targets: tuple[str, ...] = ("cpu-host",)
    known: tuple[tuple[str, str], ...] = ()
    subset: bool = False
    base: str = ""
    suite: Suite | None = None
    skip: tuple[tuple[str, str], ...] = ()

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Entry:
        """The inverse of `to_dict`, from JSON."""

        def frozen(x: Any) -> Any:
            return tuple(map(frozen, x)) if isinstance(x, (list, tuple)) else x

        values = {k: frozen(v) for k, v in data.items() if k != "suite"}
        suite = data.get("suite")
        return cls(**values, suite=Suite(**{k: frozen(v) for k, v in suite.items()}) if suite else None)

    @property
    def folder(self) -> str:
        return folder_name(self.name)

    @property
    def expected(self) -> str:
        if self.suite is not None:
            return self.suite.outcome
        words = ", ".join(dict.fromkeys(self.variants)) or "any kind"
        return f"{'?' if self.sites is None else self.sites} x {words}"


def folder_name(name: str) -> str:
    """A name for the folder of an entry: the entry's own where that is safe as a file name, else one that no other entry gets."""
    safe = re.sub(r"[^\w.+@=-]", "-", name, flags=re.ASCII).lstrip(".-")[:100]
    return name if safe == name else f"{safe}-{hashlib.sha256(name.encode()).hexdigest()[:8]}".lstrip("-")


def load(path: Path) -> list[Entry]:
    """The entries of a zoo file, in its order. Raises OnnxFaError, naming the entry, for what is wrong in it."""
    try:
        data = tomllib.loads(read_text(path))
    except tomllib.TOMLDecodeError as e:
        raise OnnxFaError(f"{path}: not TOML: {e}") from e
    if unknown := set(data) - {"defaults", "entry"}:
        raise OnnxFaError(f"{path}: unknown table {sorted(unknown)[0]!r}; a zoo has [defaults] and [[entry]]")
    defaults = data.get("defaults", {})
    entries = [_entry(path, {**defaults, **item}) for item in data.get("entry", [])]
    names = [e.name for e in entries]
    twice = next((n for n in names if names.count(n) > 1), None)
    if twice is not None:
        raise OnnxFaError(f"{path}: two entries are called {twice!r}")
    if not entries:
        raise OnnxFaError(f"{path}: no [[entry]] in it")
    return entries


def _entry(path: Path, item: dict[str, Any]) -> Entry:
    found = [s for s in SOURCES if s in item]
    if len(found) != 1:
        raise OnnxFaError(f"{path}: entry {item.get('name', '?')!r} needs exactly one of {', '.join(SOURCES)}")
    (source,) = found
    of = str(item.pop(source))
    name = str(item.pop("name", of))
    known = {f.name for f in fields(Entry)} - {"name", "source", "of", "base", "suite", "skip"}
    if unknown := set(item) - known:
        raise OnnxFaError(f"{path}: entry {name!r} has an unknown key {sorted(unknown)[0]!r}")
    if source == "url" and not item.get("sha256"):
        raise OnnxFaError(f"{path}: entry {name!r} has a url and needs its sha256")
    for key in ("dims", "known"):
        if key in item:
            item[key] = tuple(dict(item[key]).items())
    for key in ("variants", "targets"):
        if key in item:
            item[key] = tuple(item[key])
    for target in item.get("targets", ()):
        parse_target(target)
    try:
        return Entry(name, source, of, base=str(path.resolve().parent), **item)
    except TypeError as e:
        raise OnnxFaError(f"{path}: entry {name!r}: {e}") from e


def chosen(entries: Iterable[Entry], filters: Sequence[str], target: str, subset: bool = False) -> list[Entry]:
    """The entries for `target` whose names match one of the patterns (`*` and `?`; a plain word matches anywhere in the name).

    Raises OnnxFaError when none is left.
    """
    found = [
        e
        for e in entries
        if (not e.targets or target in e.targets)
        and (not subset or e.subset)
        and (not filters or any(fnmatch.fnmatch(e.name, f if set(f) & set("*?[") else f"*{f}*") for f in filters))
    ]
    if not found:
        raise OnnxFaError(
            f"no entry of the zoo for {target} is called {', '.join(filters) or 'so'}: see onnx-fa zoo list"
        )
    return found

"""What results depend on, as digests: with the same key, a later run takes them over."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from functools import lru_cache
from importlib import metadata
from pathlib import Path
from typing import Any

from onnx_fa.machine import PACKAGES
from onnx_fa.zoo.entries import Entry
from onnx_fa.zoo.sources import digest_of_weights, sources_of


def code_digest() -> str:
    """Of this package's sources, as they are now."""
    digest = hashlib.sha256()
    root = Path(__file__).parent.parent
    folders = [root, *(p for n in ("models", "patterns") for p in (root / n, root.parent / n) if p.is_dir())]
    for folder in dict.fromkeys(folders):
        for path in sorted((*folder.rglob("*.py"), *folder.rglob("*.json"))):
            digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def installed() -> dict[str, str]:
    """The versions of the packages that shape results; those that are not installed are left out, for nothing depends on them."""
    found = {}
    for name in (*PACKAGES, "transformers", "onnxscript", "onnx-ir"):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


@lru_cache
def _code() -> str:
    return code_digest() + json.dumps(installed())


def key(entry: Entry, target: str, settings: dict[str, Any]) -> str:
    """A digest of all that an entry's results depend on (not what is expected of them)."""
    suite = replace(entry.suite, config="", outcome="pass") if entry.suite else None
    source = replace(
        entry, base="", sites=None, misses=0, variants=(), known=(), subset=False, targets=(), suite=suite, skip=()
    )
    data: dict[str, Any] = {"entry": source.to_dict(), "target": target, "settings": settings}
    if sources := sources_of(entry):
        data["files"] = sources.digests()
    if weights := digest_of_weights(entry):
        data["weights"] = weights
    return hashlib.sha256((json.dumps(data, sort_keys=True) + _code()).encode()).hexdigest()[:16]

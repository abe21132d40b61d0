"""Compiled modules that a benchmark keeps in a folder: what one machine has compiled, another without the compiler can time."""

from __future__ import annotations

import hashlib
import json
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from onnx_fa.errors import CompileError
from onnx_fa.files import write_whole
from onnx_fa.forms.plain_site import Spec
from onnx_fa.spec.target import Target

COMPILERS = ("iree-base-compiler", "triton", "onnx-fa")
"""What is named in a module's facts, and what makes it out of date where another version of it is installed."""


@dataclass(frozen=True)
class Made:
    """A compiled module: what was `said` of it, what makes it `lossy`, and the seconds and versions it took."""

    said: str = ""
    lossy: str = ""
    seconds: float = 0.0
    problem: str = ""
    versions: tuple[tuple[str, str], ...] = ()


class KeptModules:
    """Modules of sites, by spec, target and flags. `folder` is made where it is missing."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def get(
        self,
        what: str,
        spec: Spec,
        target: Target,
        flags: Sequence[str],
        output: Path,
        build: Callable[[Path], Made],
    ) -> Made:
        """`output` becomes the module that `build` makes of the site, or made before. Raises CompileError, also where it was
        one before, and what `build` raises."""
        parts = [what, spec.to_dict(), target.name, target.flags, target.kernels, target.lossy, list(flags)]
        key = json.dumps([*parts, *target.switched_off])
        name = hashlib.sha256(key.encode()).hexdigest()[:16]
        kept, facts = self.folder / f"{name}.vmfb", self.folder / f"{name}.json"
        made = self._read(facts)
        if made is None:
            start = time.monotonic()
            try:
                made = build(output)
                shutil.copyfile(output, kept)
            except CompileError as e:
                made = Made(problem=str(e))
            made = Made(made.said, made.lossy, time.monotonic() - start, made.problem, tuple(_installed().items()))
            write_whole(facts, json.dumps({"what": what, **asdict(made)}) + "\n")
        if made.problem:
            raise CompileError(made.problem)
        if kept.resolve() != output.resolve():
            shutil.copyfile(kept, output)
        return made

    def _read(self, facts: Path) -> Made | None:
        """What was kept, unless a compiler of another version is installed here."""
        if not facts.is_file():
            return None
        data = json.loads(facts.read_text())
        data.pop("what")
        made = Made(**{**data, "versions": tuple((n, v) for n, v in data["versions"])})
        now = _installed()
        stale = COMPILERS[0] in now and any(now.get(n, v) != v for n, v in made.versions)
        return None if stale else made


def elsewhere(made: Made) -> str:
    """With what a module was compiled, where that is not installed here."""
    now = _installed()
    return " ".join(f"{n} {v}" for n, v in made.versions if now.get(n) != v)


def _installed() -> dict[str, str]:
    found = {}
    for name in COMPILERS:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue  # an optional package, or a checkout that is not installed
    return found

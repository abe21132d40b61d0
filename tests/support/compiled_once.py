"""What the compiler is asked for a second time in a run of the tests, or in the commands that they fork, is what it made the first
time; and what it makes it makes without what costs time and leaves no trace in code."""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from onnx_fa import processes
from onnx_fa.iree import compiler

_WRITTEN = (
    "--dump-compilation-phases-to=",
    "--iree-hal-dump-executable-intermediates-to=",
    "--iree-parameter-encoder-output-file=",
    "--mlir-print-ir-tree-dir=",
)
"""Options that name what is written beside the module."""
_INTERMEDIATES = _WRITTEN[1]
FOLDER_ENV = "ONNX_FA_TESTS_COMPILED"
"""Environment variable: the folder that all processes of one run of the tests share."""


def cheaper(options: Sequence[str]) -> list[str]:
    """Options that leave the code as it is, for compilers that share cores with other tests: no threads, each of which would set
    up all passes for itself, and no debug symbols, but where intermediate files are looked at. What is given already is left. The
    IR is checked behind every pass as it is for users: some models fail there that would compile otherwise."""
    wanted = ["--mlir-disable-threading"]
    if not any(o.startswith(_INTERMEDIATES) for o in options):
        wanted.append("--iree-llvmcpu-debug-symbols=false")
    given = {o.partition("=")[0] for o in options}
    return [o for o in wanted if o.partition("=")[0] not in given]


class CompiledOnce:
    """Stands in for the module `processes` in onnx_fa/iree/compiler.py. A compilation is known by the compiler, its options and
    limits, and the name and text of what it compiles; only one that succeeded is kept, in `folder`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.again = 0
        """How often the compiler was not run."""

    def run_limited(self, command: Sequence[str], **limits: Any) -> processes.Finished:
        """As processes.run_limited, for the commands of `iree_compile`: compiler, source, options, "-o", output."""
        program, source, *options, _, output = command
        beside = {next(w for w in _WRITTEN if o.startswith(w)): o for o in options if o.startswith(_WRITTEN)}
        others = [o for o in options if o not in beside.values()]
        if compiler.COMPILER_ENV in os.environ or any("/" in o for o in others):
            return processes.run_limited(command, **limits)
        named = [Path(output), *(Path(beside[w].removeprefix(w)) for w in sorted(beside))]
        places = list(dict.fromkeys(named))
        which = [places.index(p) for p in named]
        said = repr((program, Path(source).name, others, sorted(beside), which, sorted(limits.items())))
        kept = self.folder / hashlib.sha256(said.encode() + Path(source).read_bytes()).hexdigest()
        if kept.exists():
            self.again += 1
            for i, place in enumerate(places):
                _copy(kept / str(i), place)
            return processes.Finished("ok", 0, 0.0, 0, "", "")
        # What lies there already is not what the compiler writes now.
        clean = not any(place.is_dir() and any(place.iterdir()) for place in places)
        done = processes.run_limited([program, source, *options, *cheaper(options), "-o", output], **limits)
        if clean and done.ending == "ok" and Path(output).exists() and not done.stderr:
            with tempfile.TemporaryDirectory(dir=self.folder) as made:
                for i, place in enumerate(places):
                    _copy(place, Path(made, "kept", str(i)))
                try:  # a process that is killed here leaves nothing in part
                    Path(made, "kept").rename(kept)
                except OSError:  # another process has made it meanwhile
                    if not kept.exists():
                        raise
        return done


def _copy(source: Path, to: Path) -> None:
    """A file or a folder, or nothing where there is none."""
    to.parent.mkdir(parents=True, exist_ok=True)
    if source.is_dir():
        shutil.copytree(source, to, dirs_exist_ok=True)
    elif source.exists():
        shutil.copyfile(source, to)


@contextmanager
def compiled_once(shared: Path | None = None) -> Iterator[CompiledOnce]:
    """Within it iree_compile runs the compiler once for equal commands. `shared`: a folder that other processes use too; without
    it, one that is removed at the end."""
    with ExitStack() as stack:
        folder = shared or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="onnx_fa-")))
        stack.callback(setattr, compiler, "limits", compiler.limits)
        yield use(folder)


def use(folder: Path) -> CompiledOnce:
    """From now on, in this process: what it has made lies in `folder`, which another process may have too."""
    once = CompiledOnce(folder)
    compiler.limits = once  # type: ignore[assignment]
    return once


def folder_in_use() -> Path | None:
    """For a process that is forked."""
    found: object = compiler.limits
    return found.folder if isinstance(found, CompiledOnce) else None

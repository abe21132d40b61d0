"""What iree-compile writes beside a module: IR that people and inspection read, and what is left of a failure."""

from __future__ import annotations

from pathlib import Path

_ELIDE = ("--mlir-elide-resource-strings-if-larger=64", "--mlir-elide-elementsattrs-if-larger=64")
"""Keeps weights out of dumped IR; they are in the module all the same."""


def dump_flags(folder: Path) -> tuple[str, ...]:
    """Flags by which the compiler writes its IR after each phase, without weights, and the code of each dispatch."""
    return (f"--dump-compilation-phases-to={folder}", f"--iree-hal-dump-executable-intermediates-to={folder}", *_ELIDE)


def remove_stale(log: Path) -> None:
    """Removes what `iree_compile` left beside a module when it failed: the log, and the MLIR that the log names."""
    try:
        written_here = log.read_text(errors="replace").startswith("$ ")
    except FileNotFoundError:
        return
    if written_here:
        log.unlink()
        log.with_suffix(".failed.mlir").unlink(missing_ok=True)


def clear(*paths: Path) -> None:
    """Removes files, and what is in folders."""
    for path in paths:
        for file in path.rglob("*") if path.is_dir() else (path,):
            if not file.is_dir():
                file.unlink(missing_ok=True)

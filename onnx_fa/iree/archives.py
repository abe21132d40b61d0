"""Where the weights of a module lie that are not in it."""

from __future__ import annotations

import shutil
from pathlib import Path

PARAMETERS = ("auto", "embed", "archive")
"""Where `compile` puts weights: "auto" is an archive for a large model, else the module."""
SCOPE = "model"
"""Of parameters, where nobody says another: iree-import-onnx's."""


def archive_of(module: Path) -> Path:
    """Where the weights of a module lie that does not hold them."""
    return module.with_suffix(".irpa")


def parameter_flags(module: Path) -> list[str]:
    """What iree-run-module and its kin need for a module whose weights lie beside it."""
    archive = archive_of(module)
    return [f"--parameters={SCOPE}={archive}"] if archive.is_file() else []


def copy_module(module: Path, to: Path) -> None:
    """Copies a module, and has its weights beside it there too."""
    shutil.copyfile(module, to)
    if archive_of(module).is_file():
        archive_of(to).unlink(missing_ok=True)
        archive_of(to).symlink_to(archive_of(module).resolve())

"""Holds the package to its layers (`[tool.importlinter]` in pyproject.toml): imports only go down.

patterns/ and models/ lie beside onnx_fa/ in a checkout and inside the package once it is installed. import-linter reads packages
as they lie on the disk, so it reads a copy of the sources, laid out as installed.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def main() -> int:
    """Prints what import-linter finds; its exit code."""
    with tempfile.TemporaryDirectory() as folder:
        package = Path(folder) / "onnx_fa"
        sources = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / "onnx_fa", package, ignore=sources)
        for name in ("patterns", "models"):
            shutil.copytree(ROOT / name, package / name, ignore=sources)
        command = [
            str(Path(sys.executable).parent / "lint-imports"),
            "--no-cache",
            "--config",
            str(ROOT / "pyproject.toml"),
        ]
        return subprocess.run(command, cwd=folder, env=os.environ | {"PYTHONPATH": folder}).returncode


if __name__ == "__main__":
    sys.exit(main())

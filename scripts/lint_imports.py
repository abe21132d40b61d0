"""Holds the package to its layers (`[tool.importlinter]` in pyproject.toml), and imports to having no cycle.

patterns/ and models/ lie beside onnx_fa/ in a checkout and inside the package once it is installed. import-linter reads packages
as they lie on the disk, so it reads a copy of the sources, laid out as installed.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def main() -> int:
    """Prints what import-linter finds, and a cycle where there is one; 1 if either fails, else 0."""
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
        layers = subprocess.run(command, cwd=folder, env=os.environ | {"PYTHONPATH": folder}).returncode
        cycle = find_cycle(read_imports(folder))
    print(f"Imports in a circle: {' <- '.join(cycle)}" if cycle else "Imports in no circle", flush=True)
    return int(layers != 0 or bool(cycle))


def read_imports(folder: str) -> dict[str, set[str]]:
    """What each module of the package in `folder` imports of it, inside functions and for type checking too."""
    import grimp

    sys.path.insert(0, folder)
    graph = grimp.build_graph("onnx_fa", cache_dir=None)
    return {module: set(graph.find_modules_directly_imported_by(module)) for module in sorted(graph.modules)}


def find_cycle(imports: Mapping[str, set[str]]) -> list[str]:
    """The modules of one cycle, each imported by the next; none where there is no cycle."""
    try:
        TopologicalSorter(imports).prepare()
    except CycleError as e:
        return list(e.args[1])
    return []


if __name__ == "__main__":
    sys.exit(main())

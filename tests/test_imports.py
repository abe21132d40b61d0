"""The check of scripts/lint_imports.py finds a cycle of imports where there is one."""

from __future__ import annotations

import os
import runpy
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest

LINT = runpy.run_path(str(Path(__file__).parent.parent / "scripts" / "lint_imports.py"))


@pytest.mark.parametrize(
    ("imports", "cycle"),
    [
        ({"a": {"b", "c"}, "b": {"c"}, "c": set()}, set()),
        ({"a": {"b"}, "b": {"a"}}, {"a", "b"}),
        ({"a": {"b"}, "b": {"c"}, "c": {"d"}, "d": {"b"}}, {"b", "c", "d"}),
    ],
)
def test_a_cycle_is_found(imports: dict[str, set[str]], cycle: set[str]) -> None:
    found = LINT["find_cycle"](imports)
    assert set(found) == cycle
    assert all(a in imports[b] for a, b in pairwise(found))


def test_a_package_is_read_with_its_type_checking_imports(tmp_path: Path) -> None:
    package = tmp_path / "onnx_fa"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "high.py").write_text("from onnx_fa.low import x\n")
    (package / "low.py").write_text(
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import onnx_fa.high\nx = 1\n"
    )
    read = f"lint['find_cycle'](lint['read_imports']({str(tmp_path)!r}))"
    code = f"import runpy; lint = runpy.run_path({LINT['__file__']!r}); print({read})"
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": ""},
    )
    assert "onnx_fa.low" in done.stdout and "onnx_fa.high" in done.stdout

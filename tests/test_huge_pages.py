"""Large pages: where a program has to ask for them, and how it does."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from onnx_fa import huge_pages
from onnx_fa.huge_pages import can_ask, huge_pages_command, huge_pages_environment


@pytest.mark.parametrize(
    ("library", "modes", "can"),
    [
        ("glibc 2.36", "always [madvise] never", True),
        ("glibc 2.36", "[always] madvise never", False),  # all have them
        ("glibc 2.36", "always madvise [never]", False),
        ("glibc 2.34", "always [madvise] never", False),
        ("glibc 3.1", "always [madvise] never", True),
        ("musl 1.2", "always [madvise] never", False),
        ("", "always [madvise] never", False),
        ("glibc 2.36", None, False),
    ],
)
def test_where(library: str, modes: str | None, can: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if modes is not None:
        (tmp_path / "enabled").write_text(modes)
    monkeypatch.setattr(huge_pages, "_MODES", tmp_path / "enabled")
    monkeypatch.setattr(os, "confstr", lambda name: library)
    assert can_ask.__wrapped__() == can


def test_a_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huge_pages, "can_ask", lambda: True)
    command = [*huge_pages_command(), "sh", "-c", "echo $GLIBC_TUNABLES"]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    assert done.stdout == "glibc.malloc.hugetlb=1\n"
    monkeypatch.setattr(huge_pages, "can_ask", lambda: False)
    assert huge_pages_command() == []


def test_an_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the variable says already stays, and nothing is said where it would change nothing."""
    monkeypatch.delenv("GLIBC_TUNABLES", raising=False)
    for can, said in ((True, "glibc.malloc.hugetlb=1"), (False, None)):
        monkeypatch.setattr(huge_pages, "can_ask", lambda can=can: can)
        assert huge_pages_environment().get("GLIBC_TUNABLES") == said
    monkeypatch.setattr(huge_pages, "can_ask", lambda: True)
    monkeypatch.setenv("GLIBC_TUNABLES", "glibc.malloc.check=3")
    assert huge_pages_environment() == dict(os.environ)

"""Large pages: who asks for them, what the user has set, and processes that have them."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from onnx_fa import huge_pages, processes
from onnx_fa.huge_pages import SETTING, VARIABLE, can_ask, huge_pages_command, with_huge_pages


@pytest.fixture
def asks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huge_pages, "can_ask", lambda: True)


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


def test_what_the_user_has_set_stays(asks: None) -> None:
    assert with_huge_pages({"A": "b"}) == {"A": "b", VARIABLE: f"{SETTING}=1"}
    assert with_huge_pages({VARIABLE: "glibc.malloc.arena_max=1"}) == {
        VARIABLE: f"glibc.malloc.arena_max=1:{SETTING}=1"
    }
    for own in (f"{SETTING}=0", f"x=1:{SETTING}=2"):
        assert with_huge_pages({VARIABLE: own}) == {VARIABLE: own}
    assert huge_pages_command() == ["env", f"{VARIABLE}={SETTING}=1"]


def test_where_nobody_may_ask(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huge_pages, "can_ask", lambda: False)
    assert with_huge_pages({}) == {} and huge_pages_command() == []


@pytest.mark.parametrize("batch", [False, True])
def test_what_times_itself_has_them(batch: bool, asks: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    command = [sys.executable, "-c", f"import os; print(os.environ.get({VARIABLE!r}))"]
    done = processes.run_limited(command, timeout_s=60, memory_bytes=1 << 30, batch=batch)
    assert done.stdout.strip() == (f"{SETTING}=1" if batch else "None")


@pytest.mark.parametrize(("command", "again"), [("run", True), ("generate", True), ("derive", False)])
def test_commands_that_begin_again(command: str, again: bool, asks: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """With their own arguments, once."""
    from onnx_fa.__main__ import main

    class Restarted(Exception):
        pass

    def exec_(program: str, arguments: list[str], environment: dict[str, str]) -> None:
        assert (program, arguments) == (sys.executable, sys.orig_argv)
        monkeypatch.setattr(os, "environ", environment)
        raise Restarted

    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.setattr(os, "execve", exec_)
    monkeypatch.setattr(sys, "argv", ["onnx-fa", command, "--help"])
    monkeypatch.setattr(sys, "unraisablehook", sys.unraisablehook)  # main sets it
    if again:
        with pytest.raises(Restarted):
            main()
    with pytest.raises(SystemExit, match="0"):
        main()

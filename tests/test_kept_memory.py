"""Memory that stays with a process: who is asked, and that calls then wait for no pages."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping

import pytest

from onnx_fa import kept_memory
from onnx_fa.kept_memory import is_said, keep_freed_memory, kept_memory_environment

_NAMES = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_ARENA_MAX")
_GLIBC = "CS_GNU_LIBC_VERSION" in getattr(os, "confstr_names", {})
_FAULTS = """
import ctypes, resource, sys, threading
from onnx_fa.kept_memory import keep_freed_memory
if sys.argv[1] == "asked":
    assert keep_freed_memory()
library = ctypes.CDLL(None)
library.malloc.restype, library.malloc.argtypes, library.free.argtypes = ctypes.c_void_p, [ctypes.c_size_t], [ctypes.c_void_p]
def call():
    size, before = 100 << 20, resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    at = library.malloc(size)
    ctypes.memset(at, 1, size)
    library.free(at)
    print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
call()
call()
for _ in range(2):
    thread = threading.Thread(target=call)
    thread.start()
    thread.join()
"""


def _faults(asked: str, environment: Mapping[str, str]) -> list[int]:
    """The pages that two calls in a row wait for which write 100 MiB, and two of threads that are not the first."""
    command = [sys.executable, "-c", _FAULTS, asked]
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=dict(environment), timeout=60)
    return [int(n) for n in done.stdout.split()]


@pytest.fixture
def plain() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name not in (*_NAMES, "GLIBC_TUNABLES")}


@pytest.mark.skipif(not _GLIBC, reason="glibc alone is asked")
def test_later_calls_wait_for_no_pages(plain: dict[str, str]) -> None:
    """Be it asked for while the program runs or when it starts, and in other threads too."""
    assert min(_faults("not", plain)) > 40  # pages of 2 MB at most
    for asked, environment in (("asked", plain), ("not", kept_memory_environment(plain))):
        first, *later = _faults(asked, environment)
        assert first > 40 and max(later) < 20


@pytest.mark.parametrize("name", [*_NAMES, "GLIBC_TUNABLES"])
def test_what_is_said_already_stays(name: str, plain: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    value = "glibc.malloc.trim_threshold=4096" if name == "GLIBC_TUNABLES" else "4"
    said = {**plain, name: value}
    assert is_said(said) and kept_memory_environment(said) == said
    for key in (*_NAMES, "GLIBC_TUNABLES"):
        monkeypatch.delenv(key, raising=False)
    monkeypatch.setenv(name, value)
    monkeypatch.setattr(kept_memory.ctypes, "CDLL", lambda _: pytest.fail("asked"))
    assert not keep_freed_memory.__wrapped__()


def test_other_tunables_say_nothing(plain: dict[str, str]) -> None:
    other = {**plain, "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}
    assert not is_said(other)
    assert kept_memory_environment(other) == {**other, **dict(zip(_NAMES, ["1073741824"] * 2 + ["1"], strict=True))}


def test_other_libraries_are_not_asked(plain: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    for key in (*_NAMES, "GLIBC_TUNABLES"):
        monkeypatch.delenv(key, raising=False)
    monkeypatch.setattr(os, "confstr", lambda name: "musl 1.2")
    assert not keep_freed_memory.__wrapped__()

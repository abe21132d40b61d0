"""Pages of 2 MB for what a process allocates.

Reading weights and caches from memory, a processor looks up an address for each page of 4 KB, which takes long in a virtual
machine, and fetches ahead no further than its end. Where Linux gives large pages to those that ask (`madvise`), glibc asks from
2.35 on if a variable of the environment says so when the process starts (docs/results/performance.md#large-pages).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path

VARIABLE = "GLIBC_TUNABLES"
SETTING = "glibc.malloc.hugetlb"
_MODES = Path("/sys/kernel/mm/transparent_hugepage/enabled")
_FIRST = (2, 35)


@cache
def can_ask() -> bool:
    """Whether large pages are for those that ask, and the C library would ask."""
    try:
        library, _, version = (os.confstr("CS_GNU_LIBC_VERSION") or "").partition(" ")
        release = tuple(int(n) for n in version.split(".")[:2])
        return library == "glibc" and release >= _FIRST and "[madvise]" in _MODES.read_text()
    except (AttributeError, OSError, ValueError):  # no such system
        return False


def with_huge_pages(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment for a program that is to have large pages; what the user has set stays."""
    given = environment.get(VARIABLE, "")
    if SETTING in given or not can_ask():
        return dict(environment)
    return {**environment, VARIABLE: ":".join(filter(None, [given, f"{SETTING}=1"]))}


def huge_pages_command() -> list[str]:
    """What stands before a command that is to have large pages."""
    return ["env", f"{VARIABLE}={SETTING}=1"] if can_ask() else []


def restart_with_huge_pages() -> None:
    """Begins this process again with large pages, where it has none. To be called before anything else."""
    environment = with_huge_pages(os.environ)
    if environment != dict(os.environ):
        os.execve(sys.executable, sys.orig_argv, environment)

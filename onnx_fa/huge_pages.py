"""Pages of 2 MB for what a program allocates.

Reading weights and caches from memory, a processor looks up an address for each page of 4 KB, which takes long in a virtual
machine, and fetches ahead no further than its end. Where Linux gives large pages to those that ask (`madvise`), glibc asks from
2.35 on if a variable of the environment says so when the program starts (docs/results/performance.md#large-pages).
"""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

_VARIABLE, _SETTING = "GLIBC_TUNABLES", "glibc.malloc.hugetlb=1"
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


def huge_pages_command() -> list[str]:
    """What stands before a command that is to have large pages; nothing where it would change nothing."""
    return ["env", f"{_VARIABLE}={_SETTING}"] if can_ask() else []


def huge_pages_environment() -> dict[str, str]:
    """This process's environment, for a program that is to have large pages. What the variable says already stays."""
    return ({_VARIABLE: _SETTING} if can_ask() else {}) | dict(os.environ)

"""Memory that a call of a module gives back stays with this process, for the next call.

A call takes the memory of all its intermediate values at once. glibc asks Linux for a block above 32 MB anew each time, and gives
it back when it is freed, so that every call waits for the pages that it writes first: 37% of the processor time of DenseNet-121,
whose values take 80 MB (docs/results/performance.md#memory-that-is-kept).
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Mapping
from functools import cache

KEPT_BYTES = 1 << 30
"""Blocks up to this come from memory that is kept, of which so much may be free."""
# A thread of the runtime may be the one that allocates. glibc gives threads memory of their own, with no room for large blocks.
_OPTIONS = {
    "MALLOC_TRIM_THRESHOLD_": (-1, KEPT_BYTES),
    "MALLOC_MMAP_THRESHOLD_": (-3, KEPT_BYTES),
    "MALLOC_ARENA_MAX": (-8, 1),
}
"""glibc's variables of the environment, its numbers for `mallopt`, and what they are to be."""
_TUNABLES = ("glibc.malloc.trim_threshold", "glibc.malloc.mmap_threshold", "glibc.malloc.arena_max")


@cache
def keep_freed_memory() -> bool:
    """Asks glibc to keep what is freed, once for this process; whether it does. Whoever says one of these in the environment
    (MALLOC_TRIM_THRESHOLD_, MALLOC_MMAP_THRESHOLD_, MALLOC_ARENA_MAX, or the like in GLIBC_TUNABLES) is obeyed, and nothing is
    asked for."""
    if is_said(os.environ):
        return False
    try:
        library = os.confstr("CS_GNU_LIBC_VERSION") or ""
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError, ValueError):  # no such system
        return False
    return library.startswith("glibc") and all([mallopt(*option) == 1 for option in _OPTIONS.values()])


def is_said(environment: Mapping[str, str]) -> bool:
    """Whether an environment says how glibc takes memory from the system and gives it back."""
    tunables = environment.get("GLIBC_TUNABLES", "")
    return any(name in environment for name in _OPTIONS) or any(name in tunables for name in _TUNABLES)


def kept_memory_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment for a program that is to keep what it frees."""
    said = {} if is_said(environment) else {name: str(number) for name, (_, number) in _OPTIONS.items()}
    return {**said, **environment}

"""No child outlives this process: not even when it is killed, and cannot say so."""

from __future__ import annotations

import ctypes
import os
import signal
from collections.abc import Callable

_PR_SET_PDEATHSIG = 1
try:
    # PyDLL: the child of a fork calls it before it has become another program, and must not give up the interpreter's lock there.
    _prctl: Callable[..., int] | None = ctypes.PyDLL(None).prctl
except (AttributeError, OSError):  # not Linux
    _prctl = None


def dies_with_parent(first: Callable[[], object] | None = None) -> Callable[[], None]:
    """For Popen's preexec_fn: the kernel kills the child when the thread that started it ends, however that happens, so the thread
    has to wait for the child. `first` is called before. Does nothing but that where the system is not Linux."""
    parent = os.getpid()

    def prepare() -> None:
        if first is not None:
            first()
        if _prctl is not None:
            _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != parent:  # it has ended before the call
                os.kill(os.getpid(), signal.SIGKILL)

    return prepare

"""A limit on the processor's time, for code that may not end."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from typing import NoReturn


class Endless(BaseException):
    """Raised where the limit is reached; no library may catch it."""


@contextlib.contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raises Endless after so many seconds of the processor, not of the clock: the machine may be busy. Code in C++ or NumPy sees
    it only when it returns."""

    def ring(*_: object) -> NoReturn:
        raise Endless

    before = signal.signal(signal.SIGPROF, ring)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)

"""How Linux shares the processor between the threads of a call.

IREE's runtime has a worker for each core, so that the thread that calls is one more than there are cores. Where it is a thread
like others, a worker that is woken may wait for a time slice although a core is idle: 1 to 5 ms. Where it is a batch job
(SCHED_BATCH, which needs no privilege) workers begin at once (docs/results/performance.md#threads-that-wait).
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator


def become_batch_job() -> bool:
    """Makes the calling thread a batch job, and threads and processes that it starts from then on. Returns whether it was made one:
    not where it has another policy than the usual one already, nor where the system has no such or does not allow it."""
    if not hasattr(os, "SCHED_BATCH") or os.sched_getscheduler(0) != os.SCHED_OTHER:
        return False
    try:
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    except OSError:  # not allowed in every container; calls are then as long as they are without
        return False
    return True


@contextlib.contextmanager
def as_batch_job() -> Iterator[None]:
    """The calling thread is a batch job as long as this lasts."""
    made = become_batch_job()
    try:
        yield
    finally:
        if made:
            os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))


def batch_command() -> list[str]:
    """What stands before a command that is to run as a batch job; nothing where there is no such program."""
    return ["chrt", "-b", "0"] if hasattr(os, "SCHED_BATCH") and shutil.which("chrt") else []

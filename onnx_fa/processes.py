"""Running a program that may hang or eat all memory: a time limit and a memory limit on its whole process group."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Literal

from onnx_fa.orphans import dies_with_parent
from onnx_fa.scheduling import become_batch_job

Ending = Literal["ok", "failed", "timeout", "memory"]
_POLL_S = 0.005, 0.1
"""Between two looks at a program: at first, and once it runs for long. A look at every process's group costs a
tenth of a millisecond or more, which a benchmark in the same machine would feel."""
_LOADED = 1 << 20
"""No program that has been loaded takes fewer bytes."""
_PAGE = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True)
class Limits:
    """Of one compilation: seconds, and resident bytes of all its processes."""

    timeout_s: float = 300
    memory_bytes: int = 8 << 30


DEFAULT = Limits()


@dataclass(frozen=True)
class Finished:
    """How a program ended. `returncode` is negative for a signal, as in subprocess; `peak_bytes` is the largest
    resident size seen: of the whole process group (sampled), or of its first process (the kernel's high-water mark). Of a
    program too short to be seen it is a bound that may include this process."""

    ending: Ending
    returncode: int
    seconds: float
    peak_bytes: int
    stdout: str
    stderr: str

    def describe(self, timeout_s: float, memory_bytes: int) -> str:
        """One phrase that says what happened: "failed with exit code 1", "was stopped after 600 s", ..."""
        if self.ending == "timeout":
            return f"was stopped after {timeout_s:g} s"
        if self.ending == "memory":
            return f"was stopped because it needed more than {memory_bytes / 2**30:.3g} GiB of memory"
        if self.returncode < 0:
            return f"was killed by signal {signal.Signals(-self.returncode).name}"
        return f"failed with exit code {self.returncode}"


def run_limited(
    command: Sequence[str],
    *,
    timeout_s: float,
    memory_bytes: int,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    batch: bool = False,
) -> Finished:
    """Runs `command` in a process group of its own and waits for it; kills the whole group when it passes a limit. `batch`: it
    runs as a batch job (onnx_fa/scheduling.py), as what times itself does.

    The program ends with this process, even when that is killed, and with the thread that called.

    Memory is the resident size of the group, looked at every 5 to 100 ms: an address-space limit would count the compiler's
    mapped libraries and thread stacks, which cost nothing. OSError (no such program) passes through.
    """
    # Files, not pipes: a killed child's grandchildren may hold a pipe open, and stderr may be large.
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err, contextlib.ExitStack() as closing:
        start = time.monotonic()
        child: subprocess.Popen[bytes] | None = None
        ending: Ending = "ok"
        peak = 0
        try:
            with _interrupts_held():  # between the start of the child and its name they would leave it running
                child = subprocess.Popen(
                    list(command),
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=err,
                    cwd=cwd,
                    env=env,
                    start_new_session=True,
                    preexec_fn=dies_with_parent(become_batch_job if batch else None),
                )
            wait = _waiter(child.pid, closing)
            pause = _POLL_S[0]
            while not (usage := _ended(child)):
                peak = max(peak, _group_rss(child.pid), _high_water(child.pid))
                if ending == "ok":
                    if peak > memory_bytes:
                        ending = "memory"
                    elif time.monotonic() - start > timeout_s:
                        ending = "timeout"
                    if ending != "ok":
                        kill_group(child.pid)
                wait(pause)
                pause = min(pause * 1.1, _POLL_S[1])
            peak = peak if peak > _LOADED else usage  # too short to be seen, or seen while it was being loaded
        finally:
            if child is not None:
                # Also on KeyboardInterrupt, and for children that outlive their parent.
                kill_group(child.pid)
                if child.returncode is None:
                    child.wait()
        seconds = time.monotonic() - start
        if ending == "ok" and child.returncode != 0:
            ending = "failed"
        return Finished(ending, child.returncode, seconds, peak, _text(out), _text(err))


@contextlib.contextmanager
def _interrupts_held() -> Iterator[None]:
    """Holds SIGINT and SIGTERM back. A signal mask would not do: another thread takes the signal then, and Python raises in the
    main one."""
    if threading.current_thread() is not threading.main_thread():
        yield  # interrupts are raised elsewhere
        return
    held: list[int] = []
    before = {n: signal.signal(n, lambda number, _: held.append(number)) for n in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)
    if held:
        signal.raise_signal(held[0])


def _waiter(pid: int, closing: contextlib.ExitStack) -> Callable[[float], object]:
    """What waits for so many seconds, or, where the system can tell (Linux), until the program ends."""
    if not hasattr(os, "pidfd_open"):
        return time.sleep
    try:
        descriptor = os.pidfd_open(pid)
    except OSError:  # a container's seccomp filter, or no descriptor is left
        return time.sleep
    closing.callback(os.close, descriptor)
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return lambda seconds: poll.poll(seconds * 1000)


def _ended(child: subprocess.Popen[bytes]) -> int:
    """0 while the child runs, then a bound on its resident size in bytes. (ru_maxrss starts at the parent's size after vfork.)"""
    pid, status, usage = os.wait4(child.pid, os.WNOHANG)
    if pid == 0:
        return 0
    child.returncode = os.waitstatus_to_exitcode(status)
    return max(1, usage.ru_maxrss * 1024)


def _text(stream: IO[bytes]) -> str:
    stream.seek(0)
    return stream.read().decode("utf-8", errors="replace")


def kill_group(pgid: int) -> None:
    """Kills the group of a process started as a session's leader, and the groups that it and its descendants started."""
    for group in (pgid, *_groups_below(pgid)):
        with contextlib.suppress(ProcessLookupError):  # everything in it has ended
            os.killpg(group, signal.SIGKILL)


def _groups_below(pid: int) -> set[int]:
    """The groups of all descendants but its own; empty where there is no /proc."""
    children: dict[int, list[tuple[int, int]]] = {}
    for child, fields in _processes():
        children.setdefault(int(fields[1]), []).append((child, int(fields[2])))
    groups, todo = set[int](), [pid]
    while todo:
        for child, group in children.get(todo.pop(), []):
            groups.add(group)
            todo.append(child)
    return groups - {pid}


def _high_water(pid: int) -> int:
    """VmHWM in bytes. (ru_maxrss is no use here: after vfork it starts at the parent's size.)"""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0
    for line in status.splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return 0  # it has ended, only its entry is left


def _group_rss(pgid: int) -> int:
    """Resident bytes of all processes of the group; 0 where there is no /proc (then only the time limit works)."""
    # The kernel tells a process's group far faster than it writes its file for a reader, and most processes are of other groups.
    own = [pid for pid in _pids() if _group(pid) == pgid]
    return sum(int(fields[21]) * _PAGE for fields in map(_fields, own) if fields)


def _group(pid: int) -> int:
    """The group of a process; 0 when it has ended."""
    try:
        return os.getpgid(pid)
    except OSError:
        return 0


def _processes() -> Iterator[tuple[int, list[str]]]:
    """Every process and its fields of /proc/PID/stat after the name: state, parent, group, ..."""
    for pid in _pids():
        if fields := _fields(pid):
            yield pid, fields


def _pids() -> list[int]:
    """Every process; none where there is no /proc."""
    try:
        return [int(e) for e in os.listdir("/proc") if e.isdigit()]
    except OSError:
        return []


def _fields(pid: int) -> list[str]:
    """The fields of /proc/PID/stat after the name; none when the process has ended since it was listed."""
    try:
        # The program's name may hold spaces and brackets: fields start after the last ")".
        with open(f"/proc/{pid}/stat", "rb", buffering=0) as file:
            return file.read().rpartition(b")")[2].decode("ascii").split()
    except OSError:
        return []

"""Finds commands that IREE lets run side by side although one reads what another writes.

The compiler puts commands without a hazard between them into one `stream.async.concurrent` region, and lets nothing wait in there.
Of a buffer that is written part by part (a concatenation) it compares a reader with the last part alone: a slice of an earlier part
lands in the region of the command that writes that part, and copies what was there before in one call of some ten thousand
(docs/developer/iree-bugs.md). Where that is found, the module is compiled with all commands one after another.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

IN_ORDER = ("--iree-stream-partitioning-favor=debug",)
"""The compiler's flags for a module whose commands wait for one another."""
WHY_IN_ORDER = "so that all commands wait for one another: some would read what one beside them writes"

_CONSTANT = re.compile(r"(%\S+) = arith\.constant (\d+) : index")
_RESULT = re.compile(r"(%\w+)(:\d+)? = stream\.async\.")
_USE = re.compile(r"(%[\w#]+)(?:\[(%[\w#]+) to (%[\w#]+)[^]]*])?")
_TIED = re.compile(r"(%[\w#]+)(?: as |\{)")


def print_flags(folder: Path) -> tuple[str, ...]:
    """Flags by which the compiler writes the functions of a program into `folder` once their commands are in regions."""
    return ("--mlir-print-ir-after=iree-stream-schedule-concurrency", f"--mlir-print-ir-tree-dir={folder}")


def find_unordered(folder: Path) -> tuple[str, ...]:
    """The commands in the functions that `print_flags` wrote into `folder` which read what a command beside them writes."""
    texts = (
        path.read_text(errors="replace") for path in sorted(folder.rglob("*iree-stream-schedule-concurrency.mlir"))
    )
    return tuple(command for text in texts for command in unordered(text))


@dataclass(frozen=True)
class _Access:
    """A command that reads or writes the bytes of a buffer from `begin` up to `end`, which are constants or values of the program.
    None: all of it."""

    command: str
    buffer: str
    begin: int | str | None
    end: int | str | None

    def may_meet(self, other: _Access) -> bool:
        """Ranges that end where the other begins do not meet; of others that only the run knows, nobody can say so."""
        return self.buffer == other.buffer and not (
            _is_before(self.end, other.begin) or _is_before(other.end, self.begin)
        )


def _is_before(end: int | str | None, begin: int | str | None) -> bool:
    if isinstance(end, int) and isinstance(begin, int):
        return end <= begin
    return end is not None and end == begin


def unordered(text: str) -> Iterator[str]:
    """The commands of one function that read what another of their region writes. `text` is the function after the pass
    iree-stream-schedule-concurrency."""
    known = {name: int(value) for name, value in _CONSTANT.findall(text)}
    region: list[str] | None = None
    depth = 0
    for line in text.splitlines():
        if region is None:
            if "stream.async.concurrent" in line:
                region, depth = [], line.count("{") - line.count("}")
            continue
        depth += line.count("{") - line.count("}")
        if depth <= 0:
            yield from _of_region(region, known)
            region = None
        else:
            region.append(line.strip())


def _of_region(lines: list[str], known: dict[str, int]) -> Iterator[str]:
    """A command that writes into a buffer makes another value of it: `root` leads back to the first one."""
    root: dict[str, str] = {}
    reads, writes = list[_Access](), list[_Access]()
    for line in lines:
        made = _RESULT.match(line)
        if made is None:
            continue
        call, _, types = line.partition(" : ")
        targets = set[str]()
        for index, output in enumerate(types.rpartition("-> ")[2].strip("()").split(", ")):
            result = f"{made[1]}#{index}" if made[2] else made[1]
            if tied := _TIED.match(output):
                targets.add(tied[1])
                root[result] = root.get(tied[1], tied[1])
            else:
                writes.append(_Access(line, result, None, None))
        for name, begin, end in _USE.findall(call.partition("=")[2]):
            access = _Access(line, root.get(name, name), known.get(begin, begin or None), known.get(end, end or None))
            (writes if name in targets else reads).append(access)
    for read in reads:
        if any(read.command is not write.command and read.may_meet(write) for write in writes):
            yield read.command

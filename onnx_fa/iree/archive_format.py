"""How an archive of weights (.irpa) is laid out: runtime/src/iree/schemas/parameter_archive.h of IREE, version 0.0.

A header, a table of entries, their names, and the data, each of them a *segment* with an offset from the beginning of the file.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

_MAGIC = b"IRPA"
_HEADER = struct.Struct("<4sHHQQQ Q QQ QQ QQ")
"""Magic, version (major, minor), size, offset of a next header, flags; number of entries; offset and length of three segments."""
_ENTRY = struct.Struct("<QIQ QQ QQ Q QQ")
"""Size, type, flags; range of the name, of metadata; alignment; range of the data. The ranges are those of their segments."""
_DATA = 2
_ENTRY_ALIGNMENT = 16
DATA_ALIGNMENT = 64
_FILE_ALIGNMENT = 4096


@dataclass(frozen=True)
class Layout:
    """An archive of `size` bytes, which begins with `head`; the data of each entry begin at its offset."""

    head: bytes
    offsets: tuple[int, ...]
    size: int


def lay_out(entries: Sequence[tuple[str, int]]) -> Layout:
    """Where an archive keeps entries of these names and lengths (in bytes)."""
    names = [name.encode() for name, _ in entries]
    stride = _up(_ENTRY.size, _ENTRY_ALIGNMENT)
    table = _up(_HEADER.size, _ENTRY_ALIGNMENT)
    text = table + (stride * (len(entries) - 1) + _ENTRY.size if entries else 0)
    data = _up(text + sum(map(len, names)), DATA_ALIGNMENT)
    rows, starts, name_at, at = bytearray(), [], 0, 0
    for name, (_, length) in zip(names, entries, strict=True):
        at = _up(at, DATA_ALIGNMENT)
        row = _ENTRY.pack(_ENTRY.size, _DATA, 0, name_at, len(name), 0, 0, DATA_ALIGNMENT, at, length)
        rows += b"\0" * (-len(rows) % _ENTRY_ALIGNMENT) + row
        starts.append(data + at)
        name_at, at = name_at + len(name), at + length
    segments = (table, len(rows), text, name_at, data, at)
    header = _HEADER.pack(_MAGIC, 0, 0, _HEADER.size, 0, 0, len(entries), *segments)
    head = header.ljust(table, b"\0") + bytes(rows) + b"".join(names)
    return Layout(head, tuple(starts), _up(data + at, _FILE_ALIGNMENT))


def _up(number: int, step: int) -> int:
    return -(-number // step) * step

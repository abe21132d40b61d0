"""Names of an untrusted model, made fit for a terminal, a table or a page: the one place where they are.

A name may hold what a terminal takes for a command (move the cursor, change the title, type for the user), what turns the
direction of text around, or line ends that begin a line of their own.
"""

from __future__ import annotations

import logging


def printable(text: object) -> str:
    """Everything but printable characters and spaces as Python's repr shows it, such as \\x1b; line ends too."""
    plain = str(text)
    if plain.isprintable():
        return plain
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in plain)


def printable_lines(text: object) -> str:
    """As `printable`, of a text of several lines, which it keeps."""
    return "\n".join(map(printable, str(text).split("\n")))


class PrintableFormatter(logging.Formatter):
    """For log messages of this package and of others."""

    def format(self, record: logging.LogRecord) -> str:
        return printable_lines(super().format(record))

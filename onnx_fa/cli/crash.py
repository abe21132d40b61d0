"""The last barrier of the command line: what no one foresaw becomes one line that says so, not a traceback."""

from __future__ import annotations

import os
import traceback

from onnx_fa.errors import one_line
from onnx_fa.printable import printable

TRACEBACK_ENV = "ONNX_FA_TRACEBACK"
"""Environment variable: set, an unforeseen error shows its traceback."""


def crash_message(error: BaseException, subject: str) -> str:
    """One line for an exception that is an error of this package; `subject` is the file at work, or "". Where TRACEBACK_ENV is set,
    the traceback comes first."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [f for f in frames if "onnx_fa" in f.filename or "patterns" in f.filename] or frames
    where = f" ({os.path.basename(own[-1].filename)}:{own[-1].lineno})" if own else ""
    told = f"{subject}: " * bool(subject)
    line = f"{told}a bug in onnx_fa, not in what it was given: {type(error).__name__}: {one_line(error)}{where}"
    if os.environ.get(TRACEBACK_ENV):
        return "".join(traceback.format_exception(error)) + printable(line)
    return printable(f"{line}; please report it with the traceback that {TRACEBACK_ENV}=1 shows")

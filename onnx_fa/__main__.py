"""The command `onnx-fa`, also as `python -m onnx_fa`."""

from __future__ import annotations

import os
import signal
import sys
import threading

_SOON = 0.01
"""Seconds after which a callback has ended."""


def main() -> int:
    """`onnx_fa.cli.main`, for a process of its own: an interrupt shows no traceback, whether Python is importing or ending."""
    sys.unraisablehook = _unraisable
    try:
        from onnx_fa.cli import main as run

        code = run()
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # all is done: nothing is left to tidy up
        return code
    except KeyboardInterrupt:
        print("onnx-fa: error: interrupted", file=sys.stderr)
        return 130


def _unraisable(error: sys.UnraisableHookArgs) -> None:
    """An interrupt may come in a callback from which Python raises nothing: it would be shown and lost, so it is sent again."""
    if error.exc_type is KeyboardInterrupt:
        threading.Timer(_SOON, os.kill, (os.getpid(), signal.SIGINT)).start()
    else:
        sys.__unraisablehook__(error)


if __name__ == "__main__":
    sys.exit(main())

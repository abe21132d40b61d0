"""The phases of a long command, told as they begin and end."""

from __future__ import annotations

import argparse
import sys
import time

from onnx_fa.cli.printing import note


class Phases:
    """A line as each phase begins, on a terminal and with -v; with -v also its seconds, as it ends."""

    def __init__(self, args: argparse.Namespace) -> None:
        self._args = args
        self._shown = args.verbose > 0 or sys.stderr.isatty()
        self._phase = ""
        self._start = 0.0

    def begin(self, phase: str) -> None:
        """Ends the phase before, if there is one."""
        self.end()
        self._phase, self._start = phase, time.monotonic()
        if self._shown:
            note(self._args, f"{phase} ...")

    def end(self) -> None:
        if self._phase and self._args.verbose > 0:
            note(self._args, f"{self._phase}: {time.monotonic() - self._start:.1f} s")
        self._phase = ""

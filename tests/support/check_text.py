"""Text held against FileCheck's lines."""

from __future__ import annotations

import io
from pathlib import Path

from filecheck.finput import FInput
from filecheck.matcher import Matcher
from filecheck.options import Options
from filecheck.parser import Parser, pattern_for_opts


def check_text(name: str, text: str) -> None:
    """Holds a kernel's text against the checks in the file of that name in tests/filecheck."""
    checks = Path(__file__).parents[1] / "filecheck" / name
    options = Options(match_filename=str(checks))
    with checks.open() as lines:
        parser = Parser(options, lines, *pattern_for_opts(options))
        matcher = Matcher(options, FInput("kernel", text), parser)
        matcher.stderr = io.StringIO()
        assert matcher.run() == 0, matcher.stderr.getvalue()

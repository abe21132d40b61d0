"""Sizes of which IREE believes that they may be 2^63: that is less than nothing in 64 bits with a sign.

The compiler tells each dispatch the largest that a size may be. Of a product of sizes that is 2^63 - 1, and one more where a row is
put behind as many (a class token behind the patches of an image). A reduction along it on a GPU is then written without its steps
between threads: of every four numbers alone (docs/developer/iree-bugs.md). Such a module is compiled again from where dispatches
are told.
"""

from __future__ import annotations

import re
from pathlib import Path

FROM_HERE = "--compile-from=executable-sources"
"""The compiler's flag for a text of `bounded`."""
WHY_BOUNDED = "in two steps, which iree-compile alone does not do: it takes a size for one that may be 2^63"
_MOST = (1 << 63) - 1
_LARGEST = re.compile(r"\bumax = (\d+)")


def bounded(folder: Path) -> str:
    """The program, whose sizes are 2^63 - 1 at most, from what `--dump-compilation-phases-to=folder` left of it; empty where all
    are as it is."""
    for path in sorted(folder.glob("*.executable-sources.mlir")):
        if text := bounded_in(path.read_text()):
            return text
    return ""


def bounded_in(text: str) -> str:
    """The same of the text of that phase."""
    if all(int(n) <= _MOST for n in _LARGEST.findall(text)):
        return ""
    return _LARGEST.sub(lambda found: f"umax = {min(int(found[1]), _MOST)}", text)

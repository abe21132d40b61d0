"""Finds dispatches that are passed more numbers than IREE's runtime takes.

A dispatch is passed the sizes and the places of its operands that only a run knows, each place as two numbers of 32 bits. The
compiler joins a sum of forty tensors of a free length into one dispatch, which is passed eighty; no runtime loads such a module.
Where that is found, the module is compiled with less joined.
"""

from __future__ import annotations

import re
from pathlib import Path

from onnx_fa.errors import CompileError

MOST = 64
"""What executables of IREE's CPU, CUDA and HIP runtimes are passed at most (IREE_HAL_EXECUTABLE_MAX_CONSTANT_COUNT and those of the
drivers)."""
LESS_JOINED = ("--iree-dispatch-creation-fuse-multi-use=false",)
"""The compiler's flags for a module with fewer operators in a dispatch."""
WHY_LESS_JOINED = (
    f"with fewer operators in a dispatch: one would be passed more than {MOST} numbers, which no runtime loads"
)

_ALIAS = re.compile(r"(#\w+) = #hal\.pipeline\.layout<constants = (\d+)")
_EXPORT = re.compile(
    r"hal\.executable\.export public @(\S+) .*?layout\((?:(#\w+)\)|#hal\.pipeline\.layout<constants = (\d+))"
)


def crowded(folder: Path) -> tuple[tuple[str, int], ...]:
    """The dispatches that are passed more than MOST numbers, and how many, from what `--dump-compilation-phases-to=folder` left."""
    return tuple(
        found for path in sorted(folder.glob("*.executable-sources.mlir")) for found in crowded_in(path.read_text())
    )


def crowded_in(text: str) -> tuple[tuple[str, int], ...]:
    """The same of the text of that phase."""
    aliases = {name: int(many) for name, many in _ALIAS.findall(text)}
    exports = [(name, aliases.get(alias, int(own or 0))) for name, alias, own in _EXPORT.findall(text)]
    return tuple((name, many) for name, many in exports if many > MOST)


def check_numbers(folder: Path) -> None:
    """Raises CompileError where the module that was compiled cannot be loaded."""
    for name, many in crowded(folder):
        raise CompileError(
            f"the dispatch {name} is passed {many} sizes and places that only a run knows, of which IREE's runtime takes {MOST}: "
            "fix free dims of the model's inputs (--dim NAME=SIZE)"
        )

"""JSON as people write configs: with comments and commas behind the last item."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from onnx_fa.errors import OnnxFaError
from onnx_fa.files import read_text

_STRING = r'("(?:\\.|[^"\\\n])*")'
_COMMENTS = re.compile(_STRING + r"|//[^\n]*|/\*.*?\*/", re.S)
_LAST_COMMAS = re.compile(_STRING + r"|,(?=\s*[\]}])")


def read_jsonc(path: Path) -> Any:
    """What a JSON file says. Raises OnnxFaError for what is neither JSON nor a comment, and for a key that is there twice."""
    # Line breaks stay, so that an error names the line of the file.
    text = _COMMENTS.sub(lambda found: found[1] or "\n" * found[0].count("\n") or " ", read_text(path))
    text = _LAST_COMMAS.sub(lambda found: found[1] or " ", text)
    try:
        return json.loads(text, object_pairs_hook=_once)
    except RecursionError as e:
        raise OnnxFaError(f"{path}: not JSON: nested too deeply") from e
    except ValueError as e:
        raise OnnxFaError(f"{path}: not JSON: {e}") from e


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made: dict[str, Any] = {}
    for key, value in pairs:
        if key in made:
            raise ValueError(f"{key!r} is there twice")
        made[key] = value
    return made

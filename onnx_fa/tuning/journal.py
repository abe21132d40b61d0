"""What a search has measured so far, so that one that was interrupted goes on."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from onnx_fa.errors import OnnxFaError


class Journal:
    """Results of an interrupted search, one JSON object per line; the first line holds what they depend on.

    A journal of other settings, versions or machine is begun anew. Raises OnnxFaError when it cannot be written.
    """

    def __init__(self, path: Path, head: Mapping[str, Any]) -> None:
        self.path = path
        self._known: dict[str, Any] = {}
        first = json.dumps(head, sort_keys=True)
        try:
            lines = path.read_text().splitlines() if path.is_file() else []
            if lines and lines[0] == first:
                for line in lines[1:]:
                    try:
                        key, value = json.loads(line)
                    except ValueError:
                        continue  # the end of a line that an interrupt cut off
                    self._known[key] = value
            else:
                path.write_text(first + "\n")
        except OSError as e:
            raise OnnxFaError(f"{path}: cannot be written: {e.strerror}") from e
        self.resumed = len(self._known)

    def get(self, *key: object) -> Any:
        return self._known.get(json.dumps(key))

    def put(self, value: Any, *key: object) -> None:
        self._known[json.dumps(key)] = value
        with self.path.open("a") as out:
            out.write("\n" + json.dumps([json.dumps(key), value]))

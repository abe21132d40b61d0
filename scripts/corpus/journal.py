"""What has become of each case: a line of JSON for every step, so that a build that was stopped goes on where it was."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

NAME = "journal.jsonl"
MANIFEST = "manifest.json"


def append(folder: Path, entry: dict[str, Any]) -> None:
    """Adds a line to the folder's journal."""
    with open(folder / NAME, "a") as file:
        file.write(json.dumps(entry) + "\n")


def read(folder: Path) -> dict[str, dict[str, Any]]:
    """The last line of each case, by its name. A line that was cut off by the end of its process is left out."""
    path = folder / NAME
    last: dict[str, dict[str, Any]] = {}
    for line in path.read_text().splitlines() if path.exists() else []:
        try:
            entry = json.loads(line)
        except json.JSONDecodeError:
            continue
        last[entry["case"]] = entry
    return last


def write_manifest(folder: Path, producer: str, packages: tuple[str, ...], cases: list[str]) -> list[dict[str, Any]]:
    """Writes manifest.json from the journal: the models of these cases, with the versions of the packages that made them."""
    models = []
    for case, entry in read(folder).items():
        if entry["state"] == "done" and case in cases:
            versions = {name: entry["versions"].get(name.lower(), "") for name in packages}
            models += [{"producer": producer, "versions": versions, **model} for model in entry["models"]]
    models.sort(key=lambda model: str(model["name"]))
    (folder / MANIFEST).write_text(json.dumps(models, indent=1) + "\n")
    return models

"""Builds cases of one producer, in that producer's environment. Every case is written to the journal before it begins and once it
is done, so that the runner knows which one ended the process.

python worker.py PRODUCER OUT SECONDS CASE...   builds these cases
python worker.py PRODUCER --list                prints the names of all cases
"""

from __future__ import annotations

import importlib
import json
import shutil
import signal
import sys
import tempfile
import traceback
from importlib import metadata
from pathlib import Path
from typing import Any

# scripts/, in place of scripts/corpus/.
sys.path[0] = str(Path(__file__).resolve().parent.parent)

import numpy as np  # noqa: E402
import onnx  # noqa: E402

from corpus.case import Case, Made  # noqa: E402
from corpus.journal import append  # noqa: E402


def cases_of(producer: str) -> dict[str, Case]:
    """The producer's cases by name."""
    module = importlib.import_module(f"corpus.producers.{producer}")
    listed: list[Case] = list(module.cases())
    by_name = {case.name: case for case in listed}
    if len(by_name) != len(listed):
        raise SystemExit(f"{producer}: two cases have one name")
    return by_name


def keep(made: Made, folder: Path) -> dict[str, Any]:
    """Writes a model into one file, and its inputs beside it; what the manifest says of it."""
    model = made.model if isinstance(made.model, onnx.ModelProto) else onnx.load(made.model)
    path = folder / f"{made.name}.onnx"
    onnx.save(model, path)
    runs = {}
    for number, (run, feeds) in enumerate(made.runs.items()):
        runs[run] = f"{made.name}.{number}.npz"
        np.savez(folder / runs[run], **{name: np.asarray(array) for name, array in feeds.items()})
    opsets = {o.domain or "ai.onnx": o.version for o in model.opset_import}
    return {
        "name": made.name,
        "file": path.name,
        "attentions": made.attentions,
        "why": made.why,
        "opsets": opsets,
        "bytes": path.stat().st_size,
        "runs": runs,
    }


def build(case: Case, folder: Path) -> list[dict[str, Any]]:
    """The case's models, kept in the folder."""
    scratch = Path(tempfile.mkdtemp(prefix="corpus-"))
    try:
        return [keep(made, folder) for made in case.build(scratch)]
    finally:
        shutil.rmtree(scratch)


def installed() -> dict[str, str]:
    """Every package of this environment with its version."""
    return {d.metadata["Name"].lower(): d.version for d in metadata.distributions()}


def main(arguments: list[str]) -> int:
    producer, *rest = arguments
    known = cases_of(producer)
    if rest == ["--list"]:
        print(json.dumps(list(known)))
        return 0
    out, seconds, *names = rest
    folder = Path(out)
    versions = installed()
    for name in names:
        append(folder, {"case": name, "state": "begun"})
        # Its default action ends the process, also inside of an extension that never returns.
        signal.alarm(int(seconds))
        try:
            entries = build(known[name], folder)
        except Exception as error:  # whatever a producer raises is the result of this case
            traceback.print_exc()
            reason = " ".join(f"{type(error).__name__}: {error}".split())[:400]
            append(folder, {"case": name, "state": "failed", "reason": reason})
        else:
            append(folder, {"case": name, "state": "done", "models": entries, "versions": versions})
        signal.alarm(0)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""Builds a corpus of small ONNX files with attention in them, by producers that nobody of this project wrote.

    python scripts/corpus --out DIR [--producer NAME ...] [--case NAME ...] [--again]

A producer is a file of `scripts/corpus/producers/`: named cases, each a configuration with seeded random weights. It runs in an
environment of its own, made under DIR/environments with the versions of `environments.py` from PyPI. Its models go to DIR/PRODUCER
with `manifest.json`: the file, the versions, the number of true attentions, and inputs (.npz) by the name of the run. Cases that
are in the journal are not built again, unless they failed and `--again` is given, or `--case` names them.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [os.fspath(HERE.parent), os.fspath(HERE.parent.parent)]

from corpus.environments import PRODUCERS, python_of  # noqa: E402
from corpus.journal import append, read, write_manifest  # noqa: E402
from onnx_fa.processes import Finished, run_limited  # noqa: E402

SECONDS_PER_CASE = 240
MEMORY = 6 << 30


def environment_variables() -> dict[str, str]:
    """Of a producer: no hub, one thread, no GPU, the project's own sources not in sight."""
    quiet = {
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "CUDA_VISIBLE_DEVICES": "",
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "OMP_NUM_THREADS": "1",
    }
    return {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | quiet


def case_names(python: Path, producer: str) -> list[str]:
    """The names of the producer's cases. Exits where it cannot be imported; the process itself has said why."""
    command = [os.fspath(python), os.fspath(HERE / "worker.py"), producer, "--list"]
    done = subprocess.run(command, env=environment_variables(), stdout=subprocess.PIPE, text=True)
    if done.returncode:
        sys.exit(f"{producer}: its cases cannot be listed (exit code {done.returncode})")
    names: list[str] = json.loads(done.stdout.splitlines()[-1])
    return names


def remaining(folder: Path, names: list[str], chosen: list[str], again: bool) -> list[str]:
    """The cases that are to be built."""
    if chosen:
        return [name for name in names if name in chosen]
    states = {case: entry["state"] for case, entry in read(folder).items()}
    finished = ("done",) if again else ("done", "failed")
    return [name for name in names if states.get(name) not in finished]


def build(python: Path, producer: str, folder: Path, names: list[str]) -> None:
    """Builds the cases. A process that a case has ended is followed by another for the cases behind it."""
    for name in names:
        append(folder, {"case": name, "state": "wanted"})
    while names:
        command = [os.fspath(python), os.fspath(HERE / "worker.py"), producer, os.fspath(folder), str(SECONDS_PER_CASE)]
        limit = (SECONDS_PER_CASE + 60) * len(names)
        done = run_limited(
            [*command, *names], timeout_s=limit, memory_bytes=MEMORY, cwd=folder, env=environment_variables()
        )
        (folder / "worker.log").write_text(done.stdout + done.stderr)
        states = {case: entry["state"] for case, entry in read(folder).items()}
        begun = [name for name in names if states.get(name) == "begun"]
        for name in begun:
            append(folder, {"case": name, "state": "failed", "reason": _ended(done)})
        behind = [name for name in names if states.get(name) == "wanted"]
        if behind and not begun:
            sys.exit(f"{producer}: the process ended before its first case, see {folder / 'worker.log'}")
        names = behind


def _ended(done: Finished) -> str:
    return f"its process {done.describe((SECONDS_PER_CASE + 60), MEMORY)}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="where the corpus is, or is to be")
    parser.add_argument("--producer", action="append", choices=[*PRODUCERS], help="only this one (repeatable)")
    parser.add_argument("--case", action="append", default=[], help="only this case, also if it is there (repeatable)")
    parser.add_argument("--again", action="store_true", help="also what failed before")
    args = parser.parse_args()
    for producer in args.producer or PRODUCERS:
        folder = args.out.resolve() / producer
        folder.mkdir(parents=True, exist_ok=True)
        python = python_of(PRODUCERS[producer].environment, args.out.resolve() / "environments")
        listed = case_names(python, producer)
        build(python, producer, folder, remaining(folder, listed, args.case, args.again))
        models = write_manifest(folder, producer, PRODUCERS[producer].packages, listed)
        journal = read(folder)
        failed = [
            f"{case}: {entry['reason']}"
            for case in args.case or listed
            if (entry := journal.get(case, {})).get("state") == "failed"
        ]
        attentions = sum(model["attentions"] for model in models)
        print(f"{producer}: {len(models)} files, {attentions} attentions, {len(failed)} cases failed", flush=True)
        for line in failed:
            print(f"  {line}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Commands stopped at random moments, and on disks that are full: `python -m tests.faults --count 200 --seed 1 --journal FILE`.

After each, no output may be there in part, no process may run on, and the next run of the same command must work and leave nothing
but its output. Disks are tmpfs, which needs root; without, those cases are left out. FILE gets a JSON line per failure, and one of
counts.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from tests.support import tiny

ROOT = Path(__file__).resolve().parent.parent
COMMANDS = {
    "rewrite": ("rewrite", "IN", "-o", "OUT/out.onnx"),
    "import": ("import", "IN", "-o", "OUT/out.mlir"),
    "compile": ("compile", "IN", "-o", "OUT/out.vmfb", "--report", "OUT/out.json"),
    "zoo run": ("zoo", "run", "--zoo", "ZOO", "-o", "OUT/zoo", "--steps", "explain,rewrite", "-q"),
}
SECONDS = {"rewrite": 6.0, "import": 8.0, "compile": 20.0, "zoo run": 15.0}
"""Within which a command is stopped."""
SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
"""Of a full disk, in pages of 4 KiB."""


def _start(command: Sequence[str], mark: str) -> subprocess.Popen[str]:
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    env = {**os.environ, "PYTHONPATH": path, "ONNX_FA_FAULT": mark}
    full = [sys.executable, "-m", "onnx_fa", *command]
    pipe = subprocess.PIPE
    return subprocess.Popen(full, env=env, stdout=pipe, stderr=pipe, text=True, start_new_session=True)


def _running(mark: str) -> list[int]:
    """Processes that carry the mark in their environment."""
    found = []
    for entry in os.listdir("/proc"):
        try:
            if not entry.isdigit():
                continue
            if f"ONNX_FA_FAULT={mark}".encode() in Path(f"/proc/{entry}/environ").read_bytes().split(b"\0"):
                found.append(int(entry))
        except OSError:
            continue  # it ended, or is another user's
    return found


def _fill(command: Sequence[str], places: dict[str, Path]) -> list[str]:
    filled = []
    for word in command:
        for name, path in places.items():
            word = word.replace(name, str(path))
        filled.append(word)
    return filled


def one(rng: random.Random, number: int, folder: Path) -> tuple[str, str]:
    """(what was done, what was wrong with it or "")."""
    name = rng.choice(list(COMMANDS))
    how = rng.choice(
        ("SIGKILL", "SIGKILL", "SIGTERM", "SIGINT", "full", "full") if os.getuid() == 0 else ("SIGKILL", "SIGTERM")
    )
    out = folder / f"out{number}"
    out.mkdir()
    places = {"IN": folder / "a.onnx", "OUT": out, "ZOO": folder / "zoo.toml"}
    command = _fill(COMMANDS[name], places)
    mark = f"{os.getpid()}-{number}"
    problem = ""
    if how == "full":
        pages = rng.choice(SIZES)
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={4 * pages}k", "tmpfs", str(out)], check=True)
        said = f"{name} on {4 * pages} KiB"
    else:
        seconds = rng.uniform(0.3, SECONDS[name])
        said = f"{name} stopped by {how} after {seconds:.1f} s"
    try:
        process = _start(command, mark)
        if how == "full":
            _, err = process.communicate(timeout=600)
            lines = err.strip().splitlines()
            if process.returncode != 0 and name != "zoo run" and (len(lines) != 1 or str(out) not in lines[0]):
                problem = f"not one line that names the output: {err[-1500:]}"
        else:
            try:
                process.wait(timeout=seconds)
            except subprocess.TimeoutExpired:
                process.send_signal(getattr(signal, how))
            _, err = process.communicate(timeout=60)
        if "Traceback" in err:
            problem = err[-2000:]
        time.sleep(0.3)
        if left := _running(mark):
            problem = f"still running: {left}"
    finally:
        if how == "full":
            files = [p.name for p in out.iterdir()]
            subprocess.run(["umount", str(out)], check=True)
            if process.returncode != 0 and name != "zoo run" and any(not f.endswith((".log", ".mlir")) for f in files):
                problem = problem or f"left on a full disk: {files}"
    if not problem:
        again = _start(command, mark)
        _, err = again.communicate(timeout=600)
        hidden = [str(p) for p in out.rglob(".onnx_fa-*")]
        if again.returncode != 0 or hidden:
            problem = f"the next run: exit {again.returncode}, {err[-1500:]} {hidden}"
    return said, problem


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--journal", type=Path, default=Path("faults.jsonl"))
    args = parser.parse_args()
    rng, tally = random.Random(args.seed), Counter[str]()
    with tempfile.TemporaryDirectory() as tmp, args.journal.open("a") as journal:
        folder = Path(tmp)
        tiny.attention(folder / "a.onnx")
        (folder / "zoo.toml").write_text('[[entry]]\nname = "a"\npath = "a.onnx"\n')
        for number in range(args.count):
            said, problem = one(rng, number, folder)
            tally["failed" if problem else "held"] += 1
            if problem:
                journal.write(json.dumps({"case": number, "what": said, "failed": problem}) + "\n")
                journal.flush()
            print(f"{number}: {said}: {problem or 'held'}", flush=True)
        journal.write(json.dumps({"seed": args.seed, "cases": args.count, **tally}) + "\n")
    return 1 if tally["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())

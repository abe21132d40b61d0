"""Damaged models: small models with bytes or fields of them changed at random, and what explain and rewrite make of those.

Every case is either handled or refused with one line (OnnxFaError); no other exception, no crash, no hang past LIMIT_S, no file
left behind by a refusal. `python -m tests.damage --count 100000 --seed 1 --journal FILE` runs a campaign: a worker process per some
thousand cases, so that a crash or a hang in C++ costs one case; FILE gets one JSON line per failure, and a last one of counts.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import os
import random
import shutil
import signal
import struct
import sys
import tempfile
import time
import traceback
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx

from onnx_fa.errors import OnnxFaError
from onnx_fa.forms.rewrite import FORMS, explain, rewrite_in_place
from onnx_fa.graph import io
from tests.support.damage_bases import Base, bases
from tests.support.damage_edits import EDITS
from tests.support.time_limit import Endless, time_limit

LIMIT_S = 10
"""Of one case, in seconds of the processor."""
SILENT_S = 60
"""So long a worker may say nothing: it may be stuck in C++, where no signal is seen."""
BATCH = 2000
"""Cases of one worker process of a campaign."""
_LOADED = 8
"""One in so many models that were rewritten although they had been changed is loaded by onnxruntime, before and after."""


@dataclass(frozen=True)
class Damaged:
    """A model file and the files beside it. `what` says what was done to which base."""

    what: str
    data: bytes
    beside: dict[str, bytes]


def damaged(seed: int, number: int, choice: tuple[Base, ...] | None = None) -> Damaged:
    """The case `number` of a campaign: always the same for the same seed."""
    rng = random.Random(f"{seed}/{number}")
    base = rng.choice(choice or bases())
    if rng.random() < 0.3:
        how, data = _bytes_changed(rng, base.data)
        return Damaged(f"{base.name}: {how}", data, base.beside)
    proto = onnx.ModelProto.FromString(base.data)
    beside = dict(base.beside)
    done = []
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        edit = rng.choice(EDITS)
        with contextlib.suppress(
            IndexError, TypeError, ValueError, AttributeError
        ):  # an edit that does not fit what the others left
            if said := edit(rng, proto, beside):
                done.append(f"{edit.__name__} {said}")
    return Damaged(f"{base.name}: {', '.join(done)}", proto.SerializeToString(), beside)


def _bytes_changed(rng: random.Random, data: bytes) -> tuple[str, bytes]:
    changed = bytearray(data)
    how = rng.choice(("flip", "flip", "set", "cut", "cut out", "insert", "repeat", "varint"))
    at = rng.randrange(len(changed))
    count = rng.choice((1, 1, 2, 4, 16))
    if how == "flip":
        for _ in range(count):
            changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
    elif how == "set":
        for _ in range(count):
            changed[rng.randrange(len(changed))] = rng.choice((0, 1, 0x7F, 0x80, 0xFF))
    elif how == "cut":
        del changed[at:]
    elif how == "cut out":
        del changed[at : at + count]
    elif how == "insert":
        changed[at:at] = rng.randbytes(count)
    elif how == "repeat":
        changed[at:at] = changed[at : at + 16 * count]
    else:
        changed[at : at + 1] = struct.pack("<Q", rng.getrandbits(64) | 0x8080808080808080)
    return f"{how} at {at}", bytes(changed)


def try_one(case: Damaged, number: int, folder: Path) -> tuple[str, str]:
    """What became of a case: ("done" | "refused" | "failed", the message or traceback)."""
    for old in folder.iterdir():
        shutil.rmtree(old) if old.is_dir() and not old.is_symlink() else old.unlink()
    path, out = folder / "m.onnx", folder / "out.onnx"
    path.write_bytes(case.data)
    for name, data in case.beside.items():
        (folder / name).write_bytes(data)
    before = sorted(os.listdir(folder))
    try:
        with time_limit(LIMIT_S):
            if number % 4 == 0:
                explain(path, passes=number % 16 == 0)
            else:
                model = io.load(path)
                rewrite_in_place(model, FORMS[number % len(FORMS)])
                io.save(model, out)
    except OnnxFaError as e:
        lines = str(e).splitlines()
        if len(lines) != 1 or not lines[0].isprintable():
            return "failed", f"not one printable line: {str(e)!r}"
        if sorted(os.listdir(folder)) != before:
            return "failed", f"left behind: {sorted(set(os.listdir(folder)) - set(before))} after {e}"
        return "refused", str(e)
    except Endless:
        return "failed", f"longer than {LIMIT_S} s: {traceback.format_exc()[-1500:]}"
    except Exception:
        return "failed", traceback.format_exc()[-3000:]
    if number % _LOADED == 1 and (problem := _load_problem(path, out)):
        return "failed", problem
    return "done", ""


def _load_problem(path: Path, out: Path) -> str:
    """What onnxruntime says against the rewritten model, where it loads the original."""
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    for file in (path, out):
        try:
            ort.InferenceSession(file, options, providers=["CPUExecutionProvider"])
        except Exception as e:  # onnxruntime has a class for each status, and others for what it does not expect
            return f"rewritten model does not load: {e}" if file == out else ""
    return ""


def campaign(seed: int, first: int, count: int, journal: Path) -> Counter[str]:
    """Runs cases `first` to `first + count`, each batch in a process of its own, and writes the failures to `journal`."""
    bases()  # made once, before forking
    tally: Counter[str] = Counter()
    last = first + count
    with tempfile.TemporaryDirectory() as tmp:
        progress = Path(tmp) / "progress"
        while first < last:
            end = min(first + BATCH, last)
            progress.write_text("")
            pid = os.fork()
            if pid == 0:
                status = 3
                try:
                    _work(seed, first, end, Path(tmp), progress, journal)
                    status = 0
                except BaseException:
                    traceback.print_exc()
                finally:
                    os._exit(status)  # never back into the parent's code
            ending = _watched(pid, progress)
            lines = [json.loads(line) for line in progress.read_text().splitlines()]
            tally.update(line["end"] for line in lines if "end" in line)
            if ending is None:
                first = end
            else:
                at = lines[-1]["start"] if lines else first
                tally["failed"] += 1
                _note(journal, {"case": at, "what": damaged(seed, at).what, "failed": ending})
                first = at + 1
            print(f"{first}: {dict(tally)}", flush=True)
    _note(journal, {"seed": seed, "cases": count, **tally})
    return tally


def _work(seed: int, first: int, end: int, folder: Path, progress: Path, journal: Path) -> None:
    place = folder / "case"
    place.mkdir(exist_ok=True)
    with progress.open("a") as stream:
        for number in range(first, end):
            stream.write(json.dumps({"start": number}) + "\n")
            stream.flush()
            case = damaged(seed, number)
            ending, message = try_one(case, number, place)
            stream.write(json.dumps({"end": ending}) + "\n")
            if ending == "failed":
                _note(journal, {"case": number, "what": case.what, "failed": message})


def _watched(pid: int, progress: Path) -> str | None:
    """How a worker ended, if not well; one that says nothing for SILENT_S is killed."""
    size, since = -1, time.monotonic()
    while True:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return None if status == 0 else f"the process ended with status {os.waitstatus_to_exitcode(status)}"
        if (now := progress.stat().st_size) != size:
            size, since = now, time.monotonic()
        if time.monotonic() - since > SILENT_S:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            return f"hung for {SILENT_S} s"
        time.sleep(0.1)


def _note(journal: Path, line: dict[str, Any]) -> None:
    with journal.open("a") as stream:
        stream.write(json.dumps(line) + "\n")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--journal", type=Path, default=Path("damage.jsonl"))
    parser.add_argument("--case", type=int, help="only this one, with its traceback")
    args = parser.parse_args()
    logging.disable(logging.CRITICAL)
    if args.case is not None:
        case = damaged(args.seed, args.case)
        with tempfile.TemporaryDirectory() as tmp:
            print(case.what, *try_one(case, args.case, Path(tmp)), sep="\n")
        return 0
    return 1 if campaign(args.seed, args.first, args.count, args.journal)["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())

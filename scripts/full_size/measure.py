"""Compiles the models of a folder for this CPU, compares them with onnxruntime, and times both in turns:

    python scripts/full_size/measure.py DIR --samples FILE.csv [--page PAGE.md] [--mark NAME] [--only WORD ...]

Each model is compiled once, and the times of its calls are appended to FILE with what compiling took and how far results are from
onnxruntime's, so that a run can be cut off and continued. The page is written from that file."""

from __future__ import annotations

import argparse
import csv
import os
import resource
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort

from onnx_fa.iree.run import load_module

THREADS = len(os.sched_getaffinity(0))
SIZES = {"batch": 1, "sequence": 128, "samples": 32000, "frames": 60}
"""What free axes are when the models are run."""
COMPILE_SECONDS, COMPILE_BYTES = 900, 12 << 30
TURN_SECONDS = 1.5
"""Of one contestant, before the other has its turn."""


def compile_once(path: Path) -> tuple[Path, float]:
    """The module beside a model, and the seconds that compiling it took; 0 where it was there. Raises RuntimeError where the
    compiler, or a limit, ends it."""
    module = path.with_suffix(".vmfb")
    if module.exists():
        return module, 0.0
    start = time.monotonic()
    command = [sys.executable, "-m", "onnx_fa", "compile", path, "-o", module]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=COMPILE_SECONDS, preexec_fn=_limit_memory, check=False
        )
    except subprocess.TimeoutExpired:
        raise RuntimeError(f"not within {COMPILE_SECONDS} s") from None
    if done.returncode:
        raise RuntimeError(done.stderr.strip().splitlines()[-1])
    return module, time.monotonic() - start


def _limit_memory() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (COMPILE_BYTES, COMPILE_BYTES))


def inputs_of(path: Path) -> dict[str, Any]:
    """Random inputs: images and sound normal, ids below 1,000, masks of ones."""
    model = onnx.load(path, load_external_data=False)
    rng = np.random.default_rng(0)
    made = {}
    for value in model.graph.input:
        shape = [d.dim_value or SIZES[d.dim_param] for d in value.type.tensor_type.shape.dim]
        kind = onnx.helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
        if kind == np.int64:
            made[value.name] = np.ones(shape, kind) if "mask" in value.name else rng.integers(0, 1000, shape, kind)
        else:
            made[value.name] = rng.standard_normal(shape).astype(kind)
    return made


def session(path: Path) -> Any:
    options = ort.SessionOptions()
    options.intra_op_num_threads = THREADS
    options.log_severity_level = 3
    return ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def error(got: list[Any], want: list[Any]) -> float:
    """The largest difference over the largest number of an output; infinite for other shapes, and where one alone is NaN."""
    worst = 0.0
    for a, b in zip(got, want, strict=True):
        if a.shape != b.shape or (np.isnan(a) != np.isnan(b)).any():
            return float("inf")
        if b.size:
            difference = np.nan_to_num(np.abs(a.astype(np.float64) - b.astype(np.float64)))
            worst = max(worst, float(difference.max() / max(np.nan_to_num(np.abs(b)).max(), 1e-30)))
    return worst


def time_calls(call: Callable[[], Any]) -> list[float]:
    """ms of the calls of one turn, three at least, after one that is not counted."""
    call()
    found: list[float] = []
    end = time.monotonic() + TURN_SECONDS
    while len(found) < 3 or time.monotonic() < end:
        start = time.perf_counter()
        call()
        found.append((time.perf_counter() - start) * 1e3)
    return found


def measure(path: Path, rounds: int) -> list[tuple[str, str, str]]:
    """What is known of a model, as rows of the file of samples: the model, what it is, the number."""
    try:
        module, seconds = compile_once(path)
    except RuntimeError as problem:
        return [(path.stem, "does not compile", str(problem)[:300])]
    feeds = inputs_of(path)
    theirs, ours = session(path), load_module(module)

    def call_theirs() -> Any:
        return theirs.run(None, feeds)

    def call_ours() -> Any:
        return ours(*feeds.values())

    rows = [(path.stem, "error", f"{error(call_ours(), call_theirs()):.1e}")]
    if seconds:
        rows.append((path.stem, "compile_s", f"{seconds:.0f}"))
    for _ in range(rounds):
        rows += [(path.stem, "onnxruntime", f"{ms:.4g}") for ms in time_calls(call_theirs)]
        rows += [(path.stem, "onnx_fa", f"{ms:.4g}") for ms in time_calls(call_ours)]
    return rows


def table(samples: Path) -> list[str]:
    """The page's table, slowest ratio first."""
    found: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    with samples.open(newline="") as stream:
        for row in csv.DictReader(line for line in stream if not line.startswith("#")):
            found[row["model"]][row["what"]].append(row["number"])
    lines = []
    for model, known in found.items():
        if "onnx_fa" not in known:
            lines.append((float("inf"), f"| {model} | - | - | - | - | {known['does not compile'][-1]} |"))
            continue
        ours, theirs = (statistics.median(map(float, known[who])) for who in ("onnx_fa", "onnxruntime"))
        least = min(map(float, known["onnx_fa"])) / min(map(float, known["onnxruntime"]))
        lines.append(
            (
                ours / theirs,
                f"| {model} | {ours:.1f} | {theirs:.1f} | {ours / theirs:.2f} | {least:.2f} | {known['error'][-1]} |",
            )
        )
    head = [
        "| | onnx_fa, ms | onnxruntime, ms | ratio | of the fastest calls | error |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    return [*head, *(line for _, line in sorted(lines, reverse=True))]


def write_page(samples: Path, page: Path, mark: str) -> None:
    """Puts the table between the page's marks of that name. Raises ValueError for a page without them."""
    text, begin, end = page.read_text(), f"<!-- {mark} -->", f"<!-- /{mark} -->"
    if begin not in text or end not in text:
        raise ValueError(f"{page} has no {begin} ... {end}")
    before, after = text.split(begin)[0], text.split(end)[1]
    page.write_text("\n".join([before + begin, *table(samples), end + after]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--samples", type=Path, required=True)
    parser.add_argument("--page", type=Path)
    parser.add_argument("--mark", default="full-size", help="of the table in the page (of a Xeon's: full-size-xeon)")
    parser.add_argument("--only", nargs="*", default=[], help="words, one of which a model's name has")
    parser.add_argument("--compiled", action="store_true", help="only models whose modules are there")
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    if not given.samples.exists():
        given.samples.write_text("model,what,number\n")
    done = {line.split(",")[0] for line in given.samples.read_text().splitlines()}
    for path in sorted(given.folder.glob("*.onnx")):
        wanted = not given.only or any(word in path.stem for word in given.only)
        if path.stem in done or not wanted or (given.compiled and not path.with_suffix(".vmfb").exists()):
            continue
        rows = measure(path, given.rounds)
        with given.samples.open("a", newline="") as stream:
            csv.writer(stream, lineterminator="\n").writerows(rows)
        print(path.stem, *rows[0][1:], flush=True)
    print("\n".join(table(given.samples)))
    if given.page:
        write_page(given.samples, given.page, given.mark)


if __name__ == "__main__":
    main()

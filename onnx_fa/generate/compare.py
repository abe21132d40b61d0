"""What generates beside each other: onnx_fa, onnxruntime and, for its folders, onnxruntime-genai, each in a process of its own."""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from onnx_fa import processes
from onnx_fa.benchmark.worker_process import package_environment
from onnx_fa.errors import RunError
from onnx_fa.generate.greedy import Generation
from onnx_fa.generate.layout import DecoderFiles
from onnx_fa.generate.modules import Module, describe_to
from onnx_fa.generate.worker import EXACT, GENAI, KINDS, ORT, OURS
from onnx_fa.graph import io
from onnx_fa.graph.accuracy_levels import rounds_activations


@dataclass(frozen=True)
class Job:
    """What is generated: `count` tokens behind `prompt`, `rounds` times."""

    prompt: tuple[int, ...]
    count: int
    rounds: int = 1
    threads: int | None = None
    timeout_s: float = 1800
    memory_bytes: int = 20 << 30


@dataclass(frozen=True)
class Contestant:
    """What one of KINDS made of a job: a run for each round, or a `problem`."""

    kind: str
    runs: tuple[Generation, ...] = ()
    peak_bytes: int = 0
    problem: str = ""
    note: str = ""

    def without_first(self) -> Contestant:
        """The rounds but the first."""
        return replace(self, runs=self.runs[1:])

    @property
    def tokens(self) -> tuple[int, ...]:
        return self.runs[0].tokens

    @property
    def prompt_s(self) -> float:
        """The median of the rounds."""
        return statistics.median(run.prompt_s for run in self.runs)

    @property
    def samples(self) -> list[tuple[int, int, float]]:
        """(round, tokens seen before the call beyond the prompt, seconds) of every call; the prompt's call has -1."""
        return [
            (i, at, s) for i, run in enumerate(self.runs) for at, s in enumerate((run.prompt_s, *run.steps_s), start=-1)
        ]

    @property
    def step_s(self) -> float | None:
        """The median of all tokens of all rounds; None where there was but the prompt's."""
        steps = [s for run in self.runs for s in run.steps_s]
        return statistics.median(steps) if steps else None


def run_contestants(
    files: DecoderFiles,
    path: Path,
    modules: tuple[Module, Module],
    device: str,
    job: Job,
    kinds: Sequence[str] = KINDS,
    progress: Callable[[str], None] = lambda phase: None,
) -> list[Contestant]:
    """Each of `kinds` in turn, round after round. onnxruntime-genai takes part where the folder is its own."""
    made = []
    with tempfile.TemporaryDirectory(prefix="onnx_fa-") as folder:
        described = Path(folder) / "modules.json"
        describe_to(described, modules)
        for kind in kinds:
            if kind == GENAI and not files.config:
                continue
            progress(f"generating with {kind}")
            text = {
                "path": str(path),
                "modules": str(described),
                "device": device,
                "prompt": list(job.prompt),
                "count": job.count,
                "rounds": job.rounds,
                "threads": job.threads,
            }
            made.append(_run(kind, Path(folder), text, job))
            if kind == ORT and _differs(made) and rounds_activations(io.load(files.step)):
                progress(f"generating with {EXACT}")
                made.append(_run(EXACT, Path(folder), text, job))
    return made


def _differs(made: Sequence[Contestant]) -> bool:
    ran = [c.tokens for c in made if not c.problem]
    return len(set(ran)) > 1


def _run(kind: str, folder: Path, text: Mapping[str, Any], job: Job) -> Contestant:
    request = folder / "job.json"
    request.write_text(json.dumps({**text, "kind": kind}))
    command = [sys.executable, "-m", "onnx_fa.generate.worker", str(request)]
    done = processes.run_limited(
        command, timeout_s=job.timeout_s, memory_bytes=job.memory_bytes, env=package_environment(), batch=True
    )
    if done.ending != "ok":
        last = [line for line in done.stderr.splitlines() if line.strip()]
        problem = f"{done.describe(job.timeout_s, job.memory_bytes)}: {last[-1][:300] if last else 'no message'}"
        return Contestant(kind, problem=problem)
    said = json.loads(done.stdout.splitlines()[-1])
    if "problem" in said:
        return Contestant(kind, problem=said["problem"])
    runs = tuple(
        Generation(tuple(r["tokens"]), r["prompt_s"], tuple(r["steps_s"]), tuple(r["margins"])) for r in said["runs"]
    )
    return Contestant(kind, runs, said["peak_bytes"], note=said["note"])


def check_tokens(made: Sequence[Contestant], close: float, rounded: float = 0.0) -> str:
    """Words for how our tokens compare with onnxruntime's: the same, or the same up to where the two largest logits are within
    `close` of each other, as a part of the largest. Raises RunError where ours differ before that.

    Where activations are rounded, they may be within `rounded`; else ours may be those of the same file without that."""
    by_kind = {c.kind: c for c in made}
    ours, ort, exact = by_kind[OURS], by_kind.get(ORT), by_kind.get(EXACT)
    if ours.problem:
        raise RunError(f"the compiled decoder: {ours.problem}")
    if ort is None or ort.problem:
        return "not compared with onnxruntime" + (f": {ort.problem}" if ort is not None else "")
    if exact is None or exact.problem:
        return _compare(ours, ort, "onnxruntime's", close)
    try:
        return _compare(ours, exact, "onnxruntime's with accuracy_level 0, which rounds no activations", close)
    except RunError:
        told = _compare(ours, ort, "onnxruntime's", max(close, rounded))
        return f"{told} (activations are rounded to 8 bits)"


def _compare(ours: Contestant, other: Contestant, whose: str, close: float) -> str:
    for at, (mine, theirs) in enumerate(zip(ours.tokens, other.tokens, strict=False)):
        if mine == theirs:
            continue
        margin = other.runs[0].margins[at]
        if margin > close:
            raise RunError(
                f"token {at} of the text is {mine}, and {theirs} in {other.kind}, where the largest logit is ahead of the second "
                f"by {margin:.2g} of it"
            )
        return (
            f"the first {at} tokens are {whose}; then its two largest logits differ by {margin:.1g} of the largest, "
            "so that rounding decides"
        )
    if len(ours.tokens) != len(other.tokens):
        raise RunError(f"{len(ours.tokens)} tokens, and {len(other.tokens)} in {other.kind}")
    how = f" ({other.note})" if other.note else ""
    return f"all {len(ours.tokens)} tokens are {whose}{how}"

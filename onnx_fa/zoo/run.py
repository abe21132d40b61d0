"""`zoo run`: every entry through every step, here or on a cluster; what is done already is taken over."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Protocol

from onnx_fa.errors import OnnxFaError
from onnx_fa.files import write_whole, writing
from onnx_fa.machine import machine_facts
from onnx_fa.zoo.devices import why_not_here
from onnx_fa.zoo.entries import Entry
from onnx_fa.zoo.entry_run import EntryRun
from onnx_fa.zoo.settings import DEFAULT, Settings
from onnx_fa.zoo.shards import Shard, part, zoo_digest
from onnx_fa.zoo.steps import Json

Advance = Callable[[str, str, bool], None]
"""(entry, step, whether the step was taken over) after each step."""


class Elsewhere(Protocol):
    """Machines that run the steps in place of this one."""

    absent: str
    """Why none of them can run what is compiled for the target; empty where one can."""
    machine: Json
    """Their processors and GPUs, in place of this machine's."""

    def run(self, states: Sequence[EntryRun], advance: Advance) -> None:
        """All steps of all entries, timing too."""


def run(
    entries: Sequence[Entry],
    target: str,
    folder: Path,
    settings: Settings = DEFAULT,
    advance: Advance = lambda entry, step, taken: None,
    shard: Shard | None = None,
    elsewhere: Elsewhere | None = None,
) -> list[Json]:
    """The results, one for each entry (of the shard), in their order; also as JSON lines in `folder`/results.jsonl. What was run,
    and how, is in `folder`/run.json.

    Everything but timing runs `jobs` entries at a time; timing comes last, alone. Machines `elsewhere` have their own order. What
    an interrupted run had finished is taken over, as is what cannot have changed since an earlier run. Raises OnnxFaError when the
    folder cannot be written.
    """
    try:
        (folder / "work").mkdir(parents=True, exist_ok=True)
    except OSError as e:
        raise OnnxFaError(f"{folder}: cannot be written: {e.strerror}") from e
    absent = why_not_here(target) if elsewhere is None else elsewhere.absent
    states = [EntryRun(e, target, folder / "work" / e.folder, settings, absent) for e in part(entries, shard)]
    partial = folder / "results.partial.jsonl"
    write_whole(partial, "")
    if elsewhere is None:
        _run_here(states, advance)
    else:
        elsewhere.run(states, advance)
    results = []
    for state in states:
        if elsewhere is None and "bench" in settings.wanted_of(state.entry):
            advance(state.entry.name, "bench", state.do("bench"))
        results.append(state.result())
        with writing(partial), partial.open("a") as stream:
            stream.write(json.dumps(results[-1]) + "\n")
    partial.replace(folder / "results.jsonl")
    how = {
        "target": target,
        "machine": machine_facts(settings.threads) | (elsewhere.machine if elsewhere else {}),
        "settings": settings.to_dict(),
        "zoo": {"digest": zoo_digest(entries), "entries": [e.name for e in entries]},
        "shard": str(shard) if shard else None,
    }
    write_whole(folder / "run.json", json.dumps(how) + "\n")
    return results


def _run_here(states: Sequence[EntryRun], advance: Advance) -> None:
    """All steps but timing."""

    def first(state: EntryRun) -> None:
        for step in (s for s in state.settings.wanted_of(state.entry) if s != "bench"):
            advance(state.entry.name, step, state.do(step))

    with ThreadPoolExecutor(states[0].settings.jobs if states else 1) as pool:
        futures = [pool.submit(first, s) for s in states]
        try:
            for future in futures:
                future.result()
        except BaseException:
            for state in states:
                state.stop = True
            pool.shutdown(cancel_futures=True)
            raise


def read_results(path: Path) -> list[Json]:
    """The lines of a results file. Raises OnnxFaError when it is not one."""
    from onnx_fa.files import read_text

    try:
        results = [json.loads(line) for line in read_text(path).splitlines() if line]
        if not all(
            isinstance(r, dict) and {"name", "ok", "steps"} <= set(r) and isinstance(r["name"], str) for r in results
        ):
            raise ValueError("a line is no result")
    except ValueError as e:
        raise OnnxFaError(f"{path}: not a results file of onnx-fa zoo: {e}") from e
    return results

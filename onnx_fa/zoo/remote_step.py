"""What a worker of a cluster does: one step, from what the store has to what the store gets."""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from distributed import get_worker

from onnx_fa.files import write_whole
from onnx_fa.machine import cpu_name, gpu_name
from onnx_fa.zoo.entries import Entry
from onnx_fa.zoo.file_cache import FileCache
from onnx_fa.zoo.sources import digest_of_weights
from onnx_fa.zoo.step_process import made_by, record, run_step
from onnx_fa.zoo.store import Store
from onnx_fa.zoo.worker_facts import Code, code_here, other_code

Json = dict[str, Any]
WORK, SOURCES = "{{work}}", "{{sources}}"
"""The folders of whichever machine it is, in what is sent to a worker or kept in the store."""
KEPT = "onnx_fa-files"
"""The folder with files of the store that a machine keeps, beside the folders of its workers, which share it."""


@dataclass(frozen=True)
class RemoteJob:
    """A step for a worker. `before` has what each earlier step said that it is made from, `sources` the sha256 of each file of a
    user's own model by its name: the store has all of them. `weights` is the sha256 of those in the entry's package, `code` is the
    client's."""

    entry: Json
    target: str
    step: str
    settings: Json
    key: str
    before: dict[str, Json]
    sources: dict[str, str]
    store: str
    code: Code
    weights: str


def run_job(job: RemoteJob) -> Json:
    """What the step said as `record`, and whether an earlier run did as `taken`; `log` is the sha256 of all that a failed step
    wrote. Or `refused`: why this `worker` may not do it. Raises StoreError, and OSError where there is no space."""
    if why := other_code(code_here(), job.code):
        return {"refused": why, "worker": get_worker().address}
    entry = Entry.from_dict(job.entry)
    if job.weights != digest_of_weights(entry):
        said = record(False, f"{get_worker().address}: its {entry.of} is not the one that is here")
        return {"record": said | {"key": job.key}, "taken": False, "log": ""}
    store, name = Store(job.store), record_name(job.key, job.step, job.target)
    if found := store.record(name):
        return {"record": found, "taken": True, "log": ""}
    files = FileCache(store, _scratch().parent / KEPT)
    with tempfile.TemporaryDirectory(prefix="onnx_fa-zoo-", dir=_scratch()) as top:
        root = Path(top).resolve()
        work, places = root / "work", {WORK: str(root / "work"), SOURCES: str(root / "sources")}
        work.mkdir()
        for path, digest in job.sources.items():
            files.get(digest, root / "sources" / path)
        for step, earlier in job.before.items():
            for path, digest in earlier["files"].items():
                files.get(digest, work / path)
            write_whole(work / f"{step}.json", json.dumps(filled(earlier["data"], places)))
        given = {"entry": filled(job.entry, places), "target": job.target, "settings": job.settings}
        said = run_step(work, job.step, given) | {"key": job.key, "files": made_by(work, job.step)}
        said = emptied(said, places)
        for path, digest in said["files"].items():
            files.put(work / path, digest)
        log = work / f"{job.step}.log"
        if said["ok"]:
            store.note(name, said)
        return {"record": said, "taken": False, "log": store.put(log) if log.is_file() else ""}


def record_name(key: str, step: str, target: str) -> str:
    """What a step's record is called in the store, which machines share: the processor is in it where it shapes the result."""
    if step != "bench" and target != "cpu-host":
        return key
    return f"{key}-{hashlib.sha256(f'{cpu_name()} {gpu_name()}'.encode()).hexdigest()[:8]}"


def filled(data: Any, places: Mapping[str, str]) -> Any:
    """The same with this machine's folders, by `places`."""
    return _replaced(data, list(places.items()))


def emptied(data: Any, places: Mapping[str, str]) -> Any:
    """The same without this machine's folders: the inverse of `filled`."""
    return _replaced(data, [(here, name) for name, here in places.items()])


def _replaced(data: Any, pairs: list[tuple[str, str]]) -> Any:
    match data:
        case str():
            for old, new in pairs:
                data = data.replace(old, new)
            return data
        case dict():
            return {k: _replaced(v, pairs) for k, v in data.items()}
        case list() | tuple():
            return [_replaced(v, pairs) for v in data]
    return data


def _scratch() -> Path:
    """The folder of the worker that this runs in, which Dask empties when the worker has been killed."""
    return Path(get_worker().local_directory)

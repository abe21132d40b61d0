"""An entry whose steps run elsewhere: what a worker is sent of it, and what of the worker's answer is kept here."""

from __future__ import annotations

import json
from functools import cached_property
from pathlib import Path
from typing import Any

from onnx_fa.files import write_whole
from onnx_fa.zoo.entry_run import EntryRun, Job
from onnx_fa.zoo.remote_step import SOURCES, WORK, RemoteJob, emptied, filled, record_name
from onnx_fa.zoo.sources import Sources, digest_of_file, digest_of_weights, sources_of
from onnx_fa.zoo.stages import NEEDS
from onnx_fa.zoo.store import Store
from onnx_fa.zoo.worker_facts import Code

Json = dict[str, Any]
SHOWN = ("sites.html",)
"""The files of steps that reports show: they are fetched from the store."""


class RemoteEntry:
    """`state` is the entry's run as it would be here, `store` what this machine and the workers share. `alike`: what ran here may
    stand for what runs there."""

    def __init__(self, state: EntryRun, store: Store, alike: bool) -> None:
        self.state, self._store, self._alike = state, store, alike
        self._said: dict[str, Json] = {}  # without this machine's folders

    def take_over(self, job: Job) -> bool:
        """Takes over what a run without a cluster left in this folder, and gives it to the store."""
        if not self._alike or not self.state.take_over(job):
            return False
        said = self.state.done[job.step]
        for path, digest in said["files"].items():
            self._store.put(self.state.folder / path, digest)
        self._said[job.step] = emptied(said, self._places)
        self._store.note(record_name(job.key, job.step, self.state.target), self._said[job.step])
        return True

    def prepare(self, job: Job, code: Code) -> RemoteJob:
        """The step for a worker; what it is made from is in the store then. Raises StoreError."""
        entry, sources = self.state.entry, self._sources
        digests = {}
        if sources is not None:
            for path in sources.files:
                digests[sources.name(path)] = self._store.put(path, digest_of_file(path))
            entry = sources.moved(entry, SOURCES)
        before = {step: self._said[step] for step in all_before(job.before)}
        return RemoteJob(
            entry=entry.to_dict(),
            target=self.state.target,
            step=job.step,
            settings=job.settings,
            key=job.key,
            before=before,
            sources=digests,
            store=self._store.url,
            code=code,
            weights=digest_of_weights(entry),
        )

    def keep(self, job: Job, said: Json, log: str = "") -> None:
        """Notes what the step said, as if it had run here. `log` is the sha256 of all that a failed one wrote."""
        self._said[job.step] = said
        folder, sources = self.state.folder, self._sources
        folder.mkdir(exist_ok=True)
        for path in said["files"].keys() & set(SHOWN):
            self._store.get(said["files"][path], folder / path)
        if log:
            self._store.get(log, folder / f"{job.step}.log")
        here: Json = filled(said, self._places)
        if sources is not None:  # messages name a file as the zoo does, links and all
            here["message"] = filled(said["message"], self._places | {SOURCES: str(sources.root)})
        if said["ok"]:
            write_whole(folder / f"{job.step}.json", json.dumps(here["data"]))
        self.state.note(job, here)

    @cached_property
    def _sources(self) -> Sources | None:
        return sources_of(self.state.entry)

    @cached_property
    def _places(self) -> dict[str, str]:
        # The folder of the results may lie below that of the models: it comes first.
        found = {WORK: str(self.state.folder.resolve())}
        if self._sources is not None:
            found |= {f"{SOURCES}/{self._sources.name(self._sources.model)}": str(self._sources.model.resolve())}
            root = self._sources.root.resolve()
            if root != Path(root.anchor):  # else it is in every path
                found |= {SOURCES: str(root)}
        return found


def all_before(steps: tuple[str, ...]) -> list[str]:
    """What these steps, and those that they are made from, are made from; they are there too."""
    found = set(steps)
    for step in steps:
        found |= set(all_before(NEEDS[step]))
    return sorted(found)

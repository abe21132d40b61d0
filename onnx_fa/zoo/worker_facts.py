"""What a worker of a cluster is and has, and whether it may work for a client."""

from __future__ import annotations

import os
import socket
import tempfile
from dataclasses import dataclass
from pathlib import Path

from onnx_fa.errors import OnnxFaError, one_line
from onnx_fa.machine import cpu_name, gpu_name
from onnx_fa.zoo.devices import why_not_here
from onnx_fa.zoo.keys import code_digest, installed
from onnx_fa.zoo.store import Store


@dataclass(frozen=True)
class Code:
    """A digest of the package's sources, and the versions of what shapes results: both are in the key of a step."""

    sources: str
    versions: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Facts:
    """Of a machine. `absent` says why it cannot run what is compiled for the target, `no_store` why it cannot use the store."""

    code: Code
    host: str
    cpu: str
    gpu: str
    absent: str
    no_store: str


def code_here() -> Code:
    """As it is on the disk now: a worker lives long, and each step is a new process."""
    return Code(code_digest(), tuple(sorted(installed().items())))


def other_code(here: Code, client: Code) -> str:
    """Why what is made here is not what the client takes it for; empty where it is."""
    has, wants = dict(here.versions), dict(client.versions)
    for name in sorted(has.keys() | wants.keys()):
        if has.get(name) != wants.get(name):
            return f"{name} is {has.get(name, 'not installed')} there and {wants.get(name, 'not installed')} here"
    return "" if here.sources == client.sources else "its sources of onnx_fa are others than those here"


def facts_here(target: str, store: str, probe: str) -> Facts | str:
    """Those of this machine, which tries to find the file with the sha256 `probe` in the store, and to put one there. Where it
    cannot be asked, why, in words: an exception of a package that the client has not, or one that pickle cannot make anew, would
    fail in the client."""
    try:
        return _facts_here(target, store, probe)
    except Exception as e:
        return one_line(e)


def _facts_here(target: str, store: str, probe: str) -> Facts:
    problem = ""
    try:
        with tempfile.TemporaryDirectory(prefix="onnx_fa-") as folder:
            place, own = Store(store), Path(folder) / "own"
            place.get(probe, Path(folder) / "probe")
            own.write_text(f"{socket.gethostname()} {os.getpid()}")
            place.put(own)
    except (OnnxFaError, OSError) as e:
        problem = f"it has not the store that is here: {one_line(e)}"
    return Facts(code_here(), socket.gethostname(), cpu_name(), gpu_name(), why_not_here(target), problem)

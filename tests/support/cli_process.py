"""Commands of the package in processes of their own, forked from one that has loaded the package: loading takes a second, and there
are hundreds. That a fresh interpreter starts is seen by the tests that call `python -m onnx_fa` themselves."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from multiprocessing import get_context
from pathlib import Path

from tests.support.compiled_once import folder_in_use, use

# No runtime that has threads or devices: what is forked must have one thread.
LOADED = (
    "onnx_fa.cli.command",
    "onnx_fa.forms.rewrite",
    "onnx_fa.iree.compile",
    "onnx_fa.iree.importer",
    "onnx_fa.zoo.steps",
)
_FORKS = get_context("forkserver")
_FORKS.set_forkserver_preload([*LOADED])


def run_main(
    module: str, args: Sequence[object], cwd: Path, env: Mapping[str, str] | None = None, timeout_s: float = 120
) -> subprocess.CompletedProcess[str]:
    """What `python -m module args` prints and returns in `cwd`, with `env` as the whole environment (None: this process's).
    `module` has a function `main` of a list of arguments.

    Raises subprocess.TimeoutExpired.
    """
    argv = [str(a) for a in args]
    with tempfile.TemporaryDirectory(prefix="onnx_fa-said-") as folder:
        said = [Path(folder) / name for name in ("stdout", "stderr")]
        job = (module, argv, cwd, dict(os.environ if env is None else env), said, folder_in_use())
        process = _FORKS.Process(target=_main, args=job)
        process.start()
        process.join(timeout_s)
        if process.exitcode is None:
            process.kill()
            process.join()
            raise subprocess.TimeoutExpired([module, *argv], timeout_s)
        out, err = (path.read_text() for path in said)
        return subprocess.CompletedProcess([module, *argv], process.exitcode, out, err)


def _main(
    module: str, argv: list[str], cwd: Path, env: dict[str, str], said: list[Path], compiled: Path | None
) -> None:
    for number, path in enumerate(said, 1):
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(file, number)
        os.close(file)
    os.environ.clear()
    os.environ.update(env)
    os.chdir(cwd)
    tempfile.tempdir = None  # TMPDIR may be another
    if compiled:
        use(compiled)
    sys.argv = [module, *argv]
    sys.exit(importlib.import_module(module).main(argv))

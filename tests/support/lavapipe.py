"""Runs compiled modules on Mesa's lavapipe, a Vulkan driver on the processor (scripts/lavapipe.sh installs it)."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

Array = npt.NDArray[Any]
DRIVERS = Path("/usr/share/vulkan/icd.d")


def environment() -> dict[str, str]:
    """The variables with which IREE's runtime finds lavapipe and no other driver. Without the optimisations of its shaders these
    compile in half of the time; numbers are the same to the tolerances."""
    (driver, *_) = sorted(DRIVERS.glob("lvp_icd.*.json"))
    return {**os.environ, "VK_ICD_FILENAMES": str(driver), "VK_DRIVER_FILES": str(driver), "GALLIVM_PERF": "nopt"}


@cache
def why_not() -> str:
    """Why modules cannot run on lavapipe here, "" where they can."""
    if not list(DRIVERS.glob("lvp_icd.*.json")):
        return f"no lavapipe: {DRIVERS} has no lvp_icd.*.json (scripts/lavapipe.sh installs it where it may)"
    listed = subprocess.run(
        ["iree-run-module", "--list_devices=vulkan"], capture_output=True, text=True, timeout=60, env=environment()
    )
    if listed.returncode or "vulkan://" not in listed.stdout:
        return f"no lavapipe: IREE's runtime lists no Vulkan device: {(listed.stderr or listed.stdout).strip()[-200:]}"
    return ""


def require_lavapipe() -> None:
    """Skips the test, with the reason, where there is no lavapipe."""
    if reason := why_not():
        pytest.skip(reason)


def run_on_lavapipe(vmfb: Path, function: str, inputs: Sequence[Array], outputs: int, folder: Path) -> list[Array]:
    """The results of a function of a module. By a command of IREE's, as its Python bindings cannot read results from lavapipe."""
    command = ["iree-run-module", f"--module={vmfb}", "--device=vulkan", f"--function={function}"]
    for i, x in enumerate(inputs):
        np.save(folder / f"in{i}.npy", x)
        command.append(f"--input=@{folder / f'in{i}.npy'}")
    made = [folder / f"out{i}.npy" for i in range(outputs)]
    command += [f"--output=@{path}" for path in made]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment())
    assert done.returncode == 0, done.stderr[-2000:]
    return [np.load(path) for path in made]

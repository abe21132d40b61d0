"""The drivers of IREE's runtime: which there are, and which one a module asks for."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from onnx_fa.errors import MissingDependencyError, TargetError, one_line

WORKERS, CALLER = "local-task", "local-sync"
"""Of CPUs: threads that work for the one that calls, and that one itself."""
DEVICE = "onnx_fa.device"
"""The fact of a compiled function that names a driver."""
_LARGE = 1 << 24
"""Bytes of a module that is not looked into: it has work for all threads."""


def runtime() -> Any:
    """The package iree.runtime. Raises MissingDependencyError."""
    try:
        import iree.runtime as rt
    except ImportError as e:
        raise MissingDependencyError("the IREE runtime is not installed: pip install iree-base-runtime") from e
    return rt


def limit_threads(count: int) -> None:
    """Gives CPU devices of this process so many workers, as --task_topology_max_group_count does: before the first one is made."""
    runtime().flags.parse_flags(f"--task_topology_max_group_count={count}")


def is_on_host(device: str) -> bool:
    """Whether a driver of IREE's runtime is one of the CPU's."""
    return device.startswith("local")


def require_device(device: str) -> None:
    """Raises TargetError where IREE's runtime finds no such device here. `device` is a driver, with or without a device of it:
    "cuda", "hip", "vulkan://0"."""
    rt, driver = runtime(), device.partition(":")[0]
    if driver not in (known := rt.query_available_drivers()):
        raise TargetError(f"device {device}: IREE's runtime has no driver {driver!r} here, only {', '.join(known)}")
    try:
        found = rt.get_driver(driver).query_available_devices()
    except (RuntimeError, ValueError) as e:
        raise TargetError(f"device {device}: not present on this machine: {one_line(e)}") from e
    number = _number(device)
    if number >= len(found):
        none = "none" if not found else f"{len(found)}, numbered from 0"
        raise TargetError(f"device {device}: not present on this machine: the driver finds {none}")


def _number(device: str) -> int:
    """Which of a driver's devices is meant: 1 of "cuda://1", 0 where no number is given."""
    number = device.partition("://")[2]
    return int(number) if number.isdecimal() else 0


@dataclass(frozen=True)
class Gpu:
    """A device as IREE's runtime sees it; `name` with the version of NVIDIA's driver. `capability` is CUDA's, times ten (90), 0 of
    others."""

    name: str
    capability: int


def find_gpu(device: str) -> Gpu:
    """The first device of a driver, or that whose number is given. Raises TargetError where there is none."""
    require_device(device)
    driver = runtime().get_driver(device.partition(":")[0])
    found = driver.query_available_devices()[_number(device)]
    facts = re.search(r"gpu-compute-capability: (\d+)\.(\d)", driver.dump_device_info(found["device_id"]))
    driver_version = Path("/sys/module/nvidia/version")
    version = f", driver {driver_version.read_text().strip()}" if driver_version.is_file() and facts else ""
    return Gpu(found["name"] + version, 10 * int(facts[1]) + int(facts[2]) if facts else 0)


def preferred_device(
    vmfb: Path | bytes, device: str = WORKERS, function: str | None = None, data: bytes | None = None
) -> str:
    """The driver that a module asks for (its only function, or `function`), where `device` is WORKERS, a CPU's usual one; else
    `device`. What is no module gets `device`, and so does every one where there is no runtime: who loads it says what is wrong.
    `data`: what is in the file, where that has been read."""
    if device != WORKERS:
        return device
    try:
        rt = runtime()
        if not isinstance(vmfb, bytes) and vmfb.stat().st_size > _LARGE:
            return device
        if data is None:
            data = vmfb if isinstance(vmfb, bytes) else vmfb.read_bytes()
        module = rt.VmModule.copy_buffer(rt.VmInstance(), data)
    except (MissingDependencyError, OSError, ValueError):
        return device
    return asked_device(module, device, function)


def asked_device(module: Any, device: str = WORKERS, function: str | None = None) -> str:
    """As `preferred_device`, of a module that the runtime has read."""
    if device != WORKERS:
        return device
    names = [n for n in module.function_names if not n.startswith("__")]
    asked = {module.lookup_function(n).reflection.get(DEVICE, device) for n in names if function in (None, n)}
    return asked.pop() if len(asked) == 1 else device

"""Targets: what a kernel is emitted and compiled for, by name (`cpu-host`, `cpu-avx2`, ...)."""

from __future__ import annotations

import platform
from dataclasses import dataclass
from pathlib import Path

from onnx_fa.errors import TargetError


@dataclass(frozen=True)
class Target:
    """`lanes` is the number of f32 in a vector register; `flags` select the device for iree-compile."""

    name: str
    backend: str
    flags: tuple[str, ...]
    device: str
    lanes: int
    registers: int


_CPU = ("--iree-hal-target-device=local", "--iree-hal-local-target-device-backends=llvm-cpu")


def _host_simd() -> tuple[int, int]:
    """(f32 lanes, vector registers) of this machine, from /proc/cpuinfo."""
    if platform.machine() in ("aarch64", "arm64"):
        return 4, 32
    try:
        flags = Path("/proc/cpuinfo").read_text()
    except OSError:
        flags = ""
    return (16, 32) if "avx512f" in flags else (8, 16) if "avx2" in flags else (4, 16)


def _cpu(name: str, flags: tuple[str, ...], simd: tuple[int, int]) -> Target:
    return Target(name, "llvm-cpu", _CPU + flags, "local-task", *simd)


_AARCH64 = ("--iree-llvmcpu-target-triple=aarch64-linux-gnu", "--iree-llvmcpu-target-cpu=generic")


def parse_target(name: str) -> Target:
    """The target of that name. Raises TargetError naming the known ones."""
    match name:
        case "cpu-host":
            return _cpu(name, ("--iree-llvmcpu-target-cpu=host",), _host_simd())
        case "cpu-avx512":
            return _cpu(name, ("--iree-llvmcpu-target-cpu=x86-64-v4",), (16, 32))
        case "cpu-avx2":
            return _cpu(name, ("--iree-llvmcpu-target-cpu=x86-64-v3",), (8, 16))
        case "cpu-neon":
            return _cpu(name, _AARCH64, (4, 32))
    raise TargetError(f"unknown target {name!r}: use one of {', '.join(TARGET_NAMES)}")


TARGET_NAMES = ("cpu-host", "cpu-avx512", "cpu-avx2", "cpu-neon")

"""Processor, date and versions, for every file of measurements."""

from __future__ import annotations

import datetime
import os
import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

PACKAGES = ("onnx-fa", "iree-base-compiler", "iree-base-runtime", "triton", "onnxruntime", "onnx", "torch", "numpy")


def machine_facts(threads: int) -> dict[str, Any]:
    """cpu, gpu, cores, threads, date, python, versions of the installed PACKAGES."""
    versions = {}
    for n in PACKAGES:
        try:
            versions[n] = version(n)
        except PackageNotFoundError:
            continue  # an optional package that is not installed has no version to report
    return {
        "cpu": cpu_name(),
        "gpu": gpu_name(),
        "cores": os.cpu_count(),
        "threads": threads,
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d"),
        "python": platform.python_version(),
        "versions": versions,
    }


def gpu_name() -> str:
    """Of an NVIDIA GPU, with its driver, as the driver's own program says; "" where there is none."""
    command = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip().splitlines()[0] if done.returncode == 0 and done.stdout.strip() else ""


def saturates_bytes() -> bool:
    """Whether onnxruntime's products of u8 by i8 may be wrong on this machine: on an x86 processor without AVX512_VNNI or AVX_VNNI
    it multiplies with vpmaddubsw, which adds two products in 16 bits and cuts off what passes them, so that sums of large numbers
    are off by a tenth and more."""
    if platform.machine() not in ("x86_64", "AMD64"):
        return False
    try:
        flags = Path("/proc/cpuinfo").read_text()
    except OSError:
        return False
    return "avx512_vnni" not in flags and "avx_vnni" not in flags


def cpu_name() -> str:
    """As the system names it, with family and model where the name says little."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    found: dict[str, str] = {}
    for line in lines:
        key, _, value = line.partition(":")
        found.setdefault(key.strip(), value.strip())
    name = found.get("model name")
    return (
        f"{name} (family {found.get('cpu family', '?')} model {found.get('model', '?')})"
        if name
        else platform.machine()
    )

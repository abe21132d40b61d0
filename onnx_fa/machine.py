"""Processor, date and versions, for every file of measurements."""

from __future__ import annotations

import datetime
import os
import platform
import subprocess
from functools import cache
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
    features = cpu_features()
    return bool(features) and is_x86() and features.isdisjoint({"avx512_vnni", "avx_vnni"})


def is_x86() -> bool:
    """Whether the processor is an x86 of 64 bits."""
    return platform.machine() in ("x86_64", "AMD64")


def is_arm() -> bool:
    """Whether the processor is an ARM of 64 bits."""
    return platform.machine() in ("aarch64", "arm64")


def cpu_features() -> frozenset[str]:
    """What Linux calls the features of an x86 processor, such as avx512_vnni; none where it does not say them."""
    return frozenset(_cpu_facts().get("flags", "").split())


def cpu_name() -> str:
    """As the system names it, with family and model where the name says little."""
    facts = _cpu_facts()
    if not facts:
        return platform.processor() or platform.machine()
    if name := facts.get("model name"):
        return f"{name} (family {facts.get('cpu family', '?')} model {facts.get('model', '?')})"
    return platform.machine()


@cache  # a session of onnxruntime asks each time, and the file is a line for each feature of each core
def _cpu_facts() -> dict[str, str]:
    """What Linux says of the first processor, by its own words; nothing where there is no Linux."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return {}
    facts: dict[str, str] = {}
    for line in lines:
        key, _, value = line.partition(":")
        facts.setdefault(key.strip(), value.strip())
    return facts

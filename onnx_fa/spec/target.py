"""Targets: what a kernel is emitted and compiled for, by name (`cpu-host`, `cuda-sm_80`, `rocm-gfx942`, ...)."""

from __future__ import annotations

import os
import re
from dataclasses import asdict, dataclass, replace
from typing import Literal, get_args

from onnx_fa.errors import TargetError
from onnx_fa.machine import is_arm
from onnx_fa.spec.processor import AMX, AVX2, AVX512, NEON, Processor, host_processor
from onnx_fa.spec.switches import ALL_ON, Switch

Kernels = Literal["auto", "iree", "triton"]
"""Who makes the kernels: IREE's own code generation, Triton, or whichever is there and faster (see kernels/providers.py)."""
KERNELS: tuple[Kernels, ...] = get_args(Kernels)


@dataclass(frozen=True)
class Target(Processor):
    """`flags` select the device for iree-compile, `device` is the runtime's driver. GPUs: `arch` is what the code is for ("" where
    the device is not known). `note` says what a user should know. `tf32`: attention in f32 may multiply in tf32; `bf16_dot`: all
    attention may multiply in bf16. Both change results. `off`: optimisations that kernels do without, to see what they are worth.
    `devices`: how many of them a program runs on."""

    name: str
    backend: str
    flags: tuple[str, ...]
    device: str
    arch: str = ""
    note: str = ""
    kernels: Kernels = "auto"
    tf32: bool = False
    bf16_dot: bool = False
    off: frozenset[Switch] = ALL_ON
    devices: int = 1

    def has(self, switch: Switch) -> bool:
        """Whether an optimisation is on."""
        return switch not in self.off

    @property
    def switched_off(self) -> list[str]:
        """The words of what is off, in order."""
        return sorted(s.word for s in self.off)

    @property
    def cores(self) -> int | None:
        """Of the machine that programs are for; None where that may be any."""
        return os.cpu_count() if self.name == "cpu-host" else None

    @property
    def is_gpu(self) -> bool:
        return self.backend != "llvm-cpu"

    @property
    def lossy(self) -> str:
        """What was asked for that changes results, in words."""
        if self.tf32:
            return "tf32"
        return "bf16 dot" if self.bf16_dot else ""


_TARGET_DEVICE = "--iree-hal-target-device="
_CPU = (f"{_TARGET_DEVICE}local", "--iree-hal-local-target-device-backends=llvm-cpu")


def foreign_cpu(target: Target) -> str:
    """Why this machine's processor cannot run a CPU target's code, in words; empty where it can, and for GPUs."""
    if target.is_gpu or target.name == "cpu-host":
        return ""
    if is_arm() != (target.name == "cpu-neon"):
        return f"{target.name} is another architecture than this machine's"
    host = host_processor()
    if target.name == "cpu-amx":
        for feature, is_there in (("AVX512_BF16", host.pair_dots), ("AVX512_VNNI", host.byte_dots)):
            if not is_there:
                return f"this machine's processor has no {feature}"
    return f"this machine's vectors are shorter than {target.name}'s" if target.lanes > host.lanes else ""


_AARCH64 = ("--iree-llvmcpu-target-triple=aarch64-linux-gnu", "--iree-llvmcpu-target-cpu=generic")
_CPUS = {
    "cpu-host": ("--iree-llvmcpu-target-cpu=host",),
    "cpu-amx": (
        "--iree-llvmcpu-target-cpu=x86-64-v4",
        "--iree-llvmcpu-target-cpu-features=+avx512bf16,+avx512vnni,+amx-tile,+amx-bf16,+amx-int8",
    ),
    "cpu-avx512": ("--iree-llvmcpu-target-cpu=x86-64-v4",),
    "cpu-avx2": ("--iree-llvmcpu-target-cpu=x86-64-v3",),
    "cpu-neon": _AARCH64,
}
_PROCESSORS = {"cpu-amx": AMX, "cpu-avx512": AVX512, "cpu-avx2": AVX2, "cpu-neon": NEON}

_CUDA = ("sm_80", "sm_86", "sm_89")
"""What IREE 3.13 compiles for and has tensor-core instructions of. Its code is PTX, which newer GPUs run too."""
_ROCM = ("gfx942", "gfx950", "gfx1100")
_VULKAN = (
    '#hal.device.target<"vulkan", [#hal.executable.target<"vulkan-spirv", "vulkan-spirv-fb", {iree_codegen.target_info = '
    '#iree_gpu.target<arch = "vp_android_baseline_2022", features = "spirv:v1.3,cap:Shader", wgp = <'
    "compute = fp32|fp16|int64|int32|int16|int8, storage = b64|b32|b16|b8, subgroup = none, subgroup_size_choices = [64], "
    "max_workgroup_sizes = [128, 128, 64], max_thread_count_per_workgroup = 128, max_workgroup_memory_bytes = 16384, "
    "max_workgroup_counts = [65535, 65535, 65535]>>}>]> : !hal.device"
)
"""What IREE 3.13 compiles for unless it is told a device, but with all widths of numbers. Without them it emulates them: f16 that
neighbours write gets lost (docs/developer/iree-bugs.md), and int64 does not compile in most models. A dispatch asks a device only
for those that it uses."""
_SPIRV_DEVICES = {"vulkan": _VULKAN, "metal": "metal"}

TARGET_NAMES = (
    *_CPUS,
    "cuda",
    *(f"cuda-{a}" for a in _CUDA),
    *(f"rocm-{a}" for a in _ROCM),
    "vulkan",
    "metal",
)


_BF16_DOT = {"cpu-host": (), "cpu-amx": (), "cpu-avx512": ("--iree-llvmcpu-target-cpu-features=+avx512bf16",)}
"""The flags that give a target AVX512_BF16."""


def parse_target(name: str, kernels: Kernels = "auto", *, tf32: bool = False, bf16_dot: bool = False) -> Target:
    """The target of that name. Raises TargetError naming the known ones, and where `tf32` or `bf16_dot` means nothing."""
    target = replace(_parse(name, kernels), tf32=tf32)
    if bf16_dot:
        target = _with_bf16_dot(target)
    if tf32 and target.backend != "cuda":
        raise TargetError(f"--tf32: tf32 is CUDA's, the target {name} has none")
    if tf32 and kernels == "iree":
        raise TargetError(
            "--tf32: IREE 3.13 has no tf32 instructions, only Triton's kernels have (--kernels auto or triton)"
        )
    return target


def device_name(index: int) -> str:
    """What a program calls its device of that number."""
    return f"device_{index}"


def spread(target: Target, devices: int) -> Target:
    """The target with so many devices of its kind in one program. Raises TargetError where IREE's runtime does not run that."""
    if devices == 1:
        return target
    if devices < 1:
        raise TargetError(f"--devices {devices}: a program has one device or more")
    if target.backend != "llvm-cpu":
        raise TargetError(
            f"--devices {devices}: one program over several devices of {target.name} fails in IREE 3.13's runtime; a process for "
            "each device does it (onnx_fa.distributed, docs/guide/scale.md)"
        )
    # Devices that differ in their names alone are one to the compiler, which folds equal globals.
    kept = [f for f in target.flags if not f.startswith(_TARGET_DEVICE)]
    named = (f"{_TARGET_DEVICE}{device_name(i)}=local[{i}]" for i in range(devices))
    return replace(target, flags=(*named, *kept), devices=devices)


def _with_bf16_dot(target: Target) -> Target:
    if target.name not in _BF16_DOT:
        raise TargetError(f"--bf16-dot: products of bf16 are AVX512_BF16's, the target {target.name} has none")
    if target.name == "cpu-host" and not host_processor().pair_dots:
        raise TargetError("--bf16-dot: this processor has no AVX512_BF16 (cpu-avx512 compiles for one that has)")
    return replace(target, bf16_dot=True, pair_dots=True, flags=(*target.flags, *_BF16_DOT[target.name]))


def _parse(name: str, kernels: Kernels) -> Target:
    if name in _CPUS:
        has = asdict(_PROCESSORS.get(name) or host_processor())
        return Target(name, "llvm-cpu", _CPU + _CPUS[name], "local-task", kernels=kernels, **has)
    family, _, arch = name.partition("-")
    if family == "cuda" and (arch in ("", *_CUDA) or _newer(arch)):
        note = ""
        if arch not in _CUDA:
            note = (
                f"{name}: IREE's code is for {_CUDA[0]}, which newer GPUs run too; it has no target above {_CUDA[-1]}"
            )
            arch = _CUDA[0]  # sm_89 has less shared memory than what comes before and after it
        flags: tuple[str, ...] = ("--iree-hal-target-device=cuda", f"--iree-cuda-target={arch}")
        return Target(name, "cuda", flags, "cuda", arch=arch, note=note, kernels=kernels)
    if family == "rocm" and arch in _ROCM:
        flags = ("--iree-hal-target-device=hip", f"--iree-rocm-target={arch}")
        return Target(name, "rocm", flags, "hip", arch=arch, kernels=kernels)
    if name in _SPIRV_DEVICES:
        return Target(
            name, f"{name}-spirv", (f"--iree-hal-target-device={_SPIRV_DEVICES[name]}",), name, kernels=kernels
        )
    raise TargetError(f"unknown target {name!r}: use one of {', '.join(TARGET_NAMES)}")


def _newer(arch: str) -> bool:
    """Whether a CUDA architecture is newer than all that IREE knows, as sm_90."""
    found = re.fullmatch(r"sm_(\d+)a?", arch)
    return found is not None and int(found[1]) > int(_CUDA[-1].removeprefix("sm_"))

"""A compiled module on a device of this process, called with torch's tensors: no copies, by DLPack."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any

import torch

from onnx_fa.distributed.launched import Launched, read_plan
from onnx_fa.distributed.order import behind_torch
from onnx_fa.errors import RunError, one_line
from onnx_fa.iree.alone import FUNCTION, INTO, WORKSPACE
from onnx_fa.iree.drivers import runtime

_DLPACK = {"cpu": 1, "cuda": 2}
"""DLPack's numbers of the kinds of devices."""


def _name(device: torch.device) -> str:
    return "local-task" if device.type == "cpu" else f"{device.type}://{device.index or 0}"


@dataclass
class _Device:
    """A device of IREE's runtime. `threads` are, on CUDA, the one that starts its work and the one that waits for its end; `shares`
    says whether callers share a processor with the first."""

    handle: Any
    threads: tuple[int, ...]
    shares: bool = False


@cache
def _open(name: str) -> _Device:
    """The device, which all modules share. It keeps what is freed for the next call: CUDA takes longer to give a large buffer than
    small kernels take to fill it."""
    rt = runtime()
    if name.startswith("cuda"):
        # What is allocated in the order of a stream cannot be given away as DLPack.
        rt.flags.parse_flags("--cuda_async_allocations=false")
    before = _threads()
    handle = rt.get_driver(name).create_device_by_uri(name, allocators=["caching"])
    new = sorted(_threads() - before)[:2]  # in the order in which it makes them
    return _Device(handle, tuple(new) if name.startswith("cuda") else ())


def _threads() -> set[int]:
    """Those of this process; none where there is no telling."""
    here = Path("/proc/self/task")
    return {int(t.name) for t in here.iterdir()} if here.is_dir() else set()


def release_memory(device: torch.device) -> None:
    """Gives back what modules on the device keep for their next calls."""
    _open(_name(device)).handle.allocator.trim()


def share_processor(device: torch.device, cpu: int, other: int) -> None:
    """Keeps this thread, which calls modules, and the one of IREE's that starts their work on the GPU on processor `cpu`: neither
    then waits for another processor to wake, which takes some 50 us on a virtual machine. The thread that waits for the GPU is kept
    on `other`. For a process that has these two of `os.sched_getaffinity(0)` to itself. Raises RunError where that cannot be."""
    opened = _open(_name(device))
    if len(opened.threads) < 2:
        raise RunError(f"{_name(device)}: no threads that start its work and wait for it are known")
    try:
        for thread, own in zip((0, *opened.threads), (cpu, cpu, other), strict=True):
            os.sched_setaffinity(thread, {own})
    except (OSError, ValueError) as e:
        raise RunError(f"processors {cpu} and {other}: {one_line(e)}") from e
    opened.shares = True


class TorchModule:
    """A module of `modules.build` on torch's device: the operands of a site to its results, dense tensors all. On CUDA the kernels
    of a module that has a plan beside it are started on torch's current stream, and the results are there in its order; IREE's
    runtime is not needed then. With `launch` False, and for all other modules, it runs them, and a call returns when the results
    are there. Raises RunError for a file that is no module of this device."""

    def __init__(self, vmfb: Path | bytes, device: torch.device, *, launch: bool = True) -> None:
        self.device = device
        plan = read_plan(Path(vmfb)) if launch and device.type == "cuda" and not isinstance(vmfb, bytes) else None
        self.launched = Launched(plan, device) if plan else None
        """What starts the kernels on torch's current stream, where this module does that."""
        if self.launched is None:
            self._load(vmfb)

    def _load(self, vmfb: Path | bytes) -> None:
        rt, name = runtime(), _name(self.device)
        try:
            self._opened = _open(name)
            self._device = self._opened.handle
            instance = rt.VmInstance()
            hal = rt.create_hal_module(instance, self._device)
            data = vmfb if isinstance(vmfb, bytes) else Path(vmfb).read_bytes()
            module = rt.VmModule.copy_buffer(instance, data)
            self._context = rt.VmContext(instance, modules=[hal, module])
            self._function, self._into, self._workspace = map(module.lookup_function, (FUNCTION, INTO, WORKSPACE))
        except Exception as e:  # the bindings raise whatever their C++ throws
            shown = "the module" if isinstance(vmfb, bytes) else vmfb
            raise RunError(f"{shown}: cannot be loaded on {name}: {one_line(e)}") from e
        self._list, self._view, self._fence = rt.VmVariantList, rt.HalBufferView, rt.HalFence

    def __call__(self, *tensors: torch.Tensor) -> list[torch.Tensor]:
        if self.launched is not None:
            return self._launch(self.launched, tensors)
        inputs = self._list(len(tensors))
        for x in tensors:
            inputs.push_ref(self._view_of(x.contiguous()))
        outputs = self._invoke(self._function, inputs, tensors)
        made = []
        for i in range(len(outputs)):
            view = outputs.get_as_object(i, self._view)
            capsule = self._device.create_dlpack_capsule(view, _DLPACK[self.device.type], self.device.index or 0)
            made.append(torch.utils.dlpack.from_dlpack(capsule))
        return made

    def _launch(self, launched: Launched, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        results = launched.results()
        try:
            launched.bind([x.contiguous() for x in tensors], results)()
        except ValueError as e:
            raise RunError(f"the module failed on {e}") from e
        return results

    def bind(self, operands: Sequence[torch.Tensor], results: Sequence[torch.Tensor]) -> Callable[[], None]:
        """A call that reads these operands each time, and writes to these results: what it costs to hand tensors over is paid
        once. All must be contiguous, else ValueError is raised."""
        if self.launched is not None:
            return self.launched.bind(operands, results)
        if not all(x.is_contiguous() for x in (*operands, *results)):
            raise ValueError("operands and results that are bound must be contiguous")
        sizes = self._list(4)
        self._context.invoke(self._workspace, self._list(0), sizes)
        bytes_ = [sizes.get_variant(i) for i in range(len(sizes))]
        workspace = [torch.empty(n, dtype=torch.uint8, device=self.device) for n in bytes_]
        tensors = (*operands, *results, *workspace)
        views = [self._view_of(x) for x in tensors]
        given = [*views[: len(operands)], *(view.get_buffer() for view in views[len(operands) :])]
        calls, start, done = count(1), self._fence(0), self._device.create_semaphore(0)
        order = behind_torch(self.device) if self.device.type == "cuda" else None

        def call() -> None:
            if order is not None:
                order()
            nth = next(calls)
            inputs = self._list(len(given) + 2)
            # The module keeps the fence of its last call: each has one of its own.
            for x in (*given, start, self._fence.create_at(done, nth)):
                inputs.push_ref(x)
            self._start(self._into, inputs, tensors)
            self._wait(done, nth)

        return call

    def _wait(self, done: Any, nth: int) -> None:
        """Returns when the semaphore has reached this value. Raises RunError."""
        try:
            if self.device.type == "cuda":
                # Asked again and again, as PyTorch does: a processor that sleeps meanwhile takes some 50 us to wake.
                while done.query() < nth:
                    if self._opened.shares:
                        os.sched_yield()
            else:
                done.wait(nth)
        except Exception as e:  # the bindings raise whatever their C++ throws
            raise RunError(f"the module failed: {one_line(e)}") from e

    def _view_of(self, x: torch.Tensor) -> Any:
        return self._device.from_dlpack_capsule(x.__dlpack__())

    def _invoke(self, function: Any, inputs: Any, tensors: Sequence[torch.Tensor]) -> Any:
        """The list of results, which are there; `tensors` are what `inputs` are of, for a message. Raises RunError."""
        if self.device.type == "cuda":  # the module has streams of its own; those of exchanges go on
            torch.cuda.current_stream(self.device).synchronize()
        return self._start(function, inputs, tensors)

    def _start(self, function: Any, inputs: Any, tensors: Sequence[torch.Tensor]) -> Any:
        outputs = self._list(4)
        try:
            self._context.invoke(function, inputs, outputs)
        except Exception as e:  # the bindings raise whatever their C++ throws
            given = ", ".join("x".join(map(str, x.shape)) for x in tensors)
            raise RunError(f"the module failed on operands {given}: {one_line(e)}") from e
        return outputs

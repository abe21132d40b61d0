"""A module's kernels started on torch's current stream, by CUDA's driver: a call returns before they have run, and a CUDA graph may
capture it. IREE's runtime has streams of its own, and starts what it does on a thread that has to wake first."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from onnx_fa.distributed.order import check_driver
from onnx_fa.errors import RunError, one_line
from onnx_fa.kernels.mlir.launches import Code, Launch, Plan, plan_file, plan_of_json

_TYPES = {
    "f16": torch.float16,
    "bf16": torch.bfloat16,
    "f32": torch.float32,
    "bool": torch.bool,
    "i8": torch.int8,
    "u8": torch.uint8,
    "i4": torch.uint8,  # two to a byte
    "u4": torch.uint8,
    "i32": torch.int32,
    "i64": torch.int64,
}
_MAX_SHARED, _MAX_SHARED_UNASKED = 8, 48 << 10
"""CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES; a kernel that needs more than the second has to ask for it."""


def read_plan(vmfb: Path) -> Plan | None:
    """The plan beside a module; None where there is none. Raises RunError for a file that is none."""
    file = plan_file(vmfb)
    if not file.is_file():
        return None
    try:
        return plan_of_json(file.read_text())
    except (OSError, ValueError, KeyError, TypeError) as e:
        raise RunError(f"{file}: no plan of a module: {one_line(e)}; build the module again") from e


class Launched:
    """The kernels of a plan on a device. Raises RunError where the driver refuses them."""

    def __init__(self, plan: Plan, device: torch.device, driver: Any = None) -> None:
        self.plan, self.device = plan, device
        self._driver = ctypes.CDLL("libcuda.so.1") if driver is None else driver
        major, _ = torch.cuda.get_device_capability(device)
        with torch.cuda.device(device):
            torch.cuda.current_stream().synchronize()  # makes the context, where torch did nothing yet
            self._kernels = [self._load(launch, launch.code_of(major)) for launch in plan.launches]

    def results(self) -> list[torch.Tensor]:
        """New tensors for the results."""
        return [torch.empty(shape, dtype=_TYPES[dtype], device=self.device) for shape, dtype in self.plan.results]

    def bind(self, operands: Sequence[torch.Tensor], results: Sequence[torch.Tensor]) -> Callable[[], None]:
        """A call that starts the kernels on torch's current stream. It keeps the tensors, and must not run on two streams at a
        time. Raises ValueError for other shapes or types than the module's, and for tensors that are not contiguous."""
        wanted = (*self.plan.operands, *self.plan.results)
        tensors = (*operands, *results)
        if len(tensors) != len(wanted):
            raise ValueError(f"{len(tensors)} operands and results, and not {len(wanted)}")
        for n, (x, (shape, dtype)) in enumerate(zip(tensors, wanted, strict=True)):
            if tuple(x.shape) != shape or x.dtype != _TYPES[dtype] or not x.is_contiguous() or x.device != self.device:
                what = f"operand {n}" if n < len(operands) else f"result {n - len(operands)}"
                have = f"{x.dtype} {tuple(x.shape)} on {x.device}{'' if x.is_contiguous() else ', not contiguous'}"
                raise ValueError(f"{what}: {have}, and not a contiguous {_TYPES[dtype]} {shape} on {self.device}")
        counters = torch.zeros(self.plan.counters, dtype=torch.uint8, device=self.device)
        workspace = [torch.empty(n, dtype=torch.uint8, device=self.device) for n in self.plan.workspace]
        buffers = (*tensors, counters, *workspace)
        kernels = zip(self.plan.launches, self._kernels, strict=True)
        starts = [
            _Start(self._driver, function, launch, code, [buffers[n] for n in launch.arguments])
            for launch, (code, function) in kernels
        ]

        def call() -> None:
            stream = ctypes.c_void_p(torch.cuda.current_stream(self.device).cuda_stream)
            for start in starts:
                start(stream)

        return call

    def _load(self, launch: Launch, code: Code) -> tuple[Code, ctypes.c_void_p]:
        module, function = ctypes.c_void_p(), ctypes.c_void_p()
        text = code.text.encode() + b"\0"
        check_driver(self._driver.cuModuleLoadData(ctypes.byref(module), text), f"cuModuleLoadData of {launch.entry}")
        found = self._driver.cuModuleGetFunction(ctypes.byref(function), module, launch.entry.encode())
        check_driver(found, f"cuModuleGetFunction of {launch.entry}")
        if code.shared > _MAX_SHARED_UNASKED:
            asked = self._driver.cuFuncSetAttribute(function, _MAX_SHARED, code.shared)
            check_driver(asked, f"cuFuncSetAttribute of {launch.entry}")
        return code, function


class _Start:
    """Starts a kernel on a stream. What the driver is given are addresses, of numbers in `pointers` of what is in `tensors`: both
    stay as long as this."""

    def __init__(
        self, driver: Any, function: ctypes.c_void_p, launch: Launch, code: Code, tensors: Sequence[torch.Tensor]
    ) -> None:
        self.driver, self.function, self.entry, self.code, self.tensors = driver, function, launch.entry, code, tensors
        self.pointers = [ctypes.c_void_p(x.data_ptr()) for x in tensors]
        self.arguments = (ctypes.c_void_p * len(tensors))(*(ctypes.addressof(x) for x in self.pointers))

    def __call__(self, stream: ctypes.c_void_p) -> None:
        (x, y), code = self.code.workgroups, self.code
        grid, block = (x, y, 1), (code.threads, 1, 1)
        done = self.driver.cuLaunchKernel(self.function, *grid, *block, code.shared, stream, self.arguments, None)
        check_driver(done, f"cuLaunchKernel of {self.entry}")

"""What orders a module's work behind torch's on a GPU without the caller waiting for torch's."""

from __future__ import annotations

import ctypes
from collections.abc import Callable

import torch

from onnx_fa.errors import RunError


def behind_torch(device: torch.device) -> Callable[[], None]:
    """A call, after which what any stream of the device gets begins when torch's current stream has done what it has by then. The
    stream of IREE's runtime is not known outside it: its whole context waits. Drivers before 12.5 cannot, and there the call itself
    waits. Raises RunError."""
    driver = ctypes.CDLL("libcuda.so.1")
    if not hasattr(driver, "cuCtxWaitEvent"):
        return lambda: torch.cuda.current_stream(device).synchronize()
    context, event = ctypes.c_void_p(), torch.cuda.Event()  # type: ignore[no-untyped-call]
    with torch.cuda.device(device):
        check_driver(driver.cuCtxGetCurrent(ctypes.byref(context)), "cuCtxGetCurrent")

    def order() -> None:
        event.record(torch.cuda.current_stream(device))
        check_driver(driver.cuCtxWaitEvent(context, ctypes.c_void_p(event.cuda_event)), "cuCtxWaitEvent")

    return order


def check_driver(code: int, name: str) -> None:
    """Raises RunError where a call of CUDA's driver does not return 0."""
    if code:
        raise RunError(f"CUDA's driver: {name} fails with {code}")

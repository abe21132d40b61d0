"""Buffers of a device that outlive a call: a caller passes parts of them to one call after the other."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from onnx_fa.iree.drivers import is_on_host, require_device, runtime
from onnx_fa.spec.dtypes import NUMPY

_ELEMENTS = {
    "f64": "FLOAT_64",
    "f32": "FLOAT_32",
    "f16": "FLOAT_16",
    "bf16": "BFLOAT_16",
    "i64": "SINT_64",
    "i32": "SINT_32",
    "i8": "SINT_8",
    "u8": "SINT_8",
    "bool": "BOOL_8",
}
"""The runtime's names of element types; its programs have integers without a sign."""


class Device:
    """A device of IREE's runtime, by the name that iree-run-module takes. Raises TargetError where there is none."""

    def __init__(self, name: str) -> None:
        require_device(name)
        self._rt = runtime()
        self.name = name
        self._device = self._rt.get_device(name)

    def allocate(self, shape: tuple[int, ...], dtype: str) -> Any:
        """A buffer for so many elements, of no known content."""
        kind = self._rt.MemoryType.DEVICE_LOCAL
        use = self._rt.BufferUsage.DEFAULT
        if is_on_host(self.name):
            kind, use = kind | self._rt.MemoryType.HOST_VISIBLE, use | self._rt.BufferUsage.MAPPING
        size = math.prod(shape) * np.dtype(NUMPY[dtype]).itemsize
        return self._device.allocator.allocate_buffer(kind, use, size)

    def allocated(self) -> int:
        """Bytes that were taken from the device so far, freed ones too."""
        statistics = self._device.allocator.statistics
        return int(statistics["device_bytes_allocated"] + statistics["host_bytes_allocated"])

    def upload(self, array: NDArray[Any]) -> Any:
        """A buffer that holds the array."""
        return self._rt.asdevicearray(self._device, array)._buffer_view.get_buffer()

    def view(self, buffer: Any, shape: tuple[int, ...], dtype: str) -> Any:
        """The beginning of a buffer as an array of a shape."""
        element = getattr(self._rt.HalElementType, _ELEMENTS[dtype])
        return self._rt.DeviceArray(self._device, self._rt.HalBufferView(buffer, shape, element))

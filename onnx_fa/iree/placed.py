"""Kernels on one of several devices of a program: their operands are moved there, and their results to the first device."""

from __future__ import annotations

import re
from collections.abc import Sequence

from onnx_fa.kernels.mlir.entry import KernelEntry, listed_types
from onnx_fa.kernels.mlir.kernel import Kernel
from onnx_fa.kernels.mlir.text import element_type
from onnx_fa.spec.target import device_name


def placed_name(kernel: Kernel, device: int) -> str:
    """What the function is called that runs a kernel on a device."""
    return f"{kernel.name}_on_{device_name(device)}"


def placed_call(kernel: Kernel, device: int) -> str:
    """That function, which takes and returns what the kernel's own does."""
    spec = kernel.spec
    entry = KernelEntry(spec, placed_name(kernel, device))
    t = entry.t
    for symbol in spec.symbols:
        entry.measure(symbol)

    def moved(value: str, shape: Sequence[int | str], dtype: str, to: int) -> str:
        type_ = entry.typed(tuple(shape), element_type(dtype))
        return t.let(f"flow.tensor.transfer {value} : {type_} to #hal.device.promise<@{device_name(to)}>")

    operands = zip(entry.names, spec.operand_shapes, spec.operand_dtypes, strict=True)
    values = [moved(*operand, device) for operand in operands]
    types = [entry.typed(shape, element_type(dtype)).partition("{")[0] for shape, dtype in spec.results]
    call = f"util.call @{kernel.name}({', '.join(values)}) : ({', '.join(entry.types)}) -> {listed_types(types)}"
    made = t.several(call, len(types))
    results = [moved(x, shape, dtype, 0) for x, (shape, dtype) in zip(made, spec.results, strict=True)]
    return "\n".join(entry.lines(results)) + "\n"


_PLACE = re.compile(r"on\(#hal\.device\.affinity<@(\w+)>\)|#hal\.device\.affinity<@(\w+)>")
_RUNS = re.compile(r"stream\.cmd\.dispatch \{?@([\w$.]+)")


def devices_of(lines: Sequence[str]) -> dict[str, set[str]]:
    """The devices that each executable is dispatched on, from the IR of the stream phase."""
    found: dict[str, set[str]] = {}
    device = ""
    for line in lines:
        if "stream.cmd.execute" in line or "stream.async.execute" in line:
            place = _PLACE.search(line)
            device = (place[1] or place[2]) if place else ""
        run = _RUNS.search(line)
        if run:
            found.setdefault(run[1], set()).add(device)
    return found

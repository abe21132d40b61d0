"""Running compiled modules: in this process, and in a child for times and peak memory."""

from __future__ import annotations

import json
import os
import re
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from onnx_fa import processes as limits
from onnx_fa.errors import MissingDependencyError, RunError, one_line
from onnx_fa.huge_pages import huge_pages_environment
from onnx_fa.iree.archives import SCOPE, archive_of, parameter_flags
from onnx_fa.iree.drivers import WORKERS, asked_device, is_on_host, preferred_device, runtime
from onnx_fa.iree.unsigned_results import as_told, unsigned_places
from onnx_fa.kept_memory import keep_freed_memory, kept_memory_environment
from onnx_fa.scheduling import as_batch_job

Array = NDArray[Any]


def run(
    module: str | os.PathLike[str],
    *inputs: Array,
    device: str | None = None,
    parameters: Mapping[str, str | os.PathLike[str]] | None = None,
) -> list[Array]:
    """One call of a compiled module (.vmfb) with NumPy arrays in the model's order: its results.

    `device` is a driver of IREE's runtime: "local-task" for CPUs, "local-sync" for a CPU in the thread that calls, "cuda", "hip",
    ...; of a module for several devices, as many, with commas between. Without it, it is the CPU's that suits the module
    (`iree/caller_thread.py`). Who calls more than once uses `load_module`.
    `parameters` are archives of weights (.irpa) by their scopes; without them it is the one that `compile_model` wrote beside the
    module.
    Raises RunError for a file that is no module, and for inputs of another number, shape or type than the module's.
    """
    return load_module(Path(module), device, parameters=parameters)(*inputs)


def load_module(
    vmfb: str | os.PathLike[str] | bytes,
    device: str | None = None,
    function: str | None = None,
    parameters: Mapping[str, str | os.PathLike[str]] | None = None,
    usual: str = WORKERS,
) -> Callable[..., list[Array]]:
    """A callable that takes NumPy arrays in the function's argument order and returns its results as a list.

    `function` is needed only when the module exports more than one; `device` and `parameters` as for `run`, with `usual` for the
    driver where neither the caller nor the module names one. Raises RunError when the module cannot be loaded or a call fails.
    """
    source = vmfb if isinstance(vmfb, bytes) else Path(vmfb)
    data = _bytes_of(source)
    device = device or preferred_device(source, usual, function, data)
    invoke = bind_module(source, device, function, parameters, None, data)

    def call(*arrays: Array) -> list[Array]:
        try:
            results = [np.asarray(r.to_host()) for r in invoke(*arrays)]
        except Exception as e:  # the bindings raise whatever their C++ throws, and KeyError for types that NumPy lacks
            raise RunError(f"{invoke.name}: {_call_problem(e, arrays)}") from e
        if invoke.unsigned is None:
            return results
        return [as_told(r, unsigned=i in invoke.unsigned) for i, r in enumerate(results)]

    return call


@dataclass(frozen=True)
class Bound:
    """A function of a loaded module. Called with arrays of NumPy or of the device, it returns arrays of the device; what the
    bindings raise passes through."""

    name: str
    invoke: Callable[..., Any] = field(repr=False)
    on_host: bool
    unsigned: frozenset[int] | None = None
    """The places of results that are unsigned integers, which the device may have as signed ones; None where nobody says."""

    def __call__(self, *arrays: Any) -> list[Any]:
        # The bindings know numbers of NumPy, but none that is a bool.
        taken = [np.asarray(x) if isinstance(x, np.generic) else x for x in arrays]
        with as_batch_job() if self.on_host else nullcontext():
            result = self.invoke(*taken)
        return list(result) if isinstance(result, (list, tuple)) else [result]


def bind_module(
    vmfb: Path | bytes,
    device: str = "local-task",
    function: str | None = None,
    parameters: Mapping[str, str | os.PathLike[str]] | None = None,
    opened: dict[tuple[int, int], Any] | None = None,
    data: bytes | None = None,
) -> Bound:
    """As `load_module`, for results that stay on the device. Modules of one device share it. Modules that are bound with the same
    `opened`, empty at first, share the weights of archives that are one file. `data`: what is in the file, where that has been
    read. Raises RunError."""
    rt = runtime()
    name = _name_of(vmfb)
    data = _bytes_of(vmfb) if data is None else data
    if is_on_host(device):
        keep_freed_memory()
    try:
        config = _config(rt, device)
        context = rt.SystemContext(config=config)
        module = _read_module(rt, context, data, name)
        if archives := _archives(vmfb, parameters):
            context.add_vm_module(_parameter_module(rt, context, archives, {} if opened is None else opened))
        context.add_vm_module(module)
    except RunError:
        raise
    except OSError as e:
        raise RunError(f"{name}: cannot be read: {e.strerror}") from e
    except Exception as e:  # the bindings raise whatever their C++ throws
        raise RunError(f"the module cannot be loaded on {device}: {_load_problem(e, name)}") from e
    names = [n for n in module.function_names if not n.startswith("__")]
    if function is None:
        public = [n for n in names if not n.endswith("$async")]
        if len(public) != 1:
            raise RunError(f"the module exports {', '.join(public) or 'no function'}: say which to call")
        function = public[0]
    elif function not in names:
        raise RunError(f"the module has no function {function!r}, only {', '.join(names)}")
    unsigned = unsigned_places(module.lookup_function(function).reflection)
    return Bound(function, context.modules[module.name][function], is_on_host(device), unsigned)


def _name_of(vmfb: Path | bytes) -> str:
    return "the module" if isinstance(vmfb, bytes) else str(vmfb)


def _bytes_of(vmfb: Path | bytes) -> bytes:
    """Raises RunError for a file that cannot be read."""
    try:
        return vmfb if isinstance(vmfb, bytes) else Path(vmfb).read_bytes()
    except OSError as e:
        raise RunError(f"{_name_of(vmfb)}: cannot be read: {e.strerror}") from e


def _config(rt: Any, names: str) -> Any:
    """The runtime with a device, or with several, whose names stand between commas."""
    first, *others = names.split(",")
    config = rt.Config(first)
    if others:
        # The runtime keeps devices by their names: another of the same name has to be made anew.
        devices = [config.device, *(rt.get_device(name, cache=False) for name in others)]
        config.default_vm_modules = (rt.create_hal_module(config.vm_instance, devices=devices),)
    return config


def _read_module(rt: Any, context: Any, data: bytes, name: str) -> Any:
    """Raises RunError for data that are no module."""
    try:
        return rt.VmModule.copy_buffer(context.instance, data)
    except ValueError as e:
        reason = (
            "" if "/archive.c:" in str(e) else f": {one_line(e)}"
        )  # of what it cannot read the runtime tells only offsets
        raise RunError(f"{name}: not an IREE module, or a truncated one (`onnx-fa compile` writes one){reason}") from e


def _archives(
    vmfb: Path | bytes, parameters: Mapping[str, str | os.PathLike[str]] | None
) -> Mapping[str, str | os.PathLike[str]]:
    """Archives by their scopes: what the caller says, else what lies beside the module."""
    if parameters is not None or isinstance(vmfb, bytes):
        return parameters or {}
    archive = archive_of(vmfb)
    return {SCOPE: archive} if archive.is_file() else {}


def _parameter_module(
    rt: Any, context: Any, archives: Mapping[str, str | os.PathLike[str]], opened: dict[tuple[int, int], Any]
) -> Any:
    """What a module takes its weights from. Raises RunError for a file that is no archive."""
    providers = []
    for scope, path in archives.items():
        if not Path(path).is_file():
            raise RunError(f"{path}: no such file: there should be an archive of weights")
        status = os.stat(path)
        index = opened.get(file := (status.st_dev, status.st_ino))
        if index is None:
            index = rt.ParameterIndex()
            try:
                index.load(os.fspath(path))
            except Exception as e:  # the bindings raise whatever their C++ throws
                raise RunError(f"{path}: not an archive of weights, or a truncated one: {one_line(e)}") from e
            opened[file] = index
        providers.append(index.create_provider(scope=scope))
    return rt.create_io_parameters_module(context.instance, *providers)


_NO_WEIGHTS = re.compile(
    r"no provider registered|io_parameters[^;]* not (?:found|registered|available)|'io_parameters'"
)
_NO_DEVICE = re.compile(r"HAL device `device_(\d+)` not found")
_OTHER_WEIGHTS = re.compile(r"parameter `([^`]*)` range out of bounds|no parameter found in index with key '([^']*)'")


def _load_problem(error: Exception, name: str) -> str:
    """Why a module was not loaded: in own words where its weights are not there."""
    text = str(error)
    if found := _OTHER_WEIGHTS.search(text):
        return (
            f"its weight {found[1] or found[2]!r} is not in the archive, or of another size: this is another module's"
        )
    if found := _NO_DEVICE.search(text):
        return f"it was compiled for {int(found[1]) + 1} devices or more: give --device once for each of them"
    if _NO_WEIGHTS.search(text):
        return f"its weights are missing: they lie in the .irpa file that was written with {name}"
    return one_line(error)


_COUNT = re.compile(r"expected (\d+) arguments but passed (\d+)")
_SHAPE = re.compile(r"expected shape `([^`]*)`, actual shape `([^`]*)`")
_TYPE = re.compile(r"element type mismatch; expected (\w+) \S+ but have (\w+)")


def _call_problem(error: Exception, arrays: Sequence[Array]) -> str:
    """Why a call failed: in own words where the inputs do not fit, which the runtime says without their shapes."""
    for i, x in enumerate(arrays):
        if not (hasattr(x, "shape") and hasattr(x, "dtype")):
            return f"input {i} is a {type(x).__name__}; the module takes arrays, one after the other"
    text = str(error)
    given = "; given: " + (", ".join("x".join(map(str, (*a.shape, a.dtype))) for a in arrays) or "none")
    if found := _COUNT.search(text):
        return f"the module takes {found[1]} inputs, not {found[2]}{given}"
    if found := _SHAPE.search(text):
        return f"an input has the shape {found[2] or 'of a scalar'}, and the module takes {found[1]} there{given}"
    if found := _TYPE.search(text):
        return f"an input is of type {found[2]}, and the module takes {found[1]} there{given}"
    return one_line(error)


def tool_path(name: str) -> str:
    """Path of a program of the runtime wheel itself, not its Python wrapper: the wrapper would be measured too."""
    try:
        from iree import _runtime_libs
    except ImportError as e:
        raise MissingDependencyError("the IREE runtime is not installed: pip install iree-base-runtime") from e
    return str(Path(next(iter(_runtime_libs.__path__))) / name)


BUFFERS_KEPT = {"cuda": ("--device_allocator=caching", "--cuda_async_allocations=false")}
"""Flags by driver, with which the runtime keeps freed buffers for the next call: on CUDA, taking large ones anew costs more than
small kernels do."""


@dataclass(frozen=True)
class Samples:
    """Raw wall-clock times of one call each, in milliseconds, and the child's peak resident size."""

    ms: tuple[float, ...]
    peak_bytes: int

    @property
    def median(self) -> float:
        return float(np.median(self.ms))


def _module_flags(
    folder: Path, vmfb: Path, inputs: Sequence[Array | Path], function: str, device: str, threads: int | None
) -> list[str]:
    flags = [f"--module={vmfb}", *parameter_flags(vmfb), f"--device={device}", f"--function={function}"]
    if threads is not None:
        flags.append(f"--task_topology_max_group_count={threads}")
    for i, array in enumerate(inputs):
        path = array if isinstance(array, Path) else folder / f"{i}.npy"
        if not isinstance(array, Path):
            np.save(path, array)
        flags.append(f"--input=@{path}")
    return flags


def benchmark_module(
    vmfb: Path,
    inputs: Sequence[Array | Path],
    *,
    function: str = "main_graph",
    device: str = "local-task",
    repetitions: int = 10,
    threads: int | None = None,
    each: int = 1,
    untimed: int = 1,
    extra: Sequence[str] = (),
    timeout_s: float = 600,
    memory_bytes: int = 16 << 30,
) -> Samples:
    """Times `repetitions` calls with iree-benchmark-module, as the lines that `compile` prints do, after `untimed` others. A sample
    may be the mean of `each` calls in a row. Inputs are arrays or .npy files. Raises RunError."""
    with tempfile.TemporaryDirectory(prefix="onnx_fa-") as tmp:
        out = Path(tmp) / "out.json"
        command = [
            tool_path("iree-benchmark-module"),
            *_module_flags(Path(tmp), vmfb, inputs, function, device, threads),
            f"--benchmark_repetitions={repetitions + untimed}",
            f"--benchmark_min_time={each}x",
            f"--benchmark_out={out}",
            "--benchmark_out_format=json",
            *BUFFERS_KEPT.get(device.partition(":")[0], ()),
            *extra,
        ]
        done = run_tool(command, timeout_s, memory_bytes, kept_memory_environment(huge_pages_environment()))
        rows = json.loads(out.read_text())["benchmarks"]
    to_ms = {"ns": 1e-6, "us": 1e-3, "ms": 1.0, "s": 1e3}
    samples = [r["real_time"] * to_ms[r["time_unit"]] for r in rows if r.get("run_type") == "iteration"]
    return Samples(tuple(samples[untimed:]), done.peak_bytes)


def function_of(vmfb: Path) -> str:
    """The function that a module of one model exports. Raises RunError."""
    return exported_by(vmfb)[0]


def exported_by(vmfb: Path, device: str = WORKERS) -> tuple[str, str]:
    """The function that a module of one model exports, and the driver that it asks for, as `preferred_device` would say; the file
    is read once. Raises RunError."""
    rt = runtime()
    module = rt.VmModule.copy_buffer(rt.VmInstance(), vmfb.read_bytes())
    names = [n for n in module.function_names if not n.startswith("__") and not n.endswith("$async")]
    if len(names) != 1:
        raise RunError(f"the module exports {', '.join(names) or 'no function'}, not one")
    return str(names[0]), asked_device(module, device, names[0])


def run_module(
    vmfb: Path,
    inputs: Sequence[Array | Path],
    outputs: int,
    *,
    function: str = "main_graph",
    device: str = "local-task",
    threads: int | None = None,
    as_numbers: np.dtype[Any] | None = None,
    timeout_s: float = 600,
    memory_bytes: int = 16 << 30,
) -> tuple[list[Array], int]:
    """One call in a child process: its `outputs` results and its peak resident size in bytes; on a GPU, the most bytes it had
    there. With `as_numbers` the results are of that type and flat: .npy has no bf16. Raises RunError."""
    on_host = is_on_host(device)
    with tempfile.TemporaryDirectory(prefix="onnx_fa-") as tmp:
        flags = _module_flags(Path(tmp), vmfb, inputs, function, device, threads)
        results = [Path(tmp) / f"out{i}.{'bin' if as_numbers else 'npy'}" for i in range(outputs)]
        command = [tool_path("iree-run-module"), *flags, *(f"--output=@{r}" for r in results)]
        done = run_tool([*command, *([] if on_host else ["--print_statistics"])], timeout_s, memory_bytes)
        arrays = [np.fromfile(r, as_numbers) if as_numbers else np.load(r) for r in results]
        if on_host:
            return arrays, done.peak_bytes
        peak = re.search(r"DEVICE_LOCAL: +(\d+)B peak", done.stderr + done.stdout)
        if peak is None:
            raise RunError(f"{os.path.basename(command[0])} says nothing of the memory on {device}")
        return arrays, int(peak[1])


def run_tool(
    command: list[str], timeout_s: float, memory_bytes: int, env: Mapping[str, str] | None = None
) -> limits.Finished:
    """Runs a program of the runtime's, as a batch job. Raises RunError with the first line of what it says where it fails."""
    name = os.path.basename(command[0])
    try:
        done = limits.run_limited(command, timeout_s=timeout_s, memory_bytes=memory_bytes, env=env, batch=True)
    except OSError as e:
        raise RunError(f"{command[0]}: cannot be run: {e.strerror}") from e
    if done.ending != "ok":
        last = [line for line in done.stderr.splitlines() if line.strip()]
        raise RunError(f"{name} {done.describe(timeout_s, memory_bytes)}: {last[0][:300] if last else 'no message'}")
    return done

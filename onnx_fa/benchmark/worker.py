"""One timed batch of calls outside IREE, in a process of its own, so that its peak memory is its own.

    python -m onnx_fa.benchmark.worker onnxruntime MODEL.onnx INPUTS THREADS CALLS [OUTPUTS.npz]
    python -m onnx_fa.benchmark.worker torch JOB.json         INPUTS THREADS CALLS [OUTPUTS.npz]
    python -m onnx_fa.benchmark.worker ort-op JOB.json        INPUTS THREADS CALLS [OUTPUTS.npz]
    python -m onnx_fa.benchmark.worker copy BYTES             INPUTS THREADS CALLS [OUTPUTS.npz]

    python -m onnx_fa.benchmark.worker serve

`serve` takes such arguments as JSON lists, one a line, and answers each with a line; a job is prepared once as long as INPUTS stays
the same.

JOB.json has the spec, and how PyTorch is called and on which device (torch_sdpa.py; of a linear site torch_linear.py, with the file
of its weight), or onnxruntime's op (ort_ops.py). INPUTS is an .npz by name, or a folder of NAME.npy. `copy` copies that many bytes,
shared among the threads, and reads no inputs.
Prints JSON: {"ms": [...], "extra_bytes": ..., "how": "..."}; one untimed call is left out of "ms". "extra_bytes" is what that first
call, and what had to be prepared for it, needed beyond inputs and outputs; null where the system cannot tell.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

WARM_S = 0.3
"""Seconds of calls before the timed ones on a GPU, whose clocks rise only then."""


@dataclass(frozen=True)
class Job:
    """What is timed. `prepare` makes the call (models are loaded there); `held_bytes` are masks that were made beforehand;
    `warm_s`: seconds of untimed calls, in which a GPU's clocks rise; `peak` and `start_of_peak` say how memory is looked at, if not
    as this process's resident size."""

    prepare: Callable[[], Callable[[], list[Any]]]
    how: str = ""
    held_bytes: int = 0
    warm_s: float = 0.0
    start_of_peak: Callable[[], int | None] = field(default=lambda: _start_of_peak())
    peak: Callable[[], int | None] = field(default=lambda: _status("VmHWM"))
    shown: Callable[[Any], Any] = field(default=lambda result: result)
    """A result as the spec lays it out, which is not timed."""


def main(argv: Sequence[str]) -> None:
    if list(argv) == ["serve"]:
        serve()
    else:
        print(json.dumps(measure(argv, {})))


def serve() -> None:
    """Answers the jobs of standard input. What a library prints goes to standard error."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    kept: dict[tuple[str, ...], Ready] = {}
    for line in sys.stdin:
        argv = json.loads(line)
        try:
            said = measure(argv, kept)
        except Exception as e:  # whatever a library raises is its result
            said = {"error": f"{type(e).__name__}: {' '.join(str(e).split())[:200]}"}
        answers.write(json.dumps(said) + "\n")
        answers.flush()


@dataclass(frozen=True)
class Ready:
    """A job that was prepared and called once."""

    job: Job
    call: Callable[[], list[Any]]
    results: list[Any]
    extra_bytes: int | None


def _ready(kind: str, what: str, inputs: str, threads: str) -> Ready:
    job = {"onnxruntime": _onnxruntime, "ort-op": _ort_op, "torch": _torch, "copy": _copy}[kind](
        what, inputs, int(threads)
    )
    before = job.start_of_peak()
    call = job.prepare()
    results = call()
    peak = job.peak()
    extra = None
    if before is not None and peak is not None:
        extra = max(0, peak - before - sum(r.nbytes for r in results)) + job.held_bytes
    return Ready(job, call, results, extra)


def measure(argv: Sequence[str], kept: dict[tuple[str, ...], Ready]) -> dict[str, Any]:
    """What is printed of a job. `kept` holds the jobs that are ready."""
    kind, what, inputs, threads, calls, *outputs = argv
    key = (kind, what, inputs, threads)
    if any(k[2] != inputs for k in kept):
        kept.clear()
        if "torch" in sys.modules:
            sys.modules["torch"]._dynamo.reset()  # it compiles a function for so many sizes and no more
    if key not in kept:
        kept[key] = _ready(kind, what, inputs, threads)
    job, call, results, extra = kept[key].job, kept[key].call, kept[key].results, kept[key].extra_bytes
    warm_until = time.monotonic() + job.warm_s
    while time.monotonic() < warm_until:
        call()
    if outputs:
        np.savez(outputs[0], *(job.shown(_array(r)) for r in results))
    ms = []
    for _ in range(int(calls)):
        start = time.perf_counter()
        call()
        ms.append((time.perf_counter() - start) * 1e3)
    return {"ms": ms, "extra_bytes": extra, "how": job.how}


def _array(result: Any) -> Any:
    """A result of PyTorch's as NumPy's, which has no bf16."""
    if not hasattr(result, "cpu"):
        return np.asarray(result)
    return np.asarray((result.float() if str(result.dtype) == "torch.bfloat16" else result).cpu())


def _load(path: str) -> dict[str, Any]:
    if Path(path).is_dir():
        return {p.stem: np.load(p) for p in sorted(Path(path).glob("*.npy"))}
    with np.load(path) as archive:
        return {name: archive[name] for name in archive.files}


def _status(field: str) -> int | None:
    """A field of /proc/self/status in bytes, None where there is none."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{field}:")), None)


def _start_of_peak() -> int | None:
    """Resident bytes now, the system's high-water mark set back to them; None where that cannot be done."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return None
    return _status("VmRSS")


def _onnxruntime(path: str, inputs: str, threads: int) -> Job:
    from onnx import TensorProto, helper

    from onnx_fa.ort_session import ort_session

    arrays = _load(inputs)

    # A first small model, so that the library's own start is not counted.
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, [8, 8]) for n in "xy")
    graph = helper.make_graph([helper.make_node("MatMul", ["x", "x"], ["y"])], "warm", [x], [y])
    warm = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    ort_session(warm, threads=threads).run(None, {"x": np.ones((8, 8), np.float32)})

    def prepare() -> Callable[[], list[Any]]:
        ready = ort_session(path, threads=threads)
        return lambda: list(ready.run(None, arrays))

    return Job(prepare)


def _ort_op(path: str, inputs: str, threads: int) -> Job:
    from onnx_fa.benchmark.ort_ops import op_model, prepare_op
    from onnx_fa.spec.attention import AttentionSpec

    said = json.loads(Path(path).read_text())
    spec = AttentionSpec.from_dict(said["spec"])
    call, shown = prepare_op(said["op"], op_model(said["op"], spec), spec, _load(inputs), threads)
    return Job(lambda: call, shown=shown)


def _torch(path: str, inputs: str, threads: int) -> Job:
    # Compiled code is kept for the next process that times the same case, and compiled here, not in a pool of processes.
    # Headers compiled beforehand would serve one kernel: each case has a folder of its own.
    os.environ |= {
        "TORCHINDUCTOR_CACHE_DIR": str(Path(path).parent / "inductor"),
        "TORCHINDUCTOR_COMPILE_THREADS": "1",
        "TORCHINDUCTOR_CPP_CACHE_PRECOMPILE_HEADERS": "0",
    }
    import torch

    torch.set_num_threads(threads)
    job = json.loads(Path(path).read_text())
    device = job["device"]
    compute, how, held_bytes = (_linear if job["call"] == "linear" else _attention)(path, job, _load(inputs))

    def call() -> list[Any]:
        result = compute()
        if device == "cuda":
            torch.cuda.synchronize()
        return [result]

    x = torch.ones(1, 1, 8, 8, device=device)
    with torch.inference_mode():
        torch.nn.functional.scaled_dot_product_attention(x, x, x)
        (x @ x).softmax(-1)
    if job["call"] == "compile":
        call()  # what the compiler needs is not what a call needs
        _give_memory_back()
    if device == "cpu":
        return Job(lambda: call, how, held_bytes)

    def start_of_peak() -> int:
        torch.cuda.reset_peak_memory_stats()
        return int(torch.cuda.memory_allocated())

    return Job(lambda: call, how, held_bytes, WARM_S, start_of_peak, lambda: int(torch.cuda.max_memory_allocated()))


def _attention(path: str, job: dict[str, Any], arrays: dict[str, Any]) -> tuple[Callable[[], Any], str, int]:
    """The call of an attention, with what it is made, and the bytes of its mask."""
    from onnx_fa.benchmark.torch_sdpa import torch_attention
    from onnx_fa.spec.attention import AttentionSpec

    mask = Path(path).with_suffix(".mask.npy")
    spec = AttentionSpec.from_dict(job["spec"])
    made = torch_attention(spec, arrays, mask, call=job["call"], device=job["device"])
    return made.call, made.how, made.mask_bytes


def _linear(path: str, job: dict[str, Any], arrays: dict[str, Any]) -> tuple[Callable[[], Any], str, int]:
    """The same of a product with the weight in the file that the job names."""
    from onnx_fa.benchmark.torch_linear import torch_linear
    from onnx_fa.spec.linear import LinearSpec

    spec = LinearSpec.from_dict(job["spec"])
    given = arrays | {"w": np.load(job["weight"])}
    made = torch_linear(spec, [given[n] for n in spec.operand_names()], job["device"])
    return made.call, made.how, 0


def _give_memory_back() -> None:
    """Freed memory that the C library keeps goes back to the system (glibc only), so that it is seen when it is needed again."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def _copy(size: str, inputs: str, threads: int) -> Job:
    source = np.ones(int(size), np.uint8)
    target = np.zeros_like(source)
    parts = list(zip(np.array_split(source, threads), np.array_split(target, threads), strict=True))
    pool = ThreadPoolExecutor(threads)

    def call() -> list[Any]:
        for done in [pool.submit(np.copyto, to, of) for of, to in parts]:  # NumPy lets go of the lock while it copies
            done.result()
        return []

    return Job(lambda: call)


if __name__ == "__main__":
    main(sys.argv[1:])

"""One timed batch of calls outside IREE, in a process of its own, so that its peak memory is its own.

`python -m onnx_fa.bench_worker onnxruntime MODEL.onnx INPUTS.npz THREADS CALLS [OUTPUTS.npz]`, or `torch-sdpa
CAUSAL,SCALE` in place of `onnxruntime MODEL.onnx`. Prints JSON: {"ms": [...]}, one untimed call left out.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np


def main(argv: Sequence[str]) -> None:
    kind, what, inputs, threads, calls, *outputs = argv
    with np.load(inputs) as archive:
        arrays = {name: archive[name] for name in archive.files}
    maker = {"onnxruntime": _onnxruntime, "torch-sdpa": _torch}[kind]
    call = maker(what, arrays, int(threads))
    results = call()
    if outputs:
        np.savez(outputs[0], *results)
    ms = []
    for _ in range(int(calls)):
        start = time.perf_counter()
        call()
        ms.append((time.perf_counter() - start) * 1e3)
    print(json.dumps({"ms": ms}))


def _onnxruntime(path: str, arrays: dict[str, Any], threads: int) -> Callable[[], list[Any]]:
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 4
    session = ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    return lambda: list(session.run(None, arrays))


def _torch(what: str, arrays: dict[str, Any], threads: int) -> Callable[[], list[Any]]:
    import torch

    torch.set_num_threads(threads)
    causal, scale = what.split(",")
    q, k, v = (torch.from_numpy(arrays[n]) for n in "qkv")

    def call() -> list[Any]:
        with torch.inference_mode():
            out = torch.nn.functional.scaled_dot_product_attention(
                q, k, v, is_causal=causal == "1", scale=float(scale), enable_gqa=q.shape[1] != k.shape[1]
            )
        return [out.numpy()]

    return call


if __name__ == "__main__":
    main(sys.argv[1:])

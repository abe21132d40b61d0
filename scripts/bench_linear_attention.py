"""Linear attention: this project's kernels against onnxruntime's on a CPU, and against flash-linear-attention's on an NVIDIA GPU.

    python scripts/bench_linear_attention.py cpu FILE.csv           # the operator in onnxruntime, rounds in turns, whole calls
    python scripts/bench_linear_attention.py build FOLDER           # anywhere: modules for sm_80 and newer
    python scripts/bench_linear_attention.py gpu FOLDER FILE.csv    # where the GPU is: torch, fla-core, iree-base-runtime

States of 128 by 128 in f32, the tokens in f32 or bf16. "onnx_fa" are calls of Python's, which copy what they take; of "onnx_fa
kernel" and "onnx_fa loop" a sample is a repetition of iree-benchmark-module, a call of the runtime, and of fla five calls between
two events of CUDA's. Results are held against float64 by the suite (tests/kernels/test_linear_attention.py), and here on the CPU
against onnxruntime's.
"""

from __future__ import annotations

import argparse
import csv
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent.parent))

D, ROUNDS = 128, 9
RULES = {"gated delta": (16, 32), "gated": (16, 16)}
"""By the name of the rule: heads of queries and keys, and states."""
SIZES = ((1, 1), (1, 64), (1, 512), (1, 4096), (8, 4096))
"""Sequences, and tokens of each."""
CUDA = ("--device=cuda", "--device_allocator=caching", "--cuda_async_allocations=false")
Row = tuple[str, str, int, int, int, float]


def model_of(rule: str) -> Any:
    """The operator with free sequences and tokens."""
    from onnx import TensorProto, helper

    heads, states = RULES[rule]
    shapes = {"q": heads * D, "k": heads * D, "v": states * D, "state": 0, "decay": states, "beta": states}
    if rule == "gated":
        del shapes["beta"]
    values = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["B", "T", width] if width else ["B", states, D, D])
        for name, width in shapes.items()
    ]
    node = helper.make_node(
        "LinearAttention",
        list(shapes),
        ["read", "last"],
        domain="com.microsoft",
        q_num_heads=heads,
        kv_num_heads=states,
        update_rule=rule.replace(" ", "_"),
    )
    results = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in node.output]
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(helper.make_graph([node], "g", values, results), opset_imports=opsets, ir_version=10)


def draw(rule: str, B: int, T: int) -> dict[str, np.ndarray[Any, Any]]:
    heads, states = RULES[rule]
    rng = np.random.default_rng(0)
    made = {name: rng.standard_normal((B, T, n * D)) for name, n in (("q", heads), ("k", heads), ("v", states))}
    made["k"] /= np.linalg.norm(made["k"].reshape(B, T, heads, D), axis=-1).repeat(D, -1).reshape(B, T, -1)
    made["state"] = rng.standard_normal((B, states, D, D))
    made["decay"] = -np.abs(rng.standard_normal((B, T, states)))
    if rule != "gated":
        made["beta"] = 1 / (1 + np.exp(-rng.standard_normal((B, T, states))))
    return {name: x.astype(np.float32) for name, x in made.items()}


def time_on_cpu() -> Iterator[Row]:
    """Whole calls in turns, of every size that a CPU is asked for."""
    import tempfile

    import onnx_fa
    from onnx_fa.iree.run import load_module
    from onnx_fa.ort_session import ort_session

    for rule in RULES:
        model = model_of(rule)
        with tempfile.TemporaryDirectory() as folder:
            onnx_fa.compile(model, path := Path(folder) / "m.vmfb")
            ours, theirs = load_module(path), ort_session(model)
            for B, T in SIZES[:-1]:
                feeds = draw(rule, B, T)
                want, have = theirs.run(None, feeds), ours(*feeds.values())
                for a, b in zip(want, have, strict=True):
                    assert np.linalg.norm(a - b) < 5e-6 * np.linalg.norm(a)
                calls = {"onnx_fa": partial(ours, *feeds.values()), "onnxruntime": partial(theirs.run, None, feeds)}
                for n in range(ROUNDS):
                    for who, call in calls.items():
                        begin = time.perf_counter()
                        call()
                        yield rule, who, B, T, n, 1e3 * (time.perf_counter() - begin)
                for n, ms in enumerate(_runtime(path, rule, B, T, ("--device=local-task",))):
                    yield rule, "onnx_fa kernel", B, T, n, ms


def build(folder: Path) -> None:
    """A module of the kernel and one of the loop of dispatches for each rule."""
    from dataclasses import replace

    import onnx_fa
    from onnx_fa.spec.target import parse_target

    folder.mkdir(parents=True, exist_ok=True)
    target = parse_target("cuda-sm_90")
    for rule in RULES:
        for kind, kernels in (("kernel", "auto"), ("loop", "iree")):
            path = folder / f"{rule.replace(' ', '_')}_{kind}.vmfb"
            onnx_fa.compile(model_of(rule), path, replace(target, kernels=kernels))


def time_on_gpu(folder: Path) -> Iterator[Row]:
    for rule in RULES:
        for B, T in SIZES:
            for kind in ("kernel", "loop"):
                if kind == "kernel" or T <= 512:
                    path = folder / f"{rule.replace(' ', '_')}_{kind}.vmfb"
                    for n, ms in enumerate(_runtime(path, rule, B, T, CUDA)):
                        yield rule, f"onnx_fa {kind}", B, T, n, ms
            yield from _fla(rule, B, T)


def _runtime(path: Path, rule: str, B: int, T: int, device: Sequence[str]) -> Iterator[float]:
    """Calls of a module in ms."""
    import iree.runtime

    tool = Path(iree.runtime.__file__).parents[1] / "_runtime_libs" / "iree-benchmark-module"
    tool.chmod(0o755)
    inputs = ["x".join(map(str, x.shape)) + "xf32=0.05" for x in draw(rule, B, T).values()]
    command = [
        str(tool),
        f"--module={path}",
        *device,
        "--function=g",
        *(f"--input={x}" for x in inputs),
        "--benchmark_min_time=0.1s",
        f"--benchmark_repetitions={ROUNDS}",
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True)
    for number, unit in re.findall(r"^BM_\S+real_time\s+([\d.]+) (ms|us)\s", done.stdout, re.M)[:ROUNDS]:
        yield float(number) * (1 if unit == "ms" else 1e-3)


def _fla(rule: str, B: int, T: int) -> Iterator[Row]:
    import torch
    from fla.ops.gated_delta_rule import chunk_gated_delta_rule, fused_recurrent_gated_delta_rule
    from fla.ops.simple_gla import chunk_simple_gla, fused_recurrent_simple_gla

    states = RULES[rule][1]
    delta = rule != "gated"
    ways = {
        "recurrent": fused_recurrent_gated_delta_rule if delta else fused_recurrent_simple_gla,
        "chunk": chunk_gated_delta_rule if delta else chunk_simple_gla,
    }
    for kind in (torch.float32, torch.bfloat16):
        q, k, v = (torch.randn(B, T, states, D, device="cuda", dtype=kind) for _ in range(3))
        k = torch.nn.functional.normalize(k, dim=-1)
        options: dict[str, Any] = {
            "g": -torch.rand(B, T, states, device="cuda"),
            "initial_state": torch.zeros(B, states, D, D, device="cuda"),
            "output_final_state": True,
        }
        if delta:
            options["beta"] = torch.rand(B, T, states, device="cuda", dtype=kind)
        for way, function in ways.items():
            for _ in range(3):
                function(q, k, v, **options)
            for n in range(ROUNDS):
                start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
                start.record()
                for _ in range(5):
                    function(q, k, v, **options)
                end.record()
                torch.cuda.synchronize()
                yield rule, f"fla {way} {str(kind)[6:]}", B, T, n, start.elapsed_time(end) / 5


def write(rows: Iterator[Row], path: Path) -> None:
    """Raw samples in ms, and medians on standard output."""
    found: dict[tuple[str, str, int, int], list[float]] = {}
    with path.open("w", newline="") as out:
        table = csv.writer(out, lineterminator="\n")
        table.writerow(("rule", "contestant", "B", "T", "round", "ms"))
        for row in rows:
            table.writerow((*row[:5], f"{row[5]:.4f}"))
            found.setdefault(row[:4], []).append(row[5])
    for key, times in found.items():
        print(*key, f"{statistics.median(times):.3f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("cpu", "build", "gpu"))
    parser.add_argument("paths", type=Path, nargs="+", help="FILE.csv, or FOLDER, or both")
    args = parser.parse_args()
    if args.what == "build":
        build(args.paths[0])
    else:
        write(time_on_cpu() if args.what == "cpu" else time_on_gpu(args.paths[0]), args.paths[-1])


if __name__ == "__main__":
    main()

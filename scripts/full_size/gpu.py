"""Models of full size on an NVIDIA GPU beside PyTorch, in two steps, so that the compiler and the weights stay elsewhere:

    python scripts/full_size/gpu.py build DIR OUT NAME...      # compiles DIR/NAME.onnx for CUDA; weights are one number each in OUT
    python scripts/full_size/gpu.py run OUT SAMPLES.csv --iree BIN [--seconds N] [--half] [--quick]       # on the GPU: torch, ...

Times do not depend on the weights, so their archives hold one number per tensor, and are small. IREE is timed by
iree-benchmark-module with the flags that `compile` prints (means of its calls), PyTorch by a clock around calls that wait for
the GPU, as it comes (`eager`), by torch.compile, and as one CUDA graph. All have the same sizes: batches of 1 and of 8. Every
sample is a line of SAMPLES.csv. `--half`: of files that `models.py --half` wrote; `--quick`: without torch.compile.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, os.fspath(Path(__file__).parents[1]))
sys.path.insert(0, os.fspath(Path(__file__).parents[2]))

BATCHES = (1, 8)
ROUNDS = 3


def build(folder: Path, out: Path, names: Sequence[str]) -> None:
    """OUT/NAME.vmfb, its archive of single numbers, and NAME.json with the function and the module's inputs."""
    import iree.runtime as rt

    from onnx_fa.iree.compile import compile_model
    from onnx_fa.iree.run import function_of
    from onnx_fa.spec.target import parse_target

    out.mkdir(parents=True, exist_ok=True)
    for name in names:
        start, module = time.monotonic(), out / f"{name}.vmfb"
        compile_model(folder / f"{name}.onnx", module, parse_target("cuda"), parameters="archive")
        archive, given, small = module.with_suffix(".irpa"), rt.ParameterIndex(), rt.ParameterIndex()
        given.load(os.fspath(archive))
        for key, entry in given.items():
            small.add_splat(key, b"\x0a\xd7\x23\x3c" if entry.length % 4 == 0 else b"\x01", entry.length)  # 0.01
        small.create_archive_file(os.fspath(out / f"{name}.small"))
        del given
        shutil.move(out / f"{name}.small", archive)
        (out / f"{name}.json").write_text(json.dumps({"function": function_of(module)}))
        print(name, f"{time.monotonic() - start:.0f} s", flush=True)


def call_iree(iree: Path, out: Path, name: str, inputs: Sequence[str]) -> list[float]:
    """Means of a call, ms, of three repetitions."""
    function = json.loads((out / f"{name}.json").read_text())["function"]
    command = [
        os.fspath(iree / "iree-benchmark-module"),
        f"--module={out / name}.vmfb",
        f"--parameters=model={out / name}.irpa",
        *("--device=cuda", "--device_allocator=caching", "--cuda_async_allocations=false"),
        *(f"--function={function}", "--benchmark_min_time=0.3s", f"--benchmark_repetitions={ROUNDS}"),
        *(f"--input={x}" for x in inputs),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    found = re.findall(r"real_time\s+([\d.]+) (ms|us)", done.stdout)
    return [float(number) / (1000 if unit == "us" else 1) for number, unit in found][:ROUNDS]


def samples_of(call: Callable[[], Any]) -> list[float]:
    """ms of calls that wait for the GPU: medians of twenty, three times."""
    import torch

    for _ in range(4):
        call()
    torch.cuda.synchronize()
    rounds = list[float]()
    for _ in range(ROUNDS):
        times = list[float]()
        for _ in range(20):
            start = time.perf_counter()
            call()
            torch.cuda.synchronize()
            times.append((time.perf_counter() - start) * 1e3)
        rounds.append(statistics.median(times))
    return rounds


def graph_of(call: Callable[[], Any]) -> Callable[[], Any]:
    import torch

    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        for _ in range(3):
            call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    return graph.replay


def run(out: Path, samples: Path, iree: Path, seconds: float, *, half: bool, quick: bool) -> None:
    import torch
    from full_size.models import MODELS

    end, known = time.monotonic() + seconds, {m.name: m for m in MODELS}
    kind, suffix = (torch.float16, "xf16=0.5") if half else (torch.float32, "xf32=0.5")
    with samples.open("w", newline="") as file:
        sheet = csv.writer(file)
        sheet.writerow(["# " + torch.cuda.get_device_name(), f"torch {torch.__version__}"])
        sheet.writerow(["model", "batch", "program", "ms"])
        for name in sorted(path.stem for path in out.glob("*.vmfb")):
            model = known[name]
            torch.manual_seed(0)
            module = model.make().eval().cuda().to(kind)
            for batch in BATCHES:
                shapes = {key: (batch, *shape[1:]) for key, shape in model.inputs.items()}
                described = [
                    "x".join(map(str, s)) + ("xi64=1" if k in model.types else suffix) for k, s in shapes.items()
                ]
                arrays = {
                    k: torch.ones(s, dtype=model.types[k], device="cuda")
                    if k in model.types
                    else torch.full(s, 0.5, dtype=kind, device="cuda")
                    for k, s in shapes.items()
                }

                def call(to: Any = module, arrays: Any = arrays, named: bool = model.named) -> Any:
                    with torch.inference_mode():
                        return to(**arrays) if named else to(*arrays.values())

                programs: dict[str, Callable[[], list[float]]] = {
                    "onnx_fa": lambda name=name, described=described: call_iree(iree, out, name, described),  # type: ignore[misc]
                    "torch, eager": lambda call=call: samples_of(call),  # type: ignore[misc]
                    "torch, CUDA graph": lambda call=call: samples_of(graph_of(call)),  # type: ignore[misc]
                }
                if batch == 1 and not quick:
                    compiled = torch.compile(module)
                    programs["torch.compile"] = lambda call=call, to=compiled: samples_of(lambda: call(to))  # type: ignore[misc]
                row = [name, str(batch)]
                for program, measure in programs.items():
                    if time.monotonic() > end:
                        print("out of time", flush=True)
                        return
                    try:
                        found = measure()
                    except (RuntimeError, subprocess.SubprocessError) as e:
                        print(name, batch, program, str(e).splitlines()[:1], flush=True)
                        continue
                    sheet.writerows([name, batch, program, f"{ms:.4f}"] for ms in found)
                    file.flush()
                    row.append(f"{program} {statistics.median(found):.3f}" if found else f"{program}: none")
                print(*row, flush=True)
            torch._dynamo.reset()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    b = commands.add_parser("build")
    b.add_argument("folder", type=Path)
    b.add_argument("out", type=Path)
    b.add_argument("names", nargs="+")
    r = commands.add_parser("run")
    r.add_argument("out", type=Path)
    r.add_argument("samples", type=Path)
    r.add_argument("--iree", type=Path, required=True)
    r.add_argument("--seconds", type=float, default=1200)
    r.add_argument("--half", action="store_true")
    r.add_argument("--quick", action="store_true")
    args = parser.parse_args()
    if args.command == "build":
        build(args.folder, args.out, args.names)
    else:
        run(args.out, args.samples, args.iree, args.seconds, half=args.half, quick=args.quick)


if __name__ == "__main__":
    main()

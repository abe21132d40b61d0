"""Whole models on an NVIDIA GPU in f16: this project's module against stock IREE's and PyTorch's, eager and compiled.

    python scripts/bench_gpu_models.py build FOLDER     # anywhere, no GPU: exports, compiles both modules, and computes in
                                                        # onnxruntime on the CPU what is right
    python scripts/bench_gpu_models.py run FOLDER OUT --iree BIN    # on the GPU: needs torch, transformers, IREE's programs

Results of IREE are compared with onnxruntime's before anything is timed: largest difference over the largest magnitude, at most
2e-3.
All are timed in turns: IREE by iree-benchmark-module (samples are means of 20 calls, buffers kept), PyTorch by a clock around calls
that wait for the GPU (as IREE's do), and by CUDA events around graphs of 20 calls, which no launches of the host are in. PyTorch's
model has the same config and seed. OUT/models-NAME.csv has every sample.
"""

from __future__ import annotations

import argparse
import csv
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

from bench_gpu import replays

from onnx_fa.iree.run import BUFFERS_KEPT

ALLOWED = 2e-3
ROUNDS = 4
MODELS = ("bert", "gpt")
OURS, STOCK = "onnx_fa", "stock IREE"


def build(folder: Path, name: str) -> None:
    """FOLDER/NAME: ours.vmfb, stock.vmfb, inputs, expected.npz and facts.json."""
    import numpy as np
    import onnx
    import onnxruntime

    from onnx_fa.benchmark.models import compile_stock, stock_import
    from onnx_fa.iree.compile import compile_model
    from onnx_fa.iree.run import function_of
    from onnx_fa.models import build as zoo
    from onnx_fa.models.export import export_module
    from onnx_fa.spec.target import parse_target

    target, out = parse_target("cuda"), folder / name
    out.mkdir(parents=True, exist_ok=True)
    model = zoo.find(name)
    arrays = zoo.inputs(model)
    exported = export_module(zoo.build(model, "sdpa").half(), arrays, "dynamo", 18)
    onnx.save(exported, out / "model.onnx")
    session = onnxruntime.InferenceSession(out / "model.onnx", providers=["CPUExecutionProvider"])
    np.savez_compressed(out / "expected.npz", *session.run(None, arrays))
    for n, x in enumerate(arrays.values()):
        np.save(out / f"input{n}.npy", x)
    done = compile_model(out / "model.onnx", out / "ours.vmfb", target)
    imported = stock_import(out / "model.onnx", out)
    assert isinstance(imported, Path), imported
    compile_stock(imported, target, {}, out / "stock.vmfb")
    facts = {
        "functions": {x: function_of(out / f"{x}.vmfb") for x in ("ours", "stock")},
        "sites": [s.to_dict() for s in done.sites],
        "misses": [m.to_dict() for m in done.misses],
        "versions": " ".join(f"{p} {version(p)}" for p in ("iree-base-compiler", "triton", "torch", "onnxruntime")),
        "shapes": {n: list(x.shape) for n, x in arrays.items()},
    }
    (out / "facts.json").write_text(json.dumps(facts, indent=1))
    print(name, [(s.fused, s.tiles) for s in done.sites], [m.reason for m in done.misses], flush=True)


def run(folder: Path, out: Path, iree: Path, name: str) -> None:
    """Checks, then times in turns."""
    import numpy as np
    import torch

    from onnx_fa.models import build as zoo

    given = folder / name
    facts = json.loads((given / "facts.json").read_text())
    with np.load(given / "expected.npz") as archive:
        expected = [archive[n] for n in archive.files]
    arguments = [f"--input=@{given}/input{n}.npy" for n in range(len(facts["shapes"]))]
    rows: list[tuple[str, str, int, float]] = []
    notes = []
    contestants: dict[str, Callable[[], list[float]]] = {}
    for what, file in ((OURS, "ours"), (STOCK, "stock")):
        command = [
            f"--module={given}/{file}.vmfb",
            "--device=cuda",
            f"--function={facts['functions'][file]}",
            *arguments,
        ]
        off = _error(iree, command, expected)
        notes.append(f"{what}: error {off:.2e}")
        if off <= ALLOWED:
            contestants[what] = partial(_calls, iree, command)
    model = zoo.find(name)
    module = zoo.build(model, "sdpa").half().cuda()
    inputs = [torch.from_numpy(x).cuda() for x in zoo.inputs(model).values()]

    def called(module: Any) -> Callable[[], Any]:
        def call() -> Any:
            with torch.inference_mode():
                return module(*inputs)

        return call

    for what, made in (("torch eager", module), ("torch.compile", torch.compile(module, dynamic=False))):
        call = called(made)
        got = call().cpu().numpy()
        notes.append(f"{what}: error {_largest(got, expected[0]):.2e} (weights of the same seed)")
        contestants[f"{what}, call"] = partial(_clocked, call)
        contestants[f"{what}, graph"] = partial(replays, [call])
    names = list(contestants)
    for n in range(ROUNDS):
        for what in (*names[n:], *names[:n]):
            rows += [(name, what, n, ms) for ms in contestants[what]()]
    driver = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    device = subprocess.run(driver, capture_output=True, text=True, check=True).stdout.strip()
    out.mkdir(parents=True, exist_ok=True)
    with (out / f"models-{name}.csv").open("w", newline="") as file:
        tiles = {k: v for k, v in (facts["sites"][0]["tiles"] or {}).items() if not k.endswith("_80")}
        file.write(f"# {device}, {time.strftime('%Y-%m-%d')}, torch {torch.__version__}; {model}\n")
        file.write(f"# compiled by {facts['versions']}; {len(facts['sites'])} sites, {tiles}\n")
        file.writelines(f"# {note}\n" for note in notes)
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(("model", "what", "round", "ms"))
        writer.writerows((*r[:3], f"{r[3]:.5f}") for r in rows)
    medians = {w: round(statistics.median(r[3] for r in rows if r[1] == w), 4) for w in names}
    print(name, medians, *notes, sep="\n", flush=True)


def _error(iree: Path, command: list[str], expected: list[Any]) -> float:
    import numpy as np

    with tempfile.TemporaryDirectory() as scratch:
        paths = [f"{scratch}/{n}.npy" for n in range(len(expected))]
        subprocess.run(
            [iree / "iree-run-module", *command, *(f"--output=@{p}" for p in paths)],
            check=True,
            capture_output=True,
            timeout=120,
        )
        return max(_largest(np.load(p), x) for p, x in zip(paths, expected, strict=True))


def _largest(got: Any, want: Any) -> float:
    """The largest difference over the largest magnitude."""
    return float(abs(got.astype("f8") - want.astype("f8")).max() / abs(want.astype("f8")).max())


def _calls(iree: Path, command: list[str]) -> list[float]:
    """Milliseconds of whole calls of the IREE runtime, the first ones left out."""
    more = ["--benchmark_format=json", "--benchmark_repetitions=15", "--benchmark_min_time=20x", *BUFFERS_KEPT["cuda"]]
    done = subprocess.run(
        [iree / "iree-benchmark-module", *command, *more], check=True, capture_output=True, text=True, timeout=120
    )
    runs = json.loads(done.stdout[done.stdout.index("{") :])["benchmarks"]
    unit = {"ns": 1e-6, "us": 1e-3, "ms": 1.0, "s": 1e3}
    return [r["real_time"] * unit[r["time_unit"]] for r in runs if r["run_type"] == "iteration"][5:]


def _clocked(call: Callable[[], Any]) -> list[float]:
    """Milliseconds of calls that wait for the GPU, means of 20 as IREE's, the first ones left out."""
    import torch

    samples = []
    for _ in range(15):
        start = time.perf_counter()
        for _ in range(20):
            call()
            torch.cuda.synchronize()
        samples.append((time.perf_counter() - start) * 50)
    return samples[5:]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("step", choices=("build", "run"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("out", type=Path, nargs="?", default=Path("benchmarks/gpu"))
    parser.add_argument("--iree", type=Path, default=Path("."), help="the folder of IREE's programs")
    parser.add_argument("--model", action="append", choices=MODELS, default=[])
    args = parser.parse_args()
    for name in args.model or MODELS:
        if args.step == "build":
            build(args.folder, name)
        else:
            run(args.folder, args.out, args.iree.resolve(), name)


if __name__ == "__main__":
    main()

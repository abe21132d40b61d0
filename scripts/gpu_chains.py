"""Chains of operators, drawn as tests/iree/test_random_chains.py draws them, on a GPU beside onnxruntime.

    python scripts/gpu_chains.py make FOLDER [--layers | --graphs | --parts | --pairs] [--first N] [--count N] [--target cuda-sm_80]
    python scripts/gpu_chains.py check FOLDER [--device cuda]

`make` compiles each and writes it with its inputs and what onnxruntime gives; `--parts`: not chains, but each operator that reads
by places, of each part of a tensor; `--pairs`: two operators in a row. `check` needs NumPy and IREE's runtime alone, so that it
runs where the GPU is: it prints a line for each module that is wrong, fails or ends the process, and how many are right, and exits
with 1 unless all are.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from subprocess import PIPE, run
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

SHAPES = ((5, 8), (3, 3), (16, 131))
"""Of the inputs of pairs."""


def drawn(options: argparse.Namespace) -> Iterator[tuple[str, Any, list[dict[str, Any]]]]:
    """Name, model and inputs of each case."""
    from tests.support import operator_pairs
    from tests.support.part_readers import feeds, model_of, part_readers
    from tests.support.random_chains import draw_chain, draw_graph

    if options.parts:
        yield from ((f"{part}, {reader}", model_of(part, reader), feeds()) for part, reader in part_readers())
    if options.pairs:
        rng = np.random.default_rng(options.first)
        for first, second in operator_pairs.pairs():
            xs = [operator_pairs.draw(first, shape, rng) for shape in SHAPES]
            yield f"{first}, {second}", operator_pairs.model_of(first, second), [{"x": x} for x in xs]
    if options.parts or options.pairs:
        return
    for seed in range(options.first, options.first + options.count):
        if options.graphs:
            yield (f"graph{seed}", *draw_graph(seed))
        else:
            yield (f"{'layers' if options.layers else 'chain'}{seed}", *draw_chain(seed, layers=options.layers))


def make_one(name: str, model: Any, feeds: list[dict[str, Any]], folder: Path, target: str) -> str:
    """Writes a case; what came of it. A wrong number in onnxruntime's eyes is found by `check`."""
    from onnx_fa.errors import CompileError, ModelError
    from onnx_fa.iree.compile import compile_model
    from onnx_fa.spec.target import parse_target
    from tests.support import ort_run

    try:
        wants = [ort_run.run(model, given) for given in feeds]
        compile_model(model, folder / f"{name}.vmfb", parse_target(target))
    except (CompileError, ModelError) as e:
        print(f"{name}: refused: {' '.join(str(e).split())[:200]}", flush=True)
        return "refused"
    arrays = {f"x{i}": given["x"] for i, given in enumerate(feeds)}
    arrays |= {f"y{i}_{k}": want for i, results in enumerate(wants) for k, want in enumerate(results)}
    np.savez(folder / f"{name}.npz", **arrays)
    (folder / f"{name}.txt").write_text(" ".join(n.op_type for n in model.graph.node))
    return "made"


def make(options: argparse.Namespace) -> int:
    options.folder.mkdir(parents=True, exist_ok=True)
    with ProcessPoolExecutor(options.jobs) as pool:
        made = [pool.submit(make_one, *case, options.folder, options.target) for case in drawn(options)]
        print(dict(Counter(m.result() for m in made)))
    return 0


def compare(got: Any, want: Any) -> str:
    """How results differ from onnxruntime's; "" where they do not. IREE gives unsigned numbers as signed ones."""
    if got.shape != want.shape:
        return f"has shape {got.shape}, not {want.shape}"
    if want.dtype.kind == "u":
        got = got.view(want.dtype)
    bound = 2e-2 if want.dtype == np.float16 else 1e-3
    wrong = ~np.isclose(got.astype(float), want.astype(float), rtol=bound, atol=bound, equal_nan=True)
    return f"{wrong.sum()} of {wrong.size} numbers are wrong" if wrong.any() else ""


def check_some(options: argparse.Namespace) -> int:
    """Runs the cases of one process."""
    import iree.runtime as rt

    config = rt.Config(options.device)
    for path in options.paths:
        print(f"begins {path.stem}", flush=True)
        arrays, about = np.load(path), path.with_suffix(".txt").read_text()
        found = ""
        try:
            context = rt.SystemContext(config=config)
            context.add_vm_module(rt.VmModule.mmap(config.vm_instance, str(path.with_suffix(".vmfb"))))
            (module,) = (m for n, m in context.modules.items() if n != "hal")
            call = module[next(n for n in module.vm_module.function_names if "$" not in n and not n.startswith("__"))]
            for i in range(sum(name.startswith("x") for name in arrays.files)):
                given = call(arrays[f"x{i}"])
                for k, result in enumerate(given if isinstance(given, tuple) else [given]):
                    found = found or compare(np.asarray(result.to_host()), arrays[f"y{i}_{k}"])
        except Exception as e:  # the bindings raise whatever their C++ throws
            found = f"fails: {' '.join(str(e).split())[:300]}"
        print(f"BAD {path.stem}: {found} ({about})" if found else f"OK {path.stem}", flush=True)
        if found.startswith("fails"):
            return 0  # the device may take nothing more from this process
    return 0


def check(options: argparse.Namespace) -> int:
    """Runs all cases, in another process after one that a case has ended."""
    pending, right, wrong = sorted(options.folder.glob("*.npz")), 0, 0
    while pending:
        own = [sys.executable, __file__, "some", str(options.folder), *map(str, pending)]
        lines = run([*own, "--device", options.device], stdout=PIPE, text=True).stdout.splitlines()
        if not lines:
            sys.exit("no case begins")
        done = [line for line in lines if line.startswith(("OK ", "BAD "))]
        bad = [line for line in done if line.startswith("BAD ")]
        right += len(done) - len(bad)
        if len(done) < len(pending) and ": fails" not in lines[-1]:
            bad.append(f"BAD {pending[len(done)].stem}: ends the process")
            done.append(bad[-1])
        print(*bad, sep="\n", end="\n" * bool(bad), flush=True)
        wrong += len(bad)
        pending = pending[len(done) :]
    print(f"{right} right, {wrong} wrong")
    return int(bool(wrong))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("make", "check", "some"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("paths", nargs="*", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--layers", action="store_true")
    parser.add_argument("--graphs", action="store_true")
    parser.add_argument("--parts", action="store_true")
    parser.add_argument("--pairs", action="store_true")
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--target", default="cuda-sm_80")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--jobs", type=int, default=2)
    options = parser.parse_args()
    return {"make": make, "check": check, "some": check_some}[options.what](options)


if __name__ == "__main__":
    sys.exit(main())

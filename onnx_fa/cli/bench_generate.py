"""`onnx-fa bench MODEL --prompt N --generate N`: a prompt and what comes after it, timed beside onnxruntime."""

from __future__ import annotations

import argparse
import csv
import io
from pathlib import Path
from typing import TYPE_CHECKING

from onnx_fa.cli.generate import note_details, report_of, run_job, speeds
from onnx_fa.cli.outputs import results_prefix, write_json
from onnx_fa.cli.printing import note
from onnx_fa.errors import OnnxFaError
from onnx_fa.files import write_whole

if TYPE_CHECKING:
    import onnx_ir as ir

_ROUNDS = 5
_TOKENS = 1000
"""Random tokens are below this where the model does not tell how many it knows."""


def bench_generation(args: argparse.Namespace) -> int:
    """Writes PREFIX.csv, a row for every call, and PREFIX.json. Raises RunError where the tokens are not onnxruntime's."""
    import numpy as np

    from onnx_fa.generate.compare import Job
    from onnx_fa.generate.layout import find_files
    from onnx_fa.graph import io as models

    if args.prompt < 1 or args.generate < 1:
        raise OnnxFaError("--prompt and --generate go together, and are at least 1")
    prefix = results_prefix(args, "bench", (".csv", ".json"))
    args.target, args.no_compare, args.modules = args.target or "cpu-host", False, None
    known = vocabulary(models.load(find_files(Path(args.model)).step))
    prompt = np.random.default_rng(0).integers(0, known, args.prompt)
    # A first round warms everything up, and is not timed.
    job = Job(tuple(int(t) for t in prompt), args.generate, (args.rounds or _ROUNDS) + 1, args.threads)
    made, told, modules, budget = run_job(args, job)
    made = [c.without_first() for c in made]
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["contestant", "round", "token", "seconds"])
    for c in made:
        writer.writerows((c.kind, *sample) for sample in c.samples)
    write_whole(f"{prefix}.csv", text.getvalue())
    write_json(f"{prefix}.json", report_of(made, modules, budget, job))
    print(speeds(made, args.prompt))
    note(args, told)
    note_details(args, made, modules, budget)
    note(args, f"wrote {prefix}.csv, {prefix}.json")
    return 0


def vocabulary(model: ir.Model) -> int:
    """How many tokens a decoder knows: the last dim of its logits."""
    logits = next((v for v in model.graph.outputs if "logits" in str(v.name)), model.graph.outputs[0])
    size = logits.shape[-1] if logits.shape is not None and len(logits.shape) else None
    return size if isinstance(size, int) else _TOKENS

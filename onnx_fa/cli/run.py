"""`onnx-fa run`: one call of a compiled module."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from onnx_fa.cli.run_inputs import read_inputs
from onnx_fa.errors import OnnxFaError, RunError
from onnx_fa.spec.target import parse_target


def run_run(args: argparse.Namespace) -> None:
    import numpy as np

    from onnx_fa.iree.drivers import preferred_device, require_device
    from onnx_fa.iree.run import load_module

    path = Path(args.module)
    devices = args.device or [preferred_device(path, parse_target(args.target).device)]
    for device in devices:
        require_device(device)
    if args.output and not Path(args.output).parent.is_dir():
        raise OnnxFaError(f"{args.output}: cannot be written: no folder {Path(args.output).parent}")
    arrays = read_inputs(args)
    if not path.is_file():
        raise RunError(f"{path}: no such file")
    outputs = load_module(path, ",".join(devices), parameters=dict(args.parameters) or None)(*arrays)
    if args.output:
        Path(args.output).mkdir(exist_ok=True)
    for n, out in enumerate(outputs):
        finite = np.isfinite(out) if out.dtype.kind == "f" else np.ones(out.shape, bool)
        kept = out[finite].astype(np.float64)
        stats = f" min {kept.min():.6g} mean {kept.mean():.6g} max {kept.max():.6g}" if kept.size else ""
        bad = f", {np.count_nonzero(~finite)} not finite" if not finite.all() else ""
        print(f"output {n}: {'x'.join(map(str, out.shape))}x{out.dtype}{stats}{bad}")
        if args.output:
            staged = Path(args.output) / f".output{n}.tmp.npy"
            np.save(staged, out)
            os.replace(staged, Path(args.output) / f"output{n}.npy")

"""Where the time of a call of real models goes: attention, linear sites, other dispatches, and between them.

Profiles the models of demo.py, as the dynamo exporter writes them, and writes where-time-goes.{csv,json} to build, which git
ignores; with --update to benchmarks, and the table of docs/results/where-time-goes.md from them. A minute or two on two idle cores.
"""

from __future__ import annotations

import argparse
import logging
import sys
from pathlib import Path

from demo import EXPORTS, MODELS
from results_table import PARTS, PARTS_PAGE, fill, parts

from onnx_fa.benchmark.time_parts import HEAD, TimeParts, measure, write
from onnx_fa.errors import OnnxFaError
from onnx_fa.models.export import ExportError, export_path
from onnx_fa.spec.target import parse_target
from onnx_fa.tables import text_table

ROOT = Path(__file__).resolve().parent.parent


def say(message: str) -> None:
    print(message, file=sys.stderr, flush=True)


def one(name: str, calls: int, threads: int) -> TimeParts:
    """The parts of a model. Raises OnnxFaError and ExportError."""
    exporter, opset = EXPORTS[0]
    say(f"{name}: exporting")
    path = export_path(name, exporter, opset)  # type: ignore[arg-type]
    target = parse_target("cpu-host")
    return measure(path, target, calls=calls, threads=threads, name=name, progress=lambda m: say(f"{name}: {m}"))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", default=MODELS, help=f"some of {', '.join(MODELS)} (default: all)")
    parser.add_argument("--calls", type=int, default=20, metavar="N", help="of each model (default: %(default)s)")
    parser.add_argument("--threads", type=int, default=2, metavar="N", help="(default: %(default)s)")
    parser.add_argument("--update", action="store_true", help="write to benchmarks and docs instead of build")
    args = parser.parse_args()
    if args.calls < 1 or args.threads < 1:
        parser.error("--calls and --threads must be at least 1")
    if unknown := [name for name in args.models if name not in MODELS]:
        parser.error(f"no such model: {unknown[0]}")
    if args.update and set(args.models) != set(MODELS):
        parser.error("--update is of all models")
    # The exporters warn about graphs that they fail to fold ("Evaluation failed: ..."); they write these graphs all the same.
    for name in ("onnxscript", "onnx_ir", "torch.onnx"):
        logging.getLogger(name).setLevel(logging.ERROR)
    try:
        found = [one(name, args.calls, args.threads) for name in args.models]
        folder = (ROOT / PARTS).parent if args.update else ROOT / "build"
        folder.mkdir(exist_ok=True)
        written = write(found, folder / Path(PARTS).stem)
    except (OnnxFaError, ExportError) as e:
        say(f"where_time_goes.py: {e}")
        return 1
    if args.update:
        PARTS_PAGE.write_text(fill(PARTS_PAGE.read_text(), "parts", parts()))
        written.append(PARTS_PAGE)
    print(text_table(HEAD, [r.row() for r in found]))
    say("wrote " + ", ".join(str(path.relative_to(ROOT)) for path in written))
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""`python -m tests.campaign --count 100000 --seed 1 --jobs 1 --journal graphs.jsonl [--kind quantised]`, or `--only SEED`."""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from pathlib import Path

import onnx
import onnx.printer

from . import chunks
from .check import FINE
from .draw import draw
from .shrink import outcome_of, shrink
from .sketch import KINDS


def main() -> int:
    parser = argparse.ArgumentParser(description="Random attention graphs, rewritten and compared.")
    parser.add_argument("--count", type=int, default=2000, help="how many graphs")
    parser.add_argument("--seed", type=int, default=0, help="the first seed; each graph has its own")
    parser.add_argument("--jobs", type=int, default=1, help="processes at a time")
    parser.add_argument("--journal", type=Path, help="chunks that are done; those in it are not run again")
    parser.add_argument("--kind", choices=KINDS, help="graphs of one kind alone")
    parser.add_argument("--only", type=int, metavar="SEED", help="one graph: its files and what came of it")
    parser.add_argument("--keep", type=Path, default=Path("campaign"), help="where --only leaves the files")
    parser.add_argument(
        "--shrink", action="store_true", help="with --only: also look for the smallest graph of that fault"
    )
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        chunks.work(args.seed, args.count, args.kind)
        return 0
    if args.only is not None:
        _show(args.only, args.kind, args.keep, shrunk=args.shrink)
        return 0
    total: Counter[str] = Counter()
    for chunk in chunks.run(args.count, args.seed, args.jobs, args.journal, args.kind):
        total += chunk.tally
        for fault in chunk.faults:
            head = fault["text"].splitlines()[0] if fault["text"] else ""
            changes = ", ".join(fault["mutations"])
            print(f"seed {fault['seed']} ({fault['kind']}; {changes}): {fault['verdict']}: {head}", flush=True)
    print(summary(total))
    return 1 if total["wrong"] else 0


def _show(seed: int, kind: str | None, folder: Path, *, shrunk: bool) -> None:
    """Prints what comes of one graph, and leaves the graph in the folder."""
    drawn = draw(seed, kind)
    if drawn is None:
        print("not drawn")
        return
    folder.mkdir(parents=True, exist_ok=True)
    onnx.save(drawn.model, folder / f"{seed}.onnx")
    outcome = outcome_of(drawn, seed)
    print(f"{drawn.kind}, {drawn.base}, {drawn.mutations}: {outcome.verdict}, {outcome.sites} sites, {outcome.notes}")
    print(outcome.text)
    if shrunk and outcome.verdict not in FINE:
        small = shrink(drawn, seed)
        onnx.save(small.model, folder / f"{seed}_small.onnx")
        print(onnx.printer.to_text(small.model))
        print(outcome_of(small, seed).text)


def summary(total: Counter[str]) -> str:
    """The counts as text: all graphs, then by kind, by mutation and by note."""
    lines = [
        f"{total['graphs']} graphs: {total['verdict invalid']} that nothing runs, {total['verdict not drawn']} not drawn, "
        f"{total['valid']} compared, of these {total['matched']} with sites ({total['sites']} sites, {total['misses']} misses), "
        f"{total['changed']} changed, {total['wrong']} wrong"
    ]
    for what in ("verdict", "kind", "mutation", "note"):
        names = sorted(
            k for k in total if k.startswith(f"{what} ") and not k.endswith((" valid", " matched", " wrong"))
        )
        for name in names:
            more = [f"{total[f'{name} {x}']} {x}" for x in ("valid", "matched", "wrong") if total[f"{name} {x}"]]
            lines.append(f"  {name}: {total[name]}" + (f" ({', '.join(more)})" if more else ""))
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())

"""Other people's files, changed near an attention, mostly so that they mean something else: a rewritten one must equal it all the
same.

    python scripts/corpus_mutations.py DIR [--count N] [--seed S] [--jobs N] [--producer NAME ...] [--keep FOLDER]

DIR is what `python scripts/corpus --out DIR` built. Each seed takes a file, changes it in one or two places by the changes of
`tests/campaign/mutations.py`, and, if onnxruntime runs what came of it, compares it with what a rewrite makes of it. `--keep` says
where the changed models of faults are written. Exits with 1 where a result differs, a rewritten model does not load, or a rewrite
failed.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import resource
import sys
from collections import Counter, deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from random import Random

import numpy as np
import onnx

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "scripts")]

from corpus_report import File, files_of  # noqa: E402

from corpus.check import Outcome, compare, words  # noqa: E402
from onnx_fa.errors import ModelError  # noqa: E402
from onnx_fa.forms.rewrite import FORMS, rewrite  # noqa: E402
from tests.campaign.mutations import MUTATIONS  # noqa: E402
from tests.support.graph_changes import FLOATS  # noqa: E402

SECONDS = 120
MEMORY = 8 << 30
DISTANCE = 8
"""So many nodes from a softmax a change counts as near it."""
TRIES = 25
"""So often a change is drawn anew where it was not near any softmax."""
SOFTMAX = frozenset("Softmax Exp ReduceMax Attention MultiHeadAttention GroupQueryAttention".split())


@dataclass(frozen=True)
class Result:
    """What came of a seed: `verdict` is "same", "invalid" (onnxruntime does not run the changed model), "none" (nothing could be
    changed), or a fault, told in `text`."""

    seed: int
    file: str
    changes: tuple[str, ...]
    verdict: str
    sites: int = 0
    text: str = ""


def draw_file(files: list[File], seed: int) -> tuple[File, Random]:
    """A seed's file, every producer's files taken equally often, and what its changes are drawn from."""
    random = Random(seed)
    producers = sorted({file.folder.name for file in files})
    producer = random.choice(producers)
    return random.choice([file for file in files if file.folder.name == producer]), random


def change(model: onnx.ModelProto, random: Random) -> tuple[onnx.ModelProto, tuple[str, ...]]:
    """The model with one or two changes near a softmax, and their names; none where no change came near one."""
    names: list[str] = []
    for _ in range(random.choice((1, 1, 1, 2))):
        near = values_near(model)
        for _ in range(TRIES):
            name = random.choice(list(MUTATIONS))
            changed = onnx.ModelProto.FromString(model.SerializeToString())
            if MUTATIONS[name](changed, random) and near & values_changed(model, changed):
                model = changed
                names.append(name)
                break
    return model, tuple(names)


def values_near(model: onnx.ModelProto) -> set[str]:
    """The values read or made by nodes that are at most DISTANCE nodes away from a softmax, in either direction."""
    readers: dict[str, list[int]] = {}
    nodes = list(model.graph.node)
    for i, node in enumerate(nodes):
        for value in (*node.input, *node.output):
            if value:
                readers.setdefault(value, []).append(i)
    at = {i: 0 for i, node in enumerate(nodes) if node.op_type in SOFTMAX}
    queue = deque(at)
    while queue:
        i = queue.popleft()
        if at[i] == DISTANCE:
            continue
        for value in (*nodes[i].input, *nodes[i].output):
            for other in readers.get(value, []):
                if other not in at:
                    at[other] = at[i] + 1
                    queue.append(other)
    return {value for i in at for value in (*nodes[i].input, *nodes[i].output) if value}


def values_changed(before: onnx.ModelProto, after: onnx.ModelProto) -> set[str]:
    """The values at nodes that only one of the models has, and the constants that differ."""
    found: set[str] = set()
    old = {node.SerializeToString() for node in before.graph.node}
    new = {node.SerializeToString() for node in after.graph.node}
    for model, others in ((before, new), (after, old)):
        for node in model.graph.node:
            if node.SerializeToString() not in others:
                found.update((*node.input, *node.output))
    held = {tensor.name: tensor.SerializeToString() for tensor in before.graph.initializer}
    found.update(t.name for t in after.graph.initializer if t.name in held and held[t.name] != t.SerializeToString())
    kinds = {value.name: value.SerializeToString() for value in before.graph.input}
    found.update(v.name for v in after.graph.input if kinds.get(v.name) != v.SerializeToString())
    return found - {""}


def odd_numbers(model: onnx.ModelProto) -> set[str]:
    """Weights with infinities or NaN: what these become behind a mask is left open (docs/reference/variants.md)."""
    weights = [t for t in model.graph.initializer if t.data_type in FLOATS and len(t.dims) > 1]
    return {t.name for t in weights if not np.isfinite(onnx.numpy_helper.to_array(t)).all()}


def has_wide_norm(model: onnx.ModelProto) -> bool:
    """Whether a LayerNormalization is over two axes, which onnxruntime's optimiser takes for one
    (docs/developer/onnxruntime-bugs.md)."""
    axes = [
        a.i
        for node in model.graph.node
        if node.op_type == "LayerNormalization"
        for a in node.attribute
        if a.name == "axis"
    ]
    return any(axis < -1 for axis in axes)


def attempt(file: File, random: Random, seed: int, keep: Path | None, say: Callable[[str], None]) -> Result:
    """Changes the file's model, and compares it with what a rewrite makes of it, on one of the file's runs. `say` hears what runs
    next, the "original" or the "rewrite", so that a process that ends tells whose fault it was."""
    given = onnx.load(file.path)
    model, names = change(given, random)
    if not names or odd_numbers(model) - odd_numbers(given) or has_wide_norm(model):
        return Result(seed, file.key, names, "none")
    del model.graph.value_info[:]  # what is declared need not be true any more
    say("original")
    run = random.choice(sorted(file.runs))
    runs = {run: file.runs[run]}
    form = random.choice([form for form in FORMS if form != "attention"])
    outcome = Outcome()
    compare(outcome, model, model, runs)
    if outcome.original or outcome.loads or outcome.differs:  # not run, or not the same twice
        return Result(seed, file.key, names, "invalid")
    say("rewrite")
    try:
        rewritten, report = rewrite(model, form)
    except ModelError as error:
        return _fault(Result(seed, file.key, names, "refused", 0, words(error)), model, keep)
    except Exception as error:
        return _fault(Result(seed, file.key, names, "failed", 0, words(error)), model, keep)
    sites = len(report.sites)
    if not sites:
        return Result(seed, file.key, names, "same")
    outcome = Outcome()
    compare(outcome, model, rewritten, runs)
    for verdict, text in (("does not load", outcome.loads), ("wrong", outcome.differs)):
        if text:
            return _fault(Result(seed, file.key, names, verdict, sites, f"{form}, {text}"), model, keep)
    return Result(seed, file.key, names, "same", sites)


def _fault(result: Result, model: onnx.ModelProto, keep: Path | None) -> Result:
    if keep is not None:
        onnx.save(model, keep / f"{result.seed}.onnx")
    return result


def try_seed(files: list[File], seed: int, keep: Path | None) -> Result:
    """A seed's result, from a process of its own."""
    file, random = draw_file(files, seed)
    context = multiprocessing.get_context("fork")
    receive, send = context.Pipe(duplex=False)
    child = context.Process(target=_child, args=(file, random, seed, keep, send))
    child.start()
    send.close()
    at = "original"
    try:
        while receive.poll(SECONDS):
            heard: Result | str = receive.recv()
            if isinstance(heard, Result):
                return heard
            at = heard
        return Result(seed, file.key, (), "endless", 0, f"no result within {SECONDS} s")
    except EOFError:
        child.join()
        verdict = "invalid" if at == "original" else "ended"  # some changed models end onnxruntime
        return Result(seed, file.key, (), verdict, 0, f"the process ended (exit code {child.exitcode})")
    finally:
        child.kill()
        child.join()


def _child(file: File, random: Random, seed: int, keep: Path | None, out: Connection) -> None:
    quiet = os.open(os.devnull, os.O_WRONLY)
    os.dup2(quiet, 1)
    os.dup2(quiet, 2)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    out.send(attempt(file, random, seed, keep, out.send))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", type=Path)
    parser.add_argument("--count", type=int, default=1000, help="how many changed models")
    parser.add_argument("--seed", type=int, default=0, help="the first one; each model has its own")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--producer", action="append", default=[], help="only this one (repeatable)")
    parser.add_argument("--keep", type=Path, help="where models of faults are left")
    args = parser.parse_args()
    files = [file for file in files_of(args.corpus, args.producer, "") if file.runs and file.entry["attentions"]]
    if not files:
        sys.exit(f"{args.corpus} has no such file: build it with python scripts/corpus --out {args.corpus}")
    if args.keep is not None:
        args.keep.mkdir(parents=True, exist_ok=True)
    tally: Counter[str] = Counter()
    with ThreadPoolExecutor(args.jobs) as pool:
        for result in pool.map(lambda seed: try_seed(files, seed, args.keep), range(args.seed, args.seed + args.count)):
            tally[result.verdict] += 1
            tally["with sites"] += result.sites > 0
            if result.verdict not in ("same", "invalid", "none"):
                print(
                    f"seed {result.seed} {result.file} ({', '.join(result.changes)}): {result.verdict}: {result.text}",
                    flush=True,
                )
    print(", ".join(f"{count} {verdict}" for verdict, count in sorted(tally.items())))
    return int(any(tally[verdict] for verdict in tally if verdict not in ("same", "invalid", "none", "with sites")))


if __name__ == "__main__":
    sys.exit(main())

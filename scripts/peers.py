"""Which spellings of attention are found: by this package, by onnxscript's fusions and by ONNX Runtime's optimizers, in one run.

    python scripts/peers.py [--csv benchmarks/spellings.csv] [--page docs/results/spellings.md] [--only GROUP] [--limit SECONDS]
        [--jobs N]

Every spelling of `tests/support/spelling_table.py` is offered to every contestant bare and, where its operands allow, inside a
transformer block (projections before it, output projection and norm behind it; post-norm and pre-norm). A contestant has found
it when an attention op is there afterwards, in any of these; its better answer counts. What it made is run in onnxruntime
against the original. Every contestant runs in a process of its own with a time limit."""

from __future__ import annotations

import argparse
import contextlib
import csv
import importlib
import importlib.metadata
import logging
import multiprocessing
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import onnx

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from onnx_fa.ort_session import ort_session  # noqa: E402
from onnx_fa.tables import markdown_table  # noqa: E402
from tests.support.attention_block import STYLES, in_block  # noqa: E402
from tests.support.spelling_table import Entry, entries  # noqa: E402

Answer = tuple[str, str]
"""(answer, detail). Found: an attention op is there, and the result is the same. Left: there is none. Wrong: there is one, and
the result is another or onnxruntime refuses the model. Error: an exception, a crash or no answer in time."""
RANK = ("found", "left", "wrong", "error")
CONTESTANTS = ("onnx_fa", "onnxscript", "onnxruntime.transformers", "onnxruntime")
ATTENTION = frozenset(
    "Attention MultiHeadAttention GroupQueryAttention SDPA PackedAttention PackedMultiHeadAttention QAttention SparseAttention "
    "DecoderMaskedMultiHeadAttention DecoderMaskedSelfAttention DecoderAttention LongformerAttention PagedAttention".split()
)
TOLERANCE = {"onnx_fa": 2e-6}
"""Relative norm error; others may use other algorithms and get 1e-3."""

Feeds = dict[str, np.ndarray[Any, np.dtype[Any]]]
Variants = dict[str, tuple[onnx.ModelProto, Feeds]]


def variants(entry: Entry) -> Variants:
    """The entry's model bare and in blocks, each with inputs. A block made from a Spelling has equal lengths and head dims."""
    bare = entry.build()
    result: Variants = {"bare": (bare, entry.feeds(bare, 0))}
    inner, feeds = bare, result["bare"][1]
    if entry.spelling is not None:
        with contextlib.suppress(ValueError):
            inner = replace(entry, build=_square(entry)).build()
            feeds = entry.feeds(inner, 0)
    for style in STYLES:
        try:
            block = in_block(inner, style)
        except onnx.checker.ValidationError:  # the graph does not stand inside another one
            block = None
        if block is not None:
            rng = np.random.default_rng(0)
            made = {
                i.name: rng.standard_normal([d.dim_value for d in i.type.tensor_type.shape.dim]).astype(np.float32)
                for i in block.graph.input
                if i.name in ("x", "y")
            }
            result[style] = (block, {**{n: a for n, a in feeds.items() if n not in ("q", "k", "v")}, **made})
    return result


def _square(entry: Entry) -> Callable[[], onnx.ModelProto]:
    from tests.support.spellings import build

    assert entry.spelling is not None
    spelling = replace(entry.spelling, Sq=8, Skv=8, D=8, Dv=8)
    return lambda: build(spelling)


def _attentions(model: onnx.ModelProto) -> int:
    return sum(n.op_type in ATTENTION for n in model.graph.node)


def _has_attention(old: onnx.ModelProto, new: onnx.ModelProto) -> bool:
    """Whether an attention op was made; one that was there all the time does as well."""
    return _attentions(new) > _attentions(old) or 0 < _attentions(old) == _attentions(new)


def _run(model: onnx.ModelProto, feeds: Feeds) -> list[np.ndarray[Any, Any]]:
    return list(ort_session(model, threads=1, optimise=False).run(None, feeds))


def _same(old: onnx.ModelProto, new: onnx.ModelProto, feeds: Feeds, tolerance: float) -> str:
    """What is wrong; empty when both give the same, or the original does not run at all."""
    try:
        want = _run(old, feeds)
    except Exception:  # onnxruntime raises kinds of its own
        return ""
    try:
        have = _run(new, feeds)
    except Exception as e:
        return f"does not run: {' '.join(str(e).split())[:120]}"
    for a, b in zip(want, have, strict=True):
        if a.shape != b.shape:
            return f"shape {list(b.shape)} instead of {list(a.shape)}"
        if a.dtype.kind != "f":
            continue
        a, b = a.astype(np.float64), b.astype(np.float64)
        if not np.array_equal(np.isfinite(a), np.isfinite(b)):
            return "other values are NaN or infinite"
        a, b = np.nan_to_num(a), np.nan_to_num(b)
        error = float(np.linalg.norm(a - b)) / max(float(np.linalg.norm(a)), 1e-30)
        if error > tolerance:
            return f"error {error:.1e}"
    return ""


def _judge(who: str, label: str, old: onnx.ModelProto, new: onnx.ModelProto, feeds: Feeds, found: bool) -> Answer:
    """What the contestant's model amounts to. Where it found nothing, the others' result is taken on trust."""
    if not found and (who != "onnx_fa" or list(old.graph.node) == list(new.graph.node)):
        return "left", label
    problem = _same(old, new, feeds, TOLERANCE.get(who, 1e-3))
    if problem:
        return "wrong" if found else "error", f"{label}: {problem}"
    return ("found" if found else "left"), label


# Contestants: each yields answers, and need not go on after "found".


def ours(models: Variants) -> Iterator[Answer]:
    from onnx_fa.forms.rewrite import rewrite

    for label, (model, feeds) in models.items():
        new, report = rewrite(model)
        answer, _ = _judge("onnx_fa", label, model, new, feeds, bool(report.sites))
        if report.sites:
            yield answer, "; ".join(s.spec.variant for s in report.sites)
        else:
            yield answer, "; ".join(m.reason for m in report.misses) or "no softmax"
        return  # the bare one decides: a block gives nothing away that it needs


def onnxscript(models: Variants) -> Iterator[Answer]:
    """`optimize_for_ort` as a whole; SDPA's fusion alone; the fusions to standard ops."""
    import onnx_ir as ir
    import onnx_ir.passes.common as passes
    from onnxscript import optimizer
    from onnxscript.rewriter import onnx_fusions, ort_fusions
    from onnxscript.rewriter.ort_fusions.sdpa import fuse_sdpa

    def whole(model: ir.Model) -> None:
        ort_fusions.optimize_for_ort(model)

    def sdpa(model: ir.Model) -> None:
        passes.ShapeInferencePass()(model)
        optimizer.optimize(model)
        fuse_sdpa(model, apply_shape_inference=True)

    def standard(model: ir.Model) -> None:
        optimizer.optimize(model)
        onnx_fusions.fuse(model)

    for label, (model, feeds) in models.items():
        opset = next((o.version for o in model.opset_import if o.domain == ""), 0)
        for road in (whole, sdpa, standard) if opset >= 23 else (whole, sdpa):  # onnx_fusions does nothing before 23
            work = ir.from_proto(model)
            try:
                road(work)
            except Exception as e:
                yield "error", f"{label}, {road.__name__}: {' '.join(str(e).split())[:120]}"
                continue
            new = ir.to_proto(work)
            found = _has_attention(model, new)
            if found and road is sdpa:
                yield "found", f"{label}: SDPA"  # a function of onnxscript's own, which onnxruntime does not run
                continue
            names = "+".join(sorted({n.op_type for n in new.graph.node} & ATTENTION))
            answer, detail = _judge("onnxscript", label, model, new, feeds, found)
            yield answer, f"{detail}: {names}" if answer == "found" else detail


def ort_transformers(models: Variants) -> Iterator[Answer]:
    """`onnxruntime.transformers.optimizer` with the class of every model type, and told the heads and the hidden size."""
    from onnxruntime.transformers import optimizer
    from onnxruntime.transformers.fusion_options import FusionOptions

    types = {}
    for name, (cls, _, _) in optimizer.MODEL_TYPES.items():
        types.setdefault(cls, name)
    for label, (model, feeds) in reversed(models.items()):
        q = next((i for i in model.graph.input if i.name in ("x", "q")), model.graph.input[0])
        dims = [d.dim_value for d in q.type.tensor_type.shape.dim]
        heads, hidden = _heads(models["bare"][0]), dims[-1] if len(dims) == 3 else 0
        for name in types.values():
            for level in (None, 0) if name == "bert" else (None,):
                with tempfile.TemporaryDirectory() as folder:
                    path = Path(folder) / "model.onnx"
                    onnx.save(model, path)
                    try:
                        optimized = optimizer.optimize_model(
                            os.fspath(path), name, heads, hidden, FusionOptions(name), level
                        )
                        new = optimized.model
                    except Exception as e:
                        yield "error", f"{label}, {name}: {' '.join(str(e).split())[:120]}"
                        continue
                found = _has_attention(model, new)
                names = "+".join(sorted({n.op_type for n in new.graph.node} & ATTENTION))
                answer, detail = _judge("onnxruntime.transformers", f"{label}, {name}", model, new, feeds, found)
                yield answer, f"{detail}: {names}" if answer == "found" else detail


def _heads(model: onnx.ModelProto) -> int:
    q = next((i for i in model.graph.input if i.name == "q"), None)
    dims = [] if q is None else [d.dim_value for d in q.type.tensor_type.shape.dim]
    return dims[1] if len(dims) == 4 else 0


def ort_optimizer(models: Variants) -> Iterator[Answer]:
    """The optimizer inside onnxruntime, at its highest level, for the CPU."""
    import onnxruntime as ort

    for label, (model, feeds) in reversed(models.items()):
        with tempfile.TemporaryDirectory() as folder:
            options = ort.SessionOptions()
            options.log_severity_level = 4
            options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_ALL
            options.optimized_model_filepath = os.fspath(Path(folder) / "optimized.onnx")
            try:
                ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
                new = onnx.load(options.optimized_model_filepath)
            except Exception as e:
                yield "error", f"{label}: {' '.join(str(e).split())[:120]}"
                continue
        found = _has_attention(model, new)
        answer, detail = _judge("onnxruntime", label, model, new, feeds, found)
        names = "+".join(sorted({n.op_type for n in new.graph.node} & ATTENTION))
        yield answer, f"{detail}: {names}" if answer == "found" else detail


RUNNERS: dict[str, Callable[[Variants], Iterator[Answer]]] = dict(
    zip(CONTESTANTS, (ours, onnxscript, ort_transformers, ort_optimizer), strict=True)
)


def _best(entry: Entry, answers: list[Answer]) -> Answer:
    """The best answer counts; only of a spelling that must not match, a wrong one."""
    if entry.expected == "refuse":
        answers = [a for a in answers if a[0] == "wrong"] or answers
    return min(answers, key=lambda a: RANK.index(a[0]), default=("error", "no answer"))


def _child(runner: Callable[[Variants], Iterator[Answer]], entry: Entry, out: Connection) -> None:
    logging.disable(logging.CRITICAL)
    quiet = os.open(os.devnull, os.O_WRONLY)
    os.dup2(quiet, 1)
    os.dup2(quiet, 2)
    for answer in runner(variants(entry)):
        out.send(answer)
        if answer[0] == "found" and entry.expected == "match":
            break
    out.send(None)


def ask(who: str, entry: Entry, limit: float) -> Answer:
    """The contestant's best answer, in a process of its own. What it said before a crash or the time limit still counts."""
    context = multiprocessing.get_context("fork")
    receive, send = context.Pipe(duplex=False)
    child = context.Process(target=_child, args=(RUNNERS[who], entry, send))
    child.start()
    send.close()
    answers: list[Answer] = []
    try:
        while receive.poll(limit) and (answer := receive.recv()) is not None:
            answers.append(answer)
        if not answers and child.is_alive():
            answers.append(("error", f"no answer within {limit:g} s"))
    except EOFError:
        child.join(5)
        answers.append(("error", f"crashed (exit {child.exitcode})"))
    finally:
        child.kill()
        child.join()
    return _best(entry, answers)


_work: tuple[list[Entry], float] = ([], 0.0)
"""In a worker: the spellings, which hold functions and cannot be sent, and the time limit."""


def _take_entries(chosen: list[Entry], limit: float) -> None:
    global _work
    _work = (chosen, limit)


def _ask_all(index: int) -> dict[str, Answer]:
    chosen, limit = _work
    return {who: ask(who, chosen[index], limit) for who in CONTESTANTS}


def _preload() -> None:
    """Imports what the children need, once; nothing here starts a thread that a fork would lose."""
    for module in ("onnxruntime.transformers.optimizer", "onnxscript.rewriter.ort_fusions", "onnx_fa.forms.rewrite"):
        importlib.import_module(module)


def right(entry: Entry, answer: str) -> bool:
    """Whether that is what the table expects; what must not match may be rewritten as long as the result stays."""
    return answer == "found" if entry.expected == "match" else answer in ("left", "found")


def page(rows: list[tuple[Entry, dict[str, Answer]]]) -> str:
    """The Markdown page: totals, then every spelling."""
    must = [r for r in rows if r[0].expected == "match"]
    must_not = [r for r in rows if r[0].expected == "refuse"]
    totals = []
    for who in CONTESTANTS:
        counts = Counter(answers[who][0] for _, answers in must)
        kept = sum(right(entry, answers[who][0]) for entry, answers in must_not)
        wrong = sum(answers[who][0] == "wrong" for _, answers in rows)
        totals.append([who, f"{counts['found']} of {len(must)}", f"{kept} of {len(must_not)}", str(wrong)])
    versions = ", ".join(
        f"{p} {importlib.metadata.version(p)}" for p in ("onnx", "onnx-ir", "onnxscript", "onnxruntime")
    )
    head = ("", "found", "must not match, and result kept", "attention op with another result")
    groups = dict.fromkeys(entry.group for entry, _ in rows)
    by_group = []
    for group in groups:
        mine = [r for r in must if r[0].group == group]
        if mine:
            found = [str(sum(a[who][0] == "found" for _, a in mine)) for who in CONTESTANTS]
            by_group.append([group, str(len(mine)), *found])
    marks = {"found": "yes", "left": "-", "wrong": "wrong", "error": "error"}
    listing = [
        [entry.group, entry.name, entry.expected, answers["onnx_fa"][1].replace("|", "/")]
        + [marks[answers[who][0]] for who in CONTESTANTS]
        for entry, answers in rows
    ]
    return f"""# Spellings of attention, and who finds them

Written by `scripts/peers.py`; details in [benchmarks/spellings.csv](../../benchmarks/spellings.csv). {versions}.

Every spelling is offered bare and, where its operands allow, inside a transformer block; the better answer counts for the others,
the bare one for onnx_fa. onnxscript: `optimize_for_ort`, its SDPA fusion alone, and `onnx_fusions`; onnxruntime.transformers:
`optimize_model` with every model type's class; onnxruntime: a session at `ORT_ENABLE_ALL` on the CPU.
*Found* (yes) means that an attention op is there and that onnxruntime gives the original's result (onnxscript's SDPA alone is taken
on trust, as onnxruntime does not run it; nor is anything compared where it does not run the original); *wrong*, that there is one
and the result is another. Of all the ways to run a contestant the best one counts, and a wrong one only where there must be no
match. An attention op that the spelling itself has counts for the others as found.

{markdown_table(head, totals)}

## Found, by group

{markdown_table(("group", "spellings", *CONTESTANTS), by_group)}

## Every spelling

{markdown_table(("group", "spelling", "must", "read as, or why not", *CONTESTANTS), listing)}
"""


def _write(rows: list[tuple[Entry, dict[str, Answer]]], table: Path, text: Path) -> None:
    with open(table, "w", newline="") as f:
        writer = csv.writer(f)
        writer.writerow(["group", "spelling", "must", *(x for who in CONTESTANTS for x in (who, f"{who}: detail"))])
        for entry, answers in rows:
            writer.writerow(
                [entry.group, entry.name, entry.expected, *(x for who in CONTESTANTS for x in answers[who])]
            )
    text.write_text(page(rows))


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--csv", type=Path, default=ROOT / "benchmarks" / "spellings.csv")
    parser.add_argument("--page", type=Path, default=ROOT / "docs" / "results" / "spellings.md")
    parser.add_argument("--only", default="", help="a group of spellings")
    parser.add_argument(
        "--limit", type=float, default=60.0, help="seconds without an answer before a contestant is ended"
    )
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="spellings asked at the same time")
    args = parser.parse_args()
    _preload()
    chosen = [entry for entry in entries() if args.only in ("", entry.group)]
    rows: list[tuple[Entry, dict[str, Answer]]] = []
    context = multiprocessing.get_context("fork")
    with (
        contextlib.suppress(KeyboardInterrupt),  # what is known by then is written
        ProcessPoolExecutor(args.jobs, context, _take_entries, (chosen, args.limit)) as pool,
    ):
        for entry, answers in zip(chosen, pool.map(_ask_all, range(len(chosen))), strict=True):
            rows.append((entry, answers))
            print(entry.id, *(f"{who}={a[0]}" for who, a in answers.items()), flush=True)
    _write(rows, args.csv, args.page)
    missed = [entry.id for entry, answers in rows if not right(entry, answers["onnx_fa"][0])]
    if missed:
        print("onnx_fa answers otherwise than expected:", *missed, file=sys.stderr)
    return 1 if missed else 0


if __name__ == "__main__":
    raise SystemExit(main())

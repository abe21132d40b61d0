"""Random attentions, compiled and compared with the reference: `python -m tests.fuzz --count 5000 --journal fuzz.jsonl`.

With `--products bf16`, head dims are made even and integers left out, and products are those of bf16; with `--products amx`, head
dims fill the tiles of AMX, which multiply them (AVX512_BF16 where this machine has no tiles); with `--products split`
tiles multiply f32, whose numbers are split.

They are drawn and compiled in chunks, each in a process of its own, so that a crash or an endless loop is a result like any
other; a journal remembers the chunks that are done. One kernel in forty has the tiles that users get, the others have small
ones, which compile in a tenth of the time and have more edges; a third of these split their keys, where they can be split.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import math
import os
import resource
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from functools import partial
from itertools import cycle, islice
from pathlib import Path
from queue import Queue
from typing import Any, Literal, get_args

from onnx_fa.errors import UnsupportedError
from onnx_fa.kernels.choose import emit_kernel, kernel_name
from onnx_fa.kernels.cpu.combine import can_split
from onnx_fa.kernels.cpu.few import emit_few, few_queries, tuned_few
from onnx_fa.kernels.cpu.rows import emit_rows
from onnx_fa.kernels.cpu.split import emit_with
from onnx_fa.kernels.cpu.tiled import emit_tiled
from onnx_fa.kernels.cpu.tiles import FewConfig
from onnx_fa.kernels.cpu.vector import VectorConfig, emit_vector, tuned
from onnx_fa.kernels.mlir.kernel import Kernel
from onnx_fa.spec.attention import AttentionSpec
from onnx_fa.spec.target import Target, parse_target
from onnx_fa.spec.terms import Elementwise, Quantized
from tests.support.cases import draw_operands
from tests.support.kernel_harness import HOST, Kernels, mismatch
from tests.support.odd_operands import comparable, low, poked, rounded_away
from tests.support.random_specs import MOST_SCORES, Drawn, draw_specs

CHUNK = 25
CHUNK_SECONDS, WALL_SECONDS = 600, 3600
"""A chunk gets so many of the processor's time for itself and for each of its compilers, and so many by the clock."""
Products = Literal["f32", "bf16", "amx", "split"]
POKED = 4
"""So many times infinities and NaN are put into the operands of each size: runs cost next to nothing beside compiling."""
USERS = 40
"""One kernel in so many has the tiles that users get; what these compute is also tried on the table of cases."""
SMALL = (
    VectorConfig(4, 4, 4, 2, 1, 1),
    VectorConfig(8, 8, 16, 4, 3, 2),
    VectorConfig(4, 8, 16, 4, 2, 2),
    VectorConfig(4, 24, 16, 2, 1, 1),  # of which several vectors often reach over the last query
)
_DONE = "done "


def kernels(index: int, spec: AttentionSpec, products: Products = "f32") -> list[Kernel]:
    """One kernel for a spec, and for every other one of few queries the body for these; `products`: what multiplies."""
    target, users = target_of(products), index % USERS == USERS - 1 or spec.Skv == 0
    if products in ("amx", "split"):
        emit = emit_tiled if products == "amx" else emit_with
        tiles = VectorConfig(16, 32 + 32 * (index % 2), 32 + 32 * (index // 2 % 2), 32, 32, 4)
        name = f"{kernel_name(spec, target)}_{tiles.BM}_{tiles.BK}"
        return [emit(spec, target, name, None if users else tiles)]
    body = "vector" if products == "bf16" else "auto"
    made = [emit_kernel(spec, target, body=body) if users else _small(index, spec, target)]
    if index % 2 and products == "f32" and made[0].body != "few":
        with contextlib.suppress(UnsupportedError):
            made.append(emit_kernel(spec, HOST, body="few") if users else _small_few(index, spec))
    if products == "f32" and made[0].body != "rows":
        with contextlib.suppress(UnsupportedError):
            made.append(emit_rows(spec, HOST, f"{kernel_name(spec, HOST)}_rows", _splits(index, spec)))
    return made


def target_of(products: Products) -> Target:
    name = "cpu-amx" if products in ("amx", "split") else "cpu-host"
    return parse_target(name, bf16_dot=products in ("bf16", "amx"))


def by_rows(drawn: Drawn) -> Drawn:
    """The same with the heads of a key side by side in K and V, and head dims of whole vectors."""
    spec, n = drawn.spec, drawn.spec.rank
    if spec.gathered is not None:
        return drawn
    rows = (n - 2, *range(n - 2), n - 1)
    D, Dv = (-(-width // 16) * 16 for width in (spec.D, spec.Dv))
    k_quant = _integers_by_rows(spec.k_quant, spec.k_layout, rows, spec.D, D)
    v_quant = _integers_by_rows(spec.v_quant, spec.v_layout, rows, spec.Dv, Dv)
    moved = dataclasses.replace(spec, D=D, Dv=Dv, k_layout=rows, v_layout=rows, k_quant=k_quant, v_quant=v_quant)
    return dataclasses.replace(drawn, spec=moved)


def _integers_by_rows(
    quant: Quantized | None, old: tuple[int, ...], new: tuple[int, ...], was: int, width: int
) -> Quantized | None:
    """The integers in another layout, whose head dims `was` before and is `width` now: scales of single numbers stay so."""
    if quant is None:
        return None
    stored = (1,) * (len(old) - len(quant.shape)) + quant.shape
    *lead, groups = (stored[old.index(axis)] for axis in range(len(old)))
    assert isinstance(groups, int)
    groups = width if groups == was > 1 else math.gcd(groups, width)
    canonical = (*lead, groups)
    return dataclasses.replace(quant, shape=tuple(canonical[axis] for axis in new))


def tiled(drawn: Drawn) -> Drawn:
    """The same with operands that fill tiles of AMX, or nearly."""
    even = paired(drawn).spec
    spec = dataclasses.replace(even, D=even.D + 32, Dv=-(-even.Dv // 16) * 16, gathered=None)
    rows, width = spec.rank - 2, spec.rank - 1
    plain = {
        name: tuple(range(spec.rank))
        for name in ("k_layout", "v_layout")
        if getattr(spec, name).index(width) < getattr(spec, name).index(rows)
    }
    spec = dataclasses.replace(spec, **plain)  # type: ignore[arg-type]
    return dataclasses.replace(drawn, spec=spec)


def splitted(drawn: Drawn) -> Drawn:
    """The same with operands whose numbers AMX's kernel splits."""
    spec = tiled(drawn).spec
    rows, width = spec.rank - 2, spec.rank - 1
    layout = tuple(range(spec.rank)) if spec.q_layout.index(width) < spec.q_layout.index(rows) else spec.q_layout
    spec = dataclasses.replace(
        spec, dtype="f32", D=min(192, -(-spec.D // 16) * 16), q_layout=layout, weights=None, weighting=None
    )
    return dataclasses.replace(drawn, spec=spec)


def paired(drawn: Drawn) -> Drawn:
    """The same with operands that fill pairs of bf16."""
    spec, even = drawn.spec, max(8, drawn.spec.D // 2 * 2)
    spec = dataclasses.replace(spec, D=even, Dv=max(4, spec.Dv), k_quant=None, v_quant=None, rounding=None)
    return dataclasses.replace(drawn, spec=spec)


def _splits(index: int, spec: AttentionSpec) -> int | None:
    """Into how many parts the keys of a kernel with small tiles are split: of every third where they can be; None as users get."""
    return 2 + index % 2 if index % 3 == 1 and can_split(spec) else None


def splittable(drawn: Drawn) -> Drawn:
    """The same with only the number of keys unknown, at most: else they cannot be split."""
    spec, first = drawn.spec, dict(drawn.sizes[0])
    others = {name: size for name, size in first.items() if name != spec.Skv}
    if not others or spec.Skv in (*spec.batch, spec.Hq, spec.Sq):
        return drawn
    fixed = [{n: x for n, x in sizes if n not in others} for sizes in drawn.sizes]
    few = [s for s in fixed if math.prod(map(int, spec.bind(others | s).score_shape)) <= MOST_SCORES]
    return Drawn(spec.bind(others), tuple(dict.fromkeys(tuple(s.items()) for s in few)))


def _small(index: int, spec: AttentionSpec, target: Target) -> Kernel:
    """The spec with small tiles."""
    config = SMALL[index % len(SMALL)]
    if any(isinstance(term, Elementwise) for term in (*spec.mods, *spec.masks)):
        config = min(
            config, SMALL[index % 3], key=lambda c: c.BM
        )  # functions of many vectors take most of a compiler's time
    lanes = min(config.lanes, tuned(spec, target)[0].lanes)
    config = dataclasses.replace(config, lanes=lanes, tile_dims=min(config.tile_dims, spec.Dv))
    splits = _splits(index, spec)
    name = f"{kernel_name(spec, target)}_w{config.lanes}_{config.BM}_s{splits}"
    return emit_vector(spec, target, name, config, splits)


def _small_few(index: int, spec: AttentionSpec) -> Kernel:
    """The spec of few queries with small tiles."""
    most = tuned_few(spec, HOST)[0].lanes
    lanes = min(most, 4 if max(spec.D, spec.Dv) <= 128 else 16)  # a row is written out, vector by vector
    config = FewConfig(lanes, few_queries(spec), 3 * lanes, lanes, 1, 1)
    splits = _splits(index, spec)
    return emit_few(spec, HOST, f"{kernel_name(spec, HOST)}_few_w{lanes}_s{splits}", config, splits)


def run_chunk(chunk: int, count: int = CHUNK, products: Products = "f32") -> dict[str, Any]:
    """Draws, compiles and compares the specs of a chunk. `wrong` says what differs, in words."""
    drawn = draw_specs(count, start=chunk)
    drawn = [splittable(d) if (i + chunk) % 3 == 1 else d for i, d in enumerate(drawn)]
    drawn = [by_rows(d) if (i + chunk) % 6 in (1, 2) else d for i, d in enumerate(drawn)]
    if products != "f32":
        drawn = list(map({"bf16": paired, "amx": tiled, "split": splitted}[products], drawn))
    cases: list[tuple[Drawn, Kernel]] = []
    refused: list[str] = []
    for i, d in enumerate(drawn):
        try:
            cases += [(d, kernel) for kernel in kernels(i + CHUNK * chunk, d.spec, products)]
        except UnsupportedError as error:
            refused.append(str(error))
    wrong: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        compiled = Kernels([kernel for _, kernel in cases], Path(folder), target_of(products))
        for i, (d, kernel) in enumerate(cases):
            for seed, spec in enumerate(d.bound()):
                for kind, operands in operands_of(spec, seed).items():
                    compared = comparable(spec, operands, compiled.run(i, operands), kernel.lossy)
                    found = mismatch(*compared, kernel.lossy)
                    if found and not rounded_away(*compared, kernel.lossy):
                        what = f"{kernel.body} {kernel.config}, {kind} operands: {found}"
                        wrong.append(f"chunk {chunk}, {what}: {d.spec} at {spec}")
    return {
        "chunk": chunk,
        "specs": len(drawn),
        "kernels": len(cases),
        "runs": sum(len(d.sizes) for d, _ in cases),
        "refused": refused,
        "wrong": wrong,
    }


def operands_of(spec: AttentionSpec, seed: int) -> dict[str, list[Any]]:
    """By name: what a kernel is run with."""
    kinds = {
        "plain": draw_operands(spec, seed),
        "adversarial": draw_operands(spec, seed, adversarial=True),
        **{f"poked {n}": poked(spec, seed + 1000 * n) for n in range(POKED)},
        "low": low(spec, seed),
    }
    return {name: operands for name, operands in kinds.items() if operands is not None}


def _confine(core: int) -> None:
    """This process and those that it starts to one core, and to their time."""
    os.sched_setaffinity(0, {core})
    resource.setrlimit(resource.RLIMIT_CPU, (CHUNK_SECONDS, CHUNK_SECONDS))


def in_process(chunk: int, count: int, core: int, products: Products = "f32") -> dict[str, Any]:
    """`run_chunk` in a process of its own, on one core: the compiler's linker, the runtime and NumPy start a thread for every core
    that they may use, and many processes of many threads spend most of their time on waiting for each other."""
    command = [sys.executable, "-m", "tests.fuzz", "--one", str(chunk), "--count", str(count)]
    command += ["--products", products]
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=partial(_confine, core),
    )
    try:
        out, error = process.communicate(timeout=WALL_SECONDS)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)  # its compiler too
        process.communicate()
        return {"chunk": chunk, "specs": 0, "wrong": [f"chunk {chunk}: not done in {WALL_SECONDS} s"]}
    lines = [line for line in out.splitlines() if line.startswith(_DONE)]
    if process.returncode or not lines:
        why = (error or out).strip()[-2000:]
        return {"chunk": chunk, "specs": 0, "wrong": [f"chunk {chunk}: exit code {process.returncode}: {why}"]}
    result: dict[str, Any] = json.loads(lines[-1][len(_DONE) :])
    return result


def run(
    count: int, jobs: int, journal: Path | None = None, products: Products = "f32", first: int = 0
) -> Iterator[dict[str, Any]]:
    """Every chunk of `count` specs from chunk `first` on, as each is done; those in the journal without a run."""
    text = journal.read_text() if journal and journal.exists() else ""
    known = {r["chunk"]: r for r in map(json.loads, text.splitlines()) if not r["wrong"]}
    sizes = {first + i: min(CHUNK, count - i * CHUNK) for i in range(-(-count // CHUNK))}
    yield from (known[i] for i in sizes if i in known)
    cores: Queue[int] = Queue()
    for core in islice(cycle(sorted(os.sched_getaffinity(0))), jobs):
        cores.put(core)

    def on_a_core(chunk: int) -> dict[str, Any]:
        core = cores.get()
        try:
            return in_process(chunk, sizes[chunk], core, products)
        finally:
            cores.put(core)

    with ThreadPoolExecutor(jobs) as pool:
        for future in as_completed([pool.submit(on_a_core, i) for i in sizes if i not in known]):
            result = future.result()
            if journal:
                with journal.open("a") as file:
                    file.write(json.dumps(result) + "\n")
            yield result


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=300, help="how many specs")
    parser.add_argument("--first", type=int, default=0, help=f"the first chunk of {CHUNK} specs")
    parser.add_argument("--jobs", type=int, default=2, help="processes at a time")
    parser.add_argument("--journal", type=Path, help="chunks that are done; those in it are not run again")
    parser.add_argument("--products", choices=get_args(Products), default="f32", help="what multiplies")
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one is not None:
        print(_DONE + json.dumps(run_chunk(args.one, args.count, args.products)))
        return 0
    total = refused = 0
    wrong: list[str] = []
    for result in run(args.count, args.jobs, args.journal, args.products, args.first):
        total += result["specs"]
        refused += len(result.get("refused", ()))
        wrong += result["wrong"]
        for line in result["wrong"]:
            print(line, flush=True)
    print(f"{total} specs, {refused} refused, {len(wrong)} wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
